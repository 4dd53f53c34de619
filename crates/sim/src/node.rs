//! A node: the real engine, and around it what the daemon does, in the simulation's time. A persister
//! and a maker of snapshots work beside the loop, as its threads do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use nowserving_engine::envelope::Welcome;
use nowserving_engine::{Boot, Config, Engine, ExitReason, Input, Output};
use nowserving_front::cluster::founding::Doubt;
use nowserving_front::cluster::identity::{Configured, Identity};
use nowserving_front::cluster::joining::{self, Renumbering};
use nowserving_front::cluster::peers::{Incoming, Origin, Outgoing, PeerList};
use nowserving_front::cluster::witness::{Connections, Witness};
use nowserving_front::cluster::{File, members_file};
use nowserving_log::{Crash, LogStore as _};
use nowserving_protocol::admin::Mapping;
use nowserving_replica::{ConfState, EntryReader, Write};

use crate::clock::Clock;
use crate::disk::{CLUSTER, Disk, FIRST_NODES};
use crate::env::{Env, FullDisk};
use crate::faults::Fault;
use crate::founding::Founds;
use crate::nats::NodeId;
use crate::peers::{MAX_PAYLOAD_MIN, PREFIX};
use crate::service::Service;
use crate::timeline::Time;
use crate::world::{Event, Process};

/// Between two looks at the size of the log.
const PURGE_US: Time = 1_000_000;
/// A slow sync takes so long at most: a disk that is well again must show it before its run ends.
const SLOW_SYNC_US_MAX: Time = 3_000_000;
/// Inputs that one turn takes at most.
const TURN_INPUTS_MAX: usize = 256;

/// How a cluster of a run is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The number of shards.
    pub shards: u32,
    /// Between heartbeats.
    pub heartbeat_ms: u64,
    /// Before an election.
    pub election_ms: u64,
    /// Between snapshots.
    pub snapshot_entries: u64,
    /// The size past which a log keeps nothing for nodes that are away.
    pub log_bytes_max: u64,
}

/// A machine, whether or not its node runs.
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// The number in its configuration; `None`: it joined later.
    pub configured: Option<NodeId>,
    /// Its clocks.
    pub clock: Clock,
    /// Its disk.
    pub disk: Disk,
    /// Its process.
    pub running: Option<Running>,
    /// Its process, before it has begun.
    pub founds: Option<Founds>,
    /// How often it was started.
    pub starts: u64,
    /// Until when its process stands still.
    pub paused_until: Option<Time>,
    /// What happened to the process while it stood still.
    pub deferred: VecDeque<Event>,
    /// It was removed from the cluster, and has ended.
    pub removed: bool,
    /// The cluster's answer to a node that asked to be added: it ended to start anew under this number.
    pub welcome: Option<Welcome>,
}

/// A node's process.
pub struct Running {
    /// Which start of it.
    pub start: u64,
    /// The engine.
    pub engine: Engine,
    /// What the loop has not taken yet.
    inbox: VecDeque<Input>,
    /// When the next turn is planned.
    turn_at: Option<Time>,
    /// What it listens on.
    pub service: Service,
    /// The nodes that it exchanges frames with.
    pub peers: PeerList,
    /// What its frames say of it.
    pub origin: Origin,
    /// Frames to each peer.
    pub outgoing: BTreeMap<NodeId, Outgoing>,
    /// Frames from all peers.
    pub incoming: Incoming,
    /// Peers to which it is about to open a direct link.
    pub opening: BTreeSet<NodeId>,
    /// Asks for a new number when it needs one.
    pub renumbering: Renumbering,
    /// Asks whether the cluster existed before this node founded it.
    pub doubt: Option<Doubt>,
    /// When these ask next.
    pub questions_at: Option<Time>,
    /// Its peers' service connections, from their frames.
    pub connections: Connections,
    /// What each server says of them.
    pub witnesses: [Witness; 2],
    /// The number of its own, as the engine knows it.
    known_connection: u64,
    to_write: VecDeque<Job>,
    writing: bool,
    /// What its client library lets through in one message: learned when it connects.
    pub max_payload: usize,
    /// Its engine was told that the disk is full.
    disk_full: bool,
    /// The loop has seen a full inbox.
    pub crowded: bool,
    /// Snapshots that it keeps for downloads.
    pub downloads: BTreeSet<String>,
}

