//! The members as this node knows them, and the nodes that it exchanges frames with.

use std::collections::BTreeSet;

use nowserving_protocol::admin::OtherCluster;
use nowserving_replica::ConfState;
use nowserving_shard::clock::Micros;
use nowserving_shard::members::Members;

use crate::contact::{Electorates, PeerHeader, Refusal};
use crate::engine::Engine;
use crate::envelope::Verdict;
use crate::frames::{PeerBatch, PeerFrame};
use crate::io::{ExitReason, Output};

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
    /// Others that serve on this node's prefix.
    pub other_clusters: Vec<OtherCluster>,
    /// When a node that is no peer was last answered.
    answered_at: Micros,
    /// When members of another cluster are next reported.
    next_warning: Micros,
}

impl Membership {
    pub fn new(wanted: Members) -> Self {
        Membership {
            wanted,
            ..Membership::default()
        }
    }

    /// Takes newer members of the same cluster.
    fn learn(&mut self, members: &Members) -> bool {
        let newer = members.supersede(&self.wanted);
        if newer {
            self.wanted = members.clone();
        }
        newer
    }
}

impl Engine {
    /// Finds out who the members and peers are, when members or a group may have changed.
    pub(crate) fn members_changed(&mut self) {
        self.ctx.members_changed = false;
        for shard in self.shards.values() {
            let own = shard.state.members().wanted();
            self.membership.learn(own);
            // Learned before this node's own groups wrote down theirs.
            if self.membership.wanted.contradict(own) {
                self.contact.note_other_cluster();
            } else if self.membership.wanted.are_foreign_to(own.cluster_id) {
                self.membership.wanted = own.clone();
            }
        }
        let mut wanted = self.membership.wanted.clone();
        if wanted.version == 0 {
            wanted = Members::begin(&self.config.nodes, 0);
        }
        self.balance.set_members(&wanted);
        let groups = self.shards.values().map(|shard| shard.replica.members());
        let groups: Vec<ConfState> = groups.collect();
        let wanted: BTreeSet<u64> = wanted.nodes.into_keys().collect();
        let mut peers: BTreeSet<u64> = groups.iter().flat_map(ConfState::nodes).collect();
        peers.extend(&wanted);
        let mut former = std::mem::take(&mut self.membership.former);
        former.retain(|id| self.may_be_in_a_group(*id));
        peers.extend(&former);
        self.membership.former = former;
        peers.remove(&self.config.id);
        let voters = groups
            .iter()
            .flat_map(|it| [&it.voters, &it.voters_outgoing]);
        let voters = voters.filter(|voters| !voters.is_empty());
        let electorates = Electorates {
            wanted,
            groups: voters.map(|it| it.iter().copied().collect()).collect(),
        };
        self.contact.set_members(&peers, electorates);
        self.ctx.clocks.peers.retain(|id, _| peers.contains(id));
        self.membership.peers = peers;
        self.check_room();
        let (wanted, peers) = (&self.membership.wanted, &self.membership.peers);
        let now = (wanted.version, peers.clone());
        if self.membership.announced.as_ref() != Some(&now) {
            self.ctx.out.outputs.push(Output::Members {
                wanted: wanted.clone(),
                peers: peers.clone(),
            });
            self.membership.announced = Some(now);
        }
    }

    /// Of a frame of another cluster of the same name nothing is believed: one that was founded by mistake has the same
    /// key and numbers.
    pub(crate) fn believed(&self, frame: PeerFrame) -> PeerFrame {
        let PeerFrame { from, header, .. } = &frame;
        if !self.membership.wanted.are_foreign_to(header.cluster_id) {
            return frame;
        }
        PeerFrame {
            from: *from,
            header: PeerHeader::default(),
            body: Err(Refusal::of_other_cluster(*from)),
        }
    }

