//! The node: one process of a nowserving cluster.
//!
//! One thread has a runtime of its own, and in it all that a request meets: the connections to NATS ([`nats`]), and the
//! engine with all Raft groups and lines ([`shards::engine_loop`]). Other threads do what takes long: they write the log
//! where syncs take long ([`shards::persist`]), make snapshots and give back old log files ([`shards::snapshots`]), and
//! serve metrics.

pub mod backups;
pub mod check;
pub mod clock;
pub mod config;
pub mod damage;
pub mod data_dir;
pub mod disk_space;
mod ended;
pub mod health;
pub mod join;
pub mod key_file;
pub mod keys;
pub mod link;
mod members;
pub mod metrics_server;
pub mod nats;
pub mod shards;
pub mod throttle;
#[cfg_attr(not(feature = "otlp"), path = "traces/none.rs")]
pub mod traces;

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use nowserving_engine::envelope::{Founder, Welcome};
use nowserving_engine::{Boot, Engine, ForwardTry, Input, Output, Standing, Subscription};
use nowserving_front::cluster::link::progress::Patience;
use nowserving_front::cluster::peers::Incoming;
use nowserving_front::gather;
use nowserving_front::parse::Parser;
use nowserving_front::who::TrustRequestInfo;
use nowserving_log::{DiskLog, LogStore, parts};
use nowserving_protocol::servers::Servers;
use nowserving_protocol::subject::Subjects;
use nowserving_replica::{EntryReader, LogState};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::backups::Backups;
pub use crate::config::{Config, ConfigError};
use crate::data_dir::DataDir;
pub use crate::ended::{Ended, Removed};
use crate::health::Health;
use crate::keys::Keys;
use crate::link::Links;
use crate::link::accept::{Accepting, LinkFrame};
use crate::link::open::{Addresses, Opening};
use crate::nats::connect::ConnectionNumber;
use crate::nats::discovery::Discovery;
use crate::nats::gathering::{self, Gathering};
use crate::nats::payload_limit::{self, PayloadLimit};
use crate::nats::peers::{self, NatsLink, Origin, PeerList, Senders};
use crate::nats::public_keys::PublicKeys;
use crate::nats::respond::Responder;
use crate::nats::rights::Rights;
use crate::nats::service::Service;
use crate::nats::stats::Stats;
use crate::nats::subscriptions::PlainSubjects;
use crate::nats::witness::{self, Connections, Listening, Witness};
use crate::nats::{candidates, connect, forward, founding, mapping, neighbours, probe};
use crate::shards::engine_loop::EngineLoop;
use crate::shards::outputs::{OfTurn, Outputs};
use crate::shards::persist::Persister;
use crate::shards::to_engine::ToEngine;
use crate::shards::turn::Turns;
use crate::shards::worker::Done;
use nowserving_shard::limits::RuleTexts;
use nowserving_shard::published::OutEvent;

/// Answers to candidates that wait to be sent at most.
const WELCOMES_MAX: usize = 64;
/// Turns' events that wait to be published at most.
const EVENT_TURNS_MAX: usize = 4_096;

/// A node that ends waits this long for answers that are still on their way.
const LAST_WORDS_MAX: std::time::Duration = std::time::Duration::from_secs(3);
/// And for this long it sends what is answered: the connection may be lost.
const FLUSH_MAX: std::time::Duration = std::time::Duration::from_secs(1);

