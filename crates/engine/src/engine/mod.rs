//! The engine: one node's parts, and which of them reacts to an input.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nowserving_protocol::admin::Mapping;
use nowserving_replica::{self as replica, EntryReader, NewError, Replica};
use nowserving_shard::clock::{ClientReachability, Micros};
use nowserving_shard::state::State;

use crate::ctx::{Clocks, NodeCtx};
use crate::facts::{Gathered, Gathering};
use crate::following::elections::ClosedConnections;
use crate::io::{Boot, Config, ExitReason, Input, Now, Output, RestoredShard, Subscription};
use crate::leading::balance::Balance;
use crate::leading::lagging::Lagging;
use crate::loops::{LoopPlace, Role};
use crate::membership::Membership;
use crate::membership::candidates::Candidates;
use crate::membership::keys::Keys;
use crate::outbox::Outbox;
use crate::payload::Payload;
use crate::peers::announced::Announced;
use crate::peers::contact::{Contact, Standing};
use crate::peers::links::Links;
use crate::requests::forwards::{Forwards, Leader};
use crate::shard::{Shard, Shards};
use crate::snapshots::{Fetching, begin_counters};
use crate::stopping::Stopping;
use crate::timers::Timers;

mod frames;
mod gauges;
mod leading;
mod loops;
mod members;
mod requests;
mod snapshots;
mod standing;
mod status;
mod turn;

pub(crate) use gauges::Gauges;
pub(crate) use turn::WORK_IN_TURN_MAX;
pub use turn::WRITES_IN_FLIGHT_MAX;

/// Raft ticks in a heartbeat interval.
const TICKS_PER_HEARTBEAT: u64 = 2;
/// The same of a quiet group, if an election timeout has three of them.
const QUIET_TICKS: u64 = 2 * TICKS_PER_HEARTBEAT;
/// A lease is shorter than the election timeout by this factor: room for clocks that differ.
const LEASE_PERCENT: u64 = 80;

/// One node, or one loop of it. See the crate's documentation.
pub struct Engine {
    config: Config,
    pub(crate) shards: Shards,
    pub(crate) ctx: NodeCtx,
    pub(crate) contact: Contact,
    announced: Announced,
    /// Among the loops of the node.
    role: Role,
    links: Links,
    /// The number of this loop's service connection.
    connection: u64,
    closed: ClosedConnections,
    pub(crate) membership: Membership,
    /// Nodes that ask to be added.
    pub(crate) candidates: Candidates,
    pub(crate) keys: Keys,
    balance: Balance,
    pub(crate) lagging: Lagging,
    fetching: Fetching,
    gathering: Gathering,
    /// `None` until it is known.
    mapping: Option<Mapping>,
    stopping: Stopping,
    timers: Timers,
    /// In this turn.
    requests_dropped: bool,
    writes_in_flight: usize,
    /// The shard at which the last turn stopped and the next one continues.
    resume_at: u32,
    /// Log entries remain to be applied: the next turn is due at once.
    more_to_apply: bool,
    /// The election timeout, in ticks.
    election_ticks: u64,
    /// Between heartbeats of a quiet group, in ticks.
    quiet_ticks: u64,
    /// A lease whose last round was answered runs for longer.
    lease_left_us: Micros,
}

/// One shard on one node, for tests and checkers.
pub struct ShardView<'a> {
    pub shard: u32,
    pub replica: &'a Replica,
    pub state: &'a State,
    pub subscription: Subscription,
    /// It leads, and has applied everything of earlier terms.
    pub leads_ready: bool,
    /// Some request waits for an answer.
    pub owes_answers: bool,
}

