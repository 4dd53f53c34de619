//! What this node does for the shards that it leads, and tells of them.

use std::collections::BTreeSet;

use nowserving_shard::clock::Micros;
use nowserving_shard::members::MembersCommand;

use super::Engine;
use crate::draw::draw;
use crate::io::Output;
use crate::leading::balance::UNREACHABLE_MAX;
use crate::leading::fit::FitPeers;
use crate::leading::reconcile::reconcile;

impl Engine {
    /// Peers that could lead.
    pub(super) fn fit_peers(&self, now: Micros) -> FitPeers {
        FitPeers::among(&self.ctx.clocks.peers, &self.balance, now)
    }

    pub(super) fn hand_over(&mut self, now: Micros) {
        let unreachable_for = self.ctx.reachability.unreachable_for(now);
        let unfit = unreachable_for > UNREACHABLE_MAX
            || self.ctx.disk_full
            || self.ctx.payload.problem().is_some();
        let election_us = self.config.election_ms * 1_000;
        let stopping = self.stopping.has_begun();
        // Without nodes that are stopping too: they would hand the shard on.
        let fit = self.fit_peers(now);
        let peers = self.ctx.clocks.peers.iter();
        let present = peers.filter(|(_, peer)| peer.present(now));
        let present: BTreeSet<u64> = present.map(|(id, _)| *id).collect();
        for shard in self.shards.values_mut() {
            let Some(since) = shard.leading_since(unfit) else {
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

    /// Every led shard takes its next step towards the wanted members.
    pub(super) fn reconcile(&mut self, now: Micros) {
        if self.stopping.has_begun() {
            return;
        }
        let fit = self.fit_peers(now);
        let begin_with = MembersCommand::Begin {
            nodes: self.config.nodes.clone(),
            cluster_id: draw([self.config.seed, self.config.id, now]).max(1),
        };
        let newest = &self.membership.wanted;
        reconcile(&mut self.shards, newest, &begin_with, &fit, &mut self.ctx);
    }

    /// Tells the rules once this node has caught up with shard 0: a node that has just started must not take requests
    /// for unlimited that are not. It has when it has applied an entry of the leader's own term, which comes after all that
    /// was committed before. What it knows to be committed does not tell: a heartbeat says 0 to a node with an empty log.
    pub(super) fn tell_rules(&mut self) {
        let Some(shard) = self.shards.get(&0) else {
            return;
        };
        let replica = &shard.replica;
        let has_leader = replica.leader().is_some();
        let of_term = replica.term_at(replica.applied()) == Some(replica.term());
        let caught_up = has_leader && of_term && replica.applied() >= replica.committed();
        if caught_up {
            self.ctx.rules_changed = false;
            let rules = shard.state.limits().rules().clone();
            self.ctx.out.outputs.push(Output::Rules(rules));
        }
    }
}
