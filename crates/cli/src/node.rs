//! `nowserving node`: one node of a cluster, in the foreground.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use nowserving_node::config::{LOOPS_MAX, PeerLink, security_of};
use nowserving_node::{Config, ConfigError, Ended};
use serde::Serialize;
use tokio::sync::watch;

use crate::check;
use crate::logs::{LogArgs, Logs};
use crate::members::node_number;
use crate::reload::Reload;
use nowserving_terminal::duration;
use nowserving_terminal::global::Global;
use nowserving_terminal::number;
use nowserving_terminal::output::{Output, WrongUsage};
use nowserving_terminal::signals::{HangUps, Interrupts};

/// Runs one node of a cluster until it is stopped.
///
/// Every flag can also be given in the environment, as NOWSERVING_ and its name, and all of the
/// node's own but --log-format and --log in the file given with --config, dashes as underscores (--heartbeat
/// and --election as heartbeat_ms and election_ms, in milliseconds); a flag wins over the
/// environment, and that over the file. SIGINT and SIGTERM stop it: it hands its leadership over first. On SIGHUP
/// it reads the key file, the file of --log and those of its login and of TLS again, unless nohup started it.
#[derive(Args, Serialize)]
#[command(after_help = "\
Examples:
  nowserving node --config /etc/nowserving/node.toml
  nowserving node --config /etc/nowserving/node.toml --check
  nowserving node --join --data-dir /var/lib/nowserving --key-file /etc/nowserving/cluster.key \\
      --nats nats://10.0.0.5:4222
  nowserving node --id 1 --nodes 1,2,3 --cluster prod --data-dir /var/lib/nowserving \\
      --key-file /etc/nowserving/cluster.key --nats nats://10.0.0.5:4222

The file:
  id = 1
  nodes = [1, 2, 3]
  cluster = \"prod\"
  data_dir = \"/var/lib/nowserving\"
  key_file = \"/etc/nowserving/cluster.key\"
  nats = \"nats://10.0.0.5:4222\"
  metrics_addr = \"127.0.0.1:9464\"")]
