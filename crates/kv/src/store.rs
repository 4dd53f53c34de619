//! The buckets of a shard, and the deadlines of their keys.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::{
    BadEntry, Change, EXPIRE_MAX, Entry, Event, Full, Limits, OVERHEAD_BYTES, Op,
    REVISION_ABOVE_MAX, Refused, Reply,
};

/// All key-values of one shard.
#[derive(Debug, Default)]
pub struct Store {
    limits: Limits,
    /// The newest revision that was given.
    revision: u64,
    buckets: BTreeMap<Arc<str>, Bucket>,
    bytes: u64,
    /// The bucket and key of those that expire, by deadline and revision. The names are shared with the buckets: a key
    /// with a deadline does not take its bytes twice.
    deadlines: BTreeMap<(u64, u64), (Arc<str>, Arc<str>)>,
}

#[derive(Debug, Default)]
struct Bucket {
    keys: BTreeMap<Arc<str>, Entry>,
    bytes: u64,
}

impl Store {
    #[must_use]
    pub fn new(limits: Limits, revision: u64) -> Self {
        Store {
            limits,
            revision,
            ..Store::default()
        }
    }

    /// Applies an operation at this time of the replicated clock, which never falls. Nothing is changed if it is
    /// refused, except that the key is removed if it has expired.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn apply(
        &mut self,
        now_ms: u64,
        op: &Op,
        mut events: Option<&mut Vec<Event>>,
    ) -> Result<Reply, Refused> {
        let (bucket, key) = (op.bucket(), op.key());
        if self
            .entry(bucket, key)
            .is_some_and(|it| it.is_expired(now_ms))
        {
            self.remove(bucket, key, Change::Expired, events.as_deref_mut());
        }
        let revision = self.entry(bucket, key).map_or(0, |entry| entry.revision);
        match op {
            Op::Put {
                value,
                if_revision,
                ttl_ms,
                above,
                ..
            } => {
                is_as_wanted(*if_revision, revision)?;
                self.has_room(bucket, key, value)?;
                self.take_out(bucket, key);
                self.revision = self.revision.max((*above).min(REVISION_ABOVE_MAX)) + 1;
                let entry = Entry {
                    value: value.clone(),
                    revision: self.revision,
                    expires_at_ms: ttl_ms.map(|ttl_ms| now_ms.saturating_add(ttl_ms)),
                };
                self.insert(bucket, key, entry);
                self.note(bucket, key, Change::Put, events);
            }
            Op::Delete { if_revision, .. } => {
                if revision == 0 {
                    return Err(Refused::KeyNotFound);
                }
                is_as_wanted(*if_revision, revision)?;
                self.remove(bucket, key, Change::Deleted, events);
            }
        }
        Ok(Reply {
            revision: self.revision,
        })
    }

    /// Removes keys whose deadline has come, [`EXPIRE_MAX`] at most. Returns how many.
    pub fn expire(&mut self, now_ms: u64, mut events: Option<&mut Vec<Event>>) -> usize {
        let mut removed = 0;
        while removed < EXPIRE_MAX
            && let Some((&(at_ms, _), _)) = self.deadlines.first_key_value()
            && at_ms <= now_ms
            && let Some((_, (bucket, key))) = self.deadlines.pop_first()
        {
            self.remove(&bucket, &key, Change::Expired, events.as_deref_mut());
            removed += 1;
        }
        removed
    }

    /// When the next key expires.
    #[must_use]
    pub fn next_expiry_ms(&self) -> Option<u64> {
        let first = self.deadlines.first_key_value();
        first.map(|(&(at_ms, _), _)| at_ms)
    }

    /// Whether keys whose deadline has come are left after the next [`Store::expire`].
    #[must_use]
    pub fn expires_more_than_once(&self, now_ms: u64) -> bool {
        // Most of the time none is due: that is seen from the first one.
        let mut due = self
            .deadlines
            .keys()
            .take_while(|(at_ms, _)| *at_ms <= now_ms);
        due.nth(EXPIRE_MAX).is_some()
    }

    /// The entry of a key that has not expired at this time of the replicated clock.
    #[must_use]
    pub fn get(&self, now_ms: u64, bucket: &str, key: &str) -> Option<&Entry> {
        let entry = self.entry(bucket, key)?;
        (!entry.is_expired(now_ms)).then_some(entry)
    }

    /// The keys of a bucket that begin with `prefix` and come after `after`, in order.
    pub fn list<'a>(
        &'a self,
        now_ms: u64,
        bucket: &str,
        prefix: &'a str,
        after: Option<&str>,
    ) -> impl Iterator<Item = (&'a str, &'a Entry)> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let keys = self.buckets.get(bucket).map(|bucket| &bucket.keys);
        let range = keys.map(|keys| keys.range::<str, _>((from, Bound::Unbounded)));
        range
            .into_iter()
            .flatten()
            .map(|(key, entry)| (&**key, entry))
            .take_while(move |(key, _)| key.starts_with(prefix))
            .filter(move |(_, entry)| !entry.is_expired(now_ms))
    }

    /// How many keys there are, also expired ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buckets.values().map(|bucket| bucket.keys.len()).sum()
    }

    /// What counts against [`Limits::bytes`].
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// The newest revision that was given.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// All entries from the `nth` on, by bucket and key: also expired ones that are still there.
    pub fn iter_from(&self, nth: usize) -> impl Iterator<Item = (&str, &str, &Entry)> {
        let mut left = nth;
        self.buckets.iter().flat_map(move |(name, bucket)| {
            let skipped = left.min(bucket.keys.len());
            left -= skipped;
            // One that is skipped whole is not walked: a part of the state's hash begins anywhere.
            let keys = (skipped < bucket.keys.len()).then(|| bucket.keys.iter().skip(skipped));
            let keys = keys.into_iter().flatten();
            keys.map(move |(key, entry)| (&**name, &**key, entry))
        })
    }

    /// Adds the next entry of a snapshot, in order of bucket and key. Limits do not matter: it was there.
    ///
    /// # Errors
    /// It contradicts the others.
    pub fn add(&mut self, bucket: &str, key: &str, entry: Entry) -> Result<(), BadEntry> {
        let last = self.buckets.last_key_value();
        let last = last.and_then(|(bucket, it)| Some((&**bucket, &**it.keys.last_key_value()?.0)));
        if last.is_some_and(|last| last >= (bucket, key)) {
            return Err(BadEntry::Order);
        }
        if entry.revision == 0 || entry.revision > self.revision {
            return Err(BadEntry::Revision);
        }
        let deadline = entry.expires_at_ms.map(|at_ms| (at_ms, entry.revision));
        if deadline.is_some_and(|deadline| self.deadlines.contains_key(&deadline)) {
            return Err(BadEntry::Revision);
        }
        self.insert(bucket, key, entry);
        Ok(())
    }

    fn entry(&self, bucket: &str, key: &str) -> Option<&Entry> {
        self.buckets.get(bucket)?.keys.get(key)
    }

    /// Whether the bucket and the shard have room for this value of the key.
    fn has_room(&self, bucket: &str, key: &str, value: &[u8]) -> Result<(), Refused> {
        let limits = &self.limits;
        let full = |what| Err(Refused::Full(what));
        let bytes = cost(key, value);
        let (keys, in_bucket) = match self.buckets.get(bucket) {
            Some(bucket) => (bucket.keys.len(), bucket.bytes),
            None if self.buckets.len() >= limits.buckets => return full(Full::Buckets),
            None => (0, 0),
        };
        let replaced = self.entry(bucket, key);
        let freed = replaced.map_or(0, |entry| cost(key, &entry.value));
        if replaced.is_none() && keys >= limits.bucket_keys {
            return full(Full::BucketKeys);
        }
        if in_bucket - freed + bytes > limits.bucket_bytes {
            return full(Full::BucketBytes);
        }
        if self.bytes - freed + bytes > limits.bytes {
            return full(Full::Bytes);
        }
        Ok(())
    }

    fn insert(&mut self, bucket: &str, key: &str, entry: Entry) {
        let bytes = cost(key, &entry.value);
        let known = self.buckets.get_key_value(bucket);
        let name: Arc<str> = known.map_or_else(|| bucket.into(), |(name, _)| Arc::clone(name));
        let key: Arc<str> = key.into();
        if let Some(at_ms) = entry.expires_at_ms {
            let deadline = (at_ms, entry.revision);
            let of = (Arc::clone(&name), Arc::clone(&key));
            self.deadlines.insert(deadline, of);
        }
        self.bytes += bytes;
        let bucket = self.buckets.entry(name).or_default();
        bucket.bytes += bytes;
        bucket.keys.insert(key, entry);
    }

    fn take_out(&mut self, name: &str, key: &str) {
        let Some(bucket) = self.buckets.get_mut(name) else {
            return;
        };
        let Some(entry) = bucket.keys.remove(key) else {
            return;
        };
        let bytes = cost(key, &entry.value);
        bucket.bytes -= bytes;
        self.bytes -= bytes;
        if bucket.keys.is_empty() {
            self.buckets.remove(name);
        }
        if let Some(at_ms) = entry.expires_at_ms {
            self.deadlines.remove(&(at_ms, entry.revision));
        }
    }

    fn remove(&mut self, bucket: &str, key: &str, why: Change, events: Option<&mut Vec<Event>>) {
        self.take_out(bucket, key);
        self.revision += 1;
        self.note(bucket, key, why, events);
    }

    fn note(&self, bucket: &str, key: &str, what: Change, events: Option<&mut Vec<Event>>) {
        if let Some(events) = events {
            events.push(Event {
                bucket: bucket.into(),
                key: key.into(),
                what,
                revision: self.revision,
            });
        }
    }
}

fn is_as_wanted(if_revision: Option<u64>, revision: u64) -> Result<(), Refused> {
    if nowserving_bite::is(nowserving_bite::Break::S19) {
        return Ok(());
    }
    match if_revision {
        Some(wanted) if wanted != revision => Err(Refused::VersionConflict { revision }),
        _ => Ok(()),
    }
}

fn cost(key: &str, value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64 + OVERHEAD_BYTES
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
