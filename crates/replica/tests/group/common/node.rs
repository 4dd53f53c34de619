//! One node: a replica, its log, its clock, and the owner's side of a turn.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use nowserving_log::{Crash, LogStore, MemoryLog};
use nowserving_replica::{
    Committed, Micros, Payload, ReadId, Ready, Replica, Restored, SnapshotMeta, StepRefused, Write,
};
use raft::eraftpb::{ConfState, Message};

use super::{ELECTION_TICKS, Random, TICK_US, config};

/// A clock that is set differently and runs at another speed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    pub offset_us: Micros,
    /// Parts in a million.
    pub drift: i64,
}

impl Clock {
    pub fn read(&self, now: Micros) -> Micros {
        let drift = now as i64 / 1_000 * self.drift / 1_000;
        self.offset_us + (now as i64 + drift) as u64
    }
}

/// How the disk is driven.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Persist {
    /// Within the turn.
    AtOnce,
    /// Not at all, until a test does it by [`Node::write`] and [`Node::sync`].
    ByHand,
    /// Each turn with this chance of 100.
    Sometimes(u64),
}

pub struct Node {
    pub id: u64,
    pub clock: Clock,
    pub log: Arc<MemoryLog>,
    pub persist: Persist,
    replica: Option<Replica>,
    pub inbox: VecDeque<Message>,
    /// Handed out, not in the log.
    pub writes: VecDeque<Write>,
    /// In the log, not synced.
    pub written: VecDeque<u64>,
    /// The state: what was applied, from index 1 on.
    pub applied: Vec<Committed>,
    /// A snapshot on disk: the state at an earlier time.
    pub snapshot: (SnapshotMeta, Vec<Committed>),
    /// The compact floor, as replicated by commands.
    pub floor: u64,
    /// What was acknowledged when a round was asked for.
    pub asked: BTreeMap<ReadId, u64>,
    pub reads: BTreeMap<ReadId, u64>,
    pub reads_failed: Vec<ReadId>,
    pub refused: Vec<StepRefused>,
    /// The process is stopped; it resumes with the reading of the clock that it had.
    pub paused: Option<Micros>,
    /// The disk reports syncs that it did not make.
    pub lying_disk: bool,
    next_tick: Micros,
    seed: u64,
    pub starts: u64,
}

impl Node {
    pub fn new(id: u64, seed: u64) -> Node {
        Node::in_group_of(&[1, 2, 3], id, seed)
    }

    pub fn in_group_of(voters: &[u64], id: u64, seed: u64) -> Node {
        let log = MemoryLog::new();
        log.write(&[Write::first_voters(0, voters)]).unwrap();
        Node {
            id,
            clock: Clock {
                offset_us: 1_000_000 * id,
                drift: 0,
            },
            log: Arc::new(log),
            persist: Persist::AtOnce,
            replica: None,
            inbox: VecDeque::new(),
            writes: VecDeque::new(),
            written: VecDeque::new(),
            applied: Vec::new(),
            snapshot: Default::default(),
            floor: 0,
            asked: BTreeMap::new(),
            reads: BTreeMap::new(),
            lying_disk: false,
            reads_failed: Vec::new(),
            refused: Vec::new(),
            paused: None,
            next_tick: 0,
            seed,
            starts: 0,
        }
    }

    pub fn is_up(&self) -> bool {
        self.replica.is_some()
    }

    pub fn view(&self) -> &Replica {
        self.replica.as_ref().expect("node is up")
    }

    pub fn replica(&mut self) -> &mut Replica {
        self.replica.as_mut().expect("node is up")
    }

    pub fn applied_index(&self) -> u64 {
        self.applied.len() as u64
    }

    pub fn commands(&self) -> Vec<String> {
        let text = |entry: &Committed| match &entry.payload {
            Payload::Command(data) => Some(String::from_utf8(data.to_vec()).unwrap()),
            _ => None,
        };
        self.applied.iter().filter_map(text).collect()
    }

    /// What is on the disk.
    pub fn restored(&self) -> Restored {
        Restored {
            log: self.log.load(0).unwrap(),
            snapshot: self.snapshot.0.clone(),
        }
    }

    pub fn start(&mut self, now: Micros) {
        let now = self.clock.read(now);
        let restored = self.restored();
        let replica = Replica::new(&config(self.id), restored, self.log.clone(), now).unwrap();
        assert!(replica.committed() >= replica.applied(), "S6");
        self.replica = Some(replica);
        self.applied = self.snapshot.1.clone();
        self.next_tick = now + TICK_US;
        self.starts += 1;
    }

    /// A power failure: what was not synced is lost, except for what `crash` keeps.
    pub fn crash(&mut self, crash: Crash) {
        self.replica = None;
        self.paused = None;
        self.inbox.clear();
        self.writes.clear();
        self.written.clear();
        self.asked.clear();
        self.reads.clear();
        self.applied.clear();
        self.log.crash(crash);
    }