pub struct NodeArgs {
    /// A TOML file with any of the settings below.
    #[arg(long, value_name = "FILE", env = "NOWSERVING_CONFIG")]
    #[serde(skip)]
    config: Option<PathBuf>,
    #[command(flatten)]
    #[serde(skip)]
    logs: LogArgs,
    /// Verifies the data directory instead of running the node, and changes nothing in it.
    ///
    /// The node must be stopped. Reads all of it: identity, known peers, members, log and snapshots, and whether
    /// they fit together. Needs only --data-dir, or a file that has it. Exit code 1 if anything is wrong; the
    /// answer then says what, and what can be done. It can't notice an older copy of the directory: the other nodes
    /// do.
    #[arg(long)]
    #[serde(skip)]
    check: bool,
    /// Joins an existing cluster, which tells the node its --id, --nodes, --cluster and --shards: give none of
    /// them. It waits until `nowserving cluster add-node` or `replace-node` adds it. Give the flag at every
    /// start, and the --prefix, --heartbeat and --election of the other nodes.
    #[arg(long, env = "NOWSERVING_JOIN")]
    #[serde(skip)]
    join: bool,
    /// This node's number, 1 to 65535, unique in the cluster. It stays as it is if the node gets another one.
    #[arg(long, value_name = "N", env = "NOWSERVING_ID", value_parser = node_number)]
    id: Option<u64>,
    /// The numbers of the nodes that the cluster began with, for example 1,2,3: stays as it is when nodes are
    /// added or removed.
    #[arg(
        long,
        value_name = "N,N,N",
        value_delimiter = ',',
        env = "NOWSERVING_NODES",
        value_parser = node_number
    )]
    nodes: Option<Vec<u64>>,
    /// The cluster's name.
    #[arg(long, value_name = "NAME", env = "NOWSERVING_CLUSTER")]
    cluster: Option<String>,
    /// How many shards, 1 to 256; fixed at the cluster's birth [default: 16].
    #[arg(
        long,
        value_name = "N",
        env = "NOWSERVING_SHARDS",
        value_parser = number::between::<u32>(1..=256)
    )]
    shards: Option<u32>,
    /// How many threads run the shards, each with its part of them, 1 to 8 and no more than shards [default: 1 on up to
    /// four cores, half of the cores on more]. See docs/operate.md.
    #[arg(
        long,
        value_name = "N",
        env = "NOWSERVING_LOOPS",
        value_parser = number::between::<u32>(1..=u64::from(LOOPS_MAX))
    )]
    loops: Option<u32>,
    /// Where the node keeps its log and snapshots.
    // A string and not a path, as it has to go into a table of TOML unharmed.
    #[arg(long, value_name = "DIR", env = "NOWSERVING_DATA_DIR")]
    data_dir: Option<String>,
    /// The cluster's key; the file must be readable by its owner alone.
    #[arg(long, value_name = "FILE", env = "NOWSERVING_KEY_FILE")]
    key_file: Option<String>,
    /// NATS server(s) for the frames between nodes [default: those of --nats].
    #[arg(
        long,
        value_name = "URL",
        env = "NOWSERVING_PEER_NATS",
        hide_env_values = true
    )]
    peer_nats: Option<String>,
    /// How frames reach the other nodes: "direct", by connections to those that have --peer-listen and over NATS
    /// otherwise, or "nats", over NATS alone [default: direct].
    #[arg(long, value_name = "direct|nats", env = "NOWSERVING_PEER_LINK", value_parser = peer_link)]
    peer_link: Option<PeerLink>,
    /// Where this node takes direct connections of the other nodes; none are taken if not given.
    #[arg(long, value_name = "ADDR:PORT", env = "NOWSERVING_PEER_LISTEN")]
    peer_listen: Option<SocketAddr>,
    /// Where the other nodes reach that address [default: that of --peer-listen].
    #[arg(long, value_name = "HOST:PORT", env = "NOWSERVING_PEER_ADVERTISE")]
    peer_advertise: Option<String>,
    /// Where Prometheus may scrape; nowhere if not given.
    #[arg(long, value_name = "ADDR:PORT", env = "NOWSERVING_METRICS_ADDR")]
    metrics_addr: Option<SocketAddr>,
    /// The collector for spans of traced requests, by OTLP over gRPC, as http://127.0.0.1:4317; none are recorded if
    /// not given.
    #[arg(long, value_name = "URL", env = "NOWSERVING_OTLP")]
    otlp: Option<String>,
    /// Time between heartbeats of leaders, 10ms to 10s; the same on all nodes [default: 100ms].
    #[arg(
        long = "heartbeat",
        value_name = "TIME",
        env = "NOWSERVING_HEARTBEAT",
        value_parser = duration::between(10..=10_000)
    )]
    heartbeat_ms: Option<u64>,
    /// A follower that hears nothing for this long stands for election: at least four heartbeats,
    /// at most 1m; the same on all nodes [default: 750ms].
    #[arg(
        long = "election",
        value_name = "TIME",
        env = "NOWSERVING_ELECTION",
        value_parser = duration::between(40..=60_000)
    )]
    election_ms: Option<u64>,
    /// A shard's state goes to disk, and its log is compacted, each time this many entries were applied, and sooner once
    /// the shard is quiet, 100 to 10000000 [default: 20000].
    #[arg(
        long,
        value_name = "N",
        env = "NOWSERVING_SNAPSHOT_ENTRIES",
        value_parser = number::between::<u64>(100..=10_000_000)
    )]
    snapshot_entries: Option<u64>,
    /// Once the log takes more disk than this, a node that is away no longer keeps the others from dropping
    /// entries. One that catches up by snapshot does, up to twice as much. Several loops have an equal part of it each.
    /// Bytes, 1 MiB to 1 TiB [default: 256 MiB].
    #[arg(
        long,
        value_name = "BYTES",
        env = "NOWSERVING_LOG_BYTES_MAX",
        value_parser = number::between::<u64>(1 << 20..=1 << 40)
    )]
    log_bytes_max: Option<u64>,
    /// For one start, if too few nodes are left that know each other: accepts peers that this node has never seen.
    ///
    /// A node that joined, or whose peers.toml is gone, waits until a quorum has accepted such a peer: another node
    /// may know that its disk is an old copy. With this flag it does not wait, and with an old copy's vote
    /// acknowledged operations could be lost. Only if you are sure that none of the running nodes has an old copy
    /// of its disk. Take the flag away again at the next start.
    #[arg(long, env = "NOWSERVING_ACCEPT_UNSEEN_PEERS")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    accept_unseen_peers: bool,
    /// Takes the user that NATS names (header Nats-Request-Info) for who made a change, in place of --by.
    ///
    /// Only if operators are in an account of their own, which imports the nodes' subjects as services with share: true,
    /// and in the nodes' account only nodes may make operators' requests: a client there can write any name into that
    /// header. The same on all nodes. See docs/security.md.
    #[arg(long, env = "NOWSERVING_TRUST_REQUEST_INFO")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    trust_request_info: bool,
}

