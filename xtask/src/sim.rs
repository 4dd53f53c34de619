//! `sim` and `bite`: a build of the simulation, then seeds of it. The crates that it spends its time
//! in are optimised in dev builds, and it has the features that the whole workspace asks of its dependencies: so it shares
//! everything with the tests' builds.

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::shell;

const BUILD: &str = "--workspace --bin nowserving-sim";

/// Builds and runs the simulation with `args`; its exit code is ours.
pub fn run(args: &[String]) -> Result<ExitCode> {
    shell::build_and_run(BUILD, |run| run.args(args))
}

/// Builds it. Returns a command that runs `seeds` of it at the lowest priority.
pub fn in_background(seeds: u64) -> Result<Command> {
    let program = shell::build(BUILD)?;
    let mut run = shell::command("nice", "-n 19");
    run.arg(program).args(["--seeds", &seeds.to_string()]);
    Ok(run)
}

/// The same with one rule after the other broken on purpose.
pub fn bite(args: &[String]) -> Result<ExitCode> {
    shell::build_and_run(BUILD, |run| run.arg("--bite").args(args))
}
