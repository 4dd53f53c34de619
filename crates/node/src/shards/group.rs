//! One shard on this node: its Raft group, its lines, and everybody who waits for an answer.

use std::collections::{BTreeMap, VecDeque};

use nowserving_line::{LineName, Op, Timestamp};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_replica::{ProposeError, Replica, Role};
use nowserving_shard::command::{Command, Entry, EntryBuilder};
use nowserving_shard::state::State;

use super::outbox::Outbox;
use super::reads::Reads;
use crate::clock::monotonic_us;
use crate::request::{ReplyTo, Request};
use nowserving_engine::agreement::Agreement;
use nowserving_engine::refusals::{outcome_unknown, overloaded, unavailable};
use nowserving_engine::{Ask, Effect};
use nowserving_shard::clock::{ClientReachability, Micros};
use nowserving_shard::leader_state::LeaderState;

/// Operations of a shard not yet in its log at most; more are refused as overloaded.
const QUEUE_MAX: usize = 8_192;

/// A command not yet in the log.
#[derive(Debug)]
struct Queued {
    command: Command,
    waiter: Option<Waiter>,
}

/// Somebody who waits for the outcome of an operation.
#[derive(Debug)]
pub struct Waiter {
    /// Where the answer goes.
    pub reply: ReplyTo,
    /// Until when.
    pub deadline: Micros,
}

/// An entry that this node proposed.
#[derive(Debug)]
pub struct Proposed {
    /// Kept so that its bytes need not be decoded.
    pub entry: Entry,
    /// For each command its waiter; empty if nobody waits here.
    pub waiters: Vec<Option<Waiter>>,
}

impl From<Entry> for Proposed {
    fn from(entry: Entry) -> Self {
        Proposed {
            entry,
            waiters: Vec::new(),
        }
    }
}

/// What every step of a shard needs of its node.
#[derive(Debug)]
pub struct Turn<'a> {
    /// Monotonic.
    pub now: Micros,
    /// The wall clock, for display.
    pub wall_ms: u64,
    /// What the node heard.
    pub reachability: &'a ClientReachability,
    /// Where output goes.
    pub out: &'a mut Outbox,
}

/// One shard.
pub struct Shard {
    /// Its number.
    pub id: u32,
    /// Its Raft group.
    pub replica: Replica,
    /// Its state, as applied.
    pub state: State,
    /// Set while this node leads and has applied everything of earlier terms.
    pub leader_state: Option<LeaderState>,
    /// Something may have to go out: ask for a `ready`.
    pub dirty: bool,
    /// Index of the newest snapshot on disk.
    pub snapshot_index: u64,
    /// A snapshot is being written.
    pub snapshotting: bool,
    /// Every voter has the log through here, as the newest leader to say so saw it.
    pub compact_floor: u64,
    /// Whether the nodes have the same state.
    pub(super) agreement: Agreement,
    /// When the lease was last asked for.
    pub(super) lease_asked_at: Micros,
    /// In which term and when leadership was last offered to another node.
    pub(super) offered: Option<(u64, Micros)>,
    /// The log names it as one that keeps old files alive.
    pub(super) pins_files: bool,
    /// After a failed snapshot: not before this.
    pub(super) snapshot_not_before: Micros,
    /// No further steps before this.
    pub(super) step_not_before: Micros,
    queue: VecDeque<Queued>,
    /// Entries of ours that are not known to be committed, by index and term. An index can be there twice: who lost the lead and got it again may
    /// propose at lower indexes than before, while the outcome of those is still open.
    pub(super) proposed: BTreeMap<(u64, u64), Proposed>,
    pub(super) reads: Reads,
}

impl Shard {
    /// Starts from what was restored.
    #[must_use]
    pub fn new(id: u32, replica: Replica, state: State, snapshot_index: u64) -> Self {
        Shard {
            id,
            replica,
            state,
            leader_state: None,
            dirty: true,
            snapshot_index,
            snapshotting: false,
            compact_floor: 0,
            agreement: Agreement::default(),
            lease_asked_at: 0,
            offered: None,
            pins_files: false,
            snapshot_not_before: 0,
            step_not_before: 0,
            queue: VecDeque::new(),
            proposed: BTreeMap::new(),
            reads: Reads::default(),
        }
    }