impl Engine {
    /// Starts from the shards on disk.
    ///
    /// # Errors
    /// [`NewError`]: the configuration is wrong, or log and snapshot of a shard contradict each other.
    pub fn new(
        config: Config,
        boot: Boot,
        restored: Vec<RestoredShard>,
        reader: &Arc<dyn EntryReader>,
        now: Now,
    ) -> Result<Self, NewError> {
        let tick = Duration::from_millis(config.heartbeat_ms) / TICKS_PER_HEARTBEAT as u32;
        let mut shards = BTreeMap::new();
        for RestoredShard {
            shard,
            restored,
            state,
            replayed,
            file,
        } in restored
        {
            let replica_config = replica_config(shard, &config, tick);
            let snapshot = restored.snapshot.clone();
            let replica = Replica::new(&replica_config, restored, reader.clone(), now.us)?;
            let mut restored = Shard::new(shard, replica, state, config.seed, now.us);
            let own = &mut restored.snapshots.own;
            own.raise_compact_floor(replayed.compact_floor);
            own.add_work(replayed.work);
            if let Some(file) = file {
                own.on_disk(snapshot, file, &mut restored.replica);
            }
            shards.insert(shard, restored);
        }
        begin_counters();
        let settle = 2 * Duration::from_millis(config.election_ms);
        let mut engine = Engine {
            contact: Contact::new(config.id, boot.start, boot.disk_refused),
            announced: Announced::new(now.us),
            role: Role::of(config.place),
            links: Links::default(),
            connection: 0,
            closed: ClosedConnections::default(),
            membership: Membership::new(config.members.clone(), boot.is_candidate),
            candidates: Candidates::default(),
            keys: Keys::default(),
            balance: Balance::new(config.id, settle),
            lagging: Lagging::default(),
            shards,
            ctx: NodeCtx {
                now,
                clocks: Clocks {
                    me: config.id,
                    start: boot.start,
                    peers: BTreeMap::new(),
                },
                reachability: ClientReachability::new(now.us),
                disk_full: false,
                has_room: true,
                entry_format: config.entry_format,
                payload: Payload {
                    max: config.max_payload_min,
                    min: config.max_payload_min,
                },
                out: Outbox::default(),
                // Each loop counts its forwards from 1.
                forwards: Forwards::new(config.seed ^ u64::from(config.place.index)),
                members_changed: false,
                rules_changed: true,
                seed: config.seed,
                draw_secret: config.draw_secret,
                work_left: WORK_IN_TURN_MAX,
            },
            fetching: Fetching::default(),
            gathering: Gathering::default(),
            mapping: None,
            stopping: Stopping::not_yet(),
            timers: Timers::new(tick.as_micros() as u64, now.us),
            requests_dropped: false,
            writes_in_flight: 0,
            resume_at: 0,
            more_to_apply: false,
            election_ticks: election_ticks(&config),
            quiet_ticks: quiet_ticks(&config),
            lease_left_us: lease_us(&config).saturating_sub(tick.as_micros() as u64 * QUIET_TICKS),
            config,
        };
        engine.members_changed();
        Ok(engine)
    }

    /// Takes one input, and puts what comes of it at the end of `outputs`: a caller that gives the same list each time
    /// saves each step an allocation. After an [`Output::Exit`] requests are refused, and nothing else happens.
    pub fn step(&mut self, now: Now, input: Input, outputs: &mut Vec<Output>) {
        self.ctx.now = now;
        // The first step gives what the start has come to.
        outputs.append(&mut self.ctx.out.outputs);
        std::mem::swap(&mut self.ctx.out.outputs, outputs);
        if let Err(reason) = self.take_in(now, input) {
            self.exit(now.us, reason);
        }
        std::mem::swap(&mut self.ctx.out.outputs, outputs);
    }

    /// `step(EndTurn)` is due at this time at the latest.
    #[must_use]
    pub fn next_due(&self) -> Micros {
        if self.more_to_apply {
            return 0;
        }
        let due = self.timers.next_due(self.is_busy());
        let due = due.min(self.ctx.forwards.next_due().unwrap_or(Micros::MAX));
        // A stopping node looks after the duties of its leaders at each maintenance; one without room has to wait.
        let shards = self
            .shards
            .values()
            .filter(|_| !self.stopping.has_begun() && self.ctx.has_room);
        let duties = shards.filter_map(|shard| shard.next_duty_at(&self.ctx.reachability));
        duties.min().unwrap_or(Micros::MAX).min(due)
    }

    /// Whether deadlines are looked at often.
    fn is_busy(&self) -> bool {
        let waits = |shard: &Shard| {
            let is_fetching = shard.snapshots.receiving.is_under_way();
            is_fetching || shard.pending.is_any_queued() || shard.pending.owes_answers()
        };
        self.stopping.has_begun() || !self.ctx.has_room || self.shards.values().any(waits)
    }

    /// Which of the node's loops it is.
    #[must_use]
    pub fn place(&self) -> LoopPlace {
        self.config.place
    }

