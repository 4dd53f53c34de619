//! The counters of the last checkpoint: what all nodes of a shard have, by the log.
//!
//! It is a function of the changes and checks that were applied, and their times: the same on all nodes. It lists
//! counters by the order of their keys, and drops idle ones only when it is told to ([`Saved::expire`]) or for room.
//! Exact limits (`exact: true`) count here and nowhere else: each hit is a log entry. There is room for them beyond that
//! for all others (`EXACT_SHARE`), as a counter that finds none is no limit: a flood of other keys cannot take it.

mod page;
mod pages;

use std::borrow::Cow;
use std::ops::ControlFlow;

use pages::Pages;

use crate::check::{Counters, Peeked, Place};
use crate::table::SWEPT_FOR_ROOM;
use crate::{
    Answer, Ask, COUNTER_KEY_BYTES_MAX, Change, ChangedState, Counted, Counter, Now, TableMax, key,
};

/// To so many places, bytes of keys and times of logs comes one more, which is for exact limits alone.
const EXACT_SHARE: u32 = 4;

/// See the top of this file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    counters: Pages,
    max: TableMax,
    /// The key up to which counters were looked at for idle ones.
    expired_to: Option<Box<[u8]>>,
    exact: Used,
    others: Used,
}

/// The room that counters take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Used {
    counters: u64,
    key_bytes: u64,
    log_hits: u64,
}

impl Used {
    fn add(&mut self, key: &[u8], counter: &Counter) {
        self.counters += 1;
        self.key_bytes += key.len() as u64;
        self.log_hits += counter.log_len() as u64;
    }

    fn remove(&mut self, key: &[u8], counter: &Counter) {
        self.counters -= 1;
        self.key_bytes -= key.len() as u64;
        self.log_hits -= counter.log_len() as u64;
    }
}

