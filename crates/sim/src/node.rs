//! A node: the real engine, and around it what the daemon does, in the simulation's time. A persister
//! and a maker of snapshots work beside the loop, as its threads do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use nowserving_engine::envelope::Welcome;
use nowserving_engine::{Boot, Config, Engine, ExitReason, Input, LoopPlace, Output};
use nowserving_front::cluster::founding::Doubt;
use nowserving_front::cluster::identity::{Configured, Identity};
use nowserving_front::cluster::joining::{self, Renumbering};
use nowserving_front::cluster::peers::{Incoming, Origin, Outgoing, PeerList};
use nowserving_front::cluster::witness::{Connections, Witness};
use nowserving_front::cluster::{File, members_file};
use nowserving_log::{Crash, LogStore as _};
use nowserving_protocol::admin::Mapping;
use nowserving_replica::{ConfState, EntryReader};

use crate::clock::Clock;
use crate::disk::{CLUSTER, Disk, FIRST_NODES};
use crate::env::{Env, FullDisk};
use crate::faults::Fault;
use crate::founding::Founds;
use crate::loops::{Job, Loop};
use crate::nats::NodeId;
use crate::peers::{MAX_PAYLOAD_MIN, PREFIX};
use crate::random::Random;
use crate::service::Service;
use crate::timeline::Time;
use crate::world::{Event, Process};

/// Between two looks at the size of the log.
const PURGE_US: Time = 1_000_000;

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

