//! Requests that wait until a kick is finished. The job itself is the leader's: [`nowserving_shard::kick`].

use std::collections::BTreeMap;

use nowserving_line::LineName;
use nowserving_protocol::error::ApiError;
use nowserving_protocol::kick::{Kick, KickReply};
use nowserving_shard::clock::Micros;
use nowserving_shard::kick::Begun;
use nowserving_shard::leader_state::LeaderState;
use nowserving_shard::state::State;

use super::age::LATE_MAX_US;
use super::waiter::Waiter;
use crate::ctx::{KnownLeader, NodeCtx};
use crate::outbox::Outbox;
use crate::refusals::outcome_unknown;
use crate::request::{Outcome, ReplyBody};

/// The copies of one request.
#[derive(Debug, Default)]
struct KickWaiters {
    waiters: Vec<Waiter>,
    /// The job goes on until then, after their deadlines: the sender may repeat the request, and joins it then.
    keep_until: Micros,
}

/// By line.
#[derive(Debug, Default)]
pub(crate) struct Kicks(BTreeMap<LineName, KickWaiters>);

impl Kicks {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Begins a kick as the leader.
    pub fn begin(
        &mut self,
        waiter: Waiter,
        ask: &Kick,
        leader_state: &mut LeaderState,
        state: &State,
        out: &mut Outbox,
    ) {
        let kicks = &mut leader_state.kicks;
        match kicks.begin(
            state,
            &waiter.line,
            (ask, waiter.note.as_deref()),
            waiter.id,
        ) {
            Begun::Answered(answer) => answer_one(waiter, answer, out),
            Begun::Waits => {
                let kick = self.0.entry(waiter.line.clone()).or_default();
                kick.keep_until = kick.keep_until.max(ends_at(&waiter));
                kick.waiters.push(waiter);
            }
        }
    }

    /// Answers the requests of finished kicks.
    ///
    /// A dry run is in no entry: only a lease shows that its count is still that of the leader.
    pub fn answer(&mut self, leader_state: &mut LeaderState, in_lease: bool, ctx: &mut NodeCtx) {
        for (line, answer) in leader_state.kicks.take_finished() {
            // If nobody waits just now, a repetition may come for the answer until the time is up.
            let asked = |kick: &KickWaiters| !kick.waiters.is_empty();
            if self.0.get(&line).is_some_and(asked) {
                leader_state.kicks.give_up(&line);
                let kick = self.0.remove(&line).unwrap_or_default();
                for waiter in kick.waiters {
                    match waiter.effect.is_write() || in_lease {
                        true => answer_one(waiter, answer.clone(), &mut ctx.out),
                        false => ctx.at_deadline(waiter),
                    }
                }
            }
        }
    }

    /// Answers those whose deadline has come, and ends the kicks for which nobody can wait any more: no token goes
    /// later than a second after the deadline.
    pub fn expire(&mut self, leader_state: Option<&mut LeaderState>, ctx: &mut NodeCtx) {
        let now = ctx.now.us;
        for kick in self.0.values_mut() {
            let late = kick.waiters.extract_if(.., |it| it.deadline <= now);
            for waiter in late {
                match waiter.effect.is_write() {
                    true => ctx.out.refuse(waiter.reply, outcome_unknown()),
                    false => ctx.at_deadline(waiter),
                }
            }
        }
        let over = |_: &LineName, kick: &mut KickWaiters| {
            kick.waiters.is_empty() && kick.keep_until <= now
        };
        let over: Vec<LineName> = self.0.extract_if(.., over).map(|(line, _)| line).collect();
        if let Some(leader_state) = leader_state {
            for line in over {
                leader_state.kicks.give_up(&line);
            }
        }
    }

    /// This node has lost the lead, and its kicks with it.
    pub fn lead_lost(&mut self, leader: KnownLeader, ctx: &mut NodeCtx) {
        let lost = std::mem::take(&mut self.0).into_values();
        for waiter in lost.flat_map(|kick| kick.waiters) {
            match waiter.effect.is_write() {
                true => ctx.out.refuse(waiter.reply, outcome_unknown()),
                false => ctx.lead_lost(waiter, leader),
            }
        }
    }
}

/// The last moment for its tokens. The time that the request may have spent in this node's buffers counts.
fn ends_at(waiter: &Waiter) -> Micros {
    let held_back = waiter
        .reply
        .taken
        .saturating_sub(waiter.delivery.routed_after);
    waiter.deadline + LATE_MAX_US.saturating_sub(held_back)
}

fn answer_one(waiter: Waiter, answer: Result<KickReply, ApiError>, out: &mut Outbox) {
    let result = answer.map(|reply| Outcome::Reply(ReplyBody::Kicked(Box::new(reply))));
    out.answer(waiter.reply, result);
}