fn peer_link(text: &str) -> Result<PeerLink, String> {
    match text {
        "direct" => Ok(PeerLink::Direct),
        "nats" => Ok(PeerLink::Nats),
        _ => Err("direct or nats".to_owned()),
    }
}

/// Without the URLs, which may have a password.
impl fmt::Debug for NodeArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeArgs")
            .field("config", &self.config)
            .field("id", &self.id)
            .field("data_dir", &self.data_dir)
            .finish_non_exhaustive()
    }
}

impl NodeArgs {
    /// How it logs: needed before anything else is.
    pub fn logs(&self) -> &LogArgs {
        &self.logs
    }

    /// The file with the flags laid over it, and where it comes from. Flags are named there as their fields are
    /// here.
    fn table(&self) -> anyhow::Result<(toml::Table, PathBuf)> {
        let (mut table, origin) = match &self.config {
            Some(path) => (Config::read_table(path)?, path.clone()),
            None => (toml::Table::new(), PathBuf::from("of the flags")),
        };
        table.extend(toml::Table::try_from(self)?);
        Ok((table, origin))
    }

    fn data_dir(&self) -> anyhow::Result<PathBuf> {
        let (table, _) = self.table()?;
        let data_dir = table.get("data_dir").and_then(toml::Value::as_str);
        Ok(data_dir.context("--check needs --data-dir")?.into())
    }

    /// The checked configuration.
    fn settle(&self, global: &Global) -> anyhow::Result<Config> {
        let (table, origin) = self.with_nats(global)?;
        Ok(Config::from_table(table, &origin)?)
    }

    /// The table with the settings that all commands have.
    fn with_nats(&self, global: &Global) -> anyhow::Result<(toml::Table, PathBuf)> {
        let (mut table, origin) = self.table()?;
        let of_all_commands = [("nats", &global.nats), ("prefix", &global.prefix)];
        for (name, value) in of_all_commands {
            if let Some(value) = value {
                table.insert(name.to_owned(), value.clone().into());
            }
        }
        let security = toml::Table::try_from(global.security()?)?;
        let logins = ["credentials_file", "nkey_file"];
        if logins.iter().any(|login| security.contains_key(*login)) {
            // A flag's login wins over another kind of login in the file.
            table.retain(|name, _| !logins.contains(&name));
        }
        table.extend(security);
        Ok((table, origin))
    }
}

/// Runs until a signal ends it.
pub async fn run(
    args: NodeArgs,
    global: &Global,
    output: &Output,
    logs: Logs,
) -> anyhow::Result<ExitCode> {
    let wrong_usage = |error: anyhow::Error| WrongUsage(error.to_string());
    if args.check {
        return check::run(&args.data_dir().map_err(wrong_usage)?, output);
    }
    let mut interrupts = Interrupts::of_daemon()?;
    let mut hang_ups = HangUps::listen()?;
    let (table, _) = args.with_nats(global).map_err(wrong_usage)?;
    let security = security_of(&table).map_err(|error| WrongUsage(error.to_string()))?;
    let files = Reload { logs, security };
    let (reload, reloads) = watch::channel(());
    let stop = async move {
        loop {
            tokio::select! {
                signal = interrupts.next() => {
                    tracing::info!(signal, "stopping");
                    return;
                }
                () = hang_ups.next() => {
                    files.run();
                    reload.send_replace(());
                }
            }
        }
    };
    let ended = if args.join {
        let ended = nowserving_node::join::run(table, reloads, stop).await;
        ended.map_err(|error| match error.downcast_ref::<ConfigError>() {
            Some(config) => WrongUsage(config.to_string()).into(),
            None => error,
        })?
    } else {
        let config = args.settle(global).map_err(wrong_usage)?;
        nowserving_node::run(config, reloads, stop).await?
    };
    match ended {
        Ended::Stopped => Ok(ExitCode::SUCCESS),
        Ended::Renumbered => start_again(),
    }
}

