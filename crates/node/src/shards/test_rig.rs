//! For tests: one shard of node 1 over a log in memory, with its peers played by hand. The clock
//! moves only when told; a turn's writes are durable at its end.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;

use nowserving_line::{LaneName, LaneSettings, LineName, Op};
use nowserving_log::{LogStore as _, MemoryLog};
use nowserving_protocol::codec::Format;
use nowserving_protocol::error::{ApiError, Code};
use nowserving_replica::Role;
use raft::eraftpb::{Entry, Message, MessageType};

use super::group::{Shard, Turn};
use super::outbox::Outbox;
use super::restore;
use crate::clock::monotonic_us;
use crate::config::Config;
use crate::request::{Answer, ReplyTo, Request};
use nowserving_engine::{Ask, Outcome};
use nowserving_shard::clock::{ClientReachability, Micros};

/// So long that what the clock of the machine does meanwhile does not matter.
const HEARTBEAT_MS: u64 = 10_000;
const ELECTION_MS: u64 = 60_000;
const TICK_US: Micros = HEARTBEAT_MS * 1_000 / super::TICKS_PER_HEARTBEAT;

/// Of the wall clock at first.
pub const WALL_MS: u64 = 1_766_222_333_444;

pub struct Rig {
    pub shard: Shard,
    pub log: Arc<MemoryLog>,
    pub out: Outbox,
    pub now: Micros,
    /// Goes on as the tests say, whatever the others do.
    pub wall_ms: u64,
    reachability: ClientReachability,
}

pub fn config(nodes: &[u64], data_dir: PathBuf) -> Config {
    Config {
        id: 1,
        nodes: nodes.to_vec(),
        cluster: "test".into(),
        shards: 1,
        key_file: data_dir.join("key"),
        data_dir,
        nats: String::new(),
        peer_nats: None,
        metrics_addr: None,
        prefix: "nowserving".into(),
        heartbeat_ms: HEARTBEAT_MS,
        election_ms: ELECTION_MS,
        snapshot_entries: 1_000_000,
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

impl Rig {
    pub fn new(nodes: &[u64]) -> Self {
        let nowhere = tempfile::tempdir().unwrap();
        Rig::open(nodes, nowhere.path().to_owned(), Arc::new(MemoryLog::new()))
    }

    pub fn open(nodes: &[u64], dir: PathBuf, log: Arc<MemoryLog>) -> Self {
        let now = monotonic_us();
        let store: Arc<dyn nowserving_log::LogStore> = log.clone();
        let config = config(nodes, dir.clone());
        let shard = restore::shards(&config, &dir, &store, now)
            .unwrap()
            .remove(0);
        let mut reachability = ClientReachability::new(now);
        reachability.echo(now);
        Rig {
            shard,
            log,
            out: Outbox::default(),
            now,
            wall_ms: WALL_MS,
            reachability,
        }
    }

    pub fn with<T>(&mut self, run: impl FnOnce(&mut Shard, &mut Turn<'_>) -> T) -> T {
        let mut turn = Turn {
            now: self.now,
            wall_ms: self.wall_ms,
            reachability: &self.reachability,
            out: &mut self.out,
        };
        run(&mut self.shard, &mut turn)
    }

    /// Time passes in which users can be heard, a millisecond at a time.
    pub fn pass_ms(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now += 1_000;
            self.reachability.echo(self.now);
            self.reachability.advance(self.now);
        }
    }

    /// Time passes in which nobody can be heard.
    pub fn deaf_ms(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now += 1_000;
            self.reachability.advance(self.now);
        }
    }

    /// In how many microseconds the loop would look for something to step.
    pub fn next_step_us(&self) -> Option<Micros> {
        let at = self.shard.next_step_at(&self.reachability)?;
        Some(at.saturating_sub(self.now))
    }

    /// As the loop's turn, until nothing is left to do.
    pub fn turn(&mut self) {
        self.with(|shard, turn| {
            shard.step_lines(turn);
            shard.propose(turn);
            shard.ask_for_reads(turn);
        });
        while self.shard.replica.has_ready() {
            self.with(|shard, turn| shard.ready(turn)).unwrap();
            let writes = std::mem::take(&mut self.out.writes);
            self.log.write(&writes).unwrap();
            for write in writes {
                self.with(|shard, turn| shard.persisted(write.number, turn));
            }
        }
        self.with(|shard, turn| shard.check_leading(turn));
    }

    pub fn step(&mut self, message: Message) {
        self.shard.replica.step(message, self.now).unwrap();
        self.turn();
    }

    /// Lets time pass until this node leads; peer 2 votes for it and acknowledges.
    pub fn lead(&mut self) {
        for _ in 0..200 {
            self.now += TICK_US;
            self.shard.replica.tick(self.now);
            self.turn();
            for (to, sent) in std::mem::take(&mut self.out.messages) {
                for sent in sent.into_iter().filter(|_| to == 2) {
                    self.vote(&sent.raft);
                }
            }
            if self.shard.replica.role() == Role::Leader {
                self.acknowledge();
                assert!(self.shard.leader_state.is_some());
                // A loop counts as it goes.
                self.reachability.skip(self.now);
                self.reachability.echo(self.now);
                return;
            }
        }
        panic!("not elected");
    }

    fn vote(&mut self, asked: &[u8]) {
        use protobuf::Message as _;
        let asked = Message::parse_from_bytes(asked).unwrap();
        let kind = match asked.get_msg_type() {
            MessageType::MsgRequestPreVote => MessageType::MsgRequestPreVoteResponse,
            MessageType::MsgRequestVote => MessageType::MsgRequestVoteResponse,
            _ => return,
        };
        self.step(message(kind, 2, asked.term));
    }

    /// Peer 2 has everything that this node has.
    pub fn acknowledge(&mut self) {
        if self.shard.replica.committed() == self.shard.replica.last_index() {
            return;
        }
        let term = self.shard.replica.term();
        let mut have = message(MessageType::MsgAppendResponse, 2, term);
        have.index = self.shard.replica.last_index();
        self.step(have);
    }

    /// Peer 2 leads `term` and its log has an entry of its own at `index`.
    pub fn overwrite(&mut self, term: u64, index: u64, commit: u64) {
        let mut append = message(MessageType::MsgAppend, 2, term);
        append.index = index - 1;
        append.log_term = self.shard.replica.term_at(index - 1).unwrap();
        append.commit = commit;
        let mut entry = Entry::default();
        (entry.term, entry.index) = (term, index);
        append.entries.push(entry);
        self.step(append);
    }

    pub fn ask(&mut self, ask: Ask, deadline: Micros) {
        let op = match &ask {
            Ask::Write(op) => op_word(op),
            _ => "read",
        };
        let request = Request {
            shard: 0,
            line: name("shop"),
            ask,
            reply: ReplyTo {
                subject: None,
                format: Format::Json,
                op,
                admin: false,
                taken: self.now,
                plain: None,
                doubtful: false,
            },
            deadline,
        };
        self.with(|shard, turn| shard.take(request, turn));
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
        let answers = std::mem::take(&mut self.out.answers);
        answers
            .into_iter()
            .map(|answer: Answer| answer.result)
            .collect()
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
}

fn op_word(op: &Op) -> &'static str {
    match op {
        Op::Enter { .. } => "enter",
        _ => "write",
    }
}

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
