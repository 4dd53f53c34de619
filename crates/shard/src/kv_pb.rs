//! Key-values, between the types of their crate and protobuf.

use bytes::Bytes;
use nowserving_kv::{Entry, Full, Op, Refused, Reply};

use crate::pb;
use crate::pb::Malformed;
use crate::pb::kv_answer::Answer as PbAnswer;
use crate::pb::kv_op::What;

pub(crate) fn kv_op_to_pb(op: &Op) -> pb::KvOp {
    let (if_revision, what) = match op {
        Op::Put {
            value,
            if_revision,
            ttl_ms,
            above,
            ..
        } => {
            let put = pb::KvPut {
                value: Bytes::copy_from_slice(value),
                ttl_ms: *ttl_ms,
                above: *above,
            };
            (if_revision, What::Put(put))
        }
        Op::Delete { if_revision, .. } => (if_revision, What::Delete(pb::KvDelete {})),
    };
    pb::KvOp {
        bucket: op.bucket().to_owned(),
        key: op.key().to_owned(),
        if_revision: *if_revision,
        what: Some(what),
    }
}

pub(crate) fn kv_op_from_pb(op: pb::KvOp) -> Result<Op, Malformed> {
    let (bucket, key, if_revision) = (op.bucket.into(), op.key.into(), op.if_revision);
    let what = op.what;
    Ok(
        match what.ok_or("an operation on a key-value that this build does not know")? {
            What::Put(pb::KvPut {
                value,
                ttl_ms,
                above,
            }) => Op::Put {
                bucket,
                key,
                // Not the buffer of the whole entry.
                value: value[..].into(),
                if_revision,
                ttl_ms,
                above,
            },
            What::Delete(pb::KvDelete {}) => Op::Delete {
                bucket,
                key,
                if_revision,
            },
        },
    )
}

pub(crate) fn kv_entry_to_pb((bucket, key, entry): (&str, &str, &Entry)) -> pb::KvKey {
    pb::KvKey {
        bucket: bucket.to_owned(),
        key: key.to_owned(),
        value: Bytes::copy_from_slice(&entry.value),
        revision: entry.revision,
        expires_at_ms: entry.expires_at_ms,
    }
}

pub(crate) fn kv_entry_from_pb(key: &pb::KvKey) -> Entry {
    Entry {
        value: key.value[..].into(),
        revision: key.revision,
        expires_at_ms: key.expires_at_ms,
    }
}

/// By number.
const LIMITS: [(u32, Full); 4] = [
    (1, Full::BucketKeys),
    (2, Full::BucketBytes),
    (3, Full::Buckets),
    (4, Full::Bytes),
];

pub(crate) fn kv_answer_to_pb(answer: &Result<Reply, Refused>) -> pb::KvAnswer {
    let answer = match answer {
        Ok(Reply { revision }) => PbAnswer::Revision(*revision),
        Err(Refused::KeyNotFound) => PbAnswer::KeyNotFound(pb::Nothing {}),
        Err(Refused::VersionConflict { revision }) => PbAnswer::Conflict(*revision),
        Err(Refused::Full(full)) => {
            let limit = LIMITS.iter().find(|(_, it)| it == full);
            PbAnswer::Full(limit.map_or(0, |(number, _)| *number))
        }
    };
    pb::KvAnswer {
        answer: Some(answer),
    }
}

pub(crate) fn kv_answer_from_pb(answer: pb::KvAnswer) -> Result<Result<Reply, Refused>, Malformed> {
    let unknown = "an answer about a key-value that this build does not know";
    Ok(match answer.answer.ok_or(unknown)? {
        PbAnswer::Revision(revision) => Ok(Reply { revision }),
        PbAnswer::KeyNotFound(_) => Err(Refused::KeyNotFound),
        PbAnswer::Conflict(revision) => Err(Refused::VersionConflict { revision }),
        PbAnswer::Full(number) => {
            let limit = LIMITS.iter().find(|(it, _)| *it == number);
            Err(Refused::Full(limit.ok_or(unknown)?.1))
        }
    })
}
