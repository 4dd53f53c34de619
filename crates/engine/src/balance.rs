//! Which node should lead which shard: spread evenly, never by a node that users can't reach.

use std::collections::BTreeMap;
use std::time::Duration;

use nowserving_shard::clock::Micros;

use crate::delivery::LeaderTime;

/// A peer not heard from for longer is taken for dead.
pub const ALIVE_MAX: Duration = Duration::from_millis(1_500);
/// Before a hand-over that can wait, a peer has been heard from within this time: most that have just
/// died are not offered anything.
pub const PRESENT_MAX: Duration = Duration::from_millis(250);
/// A leader whose users cannot reach it for longer hands its shards over.
pub const UNREACHABLE_MAX: Duration = Duration::from_millis(1_000);
/// After a hand-over of a shard it is left alone for this long, so that two nodes which see
/// things differently don't pass it to and fro.
const TRANSFER_PAUSE_US: Micros = 5_000_000;

/// What a node knows about another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peer {
    /// The random number of its start.
    pub start: Option<u64>,
    /// When its last frame came.
    pub heard_at: Micros,
    /// Its own clock when it made that frame.
    pub clock_us: Micros,
    /// Since when it has been answering without a break.
    pub up_since: Micros,
    /// Its users can reach it.
    pub client_reachable: bool,
    /// Where it serves metrics.
    pub metrics_addr: String,
    /// Its build.
    pub version: String,
}

impl Peer {
    /// A frame came in.
    pub fn heard(&mut self, now: Micros) {
        if !self.alive(now) {
            self.up_since = now;
        }
        self.heard_at = now;
    }

    /// What its clock shows by now, or later: a frame takes time to arrive. `None` if it was not heard
    /// from lately, as clocks drift apart.
    #[must_use]
    pub fn clock(&self, now: Micros) -> Option<LeaderTime> {
        Some(LeaderTime {
            start: self.start.filter(|_| self.alive(now))?,
            us: self.clock_us + now.saturating_sub(self.heard_at),
        })
    }

    /// Whether it was heard from lately.
    #[must_use]
    pub fn alive(&self, now: Micros) -> bool {
        self.heard_at != 0 && now.saturating_sub(self.heard_at) < ALIVE_MAX.as_micros() as u64
    }

    /// Whether it was heard from just now.
    #[must_use]
    pub fn present(&self, now: Micros) -> bool {
        self.alive(now) && now.saturating_sub(self.heard_at) < PRESENT_MAX.as_micros() as u64
    }
}

/// Decides on hand-overs.
#[derive(Debug)]
pub struct Balance {
    me: u64,
    nodes: Vec<u64>,
    /// A peer must have been up for this long before it gets shards back.
    settle_us: Micros,
    left_alone_until: BTreeMap<u32, Micros>,
}

impl Balance {
    /// For node `me` of `nodes`.
    #[must_use]
    pub fn new(me: u64, mut nodes: Vec<u64>, settle: Duration) -> Self {
        nodes.sort_unstable();
        Balance {
            me,
            nodes,
            settle_us: settle.as_micros() as u64,
            left_alone_until: BTreeMap::new(),
        }
    }

    /// The node that should lead a shard when all are well: a fixed round over the nodes, so that
    /// every node comes to the same answer without talking.
    #[must_use]
    pub fn home(&self, shard: u32) -> u64 {
        self.nodes[shard as usize % self.nodes.len()]
    }

    /// To whom this leader of `shard`, which it is since `leading_since`, should hand it over now,
    /// if at all. `caught_up` names the followers that have everything, best first.
    pub fn hand_over(
        &mut self,
        shard: u32,
        now: Micros,
        leading_since: Micros,
        unreachable_for: Duration,
        peers: &BTreeMap<u64, Peer>,
        caught_up: &[u64],
    ) -> Option<u64> {
        if self.left_alone_until.get(&shard).is_some_and(|t| now < *t) {
            return None;
        }
        let fit = |id: &u64| {
            caught_up.contains(id)
                && peers.get(id).is_some_and(|peer| {
                    // The node whose death made us leader seems alive for a while yet.
                    peer.alive(now) && peer.heard_at > leading_since && peer.client_reachable
                })
        };
        let home = self.home(shard);
        let target = if unreachable_for > UNREACHABLE_MAX {
            self.nodes.iter().copied().find(fit)
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

    const NOW: Micros = 100_000_000;
    const SINCE: Micros = NOW - 500_000;

    fn peers(client_reachable: bool) -> BTreeMap<u64, Peer> {
        let peer = Peer {
            heard_at: NOW,
            up_since: NOW - 10_000_000,
            client_reachable,
            ..Peer::default()
        };
        BTreeMap::from([(2, peer.clone()), (3, peer)])
    }

    #[test]
    fn a_shard_goes_home_once_its_home_is_caught_up_and_settled() {
        let mut balance = Balance::new(1, vec![1, 2, 3], Duration::from_secs(2));
        let none = Duration::ZERO;
        assert_eq!(
            balance.hand_over(0, NOW, SINCE, none, &peers(true), &[2, 3]),
            None
        );
        assert_eq!(
            balance.hand_over(1, NOW, SINCE, none, &peers(true), &[3]),
            None
        );
        assert_eq!(
            balance.hand_over(1, NOW, SINCE, none, &peers(true), &[2, 3]),
            Some(2)
        );
        // Left alone for a while after that.
        assert_eq!(
            balance.hand_over(1, NOW, SINCE, none, &peers(true), &[2, 3]),
            None
        );
        let mut young = peers(true);
        young.entry(3).or_default().up_since = NOW - 1_000_000;
        assert_eq!(
            balance.hand_over(2, NOW, SINCE, none, &young, &[2, 3]),
            None
        );
    }

    #[test]
    fn a_shard_does_not_go_home_to_a_node_that_may_have_died() {
        let mut balance = Balance::new(1, vec![1, 2, 3], Duration::from_secs(2));
        let mut peers = peers(true);
        peers.entry(2).or_default().heard_at = NOW - PRESENT_MAX.as_micros() as u64;
        let none = Duration::ZERO;
        let mut target = |now| balance.hand_over(1, now, SINCE, none, &peers, &[2, 3]);
        assert_eq!(target(NOW), None);
        assert_eq!(target(NOW - 1), Some(2));
    }

    #[test]
    fn the_node_whose_death_made_us_leader_gets_nothing_back() {
        let mut balance = Balance::new(1, vec![1, 2, 3], Duration::from_secs(2));
        let mut peers = peers(true);
        peers.entry(2).or_default().heard_at = SINCE - 800_000;
        let caught_up = [2, 3];
        let target = balance.hand_over(1, NOW, SINCE, Duration::ZERO, &peers, &caught_up);
        assert_eq!(target, None);
    }

    #[test]
    fn a_deaf_leader_hands_over_only_to_a_node_that_hears() {
        let mut balance = Balance::new(1, vec![1, 2, 3], Duration::from_secs(2));
        let deaf = Duration::from_secs(5);
        assert_eq!(
            balance.hand_over(0, NOW, SINCE, deaf, &peers(false), &[2, 3]),
            None
        );
        assert_eq!(
            balance.hand_over(0, NOW, SINCE, deaf, &peers(true), &[3]),
            Some(3)
        );
    }
}
