//! The key-values' side of `parse`.

use nowserving_engine::{Ask, ReplyTo};
use nowserving_line::LineName;
use nowserving_protocol::codec::decode_request;
use nowserving_protocol::error::ApiError;
use nowserving_protocol::kv::{KvDelete, KvGet, KvKey, KvList, KvPut, KvRestore, kv_shard_of};
use nowserving_protocol::subject::unknown_op;

/// A request about key-values.
pub(super) enum KvAsk {
    /// About one, which is in this shard.
    OfKey(u32, Ask),
    List(KvList),
}

pub(super) fn kv_ask(
    op: &str,
    bucket: &LineName,
    payload: &[u8],
    shards: u32,
    reply: &mut ReplyTo,
) -> Result<KvAsk, ApiError> {
    let home = |key: &KvKey| kv_shard_of(bucket, key.as_str(), shards);
    Ok(match (op, reply.admin) {
        ("get", false) => {
            reply.op = "kv_get";
            let ask: KvGet = decode_request(payload)?;
            KvAsk::OfKey(home(&ask.key), Ask::KvGet(ask))
        }
        ("put", false) => {
            reply.op = "kv_put";
            let ask: KvPut = decode_request(payload)?;
            KvAsk::OfKey(home(&ask.key), Ask::Kv(ask.into_op(bucket)))
        }
        ("delete", false) => {
            reply.op = "kv_delete";
            let ask: KvDelete = decode_request(payload)?;
            KvAsk::OfKey(home(&ask.key), Ask::Kv(ask.into_op(bucket)))
        }
        ("list", false) => {
            reply.op = "kv_list";
            KvAsk::List(decode_request(payload)?)
        }
        ("restore", true) => {
            reply.op = "kv_restore";
            let ask: KvRestore = decode_request(payload)?;
            KvAsk::OfKey(home(&ask.key), Ask::Kv(ask.into_op(bucket)))
        }
        _ => return Err(unknown_op(op)),
    })
}
