//! `nowserving`: the cluster's node, and everything an operator or developer does with a cluster.

mod archive;
mod args;
mod backup;
mod bar;
mod bench;
mod calls;
mod check;
mod cluster;
mod confirm;
mod context;
mod crowd;
mod demo;
mod dev;
mod doctor;
mod duration;
mod embedded;
mod envoy;
mod help;
mod import;
mod journal;
mod kick;
mod kv;
mod limit;
mod line;
mod logs;
mod members;
mod next_key;
mod no_such_line;
mod node;
mod number;
mod output;
mod pass;
mod past;
mod phase;
mod progress;
mod rehearse;
mod rotate;
mod secret;
mod set;
mod settings;
mod shell;
mod shells;
mod signals;
mod tables;
mod token_name;
mod tokens;
mod top;
mod user;
mod wait;
mod watch;

use std::process::ExitCode;

use crate::args::{Cli, Command, Global};
use crate::logs::{LogArgs, Logs};
use crate::output::{Output, WrongUsage};

/// A node frees millions of small pieces in another order than it got them, which takes the allocator of glibc as long
/// as all else that is done when a token expires. Without transparent huge pages: to clear one takes up to 10 ms on a
/// virtual machine, in the midst of a turn of the loop. Version 2 of it: version 3 collects what was freed for a second,
/// and one thread, often the loop's, gives all of that back to the system.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match help::parse() {
        Ok(cli) => cli,
        Err(error) => return output::usage(error),
    };
    let output = Output::new(cli.global.json);
    let logs = match &cli.command {
        Command::Node(args) => logs::start(args.logs()),
        Command::Envoy(args) => logs::start(args.logs()),
        _ => logs::start(&LogArgs::default()),
    };
    let logs = match logs {
        Ok(logs) => logs,
        Err(error) => return output.fail(&WrongUsage(format!("{error:#}")).into()),
    };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return output.fail(&anyhow::Error::from(error).context("no threads")),
    };
    match runtime.block_on(run(cli, &output, logs)) {
        Ok(code) => code,
        Err(error) => output.fail(&error),
    }
}

async fn run(cli: Cli, output: &Output, logs: Logs) -> anyhow::Result<ExitCode> {
    let Cli {
        mut global,
        command,
    } = cli;
    if command.reads_context() {
        global.take_context()?;
    }
    let line = command.line().map(str::to_owned);
    match (dispatch(command, &global, output, logs).await, line) {
        (Err(error), Some(line)) => Err(no_such_line::explained(error, &line, &global).await),
        (outcome, _) => outcome,
    }
}

async fn dispatch(
    command: Command,
    global: &Global,
    output: &Output,
    logs: Logs,
) -> anyhow::Result<ExitCode> {
    match command {
        Command::Node(args) => node::run(args, global, output, logs).await,
        Command::Dev(args) => dev::run(args).await,
        Command::Envoy(args) => envoy::run(args, global, logs).await,
        Command::Bench(args) => bench::run(args, output).await,
        Command::Rehearse(args) => rehearse::run(*args, output),
        Command::Crowd(args) => crowd::run(args, global).await,
        Command::Demo(args) => demo::run(args, global.json).await,
        Command::Line(command) => line::run(command, global, output).await,
        Command::Kv(command) => kv::run(command, global, output).await,
        Command::Limit(command) => limit::run(command, global, output).await,
        Command::Archive(command) => {
            archive::run(command, global, output).await?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Cluster(command) => cluster::run(command, global, output).await,
        Command::Doctor(args) => doctor::run(args, global, output).await,
        Command::Pass(command) => pass::run(command, output),
        Command::Context(command) => context::run(command, global, output),
        Command::Completions(args) => {
            shells::completions(&args)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Man(args) => {
            shells::man(&args, output)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Options => {
            let words = ["nowserving", help::OPTIONS].map(std::ffi::OsString::from);
            output.line(help::help(words).to_string().trim_end())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Top(args) => top::run(args, global, output).await,
        Command::Watch(args) => watch::run(args, global, output).await,
        Command::User(command) => user::run(command, global, output).await,
        Command::Leash(args) => embedded::leash::run(args),
    }
}
