//! The members as this node knows them, and the nodes that it exchanges frames with.

use std::collections::BTreeSet;

use nowserving_protocol::admin::OtherCluster;
use nowserving_shard::clock::Micros;
use nowserving_shard::members::Members;

use crate::io::Output;
use crate::loops::groups::Groups;
use crate::outbox::Outbox;
use crate::peers::contact::Standing;

pub(crate) mod candidates;
pub(crate) mod keys;
#[cfg(test)]
mod keys_tests;
#[cfg(test)]
mod members_tests;

/// Nodes that are no peers are answered this often.
const STRANGER_INTERVAL_US: Micros = 250_000;
const OTHER_CLUSTER_INTERVAL_US: Micros = 10_000_000;

/// The newest wanted members that this node knows, and its peers.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    /// Decided by shard 0. From this node's own shards, from a peer's frame, or from the file of its last
    /// start.
    pub wanted: Members,
    /// The other nodes that are wanted, or still in some group: this node exchanges frames with them.
    pub peers: BTreeSet<u64>,
    /// Nodes that were removed and still send frames, while this node lacks a part of some group's log: they may
    /// lead that group, and have to send it.
    former: BTreeSet<u64>,
    /// The version and peers of the last [`Output::Members`].
    announced: Option<(u64, BTreeSet<u64>)>,
    /// This node was refused since it was last in touch, and may ask to be added under a new number.
    is_candidate: bool,
    /// Others that serve on this node's prefix.
    pub other_clusters: Vec<OtherCluster>,
    /// When a node that is no peer was last answered.
    answered_at: Micros,
    /// When members of another cluster are next reported.
    next_warning: Micros,
}

impl Membership {
    pub fn new(wanted: Members, is_candidate: bool) -> Self {
        Membership {
            wanted,
            is_candidate,
            ..Membership::default()
        }
    }

    /// Takes newer members of the same cluster.
    pub fn learn(&mut self, members: &Members) -> bool {
        let newer = members.supersede(&self.wanted);
        if newer {
            self.wanted = members.clone();
        }
        newer
    }

    /// The nodes that were removed and may still be in a group.
    pub fn keep_former(&mut self, groups: Groups<'_>) -> &BTreeSet<u64> {
        self.former.retain(|id| groups.may_have(*id));
        &self.former
    }

    /// A node sends a frame. Returns whether it becomes a peer, as it was removed, but may still be in a group.
    pub fn note_former(&mut self, from: u64, groups: Groups<'_>) -> bool {
        let is_former = self.wanted.was_removed(from) && groups.may_have(from);
        !self.peers.contains(&from) && is_former && self.former.insert(from)
    }

    /// Reports changed members and peers to the node.
    pub fn announce(&mut self, out: &mut Outbox) {
        let now = (self.wanted.version, self.peers.clone());
        if self.announced.as_ref() != Some(&now) {
            out.outputs.push(Output::Members {
                wanted: self.wanted.clone(),
                peers: self.peers.clone(),
            });
            self.announced = Some(now);
        }
    }

    /// Whether a node that is no peer is answered now.
    pub fn may_answer_stranger(&mut self, now: Micros) -> bool {
        let may = now >= self.answered_at + STRANGER_INTERVAL_US;
        if may {
            self.answered_at = now;
        }
        may
    }

    pub fn warn_of_other(&mut self, members: &Members, now: Micros) {
        if now >= self.next_warning {
            self.next_warning = now + OTHER_CLUSTER_INTERVAL_US;
            let version = members.version;
            tracing::warn!(version, "there is another cluster of the same name");
        }
    }

    pub fn is_candidate(&self) -> bool {
        self.is_candidate
    }

    /// A node that is refused for good asks for a new number until it is in touch.
    pub fn note_standing(&mut self, standing: &Standing, says_removed: bool) {
        match standing {
            Standing::InTouch => self.is_candidate = false,
            Standing::Refused(refusal) if refusal.needs_number() => {
                self.is_candidate |= !says_removed;
            }
            Standing::Refused(_) | Standing::Waiting(_) => {}
        }
    }
}
