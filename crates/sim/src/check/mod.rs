//! What must hold, checked at every step: the invariants S1 to S20 and L1 to L6.
//!
//! ```text
//! nodes' writes, messages, applied entries ─► log: S1 to S3, S6
//!                     committed entries ─► reference (the real apply) ─► S4, S17
//!                                              └─► shadow (a naive line): S7 to S10, S12, L4
//!                                              └─► ghosts: L4
//! published events ─► events: S16
//! members, groups ─► operators: S18
//! operations on key-values, and calls about them ─► kv: S19
//! checkpoints and exact hits, and calls that check limits ─► limits: S20
//! clients' calls ─► writes: S5, S13, S14; answers: S11, S15; idle: S12; liveness: L2
//! ```
//!
//! The log's order is known, so the clients' history is checked in linear time, without a search.

mod answers;
mod contents;
mod events;
mod ghosts;
mod idle;
mod kicks;
mod kv;
mod limits;
pub mod liveness;
mod log;
mod operators;
mod put_back;
mod rules;
mod shadow;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bytes::Bytes;
use nowserving_engine::{Output, PeerBatch};
use nowserving_line::{Line, Phase};
use nowserving_replica::{BOOTSTRAP_INDEX, Committed, Message};
use nowserving_shard::members::Members;
use nowserving_shard::published::OutEvent;
use nowserving_shard::snapshot;

pub use self::liveness::{HAND_OVER_US, LED_US, Traffic};

use self::answers::Answers;
use self::contents::{contents, fingerprint};
use self::events::Events;
use self::ghosts::Ghosts;
use self::idle::LastSeen;
use self::kicks::Kicks;
use self::kv::Keys;
use self::limits::LimitChecks;
use self::log::LogCheck;
use self::operators::Operators;
use self::put_back::BackedUp;
use self::shadow::Shadow;
use self::writes::Writes;
use crate::bounds;
use crate::calls::{Answer, Call, Ended, What, version_of};
use crate::env::Env;
use crate::nats::NodeId;
use crate::node::{Node, Setup};
use crate::replay::{self, Change, State};
use crate::timeline::Time;

/// The first entry of every shard's log.
const FIRST_INDEX: u64 = BOOTSTRAP_INDEX + 1;
/// Every so many entries a part of the whole state is compared, beside the short fingerprint.
const PART_EVERY: u64 = 32;

/// Nodes measure times by clocks that are off by so much (per cent).
const SLOW_CLOCK_PERCENT: u64 = 108;

/// All checkers of a run.
pub struct Checks {
    shards: Vec<ShardChecks>,
    applied: BTreeMap<(NodeId, u32), u64>,
    writes: Writes,
    answers: Answers,
    last_seen: LastSeen,
    kicks: Kicks,
    events: Events,
    keys: Keys,
    limits: LimitChecks,
    operators: Operators,
    /// Writes that were decided after everything was healed, if entries of the log were committed, too.
    pub progress: u64,
    /// Snapshots of peers that nodes have installed.
    pub snapshots_installed: u64,
}

/// Those of one shard.
struct ShardChecks {
    log: LogCheck,
    reference: State,
    shadow: Shadow,
    ghosts: Ghosts,
    /// Of the reference after each entry.
    fingerprints: Vec<u64>,
    parts: BTreeMap<u64, [u8; 32]>,
    /// Downloads, by the number under which a line of them is put back.
    backups: BTreeMap<u128, Rc<BackedUp>>,
}

/// Where an entry stands.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The shard.
    pub shard: u32,
    /// Its index.
    pub index: u64,
    /// When it came into any node's log.
    pub appended_at: Time,
    /// Since when its term has had a leader.
    pub led_since: Time,
}

impl Checks {
    /// Of a cluster that was never started.
    #[must_use]
    pub fn new(setup: &Setup) -> Checks {
        let shards = (0..setup.shards).map(|_| ShardChecks {
            log: LogCheck::default(),
            reference: bounds::first_state(),
            shadow: Shadow::default(),
            ghosts: Ghosts::default(),
            fingerprints: Vec::new(),
            parts: BTreeMap::new(),
            backups: BTreeMap::new(),
        });
        Checks {
            shards: shards.collect(),
            applied: BTreeMap::new(),
            writes: Writes::default(),
            answers: Answers::default(),
            last_seen: LastSeen::default(),
            kicks: Kicks::default(),
            events: Events::default(),
            keys: Keys::default(),
            limits: LimitChecks::new(setup.shards),
            operators: Operators::new(setup.shards),
            progress: 0,
            snapshots_installed: 0,
        }
    }

