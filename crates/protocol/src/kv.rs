//! Requests, replies and events of key-values: docs/protocol/key-values.md.
//!
//! Requests with unknown fields are refused by `codec::decode`: a misspelt `if_revision` must not become an
//! unconditional put. Readers of replies ignore unknown fields.

mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use nowserving_kv::{
    self as kv, Change, Entry, Event, KEY_BYTES_MAX, Op, REVISION_ABOVE_MAX, Refused, TTL_MS_MAX,
};
use nowserving_line::LineName;
use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use self::value::with_value;
use crate::error::{ApiError, Code};
use crate::page::Room;
use crate::user::Consistency;
use crate::wire;

pub use self::value::KvValue;

/// The largest `limit` of `list`.
pub const KV_LIST_MAX: u64 = 1_000;
/// The `limit` of `list` if it has none.
pub const KV_LIST_DEFAULT: u64 = 100;

/// The shard that holds a key, in a cluster of so many.
pub fn kv_shard_of(bucket: &LineName, key: &str, shards: u32) -> u32 {
    crate::subject::shard_of(&format!("{}\0{key}", bucket.as_str()), shards)
}

/// The last word of the subject of a key's events: 16 hex digits of the 64-bit FNV-1a hash of its bytes.
pub fn key_hash(key: &str) -> String {
    let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// Text of a bounded length; `MIN` and `MAX` in bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Text<const MIN: usize, const MAX: usize>(String);

/// The name of a value: UTF-8, 1 to 512 bytes.
pub type KvKey = Text<1, KEY_BYTES_MAX>;
/// The beginning of a key, which may be empty.
pub type KvPrefix = Text<0, KEY_BYTES_MAX>;

impl<const MIN: usize, const MAX: usize> Text<MIN, MAX> {
    /// `bad_request` unless the text has the length.
    pub fn new(text: impl Into<String>) -> Result<Self, ApiError> {
        let text = text.into();
        match (MIN..=MAX).contains(&text.len()) {
            true => Ok(Text(text)),
            false => {
                let bytes = text.len();
                Err(ApiError::bad_request(format!(
                    "{MIN} to {MAX} bytes of text are needed, not {bytes}"
                )))
            }
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A key as the `after` of the page behind it.
impl From<KvKey> for KvPrefix {
    fn from(key: KvKey) -> KvPrefix {
        Text(key.0)
    }
}

impl<'de, const MIN: usize, const MAX: usize> Deserialize<'de> for Text<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor(PhantomData))
    }
}

struct TextVisitor<T>(PhantomData<T>);

impl<const MIN: usize, const MAX: usize> Visitor<'_> for TextVisitor<Text<MIN, MAX>> {
    type Value = Text<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string of {MIN} to {MAX} bytes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Text::new(text).map_err(|_| E::invalid_length(text.len(), &self))
    }
}

/// `get`: the value of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KvGet {
    /// The key.
    pub key: KvKey,
    /// The consistency of the answer; by default [`Consistency::Leader`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Consistency>,
}

/// The answer to `get`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "GetFields")]
#[cfg_attr(feature = "schema", schemars(with = "GetFields"))]
pub struct KvGetReply {
    /// The key, as in the request.
    pub key: KvKey,
    /// In JSON, a value that is no UTF-8 is in the field `value_base64` instead.
    pub value: KvValue,
    /// Of the put that wrote it.
    pub revision: u64,
    /// What is left until it expires, if it does.
    pub expires_in_ms: Option<u64>,
}

with_value! {
    GetFields of KvGetReply {
        /// Of the put that wrote it.
        revision: u64,
        /// What is left until it expires, if it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_in_ms: Option<u64>,
    }
}

impl KvGetReply {
    /// Shows an entry; `service_ms` is the service clock at the time of the answer.
    pub fn new(key: KvKey, entry: &Entry, service_ms: u64) -> KvGetReply {
        KvGetReply {
            key,
            value: KvValue::of(entry),
            revision: entry.revision,
            expires_in_ms: expires_in_ms(entry, service_ms),
        }
    }
}

