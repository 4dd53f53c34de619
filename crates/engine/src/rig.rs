//! For tests: an engine of node 1 with one shard over a log in memory, its peers played by hand. The
//! clock moves only when told; a turn's writes are durable at its end.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::envelope::{SnapshotChunk, SnapshotRequest, StateHash, Verdict};
use bytes::Bytes;
use nowserving_line::{LaneName, LaneSettings, LineName, Lines, Op};
use nowserving_log::{LogStore as _, MemoryLog};
use nowserving_protocol::codec::Format;
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::keys::KeyPrint;
use nowserving_protocol::operation::Operation;
use nowserving_replica::{
    self as replica, ConfState, EntryReader, LogState, Replica, Restored, Role, SnapshotMeta, Write,
};
use nowserving_shard::clock::Micros;
use nowserving_shard::command;
use nowserving_shard::limits::RuleTexts;
use nowserving_shard::members::Members;
use nowserving_shard::published::OutEvent;
use nowserving_shard::state::State;
use raft::eraftpb::{Entry, Message, MessageType};

use crate::delivery::{Delivery, LeaderTime, ShardDelivery, Via};
use crate::engine::Engine;
use crate::frames::{FrameBody, OutMessage, PeerFrame};
use crate::io::{Boot, Config, ExitReason, ForwardTry, Input, Now, Output, RestoredShard};
use crate::loops::LoopPlace;
use crate::peers::contact::PeerHeader;
use crate::request::{Ask, Inbox, Outcome, ReplyTo, Request};
use crate::shard::Shard;

/// So long that a lease outlasts what most tests do with the clock.
const HEARTBEAT_MS: u64 = 10_000;
pub const ELECTION_MS: u64 = 60_000;
const TICK_US: Micros = HEARTBEAT_MS * 1_000 / 2;
/// This start of node 1.
pub const START: u64 = 77;
/// Of the wall clock at first.
pub const WALL_MS: u64 = 1_766_222_333_444;

pub struct Rig {
    pub engine: Engine,
    pub log: Arc<MemoryLog>,
    pub now: Micros,
    /// Goes on as the tests say, whatever the others do.
    pub wall_ms: u64,
    /// Whether the node finds its inbox empty at the end of a turn: tokens expire only then.
    pub inbox_empty: bool,
    /// Nothing that is to be written ever is.
    pub disk_is_full: bool,
    /// Peers that say that their disks are full.
    pub full_disks: BTreeSet<u64>,
    /// The newest formats of log entries that peers say they read.
    pub entry_formats: BTreeMap<u64, u32>,
    /// The cluster keys that peers say they have loaded.
    pub keys: BTreeMap<u64, Vec<KeyPrint>>,
    pub replies: Vec<Result<Outcome, ApiError>>,
    pub forwards: Vec<ForwardTry>,
    pub events: Vec<OutEvent>,
    pub sent: Vec<(u64, OutMessage)>,
    pub state_hashes: Vec<StateHash>,
    /// The rules of rate limits that the node was told.
    pub rules: Vec<RuleTexts>,
    /// What was asked of peers about snapshots.
    pub asked: Vec<SnapshotRequest>,
    /// Jobs for the threads that make and move snapshots.
    pub jobs: Vec<Output>,
    pub exit: Option<ExitReason>,
}

/// A start that was never refused.
pub const BOOT: Boot = Boot {
    start: START,
    is_candidate: false,
    disk_refused: None,
};

