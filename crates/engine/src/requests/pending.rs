//! The requests of one shard that wait on its leader: for their place in the log, for the outcome of their entry, for a
//! quorum, or for a kick.

use std::collections::{BTreeMap, HashMap, VecDeque};

use nowserving_shard::clock::Micros;
use nowserving_shard::command::{Command, Entry, EntryBuilder};
use nowserving_shard::leader_state::LeaderState;
use nowserving_shard::requests::{Answer, RequestId, Requests};
use nowserving_shard::state::State;

use super::decide::Copy;
use super::kicks::Kicks;
use super::waiter::Waiter;
use super::waiting_reads::WaitingReads;
use crate::ctx::{KnownLeader, NodeCtx};
use crate::outbox::Outbox;
use crate::refusals::{older_member, outcome_unknown};

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

#[derive(Debug, Default)]
pub(crate) struct Pending {
    queue: VecDeque<Queued>,
    /// The number of copies of each request with an id that is queued or in the log and not yet applied.
    in_log: HashMap<u128, u32>,
    /// Requests that this node, as the leader, refused from its state. They are not in the log; their copies
    /// are refused too. Remembered by the node's own clock, which also goes on while another node leads.
    refused: Requests,
    /// By index and term. An index can be there twice: a node that lost the lead and got it again may
    /// propose at lower indexes than before, while the outcome of those is still open.
    proposed: BTreeMap<(u64, u64), Proposed>,
    pub reads: WaitingReads,
    pub kicks: Kicks,
}

impl Pending {
    /// `seed`: of the memory of refusals.
    pub fn new(seed: u128) -> Self {
        Pending {
            refused: Requests::new(seed),
            ..Pending::default()
        }
    }

    pub fn is_full(&self) -> bool {
        self.queue.len() >= QUEUE_MAX
    }

    pub fn is_any_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether a request waits for an answer.
    pub fn owes_answers(&self) -> bool {
        let queued = self.queue.iter().any(|q| q.waiter.is_some());
        let mut proposed = self.proposed.values().flat_map(|it| &it.waiters);
        let waits = !self.kicks.is_empty() || !self.reads.is_empty();
        queued || waits || proposed.any(Option::is_some)
    }

    /// Queues a command for the log.
    pub fn push(&mut self, command: Command, waiter: Option<Waiter>) {
        if let Command::Once(id, _) = &command {
            *self.in_log.entry(id.key).or_default() += 1;
        }
        self.queue.push_back(Queued { command, waiter });
    }

    /// Queues the leader's own commands. The limit for requests does not apply: there is one bounded pass at
    /// a time, and the leader relies on its checkpoints.
    pub fn push_own(&mut self, commands: impl IntoIterator<Item = Command>) {
        for command in commands {
            self.push(command, None);
        }
    }

