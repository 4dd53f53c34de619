//! The loops of a node: see `docs/design/loops.md`. Each is a thread with a runtime, and has a service connection, an
//! engine with its part of the shards and of the log, and all that serves clients by that connection. The first loop
//! ([`first`]) has, beside that, what a node has once; the others ([`other`]) work for it.

pub mod first;
pub mod other;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use async_nats::Client;
use nowserving_engine::{Boot, Engine, Input, LoopPlace, RestoredShard, connections_of};
use nowserving_front::gather;
use nowserving_front::parse::Parser;
use nowserving_front::who::TrustRequestInfo;
use nowserving_log::{DiskLog, LogStore};
use nowserving_protocol::servers::Servers;
use nowserving_protocol::subject::Subjects;
use nowserving_replica::EntryReader;
use nowserving_shard::members::Members;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::backups::Backups;
use crate::config::Config;
use crate::health::Health;
use crate::keys::Keys;
use crate::nats::connect::{self, ConnectionNumber};
use crate::nats::gathering::{self, Gathering, Gatherings, RulesReceiver};
use crate::nats::payload_limit::{Limits, PayloadLimit};
use crate::nats::peers::PeerList;
use crate::nats::public_keys::PublicKeys;
use crate::nats::respond::Responder;
use crate::nats::rights::Rights;
use crate::nats::service::Service;
use crate::nats::stats::Stats;
use crate::nats::subscriptions::PlainSubjects;
use crate::nats::witness::{self, Listening};
use crate::nats::{forward, probe};
use crate::shards::engine_loop::EngineLoop;
use crate::shards::outputs::{Beyond, OfTurn, Outputs};
use crate::shards::persist::Persister;
use crate::shards::to_engine::ToEngine;
use crate::shards::turn::Turns;
use crate::shards::worker::Done;
use crate::shards::{snapshots, transfers};
use crate::{clock, data_dir};

/// Turns' events that wait to be published at most.
const EVENT_TURNS_MAX: usize = 4_096;
/// What one loop tells another and that one has not taken yet at most, in turns.
const WORDS_MAX: usize = 256;
/// A loop that ends waits this long for answers that are still on their way.
const LAST_WORDS_MAX: Duration = Duration::from_secs(3);
/// And for this long it sends what is answered: the connection may be lost.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// What all loops of a node have in common.
#[derive(Clone)]
struct Shared {
    config: Config,
    subjects: Subjects,
    keys: Keys,
    health: Arc<Health>,
    /// What the node must not go on with.
    fatal: mpsc::Sender<anyhow::Error>,
}

impl Shared {
    /// Connects, or keeps trying in the background. `kind`: which connection, for people.
    async fn connect(
        &self,
        servers: &Servers,
        kind: &'static str,
        stats: Arc<Stats>,
    ) -> anyhow::Result<(Client, ConnectionNumber)> {
        let (cluster, id) = (&self.config.cluster, self.config.id);
        let name = format!("nowserving {cluster} node {id} {kind}");
        let rights = Rights::new(kind, self.subjects.clone(), self.fatal.clone())?;
        let security = self.config.security();
        connect::connect(servers, &security, &name, kind, stats, rights).await
    }
}

/// What all engines of this start begin with.
#[derive(Clone)]
struct Beginning {
    boot: Boot,
    members: Members,
    snapshot_dir: PathBuf,
    backups: Arc<Backups>,
    /// The rules of limits, which the first loop learns.
    known: RulesReceiver,
    /// The other nodes, which it knows.
    peer_list: watch::Receiver<PeerList>,
    /// Of the loops that have begun.
    gatherings: Gatherings,
    /// What the connection for frames takes in one message.
    peers_limit: PayloadLimit,
}

