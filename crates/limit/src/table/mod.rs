//! The counters of a leader: in its memory, bounded, and listed for checkpoints as they change.
//!
//! # Bounds
//!
//! | what | bound |
//! |---|---|
//! | counters | [`TableMax::counters`]; after a failover those of the checkpoint besides: see [`Live`] |
//! | memory of a counter | 16 bytes in its slot, 4 in the index, and a record of 16 bytes (28 for a sliding window counter) and its key. Slots are allocated 1,024 at a time and reused, not given back |
//! | memory of records | what is in use, an eighth of that, and some 64 KiB |
//! | bytes of keys | [`TableMax::key_bytes`] |
//! | memory of sliding window logs | [`TableMax::log_hits`] times 16 bytes, doubled while a log grows, and 112 bytes a log |
//! | work of a check | two slots swept, 64 for a new key of a full table; a bucket of the index divided; a log of at most [`crate::LOG_REQUESTS_MAX`] times |
//!
//! # When it is full
//!
//! Only idle counters are dropped, those that answer as fresh ones would. So a flood of new keys never pushes out a
//! counter that is in use: a hand goes round the slots, a few at each check, and drops the idle ones. A new key that
//! finds no room, and no idle counter among the next 64, is answered by [`WhenFull`](crate::WhenFull). A flood fills the
//! table until its own counters are idle: that is one unit, or two for a sliding window counter.
//!
//! A counter that is idle because hits were given back stays until a checkpoint has it ([`Table::is_saved`]): in the
//! checkpoint before that it may be in use, and would be found there with those hits.
//!
//! Logs without room for one more time remember hits at the time of the next ones: they refuse earlier, never later.

mod dirty;
mod hash;
mod records;
mod slots;

use dirty::Dirty;
pub use hash::HashSeed;
pub use slots::COUNTERS_MAX;
use slots::Slots;

use std::borrow::Cow;

use crate::change::{COUNTER_BYTES, LOG_HIT_BYTES};
use crate::check::{Counters, Peeked, Place};
use crate::{Ask, Change, ChangedState, Counted, Counter, Now, PortionMax, Saved};

/// How many slots each check looks at for idle counters.
const SWEPT_A_CHECK: u32 = 2;
/// How many slots a new key looks at if there is no room for it.
pub(crate) const SWEPT_FOR_ROOM: u32 = 64;

/// How large a set of counters may become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableMax {
    /// At most [`COUNTERS_MAX`].
    pub counters: u32,
    /// The bytes of all keys.
    pub key_bytes: u64,
    /// The times that all sliding window logs remember, besides one each.
    pub log_hits: u64,
}

/// See the top of this file.
#[derive(Debug)]
pub struct Table {
    slots: Slots,
    dirty: Dirty,
    max: TableMax,
    /// The slot that is swept next.
    hand: u32,
    key_bytes: u64,
    log_hits: u64,
    /// The slots whose counters stay. Some may have been dropped since.
    staying: Vec<u32>,
}

impl Table {
    pub fn new(max: TableMax, seed: HashSeed) -> Self {
        let counters = max.counters.min(COUNTERS_MAX);
        Self {
            slots: Slots::new(seed),
            dirty: Dirty::new(),
            max: TableMax { counters, ..max },
            hand: 0,
            key_bytes: 0,
            log_hits: 0,
            staying: Vec::new(),
        }
    }

    pub fn len(&self) -> u32 {
        self.slots.used()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn key_bytes(&self) -> u64 {
        self.key_bytes
    }

    /// How many times all sliding window logs remember, those that are over and not yet forgotten included.
    pub fn log_hits(&self) -> u64 {
        self.log_hits
    }

    /// How many counters changed since they were last in [`Table::changes`], idle ones that were dropped since
    /// included.
    pub fn dirty(&self) -> u32 {
        self.dirty.len()
    }

    pub fn get(&self, key: &[u8]) -> Option<Cow<'_, Counter>> {
        self.slots.get(self.find(key)?)
    }

