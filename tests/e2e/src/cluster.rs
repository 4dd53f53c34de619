//! A whole cluster of a test's own: nats-server, nodes, and a client.

use std::ffi::OsString;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_nats::{ConnectOptions, ServerAddr};
use futures::future::{join_all, try_join_all};
use nowserving_protocol::subject::shard_of;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::{Api, line_in, number};
use crate::disk::SmallDisk;
use crate::flags::NodeFlags;
use crate::metrics::Metrics;
use crate::nats::{Nats, PASSWORD};
use crate::options::Options;
use crate::process::Process;
use crate::program::program;
use crate::proxy::{Link, Proxy};
use crate::tap::Tap;
use crate::traffic::Traffic;
use crate::wait::{eventually, free_port};

/// How many loops nodes have of which a test says nothing.
fn loops_of_all() -> Result<u32> {
    match std::env::var("NOWSERVING_E2E_LOOPS") {
        Ok(text) => text.parse().context("NOWSERVING_E2E_LOOPS"),
        Err(_) => Ok(1),
    }
}

fn max_payload(bytes: usize) -> String {
    format!("max_payload: {bytes}\n")
}

/// Writes the file of a cluster key; `which` tells it from others.
pub fn write_key(path: &Path, which: u8) -> Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let digits = format!("{which:02x}").repeat(32);
    Ok(writeln!(file, "nowserving-cluster-key-v1\n1 {digits}")?)
}

struct Node {
    id: u64,
    process: Option<Process>,
    links: Option<Links>,
    /// Between its connections for clients, and the proxy before them if there is one, and nats-server.
    tap: Option<Tap>,
    direct: Option<Direct>,
    metrics: SocketAddr,
    disk: Option<SmallDisk>,
    loops: u32,
    /// Its binary, if it is that of another build.
    other_build: Option<OsString>,
}

/// The proxies of a node's two connections.
struct Links {
    clients: Proxy,
    peers: Proxy,
}

/// Where a node takes direct links, and the proxy before it, if there is one.
struct Direct {
    addr: SocketAddr,
    proxy: Option<Proxy>,
}

/// The running cluster. Dropping it kills its processes; a panic prints their last words.
pub struct Cluster {
    options: Options,
    pub nats: Nats,
    /// The others, if there are several.
    pub more_nats: Vec<Nats>,
    nodes: Vec<Node>,
    traffic: Option<Arc<Traffic>>,
    api: Api,
    /// Last, so that the folder goes after the processes that write to it.
    folder: TempDir,
}