/// Work for the persister.
#[derive(Debug)]
enum Job {
    Write(Vec<Write>),
    Compact { shard: u32, through: u64 },
}

/// What a finished batch of the persister came to.
#[derive(Clone, Debug)]
pub struct Written {
    numbers: Vec<(u32, u64)>,
    writes: usize,
    sync: bool,
}

impl Node {
    /// A machine that was never started.
    #[must_use]
    pub fn new(id: NodeId, configured: Option<NodeId>, clock: Clock, disk: Disk) -> Node {
        Node {
            id,
            configured,
            clock,
            disk,
            running: None,
            founds: None,
            starts: 0,
            paused_until: None,
            deferred: VecDeque::new(),
            removed: false,
            welcome: None,
        }
    }

    /// Whether its process runs and does not stand still.
    #[must_use]
    pub fn is_awake(&self) -> bool {
        self.running.is_some() && self.paused_until.is_none()
    }

    /// The process begins; false if it refuses to, as its disk is damaged.
    pub fn begin(&mut self, env: &mut Env, setup: &Setup, identity: Identity) -> bool {
        let (id, start) = (self.id, self.starts);
        let mut restored = match self.disk.open(setup.shards, identity.joined) {
            Ok(restored) => restored,
            Err(why) => {
                env.note(format_args!("n{id}: does not start: {why}"));
                return false;
            }
        };
        let config = Config {
            id,
            nodes: FIRST_NODES.to_vec(),
            members: self.disk.files.members(),
            cluster: CLUSTER.to_owned(),
            shards: setup.shards,
            prefix: PREFIX.to_owned(),
            heartbeat_ms: setup.heartbeat_ms,
            election_ms: setup.election_ms,
            snapshot_entries: setup.snapshot_entries,
            log_bytes_max: setup.log_bytes_max,
            metrics_addr: None,
            version: "sim".to_owned(),
            entry_format: env.builds.entry_format(id),
            max_payload_min: MAX_PAYLOAD_MIN,
            seed: env.random.next(),
            draw_secret: nowserving_line::Secret(std::array::from_fn(|_| env.random.next() as u8)),
        };
        for shard in &mut restored {
            if let Err(why) = shard.replay(&*self.disk.log, config.entry_format) {
                env.note(format_args!("n{id}: does not start: {why}"));
                return false;
            }
        }
        let now = self.clock.read(env.timeline.now());
        let boot = Boot {
            start: identity.starts.first().copied().unwrap_or_default(),
            is_candidate: identity.candidate != 0,
            disk_refused: Some(identity.refused.clone()).filter(|it| !it.is_empty()),
        };
        let version = self.disk.files.members().version;
        let known = self.disk.files.peers();
        let known = known.wary(identity.joined, version, false);
        let origin = Origin {
            cluster: CLUSTER.to_owned(),
            me: id,
            disk_id: identity.disk_id,
            boots: identity.boots,
            starts: identity.starts.clone(),
            metrics_addr: String::new(),
            link_addr: match env.takes_links {
                true => format!("tcp://node-{id}"),
                false => String::new(),
            },
            shards: setup.shards,
            prefix: PREFIX.to_owned(),
            nodes: FIRST_NODES.to_vec(),
            election_ms: setup.election_ms,
            version: "sim".to_owned(),
        };
        let reader: Arc<dyn EntryReader> = self.disk.log.clone();
        let engine = match Engine::new(config, boot, restored, &reader, now) {
            Ok(engine) => engine,
            Err(why) => {
                env.violated("S6", format!("node {id} does not start: {why}"));
                return false;
            }
        };
        env.note(format_args!("n{id}: starts for the {start}. time"));
        self.running = Some(Running {
            start,
            engine,
            inbox: VecDeque::new(),
            turn_at: None,
            service: Service::new(setup.shards, id, env.random.next()),
            peers: PeerList::default(),
            incoming: Incoming::new(origin.clone(), known),
            outgoing: BTreeMap::new(),
            opening: BTreeSet::new(),
            origin,
            renumbering: Renumbering::new(identity, env.random.next(), String::new()),
            doubt: None,
            questions_at: None,
            connections: Connections::new(),
            witnesses: [Witness::new(id), Witness::new(id)],
            known_connection: 0,
            to_write: VecDeque::new(),
            writing: false,
            max_payload: 0,
            disk_full: false,
            crowded: false,
            downloads: BTreeSet::new(),
        });
        env.starts.insert(id, start);
        let delay = env.nats_delay();
        env.timeline.after(delay, Event::Connect { node: id });
        self.process_event(env, 0, Process::Probe);
        self.process_event(env, 0, Process::Witness);
        self.learn_mapping(env);
        self.learn_max_payload(env);
        self.process_event(env, PURGE_US, Process::Purge);
        self.look_at_disk(env);
        self.plan_turn(env, 0);
        true
    }

