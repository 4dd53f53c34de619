//! The places of counters, and how one is found by its key.
//!
//! The index is a hash table that grows by one bucket with each counter (linear hashing: Litwin, "Linear hashing: a new
//! tool for file and table addressing", 1980): the entries of one bucket are divided between it and the new one. So no
//! call takes longer because the table has grown. Entries of a bucket are linked through their slots.

use super::paged::Paged;
use crate::{Clock, Counter, key};

/// No slot, in links.
pub(super) const NONE: u32 = u32::MAX;
/// The most counters of a table: places are 32 bits wide, and it can have twice as many.
pub const COUNTERS_MAX: u32 = (1 << 31) - 2;

/// A place for a counter: 64 bytes. It may be vacant.
#[derive(Debug)]
pub(super) struct Slot {
    pub counter: Counter,
    pub key: Box<[u8]>,
    hash: u32,
    /// The next slot of its bucket, or the next vacant one.
    next: u32,
    /// The next changed slot: see `dirty`.
    pub dirty_next: u32,
    pub is_used: bool,
    /// Hits of it were given back, and the checkpoint may still have them: it stays, even if it is idle.
    pub stays: bool,
    pub clock: Clock,
}

const _: () = assert!(size_of::<Slot>() <= 64);

#[derive(Debug)]
pub(super) struct Slots {
    slots: Paged<Slot>,
    /// The first slot of each bucket.
    buckets: Paged<u32>,
    /// The first vacant slot.
    vacant: u32,
    used: u32,
}

impl Slots {
    pub fn new() -> Self {
        Self {
            slots: Paged::new(),
            buckets: Paged::new(),
            vacant: NONE,
            used: 0,
        }
    }

    /// How many are used.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// How many there are, the vacant ones included.
    pub fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The memory of slots and index, without keys and logs.
    pub fn bytes(&self) -> usize {
        self.slots.bytes() + self.buckets.bytes()
    }

    pub fn get(&self, place: u32) -> Option<&Slot> {
        self.slots.get(place).filter(|slot| slot.is_used)
    }

    pub fn get_mut(&mut self, place: u32) -> Option<&mut Slot> {
        self.slots.get_mut(place).filter(|slot| slot.is_used)
    }

    /// The link of a slot in the list of changed ones, also of a vacant slot.
    pub fn dirty_next(&mut self, place: u32) -> Option<&mut u32> {
        let slot = self.slots.get_mut(place)?;
        Some(&mut slot.dirty_next)
    }

    pub fn find(&self, hash: u32, key: &[u8]) -> Option<u32> {
        let mut place = *self.buckets.get(self.bucket(hash))?;
        while let Some(slot) = self.slots.get(place) {
            if slot.hash == hash && *slot.key == *key {
                return Some(place);
            }
            place = slot.next;
        }
        None
    }

    /// Adds a counter whose key is not there yet; at most twice [`COUNTERS_MAX`] of them.
    pub fn insert(&mut self, hash: u32, key: Box<[u8]>, counter: Counter) -> u32 {
        self.used += 1;
        self.grow();
        let clock = key::clock(&key);
        let place = self.vacant;
        let place = match self.slots.get_mut(place) {
            Some(slot) => {
                self.vacant = slot.next;
                // It may still be in the list of changed ones, and so stays in it.
                let dirty_next = slot.dirty_next;
                *slot = Slot::new(hash, key, counter, clock);
                slot.dirty_next = dirty_next;
                place
            }
            None => {
                self.slots.push(Slot::new(hash, key, counter, clock));
                self.slots.len() as u32 - 1
            }
        };
        self.link(place);
        place
    }

    /// Returns the counter, and how long its key was.
    pub fn remove(&mut self, place: u32) -> Option<(Counter, usize)> {
        self.unlink(place)?;
        let vacant = self.vacant;
        let slot = self.slots.get_mut(place)?;
        slot.is_used = false;
        slot.next = vacant;
        let key = std::mem::take(&mut slot.key);
        let nothing = Counter::fresh(crate::Algorithm::FixedWindow);
        let counter = std::mem::replace(&mut slot.counter, nothing);
        self.vacant = place;
        self.used -= 1;
        Some((counter, key.len()))
    }

    /// The bucket of a hash: by as many of its bits as there are buckets for, or by one less where the bucket has not
    /// been divided yet.
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
        let slot = self.get(place)?;
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

impl Slot {
    fn new(hash: u32, key: Box<[u8]>, counter: Counter, clock: Clock) -> Self {
        Self {
            counter,
            key,
            hash,
            next: NONE,
            dirty_next: super::dirty::CLEAN,
            is_used: true,
            stays: false,
            clock,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::Algorithm;
    use crate::table::HashSeed;

    /// Few hashes, so that buckets are long, and all bits of them.
    fn hash(seed: HashSeed, key: u16, bits: u32) -> u32 {
        let hash = seed.hash(&key.to_be_bytes());
        hash & u32::MAX.checked_shl(32 - bits).unwrap_or(0)
    }

    proptest! {
        #[test]
        fn as_a_plain_map_has_it(
            steps in prop::collection::vec((0_u8..3, 0_u16..300), 1..2_000),
            bits in 0_u32..=32,
        ) {
            let seed = HashSeed([7, 9]);
            let (mut slots, mut plain) = (Slots::new(), BTreeMap::new());
            for (kind, key) in steps {
                let hash = hash(seed, key, bits);
                let bytes = key.to_be_bytes();
                let found = slots.find(hash, &bytes);
                prop_assert_eq!(found, plain.get(&key).copied());
                match (kind, found) {
                    (0 | 1, None) => {
                        let counter = Counter::fresh(Algorithm::FixedWindow);
                        plain.insert(key, slots.insert(hash, bytes.into(), counter));
                    }
                    (2, Some(place)) => {
                        prop_assert!(slots.remove(place).is_some());
                        prop_assert!(slots.get(place).is_none() && slots.remove(place).is_none());
                        plain.remove(&key);
                    }
                    _ => {}
                }
                prop_assert_eq!(slots.used() as usize, plain.len());
            }
            for (key, place) in &plain {
                prop_assert_eq!(slots.find(hash(seed, *key, bits), &key.to_be_bytes()), Some(*place));
            }
        }
    }

    #[test]
    fn buckets_stay_short() {
        let (seed, mut slots) = (HashSeed::default(), Slots::new());
        for key in 0..50_000_u32 {
            let bytes = key.to_be_bytes();
            let counter = Counter::fresh(Algorithm::FixedWindow);
            slots.insert(seed.hash(&bytes), bytes.into(), counter);
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
