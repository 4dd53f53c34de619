//! Key-values: small values that belong to a visit, beside the lines.

use nowserving_line::LineName;
use nowserving_protocol::error::ApiError;
use nowserving_protocol::kv::{
    KvDelete, KvEvent, KvGet, KvGetReply, KvKey, KvList, KvListReply, KvPut, KvReply, KvRestore,
    KvValue, kv_shard_of,
};
use nowserving_protocol::operation::Request;

use crate::client::{Client, line_name};
use crate::error::{Error, Kind, Result};
use crate::events::{self, EventStream};

/// The key-values of one bucket. Cheap to clone.
///
/// All calls may fail with [`Kind::Unavailable`], and writes also with [`Kind::OutcomeUnknown`]. Keys have 1 to 512
/// bytes of text, values at most 10,240 bytes.
#[derive(Clone)]
pub struct Kv {
    client: Client,
    bucket: LineName,
}

impl Kv {
    pub(crate) fn new(client: Client, bucket: LineName) -> Kv {
        Kv { client, bucket }
    }

    /// The bucket's name.
    #[must_use]
    pub fn bucket(&self) -> &LineName {
        &self.bucket
    }

    /// The value of a key, with its revision.
    ///
    /// # Errors
    /// `key_not_found`.
    pub async fn get(&self, key: &str) -> Result<KvGetReply> {
        let key = self::key(key)?;
        let consistency = None;
        self.get_with(&KvGet { key, consistency }).await
    }

    /// [`Kv::get`] with another consistency.
    ///
    /// # Errors
    /// As [`Kv::get`].
    pub async fn get_with(&self, request: &KvGet) -> Result<KvGetReply> {
        self.call(&request.key, request).await
    }

    /// Sets the value of a key, whatever it had. It does not expire.
    ///
    /// # Errors
    /// `kv_full`.
    pub async fn put(&self, key: &str, value: impl Into<Vec<u8>>) -> Result<KvReply> {
        let request = KvPut {
            key: self::key(key)?,
            value: KvValue::new(value.into()).map_err(bad_argument)?,
            if_revision: None,
            ttl_ms: None,
        };
        self.put_with(&request).await
    }

    /// [`Kv::put`] that expires, or only if the key has a revision.
    ///
    /// # Errors
    /// `kv_full`; `version_conflict` if the key has another revision than [`KvPut::if_revision`].
    pub async fn put_with(&self, request: &KvPut) -> Result<KvReply> {
        self.call(&request.key, request).await
    }

    /// Removes a key.
    ///
    /// # Errors
    /// `key_not_found`.
    pub async fn delete(&self, key: &str) -> Result<KvReply> {
        let key = self::key(key)?;
        let if_revision = None;
        self.delete_with(&KvDelete { key, if_revision }).await
    }

    /// [`Kv::delete`], only if the key has a revision.
    ///
    /// # Errors
    /// `key_not_found`; `version_conflict` if the key has another revision.
    pub async fn delete_with(&self, request: &KvDelete) -> Result<KvReply> {
        self.call(&request.key, request).await
    }

    /// A page of keys, in their order, from the state of any node: it may be behind. [`KvListReply::next`] is the
    /// [`KvList::after`] of the next page.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] if no node answers.
    pub async fn list(&self, page: &KvList) -> Result<KvListReply> {
        self.client.plain_call(&self.bucket, page).await
    }

    /// The changes of all keys, without their values, as they come. Subscribed to when this returns: a change that is
    /// acknowledged later has its event on the stream, unless the event is lost. So read the key then ([`Kv::get`]), and now
    /// and then also without an event.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] if NATS cannot be reached, [`Kind::Connection`] if its connection is closed. A missing right is
    /// the stream's first item.
    pub async fn events(&self) -> Result<EventStream<KvEvent>> {
        let subject = self.client.subjects().kv_events(&self.bucket);
        events::subscribe_to_all(&self.client, subject).await
    }

    /// Puts a key back from a backup: an operator's request.
    ///
    /// # Errors
    /// `version_conflict` if the key is there, unless [`KvRestore::overwrite`]; `kv_full`.
    pub async fn restore(&self, request: &KvRestore) -> Result<KvReply> {
        self.client.plain_call(&self.bucket, request).await
    }

    async fn call<Q: Request>(&self, key: &KvKey, request: &Q) -> Result<Q::Reply> {
        let shard = |shards| kv_shard_of(&self.bucket, key.as_str(), shards);
        self.client.leader_call(&self.bucket, shard, request).await
    }
}

fn key(text: &str) -> Result<KvKey> {
    KvKey::new(text).map_err(|error| {
        let what = format!("key: {}", error.message);
        Error::new(Kind::BadArgument, what)
    })
}

fn bad_argument(error: ApiError) -> Error {
    Error::new(Kind::BadArgument, error.message)
}

impl Client {
    /// The key-values of a bucket. Sends no request.
    ///
    /// # Errors
    /// [`Kind::BadArgument`] if `bucket` is not `[A-Za-z0-9_-]{1,64}`.
    pub fn kv(&self, bucket: &str) -> Result<Kv> {
        Ok(Kv::new(self.clone(), line_name("bucket", bucket)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_checked_before_anything_is_sent() {
        for text in [String::new(), "k".repeat(513)] {
            let kind = key(&text).map_err(|error| error.kind());
            assert_eq!(kind, Err(Kind::BadArgument));
        }
        assert!(key("order-4711").is_ok());
    }
}
