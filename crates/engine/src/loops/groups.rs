//! The groups of all loops of a node.

use nowserving_replica::ConfState;
use nowserving_shard::members::Members;

use super::{LoopReport, Role};
use crate::shard::Shards;

/// The groups of this engine's shards, and those that the other loops have reported to the first one.
#[derive(Clone, Copy)]
pub(crate) struct Groups<'a> {
    shards: &'a Shards,
    others: &'a Role,
}

impl<'a> Groups<'a> {
    pub fn of(shards: &'a Shards, others: &'a Role) -> Self {
        Groups { shards, others }
    }

    /// Whether every loop has reported its groups. Until then this node does not know whose quorum it needs.
    pub fn are_known(self) -> bool {
        self.others.others().all(|(_, it)| it.report.is_some())
    }

    fn reports(self) -> impl Iterator<Item = &'a LoopReport> {
        self.others.reports()
    }

    pub fn configurations(self) -> impl Iterator<Item = ConfState> {
        let own = self.shards.values().map(|it| it.replica.members());
        let reported = self.reports().flat_map(|it| it.groups.values());
        own.chain(reported.map(|it| it.members.clone()))
    }

    /// The members in the states of this engine's shards, and of those of each other loop the oldest and the newest.
    pub fn known_members(self) -> impl Iterator<Item = &'a Members> {
        let own = self.shards.values().map(|it| it.state.members().wanted());
        let reported = self.reports().filter_map(|it| it.members.as_ref());
        own.chain(reported.flat_map(|(oldest, newest)| [oldest, newest]))
    }

    /// The voters of each group.
    pub fn voters(self) -> impl Iterator<Item = Vec<u64>> {
        let own = self.shards.values().map(|it| it.replica.voters());
        let reported = self.reports().flat_map(|it| it.groups.values());
        own.chain(reported.map(|it| it.status.voters.clone()))
    }

    /// Whether this node was never in a group: it has joined, and no leader has sent it anything yet.
    pub fn are_empty(self) -> bool {
        self.are_known() && self.configurations().all(|it| it.nodes().next().is_none())
    }

    /// Whether a group may have a removed node, as far as this node can tell: of a group that it has not caught up
    /// with it knows nothing.
    pub fn may_have(self, id: u64) -> bool {
        !self.are_known() || !self.known_members().all(|it| it.was_removed(id))
    }

    /// How many groups do not have the wanted members, as this node knows them.
    pub fn changing(self, wanted: &Members) -> usize {
        let differs = |group: &ConfState| {
            let voters = group.voters.iter().all(|id| wanted.nodes.contains_key(id));
            let all = group.voters.len() == wanted.nodes.len();
            let over = group.voters_outgoing.is_empty() && group.learners.is_empty();
            !(voters && all && over)
        };
        let groups = self.configurations();
        groups
            .filter(|group| wanted.version > 0 && differs(group))
            .count()
    }
}
