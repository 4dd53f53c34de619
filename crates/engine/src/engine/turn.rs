//! The end of a turn: collected input becomes log entries, writes and frames.

use nowserving_shard::clock::Micros;

use super::{Engine, TICKS_PER_HEARTBEAT, leaders};
use crate::io::{ExitReason, Now, Output};
use crate::shard::Shard;

/// Ticks given at once at most: after a stall, the groups must not be flooded with timeouts.
const TICKS_AT_ONCE_MAX: u64 = 2;
/// Turns' writes that may wait for the disk; with more, nothing new is written.
pub const WRITES_IN_FLIGHT_MAX: usize = 32;
/// A turn applies log entries until they were so much work: one for each, and as [`State::apply_entry`] counts.
/// The rest waits for the next turn. A node that is behind, after its start or an absence, must read requests and
/// frames meanwhile. One entry alone can be twice as much.
pub(crate) const WORK_IN_TURN_MAX: usize = 2_048;

impl Engine {
    /// Turns the collected input into log entries, writes and frames.
    pub(super) fn end_turn(&mut self, now: Now, inbox_empty: bool) -> Result<(), ExitReason> {
        let hears_nobody = self.ctx.payload.problem().is_some();
        if std::mem::take(&mut self.requests_dropped) || !self.ctx.has_room || hears_nobody {
            self.ctx.reachability.skip(now.us);
        } else {
            self.ctx.reachability.advance(now.us);
        }
        let stall_ms = self.config.election_ms;
        self.each_shard(|shard, ctx| shard.hold_clock(stall_ms, &ctx.reachability));
        if !self.takes_part(now.us) {
            self.each_shard(|shard, ctx| shard.step_down("out of touch", ctx));
        }
        let ticked = self.tick(now.us);
        if self.timers.take_maintenance(self.is_busy(), now.us) {
            self.maintenance(now.us);
        }
        let leaders = leaders(&self.shards, &self.role, &self.ctx.clocks, now.us);
        self.ctx
            .forwards
            .run_due(leaders, now.us, &mut self.ctx.out);
        let (stopping, drained) = (self.stopping.has_begun(), self.stopping.is_drained());
        let may_write = self.writes_in_flight < WRITES_IN_FLIGHT_MAX;
        let mut ready = Ok(());
        let resume_at = std::mem::take(&mut self.resume_at);
        let (mut stopped_at, mut more) = (None, resume_at > 0);
        self.ctx.work_left = WORK_IN_TURN_MAX;
        let mut begins_to_serve = false;
        self.each_shard(|shard, ctx| {
            shard.replica.clock(ctx.now.us);
            // Tokens expire until a stopping node has offered the shard to another, or polls reach it no more.
            let leaves = drained || (stopping && shard.offer_of_term().is_some());
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
        if ticked && self.config.place.is_first() {
            self.role.news();
        }
        self.flush(ticked, now.us)?;
        self.stop(now.us)
    }

    /// Ticks Raft's clocks, and lets leaders send their heartbeats. Returns whether a tick has passed.
    fn tick(&mut self, now: Micros) -> bool {
        let due = self.timers.take_ticks(now);
        let ticked = due.count() > 0;
        if !ticked || !self.takes_part(now) {
            return ticked;
        }
        for shard in self.shards.values_mut() {
            for _ in 0..due.count().min(TICKS_AT_ONCE_MAX) {
                shard.set_election_delay(self.config.id, self.election_ticks);
                shard.replica.tick(now);
            }
            let every = match shard.is_quiet(self.lease_left_us, now) {
                true => self.quiet_ticks,
                false => TICKS_PER_HEARTBEAT,
            };
            if due.reach(every) || shard.has_untold_commits() {
                shard.heartbeat(now);
            }
            shard.note_leader(now);
            shard.dirty |= shard.replica.has_ready();
        }
        ticked
    }

    /// Everything that is due, except Raft's own ticks and the duties of leaders.
    pub(super) fn maintenance(&mut self, now: Micros) {
        self.each_shard(Shard::expire_requests);
        self.fetching.begin_interval();
        self.ask_for_snapshot(now);
        if self.timers.take_slow_maintenance(now) {
            self.members_changed();
            self.reconcile(now);
            self.hand_over(now);
            self.each_shard(|shard, _| {
                shard.check_snapshots(now);
            });
            self.lagging.find(&mut self.shards);
            self.start_snapshot(now);
            self.expire_questions(now);
            if self.config.place.is_first() {
                self.announce_standing(now);
                self.gauges(now);
            } else {
                self.role.news();
            }
        }
        if self.config.place.is_first() {
            self.signs_of_life(now);
        }
        self.update_subscriptions(now);
    }

    pub(super) fn exit(&mut self, now: Micros, reason: ExitReason) {
        self.stopping.end(now);
        self.each_shard(Shard::release_waiters);
        self.ctx.forwards.refuse_all(&mut self.ctx.out);
        self.refuse_questions(|_| true);
        self.update_subscriptions(now);
        self.ctx.out.outputs.push(Output::Exit(reason));
    }

    /// A stopping node that has handed its shards over unsubscribes, forwards the requests that still
    /// arrive, waits for the answers to its forwards, and ends.
    fn stop(&mut self, now: Micros) -> Result<(), ExitReason> {
        if !self.stopping.is_drained() && self.has_handed_over(now) {
            self.stopping.drained(now);
            self.each_shard(Shard::release_waiters);
            self.update_subscriptions(now);
        }
        // The first loop ends the node, and the others go on forwarding until then.
        match self.config.place.is_first() {
            true => {
                let forwards = self.role.reports().any(|it| it.forwards);
                let forwards = forwards || !self.ctx.forwards.is_empty();
                self.stopping.is_over(forwards, now)
            }
            false => Ok(()),
        }
    }

    /// Whether a stopping node has nothing left to hand over (or has waited long enough).
    pub(super) fn has_handed_over(&self, now: Micros) -> bool {
        if !self.stopping.has_begun() {
            return false;
        }
        let leads = self.shards.values().any(Shard::leads);
        let owes = self.shards.values().any(|it| it.pending.owes_answers());
        let alone = self.fit_peers(now).such(|_| true).is_empty();
        let others = self.role.reports().all(|it| it.is_drained);
        ((!leads || alone) && !owes && others) || self.stopping.is_overdue(now)
    }
}
