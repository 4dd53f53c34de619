//! Decides which node should lead which shard: shards are spread evenly, and never given to a node that
//! clients cannot reach.

use std::collections::BTreeMap;
use std::time::Duration;

use nowserving_shard::clock::Micros;
use nowserving_shard::members::Members;

use crate::peers::peer::Peer;

/// A leader that clients could not reach for longer hands its shards over, as does one whose disk is full.
pub const UNREACHABLE_MAX: Duration = Duration::from_millis(1_000);
/// A shard is not handed over again for this long, so that two nodes with different views do not hand it
/// back and forth.
const TRANSFER_PAUSE_US: Micros = 5_000_000;

/// Decides on hand-overs.
#[derive(Debug)]
pub struct Balance {
    me: u64,
    /// The nodes that may lead, in ascending order.
    nodes: Vec<u64>,
    /// By shard, the node that an operator wants to lead it.
    preferred: BTreeMap<u32, u64>,
    /// A peer must have been up for this long before it gets shards back.
    settle_us: Micros,
    left_alone_until: BTreeMap<u32, Micros>,
}

impl Balance {
    #[must_use]
    pub fn new(me: u64, settle: Duration) -> Self {
        Balance {
            me,
            nodes: Vec::new(),
            preferred: BTreeMap::new(),
            settle_us: settle.as_micros() as u64,
            left_alone_until: BTreeMap::new(),
        }
    }

    /// Sets the members. Drained ones lead nothing, unless all are drained.
    pub fn set_members(&mut self, members: &Members) {
        let undrained = members.nodes.iter().filter(|(_, member)| !member.drained);
        self.nodes = undrained.map(|(id, _)| *id).collect();
        if self.nodes.is_empty() {
            self.nodes = members.nodes.keys().copied().collect();
        }
        self.preferred = members.preferred.clone();
    }

    /// Whether this node may lead shards.
    #[must_use]
    pub fn may_lead(&self, id: u64) -> bool {
        self.nodes.contains(&id)
    }

    /// The node that should lead a shard while all nodes are well. It depends only on the members, so
    /// all nodes agree on it.
    #[must_use]
    pub fn home(&self, shard: u32) -> u64 {
        let preferred = self.preferred.get(&shard).copied();
        let balanced = || {
            self.nodes
                .get(shard as usize % self.nodes.len().max(1))
                .copied()
        };
        let home = preferred.filter(|id| self.may_lead(*id)).or_else(balanced);
        home.unwrap_or(self.me)
    }

