//! One shard on this node: its Raft group, its lines, and the requests that wait for an answer.

use std::collections::{BTreeMap, VecDeque};

use nowserving_line::{LineName, Op, Refused, Timestamp};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::kick::Kick;
use nowserving_replica::{
    Committed, Message, ProposeError, ReadFailed, Ready, Replica, Role, SnapshotMeta, StepRefused,
};
use nowserving_shard::clock::{ClientReachability, Micros};
use nowserving_shard::command::{Command, EntryBuilder};
use nowserving_shard::leader_state::LeaderState;
use nowserving_shard::limits::LimitCommand;
use nowserving_shard::members::MembersCommand;
use nowserving_shard::requests::{Answer, RequestId};
use nowserving_shard::restore::RestoreCommand;
use nowserving_shard::state::State;

use crate::agreement::Agreement;
use crate::ctx::{KnownLeader, NodeCtx};
use crate::delivery::Via;
use crate::draw::draw;
use crate::following::Following;
use crate::io::{Dropped, ExitReason, Now, Output, ReadFailure, Subscription};
use crate::leading::{Leading, Offer};
use crate::refusals::{disk_full, outcome_unknown, overloaded};
use crate::request::Ask;
use crate::requests::decide::{Copy, turned_away, unless_in_doubt};
use crate::requests::pending::{Pending, Proposed};
use crate::requests::waiter::Waiter;
use crate::requests::waiting_reads::Read;
use crate::snapshots::Snapshots;

mod apply;
#[cfg(test)]
mod builds_tests;
#[cfg(test)]
mod kv_tests;
mod limits;
#[cfg(test)]
mod limits_tests;
#[cfg(test)]
mod replay_tests;

/// Of tables whose keys clients have a say in.
fn table_seed(seed: u64, shard: u32) -> u128 {
    let [high, low] = [3, 4].map(|nth| u128::from(draw([seed, shard.into(), nth])));
    high << 64 | low
}

/// The shards of a node, by number.
pub(crate) type Shards = BTreeMap<u32, Shard>;

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
    pub snapshots: Snapshots,
    pub agreement: Agreement,
    pub following: Following,
    pub leading: Leading,
    pub pending: Pending,
    /// Still to be applied.
    pub(crate) committed: VecDeque<Committed>,
}

impl Shard {
    pub fn new(id: u32, replica: Replica, mut state: State, seed: u64, now: Micros) -> Self {
        let seed = table_seed(seed, id);
        state.set_seed(seed);
        Shard {
            id,
            state,
            leader_state: None,
            subscription: Subscription::No,
            dirty: true,
            snapshots: Snapshots::default(),
            agreement: Agreement::default(),
            following: Following::new(&replica, now),
            leading: Leading::default(),
            pending: Pending::new(seed),
            committed: VecDeque::new(),
            replica,
        }
    }

    /// Whether this node believes that it leads the shard.
    pub fn leads(&self) -> bool {
        self.replica.role() == Role::Leader
    }

    /// Since when this node leads it and may hand it over. A node that is `unfit` need not be ready to lead for that:
    /// with a full disk it never gets ready, as it cannot store the first entry of its term.
    pub fn leading_since(&self, unfit: bool) -> Option<Micros> {
        match &self.leader_state {
            Some(leader_state) => Some(leader_state.began_at),
            None if unfit && self.leads() => self.following.leader_since(),
            None => None,
        }
    }

    /// Must be called whenever Raft's leader may have changed.
    pub fn note_leader(&mut self, now: Micros) {
        self.following.note(&self.replica, now);
    }

    pub fn known_leader(&self) -> KnownLeader {
        KnownLeader {
            id: self.replica.leader(),
            term: self.replica.term(),
            since: self.following.leader_since().unwrap_or_default(),
        }
    }

    /// Sets for how long this node waits before it stands for election.
    pub fn set_election_delay(&mut self, me: u64, election_ticks: u64) {
        let replica = &mut self.replica;
        self.following
            .set_election_delay(me, self.id, election_ticks, replica);
    }

