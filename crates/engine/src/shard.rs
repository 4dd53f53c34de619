//! One shard on this node: its Raft group, its lines, and the requests that wait for an answer.

use std::collections::{BTreeMap, HashMap, VecDeque};

use nowserving_line::{LineName, Op, Refused, Timestamp};
use nowserving_protocol::error::ApiError;
use nowserving_replica::{Committed, ProposeError, ReadFailed, Ready, Replica, Role};
use nowserving_shard::clock::{ClientReachability, Micros};
use nowserving_shard::command::{Command, Entry, EntryBuilder};
use nowserving_shard::leader_state::LeaderState;
use nowserving_shard::limits::LimitCommand;
use nowserving_shard::members::MembersCommand;
use nowserving_shard::requests::{Answer, RequestId, Requests};
use nowserving_shard::restore::RestoreCommand;
use nowserving_shard::state::State;

use crate::agreement::Agreement;
use crate::compaction::{LogSize, Retry};
use crate::delivery::{Copy, Via, turned_away, unless_in_doubt};
use crate::elections::delay_ticks;
use crate::io::{Dropped, ExitReason, Now, Output, ReadFailure, Subscription};
use crate::kicks::AllKickWaiters;
use crate::maintenance::Offer;
use crate::outbox::NodeCtx;
use crate::refusals::{disk_full, older_member, outcome_unknown, overloaded};
use crate::request::Ask;
use crate::snapshot_file::SnapshotFile;
use crate::snapshot_receive::{Receive, Received};
use crate::snapshot_send::SnapshotSends;
use crate::waiter::Waiter;
use crate::waiting_reads::{Read, WaitingReads};

/// Operations of a shard not yet in its log at most; more are refused as overloaded.
const QUEUE_MAX: usize = 8_192;

/// A command not yet in the log.
#[derive(Debug)]
struct Queued {
    command: Command,
    waiter: Option<Waiter>,
}

/// An entry that this node proposed.
#[derive(Debug)]
pub(crate) struct Proposed {
    /// Kept to save decoding it again.
    pub entry: Entry,
    /// When.
    pub at: Micros,
    /// One for each command; empty if no request waits on this node.
    pub waiters: Vec<Option<Waiter>>,
}

pub(crate) struct Shard {
    pub id: u32,
    pub replica: Replica,
    /// As applied.
    pub state: State,
    /// Set while this node leads and has applied everything of earlier terms.
    pub leader_state: Option<LeaderState>,
    pub subscription: Subscription,
    /// The replica may have output: call `ready`.
    pub dirty: bool,
    /// Index of the newest snapshot on disk.
    pub snapshot_index: u64,
    /// Its file.
    pub snapshot_file: Option<SnapshotFile>,
    /// A snapshot is being written.
    pub snapshotting: bool,
    /// A peer needed a snapshot when there was none.
    pub snapshot_wanted: bool,
    pub snapshot_sends: SnapshotSends,
    /// The last entry of the log when members were last checked for lag.
    pub last_look: u64,
    pub receive: Option<Receive>,
    pub received: Option<Received>,
    /// A peer's snapshot that this node did not take, and when.
    pub refused_snapshot: Option<(SnapshotFile, Micros)>,
    /// Every voter has the log through this index, according to the newest entry that says so.
    pub compact_floor: u64,
    pub agreement: Agreement,
    pub lease_asked_at: Micros,
    /// The newest known term and its leader.
    leader: (u64, Option<u64>),
    leader_since: Micros,
    /// The newest leader of all that this node has known.
    last_leader: Option<u64>,
    /// The last hand-over that this node began.
    pub offered: Option<Offer>,
    pub log_size: LogSize,
    /// The term in which members were last copied into this shard, and their version.
    pub members_asked: (u64, u64),
    pub snapshot_retry: Retry,
    /// An operator wants a snapshot that has this entry.
    pub backup_index: u64,
    queue: VecDeque<Queued>,
    /// The number of copies of each request with an id that is queued or in the log and not yet applied.
    pub(crate) in_log: HashMap<u128, u32>,
    /// Requests that this node, as the leader, refused from its state. They are not in the log; their copies
    /// are refused too.
    refused: Requests,
    /// By index and term. An index can be there twice: a node that lost the lead and got it again may
    /// propose at lower indexes than before, while the outcome of those is still open.
    pub proposed: BTreeMap<(u64, u64), Proposed>,
    pub reads: WaitingReads,
    /// By line.
    pub kicks: AllKickWaiters,
    /// Still to be applied.
    pub committed: VecDeque<Committed>,
}