    /// Drops a counter: an operator resets it. Whether there was one. A checkpoint does not tell of it.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let place = self.find(key);
        place.is_some_and(|place| self.drop_slot(place))
    }

    /// Looks at the next slots and drops the counters that are idle. Each check does a few; a leader calls this from
    /// time to time, so that counters also go when nobody asks. Returns how many it dropped.
    pub fn sweep(&mut self, now: Now, slots: u32) -> u32 {
        let slots = slots.min(self.slots.len());
        (0..slots).map(|_| u32::from(self.sweep_one(now))).sum()
    }

    fn sweep_one(&mut self, now: Now) -> bool {
        let place = self.hand;
        self.hand = match place + 1 < self.slots.len() {
            true => place + 1,
            false => 0,
        };
        self.slots.may_go(place, now) && self.drop_slot(place)
    }

    fn find(&self, key: &[u8]) -> Option<u32> {
        self.slots.find(self.slots.hash(key), key)
    }

    fn drop_slot(&mut self, place: u32) -> bool {
        let Some((counter, key_bytes)) = self.slots.remove(place) else {
            return false;
        };
        self.key_bytes -= key_bytes as u64;
        self.log_hits -= counter.log_len() as u64;
        true
    }

    /// The next changes since the last checkpoint, oldest first; none if there are no more. They count as in a
    /// checkpoint from now on.
    pub fn changes(&mut self, max: PortionMax) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut bytes = 0;
        for _ in 0..max.counters {
            let Some(place) = self.dirty.first().filter(|_| bytes < max.bytes) else {
                break;
            };
            let (change, is_all) = self.change(place, max.bytes - bytes);
            bytes += change.as_ref().map_or(0, Change::bytes);
            changes.extend(change);
            if !is_all {
                break;
            }
            self.dirty.pop(&mut self.slots);
        }
        changes
    }

    /// The change of one slot, and whether that is all of it. `None` if it is vacant or has nothing to tell.
    fn change(&mut self, place: u32, bytes: usize) -> (Option<Change>, bool) {
        let Some(key) = self.slots.key(place).map(Box::<[u8]>::from) else {
            return (None, true);
        };
        let hits = bytes.saturating_sub(key.len() + COUNTER_BYTES) / LOG_HIT_BYTES;
        let change = self.slots.change(place, |counter| match counter {
            Counter::SlidingWindowLog(log) => {
                let (part, is_all) = log.next_part(hits.max(1));
                let has_news = !part.hits.is_empty() || part.begins;
                (has_news.then_some(ChangedState::LogPart(part)), is_all)
            }
            counter => (Some(ChangedState::Whole(counter.clone())), true),
        });
        let (state, is_all) = change.unwrap_or((None, true));
        (state.map(|state| Change { key, state }), is_all)
    }

    /// Takes changes back that did not get into a checkpoint: the next [`Table::changes`] tell of these counters again,
    /// as they are then.
    pub fn put_back(&mut self, changes: &[Change]) {
        for change in changes {
            let Some(place) = self.find(&change.key) else {
                continue;
            };
            if let ChangedState::LogPart(_) = &change.state {
                self.slots.change(place, |counter| {
                    if let Counter::SlidingWindowLog(log) = counter {
                        log.save_all_again();
                    }
                });
            }
            self.dirty.push(&mut self.slots, place);
        }
    }

    /// Gives hits back that this table has counted: see [`Counter::give_back`].
    pub fn give_back(&mut self, counted: &Counted, now: Now) {
        let Some(place) = self.find(&counted.key) else {
            return;
        };
        let now_us = now.by(counted.limit.clock());
        self.change_at(place, |counter| counted.give_back(counter, now_us));
        if !self.slots.stays(place) {
            self.slots.set_stays(place, true);
            self.staying.push(place);
        }
        self.dirty.push(&mut self.slots, place);
    }

    /// All that [`Table::changes`] told of is in the checkpoint, but for what was put back.
    pub fn is_saved(&mut self) {
        let slots = &mut self.slots;
        self.staying.retain(|place| {
            let is_dirty = slots
                .dirty_next(*place)
                .is_some_and(|it| *it != dirty::CLEAN);
            let stays = slots.stays(*place) && is_dirty;
            slots.set_stays(*place, stays);
            stays
        });
    }

    /// Changes the counter of a slot, if it is used, and counts what its log has.
    fn change_at<T>(&mut self, place: u32, change: impl FnOnce(&mut Counter) -> T) -> Option<T> {
        let (mut before, mut after) = (0, 0);
        let result = self.slots.change(place, |counter| {
            before = counter.log_len() as u64;
            let result = change(counter);
            after = counter.log_len() as u64;
            result
        })?;
        self.log_hits = self.log_hits + after - before;
        Some(result)
    }

    fn peek_at(
        &mut self,
        place: Option<u32>,
        ask: &Ask<'_>,
        hits: u64,
        reserved: u32,
        now: Now,
    ) -> Peeked {
        let place = place.and_then(|place| self.change_at(place, |it| ask.peek(it, hits)));
        let Some(answer) = place else {
            let has_room = self.has_room(ask.key.len(), reserved, now);
            return Peeked::without_counter(ask, hits, has_room);
        };
        Peeked {
            answer,
            place: Place::Known,
        }
    }

    /// Whether a counter with a key of so many bytes has room, besides those that are reserved; drops idle counters to
    /// make it.
    fn has_room(&mut self, key_bytes: usize, reserved: u32, now: Now) -> bool {
        let slots = SWEPT_FOR_ROOM.min(self.slots.len());
        for _ in 0..slots {
            if self.fits(key_bytes, reserved) {
                return true;
            }
            self.sweep_one(now);
        }
        self.fits(key_bytes, reserved)
    }

    fn fits(&self, key_bytes: usize, reserved: u32) -> bool {
        let used = u64::from(self.len()) + u64::from(reserved);
        used < u64::from(self.max.counters)
            && self.slots.has_room(key_bytes)
            && self.key_bytes + key_bytes as u64 <= self.max.key_bytes
    }

    /// Adds a counter that is not there.
    fn insert(&mut self, hash: u32, key: &[u8], counter: Counter) -> Option<u32> {
        let log_hits = counter.log_len() as u64;
        let place = self.slots.insert(hash, key, counter)?;
        self.key_bytes += key.len() as u64;
        self.log_hits += log_hits;
        Some(place)
    }

    fn find_or_insert(&mut self, ask: &Ask<'_>, now: Now) -> Option<u32> {
        let hash = self.slots.hash(ask.key);
        let found = self.slots.find(hash, ask.key);
        if found.is_some() || !self.has_room(ask.key.len(), 0, now) {
            return found;
        }
        self.insert(hash, ask.key, Counter::fresh(ask.limit.algorithm()))
    }
}