/// One loop's part of what is on disk, and how it hears of others.
struct Part {
    log: Arc<DiskLog>,
    restored: Vec<RestoredShard>,
    /// What the other loops tell it.
    words: mpsc::Receiver<Input>,
    /// What its threads have done.
    done: (mpsc::UnboundedSender<Done>, mpsc::UnboundedReceiver<Done>),
}

/// A loop that is connected, and whose engine does not run yet. It stays on the thread that has made it.
struct Loop {
    shared: Shared,
    place: LoopPlace,
    client: Client,
    number: ConnectionNumber,
    limit: PayloadLimit,
    stats: Arc<Stats>,
    engine_loop: EngineLoop,
}

/// A loop that runs.
struct Running {
    client: Client,
    engine: ToEngine,
    responder: Responder,
    /// Why the engine has ended.
    ended: JoinHandle<anyhow::Result<()>>,
    /// Ends with the loop's last answer.
    responding: JoinHandle<()>,
}

impl Loop {
    /// Makes its service connection.
    async fn connect(shared: Shared, place: LoopPlace, stats: Arc<Stats>) -> anyhow::Result<Loop> {
        let servers: Servers = shared.config.nats.parse()?;
        let (client, number) = shared.connect(&servers, "service", stats.clone()).await?;
        Ok(Loop {
            shared,
            place,
            limit: PayloadLimit::of(&client),
            client,
            number,
            engine_loop: EngineLoop::new(stats.clone()),
            stats,
        })
    }

    /// What NATS takes in one message, on this loop's connection and on that for frames.
    fn limits(&self, peers: &PayloadLimit) -> Limits {
        Limits {
            service: self.limit.clone(),
            peers: peers.clone(),
        }
    }

    /// Starts the engine, and what serves clients. `plain`: for the first loop.
    fn start(
        self,
        beginning: &Beginning,
        part: Part,
        beyond: Beyond,
        plain: Option<PlainSubjects>,
    ) -> anyhow::Result<Running> {
        let engine = self.engine_loop.inputs();
        let (answers_out, answers) = mpsc::unbounded_channel();
        let (events_out, events) = mpsc::channel(EVENT_TURNS_MAX);
        let (forwards_out, forwards) = mpsc::unbounded_channel();
        let (subscriptions_out, subscriptions) = watch::channel(BTreeMap::new());
        let outputs = Outputs {
            answers: answers_out,
            events: events_out,
            forwards: forwards_out,
            subscriptions: subscriptions_out,
            health: self.shared.health.clone(),
            beyond,
            turn: OfTurn::default(),
        };
        let limits = self.limits(&beginning.peers_limit);
        let (done, of_threads) = part.done;
        let turns = self.turns(beginning, (part.log, part.restored), outputs, limits, done)?;
        let ended = self.engine_loop.clone().run(turns, of_threads, part.words);
        let ended = tokio::spawn(ended);
        let listening = Listening {
            client: self.client.clone(),
            number: self.number.clone(),
            subjects: self.shared.subjects.clone(),
            cluster: self.shared.config.cluster.clone(),
            me: self.shared.config.id,
            start: connections_of(beginning.boot.start, self.place.index),
        };
        start("answers to witnesses", witness::answer(listening));

        let trust = TrustRequestInfo(self.shared.config.trust_request_info);
        let parser = Parser::new(
            self.shared.subjects.clone(),
            self.shared.config.shards,
            trust,
        )?;
        let responder = self.responder(&parser, beginning.backups.clone(), engine.clone())?;
        tokio::spawn(forward::run(
            self.client.clone(),
            parser.forward.clone(),
            forwards,
            engine.clone(),
        ));
        let gatherings = beginning.gatherings.lock();
        let mut gatherings = gatherings.unwrap_or_else(PoisonError::into_inner);
        gatherings.push(responder.gathering.clone());
        drop(gatherings);
        let (known, peers) = (beginning.known.clone(), beginning.peer_list.clone());
        tokio::spawn(gathering::follow_rules(responder.clone(), known));
        let gathering = gathering::run(responder.clone(), subscriptions.clone(), peers);
        tokio::spawn(gathering);
        let (probed, echoes) = watch::channel(0);
        let service = Service {
            client: self.client.clone(),
            parser: Arc::new(parser),
            engine: engine.clone(),
            responder: responder.clone(),
            public_keys: PublicKeys::new(responder.clone()),
            known: beginning.known.clone(),
            subscriptions: subscriptions.clone(),
            probed: echoes,
        };
        start("requests", service.listen(plain));
        let probe = probe::run(
            self.client.clone(),
            subscriptions.clone(),
            engine.clone(),
            self.stats,
            probed,
        );
        start("probe", probe);
        tokio::spawn(responder.clone().run_events(events));
        Ok(Running {
            client: self.client,
            engine,
            responding: tokio::spawn(responder.clone().run(answers)),
            responder,
            ended,
        })
    }

