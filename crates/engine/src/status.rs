//! The answers to operators' questions about the cluster.

use std::collections::BTreeSet;

use nowserving_protocol::admin::{
    ChangeMembers, ClusterStatus, DiskId, Mapping, MembersChangeReply, MembersChangesReply,
    MembersStatus, NodeStatus, ShardStatus,
};
use nowserving_protocol::subject::Subjects;
use nowserving_shard::clock::Micros;
use nowserving_shard::members::{MembersChange, RecordedChange};

use crate::engine::Engine;
use crate::shard::Shard;

impl Engine {
    pub(crate) fn cluster_status(&self, now: Micros) -> ClusterStatus {
        let shards = self.config.shards;
        // An invalid prefix was refused at the start.
        let subjects = Subjects::new(self.config.prefix.clone()).ok();
        let mapping_line = subjects.filter(|_| self.mapping.is_some_and(|it| it != Mapping::Ok));
        let mut nodes: BTreeSet<u64> = self.membership.peers.clone();
        nodes.extend(self.membership.wanted.nodes.keys());
        nodes.insert(self.config.id);
        let lines = self.shards.values().map(|it| it.state.lines().len() as u64);
        ClusterStatus {
            mapping: self.mapping,
            mapping_line: mapping_line.map(|subjects| subjects.mapping_line(shards)),
            cluster: self.config.cluster.clone(),
            answered_by: self.config.id,
            at_ms: self.ctx.now.wall_ms,
            nodes: nodes.iter().map(|id| self.node_status(*id, now)).collect(),
            members: MembersStatus {
                version: self.membership.wanted.version,
                shards_changing: self.shards_changing() as u32,
                candidates: self.candidates(now),
            },
            shards: self.shards.values().map(shard_status).collect(),
            lines: lines.sum(),
            key: self.key_status(),
            other_clusters: self.membership.other_clusters.clone(),
        }
    }

    fn node_status(&self, id: u64, now: Micros) -> NodeStatus {
        let me = id == self.config.id;
        let peer = self.ctx.clocks.peers.get(&id);
        let count =
            |such: &dyn Fn(&Shard) -> bool| self.shards.values().filter(|it| such(it)).count();
        let wanted = &self.membership.wanted;
        let votes = |it: &Shard| it.replica.voters().contains(&id);
        let learns = |it: &Shard| it.replica.members().learners.contains(&id);
        NodeStatus {
            id,
            alive: me || peer.is_some_and(|p| p.alive(now)),
            refused: self.contact.refused(id, now).map(str::to_owned),
            leads: count(&|it| it.replica.leader() == Some(id)) as u64,
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
                true => Some(self.ctx.payload.max as u64),
                false => peer.map(|p| p.max_payload).filter(|it| *it != 0),
            },
            votes_in: count(&votes) as u32,
            caught_up_in: self.caught_up_in(id, now) as u32,
            snapshots: self.snapshots_sent(|to| to == id, now),
            joining_in: count(&learns) as u32,
            leaving: wanted.version > 0 && !wanted.nodes.contains_key(&id),
            drained: wanted.nodes.get(&id).is_some_and(|it| it.drained),
            keys: self.key_replies(id),
        }
    }

    pub(crate) fn members_changes(&self, now: Micros) -> MembersChangesReply {
        let first = self.shards.get(&0);
        let changes = first
            .into_iter()
            .flat_map(|shard| shard.state.members().changes());
        MembersChangesReply {
            changes: changes.map(change_reply).collect(),
            shards_changing: self.shards_changing() as u32,
            snapshots: self.snapshots_sent(|_| true, now),
        }
    }
}

fn shard_status(shard: &Shard) -> ShardStatus {
    ShardStatus {
        shard: shard.id,
        leader: shard.replica.leader(),
        term: shard.replica.term(),
        applied: shard.replica.applied(),
        committed: shard.replica.committed(),
        voters: shard.replica.voters(),
        learners: shard.replica.members().learners,
        differs: shard.agreement.differs(),
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
