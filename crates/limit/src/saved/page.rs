//! Counters whose keys stand next to each other, in a row of bytes.
//!
//! Neighbours have equal domains and descriptors, so what all keys of a page begin with is there once. Then comes, for each
//! counter, in the order of their keys: a number, which is the length of the rest of its key and its kind; the rest of the
//! key; the counter. A counter is found by a look at all before it.

use std::cmp::Ordering;
use std::ops::Range;

use crate::packed::{Kind, Packed};

/// A page with more bytes, and more than one counter, is divided.
const BYTES_MAX: usize = 2_048;
/// Pages with fewer bytes than that together are joined.
const JOINED_MAX: usize = BYTES_MAX / 2;
/// With so much room it grows, in bytes.
const ROOM: usize = 96;

#[derive(Debug, Clone, Default)]
pub(super) struct Page {
    bytes: Vec<u8>,
    /// How many of the bytes are those that all keys begin with.
    prefix: u32,
    counters: u32,
}

/// Where one counter stands.
#[derive(Debug, Clone)]
pub(super) struct Record {
    all: Range<usize>,
    rest: Range<usize>,
    pub kind: Kind,
}

impl Record {
    fn packed(&self) -> Range<usize> {
        self.rest.end..self.all.end
    }
}

impl Page {
    pub fn is_empty(&self) -> bool {
        self.counters == 0
    }

    fn prefix(&self) -> &[u8] {
        &self.bytes[..self.prefix as usize]
    }

    fn rest(&self, record: &Record) -> &[u8] {
        &self.bytes[record.rest.clone()]
    }

    /// The bytes of the counter itself.
    pub fn packed(&self, record: &Record) -> &[u8] {
        &self.bytes[record.packed()]
    }

    pub fn records(&self) -> impl Iterator<Item = Record> {
        let mut at = self.prefix as usize;
        std::iter::from_fn(move || {
            let record = self.record(at)?;
            at = record.all.end;
            Some(record)
        })
    }

