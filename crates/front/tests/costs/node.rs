//! One node, and the requests that it is asked.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::Arc;

use allocation_counter::measure;
use bytes::{Bytes, BytesMut};
use nowserving_engine::{
    Boot, Config, Engine, Inbox, Input, LoopPlace, Now, Outcome, Output, ReplyTo, RestoredShard,
    ShardDelivery, Subscription, Via,
};
use nowserving_front::encode::Encoder;
use nowserving_front::gather::{self, Arrived, Gather};
use nowserving_front::keys::InUse;
use nowserving_front::limits::KnownRules;
use nowserving_front::parse::{Parser, Reading};
use nowserving_front::routes::Route;
use nowserving_front::who::TrustRequestInfo;
use nowserving_front::{Message, forward};
use nowserving_limit::Rules;
use nowserving_line::{LineName, State};
use nowserving_log::{LogStore as _, MemoryLog};
use nowserving_protocol::admin::LineReply;
use nowserving_protocol::codec::{Format, Payload, decode, encode};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::keys::{ClusterKey, KeyRing};
use nowserving_protocol::limits::{ApplyRules, Check, CheckReply, Entry, RulesChanged};
use nowserving_protocol::operation::Operation;
use nowserving_protocol::subject::Subjects;
use nowserving_protocol::user::{Enter, Key, StatusReply, StatusRequest, TokenBy};
use nowserving_replica::{ConfState, EntryReader, Restored, SnapshotMeta, Write};
use nowserving_shard::command;
use nowserving_shard::limits::RuleTexts;
use nowserving_shard::members::Members;
use serde::Serialize;

/// Requests before the one that counts, so that tables have their size.
const WARM_UP: u64 = 2_000;
/// Requests that count: the mean of them.
pub const COUNTED: u64 = 1_000;
const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000}}
";

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Status,
    Enter,
    Check,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Status, Kind::Enter, Kind::Check];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Status => "status",
            Kind::Enter => "enter",
            Kind::Check => "check",
        }
    }
}

/// A cluster of one node, above its log: what the messages of a client do in it.
struct Node {
    engine: Engine,
    log: Arc<MemoryLog>,
    now: Now,
    keys: InUse,
    parser: Parser,
    subjects: Subjects,
    gather: Gather,
    config: gather::Config,
    rules: Option<RuleTexts>,
    /// By the engine, in this turn.
    replies: Vec<(ReplyTo, Result<Outcome, ApiError>)>,
    /// To a client.
    answer: Option<Vec<u8>>,
    /// Whether it is warm.
    counts: bool,
    allocations: u64,
}

impl Node {
    /// It leads its only shard.
    fn new() -> Node {
        let log = Arc::new(MemoryLog::new());
        log.write(&[Write::bootstrap(0, &[1])]).unwrap();
        let reader: Arc<dyn EntryReader> = log.clone();
        let restored = RestoredShard {
            shard: 0,
            restored: Restored {
                log: log.load(0).unwrap(),
                snapshot: SnapshotMeta {
                    conf_state: ConfState::of_voters(&[1]),
                    ..SnapshotMeta::default()
                },
                applied: 0,
            },
            ..RestoredShard::default()
        };
        let boot = Boot {
            start: 77,
            is_candidate: false,
            disk_refused: None,
        };
        let now = Now {
            us: 1_000_000_000,
            wall_ms: 1_766_222_333_444,
        };
        let engine = Engine::new(engine_config(), boot, vec![restored], &reader, now).unwrap();
        let subjects = Subjects::default();
        let config = gather::Config {
            subjects: subjects.clone(),
            forward: forward::subjects(&subjects).unwrap(),
            shards: 1,
            me: 1,
            trust: TrustRequestInfo(false),
            seed: 5,
            since_ms: now.wall_ms,
        };
        let ring = KeyRing::new(&ClusterKey::new([7; 32]).into(), None).unwrap();
        let mut node = Node {
            engine,
            log,
            now,
            keys: InUse::new(ring, now.wall_ms),
            parser: Parser::new(subjects.clone(), 1, TrustRequestInfo(false)).unwrap(),
            gather: Gather::new(config.clone()),
            subjects,
            config,
            rules: None,
            replies: Vec::new(),
            answer: None,
            counts: false,
            allocations: 0,
        };
        let leader = Subscription::Leader { term: 1 };
        node.gather.follow([(0, leader)], now);
        node.gather.nodes(BTreeSet::from([1]));
        for _ in 0..1_000 {
            if node.engine.shards().all(|shard| shard.leads_ready) {
                return node;
            }
            node.pass_ms(50);
        }
        panic!("a node alone does not lead");
    }

