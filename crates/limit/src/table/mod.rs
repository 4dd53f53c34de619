//! The counters of a leader: in its memory, bounded, and listed for checkpoints as they change.
//!
//! # Bounds
//!
//! | what | bound |
//! |---|---|
//! | counters | [`TableMax::counters`]; after a failover those of the checkpoint besides: see [`Live`] |
//! | memory of a counter | 64 bytes in its slot, of which 16 point at its key, and 4 in the index: 52 without the key. Slots are allocated 1,024 at a time and reused, not given back |
//! | memory of keys | [`TableMax::key_bytes`] |
//! | memory of sliding window logs | [`TableMax::log_hits`] times 16 bytes, doubled while a log grows, and 88 bytes a log |
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
mod paged;
mod slots;

use dirty::Dirty;
pub use hash::HashSeed;
pub use slots::COUNTERS_MAX;
use slots::Slots;

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
    seed: HashSeed,
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
            slots: Slots::new(),
            dirty: Dirty::new(),
            max: TableMax { counters, ..max },
            seed,
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

    /// The memory that counters and index take, without keys and logs.
    pub fn slot_bytes(&self) -> usize {
        self.slots.bytes()
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

    pub fn get(&self, key: &[u8]) -> Option<&Counter> {
        let place = self.slots.find(self.seed.hash(key), key)?;
        self.slots.get(place).map(|slot| &slot.counter)
    }

    /// Drops a counter: an operator resets it. Whether there was one. A checkpoint does not tell of it.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let place = self.slots.find(self.seed.hash(key), key);
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
        let slot = self.slots.get(place);
        let may_go =
            slot.is_some_and(|slot| !slot.stays && slot.counter.idle_at_us() <= now.by(slot.clock));
        may_go && self.drop_slot(place)
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
        let Some(slot) = self.slots.get_mut(place) else {
            return (None, true);
        };
        let (state, is_all) = match &mut slot.counter {
            Counter::SlidingWindowLog(log) => {
                let rest = bytes.saturating_sub(slot.key.len() + COUNTER_BYTES);
                let (part, is_all) = log.next_part((rest / LOG_HIT_BYTES).max(1));
                if part.hits.is_empty() && !part.begins {
                    return (None, is_all);
                }
                (ChangedState::LogPart(part), is_all)
            }
            counter => (ChangedState::Whole(counter.clone()), true),
        };
        let key = slot.key.clone();
        (Some(Change { key, state }), is_all)
    }

    /// Takes changes back that did not get into a checkpoint: the next [`Table::changes`] tell of these counters again,
    /// as they are then.
    pub fn put_back(&mut self, changes: &[Change]) {
        for change in changes {
            let place = self.slots.find(self.seed.hash(&change.key), &change.key);
            let Some(place) = place else { continue };
            if let Some(slot) = self.slots.get_mut(place)
                && let Counter::SlidingWindowLog(log) = &mut slot.counter
            {
                log.save_all_again();
            }
            self.dirty.push(&mut self.slots, place);
        }
    }

    /// Gives hits back that this table has counted: see [`Counter::give_back`].
    pub fn give_back(&mut self, counted: &Counted, now: Now) {
        let hash = self.seed.hash(&counted.key);
        let Some(place) = self.slots.find(hash, &counted.key) else {
            return;
        };
        let Some(slot) = self.slots.get_mut(place) else {
            return;
        };
        self.log_hits -= slot.counter.log_len() as u64;
        let now_us = now.by(counted.limit.clock());
        counted.give_back(&mut slot.counter, now_us);
        self.log_hits += slot.counter.log_len() as u64;
        if !std::mem::replace(&mut slot.stays, true) {
            self.staying.push(place);
        }
        self.dirty.push(&mut self.slots, place);
    }

    /// All that [`Table::changes`] told of is in the checkpoint, but for what was put back.
    pub fn is_saved(&mut self) {
        let slots = &mut self.slots;
        self.staying.retain(|place| match slots.get_mut(*place) {
            Some(slot) => {
                slot.stays &= slot.dirty_next != dirty::CLEAN;
                slot.stays
            }
            None => false,
        });
    }

    fn peek_at(
        &mut self,
        place: Option<u32>,
        ask: &Ask<'_>,
        hits: u64,
        reserved: u32,
        now: Now,
    ) -> Peeked {
        let Some(slot) = place.and_then(|place| self.slots.get_mut(place)) else {
            let has_room = self.has_room(ask.key.len(), reserved, now);
            return Peeked::without_counter(ask, hits, has_room);
        };
        self.log_hits -= slot.counter.log_len() as u64;
        let answer = ask.peek(&mut slot.counter, hits);
        self.log_hits += slot.counter.log_len() as u64;
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
            && self.key_bytes + key_bytes as u64 <= self.max.key_bytes
    }

    /// Adds a counter that is not there.
    fn insert(&mut self, hash: u32, key: &[u8], counter: Counter) -> u32 {
        self.key_bytes += key.len() as u64;
        self.log_hits += counter.log_len() as u64;
        self.slots.insert(hash, key.into(), counter)
    }

    fn find_or_insert(&mut self, ask: &Ask<'_>, now: Now) -> Option<u32> {
        let hash = self.seed.hash(ask.key);
        let found = self.slots.find(hash, ask.key);
        if found.is_some() || !self.has_room(ask.key.len(), 0, now) {
            return found;
        }
        let counter = Counter::fresh(ask.limit.algorithm());
        Some(self.insert(hash, ask.key, counter))
    }
}

impl Counters for Table {
    fn peek(&mut self, ask: &Ask<'_>, hits: u64, reserved: u32, now: Now) -> Peeked {
        self.sweep(now, SWEPT_A_CHECK);
        let found = self.slots.find(self.seed.hash(ask.key), ask.key);
        self.peek_at(found, ask, hits, reserved, now)
    }

    fn record(&mut self, ask: &Ask<'_>, now: Now) {
        let Some(place) = self.find_or_insert(ask, now) else {
            return;
        };
        let Some(slot) = self.slots.get_mut(place) else {
            return;
        };
        let log_has_room = self.log_hits < self.max.log_hits;
        self.log_hits -= slot.counter.log_len() as u64;
        slot.counter
            .record(ask.limit, &ask.at, ask.hits, log_has_room);
        self.log_hits += slot.counter.log_len() as u64;
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
        let hash = table.seed.hash(ask.key);
        let found = table.slots.find(hash, ask.key).or_else(|| {
            let counter = self.saved.get(ask.key)?;
            let is_in_use = counter.idle_at_us() > now.by(ask.limit.clock());
            is_in_use.then(|| table.insert(hash, ask.key, counter.clone()))
        });
        table.peek_at(found, ask, hits, reserved, now)
    }

    fn record(&mut self, ask: &Ask<'_>, now: Now) {
        self.table.record(ask, now);
    }
}