    /// Counts a start, and returns whose disk it is; `None`: another node's.
    pub fn count_start(&mut self, env: &mut Env, setup: &Setup) -> Option<Identity> {
        self.starts += 1;
        let files = &mut self.disk.files;
        let known = files.identity();
        let joined_as = known.as_ref().map(Identity::configured);
        let configured = Configured {
            cluster: CLUSTER,
            id: self.configured.or(joined_as)?,
            shards: setup.shards,
            nodes: &FIRST_NODES,
        };
        let mut identity = known.unwrap_or_else(|| Identity::new(configured, env.random.next()));
        if let Err(mismatch) = identity.compare(configured) {
            env.violated("S6", format!("node {} does not start: {mismatch}", self.id));
            return None;
        }
        identity.count_start(env.random.next());
        files.write_identity(&identity);
        Some(identity)
    }

    /// The node finds out what the server does with plain requests.
    pub fn learn_mapping(&mut self, env: &mut Env) {
        let mapping = match env.mapped {
            true => Mapping::Ok,
            false => Mapping::Missing,
        };
        self.push(env, Input::Mapping(mapping));
    }

    /// The node connects (again) for its frames, and so learns what the server takes in one message.
    pub fn learn_max_payload(&mut self, env: &mut Env) {
        let bytes = env.max_payload;
        if let Some(running) = &mut self.running
            && running.max_payload != bytes
        {
            running.max_payload = bytes;
            self.push(env, Input::MaxPayload(bytes));
        }
    }

    /// The node notices that little room is left.
    pub fn look_at_disk(&mut self, env: &mut Env) {
        if env.full_disks.get(&self.id) == Some(&FullDisk::Reserve) {
            self.tell_disk_full(env, true);
        }
    }

    /// Its disk is no longer full: the write that waits is made.
    pub fn has_room(&mut self, env: &mut Env) {
        self.tell_disk_full(env, false);
        if self.is_awake() {
            self.write_next(env);
        }
    }

    fn tell_disk_full(&mut self, env: &mut Env, full: bool) {
        if let Some(running) = &mut self.running
            && running.disk_full != full
        {
            running.disk_full = full;
            self.push(env, Input::DiskFull(full));
        }
    }

    /// Enters an event of this start of the process.
    pub fn process_event(&self, env: &mut Env, delay: Time, what: Process) {
        if let Some(running) = &self.running {
            let event = Event::Process {
                node: self.id,
                start: running.start,
                what,
            };
            env.timeline.after(delay, event);
        }
    }