    /// Returns the node to which this node, the leader of `shard` since `leading_since`, should hand it over
    /// now, if any. `unfit`: it should not lead at all. `caught_up`: the followers that lack little of the log.
    pub fn hand_over(
        &mut self,
        shard: u32,
        now: Micros,
        leading_since: Micros,
        unfit: bool,
        peers: &BTreeMap<u64, Peer>,
        caught_up: &[u64],
    ) -> Option<u64> {
        if nowserving_bite::is(nowserving_bite::Break::L6) {
            return caught_up.first().copied();
        }
        if self.left_alone_until.get(&shard).is_some_and(|t| now < *t) {
            return None;
        }
        let fit = |id: &u64| {
            caught_up.contains(id)
                && peers.get(id).is_some_and(|peer| {
                    // The former leader seems alive for a while after its death.
                    peer.is_fit(now) && peer.last_seen > leading_since
                })
        };
        let home = self.home(shard);
        let target = if unfit || !self.may_lead(self.me) {
            Some(home)
                .filter(fit)
                .or_else(|| self.nodes.iter().copied().find(fit))
        } else if home != self.me && fit(&home) {
            let settled = peers.get(&home).is_some_and(|peer| {
                peer.present(now) && now.saturating_sub(peer.up_since) > self.settle_us
            });
            settled.then_some(home)
        } else {
            None
        }?;
        self.left_alone_until.insert(shard, now + TRANSFER_PAUSE_US);
        Some(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::peer::PRESENT_MAX_US;

    const NOW: Micros = 100_000_000;
    const SINCE: Micros = NOW - 500_000;

    fn of_three() -> Balance {
        let mut balance = Balance::new(1, Duration::from_secs(2));
        balance.set_members(&Members::begin(&[3, 1, 2], 0));
        balance
    }

    #[test]
    fn a_drained_node_leads_nothing_and_a_preferred_one_what_it_is_preferred_for() {
        let mut members = Members::begin(&[1, 2, 3], 0);
        members.preferred = [(0, 2), (1, 3)].into();
        let mut balance = of_three();
        balance.set_members(&members);
        assert_eq!([0, 1, 2, 3].map(|shard| balance.home(shard)), [2, 3, 3, 1]);
        members.nodes.entry(3).or_default().drained = true;
        balance.set_members(&members);
        assert_eq!([0, 1, 2, 3].map(|shard| balance.home(shard)), [2, 2, 1, 2]);
        // A drained leader does not wait for the shard's home.
        members.nodes.entry(1).or_default().drained = true;
        members.nodes.entry(3).or_default().drained = false;
        balance.set_members(&members);
        let target = balance.hand_over(0, NOW, SINCE, false, &peers(true), &[3]);
        assert_eq!(target, Some(3));
    }

    fn peers(client_reachable: bool) -> BTreeMap<u64, Peer> {
        let peer = Peer {
            last_seen: NOW,
            up_since: NOW - 10_000_000,
            client_reachable,
            ..Peer::default()
        };
        BTreeMap::from([(2, peer.clone()), (3, peer)])
    }

    #[test]
    fn a_shard_goes_home_once_its_home_is_caught_up_and_settled() {
        let mut balance = of_three();
        assert_eq!(
            balance.hand_over(0, NOW, SINCE, false, &peers(true), &[2, 3]),
            None
        );
        assert_eq!(
            balance.hand_over(1, NOW, SINCE, false, &peers(true), &[3]),
            None
        );
        assert_eq!(
            balance.hand_over(1, NOW, SINCE, false, &peers(true), &[2, 3]),
            Some(2)
        );
        // Left alone for a while after that.
        assert_eq!(
            balance.hand_over(1, NOW, SINCE, false, &peers(true), &[2, 3]),
            None
        );
        let mut young = peers(true);
        young.entry(3).or_default().up_since = NOW - 1_000_000;
        assert_eq!(
            balance.hand_over(2, NOW, SINCE, false, &young, &[2, 3]),
            None
        );
    }

    #[test]
    fn a_shard_does_not_go_home_to_a_node_that_may_have_died() {
        let mut balance = of_three();
        let mut peers = peers(true);
        peers.entry(2).or_default().last_seen = NOW - PRESENT_MAX_US;
        let mut target = |now| balance.hand_over(1, now, SINCE, false, &peers, &[2, 3]);
        assert_eq!(target(NOW), None);
        assert_eq!(target(NOW - 1), Some(2));
    }

    #[test]
    fn the_node_whose_death_made_us_leader_gets_nothing_back() {
        let mut balance = of_three();
        let mut peers = peers(true);
        peers.entry(2).or_default().last_seen = SINCE - 800_000;
        let caught_up = [2, 3];
        let target = balance.hand_over(1, NOW, SINCE, false, &peers, &caught_up);
        assert_eq!(target, None);
    }

    #[test]
    fn a_leader_out_of_reach_of_clients_hands_over_only_to_a_node_in_reach() {
        let mut balance = of_three();
        assert_eq!(
            balance.hand_over(0, NOW, SINCE, true, &peers(false), &[2, 3]),
            None
        );
        assert_eq!(
            balance.hand_over(0, NOW, SINCE, true, &peers(true), &[3]),
            Some(3)
        );
    }
}
