//! A whole cluster on this machine: a private nats-server and three nodes as child processes.
//! `nowserving dev` and `nowserving demo` are built on it.

mod child;
mod data_dir;
pub mod leash;
mod limits;
mod nats;
mod ready;
pub mod tail;

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::future::select_all;
use tempfile::TempDir;

pub use child::{Child, Ended};
pub use data_dir::{DataDir, last_lines};
pub use limits::apply_limits;
use nats::Nats;

use nowserving_terminal::shell;
use nowserving_terminal::signals::Interrupts;

/// The nodes' log filter if `RUST_LOG` is unset: no elections, hand-overs or connections.
const NODE_LOGS: &str = "warn,async_nats=off,nowserving=info,nowserving_node=info,nowserving_log=info,\
    nowserving_engine=warn,nowserving_node::shards=warn,nowserving_node::nats=warn";
/// The nodes of an embedded cluster.
pub const NODES: [u64; 3] = [1, 2, 3];
const SHARDS: u32 = 16;
/// Nodes hand their shards over before they go; this is far more than that takes.
const NODE_PATIENCE: Duration = Duration::from_secs(10);
const NATS_PATIENCE: Duration = Duration::from_secs(5);
/// The exit code of a program ended by SIGINT, as shells report it.
pub const INTERRUPTED: u8 = 130;

/// Starts a cluster in `dir`, does `work` on it and stops it; `None` if a signal interrupts that.
///
/// # Errors
/// The cluster cannot be started, or the work fails.
pub async fn with_cluster<T>(
    dir: &Path,
    name: &'static str,
    work: impl AsyncFnOnce(&mut Cluster) -> anyhow::Result<T>,
) -> anyhow::Result<Option<T>> {
    let mut interrupts = Interrupts::listen()?;
    let start = Cluster::start(DataDir::open(dir)?, name, None);
    let mut cluster = tokio::select! {
        cluster = start => cluster?,
        _ = interrupts.next() => return Ok(None),
    };
    let outcome = tokio::select! {
        outcome = work(&mut cluster) => outcome.map(Some),
        _ = interrupts.next() => Ok(None),
    };
    tokio::select! {
        _ = cluster.stop() => {}
        // Interrupted a second time: dropping the cluster kills the remaining processes.
        _ = interrupts.next() => {}
    }
    outcome
}

/// A directory for a cluster's data, removed when the value is dropped.
///
/// # Errors
/// It cannot be made in the system's directory for temporary files.
pub fn temporary_dir(prefix: &str) -> anyhow::Result<TempDir> {
    let dir = tempfile::Builder::new().prefix(prefix).tempdir();
    dir.context("cannot make a directory for temporary files")
}

/// The running cluster. Dropping it kills every child; [`Cluster::stop`] ends them in good order.
#[derive(Debug)]
pub struct Cluster {
    dir: DataDir,
    name: &'static str,
    nats: Nats,
    /// By position as in [`NODES`].
    nodes: Vec<Child>,
    metrics: Vec<SocketAddr>,
}

impl Cluster {
    /// Starts nats-server (on `nats_port` of 127.0.0.1, or any free port) and the nodes. The
    /// nodes run but need not serve yet: see [`Cluster::wait_ready`].
    ///
    /// # Errors
    /// nats-server is not installed, the port is taken, or a process cannot be started.
    pub async fn start(
        dir: DataDir,
        name: &'static str,
        nats_port: Option<u16>,
    ) -> anyhow::Result<Cluster> {
        let nats = Nats::start(&dir, nats_port, SHARDS).await?;
        let metrics = free_addresses(NODES.len())?;
        let mut cluster = Cluster {
            dir,
            name,
            nats,
            nodes: Vec::with_capacity(NODES.len()),
            metrics,
        };
        for id in NODES {
            let node = cluster.start_node(id)?;
            cluster.nodes.push(node);
        }
        Ok(cluster)
    }

    /// Starts node `id` again after it has ended, on the data it had; returns its process id.
    ///
    /// # Errors
    /// There is no such node, it still runs, or it cannot be started.
    pub fn restart(&mut self, id: u64) -> anyhow::Result<u32> {
        let at = position(id)?;
        if self.nodes[at].is_alive() {
            bail!("node {id} still runs");
        }
        self.nodes[at] = self.start_node(id)?;
        Ok(self.nodes[at].pid())
    }

    /// Kills node `id` (kill -9): see [`Child::kill`] for what the returned moment means.
    ///
    /// # Errors
    /// There is no such node.
    pub fn kill(&mut self, id: u64) -> anyhow::Result<Instant> {
        Ok(self.nodes[position(id)?].kill())
    }