impl Shard {
    pub fn new(id: u32, replica: Replica, state: State, now: Micros) -> Self {
        Shard {
            id,
            state,
            leader_state: None,
            subscription: Subscription::No,
            dirty: true,
            snapshot_index: 0,
            snapshot_file: None,
            snapshotting: false,
            snapshot_wanted: false,
            snapshot_sends: SnapshotSends::default(),
            last_look: 0,
            receive: None,
            received: None,
            refused_snapshot: None,
            compact_floor: 0,
            agreement: Agreement::default(),
            lease_asked_at: 0,
            leader: (replica.term(), replica.leader()),
            leader_since: now,
            last_leader: None,
            replica,
            offered: None,
            log_size: LogSize::default(),
            members_asked: (0, 0),
            snapshot_retry: Retry::default(),
            backup_index: 0,
            queue: VecDeque::new(),
            in_log: HashMap::new(),
            refused: Requests::default(),
            proposed: BTreeMap::new(),
            reads: WaitingReads::default(),
            kicks: AllKickWaiters::default(),
            committed: VecDeque::new(),
        }
    }

    /// Whether this node believes that it leads the shard.
    pub fn leads(&self) -> bool {
        self.replica.role() == Role::Leader
    }

    /// Must be called whenever Raft's leader may have changed.
    pub fn note_leader(&mut self, now: Micros) {
        let leader = (self.replica.term(), self.replica.leader());
        if self.leader != leader {
            if self.leader.0 != leader.0 {
                metrics::counter!("nowserving_term_changes_total").increment(1);
            }
            if leader.1.is_some_and(|id| self.last_leader != Some(id)) {
                metrics::counter!("nowserving_leader_changes_total").increment(1);
            }
            self.leader = leader;
            self.leader_since = now;
            self.last_leader = leader.1.or(self.last_leader);
        }
    }

    /// Sets for how long this node waits before it stands for election.
    pub fn set_election_delay(&mut self, me: u64, election_ticks: u64) {
        let (voters, term) = (self.replica.voters(), self.replica.term());
        let delay = delay_ticks(me, &voters, self.last_leader, self.id, term);
        let ticks = usize::try_from(election_ticks + delay).unwrap_or(usize::MAX);
        self.replica.set_randomized_election_ticks(ticks);
    }

    /// When this node learned of the present leader, if it knows one.
    pub fn leader_since(&self) -> Option<Micros> {
        self.leader.1.map(|_| self.leader_since)
    }

    /// Whether reads can be answered from the applied state without a quorum.
    pub fn in_lease(&self, now: Micros) -> bool {
        #[cfg(feature = "bite")]
        if nowserving_bite::is(nowserving_bite::Break::S15) {
            return self.leader_state.is_some();
        }
        self.leader_state.is_some() && self.replica.lease_until().is_some_and(|until| now < until)
    }

    /// Whether this node leads, and clients' requests reach it as the leader.
    pub fn serves_as_leader(&self) -> bool {
        self.leads() && matches!(self.subscription, Subscription::Leader { .. })
    }

