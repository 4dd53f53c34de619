//! The state of a replica, for its owner to read.

use raft::StateRole;

use crate::{Micros, Replica, Role, RoleChange};

impl Replica {
    /// The end of the lease in which this node may answer reads from its applied state by itself. `None`
    /// unless it leads and has a lease. The caller reads the clock again to compare: the lease holds while
    /// `now < lease_until`.
    pub fn lease_until(&self) -> Option<Micros> {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader || raft.lead_transferee.is_some() {
            return None;
        }
        self.reads.lease_until(raft.term)
    }

    /// The last index that this leader knows to be on every member's disk; 0 unless leader.
    pub fn matched_by_all(&self) -> u64 {
        if self.raw.raft.state != StateRole::Leader {
            return 0;
        }
        self.raw
            .raft
            .prs()
            .iter()
            .map(|(_, progress)| progress.matched)
            .min()
            .unwrap_or(0)
    }

    pub(crate) fn role_change(&self) -> RoleChange {
        RoleChange {
            role: self.role(),
            leader: self.leader(),
            term: self.term(),
        }
    }

    /// The members that vote, in ascending order.
    pub fn voters(&self) -> Vec<u64> {
        let mut voters: Vec<u64> = self.raw.raft.prs().conf().voters().ids().iter().collect();
        voters.sort_unstable();
        voters
    }

    /// The shard this replica is of.
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// The current role; [`Ready::role`](crate::Ready::role) reports changes.
    pub fn role(&self) -> Role {
        match self.raw.raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
        }
    }

    /// The leader, if known.
    pub fn leader(&self) -> Option<u64> {
        Some(self.raw.raft.leader_id).filter(|&id| id != raft::INVALID_ID)
    }

    /// The current term.
    pub fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// The commit index that this node knows.
    pub fn committed(&self) -> u64 {
        self.raw.raft.raft_log.committed
    }

    /// The last entry, persisted or not.
    pub fn last_index(&self) -> u64 {
        self.raw.raft.raft_log.last_index()
    }

    /// The term of an entry of the log, for the header of a snapshot. `None` if the log does not have it.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        let in_log = (self.raw.store().compact_index()..=self.last_index()).contains(&index);
        in_log
            .then(|| self.raw.raft.raft_log.term(index).ok())
            .flatten()
    }

    /// The last index reported by [`Replica::on_applied`].
    pub fn applied(&self) -> u64 {
        self.raw.raft.raft_log.applied
    }

    /// How many entries the log holds: for metrics.
    pub fn log_entries(&self) -> u64 {
        self.last_index() - self.raw.store().compact_index()
    }

    /// Entries kept in memory, in bytes: for metrics.
    pub fn memory_bytes(&self) -> u64 {
        self.raw.store().tail_bytes()
    }

    /// Rounds of `read_index` that wait for a quorum: for metrics.
    pub fn pending_reads(&self) -> usize {
        self.reads.pending()
    }

    /// The other voter among `live` that has most of the log; of equal ones the smallest id. `None` unless
    /// leader.
    pub fn most_caught_up(&self, live: &[u64]) -> Option<u64> {
        if self.raw.raft.state != StateRole::Leader {
            return None;
        }
        let (prs, me) = (self.raw.raft.prs(), self.raw.raft.id);
        let voters = prs.conf().voters();
        live.iter()
            .filter(|&&id| id != me && voters.contains(id))
            .filter_map(|&id| {
                prs.get(id)
                    .map(|progress| (progress.matched, std::cmp::Reverse(id)))
            })
            .max()
            .map(|(_, std::cmp::Reverse(id))| id)
    }

    /// How many entries of this leader's log a voter lacks, as far as is known. `None` unless leader, or if
    /// that node is no voter.
    pub fn lag(&self, voter: u64) -> Option<u64> {
        if self.raw.raft.state != StateRole::Leader {
            return None;
        }
        let prs = self.raw.raft.prs();
        let progress = prs
            .conf()
            .voters()
            .contains(voter)
            .then(|| prs.get(voter))??;
        Some(self.last_index().saturating_sub(progress.matched))
    }
}