pub fn config(nodes: &[u64]) -> Config {
    Config {
        id: 1,
        nodes: nodes.to_vec(),
        members: Members::default(),
        cluster: "test".into(),
        shards: 1,
        place: LoopPlace::ONLY,
        prefix: "nowserving".into(),
        heartbeat_ms: HEARTBEAT_MS,
        election_ms: ELECTION_MS,
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

pub fn message(kind: MessageType, from: u64, term: u64) -> Message {
    let mut message = Message {
        from,
        to: 1,
        term,
        ..Message::default()
    };
    message.set_msg_type(kind);
    message
}

/// A message that the engine sends.
pub fn decoded(sent: &OutMessage) -> Message {
    replica::Message::decode(&sent.raft).unwrap().into()
}

impl Rig {
    /// In touch with its peers.
    pub fn new(nodes: &[u64]) -> Self {
        Rig::open(nodes, None, Arc::new(MemoryLog::new()))
    }

    /// From this snapshot and log.
    pub fn open(
        nodes: &[u64],
        snapshot: Option<(SnapshotMeta, State)>,
        log: Arc<MemoryLog>,
    ) -> Self {
        let mut rig = Rig::waiting(nodes, snapshot, log, BOOT);
        for peer in nodes.iter().filter(|id| **id != 1) {
            rig.hears(*peer, "", Vec::new());
        }
        rig
    }

    /// Nobody has accepted it yet.
    pub fn waiting(
        nodes: &[u64],
        snapshot: Option<(SnapshotMeta, State)>,
        log: Arc<MemoryLog>,
        boot: Boot,
    ) -> Self {
        let reader: Arc<dyn EntryReader> = log.clone();
        let (snapshot, state) =
            snapshot.unwrap_or_else(|| (SnapshotMeta::default(), State::default()));
        if log.load(0).unwrap() == LogState::default() {
            log.write(&[Write::bootstrap(0, nodes)]).unwrap();
        }
        let restored = RestoredShard {
            shard: 0,
            restored: Restored {
                log: log.load(0).unwrap(),
                snapshot: SnapshotMeta {
                    conf_state: ConfState::of_voters(nodes),
                    ..snapshot
                },
                applied: 0,
            },
            state,
            ..RestoredShard::default()
        };
        let now = 1_000_000_000;
        let at = Now {
            us: now,
            wall_ms: WALL_MS,
        };
        let engine = Engine::new(config(nodes), boot, vec![restored], &reader, at).unwrap();
        let mut rig = Rig {
            engine,
            log,
            now,
            wall_ms: WALL_MS,
            inbox_empty: true,
            disk_is_full: false,
            full_disks: BTreeSet::new(),
            entry_formats: BTreeMap::new(),
            keys: BTreeMap::new(),
            replies: Vec::new(),
            forwards: Vec::new(),
            events: Vec::new(),
            sent: Vec::new(),
            state_hashes: Vec::new(),
            rules: Vec::new(),
            asked: Vec::new(),
            jobs: Vec::new(),
            exit: None,
        };
        rig.input(Input::ProbeEchoed { sent_at: now });
        rig.turn();
        rig
    }

    pub fn shard(&self) -> &Shard {
        &self.engine.shards[&0]
    }

    pub fn replica(&self) -> &Replica {
        &self.shard().replica
    }

    pub fn state(&self) -> &State {
        &self.shard().state
    }

    pub fn lines(&self) -> &Lines {
        self.state().lines()
    }

    /// One step of the engine. What it writes is durable at once.
    pub fn input(&mut self, input: Input) {
        let now = Now {
            us: self.now,
            wall_ms: self.wall_ms,
        };
        let mut written = Vec::new();
        let mut outputs = Vec::new();
        self.engine.step(now, input, &mut outputs);
        for output in outputs {
            match output {
                Output::Reply { result, .. } => self.replies.push(result),
                Output::Event(event) => self.events.push(event),
                Output::Frame { to, batch } => {
                    if to == 2 {
                        self.state_hashes.extend(batch.state_hashes);
                    }
                    self.asked.extend(batch.snapshot_request);
                    self.sent
                        .extend(batch.messages.into_iter().map(|it| (to, it)));
                }
                Output::Persist(_) if self.disk_is_full => {}
                Output::Persist(writes) => {
                    self.log.write(&writes).unwrap();
                    written.push(writes.iter().map(|it| (it.shard, it.number)).collect());
                }
                Output::Rules(rules) => self.rules.push(rules),
                Output::Forward(it) => self.forwards.push(it),
                Output::Exit(reason) => self.exit = Some(reason),
                job @ (Output::WriteSnapshot { .. }
                | Output::OpenIncoming { .. }
                | Output::StoreIncoming { .. }
                | Output::DropIncoming { .. }
                | Output::InstallSnapshot { .. }
                | Output::ReadSnapshot { .. }) => self.jobs.push(job),
                _ => {}
            }
        }
        for numbers in written {
            self.input(Input::Persisted { numbers, writes: 1 });
            self.end_turn();
        }
    }

    fn end_turn(&mut self) {
        let inbox_empty = self.inbox_empty;
        self.input(Input::EndTurn { inbox_empty });
    }

    /// A turn of the node, and what follows from it at once.
    pub fn turn(&mut self) {
        self.end_turn();
        while (self.replica().has_ready() || self.has_more_to_apply()) && self.exit.is_none() {
            self.end_turn();
        }
    }

    fn has_more_to_apply(&self) -> bool {
        let mut shards = self.engine.shards.values();
        shards.any(|shard| !shard.committed.is_empty())
    }

    /// Time passes in which clients can reach this node, a millisecond at a time.
    pub fn pass_ms(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now += 1_000;
            self.input(Input::ProbeEchoed { sent_at: self.now });
            self.engine.ctx.reachability.advance(self.now);
        }
    }

    /// Time passes in which no client can.
    pub fn unreachable_ms(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now += 1_000;
            self.engine.ctx.reachability.advance(self.now);
        }
    }

    /// In how many microseconds the leader has something to do of itself.
    pub fn next_duty_us(&self) -> Option<Micros> {
        let at = self.shard().next_duty_at(&self.engine.ctx.reachability)?;
        Some(at.saturating_sub(self.now))
    }

    /// Peer `from` says this of node 1 (empty: it accepts it), and these Raft messages.
    pub fn hears(&mut self, from: u64, refused: &str, messages: Vec<Message>) {
        let frame = self.frame(from, refused, messages);
        self.receive(frame);
    }

    /// A peer asks for a part of this node's snapshot.
    pub fn is_asked(&mut self, from: u64, request: SnapshotRequest) {
        let mut frame = self.frame(from, "", Vec::new());
        frame.body.as_mut().unwrap().snapshot_request = Some(request);
        self.receive(frame);
    }

    /// Peer 2 sends a part of its snapshot.
    pub fn gets(&mut self, chunk: SnapshotChunk) {
        let mut frame = self.frame(2, "", Vec::new());
        frame.body.as_mut().unwrap().snapshot_chunk = Some(Box::new(chunk));
        self.receive(frame);
    }

    pub fn receive(&mut self, frame: PeerFrame) {
        self.input(Input::Frame(Box::new(frame)));
        self.turn();
    }

    /// A frame of peer `from`.
    pub fn frame(&self, from: u64, refused: &str, messages: Vec<Message>) -> PeerFrame {
        let verdict = Verdict {
            start: START,
            refused: refused.to_owned(),
            ..Verdict::default()
        };
        PeerFrame {
            from,
            header: PeerHeader {
                start: Some(from),
                in_touch: true,
                verdicts: vec![verdict],
                ..PeerHeader::default()
            },
            body: Ok(FrameBody {
                client_reachable: true,
                disk_full: self.full_disks.contains(&from),
                refuses_snapshots: 0,
                clock_us: self.now,
                connections: vec![0],
                closed: Vec::new(),
                lagging: Vec::new(),
                metrics_addr: String::new(),
                link_addr: String::new(),
                version: String::new(),
                entry_format: self.entry_formats.get(&from).copied().unwrap_or_default(),
                max_payload: 0,
                keys: self.keys.get(&from).cloned().unwrap_or_default(),
                messages: messages.into_iter().map(|it| (0, it.into())).collect(),
                state_hashes: Vec::new(),
                snapshot_request: None,
                snapshot_chunk: None,
            }),
        }
    }

    /// The disk of a peer is full, or has room again.
    pub fn peer_disk(&mut self, peer: u64, full: bool) {
        match full {
            true => self.full_disks.insert(peer),
            false => self.full_disks.remove(&peer),
        };
        self.hears(peer, "", Vec::new());
    }

    /// A Raft message of peer 2.
    pub fn step(&mut self, message: Message) {
        self.hears(2, "", vec![message]);
    }

    /// Lets time pass until this node has led in its lease for a tick; peer 2 votes for it and acknowledges.
    pub fn lead(&mut self) {
        self.ticks_until(|rig| rig.shard().serves_as_leader());
        self.ticks_until(|_| true);
        self.acknowledge();
        self.sent.clear();
    }

    /// Lets time pass, tick by tick, in which peer 2 votes and acknowledges, until this holds after one.
    pub fn ticks_until(&mut self, such: impl Fn(&Rig) -> bool) {
        for _ in 0..400 {
            self.now += TICK_US;
            self.engine.ctx.reachability.skip(self.now);
            self.input(Input::ProbeEchoed { sent_at: self.now });
            self.turn();
            self.answer_for_peer_2();
            if such(self) {
                return;
            }
        }
        panic!("it does not come to that");
    }

    /// What peer 2 does about the messages sent to it, if it has everything.
    pub fn answer_for_peer_2(&mut self) {
        for (to, sent) in std::mem::take(&mut self.sent) {
            let asked = decoded(&sent);
            let kind = match asked.get_msg_type() {
                _ if to != 2 => continue,
                MessageType::MsgRequestPreVote => MessageType::MsgRequestPreVoteResponse,
                MessageType::MsgRequestVote => MessageType::MsgRequestVoteResponse,
                MessageType::MsgHeartbeat => MessageType::MsgHeartbeatResponse,
                MessageType::MsgAppend => MessageType::MsgAppendResponse,
                _ => continue,
            };
            let mut answer = message(kind, 2, asked.term);
            answer.context = asked.context;
            if kind == MessageType::MsgAppendResponse {
                answer.index = self.replica().last_index();
            }
            self.step(answer);
        }
    }

    /// Peer 2 answers the heartbeats sent to it.
    pub fn confirm(&mut self) {
        for (to, sent) in std::mem::take(&mut self.sent) {
            let sent = decoded(&sent);
            if to == 2 && sent.get_msg_type() == MessageType::MsgHeartbeat {
                let mut heard = message(MessageType::MsgHeartbeatResponse, 2, sent.term);
                heard.context = sent.context;
                self.step(heard);
            }
        }
        self.sent.clear();
    }

    /// Peer 2 has everything that this node has.
    pub fn acknowledge(&mut self) {
        if self.replica().committed() == self.replica().last_index() {
            return;
        }
        let mut have = message(MessageType::MsgAppendResponse, 2, self.replica().term());
        have.index = self.replica().last_index();
        self.step(have);
    }

    /// Peer 2 leads `term` and its log has an entry of its own at `index`.
    pub fn overwrite(&mut self, term: u64, index: u64, commit: u64) {
        self.overwrite_with(term, index, commit, Bytes::new());
    }

    /// The same, and the entry has this in it.
    pub fn overwrite_with(&mut self, term: u64, index: u64, commit: u64, data: Bytes) {
        let mut append = message(MessageType::MsgAppend, 2, term);
        append.index = index - 1;
        append.log_term = self.replica().term_at(index - 1).unwrap();
        append.commit = commit;
        let mut entry = Entry::default();
        (entry.term, entry.index, entry.data) = (term, index, data);
        append.entries.push(entry);
        self.step(append);
    }

    pub fn request(&mut self, ask: Ask, deadline: Micros, via: Via) {
        let (request, delivery) = self.message(ask, deadline, via);
        self.input(Input::Request { request, delivery });
    }

    /// A request as this node gets it at this moment.
    pub fn message(&self, ask: Ask, deadline: Micros, via: Via) -> (Box<Request>, Delivery) {
        let op = match &ask {
            Ask::Write(Op::Enter { .. }) => Operation::Enter,
            Ask::Write(_) => Operation::Leave,
            _ => Operation::Info,
        };
        let request = Request {
            shard: 0,
            line: name("shop"),
            ask,
            reply: ReplyTo {
                inbox: Inbox::None,
                format: Format::Json,
                op,
                pass: false,
                taken: self.now,
                trace: None,
            },
            deadline,
            id: None,
            sent_ms: None,
            note: None,
            payload: Bytes::from_static(br#"{"anonymous":true}"#),
        };
        let delivery = Delivery {
            via,
            routed_after: self.now,
            forwarded_at: Some(LeaderTime {
                start: START,
                us: self.now,
            }),
            shared: false,
            term: None,
        };
        (Box::new(request), delivery)
    }

    /// As another node passes it on.
    pub fn ask(&mut self, ask: Ask, deadline: Micros) {
        self.request(ask, deadline, Via::Forwarded);
    }

    /// A write whose deadline is far away.
    pub fn write(&mut self, op: Op) {
        let far = self.now + 1_000_000_000_000;
        self.ask(Ask::Write(op), far);
    }

    pub fn enter(&mut self, key: &str) {
        self.write(enter(key));
    }

    pub fn answers(&mut self) -> Vec<Result<Outcome, ApiError>> {
        std::mem::take(&mut self.replies)
    }

    /// For each answer the number it gave, or the code of its error.
    pub fn numbers(&mut self) -> Vec<Result<u64, Code>> {
        let number = |result: Result<Outcome, ApiError>| match result {
            Ok(Outcome::Status { status, .. }) => Ok(status.at.token),
            Ok(_) => Ok(0),
            Err(error) => Err(error.code),
        };
        self.answers().into_iter().map(number).collect()
    }

    pub fn is_leader(&self) -> bool {
        self.replica().role() == Role::Leader
    }
}

pub const SHARD: Via = Via::Shard(ShardDelivery::Leader);

pub fn enter(key: &str) -> Op {
    Op::Enter {
        line: name("shop"),
        key: Some(key.as_bytes().into()),
        lane: None,
    }
}

pub fn name(text: &str) -> LineName {
    LineName::try_from(text).unwrap()
}

pub fn lane(text: &str) -> LaneName {
    LaneName::try_from(text).unwrap()
}

/// Lanes without any privilege.
pub fn lanes(names: &[&str]) -> Vec<LaneSettings> {
    let names = names.iter();
    names.map(|name| LaneSettings::new(lane(name))).collect()
}