    fn pass_ms(&mut self, ms: u64) {
        self.now.us += ms * 1_000;
        self.now.wall_ms += ms;
        let sent_at = self.now.us;
        self.input(Input::ProbeEchoed { sent_at });
        self.end_turn();
    }

    /// Counts what this costs.
    fn counted<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> T {
        if !self.counts {
            return run(self);
        }
        let (mut run, mut result) = (Some(run), None);
        let counted = measure(|| {
            on_the_way(&mut || result = run.take().map(|run| run(self)));
        });
        self.allocations += counted.count_total;
        result.unwrap()
    }

    fn input(&mut self, input: Input) {
        // The list that a node keeps for this has its size already.
        let mut outputs = Vec::with_capacity(64);
        self.counted(|node| node.engine.step(node.now, input, &mut outputs));
        for output in outputs {
            match output {
                Output::Reply { to, result } => self.replies.push((to, result)),
                Output::Rules(rules) => self.rules = Some(rules),
                Output::Persist(writes) => {
                    self.log.write(&writes).unwrap();
                    let numbers = writes.iter().map(|it| (it.shard, it.number)).collect();
                    self.input(Input::Persisted { numbers, writes: 1 });
                    self.end_turn();
                }
                _ => {}
            }
        }
    }

    fn end_turn(&mut self) {
        self.input(Input::EndTurn { inbox_empty: true });
        for (to, result) in std::mem::take(&mut self.replies) {
            match to.inbox {
                Inbox::Task(id) => self.gather(|gather, now| gather.own_answered(id, result, now)),
                _ => {
                    let answer = self.counted(|node| node.encoder().answer(result.unwrap(), &to));
                    self.answer = Some(answer);
                }
            }
        }
    }

    fn encoder(&self) -> Encoder<'_> {
        Encoder {
            subjects: &self.subjects,
            keys: &self.keys,
            cluster: "test",
            bytes_max: 1 << 20,
        }
    }

    /// A request that the engine takes, as its shard's leader.
    fn ask<R: Payload>(
        &mut self,
        op: Operation,
        name: &LineName,
        body: &impl Serialize,
        headers: &[(&str, &str)],
    ) -> R {
        let subject = self.subjects.leader(op, 0, name);
        let payload = payload(body);
        let input = self.counted(|node| {
            let message = Message {
                subject: &subject,
                reply: Some("_INBOX.0123456789.1"),
                headers: &headers,
                payload: &payload,
            };
            let reading = Reading {
                via: Via::Shard(ShardDelivery::Leader),
                routed_after: node.now.us,
                now: node.now,
                trace: None,
                keys: &node.keys,
                rules: None,
            };
            node.parser.parse(&message, reading).unwrap()
        });
        self.input(input);
        self.end_turn();
        decode(&self.answer.take().unwrap()).unwrap()
    }

    fn gather(&mut self, step: impl FnOnce(&mut Gather, Now)) {
        let mut outputs = self.counted(|node| {
            step(&mut node.gather, node.now);
            node.gather.take_outputs()
        });
        for output in outputs.drain(..) {
            match output {
                gather::Output::Engine { input, .. } => self.input(input),
                gather::Output::Reply { to, result } => {
                    let reply = result.unwrap();
                    self.answer = Some(self.counted(|_| reply.encode(to.format)));
                }
                gather::Output::Request(request) => panic!("{request:?}"),
            }
        }
        self.gather.reuse(outputs);
    }

    fn check(&mut self, domain: &LineName, body: &Check) -> CheckReply {
        let subject = self.subjects.leader(Operation::LimitCheck, 0, domain);
        let payload = payload(body);
        let message = Message {
            subject: &subject,
            reply: Some("_INBOX.0123456789.1"),
            headers: &(),
            payload: &payload,
        };
        let read = self.counted(|node| {
            let (config, now) = (&node.config, node.now);
            let arrived = Arrived::of(config, &message, Route::Limits, now, None);
            let admitted = node.gather.admit(arrived).unwrap();
            admitted.read(config, &message, now)
        });
        self.gather(|gather, now| gather.begin(read, now));
        self.end_turn();
        decode(&self.answer.take().unwrap()).unwrap()
    }

    /// The mean number of allocations of what is done for each of so many numbers.
    fn mean(&mut self, mut run: impl FnMut(&mut Self, u64)) -> u64 {
        (0..WARM_UP).for_each(|nth| run(self, nth));
        self.counts = true;
        (WARM_UP..WARM_UP + COUNTED).for_each(|nth| run(self, nth));
        self.counts = false;
        self.allocations.div_ceil(COUNTED)
    }
}