impl Saved {
    pub fn new(max: TableMax) -> Self {
        Self {
            counters: Pages::default(),
            max,
            expired_to: None,
            exact: Used::default(),
            others: Used::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.counters.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn key_bytes(&self) -> u64 {
        self.exact.key_bytes + self.others.key_bytes
    }

    /// As [`crate::Table::log_hits`].
    pub fn log_hits(&self) -> u64 {
        self.exact.log_hits + self.others.log_hits
    }

    pub fn get(&self, key: &[u8]) -> Option<Cow<'_, Counter>> {
        self.counters.get(key)
    }

    /// The counters after a key, in the order of their keys, until it breaks off: for snapshots and hashes, a page at a
    /// time.
    pub fn each_after(
        &self,
        key: Option<&[u8]>,
        each: impl FnMut(&[u8], &Counter) -> ControlFlow<()>,
    ) {
        self.counters.each_after(key, each);
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
    pub fn put(&mut self, key: &[u8], counter: Counter) {
        self.remove(key);
        self.used_by(key).add(key, &counter);
        self.counters.insert(key, counter);
    }

    /// An operator resets a counter. Whether there was one.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        self.take_out(key).is_some()
    }

    fn take_out(&mut self, key: &[u8]) -> Option<Counter> {
        let counter = self.counters.remove(key)?;
        self.used_by(key).remove(key, &counter);
        Some(counter)
    }

    fn used_by(&mut self, key: &[u8]) -> &mut Used {
        match key::is_exact(key) {
            true => &mut self.exact,
            false => &mut self.others,
        }
    }

    /// Applies one change of a checkpoint. A new counter for which there is no room is not kept: after a failover its
    /// hits up to then are forgotten. Whether it was kept. Idle counters stay: [`Saved::expire`] comes first.
    pub fn merge(&mut self, change: &Change) -> bool {
        // In place: all nodes do this for nearly all hits, and each search compares some twenty keys.
        let is_known = self.change(&change.key, |counter| merge_into(counter, &change.state));
        if is_known.is_some() {
            return true;
        }
        let fits = self.fits(&change.key, 0);
        if fits {
            self.put(&change.key, begun_by(&change.state));
        }
        fits
    }

    /// Whether less than half of all room is used.
    pub fn is_roomy(&self) -> bool {
        self.len() as u64 * 2 < u64::from(self.max.counters)
            && self.key_bytes() * 2 < self.max.key_bytes
    }

    /// Looks at the next counters in the order of their keys and drops the idle ones. Returns how many it dropped.
    pub fn expire(&mut self, now: Now, counters: usize) -> usize {
        let from = self.expired_to.take();
        let (mut left, mut idle) = (counters, Vec::new());
        let mut last = None;
        if counters > 0 {
            self.each_after(from.as_deref(), |key, counter| {
                if is_idle(key, counter, now) {
                    idle.push(Box::<[u8]>::from(key));
                }
                left -= 1;
                if left == 0 {
                    last = Some(Box::from(key));
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
        }
        // Less than asked for: the next time begins at the first key.
        self.expired_to = last;
        idle.iter().filter(|key| self.remove(key)).count()
    }

    /// Answers as a check would, and changes nothing: what is left is told without these hits.
    pub fn dry_run(&self, ask: &Ask<'_>) -> Answer {
        let counter = self.get(ask.key).map(Cow::into_owned);
        let fresh = || Counter::fresh(ask.limit.algorithm());
        let mut counter = counter.unwrap_or_else(fresh);
        let uncounted = ask.peek(&mut counter, 0);
        let answer = ask.peek(&mut counter, ask.hits);
        match answer.allowed {
            true => answer.without_hits(&uncounted),
            false => answer,
        }
    }

    /// Gives back hits on an exact limit: see [`Counter::give_back`].
    pub fn give_back(&mut self, counted: &Counted, now_us: u64) {
        self.change(&counted.key, |counter| {
            counted.give_back(counter, now_us);
        });
    }

    fn has_room(&mut self, key: &[u8], reserved: u32, now: Now) -> bool {
        if self.fits(key, reserved) {
            return true;
        }
        self.expire(now, SWEPT_FOR_ROOM as usize);
        self.fits(key, reserved)
    }

    /// Whether a new counter has room, besides those that are reserved.
    fn fits(&self, key: &[u8], reserved: u32) -> bool {
        let fit = |counters: u64, key_bytes: u64, max: TableMax| {
            counters + u64::from(reserved) < u64::from(max.counters)
                && key_bytes + key.len() as u64 <= max.key_bytes
        };
        let others = self.others;
        fit(self.len() as u64, self.key_bytes(), self.max_with_exact())
            && (key::is_exact(key) || fit(others.counters, others.key_bytes, self.max))
    }

    /// How many looks at counters a check of so many exact limits costs at most: without room it looks for idle ones.
    pub fn work_of_a_check(&self, limits: usize) -> usize {
        let (more, bytes) = (limits as u64, (limits * COUNTER_KEY_BYTES_MAX) as u64);
        let max = self.max_with_exact();
        let has_room = self.len() as u64 + more <= u64::from(max.counters)
            && self.key_bytes() + bytes <= max.key_bytes;
        match has_room {
            true => limits,
            false => limits * (1 + 2 * SWEPT_FOR_ROOM as usize),
        }
    }

    fn max_with_exact(&self) -> TableMax {
        let (max, share) = (self.max, u64::from(EXACT_SHARE));
        TableMax {
            counters: max.counters.saturating_add(max.counters / EXACT_SHARE),
            key_bytes: max.key_bytes + max.key_bytes / share,
            log_hits: max.log_hits + max.log_hits / share,
        }
    }

    /// Whether the log of this key may remember one more time. Checkpoints bring logs whatever the bounds.
    fn log_has_room(&self, key: &[u8]) -> bool {
        let max = self.max_with_exact().log_hits;
        let has_share = self.exact.log_hits < max - self.max.log_hits;
        match key::is_exact(key) {
            true => has_share || self.log_hits() < max,
            false => self.log_hits() < self.max.log_hits,
        }
    }
}

fn is_idle(key: &[u8], counter: &Counter, now: Now) -> bool {
    counter.idle_at_us() <= now.by(key::clock(key))
}

fn merge_into(counter: &mut Counter, state: &ChangedState) {
    match (counter, state) {
        (Counter::SlidingWindowLog(log), ChangedState::LogPart(part)) => log.merge(part),
        (counter, state) => *counter = begun_by(state),
    }
}

fn begun_by(state: &ChangedState) -> Counter {
    match state {
        ChangedState::Whole(counter) => counter.clone(),
        ChangedState::LogPart(part) => {
            let mut log = Box::<crate::SlidingWindowLog>::default();
            log.merge(part);
            Counter::SlidingWindowLog(log)
        }
    }
}

/// For exact limits.
impl Counters for Saved {
    fn peek(&mut self, ask: &Ask<'_>, hits: u64, reserved: u32, now: Now) -> Peeked {
        if let Some(answer) = self.change(ask.key, |counter| ask.peek(counter, hits)) {
            let place = Place::Known;
            return Peeked { answer, place };
        }
        let has_room = self.has_room(ask.key, reserved, now);
        Peeked::without_counter(ask, hits, has_room)
    }

    fn record(&mut self, ask: &Ask<'_>, now: Now) {
        if self.get(ask.key).is_none() {
            if !self.has_room(ask.key, 0, now) {
                return;
            }
            self.put(ask.key, Counter::fresh(ask.limit.algorithm()));
        }
        let log_has_room = self.log_has_room(ask.key);
        self.change(ask.key, |counter| {
            counter.record(ask.limit, &ask.at, ask.hits, log_has_room);
        });
    }
}

impl Saved {
    /// Changes a counter, if there is one.
    fn change<T>(&mut self, key: &[u8], change: impl FnOnce(&mut Counter) -> T) -> Option<T> {
        let (mut before, mut after) = (0, 0);
        let result = self.counters.change(key, |counter| {
            before = counter.log_len() as u64;
            let result = change(counter);
            after = counter.log_len() as u64;
            result
        })?;
        let used = self.used_by(key);
        used.log_hits = used.log_hits + after - before;
        Some(result)
    }
}
