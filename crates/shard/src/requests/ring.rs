//! Answers in the order of their time, found by key: a ring, and an open-addressed table of places in it.
//!
//! An answer takes 40 bytes, whatever it is: it is kept as its encoding, and only a long one in memory of its own. The
//! table has one size, is allocated at first use and takes 8 bytes an answer at most: growing would move all at once.

use std::collections::VecDeque;

use nowserving_codec::{Codec, Reader, Writer};

use super::{Answer, MEMORY_MS, Origin, REQUESTS_MAX, Remembered};

/// Places in the ring. Half of them can be of removed answers; when all are taken, it is packed.
const PLACES_MAX: usize = 2 * REQUESTS_MAX;
/// Slots of the table: at most half of them are taken, so runs of taken ones are short.
const SLOTS: usize = 2 * REQUESTS_MAX;
/// Memory for so many is not given back before all of it is.
const PLACES_KEPT: usize = 1_024;
/// Places have numbers that begin again after this many: more than there can be at once.
const NUMBERS: u32 = 2 * PLACES_MAX as u32;
/// An encoding up to this length is kept in the ring: that of a token, of nearly every refusal and of hits.
const SHORT_MAX: usize = 17;
/// A seed with many bits set, for those who give none.
const BASE: u128 = 0x9e37_79b9_7f4a_7c15_bf58_476d_1ce4_e5b9;
/// Answers in memory are encoded as this format: with all their parts.
const NEWEST: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Ring {
    /// Makes the slots the table's own: clients have a say in the keys, and must not be able to choose ones that share a
    /// slot. Nothing that can be seen depends on it.
    seed: [u64; 2],
    /// In order of time. The first and the last one are live.
    places: VecDeque<Place>,
    /// The number of the first place.
    first: u32,
    removed: usize,
    /// The time of the last one that came.
    newest_ms: u64,
    /// A place's number and 1; 0: none.
    table: Vec<u32>,
    /// To encode into.
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Place {
    key: [u64; 2],
    kept: Kept,
}

#[derive(Debug)]
enum Kept {
    /// `at` has the low bits of the time: all are of the last two minutes.
    Short {
        at: u32,
        origin: Origin,
        length: u8,
        encoded: [u8; SHORT_MAX],
    },
    Long {
        at: u32,
        origin: Origin,
        answer: Box<Answer>,
    },
    Removed,
}

const _: () = assert!(size_of::<Place>() == 40);

impl Ring {
    pub fn new(seed: u128) -> Self {
        Ring {
            seed: halves(seed ^ BASE),
            places: VecDeque::new(),
            first: 0,
            removed: 0,
            newest_ms: 0,
            table: Vec::new(),
            buffer: Vec::new(),
        }
    }

    pub fn set_seed(&mut self, seed: u128) {
        self.seed = halves(seed ^ BASE);
        self.index_anew();
    }

    pub fn len(&self) -> usize {
        self.places.len() - self.removed
    }

    pub fn get(&self, key: u128) -> Option<Remembered> {
        let (_, nth) = self.find(halves(key))?;
        self.read(&self.places[nth])
    }

    pub fn oldest_ms(&self) -> Option<u64> {
        self.places.front().and_then(|place| self.at_ms(place))
    }

    pub fn newest_ms(&self) -> Option<u64> {
        self.places.back().and_then(|place| self.at_ms(place))
    }

    /// Puts an answer at the end; a former one with this key is removed. One that is too old must not be there any more
    /// (see [`Ring::forget`]).
    pub fn push(&mut self, key: u128, remembered: Remembered) {
        self.take_out(key);
        if self.len() == REQUESTS_MAX {
            self.pop_first();
        }
        if self.places.len() == PLACES_MAX {
            self.pack();
        }
        if self.table.is_empty() {
            self.table = vec![0; SLOTS];
        }
        self.newest_ms = self.newest_ms.max(remembered.at_ms);
        let key = halves(key);
        let kept = self.kept(remembered);
        self.places.push_back(Place { key, kept });
        self.index(self.places.len() - 1);
    }

    /// Forgets the answers that are older than [`MEMORY_MS`].
    pub fn forget(&mut self, now_ms: u64) {
        let is_old = |at_ms: u64| at_ms.saturating_add(MEMORY_MS) <= now_ms;
        if self.newest_ms().is_some_and(is_old) {
            // All at once: a leader waits until all of a rush are old.
            self.removed = 0;
            self.places.clear();
            return self.give_back();
        }
        let before = self.places.len();
        while let Some(at_ms) = self.oldest_ms()
            && is_old(at_ms)
        {
            self.pop_first();
        }
        if self.places.len() < before {
            self.give_back();
        }
    }

    /// What was allocated for a rush goes after it, and all of it once nothing is remembered.
    fn give_back(&mut self) {
        let (len, capacity) = (self.places.len(), self.places.capacity());
        if len == 0 {
            (self.places, self.table) = (VecDeque::new(), Vec::new());
        } else if capacity > PLACES_KEPT && capacity >= len * 4 {
            self.places.shrink_to((len * 2).max(PLACES_KEPT));
        }
    }

    #[cfg(test)]
    pub fn allocated_bytes(&self) -> usize {
        self.places.capacity() * size_of::<Place>() + self.table.capacity() * size_of::<u32>()
    }

    pub fn remove(&mut self, key: u128) {
        self.take_out(key);
        if self.places.is_empty() {
            self.give_back();
        }
    }

    /// Its memory is kept: another one may come at once.
    fn take_out(&mut self, key: u128) {
        let Some((slot, nth)) = self.find(halves(key)) else {
            return;
        };
        self.empty_slot(slot);
        self.places[nth].kept = Kept::Removed;
        self.removed += 1;
        self.trim();
    }

    pub fn newest(&self) -> Option<(u128, Remembered)> {
        self.places.back().and_then(|place| self.pair(place))
    }

    /// From this one on, in order of time.
    pub fn iter_from(&self, nth: usize) -> impl Iterator<Item = (u128, Remembered)> {
        // Mostly none is removed, and nothing needs to be counted.
        let first = if self.removed == 0 { nth } else { 0 };
        let places = self.places.range(first.min(self.places.len())..);
        let live = places.filter(|place| !matches!(place.kept, Kept::Removed));
        live.skip(nth - first).filter_map(|place| self.pair(place))
    }

    fn pop_first(&mut self) {
        if let Some(place) = self.places.front()
            && let Some((slot, _)) = self.find(place.key)
        {
            self.empty_slot(slot);
        }
        self.pop_front();
        self.trim();
    }

    /// Removed places at the ends go.
    fn trim(&mut self) {
        let is_removed = |place: Option<&Place>| place.is_some_and(|it| it.is_removed());
        while is_removed(self.places.front()) {
            self.pop_front();
            self.removed -= 1;
        }
        while is_removed(self.places.back()) {
            self.places.pop_back();
            self.removed -= 1;
        }
    }

    fn pop_front(&mut self) {
        self.places.pop_front();
        self.first = (self.first + 1) % NUMBERS;
    }

    /// Takes the removed places out. At least as many answers came and went since the last time as there are places.
    fn pack(&mut self) {
        self.places.retain(|place| !place.is_removed());
        self.removed = 0;
        self.index_anew();
    }

    fn index_anew(&mut self) {
        self.table.fill(0);
        let live = (0..self.places.len()).filter(|nth| !self.places[*nth].is_removed());
        live.collect::<Vec<_>>()
            .into_iter()
            .for_each(|nth| self.index(nth));
    }

    /// The slot where the search for a key begins.
    fn home(&self, key: [u64; 2]) -> usize {
        let [high, low] = [0, 1].map(|half| u128::from(key[half] ^ self.seed[half]));
        let product = high * low;
        let folded = (product >> 64) as u64 ^ product as u64;
        (folded >> 32) as usize % SLOTS
    }

    /// The slot and the place of a key.
    fn find(&self, key: [u64; 2]) -> Option<(usize, usize)> {
        let mut slot = self.home(key);
        loop {
            let nth = self.nth(*self.table.get(slot)?)?;
            if self.places[nth].key == key {
                return Some((slot, nth));
            }
            slot = (slot + 1) % SLOTS;
        }
    }

    /// The place that is in a slot.
    fn nth(&self, in_slot: u32) -> Option<usize> {
        let number = in_slot.checked_sub(1)?;
        Some(((number + NUMBERS - self.first) % NUMBERS) as usize)
    }

    fn index(&mut self, nth: usize) {
        let mut slot = self.home(self.places[nth].key);
        while self.table[slot] != 0 {
            slot = (slot + 1) % SLOTS;
        }
        self.table[slot] = (self.first + nth as u32) % NUMBERS + 1;
    }

    /// Those behind it that would not be found any more move up.
    fn empty_slot(&mut self, mut empty: usize) {
        let distance = |from: usize, to: usize| (to + SLOTS - from) % SLOTS;
        let mut slot = (empty + 1) % SLOTS;
        while let Some(nth) = self.nth(self.table[slot]) {
            let home = self.home(self.places[nth].key);
            if distance(home, slot) >= distance(empty, slot) {
                self.table[empty] = self.table[slot];
                empty = slot;
            }
            slot = (slot + 1) % SLOTS;
        }
        self.table[empty] = 0;
    }

    fn kept(&mut self, remembered: Remembered) -> Kept {
        let Remembered {
            origin,
            at_ms,
            answer,
        } = remembered;
        self.buffer.clear();
        let mut to = Writer::after(std::mem::take(&mut self.buffer), NEWEST);
        answer.encode(&mut to);
        self.buffer = to.into_bytes();
        let (at, length) = (at_ms as u32, self.buffer.len());
        let mut encoded = [0; SHORT_MAX];
        match encoded.get_mut(..length) {
            Some(bytes) => {
                bytes.copy_from_slice(&self.buffer);
                Kept::Short {
                    at,
                    origin,
                    length: length as u8,
                    encoded,
                }
            }
            None => Kept::Long {
                at,
                origin,
                answer: Box::new(answer),
            },
        }
    }

    fn pair(&self, place: &Place) -> Option<(u128, Remembered)> {
        let [high, low] = place.key.map(u128::from);
        Some((high << 64 | low, self.read(place)?))
    }

    /// `None` of a removed one.
    fn read(&self, place: &Place) -> Option<Remembered> {
        let at_ms = self.at_ms(place)?;
        let (origin, answer) = match &place.kept {
            Kept::Removed => return None,
            Kept::Long { origin, answer, .. } => (*origin, Answer::clone(answer)),
            Kept::Short {
                origin,
                length,
                encoded,
                ..
            } => {
                let mut from = Reader::new(&encoded[..usize::from(*length)], NEWEST);
                (*origin, Answer::decode(&mut from).ok()?)
            }
        };
        Some(Remembered {
            origin,
            at_ms,
            answer,
        })
    }

    fn at_ms(&self, place: &Place) -> Option<u64> {
        let (Kept::Short { at, .. } | Kept::Long { at, .. }) = place.kept else {
            return None;
        };
        let before_newest = (self.newest_ms as u32).wrapping_sub(at);
        Some(self.newest_ms - u64::from(before_newest))
    }
}

impl Place {
    fn is_removed(&self) -> bool {
        matches!(self.kept, Kept::Removed)
    }
}

fn halves(number: u128) -> [u64; 2] {
    [(number >> 64) as u64, number as u64]
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
