//! One shard on this node: its Raft group, its lines, and everybody who waits for an answer.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;
use nowserving_line::{LineName, Op, Refused, Timestamp};
use nowserving_replica::{ProposeError, ReadFailed, Ready, Replica, Role};
use nowserving_shard::clock::{ClientReachability, Micros};
use nowserving_shard::command::{Command, Entry, EntryBuilder};
use nowserving_shard::leader_state::LeaderState;
use nowserving_shard::requests::{Answer, RequestId, Requests};
use nowserving_shard::state::State;

use crate::agreement::Agreement;
use crate::delivery::{Copy, Delivery, turned_away};
use crate::io::{ExitReason, Now, ReadFailure, Subscription};
use crate::outbox::NodeCtx;
use crate::refusals::{outcome_unknown, overloaded};
use crate::request::{Ask, Effect, ReplyTo, Request};
use crate::waiting_reads::{Read, WaitingReads};

/// Operations of a shard not yet in its log at most; more are refused as overloaded.
const QUEUE_MAX: usize = 8_192;

/// A command not yet in the log.
#[derive(Debug)]
struct Queued {
    command: Command,
    waiter: Option<Waiter>,
}

/// A request without what it asks: what is needed to answer it, or to pass it on.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub shard: u32,
    pub line: LineName,
    pub effect: Effect,
    pub delivery: Delivery,
    pub reply: ReplyTo,
    pub deadline: Micros,
    pub id: Option<RequestId>,
    pub payload: Bytes,
}

impl Waiter {
    /// Takes a request apart.
    pub fn of(request: Request, delivery: Delivery) -> (Self, Ask) {
        // A forwarded request gets no time but what it was sent with.
        let timeout_us = request.deadline.saturating_sub(request.reply.taken);
        let sent_with = delivery
            .forwarded_at
            .map(|at| at.us.saturating_add(timeout_us));
        let waiter = Waiter {
            shard: request.shard,
            effect: request.ask.effect(),
            line: request.line,
            delivery,
            reply: request.reply,
            deadline: sent_with.map_or(request.deadline, |it| it.min(request.deadline)),
            id: request.id,
            payload: request.payload,
        };
        (waiter, request.ask)
    }
}

/// An entry that this node proposed.
#[derive(Debug)]
pub(crate) struct Proposed {
    /// Kept so that its bytes need not be decoded.
    pub entry: Entry,
    /// For each command its waiter; empty if nobody waits here.
    pub waiters: Vec<Option<Waiter>>,
}

/// One shard.
pub(crate) struct Shard {
    /// Its number.
    pub id: u32,
    /// Its Raft group.
    pub replica: Replica,
    /// Its state, as applied.
    pub state: State,
    /// Set while this node leads and has applied everything of earlier terms.
    pub leader_state: Option<LeaderState>,
    /// How this node listens on its subjects.
    pub subscription: Subscription,
    /// Something may have to go out: ask for a `ready`.
    pub dirty: bool,
    /// Index of the newest snapshot on disk.
    pub snapshot_index: u64,
    /// A snapshot is being written.
    pub snapshotting: bool,
    /// Every voter has the log through here, as the newest leader to say so saw it.
    pub compact_floor: u64,
    /// Whether the nodes have the same state.
    pub agreement: Agreement,
    /// When the lease was last asked for.
    pub lease_asked_at: Micros,
    /// The newest term that this node knows of, and who leads in it.
    leader: (u64, Option<u64>),
    /// Since when.
    leader_since: Micros,
    /// In which term and when leadership was last offered to another node.
    pub offered: Option<(u64, Micros)>,
    /// The log names it as one that keeps old files alive.
    pub pins_files: bool,
    /// After a failed snapshot: not before this.
    pub snapshot_not_before: Micros,
    queue: VecDeque<Queued>,
    /// Requests with an id that are queued or in the log, not yet applied, and how many copies of each.
    in_log: HashMap<u128, u32>,
    /// What this node, as the leader, refused from its state: copies are refused as well. The log has
    /// nothing of them.
    refused: Requests,
    /// By index and term. An index can be there twice: a node that lost the lead and got it again may
    /// propose at lower indexes than before, while the outcome of those is still open.
    pub proposed: BTreeMap<(u64, u64), Proposed>,
    pub reads: WaitingReads,
}