    /// Leaders after each shard's first.
    #[must_use]
    pub fn leader_changes(&self) -> u64 {
        let leaders = self.shards.iter().map(|it| it.log.leaders());
        leaders.map(|count| count.saturating_sub(1)).sum()
    }

    /// Elections of a cluster in which nothing failed, without a hand-over.
    #[must_use]
    pub fn elections_without_cause(&self) -> u64 {
        let shards = self.shards.iter();
        shards.map(|it| it.log.elections_without_cause).sum()
    }

    /// The newest members that shard 0 has decided on.
    #[must_use]
    pub fn members(&self) -> Members {
        self.operators.members()
    }

    /// The sets of voters of which each needs a majority.
    #[must_use]
    pub fn electorates(&self) -> Vec<BTreeSet<NodeId>> {
        self.operators.electorates()
    }

    /// Whether every member knows the newest voters of its groups.
    #[must_use]
    pub fn voters_are_known(&self) -> bool {
        self.operators.are_known()
    }

    /// Whether every group has the newest members.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.operators.is_complete()
    }

    /// Changes of the nodes that all shards completed.
    #[must_use]
    pub fn membership_changes(&self) -> u64 {
        self.operators.changes
    }

    /// By shard: the last entry that is committed.
    #[must_use]
    pub fn committed_through(&self) -> Vec<u64> {
        let shards = self.shards.iter();
        shards.map(|it| it.fingerprints.len() as u64).collect()
    }

    /// What nodes have done so far that a storm would multiply.
    #[must_use]
    pub fn traffic(&self, env: &Env) -> Traffic {
        Traffic {
            frames: env.frames_sent,
            forwards: env.forwards_sent,
            leaders: self.leader_changes(),
        }
    }

    /// A node has started.
    pub fn started(&mut self, env: &mut Env, node: &Node) {
        let Some(running) = &node.running else {
            return;
        };
        for shard in running.shards() {
            let replica = shard.replica;
            self.applied
                .insert((node.id, shard.shard), replica.applied());
            if replica.committed() < replica.applied() {
                env.violated(
                    "S6",
                    format!(
                        "node {} starts with shard {} committed through {} and applied through {}",
                        node.id,
                        shard.shard,
                        replica.committed(),
                        replica.applied()
                    ),
                );
            }
        }
    }

    /// A loop of a node has made a turn, which came to `outputs`; none of them is carried out yet.
    pub fn after_turn(&mut self, env: &mut Env, node: &Node, at: usize, outputs: &[Output]) {
        let now = env.timeline.now();
        let Some(running) = &node.running else {
            return;
        };
        for output in outputs {
            match output {
                Output::Persist(writes) => {
                    for write in writes {
                        if let Some(shard) = self.shards.get_mut(write.shard as usize) {
                            shard.log.appended(env, node, write, now);
                        }
                    }
                }
                Output::Frame { batch, .. } => self.sends(env, node, batch),
                Output::Reply { to, .. } => {
                    if let Some(given_back) = env.hits.gave_back(node.id, output) {
                        let asked_at = node.clock.when(to.taken);
                        let mut shards = running.shards();
                        let shard = shards.find(|it| it.shard == given_back.shard);
                        let term = shard.map_or(0, |it| it.replica.term());
                        self.limits.gave_back(&given_back, term, asked_at, now);
                    }
                }
                _ => {}
            }
        }
        let Some(of_loop) = running.loops.get(at) else {
            return;
        };
        of_loop.acts_on_a_new_decision(env, node);
        for shard in of_loop.engine.shards() {
            let (id, replica) = (shard.shard, shard.replica);
            if let Some(checks) = self.shards.get_mut(id as usize) {
                checks.log.role(env, node.id, id, replica);
            }
            let before = self.applied.insert((node.id, id), replica.applied());
            let before = before.unwrap_or(0);
            if replica.applied() > before {
                let from = self.installed(env, node, id, before);
                self.applied(env, node, id, (from, replica.applied()));
                let invariant = if from > before { "S17" } else { "S4" };
                let applied = replica.applied();
                self.same_state(env, invariant, (node.id, id), applied, shard.state);
                let group = replica.members();
                let checks = self.shards.get(id as usize);
                let held = |of| checks.map_or(0, |checks| checks.log.held(of));
                self.operators
                    .group(env, (node.id, id), replica.applied(), group, held);
                if shard.leads_ready {
                    let (from, to) = (from + 1, replica.applied());
                    let own = |index: &u64| replica.term_at(*index) == Some(replica.term());
                    let applied = (from..=to).filter(own);
                    let keys = &self.keys;
                    keys.published(env, node, id, applied.clone(), outputs);
                    self.events.none_left_out(env, node, id, applied, outputs);
                }
            }
            if shard.leads_ready {
                let applied = (replica.term(), replica.applied());
                self.limits.leader_applied(id, applied, now);
            }
        }
        for output in outputs {
            if let Output::Event(OutEvent::Kv(event)) = output {
                self.keys.is_true(env, node, event);
            } else if let Output::Event(event) = output {
                let shards = &self.shards;
                let shadow = |shard: u32| shards.get(shard as usize).map(|it| &it.shadow);
                self.events.published(env, node, event, &shadow);
            }
        }
    }

    fn sends(&mut self, env: &mut Env, node: &Node, batch: &PeerBatch) {
        for message in &batch.messages {
            let shard = message.shard;
            let Ok(raft) = Message::decode(&message.raft) else {
                continue;
            };
            log::promises(env, node, shard, &raft);
            if let Some(shard) = self.shards.get_mut(shard as usize) {
                shard.log.sent(&raft);
            }
        }
    }

    /// S17: if a node has installed a snapshot, then of what is committed. Returns the last entry before those
    /// that it has applied from its log.
    fn installed(&mut self, env: &mut Env, node: &Node, id: u32, before: u64) -> u64 {
        let start = node.disk.log(id).load_durable(id).start;
        if start.index <= before {
            return before;
        }
        self.snapshots_installed += 1;
        let shard = self.shards.get(id as usize);
        if !shard.is_some_and(|shard| shard.log.is_committed(start.index, start.term)) {
            let (node, index) = (node.id, start.index);
            let what = format!(
                "node {node} installs a snapshot of shard {id} at {index}, which nobody has committed"
            );
            env.violated("S17", what);
        }
        start.index
    }

    /// A node has applied the entries after `from`, through `to`.
    fn applied(&mut self, env: &mut Env, node: &Node, id: u32, (from, to): (u64, u64)) {
        if from == to {
            return;
        }
        let entries = match node.disk.log(id).entries_as_written(id, from + 1, to + 1) {
            Ok(entries) => entries,
            Err(error) => {
                let what = format!(
                    "node {} has applied what is not in its log: {error}",
                    node.id
                );
                return env.violated("S6", what);
            }
        };
        let durable = node.disk.log(id).load_durable(id).last_index;
        for entry in entries {
            if entry.index > durable {
                let (node, index) = (node.id, entry.index);
                let what =
                    format!("node {node} has applied entry {index} of shard {id}, not synced");
                return env.violated("S6", what);
            }
            let Some(shard) = self.shards.get_mut(id as usize) else {
                return;
            };
            let entry = Committed::from(entry);
            let is_new = shard.log.committed(env, node.id, id, &entry);
            if is_new && env.violations.is_empty() {
                self.committed(env, id, &entry);
            }
        }
    }

    /// An entry is committed, the next one of its shard.
    fn committed(&mut self, env: &mut Env, id: u32, entry: &Committed) {
        let Some(shard) = self.shards.get_mut(id as usize) else {
            return;
        };
        let place = place(&shard.log, id, entry);
        let now = env.timeline.now();
        let ShardChecks {
            reference,
            shadow,
            ghosts,
            backups,
            ..
        } = shard;
        let (writes, answers) = (&mut self.writes, &mut self.answers);
        let (last_seen, events) = (&mut self.last_seen, &mut self.events);
        let (kicks, keys, limits) = (&mut self.kicks, &mut self.keys, &mut self.limits);
        limits.entry(env, place, entry.term);
        // A leader whose disk is full still changes the members.
        let mut is_of_members = true;
        let applied = replay::apply(reference, entry, &mut |change| {
            is_of_members = false;
            match change {
                Change::Operation(applied) => {
                    shadow.applied(env, place, applied);
                    kicks.applied(env, place, applied, shadow);
                    events.happened(place, applied.events, applied.state);
                    last_seen.applied(env, place, applied);
                    ghosts.applied(place, applied);
                    answers.applied(place, applied.op.line(), applied.state);
                    writes.applied(env, place, applied);
                }
                Change::PutBack(put_back) => {
                    let (name, state) = (&put_back.command.line, put_back.state);
                    let backup = backups.get(&put_back.command.upload);
                    shadow.put_back(env, place, &put_back, backup.map(Rc::as_ref));
                    events.happened(place, put_back.events, state);
                    if let Some(line) = state.lines().get(name) {
                        last_seen.put_back(now, line);
                        ghosts.put_back(place, line);
                    }
                    answers.applied(place, name, state);
                    writes.put_back(name);
                }
                Change::Kv(op, result, now_ms) => keys.applied(env, place, op, result, now_ms),
                Change::KvEvents(events, wall_ms) => keys.happened(env, place, events, wall_ms),
                Change::Limit(applied) => limits.applied(env, place, applied),
            }
        });
        if let Err(why) = applied {
            env.violated("S4", format!("entry {} of shard {id}: {why}", entry.index));
        }
        if !is_of_members {
            limits.entry_applied(env, place);
        }
        ghosts.entry(env, place, reference, shadow);
        self.operators.applied(env, id, reference.members());
        shard.fingerprints.push(fingerprint(&shard.reference));
        if entry.index.is_multiple_of(PART_EVERY) {
            let part = snapshot::hash_part(&shard.reference, entry.index / PART_EVERY);
            shard.parts.insert(entry.index, part);
        }
    }

    /// S4, and S17 after a snapshot was installed: a node's state is that of the reference at the same entry.
    fn same_state(
        &self,
        env: &mut Env,
        invariant: &'static str,
        (node, id): (NodeId, u32),
        applied: u64,
        state: &State,
    ) {
        let Some(shard) = self.shards.get(id as usize) else {
            return;
        };
        let expected = applied.checked_sub(FIRST_INDEX);
        let expected = expected.and_then(|at| shard.fingerprints.get(at as usize));
        let mut same = expected == Some(&fingerprint(state));
        if let Some(part) = shard.parts.get(&applied) {
            same &= snapshot::hash_part(state, applied / PART_EVERY) == *part;
        }
        if !same {
            let what =
                format!("the state of shard {id} on node {node} at {applied} is another one");
            env.violated(invariant, what);
        }
    }

    /// A client's attempt is over.
    pub fn attempt_ended(&mut self, env: &mut Env, call: usize, attempt: usize) {
        if let Some(call) = env.calls.all.get(call).cloned() {
            liveness::is_answered(env, &call, attempt);
        }
    }

    /// A client's call is over.
    pub fn call_ended(&mut self, env: &mut Env, call: usize) {
        let Some(call) = env.calls.all.get(call).cloned() else {
            return;
        };
        let Some((now, ended)) = &call.ended else {
            return;
        };
        if let What::Write(op) = &call.query.what {
            self.writes.call_ended(env, &call, op);
        }
        self.keys.call_ended(env, &call, *now, ended);
        self.limits.call_ended(env, &call, *now, ended);
        match ended {
            Ended::Ok(answer) => self.answered(env, &call, answer, *now),
            Ended::Refused(_) if !call.query.what.is_of_a_line() => {}
            Ended::Refused(code) if !call.query.what.is_local() => {
                let shadow = self.shards.get(call.query.shard as usize);
                let shadow = shadow.map(|it| &it.shadow);
                let writes = &self.writes;
                self.answers
                    .is_refused_rightly(env, &call, *code, writes, shadow);
            }
            _ => {}
        }
    }

    fn answered(&mut self, env: &mut Env, call: &Call, answer: &Answer, now: Time) {
        let query = call.query.as_ref();
        if let Some(shard) = self.shards.get(query.shard as usize) {
            answers::position_is_true(env, query, answer, &shard.shadow);
            answers::page_is_true(env, query, answer, &shard.shadow);
            answers::imported_is_true(env, query, answer, &shard.shadow);
        }
        if query.what.is_local() {
            return;
        }
        answers::misses_nothing(env, call, answer);
        if let What::Members(request) = &query.what {
            self.operators.answered(env, request, answer);
        }
        if let What::Kick(_) = query.what
            && let Some(shard) = self.shards.get(query.shard as usize)
        {
            let lines = shard.reference.lines();
            // One that is being deleted, or is closed, ends its tokens by itself.
            let open = |line: &&Line| line.deleting().is_none() && line.phase() != Phase::Closed;
            let line = lines.get(&query.line).filter(open);
            let line = line.and_then(|line| shard.shadow.line(line.incarnation()));
            self.kicks.answered(env, call, answer, line);
        }
        self.last_seen.answered(env, call, answer);
        if let What::ConfigureLines(ask) = &query.what {
            self.writes.are_acknowledged(env, call, ask, answer);
        }
        if let What::Write(op) = &query.what
            && let Some(index) = self.writes.is_acknowledged(env, call, op, answer)
        {
            self.answers.told(&query.line, index, now);
        }
        if let Some(version) = version_of(answer) {
            self.answers.told_version(&query.line, version, now);
        }
    }

    /// S17: a shard was downloaded, and is what was committed. Of its lines one is put back as this upload.
    pub fn backed_up(
        &mut self,
        env: &mut Env,
        id: u32,
        bytes: Bytes,
        upload: u128,
    ) -> Option<Rc<BackedUp>> {
        let shard = self.shards.get_mut(id as usize)?;
        let (header, state) = match bounds::decode(bytes, id) {
            Ok(read) => read,
            Err(error) => {
                env.violated("S17", format!("a backup of shard {id}: {error}"));
                return None;
            }
        };
        let (mut whole, mut shadow, mut at) = (bounds::first_state(), Shadow::default(), 0);
        for entry in shard.log.entries_through(header.index) {
            let place = place(&shard.log, id, entry);
            at = place.appended_at;
            let backups = &shard.backups;
            let applied = replay::apply(&mut whole, entry, &mut |change| match change {
                Change::Operation(applied) => shadow.applied(env, place, applied),
                Change::PutBack(put_back) => {
                    let backup = backups.get(&put_back.command.upload);
                    shadow.put_back(env, place, &put_back, backup.map(Rc::as_ref));
                }
                Change::Kv(..) | Change::KvEvents(..) | Change::Limit(..) => {}
            });
            if let Err(why) = applied {
                env.violated("S4", format!("shard {id}: {why}"));
            }
        }
        if contents(&state) != contents(&whole) {
            let index = header.index;
            let what = format!("a backup of shard {id} at {index} is not what its log gives");
            env.violated("S17", what);
        }
        let backup = Rc::new(BackedUp { state, shadow, at });
        shard.backups.insert(upload, backup.clone());
        Some(backup)
    }

    /// L1: the first shard that has no leader among these nodes.
    pub fn unled<'a>(&self, nodes: impl Iterator<Item = &'a Node>) -> Option<u32> {
        let nodes: Vec<&Node> = nodes.collect();
        liveness::unled(&nodes, self.shards.len() as u32)
    }

    /// The run is over: everything once more, with all that is known now, on these nodes.
    pub fn at_end(&mut self, env: &mut Env, nodes: &[&Node]) {
        self.writes.at_end(env);
        self.keys.at_end(env);
        self.limits.at_end(env);
        self.operators.all_completed(env);
        for (id, shard) in self.shards.iter().enumerate() {
            liveness::none_overdue(env, id, &shard.shadow, &shard.ghosts);
        }
        for node in nodes {
            let Some(running) = &node.running else {
                continue;
            };
            for shard in running.shards() {
                let (id, applied) = (shard.shard, shard.replica.applied());
                self.full_replay(env, node, id, applied, shard.state);
            }
        }
    }

    /// S4, S5, S17: the node's state, what a restart would make of its disk, and a replay of the
    /// whole committed log are the same, field by field.
    fn full_replay(&self, env: &mut Env, node: &Node, id: u32, applied: u64, state: &State) {
        let Some(shard) = self.shards.get(id as usize) else {
            return;
        };
        let mut whole = bounds::first_state();
        for entry in shard.log.entries_through(applied) {
            if let Err(why) = replay::apply(&mut whole, entry, &mut |_| {}) {
                return env.violated("S17", format!("shard {id}: {why}"));
            }
        }
        let expected = contents(&whole);
        if contents(state) != expected {
            let what = format!(
                "node {}: the state of shard {id} is not that of its log",
                node.id
            );
            env.violated("S4", what);
        }
        let on_disk = node.disk.newest(id).and_then(|(from, mut state)| {
            node.disk.replay(id, &mut state, from, applied)?;
            Ok(contents(&state))
        });
        if on_disk.as_ref() != Ok(&expected) {
            let why = on_disk.err().unwrap_or_else(|| "another state".to_owned());
            let what = format!("node {}: shard {id}: snapshot and log give {why}", node.id);
            env.violated("S17", what);
        }
    }
}

fn place(log: &LogCheck, shard: u32, entry: &Committed) -> Place {
    Place {
        shard,
        index: entry.index,
        appended_at: log.appended_at(entry.index, entry.term),
        led_since: log.led_since(entry.term),
    }
}