    /// The engine, and the threads that work for it.
    fn turns(
        &self,
        beginning: &Beginning,
        (log, restored): (Arc<DiskLog>, Vec<RestoredShard>),
        outputs: Outputs,
        payload: Limits,
        done: mpsc::UnboundedSender<Done>,
    ) -> anyhow::Result<Turns> {
        let Beginning {
            boot,
            members,
            snapshot_dir,
            ..
        } = beginning.clone();
        let config = &self.shared.config;
        let (seed, secret) = (data_dir::random_u64()?, data_dir::random_secret()?);
        let of_engine = config.engine(self.place, seed, secret, members);
        let reader: Arc<dyn EntryReader> = log.clone();
        let store: Arc<dyn LogStore> = log.clone();
        let snapshots =
            snapshots::start(snapshot_dir.clone(), config, store.clone(), done.clone())?;
        Ok(Turns {
            engine: Engine::new(of_engine, boot, restored, &reader, clock::now())?,
            outputs,
            of_step: Vec::new(),
            connection: self.number.clone(),
            known_connection: 0,
            payload,
            known_max_payload: 0,
            transfers: transfers::start(snapshot_dir, done.clone())?,
            persister: Persister::start(store, done)?,
            snapshots,
            log,
            exit: None,
        })
    }

    fn responder(
        &self,
        parser: &Parser,
        backups: Arc<Backups>,
        engine: ToEngine,
    ) -> anyhow::Result<Responder> {
        let config = &self.shared.config;
        let gather = gather::Config {
            subjects: parser.subjects.clone(),
            forward: parser.forward.clone(),
            shards: config.shards,
            me: config.id,
            trust: TrustRequestInfo(config.trust_request_info),
            seed: (u128::from(data_dir::random_u64()?) << 64) | u128::from(data_dir::random_u64()?),
            since_ms: clock::wall_ms(),
        };
        Ok(Responder {
            client: self.client.clone(),
            limit: self.limit.clone(),
            subjects: self.shared.subjects.clone(),
            keys: self.shared.keys.clone(),
            cluster: config.cluster.as_str().into(),
            stats: self.stats.clone(),
            backups,
            gathering: Arc::new(Gathering::new(gather, engine)),
        })
    }
}

impl Running {
    /// The engine has ended, and dropped its ends: what was answered last goes out.
    async fn last_words(self) {
        let answered = async {
            let _ = self.responding.await;
            // It asks other nodes, too, so it can answer later than the loop.
            self.responder.gathering.finished().await;
        };
        let answered = tokio::time::timeout(LAST_WORDS_MAX, answered).await;
        if answered.is_err() {
            tracing::warn!("ending with requests unanswered");
        }
        // The answers that there are must leave, whatever others wait for.
        let _ = tokio::time::timeout(FLUSH_MAX, self.client.flush()).await;
    }
}

/// Why an engine has ended.
fn why(ended: Result<anyhow::Result<()>, tokio::task::JoinError>) -> anyhow::Result<()> {
    ended.context("the engine loop ended without a word")?
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
