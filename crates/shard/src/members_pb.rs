//! Members between this crate's types and protobuf.

use nowserving_protocol::keys::{KeyPrint, Rotation};
use prost::Message as _;

use crate::members::{
    Member, Members, MembersChange, MembersChanged, MembersCommand, MembersRefused, MembersRequest,
    RecordedChange,
};
use crate::pb;
use crate::pb::members_change::Change as PbChange;
use crate::pb::members_command::Command as PbCommand;
use crate::pb::{Malformed, all};

impl Members {
    /// For frames between nodes, and files.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        members_to_pb(self).encode_to_vec()
    }

    /// `None`: these are no [`Members`] that this build can read.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Members> {
        members_from_pb(pb::Members::decode(bytes).ok()?).ok()
    }
}

pub(crate) fn members_to_pb(members: &Members) -> pb::Members {
    let nodes = members.nodes.iter().map(|(id, member)| pb::Member {
        id: *id,
        disk_id: member.disk_id,
        drained: member.drained,
    });
    let preferred = members.preferred.iter();
    let preferred = preferred.map(|(&shard, &node)| pb::PreferredLeader { shard, node });
    pb::Members {
        version: members.version,
        next_id: members.next_id,
        nodes: nodes.collect(),
        preferred: preferred.collect(),
        first: members.first.iter().copied().collect(),
        cluster_id: members.cluster_id,
        rotation: members.rotation.as_ref().map(rotation_to_pb),
    }
}

fn rotation_to_pb(it: &Rotation) -> pb::KeyRotation {
    let print = |key: KeyPrint| {
        Some(pb::KeyPrint {
            id: u32::from(key.id),
            fingerprint: key.fingerprint,
        })
    };
    pb::KeyRotation {
        current: print(it.current),
        old: print(it.old),
        old_until_ms: it.old_until_ms,
    }
}

fn rotation_from_pb(it: pb::KeyRotation) -> Result<Rotation, Malformed> {
    let print = |key: Option<pb::KeyPrint>| {
        let key = key.ok_or("a rotation without its keys")?;
        let id = u8::try_from(key.id).map_err(|_| "a key's id above 255")?;
        Ok::<_, Malformed>(KeyPrint {
            id,
            fingerprint: key.fingerprint,
        })
    };
    Ok(Rotation {
        current: print(it.current)?,
        old: print(it.old)?,
        old_until_ms: it.old_until_ms,
    })
}

pub(crate) fn members_from_pb(members: pb::Members) -> Result<Members, Malformed> {
    let nodes = all(members.nodes, |it| {
        let (disk_id, drained) = (it.disk_id, it.drained);
        match it.id {
            0 => Err("a member without a number"),
            id => Ok((id, Member { disk_id, drained })),
        }
    });
    let preferred = members.preferred.into_iter();
    Ok(Members {
        version: members.version,
        next_id: members.next_id,
        nodes: nodes?,
        preferred: preferred.map(|it| (it.shard, it.node)).collect(),
        first: members.first.into_iter().collect(),
        cluster_id: members.cluster_id,
        rotation: members.rotation.map(rotation_from_pb).transpose()?,
    })
}

pub(crate) fn members_command_to_pb(command: &MembersCommand) -> pb::MembersCommand {
    let command = match command {
        MembersCommand::Begin { nodes, cluster_id } => PbCommand::Begin(pb::BeginMembers {
            nodes: nodes.clone(),
            cluster_id: *cluster_id,
        }),
        MembersCommand::Request(request) => PbCommand::Request(request_to_pb(request)),
        MembersCommand::Adopt(members) => PbCommand::Adopt(members_to_pb(members)),
    };
    pb::MembersCommand {
        command: Some(command),
    }
}

pub(crate) fn members_command_from_pb(
    command: pb::MembersCommand,
) -> Result<MembersCommand, Malformed> {
    Ok(
        match command.command.ok_or("no command about the members")? {
            PbCommand::Begin(pb::BeginMembers { nodes, cluster_id }) => {
                MembersCommand::Begin { nodes, cluster_id }
            }
            PbCommand::Request(request) => MembersCommand::Request(request_from_pb(request)?),
            PbCommand::Adopt(members) => MembersCommand::Adopt(members_from_pb(members)?),
        },
    )
}

pub(crate) fn recorded_to_pb(it: &RecordedChange) -> pb::RecordedChange {
    pb::RecordedChange {
        version: it.version,
        at_ms: it.at_ms,
        request: Some(request_to_pb(&it.request)),
    }
}

pub(crate) fn recorded_from_pb(it: pb::RecordedChange) -> Result<RecordedChange, Malformed> {
    let request = it.request.ok_or("a change of the members without one")?;
    Ok(RecordedChange {
        version: it.version,
        at_ms: it.at_ms,
        request: request_from_pb(request)?,
    })
}