/// What runs inside is counted: valgrind knows this function by its name.
#[inline(never)]
fn on_the_way(run: &mut dyn FnMut()) {
    run();
    // A call at the end would be a jump, after which it would have returned already.
    black_box(());
}

fn engine_config() -> Config {
    Config {
        id: 1,
        nodes: vec![1],
        members: Members::default(),
        cluster: "test".into(),
        shards: 1,
        place: LoopPlace::ONLY,
        prefix: "nowserving".into(),
        heartbeat_ms: 100,
        election_ms: 1_000,
        snapshot_entries: 1_000_000,
        log_bytes_max: 1 << 28,
        metrics_addr: None,
        version: "test".into(),
        entry_format: command::FORMAT,
        max_payload_min: 65_536,
        seed: 7,
        draw_secret: nowserving_line::Secret([7; 32]),
    }
}

/// As the connection has it: a part of what it has read.
fn payload(body: &impl Serialize) -> Bytes {
    BytesMut::from(&encode(body, Format::MsgPack)[..])
        .freeze()
        .clone()
}

fn name(text: &str) -> LineName {
    LineName::try_from(text).unwrap()
}

fn enter(node: &mut Node, line: &LineName, nth: u64) -> StatusReply {
    let body = Enter {
        key: Some(Key::new(format!("order-{nth}").into_bytes()).unwrap()),
        lane: None,
    };
    let (id, sent_ms) = (format!("request-{nth}"), node.now.wall_ms.to_string());
    let headers = [
        ("Nowserving-Timeout-Ms", "5000"),
        ("Nowserving-Sent-Ms", sent_ms.as_str()),
        ("Nowserving-Request-Id", id.as_str()),
    ];
    node.ask(Operation::Enter, line, &body, &headers)
}

/// The mean number of allocations of a request.
pub fn allocations(kind: Kind) -> u64 {
    let mut node = Node::new();
    match kind {
        Kind::Status => statuses(&mut node),
        Kind::Enter => enters(&mut node),
        Kind::Check => checks(&mut node),
    }
}

fn line(node: &mut Node) -> LineName {
    let line = name("shop-1");
    let create = serde_json::json!({"seats": 1, "queue_limit": 1_000_000});
    let _: LineReply = node.ask(Operation::Create, &line, &create, &[]);
    let first = enter(node, &line, u64::MAX);
    assert_eq!(first.state, State::Admitted);
    line
}

fn enters(node: &mut Node) -> u64 {
    let line = line(node);
    node.mean(|node, nth| {
        let status = enter(node, &line, nth);
        assert_eq!(status.state, State::Waiting);
    })
}

fn statuses(node: &mut Node) -> u64 {
    let line = line(node);
    let tickets = (0..WARM_UP + COUNTED).map(|nth| enter(node, &line, nth).ticket.unwrap());
    let tickets: Vec<_> = tickets.collect();
    node.mean(|node, nth| {
        let ticket = tickets[nth as usize].clone();
        let body = StatusRequest::new(TokenBy::Ticket(ticket));
        let headers = [("Nowserving-Timeout-Ms", "5000")];
        let status: StatusReply = node.ask(Operation::Status, &line, &body, &headers);
        assert!(status.position.is_some());
    })
}

fn checks(node: &mut Node) -> u64 {
    let apply = ApplyRules {
        rules: RULES.to_owned(),
        ..ApplyRules::default()
    };
    let domain = name("shop");
    let _: RulesChanged = node.ask(Operation::LimitApply, &domain, &apply, &[]);
    let texts = node.rules.clone().unwrap();
    let known = KnownRules::of(&texts, None, |_, text| Rules::parse(text).unwrap());
    let known = Arc::new(known);
    node.gather(|gather, now| gather.learn(known, now));
    node.mean(|node, nth| {
        let user = format!("user-{}", nth % 100);
        let body = Check::new(vec![vec![Entry::new("user", user)]]);
        assert!(node.check(&domain, &body).allowed);
    })
}