    /// Whether a request with this id is queued, or in the log with its outcome still open.
    pub fn has_in_log(&self, key: u128) -> bool {
        self.in_log.contains_key(&key)
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

    pub fn copy_of(&self, id: RequestId, state: &State) -> Copy {
        if self.has_in_log(id.key) {
            Copy::Open
        } else if self.refused.answer(id).is_some() || state.requests().answer(id).is_some() {
            Copy::Answered
        } else {
            Copy::None
        }
    }

    /// Copies of a request get the same answer, from this leader.
    pub fn remember_refusal(&mut self, id: RequestId, answer: Answer, now: Micros) {
        if nowserving_bite::is(nowserving_bite::Break::S13Refusals) {
            return;
        }
        self.refused.remember(id, answer, now / 1_000);
    }

    pub fn refused(&self, id: RequestId) -> Option<Answer> {
        self.refused.answer(id)
    }

    /// Puts as many queued commands into an entry as it takes, and returns who waits for each. Commands that a
    /// member of the group does not know are refused.
    pub fn fold(
        &mut self,
        builder: &mut EntryBuilder,
        leader_state: &mut LeaderState,
        out: &mut Outbox,
    ) -> Vec<Option<Waiter>> {
        let mut waiters = Vec::new();
        while let Some(Queued { command, waiter }) = self.queue.pop_front() {
            if command.format() > builder.format() {
                self.left_log([&command]);
                leader_state.not_proposed(&command, older_member());
                if let Some(waiter) = waiter {
                    out.refuse(waiter.reply, older_member());
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

    /// The entry is in this node's log.
    pub fn proposed(&mut self, index: u64, term: u64, proposed: Proposed) {
        self.proposed.insert((index, term), proposed);
        if self.queue.is_empty() {
            self.reads.proposed(index);
        }
    }

    /// The log did not take the entry: back into the queue, in order.
    pub fn put_back(&mut self, commands: Vec<Command>, waiters: Vec<Option<Waiter>>) {
        for (command, waiter) in commands.into_iter().zip(waiters).rev() {
            self.queue.push_front(Queued { command, waiter });
        }
    }

    /// The oldest entry of a term whose outcome is open.
    pub fn oldest_of(&self, term: u64) -> Option<&Proposed> {
        let of_term = |((_, it), _): &(&(u64, u64), &Proposed)| *it == term;
        self.proposed.iter().find(of_term).map(|(_, it)| it)
    }

    /// Takes the oldest entry that this node proposed at `index` or before it, with its index and term.
    pub fn take_through(&mut self, index: u64) -> Option<((u64, u64), Proposed)> {
        let first = self.proposed.first_entry()?;
        (first.key().0 <= index).then(|| first.remove_entry())
    }

    /// A snapshot has taken the place of the entries through `index`. Whether these were executed, this node can't tell.
    pub fn replaced(&mut self, index: u64, out: &mut Outbox) {
        while let Some((_, proposed)) = self.take_through(index) {
            self.left_log(&proposed.entry.commands);
            for waiter in proposed.waiters.into_iter().flatten() {
                out.refuse(waiter.reply, outcome_unknown());
            }
        }
    }

    /// This node lost the lead: requests that are not in the log go to the next leader, the others keep
    /// waiting for their outcome.
    pub fn lead_lost(&mut self, leader: KnownLeader, ctx: &mut NodeCtx) {
        let queued = std::mem::take(&mut self.queue);
        self.left_log(queued.iter().map(|queued| &queued.command));
        for waiter in queued.into_iter().filter_map(|queued| queued.waiter) {
            ctx.lead_lost(waiter, leader);
        }
        for read in self.reads.drain() {
            ctx.lead_lost(read.waiter, leader);
        }
        self.kicks.lead_lost(leader, ctx);
    }

    #[cfg(test)]
    pub fn refusals(&self) -> usize {
        self.refused.len()
    }

    /// Answers the requests whose deadline has come, and forgets refusals that are too old.
    pub fn expire(&mut self, mut leader_state: Option<&mut LeaderState>, ctx: &mut NodeCtx) {
        let now = ctx.now.us;
        self.refused.forget(now / 1_000);
        for read in self.reads.expired(now) {
            ctx.at_deadline(read.waiter);
        }
        self.kicks.expire(leader_state.as_deref_mut(), ctx);
        let late = |it: &Queued| it.waiter.as_ref().is_some_and(|w| w.deadline <= now);
        if self.queue.iter().any(late) {
            let queue = std::mem::take(&mut self.queue).into_iter();
            let (expired, kept): (Vec<_>, Vec<_>) = queue.partition(late);
            self.queue = kept.into();
            for Queued { command, waiter } in expired {
                self.left_log([&command]);
                if let Some(leader_state) = &mut leader_state {
                    leader_state.not_proposed(&command, older_member());
                }
                if let Some(waiter) = waiter {
                    ctx.at_deadline(waiter);
                }
            }
        }
        for slot in self.proposed.values_mut().flat_map(|it| &mut it.waiters) {
            if slot.as_ref().is_some_and(|w| w.deadline <= now)
                && let Some(waiter) = slot.take()
            {
                if nowserving_bite::is(nowserving_bite::Break::S14) {
                    let undone = crate::refusals::unavailable();
                    ctx.out.refuse(waiter.reply, undone);
                    continue;
                }
                ctx.out.refuse(waiter.reply, outcome_unknown());
            }
        }
    }

    /// Refuses all requests that wait for the outcome of an entry, as the node ends. Those that are in no entry are gone
    /// ([`Pending::lead_lost`]).
    pub fn release(&mut self, out: &mut Outbox) {
        self.in_log.clear();
        let proposed = std::mem::take(&mut self.proposed).into_values();
        for waiter in proposed.flat_map(|it| it.waiters).flatten() {
            out.refuse(waiter.reply, outcome_unknown());
        }
    }
}