impl Setup {
    /// How many loops a node has: each its own number.
    pub fn draw_loops(&self, random: &mut Random) -> u32 {
        random.between(1, u64::from(self.shards)) as u32
    }
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
    /// The first one, which decides, and others.
    pub loops: Vec<Loop>,
    /// When what a loop tells another one arrives at last, by both.
    pub crosses_at: BTreeMap<(usize, usize), Time>,
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
    /// What its client library lets through in one message: learned when it connects.
    pub max_payload: usize,
    /// Its engine was told that the disk is full.
    pub disk_full: bool,
    /// Snapshots that it keeps for downloads.
    pub downloads: BTreeSet<String>,
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
        if env.strikes(Fault::LoopsChange) {
            let loops = setup.draw_loops(&mut env.random);
            env.note(format_args!("n{id}: has {loops} loops"));
            self.disk.set_loops(loops, setup.log_bytes_max);
        }
        let mut restored = match self.disk.open(setup.shards, identity.joined) {
            Ok(restored) => restored,
            Err(why) => {
                env.note(format_args!("n{id}: does not start: {why}"));
                return false;
            }
        };
        let count = self.disk.loops();
        let config = Config {
            place: LoopPlace::ONLY,
            id,
            nodes: FIRST_NODES.to_vec(),
            members: self.disk.files.members(),
            cluster: CLUSTER.to_owned(),
            shards: setup.shards,
            prefix: PREFIX.to_owned(),
            heartbeat_ms: setup.heartbeat_ms,
            election_ms: setup.election_ms,
            snapshot_entries: setup.snapshot_entries,
            log_bytes_max: setup.log_bytes_max / u64::from(count),
            metrics_addr: None,
            version: "sim".to_owned(),
            entry_format: env.builds.entry_format(id),
            max_payload_min: MAX_PAYLOAD_MIN,
            seed: env.random.next(),
            draw_secret: nowserving_line::Secret(std::array::from_fn(|_| env.random.next() as u8)),
        };
        for shard in &mut restored {
            if let Err(why) = shard.replay(&**self.disk.log(shard.shard), config.entry_format) {
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
        let mut loops = Vec::new();
        for (at, place) in LoopPlace::all(count).enumerate() {
            let reader: Arc<dyn EntryReader> = self.disk.log_of(at).clone();
            let theirs = restored.extract_if(.., |it| place.has(it.shard)).collect();
            let config = Config {
                place,
                seed: env.random.next(),
                ..config.clone()
            };
            match Engine::new(config, boot.clone(), theirs, &reader, now) {
                Ok(engine) => {
                    let of = self.loop_id(at);
                    let service = Service::new(setup.shards, of, env.random.next());
                    loops.push(Loop::new(engine, service));
                }
                Err(why) => {
                    env.violated("S6", format!("node {id} does not start: {why}"));
                    return false;
                }
            }
        }
        env.note(format_args!("n{id}: starts for the {start}. time"));
        self.running = Some(Running {
            start,
            loops,
            crosses_at: BTreeMap::new(),
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
            max_payload: 0,
            disk_full: false,
            downloads: BTreeSet::new(),
        });
        env.starts.insert(id, start);
        for at in 0..self.loops() {
            let (of, delay) = (self.loop_id(at), env.nats_delay());
            env.timeline.after(delay, Event::Connect { of });
            self.process_event(env, at, 0, Process::Probe);
        }
        self.process_event(env, 0, 0, Process::Witness);
        self.learn_mapping(env);
        self.learn_max_payload(env);
        self.process_event(env, 0, PURGE_US, Process::Purge);
        self.look_at_disk(env);
        for at in 0..self.loops() {
            self.plan_turn(env, at, 0);
        }
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
        self.push(env, 0, Input::Mapping(mapping));
    }

    /// The node connects (again) for its frames, and so learns what the server takes in one message.
    pub fn learn_max_payload(&mut self, env: &mut Env) {
        let bytes = env.max_payload;
        if let Some(running) = &mut self.running
            && running.max_payload != bytes
        {
            running.max_payload = bytes;
            for at in 0..self.loops() {
                self.push(env, at, Input::MaxPayload(bytes));
            }
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
            for at in 0..self.loops() {
                self.write_next(env, at);
            }
        }
    }

    pub fn tell_disk_full(&mut self, env: &mut Env, full: bool) {
        if let Some(running) = &mut self.running
            && running.disk_full != full
        {
            running.disk_full = full;
            self.push(env, 0, Input::DiskFull(full));
        }
    }

    /// Enters an event of a loop of this start of the process.
    pub fn process_event(&self, env: &mut Env, at: usize, delay: Time, what: Process) {
        if let Some(running) = &self.running {
            let event = Event::Process {
                node: self.id,
                start: running.start,
                at,
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
        for at in 0..self.loops() {
            env.disconnect(self.loop_id(at));
        }
        env.end_links(id, power_lost);
        for at in 0..self.loops() {
            let log = self.disk.log_of(at);
            let unsynced = log.unsynced();
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
            log.crash(crash);
        }
        if power_lost && env.strikes(Fault::UnsyncedLost) {
            self.disk.tear_incoming(env.random.next());
        }
    }

    pub fn carry_out_one(&mut self, env: &mut Env, at: usize, output: Output) {
        let id = self.id;
        match output {
            Output::Reply { to, result } => {
                let result = result.map(|outcome| self.backup_outcome(env, outcome));
                self.reply(env, at, &to, result);
            }
            Output::RelayReply { to, answer, .. } => self.relay(env, at, &to, answer),
            Output::ToLoop { index, told } => {
                self.cross(env, (at, index as usize), Input::Told(told));
            }
            Output::FromLoop(told) => self.cross(env, (at, 0), Input::ToldByLoop(told)),
            Output::Event(_) | Output::Serves(_) | Output::Drop(_) => {}
            Output::Rules(texts) => self.learn_rules(env, &texts),
            Output::Members { wanted, peers } => {
                env.note(format_args!("n{id}: {wanted:?}, peers {peers:?}"));
                let file = members_file::write(&wanted.to_bytes());
                self.disk.files.write(File::Members, file);
                self.learn_nodes(&peers);
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
            Output::Persist(writes) => self.queue_job(at, Job::Write(writes)),
            Output::Compact { shard, through } => {
                self.queue_job(at, Job::Compact { shard, through });
            }
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
                self.process_event(env, at, delay, what);
            }
            Output::OpenIncoming { .. }
            | Output::StoreIncoming { .. }
            | Output::DropIncoming { .. }
            | Output::InstallSnapshot { .. }
            | Output::ReadSnapshot { .. } => self.transfer_soon(env, output),
            Output::Forward(forward) => {
                env.forwards_sent += 1;
                self.forward(env, at, forward);
            }
            Output::Subscribe {
                shard,
                subscription,
            } => {
                env.note(format_args!("n{id}: shard {shard}: {subscription:?}"));
                self.subscribe(env, at, shard, subscription);
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
        for at in 0..self.loops() {
            env.flush(self.loop_id(at));
        }
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

    /// The log is looked at: is it over its size?
    pub fn purge(&mut self, env: &mut Env) {
        for at in 0..self.loops() {
            let log = self.disk.log_of(at);
            if let Ok(shards) = log.purge()
                && !shards.is_empty()
            {
                let log_bytes = log.stats().used_bytes;
                self.push(env, at, Input::FilesPinned { shards, log_bytes });
            }
        }
        self.process_event(env, 0, PURGE_US, Process::Purge);
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
        self.push(env, self.loop_of(shard), input);
    }
}
