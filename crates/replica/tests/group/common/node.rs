//! One node: a replica, its log, its clock, and the owner's side of a turn.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use nowserving_log::{Crash, LogStore, MemoryLog};
use nowserving_replica::{
    BOOTSTRAP_INDEX, Committed, Micros, Payload, ReadId, Ready, Replica, Restored, SnapshotMeta,
    Write,
};
use raft::eraftpb::Message;

use super::{ELECTION_TICKS, Random, TICK_US, seeded_config};

/// How the disk is driven.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Persist {
    /// Within the turn.
    AtOnce,
    /// Not at all, until a test does it by [`Node::write`] and [`Node::sync`].
    ByHand,
}

pub struct Node {
    pub id: u64,
    pub log: Arc<MemoryLog>,
    pub persist: Persist,
    replica: Option<Replica>,
    pub inbox: VecDeque<Message>,
    /// Handed out, not in the log.
    pub writes: VecDeque<Write>,
    /// In the log, not synced.
    pub written: VecDeque<u64>,
    /// The state: all that was applied.
    pub applied: Vec<Committed>,
    /// A snapshot on disk: the state at an earlier time.
    pub snapshot: (SnapshotMeta, Vec<Committed>),
    /// Snapshots of peers.
    fetched: Vec<(SnapshotMeta, Vec<Committed>)>,
    pub reads: BTreeMap<ReadId, u64>,
    pub reads_failed: Vec<ReadId>,
    /// The process is stopped; it resumes with the reading of the clock that it had.
    pub paused: Option<Micros>,
    next_tick: Micros,
    seed: u64,
    pub starts: u64,
    /// It stands for election before all others.
    pub is_first: bool,
}

impl Node {
    pub fn new(id: u64, seed: u64) -> Node {
        Node::in_group_of(&[1, 2, 3], id, seed)
    }

    pub fn in_group_of(voters: &[u64], id: u64, seed: u64) -> Node {
        let log = MemoryLog::new();
        log.write(&[Write::bootstrap(0, voters)]).unwrap();
        Node {
            id,
            log: Arc::new(log),
            persist: Persist::AtOnce,
            replica: None,
            inbox: VecDeque::new(),
            writes: VecDeque::new(),
            written: VecDeque::new(),
            applied: Vec::new(),
            snapshot: Default::default(),
            fetched: Vec::new(),
            reads: BTreeMap::new(),
            reads_failed: Vec::new(),
            paused: None,
            next_tick: 0,
            seed,
            starts: 0,
            is_first: false,
        }
    }

    /// What its clock shows: each is set differently.
    pub fn clock(&self, now: Micros) -> Micros {
        1_000_000 * self.id + now
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
        self.applied
            .last()
            .map_or(BOOTSTRAP_INDEX, |entry| entry.index)
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
            applied: 0,
        }
    }

    pub fn start(&mut self, now: Micros) {
        let now = self.clock(now);
        let install = self.restored().complete_install(0, &*self.log).unwrap();
        self.log.write(&Vec::from_iter(install)).unwrap();
        let restored = self.restored();
        let config = seeded_config(self.id, self.seed);
        let replica = Replica::new(&config, restored, self.log.clone(), now).unwrap();
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
            self.log.write_unsynced(&[write]);
        }
    }

    /// The log is synced, and the replica told.
    pub fn sync(&mut self) -> Vec<Message> {
        let Some(&number) = self.written.back() else {
            return Vec::new();
        };
        self.written.clear();
        self.log.sync();
        let messages = self.replica().on_persisted(number);
        if let Some(meta) = self.replica().take_installed() {
            let fetched = self.fetched.iter().rfind(|(it, _)| *it == meta);
            self.applied = fetched.expect("it is on disk").1.clone();
        }
        messages.into_iter().map(Message::from).collect()
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
        let now = self.clock(now);
        self.ticks(now);
        let mut sent = match self.persist {
            Persist::AtOnce => self.persist_all(),
            Persist::ByHand => Vec::new(),
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
                let delay = draw as usize % ELECTION_TICKS;
                let ticks = ELECTION_TICKS + if self.is_first { 0 } else { delay };
                self.replica().set_randomized_election_ticks(ticks);
                self.replica().tick(now);
            }
        }
        // Ticks missed in a stall are not made up for.
        self.next_tick = self.next_tick.max(now.saturating_sub(TICK_US));
    }

    pub fn take_inbox(&mut self, now: Micros) {
        while let Some(message) = self.inbox.pop_front() {
            if let Err(refused) = self.replica().step(message.into(), now) {
                assert!(refused.is_expected(), "a correct peer: {refused}");
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
        sent.extend(send.into_iter().map(Message::from));
        self.writes.extend(write);
        self.reads
            .extend(reads.into_iter().map(|grant| (grant.id, grant.index)));
        self.reads_failed.extend(reads_failed);
        for entry in committed {
            assert_eq!(entry.index, self.applied_index() + 1, "in order, once");
            if let Payload::ConfChange(data) = &entry.payload {
                self.replica().apply_members(data).unwrap();
            }
            self.applied.push(entry.clone());
            handed_out.push(entry);
        }
        let applied = self.applied_index();
        self.replica().on_applied(applied);
    }

    /// A leader's snapshot is on this node's disk before raft gets the message about it.
    pub fn fetch(&mut self, snapshot: (SnapshotMeta, Vec<Committed>)) {
        if self.snapshot.0.index < snapshot.0.index {
            self.snapshot = snapshot.clone();
        }
        self.fetched.push(snapshot);
    }

    /// Writes a snapshot, and compacts the log through `floor`, which every node has.
    pub fn snapshot_and_compact(&mut self, floor: u64) {
        let index = self.applied_index();
        let term = self.view().term_at(index).unwrap();
        self.snapshot = (
            SnapshotMeta {
                index,
                term,
                conf_state: self.view().members(),
            },
            self.applied.clone(),
        );
        let meta = self.snapshot.0.clone();
        self.replica().offer_snapshot(meta, Vec::new());
        let through = self.replica().compact(floor);
        self.log.compact(0, through).unwrap();
    }
}