    /// The shards that this engine has, by number.
    pub fn shards(&self) -> impl Iterator<Item = ShardView<'_>> {
        self.shards.values().map(|shard| ShardView {
            shard: shard.id,
            replica: &shard.replica,
            state: &shard.state,
            subscription: shard.subscription,
            leads_ready: shard.leader_state.is_some(),
            owes_answers: shard.pending.owes_answers(),
        })
    }

    /// The announced standing; that of the first loop counts.
    #[must_use]
    pub fn standing(&self) -> &Standing {
        self.announced.standing()
    }

    /// What has been found about lines since the last call, for a node that shows metrics.
    pub fn gather(&mut self, now: Micros) -> Vec<Gathered> {
        let (reachability, peers) = (&self.ctx.reachability, &self.membership.peers);
        self.gathering
            .gather(&self.shards, reachability, peers, now)
    }

    fn take_in(&mut self, now: Now, input: Input) -> Result<(), ExitReason> {
        match input {
            Input::Request { request, delivery } => self.request(now, *request, delivery),
            Input::Cluster { question, reply } => self.question(now.us, question, reply),
            _ if self.stopping.has_ended() => {}
            Input::Forwarded { id, result } => {
                let leaders = leaders(&self.shards, &self.role, &self.ctx.clocks, now.us);
                self.ctx
                    .forwards
                    .result(id, result, leaders, now.us, &mut self.ctx.out);
            }
            Input::Frame(frame) => self.frame(now, *frame)?,
            Input::Persisted { numbers, writes } => self.persisted(numbers, writes)?,
            Input::SnapshotWritten { shard, written } => {
                self.snapshot_written(shard, written, now.us);
            }
            Input::SnapshotStored {
                shard,
                file,
                offset,
            } => self.snapshot_stored(shard, file, offset, now.us),
            Input::SnapshotReceived { shard, file, state } => {
                self.snapshot_received(shard, file, state, now.us);
            }
            Input::SnapshotRead { to, chunk } => self.send_snapshot_part(to, chunk, now.us),
            Input::FilesPinned { shards, log_bytes } => self.files_pinned(&shards, log_bytes),
            Input::ProbeEchoed { sent_at } => self.ctx.reachability.echo(sent_at),
            Input::RequestsDropped => self.requests_dropped = true,
            Input::DiskFull(full) => self.disk_full(full),
            Input::MaxPayload(bytes) => self.max_payload(bytes, now.us),
            Input::FrameRefused { to, shards } => self.frame_refused(to, &shards, now.us),
            Input::Mapping(mapping) => self.mapping = Some(mapping),
            Input::Candidate(candidate) => self.note_candidate(candidate, now.us),
            Input::OtherCluster(members) => self.note_other_cluster(&members, now.us),
            Input::OtherClusters(others) => self.membership.other_clusters = others,
            Input::Keys(keys) => self.keys.loaded(keys),
            Input::ConnectionNumber(number) => self.connection_number(number, now.us),
            Input::ConnectionClosed { peer, connection } => {
                self.connection_closed(peer, connection, now.us);
            }
            // The first loop has ended.
            Input::Stop if !self.config.place.is_first() => return Err(ExitReason::Stopped),
            Input::Stop => {
                self.stopping.begin(now.us);
                self.role.news();
            }
            Input::Told(told) => self.told(now, *told)?,
            Input::ToldByLoop(told) => self.told_by_loop(*told, now.us),
            Input::EndTurn { inbox_empty } => self.end_turn(now, inbox_empty)?,
        }
        Ok(())
    }

    fn persisted(&mut self, numbers: Vec<(u32, u64)>, writes: usize) -> Result<(), ExitReason> {
        self.writes_in_flight = self.writes_in_flight.saturating_sub(writes);
        for (id, number) in numbers {
            if let Some(shard) = self.shards.get_mut(&id) {
                shard.persisted(number, &mut self.ctx)?;
            }
        }
        Ok(())
    }

    pub(super) fn each_shard(&mut self, mut run: impl FnMut(&mut Shard, &mut NodeCtx)) {
        for shard in self.shards.values_mut() {
            run(shard, &mut self.ctx);
        }
    }
}

/// Looks up the leader of a shard, for forwards.
fn leaders<'a>(
    shards: &'a Shards,
    others: &'a Role,
    clocks: &'a Clocks,
    now: Micros,
) -> impl Fn(u32) -> Leader + 'a {
    move |shard| {
        let known = shards.get(&shard).map(Shard::known_leader);
        let known = known.or_else(|| others.known_leader(shard));
        clocks.leader(known.unwrap_or_default(), now)
    }
}

fn election_ticks(config: &Config) -> u64 {
    config.election_ms * TICKS_PER_HEARTBEAT / config.heartbeat_ms
}

fn quiet_ticks(config: &Config) -> u64 {
    match election_ticks(config) >= 3 * QUIET_TICKS {
        true => QUIET_TICKS,
        false => TICKS_PER_HEARTBEAT,
    }
}

fn lease_us(config: &Config) -> Micros {
    config.election_ms * LEASE_PERCENT * 10
}

fn replica_config(shard: u32, config: &Config, tick: Duration) -> replica::Config {
    replica::Config {
        shard,
        id: config.id,
        election_ticks: usize::try_from(election_ticks(config)).unwrap_or(usize::MAX),
        // The engine sends them in all groups at the same time, so that those to one peer are in one frame.
        heartbeat_ticks: usize::try_from(election_ticks(config) - 1).unwrap_or(usize::MAX),
        tick,
        lease: Duration::from_micros(lease_us(config)),
        // Every node acts on the members and the rules of limits. Of other shards followers answer only what may be a
        // moment old: they hear of commits within a tick.
        tells_commits: shard == 0,
    }
}
