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
//!
//! A give-back of exact hits goes through the log. The marks of hits that are counted before it is applied still have what it
//! gives back: they are lowered, too.

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

    /// Hits before these are given back.
    fn mark_without(&mut self, given: &Self, now_us: u64) {
        let mark = &given.mark;
        self.mark.give_back(&given.limit, now_us, given.hits, mark);
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
    /// By the keys of their counters.
    queued: BTreeMap<Box<[u8]>, Vec<Queued>>,
    /// The names of these, and the keys.
    queued_names: BTreeMap<u128, Vec<Box<[u8]>>>,
}

/// A give-back that is not applied yet.
#[derive(Debug)]
struct Queued {
    name: u128,
    /// When it gives back.
    at_us: u64,
    counted: Counted,
}

impl Held {
    /// Remembers the hits of a request, which were counted just now.
    pub fn hold(&mut self, name: u128, mut hits: Vec<Counted>) {
        self.remove(name);
        for later in hits.iter_mut().filter(|it| is_bucket(it)) {
            for it in self.queued.get(&later.key).into_iter().flatten() {
                later.mark_without(&it.counted, it.at_us);
            }
        }
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
        for given in hits.iter().filter(|it| is_bucket(it)) {
            let now_us = now.by(given.limit.clock());
            self.each(&given.key, place, |later| later.mark_without(given, now_us));
        }
        Some(hits)
    }

    /// What was taken goes into the log. Each of the hits with the time at which it is given back.
    pub fn give_back_queued(&mut self, name: u128, hits: Vec<(u64, Counted)>) {
        self.give_back_ended(name);
        let keys = hits.iter().map(|(_, it)| it.key.clone()).collect();
        self.queued_names.insert(name, keys);
        for (at_us, counted) in hits {
            let of_key = self.queued.entry(counted.key.clone()).or_default();
            of_key.push(Queued {
                name,
                at_us,
                counted,
            });
        }
    }

    /// It is applied, or never will be.
    pub fn give_back_ended(&mut self, name: u128) {
        for key in self.queued_names.remove(&name).iter().flatten() {
            if let Some(of_key) = self.queued.get_mut(key) {
                of_key.retain(|it| it.name != name);
                if of_key.is_empty() {
                    self.queued.remove(key);
                }
            }
        }
    }

    /// Whether a give-back of this name is queued.
    #[must_use]
    pub fn gives_back(&self, name: u128) -> bool {
        self.queued_names.contains_key(&name)
    }

    /// Its counter was reset: nothing of it can be given back.
    pub fn forget(&mut self, key: &[u8]) {
        self.each(key, 0, |counted| counted.hits = 0);
        for queued in self.queued.get_mut(key).into_iter().flatten() {
            queued.counted.hits = 0;
        }
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

fn is_bucket(counted: &Counted) -> bool {
    counted.limit.algorithm().is_bucket()
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
