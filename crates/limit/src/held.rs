//! The newest hits that may be given back: the other limits of their request are decided elsewhere, and may refuse it.
//!
//! Each is there once, under a name, and leaves with the first word of it: so it is given back at most once, and one that is
//! not known (any more) is not given back. Hits are remembered for want of room only, the oldest go first. A caller that was
//! let through says nothing, so most leave this way.
//!
//! # Buckets
//!
//! Hits that have drained are no longer there to be given back. What is left of them is not known from the bucket alone: it
//! may have run empty since, and filled again by others. It is at least what would be left if nobody had come after them
//! (`mark`), less what was given back since of the hits before them. Hits after them only add, also if they are given back.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher as _};

use crate::{Counter, Drain, Limit, Now};

/// How many requests' hits are remembered at most.
pub const HELD_MAX: usize = 4_096;
/// How many bytes the keys of their counters have at most.
pub const HELD_KEY_BYTES_MAX: usize = 4 << 20;

/// Hits that were counted, and by what they are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    pub key: Box<[u8]>,
    /// As it was then.
    pub limit: Limit,
    /// 0: none that could be given back.
    pub hits: u64,
    /// [`Counter::mark`] after them.
    pub mark: Drain,
}

impl Counted {
    pub(crate) fn give_back(&self, counter: &mut Counter, now_us: u64) {
        counter.give_back(&self.limit, now_us, self.hits, &self.mark);
    }
}

/// See the top of this file. It takes and forgets without a look at the others: the loop of the shard waits meanwhile.
#[derive(Debug, Default)]
pub struct Held {
    /// By their places, in the order in which they were counted.
    all: BTreeMap<u64, (u128, Vec<Counted>)>,
    names: BTreeMap<u128, u64>,
    /// The places of the hits of a counter, by the hash of its key.
    counters: BTreeSet<(u64, u64)>,
    next: u64,
    key_bytes: usize,
}

impl Held {
    /// Remembers the hits of a request, which were counted just now.
    pub fn hold(&mut self, name: u128, hits: Vec<Counted>) {
        self.remove(name);
        let place = self.next;
        self.next += 1;
        self.key_bytes += key_bytes(&hits);
        let counters = hits.iter().map(|it| (hash(&it.key), place));
        self.counters.extend(counters);
        self.names.insert(name, place);
        self.all.insert(place, (name, hits));
        while self.all.len() > HELD_MAX || self.key_bytes > HELD_KEY_BYTES_MAX {
            let Some((_, (oldest, _))) = self.all.first_key_value() else {
                return;
            };
            self.remove(*oldest);
        }
    }

    /// The hits of this name, which are given back now and not known any more.
    pub fn take(&mut self, name: u128, now: Now) -> Option<Vec<Counted>> {
        let (place, hits) = self.remove(name)?;
        let is_bucket = |it: &&Counted| it.limit.algorithm().is_bucket();
        for given in hits.iter().filter(is_bucket) {
            let now_us = now.by(given.limit.clock());
            self.each(&given.key, place, |later| {
                let mark = &given.mark;
                later.mark.give_back(&given.limit, now_us, given.hits, mark);
            });
        }
        Some(hits)
    }

    /// Its counter was reset: nothing of it can be given back.
    pub fn forget(&mut self, key: &[u8]) {
        self.each(key, 0, |counted| counted.hits = 0);
    }

    /// Its request was told that it may pass.
    pub fn keep(&mut self, name: u128) {
        self.remove(name);
    }

    fn remove(&mut self, name: u128) -> Option<(u64, Vec<Counted>)> {
        let place = self.names.remove(&name)?;
        let (_, hits) = self.all.remove(&place)?;
        self.key_bytes -= key_bytes(&hits);
        for counted in &hits {
            self.counters.remove(&(hash(&counted.key), place));
        }
        Some((place, hits))
    }

    /// The hits of one counter, from this place on.
    fn each(&mut self, key: &[u8], from: u64, mut of: impl FnMut(&mut Counted)) {
        let hash = hash(key);
        for (_, place) in self.counters.range((hash, from)..=(hash, u64::MAX)) {
            let hits = self.all.get_mut(place).into_iter();
            let hits = hits.flat_map(|(_, hits)| hits);
            hits.filter(|it| *it.key == *key).for_each(&mut of);
        }
    }
}

/// Keys with the same one only cost time.
fn hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}

fn key_bytes(hits: &[Counted]) -> usize {
    hits.iter().map(|it| it.key.len()).sum()
}