impl Shard {
    /// Starts from what was restored.
    pub fn new(id: u32, replica: Replica, state: State, snapshot_index: u64, now: Micros) -> Self {
        Shard {
            id,
            state,
            leader_state: None,
            subscription: Subscription::No,
            dirty: true,
            snapshot_index,
            snapshotting: false,
            compact_floor: 0,
            agreement: Agreement::default(),
            lease_asked_at: 0,
            leader: (replica.term(), replica.leader()),
            leader_since: now,
            replica,
            offered: None,
            pins_files: false,
            snapshot_not_before: 0,
            queue: VecDeque::new(),
            in_log: HashMap::new(),
            refused: Requests::default(),
            proposed: BTreeMap::new(),
            reads: WaitingReads::default(),
        }
    }

    /// Whether this node leads the shard, as far as it knows.
    pub fn leads(&self) -> bool {
        self.replica.role() == Role::Leader
    }

    /// To be called whenever Raft's leader may have changed.
    pub fn note_leader(&mut self, now: Micros) {
        let leader = (self.replica.term(), self.replica.leader());
        if self.leader != leader {
            self.leader = leader;
            self.leader_since = now;
        }
    }

    /// Since when this node has known the present leader, if it knows one.
    pub fn leader_since(&self) -> Option<Micros> {
        self.leader.1.map(|_| self.leader_since)
    }

    /// Whether reads can be answered from the applied state without asking anybody.
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

    /// The time of an answer given now. Only a leader's service clock runs: on another node it is
    /// what the log has said last.
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

