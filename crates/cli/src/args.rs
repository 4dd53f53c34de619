//! The command line.

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::StyledStr;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use nowserving_client::{Client, ClientOptions};

use crate::archive::ArchiveCommand;
use crate::bench::BenchArgs;
use crate::cluster::ClusterCommand;
use crate::crowd::CrowdArgs;
use crate::demo::DemoArgs;
use crate::dev::DevArgs;
use crate::doctor::DoctorArgs;
use crate::duration;
use crate::embedded::leash::{self, LeashArgs};
use crate::envoy::EnvoyArgs;
use crate::kv::KvCommand;
use crate::limit::LimitCommand;
use crate::line::LineCommand;
use crate::node::NodeArgs;
use crate::rehearse::RehearseArgs;
use crate::top::TopArgs;
use crate::user::UserCommand;
use crate::watch::WatchArgs;

const NATS_DEFAULT: &str = "nats://127.0.0.1:4222";

/// A virtual queue: numbers the crowd, and admits people to checkout as seats become free.
#[derive(Debug, Parser)]
#[command(
    name = "nowserving",
    version,
    arg_required_else_help = true,
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

/// The help of the command that these words name so far.
pub fn help(words: impl IntoIterator<Item = OsString>) -> StyledStr {
    named(words).render_help()
}

/// The usage of that command.
pub fn usage(words: impl IntoIterator<Item = OsString>) -> StyledStr {
    named(words).render_usage()
}

fn named(words: impl IntoIterator<Item = OsString>) -> clap::Command {
    let mut command = Cli::command();
    command.build();
    for word in words.into_iter().skip(1) {
        if let Some(subcommand) = command.find_subcommand(word).cloned() {
            command = subcommand;
        }
    }
    command
}

/// Flags of all commands.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// NATS server(s), comma-separated [default: nats://127.0.0.1:4222].
    // No default for clap: a node must tell a flag from none, to know whether its file counts.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "NOWSERVING_NATS",
        hide_env_values = true
    )]
    pub nats: Option<String>,
    /// First word(s) of all subjects [default: nowserving].
    #[arg(
        long,
        global = true,
        value_name = "WORD",
        env = "NOWSERVING_PREFIX",
        hide_env_values = true
    )]
    pub prefix: Option<String>,
    /// How long to try to connect, and then each request, 1ms to 1h.
    #[arg(
        long = "timeout", global = true, value_name = "TIME", default_value = "10s",
        value_parser = duration::between(1..=3_600_000)
    )]
    pub timeout_ms: u64,
    /// Prints one line of JSON per answer (an error is an answer too) and nothing else.
    #[arg(long, global = true)]
    pub json: bool,
}

impl Global {
    /// A client as the flags say.
    pub async fn connect(&self) -> anyhow::Result<Client> {
        self.connect_for(Duration::ZERO).await
    }

    /// A client whose requests have at least so much time.
    pub async fn connect_for(&self, least: Duration) -> anyhow::Result<Client> {
        let mut options = ClientOptions::default();
        options.deadline = Duration::from_millis(self.timeout_ms).max(least);
        options.name = "nowserving-cli".to_owned();
        self.connect_as(options).await
    }

    /// A client with these options, but for the prefix.
    pub async fn connect_as(&self, mut options: ClientOptions) -> anyhow::Result<Client> {
        if let Some(prefix) = &self.prefix {
            options.prefix.clone_from(prefix);
        }
        let url = self.nats.as_deref().unwrap_or(NATS_DEFAULT);
        Ok(Client::connect_with(url, options).await?)
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Bench(BenchArgs),
    Crowd(CrowdArgs),
    Demo(DemoArgs),
    Dev(DevArgs),
    Doctor(DoctorArgs),
    Envoy(EnvoyArgs),
    Node(NodeArgs),
    // Boxed: its many flags would make every command as large.
    Rehearse(Box<RehearseArgs>),
    #[command(subcommand)]
    Line(LineCommand),
    #[command(subcommand)]
    Kv(KvCommand),
    #[command(subcommand)]
    Limit(LimitCommand),
    #[command(subcommand)]
    Archive(ArchiveCommand),
    #[command(subcommand)]
    Cluster(ClusterCommand),
    Top(TopArgs),
    Watch(WatchArgs),
    #[command(flatten)]
    User(UserCommand),
    /// Starts a program that does not outlive its parent process; used by dev and demo.
    #[command(name = leash::NAME, hide = true)]
    Leash(LeashArgs),
}

impl Command {
    /// The line that the command is about, if it must exist.
    pub fn line(&self) -> Option<&str> {
        match self {
            Command::Line(command) => command.line(),
            Command::Watch(args) => Some(&args.line),
            Command::Doctor(args) => args.line.as_deref(),
            Command::User(command) => Some(command.line()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_says_what_it_is_for() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path}");
            for argument in command.get_arguments() {
                assert!(
                    argument.get_help().is_some(),
                    "{path}: {}",
                    argument.get_id()
                );
            }
            command
                .get_subcommands()
                .for_each(|inner| check(inner, &path));
        }
        check(&Cli::command(), "");
    }

    #[test]
    fn global_flags_go_before_and_after() {
        for words in [
            "nowserving --json --nats nats://h:1 info shop",
            "nowserving info shop --json --nats nats://h:1",
            "nowserving info --nats nats://h:1 shop --json",
        ] {
            let cli = Cli::try_parse_from(words.split(' ')).unwrap();
            assert!(cli.global.json, "{words}");
            assert_eq!(cli.global.nats.as_deref(), Some("nats://h:1"), "{words}");
        }
    }

    #[test]
    fn enter_takes_a_key_or_anonymous() {
        for words in [
            "nowserving enter shop --key k",
            "nowserving enter shop --anonymous --lane vip",
        ] {
            assert!(Cli::try_parse_from(words.split(' ')).is_ok(), "{words}");
        }
    }

    #[test]
    fn wrong_usage_is_exit_code_2() {
        for words in [
            "nowserving",
            "nowserving nonsense",
            "nowserving enter",
            "nowserving enter shop",
            "nowserving enter shop --key k --anonymous",
            "nowserving renew shop T",
            "nowserving renew shop T --epoch -1",
            "nowserving info shop --timeout 0s",
            "nowserving info shop --timeout 500",
            "nowserving line",
            "nowserving line create shop",
            "nowserving line create shop --seats many --queue-limit 1",
            "nowserving line create shop --seats 0 --queue-limit 1",
            "nowserving line set shop --claim-timeout 120000",
            "nowserving line set shop --claim-timeout 99ms",
            "nowserving line set shop --admission-rate 20/0",
            "nowserving line set shop --unset nonsense",
            "nowserving line set shop --seats 5 --unset seats",
            "nowserving status shop T --consistency sometimes",
            "nowserving kv put visits k",
            "nowserving kv put visits k v --ttl 0s",
            "nowserving kv list visits --limit 1001",
            "nowserving kv put visits k v --if-revision 9007199254740992",
            "nowserving kv delete visits k --if-revision 9007199254740992",
        ] {
            let error = Cli::try_parse_from(words.split(' ')).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{words}");
        }
        let neither = Cli::try_parse_from(["nowserving", "enter", "shop"]).unwrap_err();
        let said = neither.to_string();
        assert!(said.contains("--key <KEY>|--anonymous"), "{said}");
    }
}