    /// The next child that has ended. nats-server comes first, as nodes end for want of it.
    pub async fn next_ended(&mut self) -> Ended {
        let children = std::iter::once(&mut self.nats.child).chain(&mut self.nodes);
        select_all(children.map(|child| Box::pin(child.next_end())))
            .await
            .0
    }

    /// Whether nats-server still runs; without it nothing works.
    pub fn nats_is_alive(&mut self) -> bool {
        self.nats.child.is_alive()
    }

    /// The process id of nats-server.
    pub fn nats_pid(&self) -> u32 {
        self.nats.child.pid()
    }

    /// The URL at which clients connect.
    pub fn url(&self) -> &str {
        &self.nats.url
    }

    pub fn dir(&self) -> &DataDir {
        &self.dir
    }

    /// Number, process id and metrics address of each node.
    pub fn nodes(&self) -> impl Iterator<Item = (u64, u32, SocketAddr)> + '_ {
        let pids = self.nodes.iter().map(Child::pid);
        let metrics = self.metrics.iter().copied();
        NODES
            .into_iter()
            .zip(pids)
            .zip(metrics)
            .map(|((id, pid), metrics)| (id, pid, metrics))
    }

    fn live_nodes(&mut self) -> usize {
        self.nodes
            .iter_mut()
            .map(Child::is_alive)
            .filter(|alive| *alive)
            .count()
    }

    /// Ends the nodes, all at once, then nats-server, which they need for an orderly end. Processes that
    /// take too long are killed; returns their names.
    pub async fn stop(&mut self) -> Vec<String> {
        for node in &self.nodes {
            node.ask_to_end();
        }
        let deadline = tokio::time::Instant::now() + NODE_PATIENCE;
        let mut killed = Vec::new();
        for node in &mut self.nodes {
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            if !node.end_within(left).await {
                killed.push(node.name().to_owned());
            }
        }
        self.nats.child.ask_to_end();
        if !self.nats.child.end_within(NATS_PATIENCE).await {
            killed.push(self.nats.child.name().to_owned());
        }
        killed
    }

    fn start_node(&self, id: u64) -> anyhow::Result<Child> {
        let own = std::env::current_exe().context("where is this program?")?;
        let mut command = leash::command(&own)?;
        command.args(self.node_arguments(id)?);
        if std::env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", NODE_LOGS);
        }
        // Variables that the user's shell sets for nodes of another cluster do not apply to these.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("NOWSERVING_") {
                command.env_remove(name);
            }
        }
        let log = self.dir.log(&format!("node-{id}"));
        Child::start(format!("node {id}"), Some(id), command, &log)
    }

    /// The command that starts node `id` from any directory and shell.
    ///
    /// # Errors
    /// There is no such node.
    pub fn node_command(&self, id: u64) -> anyhow::Result<String> {
        let own = std::env::current_exe().context("where is this program?")?;
        let arguments = self.node_arguments(id)?;
        let words = std::iter::once(own.into_os_string()).chain(arguments);
        let words = words.map(|word| shell::quoted(&word.to_string_lossy()));
        Ok(words.collect::<Vec<_>>().join(" "))
    }

    fn node_arguments(&self, id: u64) -> anyhow::Result<Vec<OsString>> {
        let metrics = self.metrics[position(id)?];
        let nodes = NODES.map(|id| id.to_string()).join(",");
        let pairs: [(&str, OsString); 8] = [
            ("--id", id.to_string().into()),
            ("--nodes", nodes.into()),
            ("--cluster", self.name.into()),
            ("--shards", SHARDS.to_string().into()),
            ("--data-dir", self.dir.node(id).into()),
            ("--key-file", self.dir.key_file().into()),
            ("--nats", self.url().into()),
            ("--metrics-addr", metrics.to_string().into()),
        ];
        let flags = pairs
            .into_iter()
            .flat_map(|(flag, value)| [flag.into(), value]);
        Ok(std::iter::once("node".into()).chain(flags).collect())
    }
}

fn position(id: u64) -> anyhow::Result<usize> {
    NODES
        .iter()
        .position(|&node| node == id)
        .with_context(|| format!("there is no node {id}"))
}

/// Free ports of 127.0.0.1, for the nodes' metrics. Another program could take one before the node
/// does; the range they come from makes that unlikely.
///
/// # Errors
/// There is none.
pub fn free_addresses(count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let held: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect::<Result<_, _>>()
        .context("no free port on 127.0.0.1")?;
    held.iter()
        .map(|listener| Ok(listener.local_addr()?))
        .collect()
}

/// The last lines of the logs of all nodes, for error messages.
fn node_logs(dir: &DataDir, lines: usize) -> String {
    let tail = |id: &u64| {
        let path = dir.log(&format!("node-{id}"));
        format!("{}:\n{}", path.display(), last_lines(&path, lines))
    };
    NODES.iter().map(tail).collect::<Vec<_>>().join("\n")
}
