//! Periodic work apart from requests and the duties of leaders: leases, subscriptions, hand-overs.

use std::collections::BTreeSet;

use nowserving_shard::clock::Micros;

use crate::balance::UNREACHABLE_MAX;
use crate::engine::Engine;
use crate::io::{ExitReason, Output, Subscription};
use crate::outbox::NodeCtx;
use crate::shard::Shard;

/// The interval for deadlines and leases.
const INTERVAL_US: Micros = 20_000;
/// The interval for hand-overs, snapshots and gauges.
const SLOW_INTERVAL_US: Micros = 250_000;
/// A peer that gets no other frame gets a sign of life this often.
const SIGN_OF_LIFE_US: Micros = 400_000;
/// The same for a node that no quorum has accepted yet, which sends nothing else.
const GREETING_US: Micros = 100_000;
/// A node lacking more of a shard's log gets no leadership of it: the hand-over would keep writes
/// waiting until it has caught up.
pub(crate) const LAG_MAX: u64 = 64;
/// A stopping node waits this long for its shards to find other leaders.
const STOP_MAX_US: Micros = 5_000_000;
/// A stopping node forwards requests for this long after it has unsubscribed. Subscriptions drain in less
/// time.
const DRAIN_US: Micros = 500_000;

/// Leadership that was offered to a peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    term: u64,
    since: Micros,
    pub(crate) to: u64,
}

/// Peers that could lead.
pub(crate) struct FitPeers {
    fit: Vec<u64>,
    /// Only if there is no other.
    drained: Vec<u64>,
}

impl FitPeers {
    /// Those for which `such` holds; drained ones only if it holds for no other.
    fn such(&self, such: impl Fn(u64) -> bool) -> Vec<u64> {
        let of = |ids: &[u64]| -> Vec<u64> { ids.iter().copied().filter(|id| such(*id)).collect() };
        let fit = of(&self.fit);
        if fit.is_empty() {
            of(&self.drained)
        } else {
            fit
        }
    }

    /// The voters among them that keep up with the log of a shard that this node leads.
    fn caught_up(&self, leads: &Shard, such: impl Fn(u64) -> bool) -> Vec<u64> {
        let keeps_up = |id| {
            let progress = leads.replica.progress_of(id);
            progress.is_some_and(|it| it.votes && leads.keeps_up(&it))
        };
        self.such(|id| such(id) && keeps_up(id))
    }

    /// The one of those voters that has most of it.
    pub fn best_for(&self, leads: &Shard, such: impl Fn(u64) -> bool) -> Option<u64> {
        leads.replica.most_caught_up(&self.caught_up(leads, such))
    }
}

impl Engine {
    /// Everything that is due, except Raft's own ticks and the duties of leaders.
    pub(crate) fn maintenance(&mut self, now: Micros) {
        self.next_maintenance = now + INTERVAL_US;
        let heartbeat_us = self.config.heartbeat_ms * 1_000;
        self.each_shard(|shard, ctx| {
            shard.expire_requests(ctx);
            shard.keep_lease(now, heartbeat_us);
        });
        self.parts_asked = 0;
        self.ask_for_snapshot(now);
        if now >= self.next_slow_maintenance {
            self.next_slow_maintenance = now + SLOW_INTERVAL_US;
            self.members_changed();
            self.reconcile(now);
            self.hand_over(now);
            self.each_shard(|shard, _| {
                shard.check_snapshot_sends(now);
                shard.check_snapshot_receive(now);
            });
            self.find_lagging();
            self.start_snapshot(now);
            self.announce_standing(now);
            self.gauges(now);
        }
        self.signs_of_life(now);
        self.update_subscriptions(now);
    }

    /// Whether clients can reach this node and it is not about to stop. Peers hand shards over only to such
    /// a node.
    pub(crate) fn client_reachable(&self, now: Micros) -> bool {
        self.stopping_since.is_none()
            && self.takes_requests()
            && self.ctx.reachability.unreachable_for(now) <= UNREACHABLE_MAX
    }

    /// Whether this node takes part, and its transport takes answers and entries.
    pub(crate) fn takes_requests(&self) -> bool {
        self.contact.is_in_touch() && self.ctx.payload.problem().is_none()
    }

    /// Decides on the subscriptions of each shard: a leader in its lease subscribes, and while no node leads,
    /// all nodes do, so that some node answers. A node that does not take part never subscribes.
    pub(crate) fn update_subscriptions(&mut self, now: Micros) {
        let stopping = self.stopping_since.is_some();
        let takes_part = self.takes_requests() && self.drained_at.is_none();
        for shard in self.shards.values_mut() {
            let wanted = if !takes_part {
                Subscription::No
            } else if shard.in_lease(now) {
                let term = shard.replica.term();
                Subscription::Leader { term }
            } else if shard.leads() || (shard.replica.leader().is_none() && !stopping) {
                Subscription::Leaderless
            } else {
                Subscription::No
            };
            if shard.subscription != wanted {
                shard.subscription = wanted;
                self.ctx.out.outputs.push(Output::Subscribe {
                    shard: shard.id,
                    subscription: wanted,
                });
            }
        }
    }

