//! `nowserving`: the cluster's node, and everything an operator or developer does with a cluster.

mod archive;
mod backup;
mod calls;
mod check;
mod cluster;
mod commands;
mod confirm;
mod context;
mod doctor;
mod draw;
#[cfg(feature = "envoy")]
mod envoy;
#[cfg(feature = "gateway")]
mod gateway;
mod gauge;
mod help;
mod import;
mod journal;
mod kick;
mod kv;
mod limit;
mod line;
mod logs;
mod members;
mod no_such_line;
mod node;
mod pass;
mod past;
mod phase;
mod rehearse;
mod reload;
mod rotate;
mod secret;
mod set;
mod settings;
mod shells;
mod tables;
mod token_name;
mod tokens;
mod top;
mod user;
mod wait;
mod watch;

use std::process::ExitCode;

use crate::commands::{Cli, Command};
use crate::logs::LogArgs;
use nowserving_terminal::output::{Output, WrongUsage};

/// A node frees millions of small pieces in another order than it got them, which takes the allocator of glibc as long
/// as all else that is done when a token expires. Without transparent huge pages: to clear one takes up to 10 ms on a
/// virtual machine, in the midst of a turn of the loop. Version 2 of it: version 3 collects what was freed for a second,
/// and one thread, often the loop's, gives all of that back to the system.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match help::parse::<Cli>() {
        Ok(cli) => cli,
        Err(error) => return help::refuse::<Cli>(error),
    };
    let output = Output::new(cli.global.json);
    let logs = match &cli.command {
        Command::Node(args) => logs::start(args.logs()),
        #[cfg(feature = "envoy")]
        Command::Envoy(args) => logs::start(args.logs()),
        #[cfg(feature = "gateway")]
        Command::Gateway(args) => logs::start(args.logs()),
        Command::Dev(_) | Command::Demo(_) => logs::start(&LogArgs::gateway_inside()),
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
    match runtime.block_on(commands::run(cli, &output, logs)) {
        Ok(code) => code,
        Err(error) => output.fail(&error),
    }
}