fn request_to_pb(request: &MembersRequest) -> pb::MembersRequest {
    let change = match request.change.clone() {
        MembersChange::Add { disk_id } => PbChange::Add(pb::AddMember { disk_id }),
        MembersChange::Remove { id } => PbChange::Remove(pb::RemoveMember { id }),
        MembersChange::Replace { id, disk_id } => {
            PbChange::Replace(pb::ReplaceMember { id, disk_id })
        }
        MembersChange::Drain { id, drained } => PbChange::Drain(pb::DrainMember { id, drained }),
        MembersChange::Prefer { shards, to } => {
            PbChange::Prefer(pb::PreferLeader { shards, node: to })
        }
        MembersChange::RotateKey(rotation) => PbChange::RotateKey(rotation_to_pb(&rotation)),
    };
    pb::MembersRequest {
        change: Some(pb::MembersChange {
            change: Some(change),
        }),
        if_version: request.if_version,
        by: request.by.clone(),
        reason: request.reason.clone(),
    }
}

fn request_from_pb(request: pb::MembersRequest) -> Result<MembersRequest, Malformed> {
    let change = request.change.and_then(|it| it.change);
    let change = match change.ok_or("a change of the members that this build does not know")? {
        PbChange::Add(pb::AddMember { disk_id }) => MembersChange::Add { disk_id },
        PbChange::Remove(pb::RemoveMember { id }) => MembersChange::Remove { id },
        PbChange::Replace(pb::ReplaceMember { id, disk_id }) => {
            MembersChange::Replace { id, disk_id }
        }
        PbChange::Drain(pb::DrainMember { id, drained }) => MembersChange::Drain { id, drained },
        PbChange::Prefer(pb::PreferLeader { shards, node }) => {
            MembersChange::Prefer { shards, to: node }
        }
        PbChange::RotateKey(rotation) => MembersChange::RotateKey(rotation_from_pb(rotation)?),
    };
    Ok(MembersRequest {
        change,
        if_version: request.if_version,
        by: request.by,
        reason: request.reason,
    })
}

pub(crate) fn answer_to_pb(answer: &Result<MembersChanged, MembersRefused>) -> pb::MembersAnswer {
    match answer {
        Ok(changed) => pb::MembersAnswer {
            version: changed.version,
            node: changed.id,
            refusal: None,
        },
        Err(refused) => pb::MembersAnswer {
            refusal: Some(refusal_to_pb(refused)),
            ..pb::MembersAnswer::default()
        },
    }
}

pub(crate) fn answer_from_pb(
    answer: pb::MembersAnswer,
) -> Result<Result<MembersChanged, MembersRefused>, Malformed> {
    let refused = answer.refusal.as_ref().map(refusal_from_pb).transpose()?;
    Ok(refused.map_or(
        Ok(MembersChanged {
            version: answer.version,
            id: answer.node,
        }),
        Err,
    ))
}

fn refusal_to_pb(refused: &MembersRefused) -> pb::MembersRefusal {
    let (kind, number, of) = match *refused {
        MembersRefused::Version(version) => (1, version, 0),
        MembersRefused::NoMember(id) => (2, id, 0),
        MembersRefused::TooMany => (3, 0, 0),
        MembersRefused::Last(id) => (4, id, 0),
        MembersRefused::DiskInUse(id) => (5, id, 0),
        MembersRefused::Drained(id) => (6, id, 0),
        MembersRefused::InProgress(shards) => (7, shards, 0),
        MembersRefused::NotAsking(disk_id) => (8, disk_id, 0),
        MembersRefused::NoMajority { alive, all } => (9, alive, all),
        MembersRefused::Unfit(id) => (10, id, 0),
        MembersRefused::Lags { id, shards } => (11, id, shards),
        MembersRefused::KeyNotLoaded { key, .. } => (12, 0, key.into()),
        MembersRefused::KeyNotNewer(new, old) => (13, new.into(), old.into()),
    };
    let nodes = match refused {
        MembersRefused::KeyNotLoaded { nodes, .. } => nodes.clone(),
        _ => Vec::new(),
    };
    pb::MembersRefusal {
        kind,
        number,
        of,
        nodes,
    }
}

fn refusal_from_pb(refusal: &pb::MembersRefusal) -> Result<MembersRefused, Malformed> {
    let (kind, number, of) = (refusal.kind, refusal.number, refusal.of);
    Ok(match kind {
        1 => MembersRefused::Version(number),
        2 => MembersRefused::NoMember(number),
        3 => MembersRefused::TooMany,
        4 => MembersRefused::Last(number),
        5 => MembersRefused::DiskInUse(number),
        6 => MembersRefused::Drained(number),
        7 => MembersRefused::InProgress(number),
        8 => MembersRefused::NotAsking(number),
        9 => MembersRefused::NoMajority {
            alive: number,
            all: of,
        },
        10 => MembersRefused::Unfit(number),
        11 => MembersRefused::Lags {
            id: number,
            shards: of,
        },
        12 => MembersRefused::KeyNotLoaded {
            key: key_id(of)?,
            nodes: refusal.nodes.clone(),
        },
        13 => MembersRefused::KeyNotNewer(key_id(number)?, key_id(of)?),
        _ => return Err("a refusal about the members that this build does not know"),
    })
}

fn key_id(number: u64) -> Result<u8, Malformed> {
    u8::try_from(number).map_err(|_| "a key's id above 255")
}