    fn hand_over(&mut self, now: Micros) {
        let unreachable_for = self.ctx.reachability.unreachable_for(now);
        let unfit = unreachable_for > UNREACHABLE_MAX
            || self.ctx.disk_full
            || self.ctx.payload.problem().is_some();
        let election_us = self.config.election_ms * 1_000;
        let stopping = self.stopping_since.is_some();
        // Without nodes that are stopping too: they would hand the shard on.
        let fit = self.fit_peers(now);
        let peers = self.ctx.clocks.peers.iter();
        let present = peers.filter(|(_, peer)| peer.present(now));
        let present: BTreeSet<u64> = present.map(|(id, _)| *id).collect();
        for shard in self.shards.values_mut() {
            let Some(since) = shard.leader_state.as_ref().map(|leading| leading.began_at) else {
                continue;
            };
            // After a hand-over that failed, this term has no lease, so no node serves the shard until a new
            // term begins.
            let offer = shard.offer_of_term();
            let failed = offer.filter(|it| now.saturating_sub(it.since) > election_us);
            // Its disk may hang, which only its silence about the log shows.
            let untried = |id| failed.is_none_or(|it| it.to != id);
            let target = if stopping {
                let another = fit.best_for(shard, |id| present.contains(&id) && untried(id));
                another.or_else(|| fit.best_for(shard, |id| present.contains(&id)))
            } else if offer.is_some() {
                failed.and_then(|_| fit.best_for(shard, untried))
            } else {
                self.balance.hand_over(
                    shard.id,
                    now,
                    since,
                    unfit,
                    &self.ctx.clocks.peers,
                    &fit.caught_up(shard, |_| true),
                )
            };
            let Some(target) = target else {
                if failed.is_some() && !stopping {
                    shard.step_down(
                        "a hand-over failed, and no other node can lead",
                        &mut self.ctx,
                    );
                }
                continue;
            };
            shard.offer(target, &mut self.ctx);
        }
    }

    /// Peers that could lead: alive, reachable for clients, not about to stop, and with room on their disks.
    pub(crate) fn fit_peers(&self, now: Micros) -> FitPeers {
        let peers = self.ctx.clocks.peers.iter();
        let fit = peers.filter(|(_, peer)| peer.is_fit(now));
        let (fit, drained) = fit
            .map(|(id, _)| *id)
            .partition(|id| self.balance.may_lead(*id));
        FitPeers { fit, drained }
    }

    /// A stopping node that has handed its shards over unsubscribes, forwards the requests that still
    /// arrive, waits for the answers to its forwards, and ends.
    pub(crate) fn stop(&mut self, now: Micros) -> Result<(), ExitReason> {
        if self.drained_at.is_none() && self.has_handed_over(now) {
            self.drained_at = Some(now);
            self.each_shard(Shard::release_waiters);
            self.update_subscriptions(now);
        }
        let drained = self.drained_at.is_some_and(|at| {
            now >= at + DRAIN_US && (self.ctx.forwards.is_empty() || now >= at + 4 * DRAIN_US)
        });
        match drained {
            true => Err(self.stop_reason.clone()),
            false => Ok(()),
        }
    }

    /// Whether a stopping node has nothing left to hand over (or has waited long enough).
    fn has_handed_over(&self, now: Micros) -> bool {
        let Some(since) = self.stopping_since else {
            return false;
        };
        let leads = self.shards.values().any(Shard::leads);
        let owes = self.shards.values().any(Shard::owes_answers);
        let alone = self.fit_peers(now).such(|_| true).is_empty();
        ((!leads || alone) && !owes) || now.saturating_sub(since) > STOP_MAX_US
    }

    fn signs_of_life(&mut self, now: Micros) {
        let interval_us = match self.contact.is_in_touch() {
            true => SIGN_OF_LIFE_US,
            false => GREETING_US,
        };
        let quiet: Vec<u64> = self
            .others()
            .filter(|peer| {
                let last = self.last_sent.get(peer).copied().unwrap_or(0);
                now.saturating_sub(last) >= interval_us
            })
            .collect();
        for peer in quiet {
            self.send_to(peer, Vec::new(), Vec::new(), now);
        }
    }
}

impl Shard {
    /// Renews the lease once in this interval.
    pub(crate) fn keep_lease(&mut self, now: Micros, interval_us: Micros) {
        if self.leader_state.is_some() && now >= self.lease_asked_at + interval_us {
            self.lease_asked_at = now;
            // Without a quorum or before the term's first commit there is no lease to be had.
            if self.replica.read_index(now).is_ok() {
                self.dirty = true;
            }
        }
    }

    /// Hands leadership over.
    pub(crate) fn offer(&mut self, target: u64, ctx: &mut NodeCtx) {
        self.write_before_leaving(ctx);
        match self.replica.transfer_leader(target) {
            Ok(()) => {
                let again = self.offer_of_term().filter(|it| it.to == target);
                self.offered = Some(Offer {
                    term: self.replica.term(),
                    since: again.map_or(ctx.now.us, |it| it.since),
                    to: target,
                });
                if let Some(leader_state) = &mut self.leader_state {
                    leader_state.stop_clock(&ctx.reachability);
                }
                tracing::info!(shard = self.id, target, "handing over");
                self.dirty = true;
            }
            Err(error) => tracing::debug!(shard = self.id, target, %error, "no hand-over"),
        }
    }

    /// When leadership was offered in this term, which then has no lease any more.
    pub(crate) fn offered_since(&self) -> Option<Micros> {
        self.offer_of_term().map(|it| it.since)
    }

    pub(crate) fn offer_of_term(&self) -> Option<Offer> {
        self.offered.filter(|it| it.term == self.replica.term())
    }

    /// Whether this node may take the shard's requests as its leader, and does not yet.
    pub(crate) fn begins_to_serve(&self, now: Micros) -> bool {
        self.in_lease(now) && !self.serves_as_leader()
    }

    /// Writes the service clock and the refusals to the log before a hand-over, so that the next leader does not
    /// begin behind them.
    fn write_before_leaving(&mut self, ctx: &mut NodeCtx) {
        let Some(leader_state) = &mut self.leader_state else {
            return;
        };
        let last = leader_state.propose_last(&self.state, ctx.now.us, &ctx.reachability);
        self.queue_own(last);
        self.propose(ctx);
    }
}