impl Cluster {
    /// Starts everything and waits until each shard is served.
    ///
    /// # Errors
    /// Something does not start.
    pub async fn start(options: Options) -> Result<Cluster> {
        let folder = tempfile::Builder::new()
            .prefix("nowserving-e2e-")
            .tempdir()?;
        write_key(&folder.path().join("cluster.key"), 1)?;
        if options.own_key_files {
            for id in 1..=options.nodes {
                write_key(&folder.path().join(format!("node-{id}.key")), 1)?;
            }
        }
        let mapped_shards = options.mapping.then_some(options.shards);
        let limit = options.max_payload.map(max_payload);
        let more = limit.unwrap_or_default() + options.authorization.as_deref().unwrap_or_default();
        let mut servers = match options.nats_servers {
            1 => vec![Nats::start(folder.path(), mapped_shards, &more).await?],
            several => Nats::start_cluster(folder.path(), several, mapped_shards, None).await?,
        };
        let urls: Vec<ServerAddr> = servers
            .iter()
            .map(|nats| Ok(nats.url().parse()?))
            .collect::<Result<_>>()?;
        let nats = servers.remove(0);
        let client = match options.authorization {
            Some(_) => ConnectOptions::with_user_and_password("tests".into(), PASSWORD.into()),
            None => ConnectOptions::new(),
        };
        let client = client.skip_subject_validation(true);
        let api = Api::new(client.connect(urls).await?);
        let is_described = options.nats_servers == 1 && options.other_build.is_none();
        let traffic = match options.reads_along && is_described {
            true => Some(Arc::new(Traffic::new()?)),
            false => None,
        };
        let mut cluster = Cluster {
            options,
            traffic,
            nats,
            more_nats: servers,
            nodes: Vec::new(),
            api,
            folder,
        };
        for id in 1..=cluster.options.nodes {
            let upstream = SocketAddr::from((Ipv4Addr::LOCALHOST, cluster.nats.port()));
            let traffic = cluster.traffic.clone();
            let tap = traffic
                .map(|traffic| Tap::start(upstream, traffic))
                .transpose()?;
            let links = if cluster.options.proxied {
                let of_clients = tap.as_ref().map_or(upstream, Tap::addr);
                let (clients, peers) = (
                    Proxy::start(of_clients).await?,
                    Proxy::start(upstream).await?,
                );
                Some(Links { clients, peers })
            } else {
                None
            };
            let direct = match cluster.options.direct_links {
                true => {
                    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
                    let proxy = match cluster.options.proxied {
                        true => Some(Proxy::start(addr).await?),
                        false => None,
                    };
                    Some(Direct { addr, proxy })
                }
                false => None,
            };
            let data = cluster.data_dir(id);
            let disk = cluster.options.disk_bytes;
            let loops = cluster.options.loops.get(cluster.nodes.len()).copied();
            let loops = loops
                .map_or_else(loops_of_all, Ok)?
                .min(cluster.options.shards);
            cluster.nodes.push(Node {
                loops,
                id,
                process: None,
                links,
                tap,
                direct,
                metrics: SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)),
                disk: disk.map(|size| SmallDisk::mount(&data, size)).transpose()?,
                other_build: cluster.options.other_build.clone(),
            });
        }
        let ids: Vec<u64> = cluster.ids().collect();
        for id in ids {
            cluster.start_node(id).await?;
        }
        let ready = cluster.wait_ready().await;
        if ready.is_err() {
            cluster.show_logs();
        }
        ready?;
        if let Some(traffic) = &cluster.traffic {
            // Each shard has answered: whoever reads along has seen that.
            let checked = traffic.checked()?;
            ensure!(
                checked.replies >= u64::from(cluster.options.shards),
                "only {checked} were seen"
            );
        }
        Ok(cluster)
    }

    /// From now on the nats-server takes so much in one message. It is reloaded, and does not tell its clients.
    ///
    /// # Errors
    /// It has ended.
    pub fn set_max_payload(&mut self, bytes: usize) -> Result<()> {
        let mapped_shards = self.options.mapping.then_some(self.options.shards);
        self.nats
            .reload(mapped_shards, "max_payload", &max_payload(bytes))
    }

    /// A client of this cluster.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The flags with which it was started.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The numbers of its nodes.
    pub fn ids(&self) -> impl Iterator<Item = u64> + use<> {
        1..=self.options.nodes
    }

    /// The URLs of all NATS servers, with commas between them.
    #[must_use]
    pub fn nats_urls(&self) -> String {
        let all = std::iter::once(&self.nats).chain(&self.more_nats);
        all.map(Nats::url).collect::<Vec<_>>().join(",")
    }

    /// The file with the cluster's key.
    #[must_use]
    pub fn key_file(&self) -> PathBuf {
        self.folder().join("cluster.key")
    }

    /// The file with the key of node `id`.
    #[must_use]
    pub fn key_file_of(&self, id: u64) -> PathBuf {
        match self.options.own_key_files {
            true => self.folder().join(format!("node-{id}.key")),
            false => self.key_file(),
        }
    }

    /// The flags that node `id` is started with.
    ///
    /// # Errors
    /// There is no such node.
    pub fn flags(&self, id: u64) -> Result<NodeFlags> {
        let node = self.node(id)?;
        let nodes: Vec<String> = self.ids().map(|id| id.to_string()).collect();
        let direct = match self.options.authorization {
            Some(_) => self.nats.url_as("nodes"),
            None => self.nats_urls(),
        };
        let (nats, peer_nats) = match &node.links {
            Some(links) => (links.clients.url(), links.peers.url()),
            None => match &node.tap {
                Some(tap) => (tap.instead_of(self.nats.port(), &direct), direct),
                None => (direct.clone(), direct),
            },
        };
        let mut flags = NodeFlags::default();
        if let Some(url) = &self.options.otlp {
            flags = flags.with("--otlp", url);
        }
        flags = flags.with("--loops", node.loops.to_string());
        if let Some(time) = self.options.election {
            flags = flags.with("--election", time);
        }
        if let Some(direct) = &node.direct {
            flags = flags.with("--peer-listen", direct.addr.to_string());
            if let Some(proxy) = &direct.proxy {
                flags = flags.with("--peer-advertise", proxy.addr().to_string());
            }
        }
        Ok(flags
            .with("--id", id.to_string())
            .with("--nodes", nodes.join(","))
            .with("--cluster", "e2e")
            .with("--shards", self.options.shards.to_string())
            .with("--log-bytes-max", self.options.log_bytes_max.to_string())
            .with(
                "--snapshot-entries",
                self.options.snapshot_entries.to_string(),
            )
            .with("--data-dir", self.data_dir(id))
            .with("--key-file", self.key_file_of(id))
            .with("--nats", nats)
            .with("--peer-nats", peer_nats)
            .with("--metrics-addr", node.metrics.to_string()))
    }

    /// Where node `id` keeps its data.
    #[must_use]
    pub fn data_dir(&self, id: u64) -> PathBuf {
        self.folder().join(format!("node-{id}"))
    }

    /// The disk of node `id`.
    ///
    /// # Errors
    /// It has none of its own.
    pub fn disk(&self, id: u64) -> Result<&SmallDisk> {
        let disk = self.node(id)?.disk.as_ref();
        disk.context("the nodes share the machine's disk")
    }

    /// Starts node `id`, for the first time or again.
    ///
    /// # Errors
    /// It runs already, or cannot be started.
    pub async fn start_node(&mut self, id: u64) -> Result<()> {
        self.start_node_under(id, &[]).await
    }

    /// The same, as the argument of a command such as strace.
    ///
    /// # Errors
    /// As [`Cluster::start_node`].
    pub async fn start_node_under(&mut self, id: u64, command: &[&str]) -> Result<()> {
        let args = self.flags(id)?.args();
        self.start_with(id, command, args).await
    }

    /// Starts node `id` with `--join`: it knows neither its number nor the cluster, and asks to be added.
    ///
    /// # Errors
    /// As [`Cluster::start_node`].
    pub async fn start_node_joining(&mut self, id: u64) -> Result<()> {
        let flags = self.flags(id)?;
        let args = flags.without(&["--id", "--nodes", "--cluster", "--shards"]);
        self.start_with(id, &[], args.joining()).await
    }

    /// kill -9 of all nodes at once, and up again.
    ///
    /// # Errors
    /// One does not come back.
    pub async fn restart_all(&mut self) -> Result<()> {
        let ids: Vec<u64> = self.ids().collect();
        for id in &ids {
            self.process(*id)?.signal(Signal::KILL)?;
        }
        for id in &ids {
            self.process(*id)?.ended(Duration::from_secs(60)).await?;
            self.start_node(*id).await?;
        }
        self.wait_ready().await
    }

    async fn start_with(&mut self, id: u64, command: &[&str], args: Vec<OsString>) -> Result<()> {
        let name = format!("node {id}");
        let log = self.folder().join(format!("node-{id}.log"));
        let mut words: Vec<OsString> = command.iter().map(OsString::from).collect();
        words.push(match &self.node(id)?.other_build {
            Some(other) => other.clone(),
            None => program().await?.into(),
        });
        words.extend(args);
        let (program, args) = words.split_first().context("no program")?;
        let node = self.node_mut(id)?;
        if let Some(process) = &mut node.process {
            ensure!(!process.is_alive()?, "{name} still runs");
        }
        node.process = Some(Process::start(&name, program, args, &log).await?);
        Ok(())
    }

    /// From its next start on, node `id` has this build, or the other one.
    ///
    /// # Errors
    /// There is no such node.
    pub fn set_build(&mut self, id: u64, this: bool) -> Result<()> {
        let other = self.options.other_build.clone();
        self.node_mut(id)?.other_build = other.filter(|_| !this);
        Ok(())
    }

    /// From its next start on, node `id` has so many loops.
    ///
    /// # Errors
    /// There is no such node.
    pub fn set_loops(&mut self, id: u64, loops: u32) -> Result<()> {
        self.node_mut(id)?.loops = loops;
        Ok(())
    }

    /// Runs `nowserving node` beside the cluster, with these flags and its own log.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start_stranger(&self, name: &str, flags: &NodeFlags) -> Result<Process> {
        let log = self.folder().join(format!("{name}.log"));
        Process::start(name, program().await?.as_os_str(), flags.args(), &log).await
    }

    /// Runs `nowserving node --join` with these flags and its own log.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start_joining(&self, name: &str, flags: &NodeFlags) -> Result<Process> {
        let log = self.folder().join(format!("{name}.log"));
        Process::start(name, program().await?.as_os_str(), flags.joining(), &log).await
    }

    /// The process of node `id`.
    ///
    /// # Errors
    /// It was never started.
    pub fn process(&mut self, id: u64) -> Result<&mut Process> {
        self.node_mut(id)?
            .process
            .as_mut()
            .with_context(|| format!("node {id} was not started"))
    }

    /// Changes the connection over which node `id` gets clients' requests.
    ///
    /// # Errors
    /// The cluster is not proxied.
    pub fn set_link(&self, id: u64, link: Link) -> Result<()> {
        self.links(id)?.clients.set(link);
        Ok(())
    }

    /// Changes the connection between node `id` and its peers.
    ///
    /// # Errors
    /// The cluster is not proxied.
    pub fn set_peer_link(&self, id: u64, link: Link) -> Result<()> {
        self.links(id)?.peers.set(link);
        Ok(())
    }

    /// Changes the direct links to node `id`.
    ///
    /// # Errors
    /// It takes none.
    pub fn set_direct_link(&self, id: u64, link: Link) -> Result<()> {
        let proxy = self.direct(id)?.proxy.as_ref();
        proxy.context("its links are not proxied")?.set(link);
        Ok(())
    }

    /// Where node `id` takes direct links.
    ///
    /// # Errors
    /// It takes none.
    pub fn direct_addr(&self, id: u64) -> Result<SocketAddr> {
        Ok(self.direct(id)?.addr)
    }

    fn direct(&self, id: u64) -> Result<&Direct> {
        let direct = self.node(id)?.direct.as_ref();
        direct.context("the cluster has no direct links")
    }

    fn links(&self, id: u64) -> Result<&Links> {
        let links = self.node(id)?.links.as_ref();
        links.context("the cluster is not proxied")
    }

    /// Where node `id` shows its metrics.
    ///
    /// # Errors
    /// There is no such node.
    pub fn metrics_addr(&self, id: u64) -> Result<SocketAddr> {
        Ok(self.node(id)?.metrics)
    }

    /// Scrapes node `id`.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn metrics(&self, id: u64) -> Result<Metrics> {
        Metrics::scrape(self.metrics_addr(id)?)
            .await
            .with_context(|| format!("node {id}"))
    }

    /// The answer of node `id` on a path of its metrics address: status and text.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn http(&self, id: u64, path: &str) -> Result<(u16, String)> {
        crate::http::get(self.metrics_addr(id)?, path)
            .await
            .with_context(|| format!("node {id}"))
    }

    /// Scrapes all nodes.
    ///
    /// # Errors
    /// One does not answer.
    pub async fn all_metrics(&self) -> Result<Vec<Metrics>> {
        try_join_all(self.ids().map(|id| self.metrics(id))).await
    }

    /// The node that leads the shard of `line`.
    ///
    /// # Errors
    /// None does for a while.
    pub async fn leader_of(&self, line: &str) -> Result<u64> {
        let shard = shard_of(line, self.options.shards) as usize;
        eventually(
            "the shard has a leader",
            Duration::from_secs(15),
            async || Ok(leaders(&self.api.cluster("status", json!({})).await?)?[shard]),
        )
        .await
    }

    /// The term of the line's shard, as its leader itself knows it.
    ///
    /// # Errors
    /// None leads it for a while.
    pub async fn term_of(&self, line: &str) -> Result<u64> {
        let shard = shard_of(line, self.options.shards) as usize;
        eventually(
            "the shard's leader answers",
            Duration::from_secs(15),
            async || {
                let status = self.api.cluster("status", json!({})).await?;
                let shown = &status["shards"][shard];
                let is_own = shown["leader"] == status["answered_by"];
                is_own.then(|| number(shown, "term")).transpose()
            },
        )
        .await
    }

    /// The leader of each shard, as one of the nodes knows it.
    ///
    /// # Errors
    /// No node answers.
    pub async fn leaders(&self) -> Result<Vec<Option<u64>>> {
        leaders(&self.api.cluster("status", json!({})).await?)
    }

    /// Gives a node the lead of these shards, and waits until it has it. A node that has just started is refused until
    /// it has caught up and clients reach it.
    ///
    /// # Errors
    /// It does not lead them within 30 s.
    pub async fn transfer(&self, shards: &[u32], to: u64) -> Result<()> {
        let (patience, body) = (
            Duration::from_secs(30),
            json!({"shards": shards, "node": to}),
        );
        eventually("the transfer is accepted", patience, async || {
            self.api.cluster("transfer", body.clone()).await.map(Some)
        })
        .await?;
        eventually("the node leads these shards", patience, async || {
            let leaders = self.leaders().await?;
            let led = |shard: &u32| leaders.get(*shard as usize) == Some(&Some(to));
            Ok(shards.iter().all(led).then_some(()))
        })
        .await
    }

    /// Waits until the leader of each shard answers, and living nodes lead the shards they are home of.
    ///
    /// # Errors
    /// They do not within 30 s.
    pub async fn wait_ready(&mut self) -> Result<()> {
        let patience = Duration::from_secs(30);
        let mut living = Vec::new();
        for node in &mut self.nodes {
            if let Some(process) = &mut node.process
                && process.is_alive()?
            {
                living.push(node.id);
            }
        }
        self.wait_served().await?;
        // Each shard has a home, in turn over the nodes; until all are there, hand-overs would
        // disturb tests that look for leaders.
        let nodes = self.options.nodes;
        eventually("every shard is at home", patience, async || {
            let leaders = leaders(&self.api.cluster("status", json!({})).await?)?;
            let at_home = leaders.iter().zip(0..).all(|(leader, shard)| match leader {
                Some(id) => *id == shard % nodes + 1 || !living.contains(&(shard % nodes + 1)),
                None => false,
            });
            Ok(at_home.then_some(()))
        })
        .await
    }

    /// Waits until the leader of each shard answers, on any node.
    ///
    /// # Errors
    /// They do not within 30 s.
    pub async fn wait_served(&self) -> Result<()> {
        eventually(
            "every shard is served",
            Duration::from_secs(30),
            async || self.all_served().await,
        )
        .await
    }

    async fn all_served(&self) -> Result<Option<()>> {
        let asks = (0..self.options.shards).map(|shard| async move {
            let line = line_in(shard, self.options.shards, "ready");
            let subject = format!("nowserving.shard.{shard}.{line}.info");
            let body = br#"{"consistency":"linearizable"}"#.as_slice();
            let reply = self.api.within(500).ask_subject(&subject, body).await;
            // Only a leader in its lease may answer that there is no such line.
            reply.is_ok_and(|reply| reply.code.as_deref() == Some("line_not_found"))
        });
        let served = join_all(asks).await;
        Ok(served.iter().all(|served| *served).then_some(()))
    }

    /// What the nodes have been asked and have said; none if nobody reads along.
    #[must_use]
    pub fn traffic(&self) -> Option<&Traffic> {
        self.traffic.as_deref()
    }

    /// Prints the ends of all logs.
    pub fn show_logs(&self) {
        eprint!("{}", self.nats.process.tail(10));
        for process in self.nodes.iter().filter_map(|node| node.process.as_ref()) {
            eprint!("{}", process.tail(40));
        }
    }

    /// Keeps the folder, to look into a failure.
    pub fn keep(&mut self) {
        self.folder.disable_cleanup(true);
        eprintln!("kept: {}", self.folder().display());
    }

    fn node(&self, id: u64) -> Result<&Node> {
        self.nodes
            .iter()
            .find(|node| node.id == id)
            .with_context(|| format!("no node {id}"))
    }

    fn node_mut(&mut self, id: u64) -> Result<&mut Node> {
        self.nodes
            .iter_mut()
            .find(|node| node.id == id)
            .with_context(|| format!("no node {id}"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs();
            self.keep();
            return;
        }
        match self.traffic.as_ref().map(|traffic| traffic.checked()) {
            Some(Ok(checked)) => eprintln!("as docs/asyncapi.yaml says: {checked}"),
            Some(Err(wrong)) => panic!("{wrong:#}"),
            None => {}
        }
    }
}

/// The leader of each shard, by shard, as in `admin.cluster.status`.
fn leaders(status: &Value) -> Result<Vec<Option<u64>>> {
    let shards = status["shards"]
        .as_array()
        .context("status without shards")?;
    let in_order = shards
        .iter()
        .enumerate()
        .all(|(at, shard)| shard["shard"] == at);
    ensure!(in_order, "shards out of order: {status}");
    Ok(shards
        .iter()
        .map(|shard| shard["leader"].as_u64())
        .collect())
}