    /// Learns the members that a frame carries.
    pub(crate) fn note_members(&mut self, from: u64, header: &PeerHeader) {
        let members = header.members.as_ref();
        if members.is_some_and(|it| self.membership.learn(it)) {
            self.members_changed();
        }
        self.note_former(from);
    }

    /// Newer members of another cluster of this name, which has a quorum: this one was founded by nodes that had lost
    /// their disks, and gives way.
    pub(crate) fn note_other_cluster(&mut self, members: &Members, now: Micros) {
        let known = &self.membership.wanted;
        if members.version <= known.version || members.cluster_id == known.cluster_id {
            return;
        }
        metrics::counter!("nowserving_foreign_members_total").increment(1);
        if now >= self.membership.next_warning {
            self.membership.next_warning = now + OTHER_CLUSTER_INTERVAL_US;
            let version = members.version;
            tracing::warn!(version, "there is another cluster of the same name");
        }
        if members.contradict(known) {
            self.contact.note_other_cluster();
            if self.standing.is_in_touch() {
                self.announce_standing(now);
            }
        }
    }

    /// Stops this node if it was removed and no group has it any more: requests may be on their way to it, so it
    /// drains first. A node that asks for a new number waits for that instead.
    pub(crate) fn stop_if_removed(&mut self, now: Micros) {
        let removed = self.membership.wanted.was_removed(self.config.id);
        if removed && self.contact.says_removed() && !self.is_candidate {
            self.stopping_since.get_or_insert(now);
            self.stop_reason = ExitReason::Removed;
        }
    }

    /// Answers a node that is no peer: one with newer members is asked for them, and a removed one is told that
    /// no group has it any more.
    pub(crate) fn answer_stranger(&mut self, to: u64, header: &PeerHeader, now: Micros) {
        if now < self.membership.answered_at + STRANGER_INTERVAL_US {
            return;
        }
        let Some(start) = header.start else { return };
        let newer = header.members_version > self.membership.wanted.version;
        let removed = self.contact.is_in_touch() && !self.may_be_in_a_group(to);
        if !newer && !removed {
            return;
        }
        self.membership.answered_at = now;
        if newer {
            // A frame that says how old the members here are.
            let batch = self.batch(to, now);
            self.ctx.out.outputs.push(Output::Frame { to, batch });
            return;
        }
        let verdict = Verdict {
            start,
            refused: format!("node {to} was removed from the cluster"),
            removed: true,
            disk: false,
        };
        let batch = PeerBatch {
            verdicts: vec![verdict],
            members: Some(self.membership.wanted.clone()),
            ..self.batch(to, now)
        };
        self.ctx.out.outputs.push(Output::Frame { to, batch });
    }

    /// A node that is no peer sends a frame: it becomes one if it was removed, but may still be in a group.
    fn note_former(&mut self, from: u64) {
        let is_peer = self.membership.peers.contains(&from);
        let former = self.membership.wanted.was_removed(from) && self.may_be_in_a_group(from);
        if !is_peer && former && from != self.config.id {
            self.membership.former.insert(from);
            self.members_changed();
        }
    }

    /// Whether this node was never in a group: it has joined, and no leader has sent it anything yet.
    pub(crate) fn is_in_no_group(&self) -> bool {
        let mut shards = self.shards.values();
        shards.all(|shard| shard.replica.members().nodes().next().is_none())
    }

    /// Whether a group may have a removed node, as far as this node can tell: of a group that it has not caught up
    /// with it knows nothing.
    fn may_be_in_a_group(&self, id: u64) -> bool {
        let mut shards = self.shards.values();
        !shards.all(|shard| shard.state.members().wanted().was_removed(id))
    }

    /// The members for a frame to a peer, if it knows older ones.
    pub(crate) fn members_for(&self, to: u64) -> Option<Members> {
        let peer = self.ctx.clocks.peers.get(&to);
        let known = peer.map_or(0, |peer| peer.members_version);
        (known < self.membership.wanted.version).then(|| self.membership.wanted.clone())
    }
}