    /// The process is gone, with the power (`crash`) or without.
    pub fn end(&mut self, env: &mut Env, power_lost: bool) {
        let id = self.id;
        (self.running, self.founds) = (None, None);
        self.paused_until = None;
        self.deferred.clear();
        env.starts.remove(&id);
        env.disconnect(id);
        env.end_links(id, power_lost);
        let unsynced = self.disk.log.unsynced();
        let mut crash = Crash {
            keep_batches: unsynced,
            keep_shards: 0,
        };
        if power_lost && unsynced > 0 && env.strikes(Fault::UnsyncedLost) {
            crash.keep_batches = env.random.below(unsynced as u64) as usize;
            if env.strikes(Fault::TornTail) {
                crash.keep_shards = env.random.between(1, 3) as usize;
            }
        }
        self.disk.crash(crash);
        if power_lost && env.strikes(Fault::UnsyncedLost) {
            self.disk.tear_incoming(env.random.next());
        }
    }

    /// Gives the loop something to take.
    pub fn push(&mut self, env: &mut Env, input: Input) {
        if let Some(running) = &mut self.running {
            running.inbox.push_back(input);
            let delay = env.random.below(150);
            self.plan_turn(env, delay);
        }
    }

    /// A turn in so long, unless there is one sooner.
    fn plan_turn(&mut self, env: &mut Env, delay: Time) {
        let at = env.timeline.now() + delay;
        let Some(running) = &mut self.running else {
            return;
        };
        if running.turn_at.is_none_or(|planned| at < planned) {
            running.turn_at = Some(at);
            self.process_event(env, delay, Process::Turn { planned: at });
        }
    }

    /// One turn of the loop: what it came to, to be carried out.
    pub fn turn(&mut self, env: &mut Env, planned: Time) -> Vec<Output> {
        let now = self.clock.read(env.timeline.now());
        let Some(running) = &mut self.running else {
            return Vec::new();
        };
        if running.turn_at != Some(planned) {
            return Vec::new();
        }
        running.turn_at = None;
        let mut outputs = Vec::new();
        let number = env.connection_number(self.id);
        if std::mem::replace(&mut running.known_connection, number) != number {
            env.steps += 1;
            let input = Input::ConnectionNumber(number);
            running.engine.step(now, input, &mut outputs);
        }
        for _ in 0..TURN_INPUTS_MAX {
            let Some(input) = running.inbox.pop_front() else {
                break;
            };
            env.steps += 1;
            env.hear(self.id, &input);
            running.engine.step(now, input, &mut outputs);
        }
        if std::mem::take(&mut running.crowded) {
            env.steps += 1;
            let input = Input::RequestsDropped;
            running.engine.step(now, input, &mut outputs);
        }
        let inbox_empty = running.inbox.is_empty() && running.service.is_drained();
        env.steps += 1;
        let end_turn = Input::EndTurn { inbox_empty };
        running.engine.step(now, end_turn, &mut outputs);
        let next = match running.inbox.is_empty() {
            true => self.clock.when(running.engine.next_due()),
            false => 0,
        };
        let least = env.timeline.now() + 50;
        let delay = next.max(least) - env.timeline.now();
        self.plan_turn(env, delay);
        outputs
    }

    /// Does what a turn came to.
    pub fn carry_out(&mut self, env: &mut Env, outputs: Vec<Output>) {
        for output in outputs {
            self.carry_out_one(env, output);
        }
        self.write_next(env);
    }