fn expires_in_ms(entry: &Entry, service_ms: u64) -> Option<u64> {
    let at_ms = entry.expires_at_ms?;
    Some(at_ms.saturating_sub(service_ms))
}

/// `put`: sets the value of a key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "PutFields")]
#[cfg_attr(feature = "schema", schemars(with = "PutFields"))]
pub struct KvPut {
    /// The key.
    pub key: KvKey,
    /// Its new value. In JSON, the field `value_base64` takes bytes that are no UTF-8.
    pub value: KvValue,
    /// Only if the key has this revision; 0: only if there is no such key.
    pub if_revision: Option<u64>,
    /// The key expires after so many milliseconds, 1 to a year; `None`: never.
    pub ttl_ms: Option<u64>,
}

with_value! {
    PutFields of KvPut {
        /// Only if the key has this revision; 0: only if there is no such key.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "wire::NumberOption"
        )]
        if_revision: Option<u64>,
        /// The key expires after so many milliseconds; without it, never.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "wire::WithinOption::<1, TTL_MS_MAX>"
        )]
        ttl_ms: Option<u64>,
    }
}

impl KvPut {
    /// The operation on this bucket.
    pub fn into_op(self, bucket: &LineName) -> Op {
        Op::Put {
            bucket: bucket.as_str().into(),
            key: self.key.0.into(),
            value: self.value.into_bytes(),
            if_revision: self.if_revision,
            ttl_ms: self.ttl_ms,
            above: 0,
        }
    }
}

/// `delete`: removes a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KvDelete {
    /// The key.
    pub key: KvKey,
    /// Only if the key has this revision.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NumberOption"
    )]
    pub if_revision: Option<u64>,
}

impl KvDelete {
    /// The operation on this bucket.
    pub fn into_op(self, bucket: &LineName) -> Op {
        Op::Delete {
            bucket: bucket.as_str().into(),
            key: self.key.0.into(),
            if_revision: self.if_revision,
        }
    }
}

/// The operators' `restore`: puts a key back from a backup.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "RestoreFields")]
#[cfg_attr(feature = "schema", schemars(with = "RestoreFields"))]
pub struct KvRestore {
    /// The key.
    pub key: KvKey,
    /// Its value. In JSON, the field `value_base64` takes bytes that are no UTF-8.
    pub value: KvValue,
    /// The time that was left until the key expired, if it did.
    pub expires_in_ms: Option<u64>,
    /// The largest revision in the backup, at most [`REVISION_ABOVE_MAX`]: the key gets a larger one.
    pub above_revision: u64,
    /// Replaces a key that is there.
    pub overwrite: bool,
}

with_value! {
    RestoreFields of KvRestore {
        /// The time that was left until the key expired, if it did.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "wire::WithinOption::<1, TTL_MS_MAX>"
        )]
        expires_in_ms: Option<u64>,
        /// The largest revision in the backup: the key gets a larger one.
        #[serde(with = "wire::Within::<0, REVISION_ABOVE_MAX>")]
        above_revision: u64,
        /// Replaces a key that is there.
        #[serde(default, deserialize_with = "wire::flag")]
        overwrite: bool,
    }
}

impl KvRestore {
    /// The operation on this bucket.
    pub fn into_op(self, bucket: &LineName) -> Op {
        Op::Put {
            bucket: bucket.as_str().into(),
            key: self.key.0.into(),
            value: self.value.into_bytes(),
            if_revision: (!self.overwrite).then_some(0),
            ttl_ms: self.expires_in_ms,
            above: self.above_revision,
        }
    }
}

/// The answer to `put`, `delete` and `restore`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KvReply {
    /// Of the key; after `delete`, of its deletion.
    pub revision: u64,
}

/// `list`: a page of the keys of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KvList {
    /// Only keys that begin so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<KvPrefix>,
    /// The page begins after this key; by default, and with an empty one, at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<KvPrefix>,
    /// How many keys, 1 to [`KV_LIST_MAX`]; by default [`KV_LIST_DEFAULT`].
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::WithinOption::<1, KV_LIST_MAX>"
    )]
    pub limit: Option<u64>,
}

