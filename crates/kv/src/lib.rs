//! The key-values of one shard as a pure state machine: `apply(now, op) -> reply, events`.
//!
//! No I/O, no clock, no randomness and no iteration in hash order: all replicas that apply the same log hold the
//! same state. Time is the shard's service clock, and comes in with each operation. The rules are those of
//! `docs/protocol/key-values.md`.
//!
//! A bucket exists while it has a key. Every change takes the next revision of the shard, deletions and expiries too:
//! so a key that is put again has a larger revision than before, and no tombstones are kept for that.
//!
//! A key is expired when the replicated clock has passed its deadline, whether [`Store::expire`] has removed it or not.
//! A leader's own reading of the clock, which may be ahead, must not be used: after a failover the key would be back.

use nowserving_codec::Codec;

mod store;

pub use store::Store;

/// The longest key, in bytes; the shortest has one byte.
pub const KEY_BYTES_MAX: usize = 512;
/// The longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 10_240;
/// The longest time to live: a year.
pub const TTL_MS_MAX: u64 = 365 * 24 * 3_600_000;
/// A restored key's revision is made larger than a given one, which counts up to this: revisions never run out.
pub const REVISION_ABOVE_MAX: u64 = 1 << 52;
/// A key counts as so many bytes beside those of its name and value: about what it takes in memory.
pub const OVERHEAD_BYTES: u64 = 128;
/// The most keys that [`Store::expire`] removes: a log entry's work is bounded.
pub const EXPIRE_MAX: usize = 1_024;

/// The limits of one shard. They are the same on all nodes, as they decide whether a put is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Keys of a bucket.
    pub bucket_keys: usize,
    /// Bytes of a bucket: of names and values, and [`OVERHEAD_BYTES`] a key.
    pub bucket_bytes: u64,
    pub buckets: usize,
    /// The same bytes, of all buckets.
    pub bytes: u64,
}

impl Limits {
    /// Those of every node; only tests have others.
    pub const DEFAULT: Limits = Limits {
        bucket_keys: 16_384,
        bucket_bytes: 8 << 20,
        buckets: 1_024,
        bytes: 32 << 20,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Limits::DEFAULT
    }
}

/// An operation on one key.
#[derive(Codec, Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Put {
        bucket: Box<str>,
        key: Box<str>,
        value: Box<[u8]>,
        /// Only if the key has this revision; 0: only if there is no such key.
        if_revision: Option<u64>,
        /// It expires after so long.
        ttl_ms: Option<u64>,
        /// Its revision is larger than this one, too, up to [`REVISION_ABOVE_MAX`]: the key is restored from a backup.
        above: u64,
    },
    Delete {
        bucket: Box<str>,
        key: Box<str>,
        /// Only if the key has this revision.
        if_revision: Option<u64>,
    },
}

impl Op {
    #[must_use]
    pub fn bucket(&self) -> &str {
        match self {
            Op::Put { bucket, .. } | Op::Delete { bucket, .. } => bucket,
        }
    }

    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Op::Put { key, .. } | Op::Delete { key, .. } => key,
        }
    }
}

/// The outcome of an [`Op`] that was done.
#[derive(Codec, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The key's; of a deletion, that of the deletion itself.
    pub revision: u64,
}

/// Why nothing happened.
#[derive(Codec, Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("no such key")]
    KeyNotFound,
    #[error("{}", conflict(*revision))]
    VersionConflict {
        /// 0: there is no such key.
        revision: u64,
    },
    #[error("no room: {0}")]
    Full(Full),
}

fn conflict(revision: u64) -> String {
    match revision {
        0 => "there is no such key".to_owned(),
        revision => format!("the key has revision {revision}"),
    }
}

/// The limit that an operation would exceed; in the text with its number, which is that of [`Limits::DEFAULT`].
#[derive(Codec, Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    #[error("a bucket has at most {} keys in a shard", Limits::DEFAULT.bucket_keys)]
    BucketKeys,
    #[error("a bucket has at most {} bytes in a shard", Limits::DEFAULT.bucket_bytes)]
    BucketBytes,
    #[error("a shard has at most {} buckets", Limits::DEFAULT.buckets)]
    Buckets,
    #[error("a shard has at most {} bytes of key-values", Limits::DEFAULT.bytes)]
    Bytes,
}

/// A key's value, revision and deadline.
#[derive(Codec, Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub value: Box<[u8]>,
    pub revision: u64,
    /// On the service clock.
    pub expires_at_ms: Option<u64>,
}

impl Entry {
    fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms.is_some_and(|at_ms| at_ms <= now_ms)
    }
}

/// A key has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub bucket: Box<str>,
    pub key: Box<str>,
    pub what: Change,
    /// Of the change. Those of one key grow.
    pub revision: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Put,
    Deleted,
    Expired,
}

/// Why an entry of a snapshot contradicts the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEntry {
    #[error("the keys are not in order")]
    Order,
    #[error("two keys have one revision, or one is newer than the shard's")]
    Revision,
}