    fn carry_out_one(&mut self, env: &mut Env, output: Output) {
        let id = self.id;
        match output {
            Output::Reply { to, result } => {
                let result = result.map(|outcome| self.backup_outcome(env, outcome));
                self.reply(env, &to, result);
            }
            Output::RelayReply { to, answer, .. } => self.relay(env, &to, answer),
            Output::Event(_) | Output::Serves(_) | Output::Drop(_) => {}
            Output::Rules(texts) => self.learn_rules(env, &texts),
            Output::Members { wanted, peers } => {
                env.note(format_args!("n{id}: {wanted:?}, peers {peers:?}"));
                let file = members_file::write(&wanted.to_bytes());
                self.disk.files.write(File::Members, file);
                self.learn_nodes(peers.clone());
                if let Some(running) = &mut self.running {
                    running.peers = PeerList {
                        ids: peers,
                        members: wanted,
                    };
                }
            }
            Output::Welcome(welcome) => {
                let link = env.link.clone();
                let around = (&link.keys.joining, &link.subjects);
                env.publish_to_all(joining::welcome(&welcome, around));
            }
            Output::Frame { to, batch } => self.send_frame(env, to, batch),
            Output::Persist(writes) => self.queue_job(Job::Write(writes)),
            Output::Compact { shard, through } => self.queue_job(Job::Compact { shard, through }),
            Output::WriteSnapshot {
                shard,
                index,
                members,
            } => {
                let delay = env.random.around(30_000);
                let what = Process::MakeSnapshot {
                    shard,
                    index,
                    members,
                };
                self.process_event(env, delay, what);
            }
            Output::OpenIncoming { .. }
            | Output::StoreIncoming { .. }
            | Output::DropIncoming { .. }
            | Output::InstallSnapshot { .. }
            | Output::ReadSnapshot { .. } => self.transfer_soon(env, output),
            Output::Forward(forward) => {
                env.forwards_sent += 1;
                self.forward(env, forward);
            }
            Output::Subscribe {
                shard,
                subscription,
            } => {
                env.note(format_args!("n{id}: shard {shard}: {subscription:?}"));
                self.subscribe(env, shard, subscription);
            }
            Output::Standing(standing) => {
                env.note(format_args!("n{id}: {standing:?}"));
                self.listen_plain(env, standing.is_in_touch());
                self.note_standing(env, &standing);
            }
            Output::Exit(reason) => self.exit(env, &reason),
        }
    }

    fn exit(&mut self, env: &mut Env, reason: &ExitReason) {
        let id = self.id;
        env.note(format_args!("n{id}: ends: {reason:?}"));
        self.end_gathering(env);
        env.flush(id);
        match reason {
            ExitReason::Stopped => {}
            ExitReason::Removed => {
                self.removed = true;
                return self.end(env, false);
            }
            ExitReason::ReadFailed(_) if self.disk.is_log_damaged() => {}
            ExitReason::StateDiffers(_) | ExitReason::EntryUnreadable(_) => {
                env.violated("S4", format!("node {id} ends: {reason:?}"));
            }
            _ => env.violated("S6", format!("node {id} ends: {reason:?}")),
        }
        self.end(env, false);
        let delay = env.random.around(500_000);
        env.timeline.after(delay, Event::StartNode { node: id });
    }

    fn queue_job(&mut self, job: Job) {
        if let Some(running) = &mut self.running {
            running.to_write.push_back(job);
        }
    }

