//! The engine: one node's state, and its reaction to each input.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::envelope::{LaggingMember, StateHash};
use crate::facts::Gathering;
use nowserving_protocol::admin::Mapping;
use nowserving_protocol::keys::KeyPrint;
use nowserving_replica::{self as replica, Connection, EntryReader, NewError, Replica};
use nowserving_shard::clock::{ClientReachability, Micros};
use nowserving_shard::members::MembersRefused;
use nowserving_shard::requests::{Answer, Origin};
use nowserving_shard::state::State;

use crate::age::{Age, age, taken_now};
use crate::balance::Balance;
use crate::candidates::{self, Candidates};
use crate::contact::{Contact, Standing};
use crate::delivery::{Action, Case, Copy, Delivery, Role, Via, decide, late_by_header};
use crate::elections::ClosedConnections;
use crate::forwards::{Forwards, Leader};
use crate::frames::{OutMessage, PeerBatch, PeerFrame};
use crate::io::{Boot, Config, ExitReason, Input, Now, Output, RestoredShard, Subscription};
use crate::kv;
use crate::listing;
use crate::membership::Membership;
use crate::outbox::{Clocks, NodeCtx, Outbox};
use crate::payload::Payload;
use crate::refusals::unavailable;
use crate::request::{Ask, Effect, Outcome, Question, ReplyTo, Request};
use crate::shard::Shard;
use crate::standing::FIRST_COMPLAINT_US;
use crate::waiter::Waiter;

/// Raft ticks in a heartbeat interval.
const TICKS_PER_HEARTBEAT: u64 = 2;
/// A lease is shorter than the election timeout by this factor: room for clocks that differ.
const LEASE_PERCENT: u64 = 80;
/// Ticks given at once at most: after a stall, the groups must not be flooded with timeouts.
const TICKS_AT_ONCE_MAX: u64 = 2;
/// Turns' writes that may wait for the disk; with more, nothing new is written.
pub const WRITES_IN_FLIGHT_MAX: usize = 32;
/// A turn applies log entries until they were so much work: one for each, and as [`State::apply_entry`] counts.
/// The rest waits for the next turn. A node that is behind, after its start or an absence, must read requests and
/// frames meanwhile. One entry alone can be twice as much.
pub(crate) const WORK_IN_TURN_MAX: usize = 2_048;
/// Refused Raft messages are warned about this often at most.
const WARNING_INTERVAL_US: Micros = 1_000_000;