    /// Whether this node leads the shard, as far as it knows.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.replica.role() == Role::Leader
    }

    /// Whether reads can be answered from the applied state without asking anybody. Reads the
    /// clock anew: the turn's own reading may be as old as the turn is long.
    #[must_use]
    pub fn in_lease(&self) -> bool {
        self.leader_state.is_some()
            && self
                .replica
                .lease_until()
                .is_some_and(|until| monotonic_us() < until)
    }

    /// The time of an answer given now. Only a leader's service clock runs: on another node it is
    /// what the log has said last.
    pub(super) fn now(&self, turn: &Turn<'_>) -> Timestamp {
        let leader_state = self.leader_state.as_ref();
        let clock_ms =
            leader_state.map(|leader_state| leader_state.shown_ms(turn.now, turn.reachability));
        Timestamp {
            service_ms: clock_ms.unwrap_or(0).max(self.state.now_ms()),
            wall_ms: turn.wall_ms,
        }
    }

    /// Takes a request in: answers at once what needs neither log nor quorum.
    pub fn take(&mut self, request: Request, turn: &mut Turn<'_>) {
        if request.deadline <= turn.now {
            // Its sender has given up and may have repeated it: done now, it could undo or double
            // what came of that.
            return turn
                .out
                .refuse(request.reply, request.deadline, unavailable());
        }
        if request.ask.effect() == Effect::ReadLocal {
            return self.answer_read(request, self.now(turn), turn);
        }
        if !self.leads() {
            let error = ApiError::not_leader(self.replica.leader());
            return turn.out.refuse(request.reply, request.deadline, error);
        }
        if request.ask.effect().is_write() {
            return self.take_write(request, turn);
        }
        let linearizable = matches!(
            request.ask,
            Ask::Status {
                consistency: nowserving_protocol::user::Consistency::Linearizable,
                ..
            } | Ask::Info(nowserving_protocol::user::Consistency::Linearizable)
        );
        if !linearizable && self.in_lease() {
            return self.answer_leading(request, turn);
        }
        if self.reads.is_full() {
            return turn
                .out
                .refuse(request.reply, request.deadline, overloaded());
        }
        self.reads.push(request);
    }

    fn take_write(&mut self, request: Request, turn: &mut Turn<'_>) {
        let Ask::Write(op) = request.ask else {
            return;
        };
        if let Some(error) = self.refused_already(&request.line, &op, turn) {
            return turn.out.refuse(request.reply, request.deadline, error);
        }
        if self.queue.len() >= QUEUE_MAX {
            return turn
                .out
                .refuse(request.reply, request.deadline, overloaded());
        }
        let waiter = Waiter {
            reply: request.reply,
            deadline: request.deadline,
        };
        self.queue.push_back(Queued {
            command: Command::Line(op),
            waiter: Some(waiter),
        });
    }

    /// What the applied state refuses now needs no log entry: a crowd that hammers on a full line
    /// costs its leader a look-up each, not a write.
    fn refused_already(&self, name: &LineName, op: &Op, turn: &Turn<'_>) -> Option<ApiError> {
        if !self.in_lease() || matches!(op, Op::Create { .. }) {
            return None;
        }
        let Some(line) = self.state.lines().get(name) else {
            return Some(nowserving_line::Refused::LineNotFound.into());
        };
        let Op::Enter { key, lane, .. } = op else {
            return None;
        };
        let clock_ms = self
            .leader_state
            .as_ref()
            .map(|leader_state| leader_state.now_ms(turn.reachability));
        let now_ms = clock_ms.unwrap_or(0).max(self.state.now_ms());
        line.would_refuse_enter(key.as_deref(), lane.as_ref(), now_ms)
            .map(ApiError::from)
    }

    /// Queues a command of the leader's own, over the users' limit if need be: there is one
    /// bounded pass of them at a time, and a checkpoint that was dropped would be counted on.
    pub fn queue_own(&mut self, command: Command) {
        if let Some(leader_state) = &mut self.leader_state {
            leader_state.own_queued(&command);
        }
        self.queue.push_back(Queued {
            command,
            waiter: None,
        });
    }

    /// Whether somebody still waits for an answer from here.
    #[must_use]
    pub fn owes_answers(&self) -> bool {
        let queued = self.queue.iter().any(|q| q.waiter.is_some());
        let proposed = self.proposed.values().flat_map(|it| &it.waiters);
        queued || !self.reads.is_empty() || proposed.flatten().next().is_some()
    }

    /// Folds what is queued into log entries.
    pub fn propose(&mut self, turn: &mut Turn<'_>) {
        while !self.queue.is_empty() {
            let Some(leader_state) = &mut self.leader_state else {
                return; // An earlier term's entries are still being applied; or we lead no more.
            };
            let now_ms = leader_state
                .now_ms(turn.reachability)
                .max(self.state.now_ms());
            let mut builder = EntryBuilder::default();
            let mut waiters = Vec::new();
            while let Some(Queued { command, waiter }) = self.queue.pop_front() {
                if let Some(command) = builder.push(command) {
                    self.queue.push_front(Queued { command, waiter });
                    break;
                }
                waiters.push(waiter);
            }
            let (entry, bytes) =
                builder.finish(now_ms, turn.wall_ms, self.replica.matched_by_all());
            match self.replica.propose(bytes) {
                Ok((term, index)) => {
                    metrics::counter!("nowserving_proposals_total").increment(1);
                    leader_state.stamped(now_ms);
                    self.dirty = true;
                    self.proposed
                        .insert((index, term), Proposed { entry, waiters });
                }
                Err(error) => {
                    // Back where it was, in order: nothing happened.
                    for (command, waiter) in entry.commands.into_iter().zip(waiters).rev() {
                        self.queue.push_front(Queued { command, waiter });
                    }
                    if matches!(error, ProposeError::NotLeader { .. }) {
                        self.abdicate(turn);
                    }
                    return;
                }
            }
        }
    }

    /// Looks whether this node's leadership is over.
    pub fn check_leading(&mut self, turn: &mut Turn<'_>) {
        let over = match &self.leader_state {
            Some(leader_state) => !self.leads() || self.replica.term() != leader_state.term,
            None => !self.leads() && (!self.queue.is_empty() || !self.reads.is_empty()),
        };
        if over {
            self.abdicate(turn);
        }
    }

    /// This node does not take part any more, so it leads nothing.
    pub fn step_down(&mut self, turn: &mut Turn<'_>) {
        if self.leads() {
            tracing::warn!(shard = self.id, "leading no more: out of touch");
            self.replica.step_down();
            self.dirty = true;
            self.check_leading(turn);
        }
    }

    /// This node leads no more: what is not in the log is refused, what is keeps waiting for its
    /// outcome.
    fn abdicate(&mut self, turn: &mut Turn<'_>) {
        self.leader_state = None;
        let error = ApiError::not_leader(self.replica.leader());
        for queued in std::mem::take(&mut self.queue) {
            if let Some(waiter) = queued.waiter {
                turn.out
                    .refuse(waiter.reply, waiter.deadline, error.clone());
            }
        }
        for request in self.reads.drain() {
            turn.out
                .refuse(request.reply, request.deadline, error.clone());
        }
    }

    /// Answers everybody whose deadline has come.
    pub fn expire(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now;
        for request in self.reads.expired(now) {
            turn.out
                .refuse(request.reply, request.deadline, unavailable());
        }
        self.queue.retain_mut(|queued| {
            let late = queued.waiter.as_ref().is_some_and(|w| w.deadline <= now);
            if late && let Some(waiter) = queued.waiter.take() {
                turn.out
                    .refuse(waiter.reply, waiter.deadline, unavailable());
            }
            !late
        });
        let proposed = self.proposed.values_mut();
        for slot in proposed.flat_map(|it| &mut it.waiters) {
            if slot.as_ref().is_some_and(|w| w.deadline <= now)
                && let Some(waiter) = slot.take()
            {
                turn.out
                    .refuse(waiter.reply, waiter.deadline, outcome_unknown());
            }
        }
    }

    /// The node ends: everybody who still waits is told what is known.
    pub fn give_up(&mut self, turn: &mut Turn<'_>) {
        self.abdicate(turn);
        let proposed = std::mem::take(&mut self.proposed).into_values();
        for waiter in proposed.flat_map(|it| it.waiters).flatten() {
            turn.out
                .refuse(waiter.reply, waiter.deadline, outcome_unknown());
        }
    }

    /// An error for a request of which nothing happened, since another leader's entry took its
    /// place in the log.
    pub(super) fn overwritten(&self) -> ApiError {
        match self.replica.leader() {
            Some(leader) => ApiError::not_leader(Some(leader)),
            None => ApiError::new(Code::Unavailable, "the leader changed; nothing happened"),
        }
    }
}
