//! `demo` and `bench`: a release build of the one binary, then a command of it. `failover`: the same of a
//! program that starts clusters itself.

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::{nats, redis, shell};

/// Builds and runs `nowserving <command> <args>`; its exit code is ours.
pub fn run(command: &str, args: &[String]) -> Result<ExitCode> {
    run_with(command, args, |run| run)
}

/// `nowserving bench`: with `--limits` it needs a Redis server, too.
pub fn bench(args: &[String]) -> Result<ExitCode> {
    if !args.iter().any(|arg| arg == "--limits") {
        return run("bench", args);
    }
    let redis_server = redis::ensure()?;
    run_with("bench", args, |run| run.env(redis::ENV, redis_server))
}

fn run_with(
    command: &str,
    args: &[String],
    more: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<ExitCode> {
    let nats_server = nats::ensure()?;
    let args = [&[command.to_owned()], args].concat();
    shell::build_and_run("--release --package nowserving", |run| {
        more(run).env(nats::ENV, nats_server).args(args)
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
