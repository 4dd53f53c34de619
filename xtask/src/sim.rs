//! `sim` and `bite`: a build of the simulation, then seeds of it. The crates that it spends its time
//! in are optimised in dev builds, and it has the features that the whole workspace asks of its dependencies: so it shares
//! everything with the tests' builds.

use std::process::ExitCode;

use anyhow::Result;

use crate::shell;

const BUILD: &str = "--workspace --bin nowserving-sim";

/// Builds and runs the simulation with `args`; its exit code is ours.
pub fn run(args: &[String]) -> Result<ExitCode> {
    shell::build_and_run(BUILD, |run| run.args(args))
}

/// The same with one rule after the other broken on purpose.
pub fn bite(args: &[String]) -> Result<ExitCode> {
    shell::build_and_run(BUILD, |run| run.arg("--bite").args(args))
}