    fn record(&self, at: usize) -> Option<Record> {
        let (mut number, mut rest_at) = (0, at);
        for shift in (0..usize::BITS).step_by(7) {
            let byte = *self.bytes.get(rest_at)?;
            rest_at += 1;
            number |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        let kind = Kind::of_bits(number);
        let rest = rest_at..rest_at + (number >> Kind::BITS);
        Some(Record {
            all: at..rest.end + kind.width(),
            rest,
            kind,
        })
    }

    /// Writes the key of a counter.
    pub fn key(&self, record: &Record, to: &mut Vec<u8>) {
        to.clear();
        to.extend(self.prefix());
        to.extend(self.rest(record));
    }

    pub fn find(&self, key: &[u8]) -> Option<Record> {
        self.search(key.strip_prefix(self.prefix())?).ok()
    }

    /// By what follows the common beginning. If it is not there: the place at which it would be.
    fn search(&self, rest: &[u8]) -> Result<Record, usize> {
        for record in self.records() {
            match self.rest(&record).cmp(rest) {
                Ordering::Less => {}
                Ordering::Equal => return Ok(record),
                Ordering::Greater => return Err(record.all.start),
            }
        }
        Err(self.bytes.len())
    }

    /// Adds a counter, or replaces one.
    pub fn put(&mut self, key: &[u8], packed: &Packed) {
        if self.is_empty() {
            self.bytes = key.to_vec();
            self.prefix = key.len() as u32;
        }
        let common = common(self.prefix(), key);
        if common < self.prefix as usize {
            self.set_prefix(common);
        }
        let rest = &key[common..];
        let place = match self.search(rest) {
            Ok(record) => record.all,
            Err(at) => {
                self.counters += 1;
                at..at
            }
        };
        let (head, head_len) = head(rest.len(), packed.kind);
        let record = head[..head_len].iter().chain(rest).chain(packed.bytes());
        self.make_room(head_len + rest.len() + packed.bytes().len());
        self.bytes.splice(place, record.copied());
    }

    /// Writes a counter over one of its kind.
    pub fn write(&mut self, record: &Record, packed: &Packed) {
        self.bytes[record.packed()].copy_from_slice(packed.bytes());
    }

    pub fn remove(&mut self, record: &Record) {
        self.bytes.drain(record.all.clone());
        self.counters -= 1;
        if self.bytes.capacity() > self.bytes.len() + 4 * ROOM {
            self.bytes.shrink_to(self.bytes.len() + ROOM);
        }
    }

    fn make_room(&mut self, bytes: usize) {
        if self.bytes.capacity() < self.bytes.len() + bytes {
            self.bytes.reserve_exact(bytes + ROOM);
        }
    }

    pub fn is_too_large(&self) -> bool {
        self.bytes.len() - self.prefix as usize > BYTES_MAX && self.counters > 1
    }

    /// Takes the second half out, and returns it with a key up to which there is none of it, and all of the first half.
    pub fn divide(&mut self) -> (Box<[u8]>, Self) {
        let middle = self.bytes.len() / 2;
        // At least one stays, and at least one goes: the last one ends behind the middle.
        let mut goes = self.records().enumerate().skip(1);
        let first = goes.find(|(_, record)| record.all.end > middle);
        drop(goes);
        let Some((nth, first)) = first else {
            return (Box::default(), Self::default());
        };
        let last = self.records().nth(nth - 1);
        let last = last.map(|last| self.rest(&last)).unwrap_or_default();
        let rest = self.rest(&first);
        let bound = &rest[..rest.len().min(common(last, rest) + 1)];
        let bound = [self.prefix(), bound].concat().into();
        let mut second = Self {
            bytes: [self.prefix(), &self.bytes[first.all.start..]].concat(),
            prefix: self.prefix,
            counters: self.counters - nth as u32,
        };
        self.bytes.truncate(first.all.start);
        self.counters = nth as u32;
        self.set_longest_prefix();
        second.set_longest_prefix();
        (bound, second)
    }

    /// Whether it is so small that it may be joined with another one.
    pub fn is_small(&self) -> bool {
        self.bytes.len() < JOINED_MAX / 2
    }

    pub fn fits(&self, other: &Self) -> bool {
        self.bytes.len() + other.bytes.len() < JOINED_MAX
    }

    /// Appends a page whose keys are greater.
    pub fn append(&mut self, mut other: Self) {
        let common = common(self.prefix(), other.prefix());
        self.set_prefix(common);
        other.set_prefix(common);
        self.bytes.extend(&other.bytes[common..]);
        self.counters += other.counters;
    }

    fn set_longest_prefix(&mut self) {
        let mut records = self.records();
        let first = records.next();
        let last = records.last().or_else(|| first.clone());
        if let (Some(first), Some(last)) = (first, last) {
            let common = common(self.rest(&first), self.rest(&last));
            self.set_prefix(self.prefix as usize + common);
        }
    }

    /// Writes all anew with a common beginning of so many bytes.
    fn set_prefix(&mut self, prefix: usize) {
        let mut bytes = Vec::with_capacity(self.bytes.len() + ROOM);
        let mut key = Vec::new();
        for record in self.records() {
            self.key(&record, &mut key);
            if bytes.is_empty() {
                bytes.extend(&key[..prefix]);
            }
            let rest = &key[prefix..];
            let (head, head_len) = head(rest.len(), record.kind);
            bytes.extend(&head[..head_len]);
            bytes.extend(rest);
            bytes.extend(self.packed(&record));
        }
        if bytes.is_empty() {
            bytes.extend(&self.bytes[..prefix]);
        }
        self.bytes = bytes;
        self.prefix = prefix as u32;
    }
}

/// The number before a key's rest, and how many bytes it has.
fn head(rest: usize, kind: Kind) -> ([u8; 10], usize) {
    let mut number = rest << Kind::BITS | kind as usize;
    let (mut bytes, mut len) = ([0; 10], 0);
    while number >= 0x80 {
        bytes[len] = (number & 0x7f) as u8 | 0x80;
        number >>= 7;
        len += 1;
    }
    bytes[len] = number as u8;
    (bytes, len + 1)
}

/// How many bytes both begin with.
fn common(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}
