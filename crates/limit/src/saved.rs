//! The counters of the last checkpoint: what all nodes of a shard have, by the log.
//!
//! It is a function of the changes and checks that were applied, and their times: the same on all nodes. It lists
//! counters by the order of their keys, and drops idle ones only when it is told to ([`Saved::expire`]) or for room.
//! Exact limits (`exact: true`) count here and nowhere else: each hit is a log entry.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::check::{Counters, Peeked, Place};
use crate::table::SWEPT_FOR_ROOM;
use crate::{Answer, Ask, Change, ChangedState, Counter, Now, TableMax, key};

/// See the top of this file. About 70 bytes a counter, its key not counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    counters: BTreeMap<Box<[u8]>, Counter>,
    max: TableMax,
    /// The key up to which counters were looked at for idle ones.
    expired_to: Option<Box<[u8]>>,
    key_bytes: u64,
    log_hits: u64,
}

impl Saved {
    pub fn new(max: TableMax) -> Self {
        Self {
            counters: BTreeMap::new(),
            max,
            expired_to: None,
            key_bytes: 0,
            log_hits: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.counters.len()
    }

    pub fn is_empty(&self) -> bool {
        self.counters.is_empty()
    }

    pub fn key_bytes(&self) -> u64 {
        self.key_bytes
    }

    /// As [`crate::Table::log_hits`].
    pub fn log_hits(&self) -> u64 {
        self.log_hits
    }

    pub fn get(&self, key: &[u8]) -> Option<&Counter> {
        self.counters.get(key)
    }

    /// The counters after a key, in the order of their keys: for snapshots and hashes, a page at a time.
    pub fn after(&self, key: Option<&[u8]>) -> impl Iterator<Item = (&[u8], &Counter)> {
        let from = key.map_or(Bound::Unbounded, Bound::Excluded);
        let counters = self.counters.range::<[u8], _>((from, Bound::Unbounded));
        counters.map(|(key, counter)| (&**key, counter))
    }

    /// Up to where [`Saved::expire`] has come: part of the state, for snapshots.
    pub fn expired_to(&self) -> Option<&[u8]> {
        self.expired_to.as_deref()
    }

    /// For what a snapshot says.
    pub fn set_expired_to(&mut self, key: Option<Box<[u8]>>) {
        self.expired_to = key;
    }

    /// Puts a counter out of a snapshot or a backup, whatever the bounds.
    pub fn put(&mut self, key: Box<[u8]>, counter: Counter) {
        self.remove(&key);
        self.key_bytes += key.len() as u64;
        self.log_hits += counter.log_len() as u64;
        self.counters.insert(key, counter);
    }

    /// An operator resets a counter. Whether there was one.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        self.take_out(key).is_some()
    }

    fn take_out(&mut self, key: &[u8]) -> Option<Counter> {
        let (key, counter) = self.counters.remove_entry(key)?;
        self.key_bytes -= key.len() as u64;
        self.log_hits -= counter.log_len() as u64;
        Some(counter)
    }

    /// Applies one change of a checkpoint. A new counter for which there is no room is not kept: after a failover its
    /// hits up to then are forgotten. Whether it was kept.
    pub fn merge(&mut self, change: &Change, now: Now) -> bool {
        let known = self.take_out(&change.key);
        if known.is_none() && !self.has_room(change.key.len(), 0, now) {
            return false;
        }
        let counter = merged(known, &change.state);
        self.put(change.key.clone(), counter);
        true
    }

    /// Looks at the next counters in the order of their keys and drops the idle ones. Returns how many it dropped.
    pub fn expire(&mut self, now: Now, counters: usize) -> usize {
        let from = self.expired_to.take();
        let seen: Vec<_> = self
            .after(from.as_deref())
            .take(counters)
            .map(|(key, counter)| (Box::from(key), is_idle(key, counter, now)))
            .collect();
        // Less than asked for: the next time begins at the first key.
        let last = seen.last().filter(|_| seen.len() == counters);
        self.expired_to = last.map(|(key, _): &(Box<[u8]>, bool)| key.clone());
        let idle = seen.into_iter().filter(|(_, is_idle)| *is_idle);
        idle.filter(|(key, _)| self.remove(key)).count()
    }

    /// Answers as a check would, and changes nothing.
    pub fn dry_run(&self, ask: &Ask<'_>) -> Answer {
        let counter = self.counters.get(ask.key).cloned();
        let fresh = || Counter::fresh(ask.limit.algorithm());
        let mut counter = counter.unwrap_or_else(fresh);
        counter.peek(ask.limit, &ask.at, ask.hits)
    }

    fn has_room(&mut self, key_bytes: usize, reserved: u32, now: Now) -> bool {
        if self.fits(key_bytes, reserved) {
            return true;
        }
        self.expire(now, SWEPT_FOR_ROOM as usize);
        self.fits(key_bytes, reserved)
    }

    fn fits(&self, key_bytes: usize, reserved: u32) -> bool {
        let used = self.counters.len() as u64 + u64::from(reserved);
        used < u64::from(self.max.counters)
            && self.key_bytes + key_bytes as u64 <= self.max.key_bytes
    }
}

fn is_idle(key: &[u8], counter: &Counter, now: Now) -> bool {
    counter.idle_at_us() <= now.by(key::clock(key))
}

fn merged(known: Option<Counter>, state: &ChangedState) -> Counter {
    match (known, state) {
        (_, ChangedState::Whole(counter)) => counter.clone(),
        (Some(Counter::SlidingWindowLog(mut log)), ChangedState::LogPart(part)) => {
            log.merge(part);
            Counter::SlidingWindowLog(log)
        }
        (_, ChangedState::LogPart(part)) => {
            let mut log = Box::<crate::SlidingWindowLog>::default();
            log.merge(part);
            Counter::SlidingWindowLog(log)
        }
    }
}

/// For exact limits.
impl Counters for Saved {
    fn peek(&mut self, ask: &Ask<'_>, hits: u64, reserved: u32, now: Now) -> Peeked {
        if let Some(counter) = self.counters.get_mut(ask.key) {
            self.log_hits -= counter.log_len() as u64;
            let answer = counter.peek(ask.limit, &ask.at, hits);
            self.log_hits += counter.log_len() as u64;
            let place = Place::Known;
            return Peeked { answer, place };
        }
        let has_room = self.has_room(ask.key.len(), reserved, now);
        Peeked::without_counter(ask, hits, has_room)
    }

    fn record(&mut self, ask: &Ask<'_>, now: Now) {
        if !self.counters.contains_key(ask.key) {
            if !self.has_room(ask.key.len(), 0, now) {
                return;
            }
            self.put(ask.key.into(), Counter::fresh(ask.limit.algorithm()));
        }
        let Some(counter) = self.counters.get_mut(ask.key) else {
            return;
        };
        let log_has_room = self.log_hits < self.max.log_hits;
        self.log_hits -= counter.log_len() as u64;
        counter.record(ask.limit, &ask.at, ask.hits, log_has_room);
        self.log_hits += counter.log_len() as u64;
    }
}
