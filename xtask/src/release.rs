//! `demo` and `bench`: a release build of the one binary, then a command of it. `compare` and the measurements: the same
//! of a program that starts clusters itself.

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::{nats, redis, shell};

/// Builds and runs `nowserving <command> <args>`; its exit code is ours.
pub fn run(command: &str, args: &[String]) -> Result<ExitCode> {
    let nats_server = nats::ensure()?;
    let args = [&[command.to_owned()], args].concat();
    shell::build_and_run("--release --package nowserving", |run| {
        run.env(nats::ENV, nats_server).args(args)
    })
}

/// Measures other products beside ours; some of that needs a Redis server.
pub fn compare(args: &[String]) -> Result<ExitCode> {
    let redis_server = match args.first().map(String::as_str) {
        Some("limits") => Some(redis::ensure()?),
        _ => None,
    };
    let nats_server = nats::ensure()?;
    shell::build_and_run("--release --package nowserving-compare", |run| {
        run.envs(redis_server.map(|server| (redis::ENV, server)))
            .env(nats::ENV, nats_server)
            .args(args)
    })
}

/// Builds and runs the measurement `program` of the end-to-end tests' package; its exit code is ours.
pub fn measure(program: &str, args: &[String]) -> Result<ExitCode> {
    measure_with(program, args, |run| run)
}

/// The same with what `more` adds.
pub fn measure_with(
    program: &str,
    args: &[String],
    more: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<ExitCode> {
    let nats_server = nats::ensure()?;
    let flags = format!("--release --package nowserving-e2e --bin {program}");
    shell::build_and_run(&flags, |run| {
        more(run).env(nats::ENV, nats_server).args(args)
    })
}