    /// The time of an answer given now. Only a leader's service clock runs; other nodes show the last
    /// reading in the log.
    pub fn timestamp(&self, now: Now, reachability: &ClientReachability) -> Timestamp {
        let service_ms = match &self.leader_state {
            Some(leader_state) => leader_state.shown_ms(&self.state, now.us, reachability),
            None => self.state.now_ms(),
        };
        Timestamp {
            service_ms,
            wall_ms: now.wall_ms,
        }
    }

    /// The leader's reading of the service clock; `None` unless it leads.
    pub fn service_ms(&self, reachability: &ClientReachability) -> Option<u64> {
        let leader_state = self.leader_state.as_ref()?;
        Some(leader_state.now_ms(&self.state, reachability))
    }

    /// Takes a request as the leader, and answers it at once if it needs neither log nor quorum.
    pub fn take(&mut self, waiter: Waiter, ask: Ask, ctx: &mut NodeCtx) {
        match ask {
            Ask::Write(op) => self.take_write(waiter, Command::Line(op), ctx),
            Ask::Members(request) => {
                let command = Command::Members(MembersCommand::Request(*request));
                self.take_write(waiter, command, ctx);
            }
            Ask::Kv(op) => self.take_write(waiter, Command::Kv(op), ctx),
            Ask::Restore(command) => self.take_restore(waiter, *command, ctx),
            Ask::Limit(request) if waiter.effect.is_write() => {
                self.take_limit(waiter, *request, ctx);
            }
            ask if !ask.is_linearizable() && self.in_lease(ctx.now.us) => {
                self.answer_leading(waiter, ask, ctx);
            }
            _ if self.reads.is_full() => ctx.out.refuse(waiter.reply, overloaded()),
            ask => self.reads.push(Read {
                waiter,
                ask,
                touched: false,
            }),
        }
    }

    pub(crate) fn take_write(&mut self, mut waiter: Waiter, command: Command, ctx: &mut NodeCtx) {
        let gives_back = self.gives_back(waiter.id);
        if let Some(id) = waiter.id.filter(|_| !gives_back) {
            let in_lease = self.in_lease(ctx.now.us);
            let answered = self.state.requests().answer(id).filter(|_| in_lease);
            // What is done is the newer answer: a later leader may have done what this node refused as an earlier one.
            if let Some(answer) = answered.or(self.refused.answer(id)).cloned() {
                if let Some(leader_state) = &mut self.leader_state {
                    leader_state.limits.keep(id.key);
                }
                return self.answer_copy(waiter, &command, &answer, ctx);
            }
        }
        // The second of two copies must get the answer of the first, which may differ from a refusal now.
        let in_log = |id: RequestId| self.in_log.contains_key(&id.key);
        let is_copy = gives_back || waiter.id.is_some_and(in_log);
        if !is_copy
            && let Command::Line(op) = &command
            && let Some(refused) = self.refused_already(&waiter.line, op, ctx)
        {
            if let Some(leader_state) = &mut self.leader_state {
                leader_state.count_refused(op, &refused, self.state.lines());
            }
            let answer = Answer::Refused(refused.clone());
            return self.refuse_unlogged(waiter, answer, refused.into(), ctx);
        }
        if !is_copy
            && let Command::Limit(LimitCommand::Hits { asks, .. }) = &command
            && self.in_lease(ctx.now.us)
            && let Some(verdicts) = self.state.limits().refuses(asks)
        {
            return self.refuse_hits(waiter, &verdicts, ctx);
        }
        if !is_copy && let Some(error) = ctx.payload.answer_too_large(&command) {
            return ctx.out.refuse(waiter.reply, error);
        }
        if let Some(error) = self.no_room_for(&waiter, is_copy, ctx) {
            return ctx.out.refuse(waiter.reply, error);
        }
        if let (Command::Limit(command), Some(leader_state)) = (&command, &mut self.leader_state) {
            leader_state.limits.queued(command);
        }
        let command = waiter.noted(command);
        let command = match waiter.id {
            Some(id) => {
                *self.in_log.entry(id.key).or_default() += 1;
                Command::Once(id, Box::new(command))
            }
            None => command,
        };
        self.queue.push_back(Queued {
            command,
            waiter: Some(waiter),
        });
    }

