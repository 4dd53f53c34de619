//! `sim` and `bite`: a build of the simulation, then seeds of it. The crates that it spends its time
//! in are optimised in dev builds, and it has the features that the whole workspace asks of its dependencies: so it shares
//! everything with the tests' builds.

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::shell;

const PROGRAM: &str = "nowserving-sim";

/// Builds and runs the simulation with `args`; its exit code is ours.
pub fn run(args: &[String]) -> Result<ExitCode> {
    build_and_run("", |run| run.args(args))
}

/// The same with one rule after the other broken on purpose.
pub fn bite(args: &[String]) -> Result<ExitCode> {
    build_and_run("--features nowserving-sim/bite", |run| {
        run.arg("--bite").args(args)
    })
}

fn build_and_run(
    features: &str,
    more: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<ExitCode> {
    let build = format!("build --locked --workspace --bin {PROGRAM} {features}");
    eprintln!("xtask: cargo {build} (some minutes the first time)");
    shell::run(&mut shell::cargo(&build))?;
    // `cargo run` knows no `--workspace`.
    let program = shell::target_folder()?.join("debug").join(PROGRAM);
    shell::exit_code(more(&mut shell::command(&program.to_string_lossy(), "")))
}