/// Starts this program anew in this process, so that its supervisor does not notice.
fn start_again() -> anyhow::Result<ExitCode> {
    use std::os::unix::process::CommandExt as _;
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = std::process::Command::new(program);
    // It returns only if it failed.
    let error = command.args(std::env::args_os().skip(1)).exec();
    Err(anyhow::Error::from(error).context("starting again under the new number"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Probe {
        #[command(flatten)]
        global: Global,
        #[command(flatten)]
        node: NodeArgs,
    }

    fn settle(words: &str) -> anyhow::Result<Config> {
        let words = std::iter::once("probe").chain(words.split_whitespace());
        let Probe { global, node } = Probe::try_parse_from(words).unwrap();
        node.settle(&global)
    }

    const FLAGS: &str =
        "--id 2 --nodes 1,2,3 --cluster c --data-dir d --key-file k --nats nats://h:1 ";

    #[test]
    fn flags_alone_are_enough() {
        let more = "--shards 4 --peer-nats nats://p:1 --metrics-addr 127.0.0.1:9464 --prefix q \
            --heartbeat 50ms --election 500ms --snapshot-entries 1000 \
            --trust-request-info";
        let config = settle(&format!("{FLAGS} {more}")).unwrap();
        assert_eq!(
            (config.id, config.nodes.as_slice()),
            (2, [1, 2, 3].as_slice())
        );
        assert_eq!(config.shards, 4);
        assert_eq!(config.nats, "nats://h:1");
        assert_eq!(config.peer_nats(), "nats://p:1");
        assert_eq!(config.prefix, "q");
        assert_eq!(config.metrics_addr.unwrap().port(), 9464);
        assert_eq!((config.heartbeat_ms, config.election_ms), (50, 500));
        assert_eq!(config.snapshot_entries, 1000);
        assert!(config.trust_request_info);
    }

    #[test]
    fn unseen_peers_are_accepted_only_if_the_flag_or_the_file_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("node.toml");
        std::fs::write(&file, "accept_unseen_peers = true\n").unwrap();
        let of_file = format!("{FLAGS} --config {}", file.display());
        let of_flag = format!("{FLAGS} --accept-unseen-peers");
        for (words, accepts) in [(FLAGS, false), (&of_flag, true), (&of_file, true)] {
            assert_eq!(
                settle(words).unwrap().accept_unseen_peers,
                accepts,
                "{words}"
            );
        }
    }

    #[test]
    fn flags_win_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("node.toml");
        std::fs::write(
            &file,
            "id = 1\nnodes = [1, 2, 3]\ncluster = 'f'\ndata_dir = 'd'\nkey_file = 'k'\n\
             nats = 'nats://f:1'\nshards = 8\n",
        )
        .unwrap();
        let config = settle(&format!("--config {} --id 3 --cluster g", file.display())).unwrap();
        assert_eq!(
            (config.id, config.cluster.as_str(), config.shards),
            (3, "g", 8)
        );
        assert_eq!(config.nats, "nats://f:1");
    }

    #[test]
    fn logins_and_tls_come_from_the_flags_of_all_commands() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("node.toml");
        std::fs::write(&file, "nkey_file = 'of-file'\ntls_ca_file = 'ca'\n").unwrap();
        let words = format!("{FLAGS} --config {}", file.display());
        let security = settle(&words).unwrap().security();
        assert_eq!(security.nkey_file, Some("of-file".into()));
        let more = "--creds node.creds --tls-cert c --tls-key k";
        let security = settle(&format!("{words} {more}")).unwrap().security();
        assert_eq!(security.credentials_file, Some("node.creds".into()));
        assert_eq!(security.nkey_file, None);
        assert_eq!(security.tls_ca_file, Some("ca".into()));
        assert_eq!(security.tls_cert_file, Some("c".into()));
        assert_eq!(security.tls_key_file, Some("k".into()));
    }

    #[test]
    fn no_password_is_printed_for_debugging() {
        let words = ["probe", "--peer-nats", "nats://nodes:between-us@h"];
        let probe = Probe::try_parse_from(words).unwrap();
        assert!(!format!("{:?}", probe.node).contains("between-us"));
    }

    #[test]
    fn errors_name_the_fault() {
        for (words, named) in [
            ("--id 1", "nodes"),
            ("--config /nonexistent/file.toml", "/nonexistent/file.toml"),
            (&format!("{FLAGS} --otlp nowhere"), "otlp"),
            (
                &format!("{FLAGS} --heartbeat 100ms --election 399ms"),
                "election_ms",
            ),
        ] {
            let error = settle(words).unwrap_err().to_string();
            assert!(error.contains(named), "{words}: {error}");
        }
    }
}
