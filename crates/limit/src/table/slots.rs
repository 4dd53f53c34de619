//! The places of counters, and how one is found by its key.
//!
//! The index is a hash table that grows by one bucket with each counter (linear hashing: Litwin, "Linear hashing: a new
//! tool for file and table addressing", 1980): the entries of one bucket are divided between it and the new one. So no
//! call takes longer because the table has grown. Entries of a bucket are linked through their slots.

use std::borrow::Cow;

use super::hash::HashSeed;
use super::records::{At, Records};
use crate::packed::{self, Logs, Packed};
use crate::paged::Paged;
use crate::{COUNTER_KEY_BYTES_MAX, Counter, Now};

/// No slot, in links.
pub(super) const NONE: u32 = u32::MAX;
/// The most counters of a table. It can have twice as many.
pub const COUNTERS_MAX: u32 = 1 << 26;

/// The bytes of records that are moved for each of one that comes or goes.
const MOVED_SHARE: usize = 8;

/// A place for a counter. It may be vacant.
#[derive(Debug)]
struct Slot {
    record: At,
    hash: u32,
    /// The next slot of its bucket, or the next vacant one.
    next: u32,
    /// The next changed slot: see `dirty`.
    dirty_next: u32,
}

const _: () = assert!(size_of::<Slot>() == 16);

impl Slot {
    fn is_used(&self) -> bool {
        self.record != At::NONE
    }
}

#[derive(Debug)]
pub(super) struct Slots {
    seed: HashSeed,
    slots: Paged<Slot>,
    records: Records,
    logs: Logs,
    /// The first slot of each bucket.
    buckets: Paged<u32>,
    /// The first vacant slot.
    vacant: u32,
    used: u32,
    /// The bits of a hash that count: with few of them buckets are long.
    #[cfg(test)]
    hash_bits: u32,
}

impl Slots {
    pub fn new(seed: HashSeed) -> Self {
        Self {
            seed,
            slots: Paged::new(),
            records: Records::default(),
            logs: Logs::default(),
            buckets: Paged::new(),
            vacant: NONE,
            used: 0,
            #[cfg(test)]
            hash_bits: u32::MAX,
        }
    }

    pub fn hash(&self, key: &[u8]) -> u32 {
        let hash = self.seed.hash(key);
        #[cfg(test)]
        let hash = hash & self.hash_bits;
        hash
    }

    /// How many are used.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// How many there are, the vacant ones included.
    pub fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Whether a key of so many bytes can be added.
    pub fn has_room(&self, key_bytes: usize) -> bool {
        key_bytes <= COUNTER_KEY_BYTES_MAX && self.records.has_room()
    }

    /// Where the record of a slot is that is used.
    #[inline]
    fn at(&self, place: u32) -> Option<At> {
        let slot = self.slots.get(place)?;
        slot.is_used().then_some(slot.record)
    }