    /// The persister takes all that waits, and is done with it in a while.
    fn write_next(&mut self, env: &mut Env) {
        let id = self.id;
        let Some(running) = &mut self.running else {
            return;
        };
        if running.writing || running.to_write.is_empty() {
            return;
        }
        let no_room = env.full_disks.get(&id) == Some(&FullDisk::Nothing);
        #[cfg(feature = "bite")]
        let (no_room, forgets) = match nowserving_bite::is(nowserving_bite::Break::S6Room) {
            true => (false, no_room),
            false => (no_room, false),
        };
        if no_room {
            if !running.disk_full {
                env.counts.add(Fault::WriteWaits);
            }
            return self.tell_disk_full(env, true);
        }
        let mut writes = Vec::new();
        let mut written = Written {
            numbers: Vec::new(),
            writes: 0,
            sync: false,
        };
        let mut compact = Vec::new();
        for job in running.to_write.drain(..) {
            match job {
                Job::Write(batch) => {
                    written.writes += 1;
                    writes.extend(batch);
                }
                Job::Compact { shard, through } => compact.push((shard, through)),
            }
        }
        let mut numbers: BTreeMap<u32, u64> = BTreeMap::new();
        for write in &writes {
            numbers.insert(write.shard, write.number);
            written.sync |= write.must_sync;
        }
        written.numbers = numbers.into_iter().collect();
        #[cfg(feature = "bite")]
        if forgets {
            writes.clear();
        }
        let failed = (written.sync && env.strikes(Fault::SyncFailed)) || {
            self.disk.write(&writes);
            compact.into_iter().any(|(shard, through)| {
                nowserving_log::LogStore::compact(&*self.disk.log, shard, through).is_err()
            })
        };
        if failed {
            env.note(format_args!("n{id}: a write fails, the node ends"));
            self.end(env, true);
            let delay = env.random.around(1_000_000);
            return env.timeline.after(delay, Event::StartNode { node: id });
        }
        running.writing = true;
        let slow_us = env.slow_disks.get(&id).copied().unwrap_or(0);
        let delay = match written.sync {
            true => {
                let slow_us = env.random.around(slow_us).min(SLOW_SYNC_US_MAX);
                env.random.around(env.calm.sync_us) + slow_us
            }
            false => env.random.around(100),
        };
        if delay >= 300_000 {
            env.counts.add(Fault::SyncTakes300Ms);
        }
        self.process_event(env, delay, Process::Written(written));
    }

    /// The persister is done.
    pub fn written(&mut self, env: &mut Env, written: Written) {
        if written.sync {
            self.disk.log.sync();
        }
        if let Some(running) = &mut self.running {
            running.writing = false;
        }
        if written.writes > 0 {
            let input = Input::Persisted {
                numbers: written.numbers,
                writes: written.writes,
            };
            self.push(env, input);
        }
        self.write_next(env);
    }

    /// The log is looked at: is it over its size?
    pub fn purge(&mut self, env: &mut Env) {
        if let Ok(shards) = self.disk.log.purge()
            && !shards.is_empty()
        {
            let log_bytes = self.disk.log.stats().used_bytes;
            self.push(env, Input::FilesPinned { shards, log_bytes });
        }
        self.process_event(env, PURGE_US, Process::Purge);
    }

    /// The maker of snapshots makes one.
    pub fn make_snapshot(&mut self, env: &mut Env, shard: u32, index: u64, members: ConfState) {
        let id = self.id;
        let no_room = env.full_disks.get(&id) == Some(&FullDisk::Nothing);
        let made = match no_room || env.strikes(Fault::SnapshotFailed) {
            true => None,
            false => {
                let superseded = self.disk.newest(shard).is_ok_and(|(own, _)| own >= index);
                let made = match superseded {
                    true => Ok(None),
                    false => self.disk.make_snapshot(shard, index, members).map(Some),
                };
                match made.and_then(|bytes| self.disk.keep_snapshot(shard, bytes)) {
                    Ok(written) => written,
                    Err(why) if self.disk.is_log_damaged() => {
                        env.note(format_args!("n{id}: ends: {why}"));
                        self.end(env, false);
                        return env.timeline.after(500_000, Event::StartNode { node: id });
                    }
                    Err(why) => {
                        return env.violated(
                        "S17",
                        format!("node {id} cannot make a snapshot of shard {shard} at {index}: {why}"),
                    );
                    }
                }
            }
        };
        env.note(format_args!(
            "n{id}: snapshot of shard {shard} at {index}: {}",
            made.is_some()
        ));
        let input = Input::SnapshotWritten {
            shard,
            written: made,
        };
        self.push(env, input);
    }
}