/// One node. See the crate's documentation.
pub struct Engine {
    pub(crate) config: Config,
    pub(crate) shards: BTreeMap<u32, Shard>,
    pub(crate) ctx: NodeCtx,
    pub(crate) contact: Contact,
    pub(crate) membership: Membership,
    /// Nodes that ask to be added.
    pub(crate) candidates: Candidates,
    /// This node was refused since it was last in touch, and may ask to be added under a new number.
    pub(crate) is_candidate: bool,
    /// The cluster keys that this node has loaded, the older one first.
    pub(crate) keys: Vec<KeyPrint>,
    pub(crate) balance: Balance,
    pub(crate) last_sent: BTreeMap<u64, Micros>,
    /// The shard that asked last for a part of a snapshot.
    pub(crate) asked_for_snapshot: u32,
    /// Parts of snapshots that were asked for since the last maintenance.
    pub(crate) parts_asked: usize,
    /// `None` until it is known.
    pub(crate) mapping: Option<Mapping>,
    pub(crate) standing: Standing,
    pub(crate) serves: Option<Result<(), String>>,
    pub(crate) stopping_since: Option<Micros>,
    pub(crate) stop_reason: ExitReason,
    /// When a stopping node had nothing left to hand over.
    pub(crate) drained_at: Option<Micros>,
    ended: bool,
    requests_dropped: bool,
    writes_in_flight: usize,
    /// The shard at which the last turn stopped and the next one continues.
    resume_at: u32,
    /// Log entries remain to be applied: the next turn is due at once.
    more_to_apply: bool,
    refused_messages: u64,
    next_warning: Micros,
    /// The election timeout, in ticks.
    pub(crate) election_ticks: u64,
    /// The number of this node's service connection.
    pub(crate) connection: u64,
    pub(crate) closed: ClosedConnections,
    /// Members that lag in shards which this node leads.
    pub(crate) lagging: Vec<LaggingMember>,
    pub(crate) gathering: Gathering,
    tick_us: Micros,
    next_tick: Micros,
    pub(crate) next_maintenance: Micros,
    pub(crate) next_slow_maintenance: Micros,
    pub(crate) next_complaint: Micros,
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
            file,
        } in restored
        {
            let replica_config = replica_config(shard, &config, tick);
            let snapshot = restored.snapshot.clone();
            let replica = Replica::new(&replica_config, restored, reader.clone(), now.us)?;
            let mut restored = Shard::new(shard, replica, state, now.us);
            if let Some(file) = file {
                restored.snapshot_on_disk(snapshot, file);
            }
            shards.insert(shard, restored);
        }
        crate::gauges::begin_counters();
        let settle = 2 * Duration::from_millis(config.election_ms);
        let tick_us = tick.as_micros() as u64;
        let mut engine = Engine {
            contact: Contact::new(config.id, boot.start, boot.disk_refused),
            balance: Balance::new(config.id, settle),
            membership: Membership::new(config.members.clone()),
            candidates: Candidates::default(),
            is_candidate: boot.is_candidate,
            keys: Vec::new(),
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
                forwards: Forwards::new(config.seed),
                members_changed: false,
                rules_changed: true,
                seed: config.seed,
                work_left: WORK_IN_TURN_MAX,
            },
            last_sent: BTreeMap::new(),
            asked_for_snapshot: 0,
            parts_asked: 0,
            mapping: None,
            standing: Standing::Waiting("starting".to_owned()),
            serves: None,
            stopping_since: None,
            stop_reason: ExitReason::Stopped,
            drained_at: None,
            ended: false,
            requests_dropped: false,
            writes_in_flight: 0,
            resume_at: 0,
            more_to_apply: false,
            refused_messages: 0,
            next_warning: 0,
            next_tick: now.us + tick_us,
            next_maintenance: now.us,
            next_slow_maintenance: now.us,
            next_complaint: now.us + FIRST_COMPLAINT_US,
            election_ticks: election_ticks(&config),
            connection: 0,
            closed: ClosedConnections::default(),
            lagging: Vec::new(),
            gathering: Gathering::default(),
            tick_us,
            config,
        };
        engine.members_changed();
        Ok(engine)
    }

    /// Takes one input. After an [`Output::Exit`] requests are refused, and nothing else happens.
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Output> {
        self.ctx.now = now;
        if let Err(reason) = self.take_in(now, input) {
            self.exit(now.us, reason);
        }
        std::mem::take(&mut self.ctx.out.outputs)
    }

    /// `step(EndTurn)` is due at this time at the latest.
    #[must_use]
    pub fn next_due(&self) -> Micros {
        if self.more_to_apply {
            return 0;
        }
        let due = self.next_tick.min(self.next_maintenance);
        let due = due.min(self.ctx.forwards.next_due().unwrap_or(Micros::MAX));
        // A stopping node looks after the duties of its leaders at each maintenance; one without room has to wait.
        let shards = self
            .shards
            .values()
            .filter(|_| self.stopping_since.is_none() && self.ctx.has_room);
        let duties = shards.filter_map(|shard| shard.next_duty_at(&self.ctx.reachability));
        duties.min().unwrap_or(Micros::MAX).min(due)
    }

    /// The shards that this node holds, by number.
    pub fn shards(&self) -> impl Iterator<Item = ShardView<'_>> {
        self.shards.values().map(|shard| ShardView {
            shard: shard.id,
            replica: &shard.replica,
            state: &shard.state,
            subscription: shard.subscription,
            leads_ready: shard.leader_state.is_some(),
            owes_answers: shard.owes_answers(),
        })
    }

    /// The announced standing.
    #[must_use]
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    pub(crate) fn others(&self) -> impl Iterator<Item = u64> {
        self.membership.peers.iter().copied()
    }

    fn take_in(&mut self, now: Now, input: Input) -> Result<(), ExitReason> {
        match input {
            Input::Request { request, delivery } => self.request(now, *request, delivery),
            Input::Cluster { question, reply } => self.question(now.us, &question, reply),
            _ if self.ended => {}
            Input::Forwarded { id, result } => {
                let leaders = leaders(&self.shards, &self.ctx.clocks, now.us);
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
            Input::Keys(keys) => self.keys = keys,
            Input::ConnectionNumber(number) => self.connection_number(number),
            Input::ConnectionClosed { peer, connection } => {
                self.connection_closed(peer, connection, now.us);
            }
            Input::Stop => {
                self.stopping_since.get_or_insert(now.us);
            }
            Input::EndTurn { inbox_empty } => self.end_turn(now, inbox_empty)?,
        }
        Ok(())
    }

    fn request(&mut self, now: Now, request: Request, delivery: Delivery) {
        let takes_requests = self.takes_requests() && !self.ended;
        let shard = self.shards.get_mut(&request.shard);
        let leader_since = shard.as_deref().and_then(Shard::leader_since);
        let effect = match request.ask.effect() {
            // A node that does not hold the shard has nothing to read.
            Effect::ReadLocal if shard.is_none() => Effect::Read,
            effect => effect,
        };
        let case = Case {
            role: if !takes_requests {
                Role::OutOfTouch
            } else if shard.as_ref().is_some_and(|shard| shard.serves_as_leader()) {
                Role::Leader
            } else {
                Role::NotLeader
            },
            via: delivery.via,
            shared: delivery.shared,
            age: age(&request, delivery, now, self.ctx.clocks.start, leader_since),
            effect,
            named: request.id.is_some_and(|id| id.origin == Origin::Client),
            // Of other requests it decides nothing, and they are the most.
            copy: match (request.id, shard.as_deref()) {
                (Some(id), Some(shard)) if delivery.via == Via::Forwarded => shard.copy_of(id),
                _ => Copy::None,
            },
        };
        if case.age == Age::Late && effect.is_write() {
            metrics::counter!("nowserving_late_writes_total").increment(1);
        }
        let action = decide(case);
        if let Some(error) = late_by_header(action, case.age, &request, delivery, now) {
            return self.ctx.out.refuse(request.reply, error);
        }
        let (waiter, mut ask) = Waiter::of(taken_now(request, now), delivery);
        let mut refused = None;
        if let (Action::Take, Ask::Members(members)) = (&action, &mut ask) {
            refused = self.check_members_request(members, waiter.id, now.us).err();
        }
        if let (Action::Take, Ask::Restore(command)) = (&action, &ask)
            && let Err(error) = self.check_staging(command)
        {
            return self.ctx.out.refuse(waiter.reply, error);
        }
        let shard = self.shards.get_mut(&waiter.shard);
        let ctx = &mut self.ctx;
        match (action, shard) {
            (Action::AnswerLocally, Some(shard)) => shard.answer_read(waiter, &ask, ctx),
            (Action::Take, Some(shard)) => match refused {
                // It passes, and is not remembered: the copies that follow shall find out. Others are, though some pass, too:
                // no copy takes effect after its sender was refused.
                Some(refused @ MembersRefused::InProgress(_)) => {
                    ctx.out.refuse(waiter.reply, candidates::refusal(&refused));
                }
                Some(refused) => {
                    let error = candidates::refusal(&refused);
                    shard.refuse_unlogged(waiter, Answer::Members(Err(refused)), error, ctx);
                }
                None => shard.take(waiter, ask, ctx),
            },
            (action, shard) => ctx.forward_or_refuse(action, waiter, shard.as_deref()),
        }
    }

    fn question(&mut self, now: Micros, question: &Question, reply: ReplyTo) {
        let result = if !self.contact.is_in_touch() || self.ended {
            Err(unavailable())
        } else {
            Ok(match question {
                Question::ClusterStatus => Outcome::Cluster(Box::new(self.cluster_status(now))),
                Question::ListLines(ask) => {
                    let lines = self.shards.values().map(|shard| shard.state.lines());
                    Outcome::Lines(Box::new(listing::page(ask, lines)))
                }
                Question::KvList { bucket, ask } => {
                    let states = self.shards.values().map(|shard| &shard.state);
                    kv::list(bucket, ask, states)
                }
                Question::MembersChanges => {
                    Outcome::MembersChanges(Box::new(self.members_changes(now)))
                }
            })
        };
        self.ctx.out.answer(reply, result);
    }

    fn frame(&mut self, now: Now, frame: PeerFrame) -> Result<(), ExitReason> {
        let PeerFrame { from, header, body } = self.believed(frame);
        let refused = body.as_ref().err();
        self.note_members(from, &header);
        if !self.membership.peers.contains(&from) {
            self.answer_stranger(from, &header, now.us);
            return Ok(());
        }
        if refused.is_some_and(|it| it.no_member) {
            // It is one by now: by the members in its own frame, or by those that came after it was checked. Told that
            // it is none, it would stay away until it hears otherwise.
            return Ok(());
        }
        // Also of a refused one: it is told the members, and so who its peers are.
        let peer = self.ctx.clocks.peers.entry(from).or_default();
        peer.members_version = header.members_version;
        if refused.is_none() {
            peer.in_touch = header.in_touch;
        }
        self.note_header(from, &header, refused, now.us);
        self.stop_if_removed(now.us);
        let Ok(body) = body else {
            return Ok(());
        };
        let peer = self.ctx.clocks.peers.entry(from).or_default();
        peer.seen(now.us);
        peer.clock_us = body.clock_us;
        peer.client_reachable = body.client_reachable;
        peer.refuses_snapshots = body.refuses_snapshots;
        peer.lagging = body.lagging;
        let disk_changed = std::mem::replace(&mut peer.disk_full, body.disk_full) != body.disk_full;
        peer.metrics_addr = body.metrics_addr;
        peer.version = body.version;
        peer.entry_format = body.entry_format;
        peer.max_payload = body.max_payload;
        peer.keys = body.keys;
        if peer.start != header.start {
            peer.start = header.start;
            self.closed.forget(from);
            for shard in self.shards.values_mut() {
                shard.agreement.forget(from);
                shard.offer_snapshot_again(from, now.us);
            }
        }
        if disk_changed {
            self.check_room();
        }
        if !self.contact.is_in_touch() {
            return Ok(());
        }
        for hash in body.state_hashes {
            self.note_hash(from, hash)?;
        }
        for closed in body.closed {
            let (start, number) = (closed.start, closed.number);
            self.connection_closed(closed.node, Connection { start, number }, now.us);
        }
        if let Some(start) = header.start {
            let number = body.connection;
            for shard in self.shards.values_mut() {
                let connection = Connection { start, number };
                shard.replica.peer_connection(from, connection);
            }
        }
        self.snapshot_parts(from, body.snapshot_request, body.snapshot_chunk);
        for (shard, message) in body.messages {
            let Some(shard) = self.shards.get_mut(&shard) else {
                metrics::counter!("nowserving_raft_refused_total").increment(1);
                continue;
            };
            shard.dirty = true;
            let refused = shard.step(message, &mut self.ctx);
            shard.note_leader(now.us);
            if let Err(refused) = refused
                && !refused.is_expected()
            {
                metrics::counter!("nowserving_raft_refused_total").increment(1);
                self.refused_messages += 1;
                if now.us >= self.next_warning {
                    self.next_warning = now.us + WARNING_INTERVAL_US;
                    let (shard, count) = (shard.id, std::mem::take(&mut self.refused_messages));
                    tracing::warn!(shard, from, %refused, count, "raft messages refused");
                }
            }
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

    /// Turns the collected input into log entries, writes and frames.
    fn end_turn(&mut self, now: Now, inbox_empty: bool) -> Result<(), ExitReason> {
        let hears_nobody = self.ctx.payload.problem().is_some();
        if std::mem::take(&mut self.requests_dropped) || !self.ctx.has_room || hears_nobody {
            self.ctx.reachability.skip(now.us);
        } else {
            self.ctx.reachability.advance(now.us);
        }
        let stall_ms = self.config.election_ms;
        self.each_shard(|shard, ctx| shard.hold_clock(stall_ms, &ctx.reachability));
        if !self.contact.is_in_touch() {
            self.each_shard(|shard, ctx| shard.step_down("out of touch", ctx));
        }
        self.tick(now.us);
        if now.us >= self.next_maintenance {
            self.maintenance(now.us);
        }
        let leaders = leaders(&self.shards, &self.ctx.clocks, now.us);
        self.ctx
            .forwards
            .run_due(leaders, now.us, &mut self.ctx.out);
        let (stopping, drained) = (self.stopping_since.is_some(), self.drained_at.is_some());
        let may_write = self.writes_in_flight < WRITES_IN_FLIGHT_MAX;
        let mut ready = Ok(());
        let resume_at = std::mem::take(&mut self.resume_at);
        let (mut stopped_at, mut more) = (None, resume_at > 0);
        self.ctx.work_left = WORK_IN_TURN_MAX;
        let mut begins_to_serve = false;
        self.each_shard(|shard, ctx| {
            shard.replica.clock(ctx.now.us);
            // Tokens expire until a stopping node has offered the shard to another, or polls reach it no more.
            let leaves = drained || (stopping && shard.offered_since().is_some());
            if !leaves && ctx.has_room {
                shard.propose_own(inbox_empty, ctx);
            }
            shard.publish_own(ctx);
            if ctx.has_room {
                shard.propose(ctx);
            }
            shard.ask_for_reads(ctx.now.us);
            if may_write && shard.dirty && ready.is_ok() && shard.id >= resume_at {
                if ctx.work_left == 0 {
                    stopped_at.get_or_insert(shard.id);
                } else {
                    let before = shard.replica.applied();
                    ready = shard.ready(ctx);
                    let new = shard.replica.applied() - before;
                    more |= new > 0 && shard.dirty;
                }
            }
            shard.check_leading(ctx);
            begins_to_serve |= shard.begins_to_serve(ctx.now.us);
        });
        ready?;
        if begins_to_serve {
            self.update_subscriptions(now.us);
        }
        if self.ctx.members_changed {
            self.members_changed();
        }
        if self.ctx.rules_changed {
            self.tell_rules();
        }
        self.more_to_apply = more || stopped_at.is_some();
        self.resume_at = stopped_at.unwrap_or(0);
        self.flush(now.us)?;
        self.stop(now.us)
    }

    fn exit(&mut self, now: Micros, reason: ExitReason) {
        self.ended = true;
        self.drained_at.get_or_insert(now);
        self.each_shard(Shard::release_waiters);
        self.ctx.forwards.refuse_all(&mut self.ctx.out);
        self.update_subscriptions(now);
        self.ctx.out.outputs.push(Output::Exit(reason));
    }

    /// Ticks Raft's clocks.
    fn tick(&mut self, now: Micros) {
        if now < self.next_tick {
            return;
        }
        let due = (now - self.next_tick) / self.tick_us + 1;
        self.next_tick += due * self.tick_us;
        if !self.contact.is_in_touch() {
            return;
        }
        for shard in self.shards.values_mut() {
            for _ in 0..due.min(TICKS_AT_ONCE_MAX) {
                shard.set_election_delay(self.config.id, self.election_ticks);
                shard.replica.tick(now);
            }
            shard.note_leader(now);
            shard.dirty |= shard.replica.has_ready();
        }
    }

    /// Outputs the writes and messages of this turn.
    fn flush(&mut self, now: Micros) -> Result<(), ExitReason> {
        let mut messages = std::mem::take(&mut self.ctx.out.messages);
        let writes = std::mem::take(&mut self.ctx.out.writes);
        let state_hashes = std::mem::take(&mut self.ctx.out.state_hashes);
        if !state_hashes.is_empty() {
            for peer in self.others() {
                messages.entry(peer).or_default();
            }
        }
        if !writes.is_empty() {
            self.writes_in_flight += 1;
            self.ctx.out.outputs.push(Output::Persist(writes));
        }
        for (peer, messages) in messages {
            self.send_to(peer, messages, state_hashes.clone(), now);
        }
        // After the frames: if this node has to stop, its peers have its hashes.
        for hash in state_hashes {
            self.note_hash(self.config.id, hash)?;
        }
        Ok(())
    }

    /// Sends a peer its messages, in as few frames as their size allows.
    pub(crate) fn send_to(
        &mut self,
        to: u64,
        messages: Vec<OutMessage>,
        state_hashes: Vec<StateHash>,
        now: Micros,
    ) {
        if !self.membership.peers.contains(&to) {
            return;
        }
        let frame_of = |messages, state_hashes| Output::Frame {
            to,
            batch: PeerBatch {
                messages,
                state_hashes,
                ..self.batch(to, now)
            },
        };
        let bytes_max = self.ctx.payload.content_bytes_max();
        let mut frames = Vec::with_capacity(1);
        let mut batch = Vec::with_capacity(messages.len());
        let mut bytes = 0;
        for message in messages {
            if bytes + message.raft.len() > bytes_max && !batch.is_empty() {
                frames.push(frame_of(std::mem::take(&mut batch), Vec::new()));
                bytes = 0;
            }
            bytes += message.raft.len();
            batch.push(message);
        }
        frames.push(frame_of(batch, state_hashes));
        self.ctx.out.outputs.extend(frames);
        self.last_sent.insert(to, now);
    }

    pub(crate) fn each_shard(&mut self, mut run: impl FnMut(&mut Shard, &mut NodeCtx)) {
        for shard in self.shards.values_mut() {
            run(shard, &mut self.ctx);
        }
    }
}

/// Looks up the leader of a shard, for forwards.
fn leaders<'a>(
    shards: &'a BTreeMap<u32, Shard>,
    clocks: &'a Clocks,
    now: Micros,
) -> impl Fn(u32) -> Leader + 'a {
    move |shard| {
        let shard = shards.get(&shard);
        shard.map_or_else(Leader::default, |shard| clocks.leader(shard, now))
    }
}

fn election_ticks(config: &Config) -> u64 {
    config.election_ms * TICKS_PER_HEARTBEAT / config.heartbeat_ms
}

fn replica_config(shard: u32, config: &Config, tick: Duration) -> replica::Config {
    replica::Config {
        shard,
        id: config.id,
        election_ticks: usize::try_from(election_ticks(config)).unwrap_or(usize::MAX),
        heartbeat_ticks: TICKS_PER_HEARTBEAT as usize,
        tick,
        lease: Duration::from_millis(config.election_ms * LEASE_PERCENT / 100),
    }
}

/// A pseudo-random number that depends only on these (the finalizer of SplitMix64 over each).
pub(crate) fn draw<const N: usize>(numbers: [u64; N]) -> u64 {
    numbers.iter().fold(0, |sum, number| {
        let mut z = (sum ^ number).wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}
