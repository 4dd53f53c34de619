//! `sim` and `bite`: a build of the simulation, then seeds of it. The crates that it spends its time
//! in are optimised in dev builds, so it shares everything with the tests' builds.

use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result};

use crate::shell;

const PACKAGE: [&str; 4] = ["--locked", "--quiet", "--package", "nowserving-sim"];

/// Builds and runs the simulation with `args`; its exit code is ours.
pub fn run(args: &[String]) -> Result<ExitCode> {
    with(&[], args)
}

/// The same with one rule after the other broken on purpose.
pub fn bite(args: &[String]) -> Result<ExitCode> {
    let args: Vec<String> = [vec!["--bite".to_owned()], args.to_vec()].concat();
    with(&["--features", "bite"], &args)
}

fn with(features: &[&str], args: &[String]) -> Result<ExitCode> {
    let build = [&["build"], &PACKAGE[..], features].concat();
    eprintln!("xtask: cargo {}", build.join(" "));
    shell::run(&mut shell::cargo(&build))?;
    // By way of cargo, which knows where its target folder is.
    let status = shell::cargo(&[&["run"], &PACKAGE[..], features, &["--"]].concat())
        .args(args)
        .stdin(Stdio::inherit())
        .status()
        .context("cannot start the simulation")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}
