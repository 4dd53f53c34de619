//! The first loop: what a node has once. It founds or finds the cluster, exchanges frames with the peers, and ends the
//! node.

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context as _;
use nowserving_engine::envelope::{Founder, PeerDisk, Welcome};
use nowserving_engine::{Boot, Input, LoopPlace, RestoredShard, Standing};
use nowserving_front::cluster::known_peers::KnownPeers;
use nowserving_front::cluster::link::progress::Patience;
use nowserving_front::cluster::peers::Incoming;
use nowserving_front::limits::KnownRules;
use nowserving_log::{DiskLog, LogStore, parts};
use nowserving_protocol::servers::Servers;
use nowserving_protocol::subject::Subjects;
use nowserving_replica::LogState;
use nowserving_shard::limits::RuleTexts;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};

use super::other::{self, Other, Ways};
use super::{Beginning, Loop, Part, Running, Shared, start, why};
use crate::backups::{self, Backups};
use crate::config::Config;
use crate::data_dir::{self, DataDir};
use crate::ended::Ended;
use crate::health::Health;
use crate::keys::{self, Keys};
use crate::link::accept::{Accepting, LinkFrame};
use crate::link::open::{Addresses, Opening};
use crate::link::{self, Links};
use crate::nats::discovery::Discovery;
use crate::nats::gathering::{self, Gatherings, RulesReceiver};
use crate::nats::payload_limit::{self, PayloadLimit};
use crate::nats::peers::{self, NatsLink, Origin, PeerList, Senders};
use crate::nats::stats::Stats;
use crate::nats::subscriptions::PlainSubjects;
use crate::nats::witness::{self, Connections, Witness};
use crate::nats::{candidates, founding, mapping, neighbours};
use crate::shards::outputs::{Beyond, OfNode};
use crate::shards::to_engine::ToEngine;
use crate::{disk_space, members, shards};

/// Answers to candidates that wait to be sent at most.
const WELCOMES_MAX: usize = 64;

/// A node before it runs.
pub struct Node {
    config: Config,
    subjects: Subjects,
    keys: Keys,
    origin: Origin,
    health: Arc<Health>,
    /// Its parts, one of each loop.
    logs: Vec<Arc<DiskLog>>,
    /// Where it takes direct links.
    peer_listener: Option<TcpListener>,
    // Held until the end: it keeps other processes off the directory.
    data: DataDir,
}

/// What the first loop's engine tells the rest of the node.
struct Told {
    standing: watch::Receiver<Standing>,
    peer_list: watch::Receiver<PeerList>,
    rules: watch::Receiver<Option<RuleTexts>>,
    welcomes: mpsc::Receiver<Welcome>,
}

/// Stops what the first loop serves on plain subjects.
struct Plain {
    /// Dropped, the node unsubscribes from them.
    stop: oneshot::Sender<()>,
    /// Ends when that is so.
    closed: oneshot::Receiver<()>,
}

