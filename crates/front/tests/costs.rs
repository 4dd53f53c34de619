//! What one request costs the node that answers it: memory allocations from the message to the encoded answer.
//!
//! A count is the same on every machine. `costs.txt` has what is allowed; more by over 3 % fails, with the line to put if
//! it is meant. `cargo xtask cost` shows the figures, and `cargo xtask cost --write` puts them there.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
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
use nowserving_protocol::codec::{Format, decode, encode};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::keys::{ClusterKey, KeyRing};
use nowserving_protocol::limits::{ApplyRules, Check, CheckReply, Entry};
use nowserving_protocol::operation::Operation;
use nowserving_protocol::subject::Subjects;
use nowserving_protocol::user::{Enter, Key, StatusReply, StatusRequest, TokenBy};
use nowserving_replica::{ConfState, EntryReader, Restored, SnapshotMeta, Write};
use nowserving_shard::command;
use nowserving_shard::limits::RuleTexts;
use nowserving_shard::members::Members;
use nowserving_shard::state::State as ShardState;
use serde::Serialize;

/// Requests before the one that counts, so that tables have their size.
const WARM_UP: u64 = 2_000;
/// Requests that count: the mean of them.
const COUNTED: u64 = 1_000;
/// A cost may be so much more than what is written down.
const TOLERANCE_PERCENT: u64 = 3;

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000}}
";

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
            },
            state: ShardState::default(),
            file: None,
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

    /// Counts what is allocated meanwhile.
    fn counted<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> T {
        let mut result = None;
        let counted = measure(|| result = Some(run(self)));
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
    fn ask<R: for<'de> serde::Deserialize<'de>>(
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
        let outputs = self.counted(|node| {
            step(&mut node.gather, node.now);
            node.gather.take_outputs()
        });
        for output in outputs {
            match output {
                gather::Output::Engine { input, .. } => self.input(input),
                gather::Output::Reply { to, result } => {
                    let reply = result.unwrap();
                    self.answer = Some(self.counted(|_| reply.encode(to.format)));
                }
                gather::Output::Request(request) => panic!("{request:?}"),
            }
        }
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
        self.allocations = 0;
        (WARM_UP..WARM_UP + COUNTED).for_each(|nth| run(self, nth));
        self.allocations.div_ceil(COUNTED)
    }
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

fn costs() -> BTreeMap<&'static str, u64> {
    let mut node = Node::new();
    let line = name("shop-1");
    let create = serde_json::json!({"seats": 1, "queue_limit": 1_000_000});
    let _: serde_json::Value = node.ask(Operation::Create, &line, &create, &[]);
    let first = enter(&mut node, &line, u64::MAX);
    assert_eq!(first.state, State::Admitted);
    let mut tickets = Vec::new();
    let of_enter = node.mean(|node, nth| {
        let status = enter(node, &line, nth);
        assert_eq!(status.state, State::Waiting);
        tickets.push(status.ticket.unwrap());
    });
    let of_status = node.mean(|node, nth| {
        let ticket = tickets[nth as usize].clone();
        let body = StatusRequest::new(TokenBy::Ticket(ticket));
        let headers = [("Nowserving-Timeout-Ms", "5000")];
        let status: StatusReply = node.ask(Operation::Status, &line, &body, &headers);
        assert!(status.position.is_some());
    });
    let apply = ApplyRules {
        rules: RULES.to_owned(),
        ..ApplyRules::default()
    };
    let domain = name("shop");
    let _: serde_json::Value = node.ask(Operation::LimitApply, &domain, &apply, &[]);
    let texts = node.rules.clone().unwrap();
    let known = KnownRules::of(&texts, None, |_, text| Rules::parse(text).unwrap());
    let known = Arc::new(known);
    node.gather(|gather, now| gather.learn(known, now));
    let of_check = node.mean(|node, nth| {
        let user = format!("user-{}", nth % 100);
        let body = Check::new(vec![vec![Entry::new("user", user)]]);
        assert!(node.check(&domain, &body).allowed);
    });
    BTreeMap::from([
        ("allocations of a status", of_status),
        ("allocations of an enter", of_enter),
        ("allocations of a check", of_check),
    ])
}

#[test]
fn no_request_costs_more_than_is_written_down() {
    let costs = costs();
    let text = costs.iter().fold(String::new(), |mut text, (what, cost)| {
        writeln!(text, "{cost:>6}  {what}").unwrap();
        text
    });
    println!("{text}");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/costs.txt");
    if std::env::var_os("NOWSERVING_WRITE_COSTS").is_some() {
        std::fs::write(file, &text).unwrap();
        return;
    }
    let written = include_str!("costs.txt").lines().map(|line| {
        let (cost, what) = line.trim_start().split_once("  ").unwrap();
        (what, cost.parse::<u64>().unwrap())
    });
    let written: BTreeMap<&str, u64> = written.collect();
    assert!(written.keys().eq(costs.keys()), "costs.txt has other lines");
    for (what, cost) in costs {
        let most = written[what] + written[what] * TOLERANCE_PERCENT / 100;
        assert!(
            cost <= most,
            "{what}: {cost}, and costs.txt has {}: if that is meant, run `cargo xtask cost --write`, which puts\n{text}",
            written[what]
        );
    }
}