    /// Refuses a write without the log, and its copies, too.
    pub fn refuse_unlogged(
        &mut self,
        waiter: Waiter,
        answer: Answer,
        error: ApiError,
        ctx: &mut NodeCtx,
    ) {
        self.remember_refusal(&waiter, answer, ctx);
        ctx.out.refuse(waiter.reply, error);
    }

    /// Copies get the same answer, from this leader.
    pub(crate) fn remember_refusal(&mut self, waiter: &Waiter, answer: Answer, ctx: &NodeCtx) {
        if let (Some(id), Some(now_ms)) = (waiter.id, self.service_ms(&ctx.reachability)) {
            self.refused.remember(id, answer, now_ms);
        }
    }

    /// The steps of a restore have no second effect, so copies of them need not be known.
    fn take_restore(&mut self, mut waiter: Waiter, command: RestoreCommand, ctx: &mut NodeCtx) {
        if let Some(error) = self.no_room_for(&waiter, false, ctx) {
            return ctx.out.refuse(waiter.reply, error);
        }
        let command = waiter.noted(Command::Restore(command));
        self.queue.push_back(Queued {
            command,
            waiter: Some(waiter),
        });
    }

    fn no_room_for(&self, waiter: &Waiter, is_copy: bool, ctx: &NodeCtx) -> Option<ApiError> {
        if ctx.has_room && self.queue.len() < QUEUE_MAX {
            return None;
        }
        let (via, in_lease) = (waiter.delivery.via, self.in_lease(ctx.now.us));
        Some(match is_copy {
            true => outcome_unknown(),
            false if ctx.has_room => turned_away(via, waiter.effect, in_lease),
            // The node that forwarded it knows whether an earlier try is in doubt.
            false if via == Via::Forwarded => disk_full(),
            false => unless_in_doubt(via, waiter.effect, in_lease, disk_full()),
        })
    }