impl Node {
    /// Opens the log, in as many parts as the node has loops, and listens for direct links.
    ///
    /// # Errors
    /// The log is damaged, or the address is not to be had.
    pub fn open(
        config: Config,
        keys: Keys,
        data: DataDir,
        health: Arc<Health>,
    ) -> anyhow::Result<Self> {
        let logs = parts::open(&data.log(), config.loops(), &config.log());
        let logs = logs.context("opening the log")?;
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
            logs: logs.into_iter().map(Arc::new).collect(),
            data,
            config,
        })
    }

    /// Runs the node until `stop` completes, or it can't go on.
    ///
    /// # Errors
    /// Why it can't.
    pub async fn run(
        mut self,
        reload: watch::Receiver<()>,
        stop: impl Future<Output = ()>,
    ) -> anyhow::Result<Ended> {
        tokio::pin!(stop);
        let (fatal, mut denied) = mpsc::channel(1);
        let shared = Shared {
            config: self.config.clone(),
            subjects: self.subjects.clone(),
            keys: self.keys.clone(),
            health: self.health.clone(),
            fatal,
        };
        let places: Vec<_> = LoopPlace::all(self.config.loops()).collect();
        let stats: Vec<Arc<Stats>> = places.iter().map(|_| Arc::default()).collect();
        let (first, own_stats) = (places.first().zip(stats.first())).context("no loop")?;
        let this = Loop::connect(shared.clone(), *first, own_stats.clone()).await?;
        let link = self.peer_connection(&shared).await?;
        let limits = this.limits(&link.limit);
        payload_limit::begin_counters();
        start(
            "limits of messages",
            limits.watch(true, shared.fatal.clone()),
        );
        let founder = self.founder();
        let was_empty = self.is_empty()?;
        if was_empty {
            let asked = founding::begin(&mut self.data, &link, &self.keys, &founder, &this.client);
            tokio::select! {
                Some(missing) = denied.recv() => return Err(missing),
                () = &mut stop => return Ok(Ended::Stopped),
                asked = asked => asked?,
            }
        }
        let known = data_dir::peers_in(&self.data.path)?;
        let (report, disks) = watch::channel(known.report());
        let known = (known, report);
        let (done, of_threads) = mpsc::unbounded_channel();
        disk_space::watch(self.data.path.clone(), self.logs.clone(), done.clone())?;
        let mut restored = self.restore().await?;
        let ways = Ways::new(first.count);
        let links = Links::default();
        let senders = Senders::new(
            link.clone(),
            links.clone(),
            self.keys.clone(),
            self.origin.clone(),
            disks.clone(),
            this.engine_loop.inputs(),
        );
        let (of_node, told) = of_node(senders, ways.loops);
        let (knows, rules) = watch::channel(None);
        let beginning = self.beginning(rules, told.peer_list.clone(), link.limit.clone())?;
        let part = Part {
            log: self.logs.first().context("no log")?.clone(),
            restored: restored.extract_if(.., |it| first.has(it.shard)).collect(),
            words: ways.words,
            done: (done.clone(), of_threads),
        };
        let (plain, on_plain) = plain_subjects(&told.standing);
        let beyond = Beyond::Node(Box::new(of_node));
        let mut running = this.start(&beginning, part, beyond, Some(on_plain))?;
        let engine = running.engine.clone();
        let mut threads = Vec::new();
        let begun = async {
            let others = places.iter().zip(&self.logs).zip(&stats).skip(1);
            for (((place, log), stats), ways) in others.zip(ways.of_others) {
                let other = Other {
                    place: *place,
                    shared: shared.clone(),
                    beginning: beginning.clone(),
                    log: log.clone(),
                    stats: stats.clone(),
                    ways,
                };
                threads.push(other.start(&mut restored, done.clone())?);
            }
            self.start_witnesses(&shared, &engine).await
        };
        let connections = match begun.await {
            Ok(connections) => connections,
            Err(error) => {
                let _ = engine.send(Input::Stop);
                let _ = (&mut running.ended).await;
                end(running, threads).await;
                return Err(error);
            }
        };
        let version = beginning.members.version;
        self.start_frames((&link, links), known, version, connections, &told, &engine);
        let (path, list) = (self.config.key_file.clone(), told.peer_list.clone());
        let keys = keys::watch(self.keys.clone(), path, list, engine.clone(), reload);
        start("keys", keys);
        if was_empty && !self.data.identity.joined {
            let (keys, list) = (self.keys.clone(), told.peer_list.clone());
            let asking = founding::go_on_asking(link.clone(), keys, founder, list, engine.clone());
            start("questions of a founder", asking);
        }
        let renumbered = candidates::renumber(
            &self.data,
            told.standing.clone(),
            told.peer_list.clone(),
            &link,
            &self.keys,
        );
        let stop = async {
            tokio::select! {
                Some(missing) = denied.recv() => Err(missing),
                () = &mut stop => Ok(None),
                welcome = renumbered => welcome.map(Some),
            }
        };
        self.start_service(&running, stats, &told, knows, beginning.gatherings);
        self.start_members(&link, disks, told, &engine);
        let mut stopped_by = Ok(None);
        let ended = tokio::select! {
            ended = &mut running.ended => ended,
            stopped = stop => {
                stopped_by = stopped;
                // The other nodes take the plain requests from here on.
                drop(plain.stop);
                let _ = plain.closed.await;
                // An error means that the loop is gone already.
                let _ = engine.send(Input::Stop);
                (&mut running.ended).await
            }
        };
        end(running, threads).await;
        tracing::info!(node = self.config.id, "stopped");
        let welcome = stopped_by?;
        why(ended)?;
        match welcome {
            None => Ok(Ended::Stopped),
            Some(welcome) => self.take_number(&welcome),
        }
    }

    /// Gives up the log: the node starts anew, as the member that it was welcomed as.
    fn take_number(self, welcome: &Welcome) -> anyhow::Result<Ended> {
        drop(self.logs);
        let configured = self.data.identity.configured();
        data_dir::take_number(&self.data.path, welcome, configured)?;
        tracing::info!(node = welcome.id, "this node was added under a new number");
        Ok(Ended::Renumbered)
    }

    /// The connection for frames.
    async fn peer_connection(&self, shared: &Shared) -> anyhow::Result<NatsLink> {
        let servers: Servers = self.config.peer_nats().parse()?;
        // Frames that are dropped say nothing about users: counted apart.
        let (client, _) = shared.connect(&servers, "peers", Arc::default()).await?;
        Ok(NatsLink {
            limit: PayloadLimit::of(&client),
            client,
            subjects: self.subjects.clone(),
        })
    }

    /// This node, as it asks whether its cluster exists.
    fn founder(&self) -> Founder {
        Founder {
            disk_id: self.origin.disk_id,
            id: self.config.id,
            cluster: self.config.cluster.clone(),
            nodes: self.origin.nodes.clone(),
            cluster_id: 0,
        }
    }

    /// Whether no shard was ever started on this disk, and none has come by a snapshot.
    fn is_empty(&self) -> anyhow::Result<bool> {
        let log = self.logs.first().context("no log")?;
        Ok(log.load(0).context("reading the log")? == LogState::default())
    }

    fn beginning(
        &self,
        known: RulesReceiver,
        peer_list: watch::Receiver<PeerList>,
        peers: PayloadLimit,
    ) -> anyhow::Result<Beginning> {
        let identity = &self.data.identity;
        Ok(Beginning {
            boot: Boot {
                // The random number of this start.
                start: self.origin.starts.first().copied().context("no start")?,
                is_candidate: identity.candidate != 0,
                disk_refused: Some(identity.refused.clone()).filter(|it| !it.is_empty()),
            },
            members: data_dir::members_in(&self.data.path)?,
            snapshot_dir: self.data.snapshots(),
            backups: self.open_backups()?,
            known,
            peer_list,
            gatherings: Gatherings::default(),
            peers_limit: peers,
        })
    }

    /// Reads all shards from disk.
    async fn restore(&self) -> anyhow::Result<Vec<RestoredShard>> {
        let (config, dir) = (self.config.clone(), self.data.snapshots());
        let joined = self.data.identity.joined;
        let logs = self.logs.iter().map(|it| it.clone() as Arc<dyn LogStore>);
        let logs: Vec<_> = logs.collect();
        // The connections are looked after meanwhile.
        let restore = move || shards::recover::shards(&config, joined, &dir, &logs);
        tokio::task::spawn_blocking(restore).await?
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

    /// Connects to each server alone, to ask there for the peers' service connections. Returns where these go.
    async fn start_witnesses(
        &self,
        shared: &Shared,
        engine: &ToEngine,
    ) -> anyhow::Result<watch::Sender<Connections>> {
        let (named, connections) = watch::channel(Connections::new());
        let servers: Servers = self.config.nats.parse()?;
        for server in servers.each() {
            let (client, number) = shared.connect(&server, "witness", Arc::default()).await?;
            let witness = Witness {
                me: self.config.id,
                client,
                number,
                subjects: self.subjects.clone(),
                cluster: self.config.cluster.clone(),
                connections: connections.clone(),
                control: engine.clone(),
            };
            start("witness", witness::watch(witness));
        }
        Ok(named)
    }

    /// Starts what takes frames of peers, by direct links and over NATS. `version`: of the newest members on disk.
    fn start_frames(
        &mut self,
        (link, links): (&NatsLink, Links),
        (known, report): (KnownPeers, watch::Sender<Vec<PeerDisk>>),
        version: u64,
        connections: watch::Sender<Connections>,
        told: &Told,
        engine: &ToEngine,
    ) {
        let (addresses, by_links) = self.start_links(links, &told.peer_list);
        let receiver = peers::Receiver {
            link: link.clone(),
            keys: self.keys.clone(),
            data_dir: self.data.path.clone(),
            peers: told.peer_list.clone(),
            standing: told.standing.clone(),
            engine: engine.clone(),
            report,
            connections,
            addresses,
            by_links,
        };
        let (joined, unseen) = (self.data.identity.joined, self.config.accept_unseen_peers);
        let incoming = Incoming::new(self.origin.clone(), known.wary(joined, version, unseen));
        start("peer frames", peers::receive_frames(receiver, incoming));
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

    /// Starts what knows the members, and answers nodes that want to be some.
    fn start_members(
        &self,
        link: &NatsLink,
        disks: watch::Receiver<Vec<PeerDisk>>,
        told: Told,
        engine: &ToEngine,
    ) {
        let members_file = members::keep(self.data.path.clone(), told.peer_list.clone());
        start("members file", members_file);
        let hearing = candidates::hear(link.clone(), self.keys.clone(), engine.clone());
        start("candidates", hearing);
        let welcoming = candidates::welcome(link.clone(), self.keys.clone(), told.welcomes);
        start("welcomes", welcoming);
        let member = founding::Answering {
            id: self.config.id,
            cluster: self.config.cluster.clone(),
            disk_id: self.origin.disk_id,
            disks,
            list: told.peer_list,
            standing: told.standing,
        };
        let answering = founding::answer(link.clone(), self.keys.clone(), member);
        start("answers to founders", answering);
    }

    /// Starts what the node serves clients with beside its shards.
    fn start_service(
        &self,
        running: &Running,
        stats: Vec<Arc<Stats>>,
        told: &Told,
        knows: watch::Sender<Option<Arc<KnownRules>>>,
        gatherings: Gatherings,
    ) {
        let (client, responder) = (running.client.clone(), running.responder.clone());
        let (engine, list) = (running.engine.clone(), told.peer_list.clone());
        let rules = gathering::learn_rules(told.rules.clone(), knows);
        start("rules of limits", rules);
        let hits = gathering::answer_nodes(responder.clone(), gatherings);
        start("hits of limits", hits);
        let subjects = self.subjects.clone();
        let mapping = mapping::run(
            client.clone(),
            subjects,
            self.config.shards,
            self.config.id,
            engine.clone(),
        );
        start("mapping", mapping);
        let discovery = Discovery::new(&self.config, self.origin.boots, list.clone(), stats);
        let discovery = discovery.run(client.clone(), responder, told.standing.clone());
        start("discovery", discovery);
        let neighbours = neighbours::run(
            client,
            self.origin.clone(),
            self.data.identity.joined,
            list,
            told.standing.clone(),
            engine,
        );
        start("neighbours", neighbours);
    }
}

/// Waits for what the loops leave behind once the first engine has ended: the directory is not free before that.
async fn end(running: Running, threads: Vec<JoinHandle<()>>) {
    running.last_words().await;
    other::join(threads).await;
}

/// What the first loop's engine drives, and the other ends of that.
fn of_node(peers: Senders, loops: Vec<mpsc::Sender<Input>>) -> (OfNode, Told) {
    let (peer_list_out, peer_list) = watch::channel(PeerList::default());
    let (rules_out, rules) = watch::channel(None);
    let (standing_out, standing) = watch::channel(Standing::Waiting("starting".to_owned()));
    let (welcomes_out, welcomes) = mpsc::channel(WELCOMES_MAX);
    let of_node = OfNode {
        loops,
        peers,
        peer_list: peer_list_out,
        rules: rules_out,
        welcomes: welcomes_out,
        standing: standing_out,
    };
    let told = Told {
        standing,
        peer_list,
        rules,
        welcomes,
    };
    (of_node, told)
}

/// Whether the node listens on plain subjects, and what stops that.
fn plain_subjects(standing: &watch::Receiver<Standing>) -> (Plain, PlainSubjects) {
    let (stop, stopping) = oneshot::channel();
    let (left, closed) = oneshot::channel();
    let on_plain = PlainSubjects {
        standing: standing.clone(),
        stop: stopping,
        closed: left,
    };
    (Plain { stop, closed }, on_plain)
}