/// Runs a node until `stop` completes, then hands its leadership over and ends. On a change of `reload` it looks at its
/// key file at once, and says what it found. Metrics are served by the caller's runtime, all else by a thread of the
/// node's own.
///
/// # Errors
/// The configuration, the key file or the data directory is not usable; or the node met something
/// that it must not go on with.
pub async fn run(
    config: Config,
    reload: watch::Receiver<()>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<Ended> {
    let lock = data_dir::lock(&config.data_dir)?;
    let health = metrics_server::of_node(config.metrics_addr)?;
    run_on_its_thread(config, lock, health, reload, stop).await
}

pub(crate) async fn run_on_its_thread(
    config: Config,
    lock: std::fs::File,
    health: Arc<Health>,
    reload: watch::Receiver<()>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<Ended> {
    let (stopping, stopped) = oneshot::channel();
    let (ending, mut ended) = oneshot::channel();
    let aside = Handle::current();
    let thread = std::thread::Builder::new().name("node".to_owned());
    thread.spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().context("a runtime");
        // Dropped with the other end: the caller waits no longer.
        let stop = async { drop(stopped.await) };
        let run = open_and_run(config, lock, (health, aside), reload, stop);
        let result = runtime.and_then(|it| it.block_on(run));
        let _ = ending.send(result.map_err(damage::advise));
    })?;
    tokio::select! {
        result = &mut ended => return result.context("the node's thread panicked")?,
        () = stop => drop(stopping.send(())),
    }
    ended.await.context("the node's thread panicked")?
}