    /// A peer needs to be told of a snapshot again.
    pub fn offer_snapshot_again(&mut self, peer: u64, now: Micros) {
        let sends = &mut self.snapshots.sends;
        self.dirty |= sends.offer_again(peer, &mut self.replica, now);
    }

    pub fn check_snapshots(&mut self, now: Micros) {
        self.dirty |= self.snapshots.sends.check(&mut self.replica, now);
        let applied = self.replica.applied();
        self.snapshots.receiving.check(applied, now);
    }

    /// Whether reads can be answered from the applied state without a quorum.
    pub fn in_lease(&self, now: Micros) -> bool {
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
            _ if self.pending.reads.is_full() => ctx.out.refuse(waiter.reply, overloaded()),
            ask => self.pending.reads.push(Read {
                waiter,
                ask,
                touched: false,
            }),
        }
    }

    pub(crate) fn take_write(&mut self, waiter: Waiter, command: Command, ctx: &mut NodeCtx) {
        let gives_back = self.gives_back(waiter.id);
        if let Some(id) = waiter.id.filter(|_| !gives_back) {
            let in_lease = self.in_lease(ctx.now.us);
            let answered = self.state.requests().answer(id).filter(|_| in_lease);
            // What is done is the newer answer: a later leader may have done what this node refused as an earlier one.
            if let Some(answer) = answered.or_else(|| self.pending.refused(id)) {
                if let Some(leader_state) = &mut self.leader_state {
                    leader_state.limits.keep(id.key);
                }
                return self.answer_copy(waiter, &command, &answer, ctx);
            }
        }
        // The second of two copies must get the answer of the first, which may differ from a refusal now.
        let in_log = |id: RequestId| self.pending.has_in_log(id.key);
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
            Some(id) => Command::Once(id, Box::new(command)),
            None => command,
        };
        self.pending.push(command, Some(waiter));
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
        if let Some(id) = waiter.id {
            self.pending.remember_refusal(id, answer, ctx.now.us);
        }
    }

    /// The steps of a restore have no second effect, so copies of them need not be known.
    fn take_restore(&mut self, waiter: Waiter, command: RestoreCommand, ctx: &mut NodeCtx) {
        if let Some(error) = self.no_room_for(&waiter, false, ctx) {
            return ctx.out.refuse(waiter.reply, error);
        }
        let command = waiter.noted(Command::Restore(command));
        self.pending.push(command, Some(waiter));
    }

    fn no_room_for(&self, waiter: &Waiter, is_copy: bool, ctx: &NodeCtx) -> Option<ApiError> {
        if ctx.has_room && !self.pending.is_full() {
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

    pub fn copy_of(&self, id: RequestId) -> Copy {
        self.pending.copy_of(id, &self.state)
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

    /// Queues a leader's background commands. Tokens expire only after the inbox has been drained, so that
    /// unread polls count first. All other commands must not wait for that.
    pub fn propose_own(&mut self, inbox_empty: bool, ctx: &mut NodeCtx) {
        if let Some(leader_state) = &mut self.leader_state {
            let Now { us, wall_ms } = ctx.now;
            let (now, reachability) = ((us, wall_ms), &ctx.reachability);
            let commands = leader_state.propose(&self.state, now, reachability, inbox_empty);
            self.pending.push_own(commands);
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

    /// Stops the service clock if nothing has been committed for so long; to be called when time has been counted.
    pub fn hold_clock(&mut self, stall_ms: u64, reachability: &ClientReachability) {
        if self.offer_of_term().is_some() {
            return; // It stands still already.
        }
        if let Some(leader_state) = &mut self.leader_state {
            let oldest = self.pending.oldest_of(leader_state.term);
            leader_state.hold_clock(oldest.map(|it| it.entry.now_ms), stall_ms, reachability);
        }
    }

    /// Folds queued commands into log entries.
    pub fn propose(&mut self, ctx: &mut NodeCtx) {
        while self.pending.is_any_queued() {
            let format = self.entry_format(ctx);
            let Some(leader_state) = &mut self.leader_state else {
                return; // An earlier term's entries are still being applied; or we lead no more.
            };
            let now_ms = leader_state.now_ms(&self.state, &ctx.reachability);
            let mut builder = EntryBuilder::new(format);
            let waiters = self.pending.fold(&mut builder, leader_state, &mut ctx.out);
            if waiters.is_empty() {
                return; // All were refused.
            }
            let matched = self.replica.matched_by_all();
            let (entry, bytes) = builder.finish(now_ms, ctx.now.wall_ms, matched);
            match self.replica.propose(bytes) {
                Ok((term, index)) => {
                    metrics::counter!("nowserving_proposals_total").increment(1);
                    leader_state.stamped(now_ms);
                    self.dirty = true;
                    let at = ctx.now.us;
                    let proposed = Proposed { entry, at, waiters };
                    self.pending.proposed(index, term, proposed);
                }
                Err(error) => {
                    // Nothing happened.
                    self.pending.put_back(entry.commands, waiters);
                    if error == ProposeError::NotLeader {
                        self.lose_lead(ctx);
                    }
                    return;
                }
            }
        }
    }

    /// The newest format of log entries that all members of the group read, whether they send frames or not: what is
    /// in the log already, each has to read.
    pub(crate) fn entry_format(&self, ctx: &NodeCtx) -> u32 {
        let told = ctx.entry_format(&self.replica.members());
        told.max(self.state.format())
    }

    pub fn ask_for_reads(&mut self, now: Micros) {
        if self.pending.reads.any_new() && self.leads() {
            // Not ready yet: asked again next turn, until the deadline.
            if let Ok(id) = self.replica.read_index(now) {
                self.pending.reads.asked(id);
                self.dirty = true;
            }
        }
    }

    /// Called at most once a turn.
    pub fn ready(&mut self, ctx: &mut NodeCtx) -> Result<(), ExitReason> {
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
                self.snapshots.sends.offered(to, meta.index, ctx.now.us);
            }
        }
        let wanted = self.replica.take_snapshot_wanted();
        self.snapshots.own.want(wanted);
        let snapshot_taken = ready.write.as_ref().is_some_and(|it| it.start.is_some());
        if snapshot_taken {
            // They are in the snapshot. Raft has its members already, to which no older change may be made.
            self.committed.clear();
        }
        ctx.out.send(self.id, ready.send);
        ctx.out.writes.extend(ready.write);
        for id in ready.reads_failed {
            self.pending.reads.failed(id);
        }
        for grant in ready.reads {
            self.pending.reads.granted(grant.id, grant.index);
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
            None => {
                let waits = self.pending.is_any_queued() || !self.pending.reads.is_empty();
                !self.leads() && waits
            }
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
        self.pending.lead_lost(self.known_leader(), ctx);
    }

    /// Answers the requests whose deadline has come, and forgets refusals that are too old.
    pub fn expire_requests(&mut self, ctx: &mut NodeCtx) {
        self.pending.expire(self.leader_state.as_mut(), ctx);
    }

    /// Forwards or refuses all waiting requests, as the node ends.
    pub fn release_waiters(&mut self, ctx: &mut NodeCtx) {
        self.lose_lead(ctx);
        self.pending.release(&mut ctx.out);
    }

    /// Takes a peer's Raft message.
    ///
    /// # Errors
    /// [`StepRefused`]
    pub fn step(&mut self, message: Message, ctx: &mut NodeCtx) -> Result<(), StepRefused> {
        self.dirty = true;
        let (receiving, replica) = (&mut self.snapshots.receiving, &mut self.replica);
        receiving.step(
            self.id,
            message,
            replica,
            ctx.disk_full,
            ctx.now.us,
            &mut ctx.out,
        )
    }

    /// The log begins anew behind the received snapshot: the state in it is the shard's now.
    ///
    /// # Errors
    /// Raft installed another one, which is a bug; this node's state would be wrong.
    fn install(&mut self, meta: &SnapshotMeta, ctx: &mut NodeCtx) -> Result<(), ExitReason> {
        let (shard, index) = (self.id, meta.index);
        let Some(mut state) = self.snapshots.receiving.take_installed(shard, meta) else {
            let what = format!("shard {shard}: no state for the snapshot through {index}");
            return Err(ExitReason::EntryUnreadable(what));
        };
        state.set_seed(table_seed(ctx.seed, shard));
        ctx.rules_changed = true;
        let old = std::mem::replace(&mut self.state, state);
        let old = match nowserving_bite::is(nowserving_bite::Break::S17Install) {
            true => std::mem::replace(&mut self.state, old),
            false => old,
        };
        ctx.out.outputs.push(Output::Drop(Dropped(Box::new(old))));
        ctx.members_changed = true;
        self.pending.replaced(index, &mut ctx.out);
        Ok(())
    }

    /// Begins a kick as the leader.
    fn kick(&mut self, waiter: Waiter, ask: &Kick, ctx: &mut NodeCtx) {
        if !ask.dry_run && !ctx.has_room {
            return ctx.out.refuse(waiter.reply, disk_full());
        }
        let Some(leader_state) = &mut self.leader_state else {
            return ctx.lead_lost(waiter, self.known_leader());
        };
        let kicks = &mut self.pending.kicks;
        kicks.begin(waiter, ask, leader_state, &self.state, &mut ctx.out);
    }

    /// Answers the requests of finished kicks.
    fn answer_kicks(&mut self, ctx: &mut NodeCtx) {
        let in_lease = self.in_lease(ctx.now.us);
        if let Some(leader_state) = &mut self.leader_state {
            self.pending.kicks.answer(leader_state, in_lease, ctx);
        }
    }

    /// Whether this node leads, all members have the whole log, no read waits, and the lease has so long to run that its
    /// last round was answered. Then heartbeats may be rarer.
    pub fn is_quiet(&self, lease_left_us: Micros, now: Micros) -> bool {
        let replica = &self.replica;
        self.in_lease(now + lease_left_us)
            && self.pending.reads.is_empty()
            && replica.committed() == replica.last_index()
            && replica.matched_by_all() == replica.last_index()
    }

    /// If this node leads, it tells the followers so, and renews its lease by their answers.
    pub fn heartbeat(&mut self, now: Micros) {
        if self.leads() {
            self.replica.heartbeat(now);
            self.leading.told = self.replica.committed();
            self.dirty = true;
        }
    }

    /// Whether this node leads, and something was committed since the last heartbeat: followers answer lists and `local`
    /// reads, so they should not wait for the next one.
    pub fn has_untold_commits(&self) -> bool {
        self.leads() && self.replica.committed() > self.leading.told
    }

    /// Hands leadership over.
    pub fn offer(&mut self, target: u64, ctx: &mut NodeCtx) {
        self.write_before_leaving(ctx);
        match self.replica.transfer_leader(target) {
            Ok(()) => {
                let term = self.replica.term();
                self.leading.offered(term, target, ctx.now.us);
                if let Some(leader_state) = &mut self.leader_state {
                    leader_state.stop_clock(&ctx.reachability);
                }
                tracing::info!(shard = self.id, target, "handing over");
                self.dirty = true;
            }
            Err(error) => tracing::debug!(shard = self.id, target, %error, "no hand-over"),
        }
    }

    /// The hand-over of this term, after which it has no lease.
    pub fn offer_of_term(&self) -> Option<Offer> {
        self.leading.offer_of(self.replica.term())
    }

    /// Whether this node may take the shard's requests as its leader, and does not yet.
    pub fn begins_to_serve(&self, now: Micros) -> bool {
        self.in_lease(now) && !self.serves_as_leader()
    }

    /// Writes the service clock and the refusals to the log before a hand-over, so that the next leader does not
    /// begin behind them.
    fn write_before_leaving(&mut self, ctx: &mut NodeCtx) {
        let Some(leader_state) = &mut self.leader_state else {
            return;
        };
        let last = leader_state.propose_last(&self.state, ctx.now.us, &ctx.reachability);
        self.pending.push_own(last);
        self.propose(ctx);
    }
}
