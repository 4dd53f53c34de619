//! Whose acceptance lets a node take part.

use std::collections::BTreeSet;

/// The sets of nodes whose majorities decide whether a node takes part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Electorates {
    /// The wanted members.
    pub wanted: BTreeSet<u64>,
    /// The voters of each group on this node. While members change they differ from the wanted ones.
    pub groups: BTreeSet<BTreeSet<u64>>,
}

impl Electorates {
    /// Whether such nodes are a majority of the wanted members, or of every group. With the second, a node
    /// whose groups do not have a new member yet does not wait for it.
    pub(crate) fn majority(&self, such: impl Fn(u64) -> bool) -> bool {
        let all_groups = !self.groups.is_empty() && self.groups.iter().all(|it| most(it, &such));
        all_groups || most(&self.wanted, &such)
    }

    /// The same of nodes that accept this one. One that is to be removed does not count: it may have been for long,
    /// cut off, and know nothing of what this node's disk lost since.
    pub(crate) fn accepted_by(&self, such: impl Fn(u64) -> bool) -> bool {
        self.majority(|id| self.wanted.contains(&id) && such(id))
    }

    /// The wanted members that no group on this node has.
    pub(crate) fn newcomers(&self) -> impl Iterator<Item = &u64> {
        let groups = self.groups.iter();
        let in_a_group = move |id: &u64| groups.clone().any(|it| it.contains(id));
        self.wanted.iter().filter(move |id| !in_a_group(id))
    }
}

/// Whether such nodes are a majority.
pub(crate) fn most(nodes: &BTreeSet<u64>, such: impl Fn(u64) -> bool) -> bool {
    2 * nodes.iter().filter(|id| such(**id)).count() > nodes.len()
}
