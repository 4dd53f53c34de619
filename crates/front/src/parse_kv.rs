//! The key-values' side of `parse`.

use nowserving_engine::{Ask, Question, ReplyTo};
use nowserving_line::LineName;
use nowserving_protocol::codec::decode_request;
use nowserving_protocol::error::ApiError;
use nowserving_protocol::kv::{KvDelete, KvGet, KvKey, KvPut, KvRestore, kv_shard_of};
use nowserving_protocol::subject::unknown_op;

/// A request about one key, and the shard that the key is in.
pub(super) fn kv_ask(
    op: &str,
    bucket: &LineName,
    payload: &[u8],
    shards: u32,
    reply: &mut ReplyTo,
) -> Result<(u32, Ask), ApiError> {
    let home = |key: &KvKey| kv_shard_of(bucket, key.as_str(), shards);
    Ok(match (op, reply.admin) {
        ("get", false) => {
            reply.op = "kv_get";
            let ask: KvGet = decode_request(payload)?;
            (home(&ask.key), Ask::KvGet(ask))
        }
        ("put", false) => {
            reply.op = "kv_put";
            let ask: KvPut = decode_request(payload)?;
            (home(&ask.key), Ask::Kv(ask.into_op(bucket)))
        }
        ("delete", false) => {
            reply.op = "kv_delete";
            let ask: KvDelete = decode_request(payload)?;
            (home(&ask.key), Ask::Kv(ask.into_op(bucket)))
        }
        ("restore", true) => {
            reply.op = "kv_restore";
            let ask: KvRestore = decode_request(payload)?;
            (home(&ask.key), Ask::Kv(ask.into_op(bucket)))
        }
        _ => return Err(unknown_op(op)),
    })
}

/// The question about all keys of a bucket, if the operation asks one.
pub(super) fn kv_question(
    op: &str,
    bucket: &LineName,
    payload: &[u8],
    reply: &mut ReplyTo,
) -> Result<Option<Question>, ApiError> {
    if (op, reply.admin) != ("list", false) {
        return Ok(None);
    }
    reply.op = "kv_list";
    Ok(Some(Question::KvList {
        bucket: bucket.clone(),
        ask: decode_request(payload)?,
    }))
}

#[cfg(test)]
#[path = "parse_kv_tests.rs"]
mod tests;
