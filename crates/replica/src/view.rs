//! The state of a replica, for its owner to read.

use std::cmp::Reverse;

use raft::StateRole;

use crate::{ConfState, Micros, Replica, Role, RoleChange};

impl Replica {
    /// The end of the lease in which this node may answer reads from its applied state by itself. `None`
    /// unless it leads and has a lease. The caller reads the clock again to compare: the lease holds while
    /// `now < lease_until`.
    pub fn lease_until(&self) -> Option<Micros> {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader || raft.lead_transferee.is_some() {
            return None;
        }
        self.lease.lease_until(raft.term)
    }

    /// The last index that this leader knows to be on every member's disk; 0 unless leader.
    pub fn matched_by_all(&self) -> u64 {
        let leads = self.raw.raft.state == StateRole::Leader;
        let matched = self.raw.raft.prs().iter().map(|(_, it)| it.matched);
        matched.min().filter(|_| leads).unwrap_or(0)
    }

    pub(crate) fn role_change(&self) -> RoleChange {
        RoleChange {
            role: self.role(),
            leader: self.leader(),
            term: self.term(),
        }
    }

    /// Whether this node knows its group; otherwise it waits for its first snapshot.
    pub fn is_initialized(&self) -> bool {
        self.raw.store().compact_index() > 0
    }

    /// The members as of the last applied entry.
    pub fn members(&self) -> ConfState {
        self.raw.raft.prs().conf().to_conf_state().into()
    }

    /// The members that vote, in ascending order.
    pub fn voters(&self) -> Vec<u64> {
        let mut voters: Vec<u64> = self.raw.raft.prs().conf().voters().ids().iter().collect();
        voters.sort_unstable();
        voters
    }

    /// The current role; [`Ready::role`](crate::Ready::role) reports changes.
    pub fn role(&self) -> Role {
        match self.raw.raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
        }
    }

    pub fn leader(&self) -> Option<u64> {
        Some(self.raw.raft.leader_id).filter(|&id| id != raft::INVALID_ID)
    }

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

    /// The number of entries in the log: for metrics.
    pub fn log_entries(&self) -> u64 {
        self.last_index() - self.raw.store().compact_index()
    }

    /// Entries kept in memory, in bytes: for metrics.
    pub fn memory_bytes(&self) -> u64 {
        self.raw.store().tail_bytes()
    }

    /// The other voter among `live` that has most of the log; of equal ones the smallest id. `None` unless
    /// leader.
    pub fn most_caught_up(&self, live: &[u64]) -> Option<u64> {
        let others = live.iter().filter(|&&id| id != self.raw.raft.id);
        let votes = |id| self.progress_of(id).filter(|it| it.votes);
        let known = others.filter_map(|&id| Some((votes(id)?.matched, Reverse(id))));
        known.max().map(|(_, Reverse(id))| id)
    }
}
