//! What a node knows of the leaders of a shard, and when it stands for election itself.

pub(crate) mod elections;
#[cfg(test)]
mod elections_tests;

use nowserving_replica::Replica;
use nowserving_shard::clock::Micros;

use elections::delay_ticks;

/// The leaders of one shard, as this node has known them.
#[derive(Debug)]
pub(crate) struct Following {
    /// The newest known term and its leader.
    leader: (u64, Option<u64>),
    since: Micros,
    /// The newest leader of all.
    last_leader: Option<u64>,
}

impl Following {
    pub fn new(replica: &Replica, now: Micros) -> Self {
        Following {
            leader: (replica.term(), replica.leader()),
            since: now,
            last_leader: None,
        }
    }

    /// Must be called whenever Raft's leader may have changed.
    pub fn note(&mut self, replica: &Replica, now: Micros) {
        let leader = (replica.term(), replica.leader());
        if self.leader != leader {
            if self.leader.0 != leader.0 {
                metrics::counter!("nowserving_term_changes_total").increment(1);
            }
            if leader.1.is_some_and(|id| self.last_leader != Some(id)) {
                metrics::counter!("nowserving_leader_changes_total").increment(1);
            }
            self.leader = leader;
            self.since = now;
            self.last_leader = leader.1.or(self.last_leader);
        }
    }

    /// When this node learned of the present leader, if it knows one.
    pub fn leader_since(&self) -> Option<Micros> {
        self.leader.1.map(|_| self.since)
    }

    /// Sets for how long this node waits before it stands for election.
    pub fn set_election_delay(
        &self,
        me: u64,
        shard: u32,
        election_ticks: u64,
        replica: &mut Replica,
    ) {
        let (voters, term) = (replica.voters(), replica.term());
        let delay = delay_ticks(me, &voters, self.last_leader, shard, term);
        let ticks = usize::try_from(election_ticks + delay).unwrap_or(usize::MAX);
        replica.set_randomized_election_ticks(ticks);
    }
}