    pub fn restart(&mut self, now: Micros) {
        self.crash(Crash::default());
        self.start(now);
    }

    /// One write goes into the log, unsynced.
    pub fn write(&mut self) {
        if let Some(write) = self.writes.pop_front() {
            self.written.push_back(write.number);
            self.log.write_unsynced(&[write]).unwrap();
        }
    }

    /// The log is synced, and the replica told.
    pub fn sync(&mut self) -> Vec<Message> {
        let Some(&number) = self.written.back() else {
            return Vec::new();
        };
        self.written.clear();
        if !self.lying_disk {
            self.log.sync();
        }
        self.replica().on_persisted(number)
    }

    pub fn persist_all(&mut self) -> Vec<Message> {
        while !self.writes.is_empty() {
            self.write();
        }
        self.sync()
    }

    /// The process goes on, in the middle of the turn in which it was stopped: what came meanwhile is
    /// taken with the reading of the clock from before.
    pub fn resume(&mut self) {
        if let Some(reading) = self.paused.take() {
            self.take_inbox(reading);
        }
    }

    /// A turn as the node daemon makes it. Returns what to send, and what was handed out to apply.
    pub fn turn(&mut self, now: Micros) -> (Vec<Message>, Vec<Committed>) {
        if self.replica.is_none() || self.paused.is_some() {
            return Default::default();
        }
        let now = self.clock.read(now);
        self.ticks(now);
        let mut random = Random(self.seed ^ now ^ self.id << 32);
        let mut sent = match self.persist {
            Persist::AtOnce => self.persist_all(),
            Persist::ByHand => Vec::new(),
            Persist::Sometimes(chance) => {
                if random.chance(chance, 100) {
                    self.write();
                }
                if random.chance(chance, 100) {
                    self.sync()
                } else {
                    Vec::new()
                }
            }
        };
        self.take_inbox(now);
        let mut handed_out = Vec::new();
        self.ready(&mut sent, &mut handed_out);
        if self.persist == Persist::AtOnce {
            sent.extend(self.persist_all());
            self.ready(&mut sent, &mut handed_out);
            sent.extend(self.persist_all());
        }
        (sent, handed_out)
    }

    fn ticks(&mut self, now: Micros) {
        for _ in 0..2 {
            if now >= self.next_tick {
                self.next_tick += TICK_US;
                let term = self.view().term();
                let draw = Random(self.seed ^ self.id << 40 ^ term << 8 ^ self.starts).next();
                let ticks = ELECTION_TICKS + draw as usize % ELECTION_TICKS;
                self.replica().set_randomized_election_ticks(ticks);
                self.replica().tick(now);
            }
        }
        // Ticks missed in a stall are not made up for.
        self.next_tick = self.next_tick.max(now.saturating_sub(TICK_US));
    }

    pub fn take_inbox(&mut self, now: Micros) {
        while let Some(message) = self.inbox.pop_front() {
            if let Err(refused) = self.replica().step(message, now) {
                assert!(
                    refused.is_expected(),
                    "a correct peer was refused: {refused}"
                );
                self.refused.push(refused);
            }
        }
    }

    pub fn ready(&mut self, sent: &mut Vec<Message>, handed_out: &mut Vec<Committed>) {
        let Some(turn) = self.replica().ready().unwrap() else {
            return;
        };
        let Ready {
            send,
            write,
            committed,
            reads,
            reads_failed,
            role: _,
        } = turn;
        sent.extend(send);
        self.writes.extend(write);
        for grant in reads {
            let acknowledged = self.asked.get(&grant.id).copied().unwrap_or(0);
            assert!(
                grant.index >= acknowledged,
                "S15: a read at {} misses {acknowledged}",
                grant.index
            );
            self.reads.insert(grant.id, grant.index);
        }
        self.reads_failed.extend(reads_failed);
        for entry in committed {
            assert_eq!(entry.index, self.applied_index() + 1, "in order, once");
            if let Payload::Command(data) = &entry.payload {
                let text = std::str::from_utf8(data).unwrap();
                let floor = text
                    .split_once("floor ")
                    .and_then(|(_, floor)| floor.parse().ok());
                self.floor = self.floor.max(floor.unwrap_or(0));
            }
            self.applied.push(entry.clone());
            handed_out.push(entry);
        }
        let applied = self.applied_index();
        self.replica().on_applied(applied);
    }

    /// Writes a snapshot, and compacts the log as far as every node has it.
    pub fn snapshot_and_compact(&mut self) {
        let index = self.applied_index();
        let term = self.view().term_at(index).unwrap();
        self.snapshot = (
            SnapshotMeta {
                index,
                term,
                conf_state: ConfState {
                    voters: self.view().voters(),
                    ..ConfState::default()
                },
            },
            self.applied.clone(),
        );
        let through = self.floor.min(index);
        let through = self.replica().compact(through);
        self.log.compact(0, through).unwrap();
    }
}