    /// Queued commands were applied, or never will be.
    pub fn left_log<'a>(&mut self, commands: impl IntoIterator<Item = &'a Command>) {
        for command in commands {
            if let Command::Once(id, _) = command
                && let Some(copies) = self.in_log.get_mut(&id.key)
            {
                *copies -= 1;
                if *copies == 0 {
                    self.in_log.remove(&id.key);
                }
            }
        }
    }

    pub fn copy_of(&self, id: RequestId) -> Copy {
        if self.in_log.contains_key(&id.key) {
            Copy::Open
        } else if self.refused.answer(id).is_some() || self.state.requests().answer(id).is_some() {
            Copy::Answered
        } else {
            Copy::None
        }
    }

    /// Returns the refusal of an operation by the applied state, which needs no log entry: a crowd at a full
    /// line costs its leader a look-up each, not a write.
    fn refused_already(&self, name: &LineName, op: &Op, ctx: &NodeCtx) -> Option<Refused> {
        if !self.in_lease(ctx.now.us) || matches!(op, Op::Create { .. }) {
            return None;
        }
        let Some(line) = self.state.lines().get(name) else {
            return Some(Refused::LineNotFound);
        };
        if !matches!(op, Op::Enter { .. } | Op::Callback { .. }) {
            return None;
        }
        let now_ms = self.service_ms(&ctx.reachability)?;
        #[cfg(feature = "bite")]
        if nowserving_bite::is(nowserving_bite::Break::S15Refused) && line.counts().waiting > 0 {
            return Some(Refused::LineFull);
        }
        match op {
            Op::Enter { key, lane, .. } => {
                line.would_refuse_enter(key.as_deref(), lane.as_ref(), now_ms)
            }
            Op::Callback { key, lane, .. } => {
                line.would_refuse_callback(key, lane.as_ref(), now_ms)
            }
            _ => None,
        }
    }

    /// Queues the leader's own commands. The limit for requests does not apply: there is one bounded pass at
    /// a time, and the leader relies on its checkpoints.
    pub fn queue_own(&mut self, commands: impl IntoIterator<Item = Command>) {
        for command in commands {
            if let Command::Once(id, _) = &command {
                *self.in_log.entry(id.key).or_default() += 1;
            }
            self.queue.push_back(Queued {
                command,
                waiter: None,
            });
        }
    }

    /// Queues a leader's background commands. Tokens expire only after the inbox has been drained, so that
    /// unread polls count first. All other commands must not wait for that.
    pub fn propose_own(&mut self, inbox_empty: bool, ctx: &mut NodeCtx) {
        if let Some(leader_state) = &mut self.leader_state {
            let Now { us, wall_ms } = ctx.now;
            let (now, reachability) = ((us, wall_ms), &ctx.reachability);
            let commands = leader_state.propose(&self.state, now, reachability, inbox_empty);
            self.queue_own(commands);
        }
        self.answer_kicks(ctx);
    }

    /// Publishes a leader's periodic events.
    pub fn publish_own(&mut self, ctx: &mut NodeCtx) {
        if let Some(leader_state) = &mut self.leader_state {
            let Now { us, wall_ms } = ctx.now;
            let events = leader_state.publish(&self.state, us, wall_ms, &ctx.reachability);
            ctx.out.publish(events);
        }
    }

    /// The next time at which [`Shard::propose_own`] or [`Shard::publish_own`] has work, if it is known.
    pub fn next_duty_at(&self, reachability: &ClientReachability) -> Option<Micros> {
        let leader_state = self.leader_state.as_ref()?;
        leader_state.next_due(&self.state, reachability)
    }

    pub fn owes_answers(&self) -> bool {
        let queued = self.queue.iter().any(|q| q.waiter.is_some());
        let mut proposed = self.proposed.values().flat_map(|it| &it.waiters);
        queued || !self.kicks.is_empty() || !self.reads.is_empty() || proposed.any(Option::is_some)
    }

    /// Stops the service clock if nothing has been committed for so long; to be called when time has been counted.
    pub fn hold_clock(&mut self, stall_ms: u64, reachability: &ClientReachability) {
        if self.offered_since().is_some() {
            return; // It stands still already.
        }
        if let Some(leader_state) = &mut self.leader_state {
            let of_term = |((_, term), _): &(&(u64, u64), &Proposed)| *term == leader_state.term;
            let oldest = self.proposed.iter().find(of_term);
            let oldest_ms = oldest.map(|(_, proposed)| proposed.entry.now_ms);
            leader_state.hold_clock(oldest_ms, stall_ms, reachability);
        }
    }

    /// Folds queued commands into log entries.
    pub fn propose(&mut self, ctx: &mut NodeCtx) {
        while !self.queue.is_empty() {
            let Some(leader_state) = &mut self.leader_state else {
                return; // An earlier term's entries are still being applied; or we lead no more.
            };
            let now_ms = leader_state.now_ms(&self.state, &ctx.reachability);
            let mut builder = EntryBuilder::new(self.entry_format(ctx));
            let waiters = self.fold(&mut builder, ctx);
            if waiters.is_empty() {
                return; // All were refused.
            }
            let matched = self.replica.matched_by_all();
            let (entry, bytes) = builder.finish(now_ms, ctx.now.wall_ms, matched);
            match self.replica.propose(bytes) {
                Ok((term, index)) => {
                    metrics::counter!("nowserving_proposals_total").increment(1);
                    if let Some(leader_state) = &mut self.leader_state {
                        leader_state.stamped(now_ms);
                    }
                    self.dirty = true;
                    let at = ctx.now.us;
                    let proposed = Proposed { entry, at, waiters };
                    self.proposed.insert((index, term), proposed);
                    if self.queue.is_empty() {
                        self.reads.proposed(index);
                    }
                }
                Err(error) => {
                    // Nothing happened: back into the queue, in order.
                    for (command, waiter) in entry.commands.into_iter().zip(waiters).rev() {
                        self.queue.push_front(Queued { command, waiter });
                    }
                    if error == ProposeError::NotLeader {
                        self.lose_lead(ctx);
                    }
                    return;
                }
            }
        }
    }

    /// Puts as many queued commands into an entry as it takes, and returns who waits for each. Commands that a
    /// member of the group does not know are refused.
    fn fold(&mut self, builder: &mut EntryBuilder, ctx: &mut NodeCtx) -> Vec<Option<Waiter>> {
        let mut waiters = Vec::new();
        while let Some(Queued { command, waiter }) = self.queue.pop_front() {
            if command.format() > builder.format() {
                self.left_log([&command]);
                self.not_proposed(&command);
                if let Some(waiter) = waiter {
                    ctx.out.refuse(waiter.reply, older_member());
                }
                continue;
            }
            if let Some(command) = builder.push(command) {
                self.queue.push_front(Queued { command, waiter });
                break;
            }
            waiters.push(waiter);
        }
        waiters
    }

    /// The newest format of log entries that all members of the group read, whether they send frames or not: what is
    /// in the log already, each has to read.
    pub(crate) fn entry_format(&self, ctx: &NodeCtx) -> u32 {
        let told = ctx.entry_format(&self.replica.members());
        told.max(self.state.format())
    }

    /// A command of the leader's own that waits for its outcome will not have one.
    fn not_proposed(&mut self, command: &Command) {
        if let Some(leader_state) = &mut self.leader_state {
            leader_state.not_proposed(command, older_member());
        }
    }

    pub fn ask_for_reads(&mut self, now: Micros) {
        if self.reads.any_new() && self.leads() {
            // Not ready yet: asked again next turn, until the deadline.
            if let Ok(id) = self.replica.read_index(now) {
                self.reads.asked(id);
                self.dirty = true;
            }
        }
    }

    /// Called at most once a turn.
    pub fn ready(&mut self, ctx: &mut NodeCtx) -> Result<(), ExitReason> {
        #[cfg(feature = "bite")]
        if nowserving_bite::is(nowserving_bite::Break::L5)
            && self.leads()
            && self.replica.matched_by_all() + 8 < self.replica.last_index()
        {
            return Ok(());
        }
        let unreadable =
            |error: ReadFailed| ExitReason::ReadFailed(ReadFailure(std::sync::Arc::new(error)));
        let ready = self.replica.ready().map_err(unreadable)?;
        self.note_leader(ctx.now.us);
        if let Some(ready) = ready {
            self.carry_out(ready, ctx);
        }
        self.apply(ctx)?;
        // A confirmed request may begin the next kick of a line whose last one has just ended.
        self.answer_kicks(ctx);
        self.answer_confirmed(ctx);
        // Applying may have made room for more.
        self.dirty = self.replica.has_ready() || !self.committed.is_empty();
        Ok(())
    }

    fn carry_out(&mut self, ready: Ready, ctx: &mut NodeCtx) {
        if let Some(change) = ready.role {
            tracing::debug!(shard = self.id, ?change, "role");
            metrics::gauge!("nowserving_shard_leader", "shard" => self.id.to_string())
                .set(f64::from(u8::from(self.leads())));
        }
        for message in &ready.send {
            if let Some((meta, _)) = message.snapshot() {
                let to = message.receiver();
                self.snapshot_sends.offered(to, meta.index, ctx.now.us);
            }
        }
        self.snapshot_wanted |= self.replica.take_snapshot_wanted();
        let snapshot_taken = ready.write.as_ref().is_some_and(|it| it.start.is_some());
        if snapshot_taken {
            // They are in the snapshot. Raft has its members already, to which no older change may be made.
            self.committed.clear();
        }
        ctx.out.send(self.id, ready.send);
        ctx.out.writes.extend(ready.write);
        for id in ready.reads_failed {
            self.reads.failed(id);
        }
        for grant in ready.reads {
            self.reads.granted(grant.id, grant.index);
        }
        self.committed.extend(ready.committed);
    }

    /// # Errors
    /// As for [`Shard::install`].
    pub fn persisted(&mut self, number: u64, ctx: &mut NodeCtx) -> Result<(), ExitReason> {
        self.dirty = true;
        let send = self.replica.on_persisted(number);
        ctx.out.send(self.id, send);
        let installed = self.replica.take_installed();
        installed.map_or(Ok(()), |meta| self.install(&meta, ctx))
    }

    /// Cleans up if this node's leadership is over.
    pub fn check_leading(&mut self, ctx: &mut NodeCtx) {
        let over = match &self.leader_state {
            Some(leader_state) => !self.leads() || self.replica.term() != leader_state.term,
            None => !self.leads() && (!self.queue.is_empty() || !self.reads.is_empty()),
        };
        if over {
            self.lose_lead(ctx);
        }
    }

    pub fn step_down(&mut self, why: &str, ctx: &mut NodeCtx) {
        if self.leads() {
            tracing::warn!(shard = self.id, "leading no more: {why}");
            self.replica.step_down();
            self.dirty = true;
            self.check_leading(ctx);
        }
    }

    /// This node lost the lead: requests that are not in the log go to the next leader, the others keep
    /// waiting for their outcome.
    fn lose_lead(&mut self, ctx: &mut NodeCtx) {
        if let Some(leader_state) = self.leader_state.take() {
            // Its index of a million tokens takes long to free.
            let dropped = Dropped(Box::new(leader_state));
            ctx.out.outputs.push(Output::Drop(dropped));
        }
        let queued = std::mem::take(&mut self.queue);
        self.left_log(queued.iter().map(|queued| &queued.command));
        for waiter in queued.into_iter().filter_map(|queued| queued.waiter) {
            ctx.lead_lost(waiter, self);
        }
        for read in self.reads.drain() {
            ctx.lead_lost(read.waiter, self);
        }
        self.lose_kicks(ctx);
    }

    /// Answers the requests whose deadline has come.
    pub fn expire_requests(&mut self, ctx: &mut NodeCtx) {
        let now = ctx.now.us;
        for read in self.reads.expired(now) {
            ctx.at_deadline(read.waiter);
        }
        self.expire_kicks(ctx);
        let late = |it: &Queued| it.waiter.as_ref().is_some_and(|w| w.deadline <= now);
        if self.queue.iter().any(late) {
            let queue = std::mem::take(&mut self.queue).into_iter();
            let (expired, kept): (Vec<_>, Vec<_>) = queue.partition(late);
            self.queue = kept.into();
            for Queued { command, waiter } in expired {
                self.left_log([&command]);
                self.not_proposed(&command);
                if let Some(waiter) = waiter {
                    ctx.at_deadline(waiter);
                }
            }
        }
        for slot in self.proposed.values_mut().flat_map(|it| &mut it.waiters) {
            if slot.as_ref().is_some_and(|w| w.deadline <= now)
                && let Some(waiter) = slot.take()
            {
                #[cfg(feature = "bite")]
                if nowserving_bite::is(nowserving_bite::Break::S14) {
                    let undone = crate::refusals::unavailable();
                    ctx.out.refuse(waiter.reply, undone);
                    continue;
                }
                ctx.out.refuse(waiter.reply, outcome_unknown());
            }
        }
    }

    /// Forwards or refuses all waiting requests, as the node ends.
    pub fn release_waiters(&mut self, ctx: &mut NodeCtx) {
        self.lose_lead(ctx);
        self.in_log.clear();
        let proposed = std::mem::take(&mut self.proposed).into_values();
        for waiter in proposed.flat_map(|it| it.waiters).flatten() {
            ctx.out.refuse(waiter.reply, outcome_unknown());
        }
    }
}