impl Counters for Table {
    fn peek(&mut self, ask: &Ask<'_>, hits: u64, reserved: u32, now: Now) -> Peeked {
        self.sweep(now, SWEPT_A_CHECK);
        let found = self.find(ask.key);
        self.peek_at(found, ask, hits, reserved, now)
    }

    fn record(&mut self, ask: &Ask<'_>, now: Now) {
        let Some(place) = self.find_or_insert(ask, now) else {
            return;
        };
        let log_has_room = self.log_hits < self.max.log_hits;
        self.change_at(place, |counter| {
            counter.record(ask.limit, &ask.at, ask.hits, log_has_room);
        });
        self.dirty.push(&mut self.slots, place);
    }
}

/// A leader's counters over those of the last checkpoint, in which it finds what it does not have itself: after a
/// failover it need not load them.
///
/// A counter of the checkpoint is in use, so it always finds room: a flood of new keys right after a failover must not
/// keep it out. So the table can have twice its number of counters then, until some are idle.
#[derive(Debug)]
pub struct Live<'a> {
    pub table: &'a mut Table,
    pub saved: &'a Saved,
}

impl Counters for Live<'_> {
    fn peek(&mut self, ask: &Ask<'_>, hits: u64, reserved: u32, now: Now) -> Peeked {
        let table = &mut *self.table;
        table.sweep(now, SWEPT_A_CHECK);
        let hash = table.slots.hash(ask.key);
        let found = table.slots.find(hash, ask.key).or_else(|| {
            let counter = self.saved.get(ask.key)?;
            let is_in_use = counter.idle_at_us() > now.by(ask.limit.clock());
            is_in_use.then(|| table.insert(hash, ask.key, counter.into_owned()))?
        });
        table.peek_at(found, ask, hits, reserved, now)
    }

    fn record(&mut self, ask: &Ask<'_>, now: Now) {
        self.table.record(ask, now);
    }
}
