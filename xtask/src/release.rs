//! `demo` and `bench`: a release build of the one binary, then a command of it.

use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result};

use crate::{nats, shell};

/// Builds and runs `nowserving <command> <args>`; its exit code is ours.
pub fn run(command: &str, args: &[String]) -> Result<ExitCode> {
    let nats_server = nats::ensure()?;
    let build = ["build", "--release", "--locked", "--package", "nowserving"];
    eprintln!(
        "xtask: cargo {} (some minutes the first time)",
        build.join(" ")
    );
    shell::run(&mut shell::cargo(&build))?;

    // By way of cargo, which knows where its target folder is.
    let mut words = vec![
        "run",
        "--release",
        "--locked",
        "--quiet",
        "--package",
        "nowserving",
        "--",
        command,
    ];
    words.extend(args.iter().map(String::as_str));
    let status = shell::cargo(&words)
        .env(nats::ENV, &nats_server)
        .stdin(Stdio::inherit())
        .status()
        .context("cannot start nowserving")?;
    let code = status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1);
    Ok(ExitCode::from(code))
}
