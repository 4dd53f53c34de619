//! The answers to operators' questions about the cluster.

use std::collections::BTreeSet;

use nowserving_protocol::admin::{
    ChangeMembers, ClusterStatus, DiskId, Mapping, MembersChangeReply, MembersChangesReply,
    MembersStatus, NodeStatus, ShardStatus, SnapshotsSent,
};
use nowserving_protocol::subject::Subjects;
use nowserving_shard::clock::Micros;
use nowserving_shard::members::{MembersChange, RecordedChange};

use super::Engine;
use crate::loops::shard_status;

impl Engine {
    pub(crate) fn cluster_status(&self, now: Micros) -> ClusterStatus {
        // An invalid prefix was refused at the start.
        let subjects = Subjects::new(self.config.prefix.clone()).ok();
        let mapping_line = subjects.filter(|_| self.mapping.is_some_and(|it| it != Mapping::Ok));
        let mut nodes: BTreeSet<u64> = self.membership.peers.clone();
        nodes.extend(self.membership.wanted.nodes.keys());
        nodes.insert(self.config.id);
        let own = self.shards.values().map(|it| it.state.lines().len() as u64);
        let lines = own.chain(self.role.reports().map(|it| it.gauges.lines_held));
        let reported = self.role.reports().flat_map(|it| it.groups.values());
        let reported = reported.map(|it| it.status.clone());
        let mut shards: Vec<ShardStatus> = self.shards.values().map(shard_status).collect();
        shards.extend(reported);
        shards.sort_unstable_by_key(|it| it.shard);
        ClusterStatus {
            mapping: self.mapping,
            mapping_line: mapping_line.map(|subjects| subjects.mapping_line(self.config.shards)),
            cluster: self.config.cluster.clone(),
            answered_by: self.config.id,
            at_ms: self.ctx.now.wall_ms,
            members: MembersStatus {
                version: self.membership.wanted.version,
                shards_changing: self.groups().changing(&self.membership.wanted) as u32,
                candidates: self.candidates.status(&self.membership.wanted, now),
            },
            nodes: nodes
                .iter()
                .map(|id| self.node_status(*id, &shards, now))
                .collect(),
            shards,
            lines: lines.sum(),
            key: self
                .keys
                .status(&self.membership.wanted, self.ctx.now.wall_ms),
            other_clusters: self.membership.other_clusters.clone(),
        }
    }

    fn node_status(&self, id: u64, shards: &[ShardStatus], now: Micros) -> NodeStatus {
        let me = id == self.config.id;
        let clocks = &self.ctx.clocks;
        let peer = clocks.peers.get(&id);
        let count =
            |such: &dyn Fn(&ShardStatus) -> bool| shards.iter().filter(|it| such(it)).count();
        let wanted = &self.membership.wanted;
        let votes = |it: &ShardStatus| it.voters.contains(&id);
        let learns = |it: &ShardStatus| it.learners.contains(&id);
        let reported = self.role.reports().flat_map(|it| it.groups.values());
        let takes_part = clocks.takes_part(id, now);
        let caught_up = reported.filter(|it| takes_part && it.caught_up.contains(&id));
        NodeStatus {
            id,
            alive: me || peer.is_some_and(|p| p.alive(now)),
            refused: self.contact.refused(id, now).map(str::to_owned),
            leads: count(&|it| it.leader == Some(id)) as u64,
            disk_full: match me {
                true => self.ctx.disk_full,
                false => peer.is_some_and(|p| p.disk_full),
            },
            refuses_snapshots: match me {
                true => self.refuses_snapshots(now),
                false => peer.map_or(0, |p| p.refuses_snapshots),
            },
            last_heard_ms: peer
                .filter(|p| !me && p.last_seen != 0)
                .map(|p| now.saturating_sub(p.last_seen) / 1_000),
            metrics_addr: match me {
                true => self.config.metrics_addr.clone(),
                false => peer
                    .map(|p| p.metrics_addr.clone())
                    .filter(|addr| !addr.is_empty()),
            },
            version: match me {
                true => Some(self.config.version.clone()),
                false => peer.map(|p| p.version.clone()).filter(|v| !v.is_empty()),
            },
            max_payload_bytes: match me {
                true => Some(self.max_payload_of_all() as u64),
                false => peer.map(|p| p.max_payload).filter(|it| *it != 0),
            },
            votes_in: count(&votes) as u32,
            caught_up_in: (self.lagging.caught_up_in(id, &self.shards, clocks, now)
                + caught_up.count()) as u32,
            snapshots: self.snapshots_sent(|to| to == id, now),
            joining_in: count(&learns) as u32,
            leaving: wanted.version > 0 && !wanted.nodes.contains_key(&id),
            drained: wanted.nodes.get(&id).is_some_and(|it| it.drained),
            keys: self.keys.replies(id, clocks),
        }
    }

    /// The snapshots that leaders send such nodes now.
    pub(crate) fn snapshots_sent(
        &self,
        to: impl Fn(u64) -> bool,
        now: Micros,
    ) -> Option<SnapshotsSent> {
        let nodes = self.membership.peers.iter().chain([&self.config.id]);
        let clocks = &self.ctx.clocks;
        self.lagging.snapshots_sent(nodes.copied(), to, clocks, now)
    }

    pub(crate) fn members_changes(&self, now: Micros) -> MembersChangesReply {
        let first = self.shards.get(&0);
        let changes = first
            .into_iter()
            .flat_map(|shard| shard.state.members().changes());
        MembersChangesReply {
            changes: changes.map(change_reply).collect(),
            shards_changing: self.groups().changing(&self.membership.wanted) as u32,
            snapshots: self.snapshots_sent(|_| true, now),
        }
    }
}

fn change_reply(it: &RecordedChange) -> MembersChangeReply {
    let text = |text: &str| Some(text.to_owned()).filter(|it| !it.is_empty());
    let mut request = ChangeMembers {
        if_version: it.request.if_version,
        ..ChangeMembers::default()
    };
    let op = match &it.request.change {
        MembersChange::Add { disk_id } => {
            request.disk = Some(DiskId(*disk_id));
            "add_node"
        }
        MembersChange::Remove { id } => {
            request.node = Some(*id);
            "remove_node"
        }
        MembersChange::Replace { id, disk_id } => {
            (request.node, request.disk) = (Some(*id), Some(DiskId(*disk_id)));
            "replace_node"
        }
        MembersChange::Drain { id, drained } => {
            (request.node, request.drained) = (Some(*id), Some(*drained));
            "drain"
        }
        MembersChange::Prefer { shards, to } => {
            (request.shards, request.node) = (Some(shards.clone()), *to);
            "transfer"
        }
        MembersChange::RotateKey(rotation) => {
            request.key_id = Some(rotation.current.id);
            request.old_until_ms = Some(rotation.old_until_ms);
            "rotate_key"
        }
    };
    MembersChangeReply {
        members_version: it.version,
        at_ms: it.at_ms,
        op: op.to_owned(),
        request,
        by: text(&it.request.by),
        reason: text(&it.request.reason),
    }
}