async fn open_and_run(
    mut config: Config,
    lock: std::fs::File,
    (health, aside): (Arc<Health>, Handle),
    reload: watch::Receiver<()>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<Ended> {
    config.check()?;
    let loaded = key_file::load(&config.key_file)?;
    let data = DataDir::open_locked(&config, lock)?;
    let rotation = data_dir::members_in(&data.path)?.rotation;
    let keys = keys::at_start(&config.key_file, loaded, rotation)?;
    config.id = data.identity.node;
    if let Some(endpoint) = &config.otlp {
        let _spans_are_sent_there = aside.enter();
        traces::install(endpoint, &config)?;
    }
    tracing::info!(
        node = config.id, cluster = %config.cluster, shards = config.shards,
        boots = data.identity.boots, "starting"
    );
    let node = Node::open(config, keys, data, health)?;
    let ended = node.run(reload, stop).await;
    traces::flush().await;
    ended
}

/// The ends of the channels that the NATS side holds.
struct NatsEnds {
    engine: ToEngine,
    forwards: mpsc::UnboundedReceiver<ForwardTry>,
    answers: mpsc::UnboundedReceiver<Vec<Output>>,
    events: mpsc::Receiver<Vec<OutEvent>>,
    subscriptions: watch::Receiver<BTreeMap<u32, Subscription>>,
    standing: watch::Receiver<Standing>,
    peer_list: watch::Receiver<PeerList>,
    rules: watch::Receiver<Option<RuleTexts>>,
}

/// The service's tasks, which the node waits for when it ends.
struct Serving {
    /// Dropped, the node unsubscribes from plain subjects.
    stop_plain: oneshot::Sender<()>,
    /// Ends when that is so.
    plain_closed: oneshot::Receiver<()>,
    /// Ends with the loop's last answer.
    responding: JoinHandle<()>,
    /// Asks other nodes, too, so it can answer later than the loop.
    gathering: Arc<Gathering>,
}

struct Node {
    config: Config,
    subjects: Subjects,
    keys: Keys,
    origin: Origin,
    health: Arc<Health>,
    log: Arc<DiskLog>,
    /// Where it takes direct links.
    peer_listener: Option<TcpListener>,
    // Held until the end: it keeps other processes off the directory.
    data: DataDir,
}

impl Node {
    fn open(
        config: Config,
        keys: Keys,
        data: DataDir,
        health: Arc<Health>,
    ) -> anyhow::Result<Self> {
        let log = parts::open(&data.log(), 1, &config.log());
        let log = log.context("opening the log")?.pop();
        let log = log.context("the log has no part")?;
        let mut nodes = config.nodes.clone();
        nodes.sort_unstable();
        let (peer_listener, link_addr) = link::accept::listen(&config)?;
        Ok(Node {
            peer_listener,
            subjects: Subjects::new(config.prefix.clone())?,
            origin: Origin {
                cluster: config.cluster.clone(),
                me: config.id,
                disk_id: data.identity.disk_id,
                boots: data.identity.boots,
                starts: data.identity.starts.clone(),
                metrics_addr: config
                    .metrics_addr
                    .map(|addr| addr.to_string())
                    .unwrap_or_default(),
                link_addr,
                shards: config.shards,
                prefix: config.prefix.clone(),
                nodes,
                election_ms: config.election_ms,
                version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            keys,
            health,
            log: Arc::new(log),
            data,
            config,
        })
    }

    async fn run(
        mut self,
        reload: watch::Receiver<()>,
        stop: impl Future<Output = ()>,
    ) -> anyhow::Result<Ended> {
        tokio::pin!(stop);
        let stats = Arc::new(Stats::default());
        let (fatal, mut denied) = mpsc::channel(1);
        let connect = async |servers: Servers, kind, stats| {
            let (cluster, id) = (&self.config.cluster, self.config.id);
            let name = format!("nowserving {cluster} node {id} {kind}");
            let rights = Rights::new(kind, self.subjects.clone(), fatal.clone())?;
            let security = self.config.security();
            connect::connect(&servers, &security, &name, kind, stats, rights).await
        };
        let servers: Servers = self.config.nats.parse()?;
        let (service, connection) = connect(servers.clone(), "service", stats.clone()).await?;
        // Frames that are dropped say nothing about users: counted apart.
        let peer_servers = self.config.peer_nats().parse()?;
        let (peers, _) = connect(peer_servers, "peers", Arc::default()).await?;
        let payload = payload_limit::Limits {
            service: PayloadLimit::of(&service),
            peers: PayloadLimit::of(&peers),
        };
        payload_limit::begin_counters();
        let link = NatsLink {
            client: peers,
            limit: payload.peers.clone(),
            subjects: self.subjects.clone(),
        };
        // They end with this function: a node that goes on under a new number has new ones.
        let mut witnesses = JoinSet::new();
        witnesses.spawn(payload.clone().watch(fatal.clone()));
        let founder = Founder {
            disk_id: self.origin.disk_id,
            id: self.config.id,
            cluster: self.config.cluster.clone(),
            nodes: self.origin.nodes.clone(),
            cluster_id: 0,
        };
        let was_empty = self.is_empty()?;
        if was_empty {
            let asked = founding::begin(&mut self.data, &link, &self.keys, &founder, &service);
            tokio::select! {
                Some(missing) = denied.recv() => return Err(missing),
                () = &mut stop => return Ok(Ended::Stopped),
                asked = asked => asked?,
            }
        }
        let known = data_dir::peers_in(&self.data.path)?;
        let (report, disks) = watch::channel(known.report());
        let engine_loop = EngineLoop::new(stats.clone());
        let engine = engine_loop.inputs();
        let origin = self.origin.clone();
        let keys = self.keys.clone();
        let links = Links::default();
        let direct = links.clone();
        let senders = Senders::new(
            link.clone(),
            direct,
            keys,
            origin,
            disks.clone(),
            engine.clone(),
        );
        let (welcomes_out, welcomes) = mpsc::channel(WELCOMES_MAX);
        let (ends, outputs) = channels(senders, engine.clone(), welcomes_out, self.health.clone());
        let (done, of_threads) = mpsc::unbounded_channel();
        disk_space::watch(self.data.path.clone(), self.log.clone(), done.clone())?;
        let turns = self
            .open_engine(outputs, connection.clone(), payload.clone(), done)
            .await?;
        let loop_ended = tokio::spawn(engine_loop.run(turns, of_threads));
        let (named, connections) = watch::channel(Connections::new());
        for server in servers.each() {
            let (client, number) = connect(server, "witness", Arc::default()).await?;
            let witness = Witness {
                me: self.config.id,
                client,
                number,
                subjects: self.subjects.clone(),
                cluster: self.config.cluster.clone(),
                connections: connections.clone(),
                control: engine.clone(),
            };
            witnesses.spawn(witness::watch(witness));
        }
        let listening = Listening {
            client: service.clone(),
            number: connection,
            subjects: self.subjects.clone(),
            cluster: self.config.cluster.clone(),
            me: self.config.id,
            start: self.start_number()?,
        };
        witnesses.spawn(witness::answer(listening));
        let known = known.wary(
            self.data.identity.joined,
            data_dir::members_in(&self.data.path)?.version,
            self.config.accept_unseen_peers,
        );
        let (addresses, by_links) = self.start_links(links, &ends.peer_list);
        let receiver = peers::Receiver {
            link: link.clone(),
            keys: self.keys.clone(),
            data_dir: self.data.path.clone(),
            peers: ends.peer_list.clone(),
            standing: ends.standing.clone(),
            engine: engine.clone(),
            report,
            connections: named,
            addresses,
            by_links,
        };
        let incoming = Incoming::new(self.origin.clone(), known);
        start("peer frames", peers::receive_frames(receiver, incoming));
        let members_file = members::keep(self.data.path.clone(), ends.peer_list.clone());
        start("members file", members_file);
        let (path, list) = (self.config.key_file.clone(), ends.peer_list.clone());
        let keys = keys::watch(self.keys.clone(), path, list, engine.clone(), reload);
        start("keys", keys);
        let hearing = candidates::hear(link.clone(), self.keys.clone(), engine.clone());
        start("candidates", hearing);
        let welcoming = candidates::welcome(link.clone(), self.keys.clone(), welcomes);
        start("welcomes", welcoming);
        let member = founding::Answering {
            id: self.config.id,
            cluster: self.config.cluster.clone(),
            disk_id: self.origin.disk_id,
            disks,
            list: ends.peer_list.clone(),
            standing: ends.standing.clone(),
        };
        let answering = founding::answer(link.clone(), self.keys.clone(), member);
        start("answers to founders", answering);
        if was_empty && !self.data.identity.joined {
            let (keys, list) = (self.keys.clone(), ends.peer_list.clone());
            let asking = founding::go_on_asking(link.clone(), keys, founder, list, engine.clone());
            start("questions of a founder", asking);
        }
        let standing = ends.standing.clone();
        let list = ends.peer_list.clone();
        let serving = self.start_service(&service, payload.service, ends, stats)?;
        let keys = self.keys.clone();
        let renumbered = candidates::renumber(&self.data, standing, list, &link, &keys);
        let stop = async {
            tokio::select! {
                Some(missing) = denied.recv() => Err(missing),
                () = &mut stop => Ok(None),
                welcome = renumbered => welcome.map(Some),
            }
        };
        tokio::pin!(loop_ended);
        let mut stopped_by = Ok(None);
        let ended = tokio::select! {
            ended = &mut loop_ended => ended,
            stopped = stop => {
                stopped_by = stopped;
                // The other nodes take the plain requests from here on.
                drop(serving.stop_plain);
                let _ = serving.plain_closed.await;
                // An error means that the loop is gone already.
                let _ = engine.send(Input::Stop);
                loop_ended.await
            }
        };
        // The loop has dropped its ends: what it answered last goes out first.
        let last_words = async {
            let _ = serving.responding.await;
            serving.gathering.finished().await;
        };
        if tokio::time::timeout(LAST_WORDS_MAX, last_words)
            .await
            .is_err()
        {
            tracing::warn!("ending with requests unanswered");
        }
        // The answers that there are must leave, whatever others wait for.
        let _ = tokio::time::timeout(FLUSH_MAX, service.flush()).await;
        tracing::info!(node = self.config.id, "stopped");
        let welcome = stopped_by?;
        ended.context("the engine loop ended without a word")??;
        let Some(welcome) = welcome else {
            return Ok(Ended::Stopped);
        };
        drop(self.log);
        let configured = self.data.identity.configured();
        data_dir::take_number(&self.data.path, &welcome, configured)?;
        tracing::info!(node = welcome.id, "this node was added under a new number");
        Ok(Ended::Renumbered)
    }

    /// Whether no shard was ever started on this disk, and none has come by a snapshot.
    fn is_empty(&self) -> anyhow::Result<bool> {
        Ok(self.log.load(0).context("reading the log")? == LogState::default())
    }

    /// The random number of this start.
    fn start_number(&self) -> anyhow::Result<u64> {
        self.origin.starts.first().copied().context("no start")
    }

    /// Restores every shard, and starts the threads that work for the engine.
    async fn open_engine(
        &self,
        outputs: Outputs,
        connection: ConnectionNumber,
        payload: payload_limit::Limits,
        done: mpsc::UnboundedSender<Done>,
    ) -> anyhow::Result<Turns> {
        let snapshot_dir = self.data.snapshots();
        let log: Arc<dyn LogStore> = self.log.clone();
        let joined = self.data.identity.joined;
        let restored = {
            let (config, dir, log) = (self.config.clone(), snapshot_dir.clone(), log.clone());
            // The connections are looked after meanwhile.
            let restore = move || shards::recover::shards(&config, joined, &dir, &log);
            tokio::task::spawn_blocking(restore).await??
        };
        let start = self.start_number()?;
        let reader: Arc<dyn EntryReader> = self.log.clone();
        let members = data_dir::members_in(&self.data.path)?;
        let config =
            self.config
                .engine(data_dir::random_u64()?, data_dir::random_secret()?, members);
        let boot = Boot {
            start,
            is_candidate: self.data.identity.candidate != 0,
            disk_refused: Some(self.data.identity.refused.clone()).filter(|it| !it.is_empty()),
        };
        let snapshots = shards::snapshots::start(
            snapshot_dir.clone(),
            &self.config,
            log.clone(),
            done.clone(),
        )?;
        Ok(Turns {
            engine: Engine::new(config, boot, restored, &reader, clock::now())?,
            outputs,
            of_step: Vec::new(),
            connection,
            known_connection: 0,
            payload,
            known_max_payload: 0,
            transfers: shards::transfers::start(snapshot_dir, done.clone())?,
            persister: Persister::start(log, done)?,
            snapshots,
            log: self.log.clone(),
            exit: None,
        })
    }

    /// Starts what opens and takes direct links. Returns where the addresses of peers go, and where frames come from.
    fn start_links(
        &mut self,
        links: Links,
        peers: &watch::Receiver<PeerList>,
    ) -> (watch::Sender<Addresses>, mpsc::Receiver<LinkFrame>) {
        link::begin_metrics();
        let (addresses, known) = watch::channel(Addresses::new());
        let (frames, by_links) = mpsc::channel(link::accept::FRAMES_MAX);
        let patience = Patience::of(self.config.election_ms);
        if self.config.opens_links() {
            let opening = Opening {
                cluster: self.config.cluster.clone(),
                me: self.config.id,
                patience,
                keys: self.keys.clone(),
                security: self.config.security(),
                links,
            };
            start(
                "opening direct links",
                link::open::run(opening, known, peers.clone()),
            );
        }
        if let Some(listener) = self.peer_listener.take() {
            let accepting = Accepting {
                cluster: self.config.cluster.clone(),
                me: self.config.id,
                patience,
                keys: self.keys.clone(),
                security: self.config.security(),
                peers: peers.clone(),
                frames,
            };
            start("direct links", link::accept::run(accepting, listener));
        }
        (addresses, by_links)
    }

    fn open_backups(&self) -> anyhow::Result<Arc<Backups>> {
        let (snapshots, dir) = (self.data.snapshots(), self.data.path.join("backups"));
        let backups = Arc::new(Backups::open(snapshots, dir)?);
        let swept = backups.clone();
        tokio::spawn(async move {
            let mut interval = tokio::time::interval(backups::KEPT_FOR / 4);
            loop {
                interval.tick().await;
                swept.sweep();
            }
        });
        Ok(backups)
    }

    /// Starts everything that serves clients.
    fn start_service(
        &self,
        client: &async_nats::Client,
        limit: PayloadLimit,
        ends: NatsEnds,
        stats: Arc<Stats>,
    ) -> anyhow::Result<Serving> {
        let trust = TrustRequestInfo(self.config.trust_request_info);
        let parser = Parser::new(self.subjects.clone(), self.config.shards, trust)?;
        let gather = gather::Config {
            subjects: parser.subjects.clone(),
            forward: parser.forward.clone(),
            shards: self.config.shards,
            me: self.config.id,
            trust,
            seed: (u128::from(data_dir::random_u64()?) << 64) | u128::from(data_dir::random_u64()?),
            since_ms: clock::wall_ms(),
        };
        let hits = parser.forward.limit_hits(self.config.id);
        let responder = Responder {
            client: client.clone(),
            limit,
            subjects: self.subjects.clone(),
            keys: self.keys.clone(),
            cluster: self.config.cluster.as_str().into(),
            stats: stats.clone(),
            backups: self.open_backups()?,
            gathering: Arc::new(Gathering::new(gather, ends.engine.clone())),
        };
        let (probed, echoes) = watch::channel(0);
        let (knows, known) = watch::channel(None);
        let rules = gathering::learn_rules(responder.clone(), ends.rules, knows);
        start("rules of limits", rules);
        tokio::spawn(gathering::run(
            responder.clone(),
            ends.subscriptions.clone(),
            ends.peer_list.clone(),
        ));
        start(
            "hits of limits",
            gathering::answer_nodes(responder.clone(), hits),
        );
        tokio::spawn(forward::run(
            client.clone(),
            parser.forward.clone(),
            ends.forwards,
            ends.engine.clone(),
        ));
        let subscriptions = ends.subscriptions.clone();
        let service = Service {
            client: client.clone(),
            parser: Arc::new(parser),
            engine: ends.engine.clone(),
            responder: responder.clone(),
            public_keys: PublicKeys::new(responder.clone()),
            known,
            subscriptions: ends.subscriptions,
            probed: echoes,
        };
        let gathering = responder.gathering.clone();
        let (stop_plain, stop) = oneshot::channel();
        let (closed, plain_closed) = oneshot::channel();
        let plain = PlainSubjects {
            standing: ends.standing.clone(),
            stop,
            closed,
        };
        start("requests", service.listen(plain));
        let probe = probe::run(
            client.clone(),
            subscriptions,
            ends.engine.clone(),
            stats.clone(),
            probed,
        );
        start("probe", probe);
        let (shards, id) = (self.config.shards, self.config.id);
        let subjects = self.subjects.clone();
        let engine = ends.engine.clone();
        let mapping = mapping::run(client.clone(), subjects, shards, id, ends.engine);
        start("mapping", mapping);
        let list = ends.peer_list.clone();
        let discovery = Discovery::new(&self.config, self.origin.boots, list.clone(), stats);
        let standing = ends.standing.clone();
        let discovery = discovery.run(client.clone(), responder.clone(), standing);
        start("discovery", discovery);
        let neighbours = neighbours::run(
            client.clone(),
            self.origin.clone(),
            self.data.identity.joined,
            list,
            ends.standing,
            engine,
        );
        start("neighbours", neighbours);
        tokio::spawn(responder.clone().run_events(ends.events));
        Ok(Serving {
            stop_plain,
            plain_closed,
            responding: tokio::spawn(responder.run(ends.answers)),
            gathering,
        })
    }
}

fn channels(
    peers: Senders,
    engine: ToEngine,
    welcomes: mpsc::Sender<Welcome>,
    health: Arc<Health>,
) -> (NatsEnds, Outputs) {
    let (answers_out, answers) = mpsc::unbounded_channel();
    let (events_out, events) = mpsc::channel(EVENT_TURNS_MAX);
    let (forwards_out, forwards) = mpsc::unbounded_channel();
    let (subscriptions_out, subscriptions) = watch::channel(BTreeMap::new());
    let (peer_list_out, peer_list) = watch::channel(PeerList::default());
    let (rules_out, rules) = watch::channel(None);
    let (standing_out, standing) = watch::channel(Standing::Waiting("starting".to_owned()));
    let ends = NatsEnds {
        engine,
        forwards,
        answers,
        events,
        subscriptions,
        standing,
        peer_list,
        rules,
    };
    let outputs = Outputs {
        answers: answers_out,
        events: events_out,
        peers,
        peer_list: peer_list_out,
        rules: rules_out,
        welcomes,
        forwards: forwards_out,
        subscriptions: subscriptions_out,
        standing: standing_out,
        health,
        turn: OfTurn::default(),
    };
    (ends, outputs)
}

/// Starts a task, which says how it ended.
fn start(
    what: &'static str,
    task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        match task.await {
            Ok(()) => tracing::debug!(what, "ended"),
            Err(error) => tracing::error!(what, error = format!("{error:#}"), "failed"),
        }
    })
}
