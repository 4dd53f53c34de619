//! Key-values: reads of the applied state, and the answers to operations.

use nowserving_kv::{Refused, Reply};
use nowserving_line::{LineName, Timestamp};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::kv::{KvGet, KvGetReply, KvList, KvListReply, KvReply};
use nowserving_shard::state::State;

use crate::request::{Outcome, ReplyBody};

/// Whether the key is there, the replicated clock decides: the next leader could not know an earlier one's reading.
pub(crate) fn get(
    state: &State,
    bucket: &LineName,
    ask: &KvGet,
    now: Timestamp,
) -> Result<Outcome, ApiError> {
    let now_ms = state.now_ms();
    let now_ms = match nowserving_bite::is(nowserving_bite::Break::S19Clock) {
        true => now.service_ms,
        false => now_ms,
    };
    let entry = state.kv().get(now_ms, bucket.as_str(), ask.key.as_str());
    let entry = entry.ok_or(Refused::KeyNotFound)?;
    let reply = KvGetReply::new(ask.key.clone(), entry, now.service_ms);
    Ok(Outcome::Reply(ReplyBody::KvGot(Box::new(reply))))
}

/// `kv.<bucket>.list`: a page over all shards, from this node's own state.
pub(crate) fn list<'a>(
    bucket: &LineName,
    ask: &'a KvList,
    shards: impl Iterator<Item = &'a State>,
) -> Outcome {
    let shards = shards.map(|state| (state.kv(), state.now_ms()));
    Outcome::Reply(ReplyBody::KvListed(Box::new(KvListReply::new(
        bucket, ask, shards,
    ))))
}

pub(crate) fn done(result: Result<Reply, Refused>) -> Result<Outcome, ApiError> {
    let Reply { revision } = result?;
    Ok(Outcome::Reply(ReplyBody::KvDone(KvReply { revision })))
}
