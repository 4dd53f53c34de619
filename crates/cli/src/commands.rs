//! The list of all commands, and which function runs each.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[cfg(feature = "envoy")]
use crate::envoy;
#[cfg(feature = "gateway")]
use crate::gateway;
use crate::logs::Logs;
use crate::{
    archive, cluster, context, doctor, help, kv, limit, line, no_such_line, node, pass, rehearse,
    shells, top, user, watch,
};
use nowserving_terminal::global::Global;
use nowserving_terminal::number;
use nowserving_terminal::output::Output;
use nowserving_tools::embedded::leash;
use nowserving_tools::{crowd, demo, dev};

/// A virtual queue: numbers the crowd, and admits people to checkout as seats become free.
#[derive(Debug, Parser)]
#[command(
    name = "nowserving",
    version,
    arg_required_else_help = true,
    mut_args(number::accept_negative_value),
    mut_subcommands(number::accept_negative),
    after_help = "\
Try it:
  nowserving demo                                     a cluster, a crowd, and a leader that dies
  nowserving rehearse --preset steady                 a crowd in virtual time, no cluster
  nowserving dev --data-dir ./data                    a cluster to develop against
  nowserving line create shop-1 --seats 50 --queue-limit 10000
  nowserving enter shop-1 --key order-4711            prints the ticket
  nowserving watch shop-1                             the board, live

Exit codes: 0 done; 1 refused by the cluster or NATS, or failed (the error says why); 2 wrong usage;
3 the cluster could not be reached, or did not answer in time."
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}
#[derive(Debug, Subcommand)]
pub enum Command {
    Crowd(crowd::CrowdArgs),
    Demo(demo::DemoArgs),
    Dev(dev::DevArgs),
    Doctor(doctor::DoctorArgs),
    #[cfg(feature = "envoy")]
    Envoy(envoy::EnvoyArgs),
    #[cfg(feature = "gateway")]
    Gateway(Box<gateway::GatewayArgs>),
    // Boxed, as the next one: its many flags would make every command as large.
    Node(Box<node::NodeArgs>),
    Rehearse(Box<rehearse::RehearseArgs>),
    #[command(subcommand)]
    Line(line::LineCommand),
    #[command(subcommand)]
    Kv(kv::KvCommand),
    #[command(subcommand)]
    Limit(limit::LimitCommand),
    #[command(subcommand)]
    Archive(archive::ArchiveCommand),
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    #[command(subcommand)]
    Pass(pass::PassCommand),
    #[command(subcommand)]
    Context(context::ContextCommand),
    Completions(shells::CompletionsArgs),
    Man(shells::ManArgs),
    Top(top::TopArgs),
    Watch(watch::WatchArgs),
    #[command(flatten)]
    User(user::UserCommand),
    /// Says which options every command takes.
    #[command(name = help::OPTIONS, hide = true)]
    Options,
    /// Starts a program that does not outlive its parent process; used by dev and demo.
    #[command(name = leash::NAME, hide = true)]
    Leash(leash::LeashArgs),
}

impl Command {
    /// Whether the options of a context count.
    pub fn reads_context(&self) -> bool {
        !matches!(
            self,
            Command::Node(_)
                | Command::Dev(_)
                | Command::Demo(_)
                | Command::Rehearse(_)
                | Command::Context(_)
                | Command::Pass(_)
                | Command::Completions(_)
                | Command::Man(_)
                | Command::Options
                | Command::Leash(_)
        )
    }

    /// The line or the domain of rate limits that the command is about, if it must exist.
    pub fn line(&self) -> Option<&str> {
        match self {
            Command::Line(command) => command.line(),
            Command::Limit(command) => command.domain(),
            Command::Watch(args) => Some(&args.line),
            Command::Doctor(args) => args.line.as_deref(),
            Command::User(command) => Some(command.line()),
            _ => None,
        }
    }
}

/// Runs the command, with its context.
///
/// # Errors
/// It fails: the error says its exit code.
pub async fn run(cli: Cli, output: &Output, logs: Logs) -> anyhow::Result<ExitCode> {
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
        Command::Node(args) => node::run(*args, global, output, logs).await,
        Command::Dev(args) => dev::run(args).await,
        #[cfg(feature = "envoy")]
        Command::Envoy(args) => envoy::run(args, global, logs).await,
        #[cfg(feature = "gateway")]
        Command::Gateway(args) => gateway::run(*args, global, output, logs).await,
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
            shells::completions::<Cli>(&args)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Man(args) => {
            shells::man::<Cli>(&args, output)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Options => {
            let words = ["nowserving", help::OPTIONS].map(std::ffi::OsString::from);
            output.line(help::help::<Cli>(words).to_string().trim_end())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Top(args) => top::run(args, global, output).await,
        Command::Watch(args) => watch::run(args, global, output).await,
        Command::User(command) => user::run(command, global, output).await,
        Command::Leash(args) => leash::run(args),
    }
}

#[cfg(test)]
mod tests;
