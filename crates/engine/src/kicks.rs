//! Requests that wait until a kick is finished. The job itself is the leader's: [`nowserving_shard::kick`].

use std::collections::BTreeMap;

use nowserving_line::LineName;
use nowserving_protocol::error::ApiError;
use nowserving_protocol::kick::{Kick, KickReply};
use nowserving_shard::clock::Micros;
use nowserving_shard::kick::Begun;

use crate::age::LATE_MAX_US;
use crate::outbox::NodeCtx;
use crate::refusals::{disk_full, outcome_unknown};
use crate::request::Outcome;
use crate::shard::Shard;
use crate::waiter::Waiter;

/// The copies of one request.
#[derive(Debug, Default)]
pub(crate) struct KickWaiters {
    waiters: Vec<Waiter>,
    /// The job goes on until then, after their deadlines: the sender may repeat the request, and joins it then.
    keep_until: Micros,
}

pub(crate) type AllKickWaiters = BTreeMap<LineName, KickWaiters>;

impl Shard {
    /// Begins a kick as the leader.
    pub(crate) fn kick(&mut self, waiter: Waiter, ask: &Kick, ctx: &mut NodeCtx) {
        if !ask.dry_run && !ctx.has_room {
            return ctx.out.refuse(waiter.reply, disk_full());
        }
        let Some(leader_state) = &mut self.leader_state else {
            return ctx.lead_lost(waiter, self);
        };
        let kicks = &mut leader_state.kicks;
        match kicks.begin(&self.state, &waiter.line, ask, waiter.id) {
            Begun::Answered(answer) => answer_kick(waiter, answer, ctx),
            Begun::Waits => {
                let kick = self.kicks.entry(waiter.line.clone()).or_default();
                kick.keep_until = kick.keep_until.max(ends_at(&waiter));
                kick.waiters.push(waiter);
            }
        }
    }

    /// Answers the requests of finished kicks.
    ///
    /// A dry run is in no entry: only a lease shows that its count is still that of the leader.
    pub(crate) fn answer_kicks(&mut self, ctx: &mut NodeCtx) {
        let in_lease = self.in_lease(ctx.now.us);
        let Some(leader_state) = &mut self.leader_state else {
            return;
        };
        for (line, answer) in leader_state.kicks.take_finished() {
            // If nobody waits just now, a repetition may come for the answer until the time is up.
            let asked = |kick: &KickWaiters| !kick.waiters.is_empty();
            if self.kicks.get(&line).is_some_and(asked) {
                leader_state.kicks.give_up(&line);
                let kick = self.kicks.remove(&line).unwrap_or_default();
                for waiter in kick.waiters {
                    match waiter.effect.is_write() || in_lease {
                        true => answer_kick(waiter, answer.clone(), ctx),
                        false => ctx.at_deadline(waiter),
                    }
                }
            }
        }
    }

    /// Answers those whose deadline has come, and ends the kicks for which nobody can wait any more: no token goes
    /// later than a second after the deadline.
    pub(crate) fn expire_kicks(&mut self, ctx: &mut NodeCtx) {
        let now = ctx.now.us;
        for kick in self.kicks.values_mut() {
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
        for (line, _) in self.kicks.extract_if(.., over) {
            if let Some(leader_state) = &mut self.leader_state {
                leader_state.kicks.give_up(&line);
            }
        }
    }

    /// This node has lost the lead, and its kicks with it.
    pub(crate) fn lose_kicks(&mut self, ctx: &mut NodeCtx) {
        let lost = std::mem::take(&mut self.kicks).into_values();
        for waiter in lost.flat_map(|kick| kick.waiters) {
            match waiter.effect.is_write() {
                true => ctx.out.refuse(waiter.reply, outcome_unknown()),
                false => ctx.lead_lost(waiter, self),
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

fn answer_kick(waiter: Waiter, answer: Result<KickReply, ApiError>, ctx: &mut NodeCtx) {
    let result = answer.map(|reply| Outcome::Kicked(Box::new(reply)));
    ctx.out.answer(waiter.reply, result);
}
