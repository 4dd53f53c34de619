//! The peers that could lead a shard.

use std::collections::BTreeMap;

use nowserving_shard::clock::Micros;

use super::balance::Balance;
use crate::peers::peer::Peer;
use crate::shard::Shard;

/// Peers that could lead.
pub(crate) struct FitPeers {
    fit: Vec<u64>,
    /// Only if there is no other.
    drained: Vec<u64>,
}

impl FitPeers {
    /// Peers that are alive, reachable for clients, not about to stop, and with room on their disks.
    pub fn among(peers: &BTreeMap<u64, Peer>, balance: &Balance, now: Micros) -> FitPeers {
        let fit = peers.iter().filter(|(_, peer)| peer.is_fit(now));
        let (fit, drained) = fit.map(|(id, _)| *id).partition(|id| balance.may_lead(*id));
        FitPeers { fit, drained }
    }

    /// Those for which `such` holds; drained ones only if it holds for no other.
    pub fn such(&self, such: impl Fn(u64) -> bool) -> Vec<u64> {
        let of = |ids: &[u64]| -> Vec<u64> { ids.iter().copied().filter(|id| such(*id)).collect() };
        let fit = of(&self.fit);
        if fit.is_empty() {
            of(&self.drained)
        } else {
            fit
        }
    }

    /// The voters among them that keep up with the log of a shard that this node leads.
    pub fn caught_up(&self, leads: &Shard, such: impl Fn(u64) -> bool) -> Vec<u64> {
        let keeps_up = |id| {
            let progress = leads.replica.progress_of(id);
            progress.is_some_and(|it| it.votes && leads.leading.keeps_up(&it))
        };
        self.such(|id| such(id) && keeps_up(id))
    }

    /// The one of those voters that has most of it.
    pub fn best_for(&self, leads: &Shard, such: impl Fn(u64) -> bool) -> Option<u64> {
        leads.replica.most_caught_up(&self.caught_up(leads, such))
    }
}