    pub fn get(&self, place: u32) -> Option<Cow<'_, Counter>> {
        let record = self.records.get(self.at(place)?);
        Some(packed::read(record.kind(), record.packed(), &self.logs))
    }

    /// Whether a counter is idle, by the clock of its algorithm, and need not stay.
    #[inline]
    pub fn may_go(&self, place: u32, now: Now) -> bool {
        let Some(record) = self.at(place).map(|at| self.records.get(at)) else {
            return false;
        };
        let idle_at_us = packed::idle_at_us(record.kind(), record.packed(), &self.logs);
        idle_at_us <= now.by(record.kind().clock()) && !record.stays()
    }

    pub fn key(&self, place: u32) -> Option<&[u8]> {
        Some(self.records.get(self.at(place)?).key())
    }

    /// Changes a counter, if the slot is used.
    #[inline]
    pub fn change<T>(&mut self, place: u32, change: impl FnOnce(&mut Counter) -> T) -> Option<T> {
        let at = self.at(place)?;
        let (kind, there) = self.records.packed_mut(at);
        let mut counter = packed::take(kind, there, &mut self.logs);
        let result = change(&mut counter);
        let packed = Packed::of(counter, &mut self.logs);
        match packed.kind == kind {
            true => there.copy_from_slice(packed.bytes()),
            false => self.replace(place, at, &packed),
        }
        Some(result)
    }

    fn replace(&mut self, place: u32, at: At, packed: &Packed) {
        let record = self.records.get(at);
        let (key, stays) = (Box::<[u8]>::from(record.key()), record.stays());
        let record_bytes = self.records.remove(at);
        let at = self.records.add(&key, packed);
        self.records.set_stays(at, stays);
        if let Some(slot) = self.slots.get_mut(place) {
            slot.record = at;
        }
        self.move_records(record_bytes);
    }

    /// Whether hits of a counter were given back that the checkpoint may still have: it stays, even if it is idle.
    pub fn stays(&self, place: u32) -> bool {
        let at = self.at(place);
        at.is_some_and(|at| self.records.get(at).stays())
    }

    pub fn set_stays(&mut self, place: u32, stays: bool) {
        if let Some(at) = self.at(place) {
            self.records.set_stays(at, stays);
        }
    }

    /// The link of a slot in the list of changed ones, also of a vacant slot.
    pub fn dirty_next(&mut self, place: u32) -> Option<&mut u32> {
        let slot = self.slots.get_mut(place)?;
        Some(&mut slot.dirty_next)
    }

    #[inline]
    pub fn find(&self, hash: u32, key: &[u8]) -> Option<u32> {
        self.find_such(hash, |at| *self.records.get(at).key() == *key)
    }

    #[inline]
    fn find_such(&self, hash: u32, is_it: impl Fn(At) -> bool) -> Option<u32> {
        let mut place = *self.buckets.get(self.bucket(hash))?;
        while let Some(slot) = self.slots.get(place) {
            if slot.hash == hash && is_it(slot.record) {
                return Some(place);
            }
            place = slot.next;
        }
        None
    }

    /// Adds a counter whose key is not there yet, if [`Slots::has_room`]; at most twice [`COUNTERS_MAX`] of them.
    pub fn insert(&mut self, hash: u32, key: &[u8], counter: Counter) -> Option<u32> {
        if !self.has_room(key.len()) {
            return None;
        }
        self.used += 1;
        self.grow();
        let packed = Packed::of(counter, &mut self.logs);
        let mut new = Slot {
            record: self.records.add(key, &packed),
            hash,
            next: NONE,
            dirty_next: super::dirty::CLEAN,
        };
        let place = self.vacant;
        let place = match self.slots.get_mut(place) {
            Some(slot) => {
                self.vacant = slot.next;
                // It may still be in the list of changed ones, and so stays in it.
                new.dirty_next = slot.dirty_next;
                *slot = new;
                place
            }
            None => {
                self.slots.push(new);
                self.slots.len() as u32 - 1
            }
        };
        self.link(place);
        self.move_records(key.len());
        Some(place)
    }

    /// Returns the counter, and how long its key was.
    pub fn remove(&mut self, place: u32) -> Option<(Counter, usize)> {
        let at = self.at(place)?;
        self.unlink(place)?;
        let vacant = self.vacant;
        let slot = self.slots.get_mut(place)?;
        slot.record = At::NONE;
        slot.next = vacant;
        self.vacant = place;
        self.used -= 1;
        let record = self.records.get(at);
        let counter = packed::take(record.kind(), record.packed(), &mut self.logs);
        let key_bytes = record.key().len();
        let record_bytes = self.records.remove(at);
        self.move_records(record_bytes);
        Some((counter, key_bytes))
    }

    /// Moves a few records if there are too many gaps between them, for a change of so many bytes.
    fn move_records(&mut self, bytes: usize) {
        let mut left = MOVED_SHARE * bytes;
        while left > 0 && self.records.has_gaps() {
            let moved = self.records.move_next();
            left = left.saturating_sub(moved.bytes);
            let Some((from, to)) = moved.record else {
                continue;
            };
            let hash = self.hash(self.records.get(to).key());
            let place = self.find_such(hash, |at| at == from);
            if let Some(slot) = place.and_then(|place| self.slots.get_mut(place)) {
                slot.record = to;
            }
        }
    }

    /// The bucket of a hash: by as many of its bits as there are buckets for, or by one less where the bucket has not
    /// been divided yet.
    #[inline]
    fn bucket(&self, hash: u32) -> u32 {
        let buckets = self.buckets.len() as u32;
        let all = u32::MAX.checked_shr(buckets.leading_zeros()).unwrap_or(0);
        match hash & all {
            bucket if bucket < buckets => bucket,
            bucket => bucket & (all >> 1),
        }
    }

    /// Makes as many buckets as counters are used: one more, if there are too few.
    fn grow(&mut self) {
        let buckets = self.buckets.len() as u32;
        if buckets >= self.used {
            return;
        }
        self.buckets.push(NONE);
        let highest_bit = u32::BITS - 1 - buckets.leading_zeros().min(u32::BITS - 1);
        let divided = buckets & !(1 << highest_bit);
        if divided == buckets {
            return;
        }
        let mut place = self.first(divided);
        self.set_first(divided, NONE);
        while let Some(slot) = self.slots.get(place) {
            let next = slot.next;
            self.link(place);
            place = next;
        }
    }

    fn first(&self, bucket: u32) -> u32 {
        self.buckets.get(bucket).copied().unwrap_or(NONE)
    }

    fn set_first(&mut self, bucket: u32, place: u32) {
        if let Some(first) = self.buckets.get_mut(bucket) {
            *first = place;
        }
    }

    fn link(&mut self, place: u32) {
        let Some(hash) = self.slots.get(place).map(|slot| slot.hash) else {
            return;
        };
        let bucket = self.bucket(hash);
        let first = self.first(bucket);
        if let Some(slot) = self.slots.get_mut(place) {
            slot.next = first;
        }
        self.set_first(bucket, place);
    }

    fn unlink(&mut self, place: u32) -> Option<()> {
        let slot = self.slots.get(place)?;
        let (bucket, next) = (self.bucket(slot.hash), slot.next);
        let mut before = self.first(bucket);
        if before == place {
            self.set_first(bucket, next);
            return Some(());
        }
        loop {
            let slot = self.slots.get_mut(before)?;
            if slot.next == place {
                slot.next = next;
                return Some(());
            }
            before = slot.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::Algorithm;

    /// Of different lengths, long ones too.
    fn key_of(number: u16) -> Vec<u8> {
        let mut key = number.to_be_bytes().to_vec();
        key.resize(2 + usize::from(number % 300) * 6, 0);
        key
    }

    fn counter(number: u32) -> Counter {
        let algorithm = Algorithm::ALL[number as usize % 5];
        match Counter::fresh(algorithm) {
            Counter::FixedWindow(mut it) => {
                it.count = number;
                Counter::FixedWindow(it)
            }
            Counter::SlidingWindowLog(mut log) => {
                log.record(number.into(), 1, true);
                Counter::SlidingWindowLog(log)
            }
            Counter::SlidingWindowCounter(mut it) => {
                it.this = number;
                Counter::SlidingWindowCounter(it)
            }
            Counter::Bucket(mut it) => {
                it.empty_us = number.into();
                Counter::Bucket(it)
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn as_a_plain_map_has_it(
            steps in prop::collection::vec((0_u8..8, 0_u16..600, any::<u32>()), 1..5_000),
            bits in 0_u32..=32,
        ) {
            let (mut slots, mut plain) = (Slots::new(HashSeed([7, 9])), BTreeMap::<u16, _>::new());
            slots.hash_bits = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            let (mut key_bytes, mut most) = (0, 0);
            for (kind, number, state) in steps {
                let key = key_of(number);
                let hash = slots.hash(&key);
                let found = slots.find(hash, &key);
                prop_assert_eq!(found, plain.get(&number).map(|it: &(u32, Counter, bool)| it.0));
                match (kind, found) {
                    (0..=3, None) => {
                        let place = slots.insert(hash, &key, counter(state));
                        let place = place.ok_or_else(|| TestCaseError::fail("no room"))?;
                        slots.set_stays(place, state % 2 == 0);
                        plain.insert(number, (place, counter(state), state % 2 == 0));
                        key_bytes += key.len();
                    }
                    (0..=3, Some(place)) => {
                        slots.change(place, |it| *it = counter(state));
                        if let Some((_, there, _)) = plain.get_mut(&number) {
                            *there = counter(state);
                        }
                    }
                    (_, Some(place)) => {
                        let removed = slots.remove(place);
                        let expected = plain.remove(&number).map(|(_, counter, _)| (counter, key.len()));
                        prop_assert_eq!(removed, expected);
                        prop_assert!(slots.get(place).is_none() && slots.remove(place).is_none());
                        key_bytes -= key.len();
                    }
                    _ => {}
                }
                prop_assert_eq!(slots.used() as usize, plain.len());
                most = most.max(key_bytes + plain.len() * 32);
                let gaps = slots.records.memory() - slots.records.memory().min(most);
                prop_assert!(gaps < most / 2 + (4 << 16), "{} of {}", gaps, most);
            }
            for (number, (place, counter, stays)) in &plain {
                let key = key_of(*number);
                prop_assert_eq!(slots.find(slots.hash(&key), &key), Some(*place));
                prop_assert_eq!(slots.key(*place), Some(&key[..]));
                let found = slots.get(*place).map(Cow::into_owned);
                prop_assert_eq!(found.as_ref(), Some(counter));
                prop_assert_eq!(slots.stays(*place), *stays);
            }
        }
    }

    #[test]
    fn buckets_stay_short() {
        let mut slots = Slots::new(HashSeed::default());
        for key in 0..50_000_u32 {
            let counter = Counter::fresh(Algorithm::FixedWindow);
            let key = key.to_be_bytes();
            slots.insert(slots.hash(&key), &key, counter);
        }
        assert_eq!(slots.buckets.len(), 50_000);
        let longest = (0..50_000).map(|bucket| {
            let mut place = slots.first(bucket);
            let mut length = 0;
            while let Some(slot) = slots.slots.get(place) {
                length += 1;
                place = slot.next;
            }
            length
        });
        assert!(longest.max() < Some(20));
    }
}
