//! `sim` and `bite`: a build of the simulation, then seeds of it. The crates that it spends its time
//! in are optimised in dev builds, so it shares everything with the tests' builds.

use std::process::ExitCode;

use anyhow::Result;

use crate::shell;

/// Builds and runs the simulation with `args`; its exit code is ours.
pub fn run(args: &[String]) -> Result<ExitCode> {
    shell::build_and_run("--package nowserving-sim", |run| run.args(args))
}

/// The same with one rule after the other broken on purpose.
pub fn bite(args: &[String]) -> Result<ExitCode> {
    let flags = "--package nowserving-sim --features bite";
    shell::build_and_run(flags, |run| run.arg("--bite").args(args))
}