    /// Takes a request as the leader: answers at once what needs neither log nor quorum.
    pub fn take(&mut self, waiter: Waiter, ask: Ask, ctx: &mut NodeCtx) {
        match ask {
            Ask::Write(op) => self.take_write(waiter, op, ctx),
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

    fn take_write(&mut self, waiter: Waiter, op: Op, ctx: &mut NodeCtx) {
        if let Some(id) = waiter.id {
            let in_lease = self.in_lease(ctx.now.us);
            let answered = self.state.requests().answer(id).filter(|_| in_lease);
            if let Some(answer) = self.refused.answer(id).or(answered).cloned() {
                return self.answer_copy(waiter, &op, &answer, ctx);
            }
        }
        // The first of two copies may get what the second would be refused, and the other way round.
        let is_copy = waiter
            .id
            .is_some_and(|id| self.in_log.contains_key(&id.key));
        if !is_copy && let Some(refused) = self.refused_already(&waiter.line, &op, ctx) {
            if let (Some(id), Some(now_ms)) = (waiter.id, self.service_ms(&ctx.reachability)) {
                self.refused
                    .remember(id, Answer::Refused(refused.clone()), now_ms);
            }
            return ctx.out.refuse(waiter.reply, refused.into());
        }
        if self.queue.len() >= QUEUE_MAX {
            let error = match is_copy {
                true => outcome_unknown(),
                false => turned_away(
                    waiter.delivery.via,
                    waiter.effect,
                    self.in_lease(ctx.now.us),
                ),
            };
            return ctx.out.refuse(waiter.reply, error);
        }
        let command = match waiter.id {
            Some(id) => {
                *self.in_log.entry(id.key).or_default() += 1;
                Command::Once(id, Box::new(Command::Line(op)))
            }
            None => Command::Line(op),
        };
        self.queue.push_back(Queued {
            command,
            waiter: Some(waiter),
        });
    }

    /// Commands that were queued are applied, or will not be.
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

    /// What this node knows of another copy of a request.
    pub fn copy_of(&self, id: RequestId) -> Copy {
        if self.in_log.contains_key(&id.key) {
            Copy::Open
        } else if self.refused.answer(id).is_some() || self.state.requests().answer(id).is_some() {
            Copy::Answered
        } else {
            Copy::None
        }
    }

    /// What the applied state refuses now needs no log entry: a crowd that hammers on a full line
    /// costs its leader a look-up each, not a write.
    fn refused_already(&self, name: &LineName, op: &Op, ctx: &NodeCtx) -> Option<Refused> {
        if !self.in_lease(ctx.now.us) || matches!(op, Op::Create { .. }) {
            return None;
        }
        let Some(line) = self.state.lines().get(name) else {
            return Some(Refused::LineNotFound);
        };
        let Op::Enter { key, lane, .. } = op else {
            return None;
        };
        let now_ms = self.service_ms(&ctx.reachability)?;
        #[cfg(feature = "bite")]
        if nowserving_bite::is(nowserving_bite::Break::S15Refused) && line.counts().waiting > 0 {
            return Some(Refused::LineFull);
        }
        line.would_refuse_enter(key.as_deref(), lane.as_ref(), now_ms)
    }

    /// Queues commands of the leader's own, over the users' limit if need be: there is one
    /// bounded pass of them at a time, and a checkpoint that was dropped would be counted on.
    pub fn queue_own(&mut self, commands: impl IntoIterator<Item = Command>) {
        let queued = commands.into_iter().map(|command| Queued {
            command,
            waiter: None,
        });
        self.queue.extend(queued);
    }

    /// Queues what a leader proposes of itself now. Tokens expire only after the inbox has been
    /// drained, so that a poll which lies there unread counts first. Everything else must not wait
    /// for that.
    pub fn propose_own(&mut self, inbox_empty: bool, ctx: &mut NodeCtx) {
        if let Some(leader_state) = &mut self.leader_state {
            let (now, reachability) = (ctx.now.us, &ctx.reachability);
            let commands = leader_state.propose(&self.state, now, reachability, inbox_empty);
            self.queue_own(commands);
        }
    }

    /// Publishes what a leader publishes of itself now.
    pub fn publish_own(&mut self, ctx: &mut NodeCtx) {
        if let Some(leader_state) = &mut self.leader_state {
            let Now { us, wall_ms } = ctx.now;
            let events = leader_state.publish(&self.state, us, wall_ms, &ctx.reachability);
            ctx.out.publish(events);
        }
    }

    /// When [`Shard::propose_own`] or [`Shard::publish_own`] will have something to do, if that can be
    /// told: the node must not sleep longer.
    pub fn next_duty_at(&self, reachability: &ClientReachability) -> Option<Micros> {
        let leader_state = self.leader_state.as_ref()?;
        leader_state.next_due(&self.state, reachability)
    }

    /// Whether somebody still waits for an answer from here.
    pub fn owes_answers(&self) -> bool {
        let queued = self.queue.iter().any(|q| q.waiter.is_some());
        let mut proposed = self.proposed.values().flat_map(|it| &it.waiters);
        queued || !self.reads.is_empty() || proposed.any(Option::is_some)
    }

    /// Folds what is queued into log entries.
    pub fn propose(&mut self, ctx: &mut NodeCtx) {
        while !self.queue.is_empty() {
            let Some(leader_state) = &mut self.leader_state else {
                return; // An earlier term's entries are still being applied; or we lead no more.
            };
            let now_ms = leader_state.now_ms(&self.state, &ctx.reachability);
            let mut builder = EntryBuilder::default();
            let mut waiters = Vec::new();
            while let Some(Queued { command, waiter }) = self.queue.pop_front() {
                if let Some(command) = builder.push(command) {
                    self.queue.push_front(Queued { command, waiter });
                    break;
                }
                waiters.push(waiter);
            }
            let matched = self.replica.matched_by_all();
            let (entry, bytes) = builder.finish(now_ms, ctx.now.wall_ms, matched);
            match self.replica.propose(bytes) {
                Ok((term, index)) => {
                    metrics::counter!("nowserving_proposals_total").increment(1);
                    leader_state.stamped(now_ms);
                    self.dirty = true;
                    let proposed = Proposed { entry, waiters };
                    self.proposed.insert((index, term), proposed);
                    if self.queue.is_empty() {
                        self.reads.proposed(index);
                    }
                }
                Err(error) => {
                    // Back where it was, in order: nothing happened.
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

    /// Asks for a confirmation round if reads wait for one.
    pub fn ask_for_reads(&mut self, now: Micros) {
        if self.reads.any_new() && self.leads() {
            // Not ready yet: asked again next turn, until the deadline.
            if let Ok(id) = self.replica.read_index(now) {
                self.reads.asked(id);
                self.dirty = true;
            }
        }
    }

    /// At most one `ready` a turn.
    pub fn ready(&mut self, ctx: &mut NodeCtx) -> Result<(), ExitReason> {
        let unreadable =
            |error: ReadFailed| ExitReason::ReadFailed(ReadFailure(std::sync::Arc::new(error)));
        let ready = self.replica.ready().map_err(unreadable)?;
        self.dirty = self.replica.has_ready();
        self.note_leader(ctx.now.us);
        ready.map_or(Ok(()), |ready| self.carry_out(ready, ctx))
    }

    fn carry_out(&mut self, ready: Ready, ctx: &mut NodeCtx) -> Result<(), ExitReason> {
        if let Some(change) = ready.role {
            tracing::debug!(shard = self.id, ?change, "role");
            metrics::gauge!("nowserving_shard_leader", "shard" => self.id.to_string())
                .set(f64::from(u8::from(self.leads())));
        }
        ctx.out.send(self.id, ready.send);
        ctx.out.writes.extend(ready.write);
        for id in ready.reads_failed {
            self.reads.failed(id);
        }
        for grant in ready.reads {
            self.reads.granted(grant.id, grant.index);
        }
        self.apply(ready.committed, ctx)?;
        self.answer_confirmed(ctx);
        // Applying may have made room for more.
        self.dirty |= self.replica.has_ready();
        Ok(())
    }

    /// A write of this shard is durable.
    pub fn persisted(&mut self, number: u64, ctx: &mut NodeCtx) {
        self.dirty = true;
        let send = self.replica.on_persisted(number);
        ctx.out.send(self.id, send);
    }

    /// Looks whether this node's leadership is over.
    pub fn check_leading(&mut self, ctx: &mut NodeCtx) {
        let over = match &self.leader_state {
            Some(leader_state) => !self.leads() || self.replica.term() != leader_state.term,
            None => !self.leads() && (!self.queue.is_empty() || !self.reads.is_empty()),
        };
        if over {
            self.lose_lead(ctx);
        }
    }

    /// Leads no more, for this reason.
    pub fn step_down(&mut self, why: &str, ctx: &mut NodeCtx) {
        if self.leads() {
            tracing::warn!(shard = self.id, "leading no more: {why}");
            self.replica.step_down();
            self.dirty = true;
            self.check_leading(ctx);
        }
    }

    /// This node leads no more: what is not in the log goes to the next leader, what is keeps waiting
    /// for its outcome.
    fn lose_lead(&mut self, ctx: &mut NodeCtx) {
        self.leader_state = None;
        let queued = std::mem::take(&mut self.queue);
        self.left_log(queued.iter().map(|queued| &queued.command));
        for waiter in queued.into_iter().filter_map(|queued| queued.waiter) {
            ctx.lead_lost(waiter, self);
        }
        for read in self.reads.drain() {
            ctx.lead_lost(read.waiter, self);
        }
    }

    /// Answers everybody whose deadline has come.
    pub fn expire_requests(&mut self, ctx: &mut NodeCtx) {
        let now = ctx.now.us;
        for read in self.reads.expired(now) {
            ctx.at_deadline(read.waiter);
        }
        let late = |it: &Queued| it.waiter.as_ref().is_some_and(|w| w.deadline <= now);
        if self.queue.iter().any(late) {
            let queue = std::mem::take(&mut self.queue).into_iter();
            let (expired, kept): (Vec<_>, Vec<_>) = queue.partition(late);
            self.queue = kept.into();
            for Queued { command, waiter } in expired {
                self.left_log([&command]);
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

    /// The node ends: everybody who still waits is told what is known, or passed on.
    pub fn release_waiters(&mut self, ctx: &mut NodeCtx) {
        self.lose_lead(ctx);
        self.in_log.clear();
        let proposed = std::mem::take(&mut self.proposed).into_values();
        for waiter in proposed.flat_map(|it| it.waiters).flatten() {
            ctx.out.refuse(waiter.reply, outcome_unknown());
        }
    }
}