/// The answer to `list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KvListReply {
    /// In the order of their keys.
    pub entries: Vec<KvListed>,
    /// The `after` of the next page; null at the end.
    pub next: Option<KvKey>,
}

/// A key as `list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KvListed {
    /// Its name.
    pub key: KvKey,
    /// Of the put that wrote it.
    pub revision: u64,
    /// The length of its value.
    pub bytes: u64,
    /// What is left until it expires, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
}

impl KvListReply {
    /// A page over these shards: each a store, and the service clock as replicated there.
    pub fn new<'a>(
        bucket: &LineName,
        ask: &'a KvList,
        shards: impl Iterator<Item = (&'a kv::Store, u64)>,
    ) -> KvListReply {
        let limit = usize::try_from(ask.limit.unwrap_or(KV_LIST_DEFAULT)).unwrap_or(usize::MAX);
        let prefix = ask.prefix.as_ref().map_or("", KvPrefix::as_str);
        let after = ask.after.as_ref().map(KvPrefix::as_str);
        let keys = shards.map(|(store, now_ms)| {
            let keys = store.list(now_ms, bucket.as_str(), prefix, after);
            keys.map(move |(key, entry)| (key, entry, now_ms))
        });
        let found = merged(keys.collect());
        let (mut entries, mut room): (Vec<KvListed>, Room) = (Vec::new(), Room::new());
        let mut more = false;
        for (key, entry, now_ms) in found {
            let listed = KvListed {
                key: Text(key.to_owned()),
                revision: entry.revision,
                bytes: entry.value.len() as u64,
                expires_in_ms: expires_in_ms(entry, now_ms),
            };
            more = entries.len() >= limit || !room.takes(&listed);
            if more {
                break;
            }
            entries.push(listed);
        }
        let last = entries.last().filter(|_| more);
        KvListReply {
            next: last.map(|entry| entry.key.clone()),
            entries,
        }
    }
}

/// A key of a shard, and the service clock as replicated there.
type Found<'a> = (&'a str, &'a Entry, u64);

/// The keys of all shards in order, each of which comes in order. Not sorted: a page is made on the node's loop, and
/// takes no more of them than it shows, and the next one of each shard.
fn merged<'a, I: Iterator<Item = Found<'a>>>(
    mut shards: Vec<I>,
) -> impl Iterator<Item = Found<'a>> {
    let mut heads = BTreeMap::new();
    for (nth, keys) in shards.iter_mut().enumerate() {
        if let Some(first) = keys.next() {
            heads.insert((first.0, nth), first);
        }
    }
    std::iter::from_fn(move || {
        let ((_, nth), found) = heads.pop_first()?;
        if let Some(next) = shards.get_mut(nth).and_then(Iterator::next) {
            heads.insert((next.0, nth), next);
        }
        Some(found)
    })
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KvEvent {
    /// The bucket's name.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// `put`, `deleted` or `expired`; later releases may have more.
    pub event: String,
    /// Of the change. Those of one key grow.
    pub revision: u64,
    /// When, on the leader's wall clock.
    pub at_ms: u64,
}

impl KvEvent {
    /// The event for a change.
    pub fn new(event: &Event, at_ms: u64) -> KvEvent {
        let what = match event.what {
            Change::Put => "put",
            Change::Deleted => "deleted",
            Change::Expired => "expired",
        };
        KvEvent {
            bucket: event.bucket.as_ref().to_owned(),
            key: event.key.as_ref().to_owned(),
            event: what.to_owned(),
            revision: event.revision,
            at_ms,
        }
    }

    /// Of the event and of no other one.
    pub fn id(&self) -> String {
        let KvEvent {
            bucket, revision, ..
        } = self;
        format!("kv/{bucket}/{}/{revision}", key_hash(&self.key))
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> ApiError {
        let code = match refused {
            Refused::KeyNotFound => Code::KeyNotFound,
            Refused::VersionConflict { .. } => Code::VersionConflict,
            Refused::Full(_) => Code::KvFull,
        };
        ApiError::new(code, refused.to_string())
    }
}

#[cfg(test)]
#[path = "kv_tests.rs"]
mod tests;
