//! The entries of a journal, oldest first and packed: some 14 bytes each instead of 72, as there are many and they are
//! seldom read.
//!
//! An entry is written as [`nowserving_codec`] writes it, with its version and times as differences to the entry before, in
//! blocks of 32, each of which can be read without the others. These bytes are never stored.

use std::collections::VecDeque;
use std::fmt;

use nowserving_codec::{Codec, Reader, Writer};

use crate::journal::JournalEntry;
use crate::seldom::Seldom;
use crate::{Entered, Journaled, Timestamp};

/// The entries of each block but the last.
const BLOCK: usize = 32;
/// Most take fewer.
const ENTRY_BYTES: usize = 24;
/// Bytes that no other build reads have all that any format has.
const EVERY_FORMAT: u32 = u32::MAX;

#[derive(Default, Clone)]
pub(crate) struct Entries(Seldom<Packed>);

#[derive(Default, Clone)]
struct Packed {
    blocks: VecDeque<Block>,
    /// So many entries of the first block are dropped.
    dropped: usize,
    count: usize,
    /// Of the last block.
    last: Last,
}

#[derive(Default, Clone)]
struct Block {
    bytes: Vec<u8>,
    count: usize,
    newest_version: u64,
}

/// What the next entry of a block is the difference to.
#[derive(Default, Clone, Copy)]
struct Last {
    version: u64,
    at_ms: u64,
    entered_ms: u64,
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.cursor(0)).finish()
    }
}

impl Entries {
    pub(crate) fn len(&self) -> usize {
        self.0.get().map_or(0, |packed| packed.count)
    }

    pub(crate) fn push(&mut self, entry: JournalEntry) {
        self.0.get_mut().push(entry);
    }

    pub(crate) fn pop_front(&mut self) {
        self.0.get_mut().pop_front();
    }

    /// The version of the oldest entry.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let packed = self.0.get()?;
        let first = packed.block(0).nth(packed.dropped)?;
        Some(first.version)
    }

    /// How many are not newer than this version.
    pub(crate) fn until(&self, version: u64) -> usize {
        let Some(packed) = self.0.get() else { return 0 };
        let before = |block: &Block| block.newest_version <= version;
        let blocks = packed.blocks.partition_point(before);
        if blocks == packed.blocks.len() {
            return packed.count;
        }
        let in_block = packed.block(blocks);
        let within = in_block
            .take_while(|entry| entry.version <= version)
            .count();
        (blocks * BLOCK + within).saturating_sub(packed.dropped)
    }

    pub(crate) fn has(&self, version: u64) -> bool {
        let place = version.checked_sub(1).map(|before| self.until(before));
        let entry = place.and_then(|place| self.cursor(place).peek());
        entry.is_some_and(|entry| entry.version == version)
    }

    /// From this place on, 0 being the oldest.
    pub(crate) fn cursor(&self, place: usize) -> Cursor<'_> {
        Cursor {
            of: self,
            next: place.min(self.len()),
            end: self.len(),
            ahead: Decoded::default(),
            behind: Decoded::default(),
        }
    }

    pub(crate) fn change(&mut self, change: impl Fn(&mut JournalEntry)) {
        let mut changed = Self::default();
        for mut entry in self.cursor(0) {
            change(&mut entry);
            changed.push(entry);
        }
        *self = changed;
    }
}

impl Packed {
    fn push(&mut self, entry: JournalEntry) {
        if self.blocks.back().is_none_or(|last| last.count == BLOCK) {
            if self.blocks.len() == self.blocks.capacity() {
                self.blocks.reserve_exact((self.blocks.len() / 2).max(1));
            }
            if let Some(full) = self.blocks.back_mut() {
                full.bytes.shrink_to_fit();
            }
            self.blocks.push_back(Block::default());
            self.last = Last::default();
        }
        let Some(block) = self.blocks.back_mut() else {
            return;
        };
        let mut bytes = std::mem::take(&mut block.bytes);
        if bytes.capacity() - bytes.len() < ENTRY_BYTES {
            bytes.reserve_exact(ENTRY_BYTES.max(bytes.len() / 4));
        }
        let mut to = Writer::after(bytes, EVERY_FORMAT);
        relative(entry, self.last).encode(&mut to);
        block.bytes = to.into_bytes();
        block.count += 1;
        block.newest_version = entry.version;
        self.last.follow(&entry);
        self.count += 1;
    }

    fn pop_front(&mut self) {
        self.dropped += 1;
        self.count -= 1;
        if self
            .blocks
            .front()
            .is_some_and(|it| it.count == self.dropped)
        {
            self.blocks.pop_front();
            self.dropped = 0;
        }
    }

    /// All entries of a block, those that are dropped too.
    fn block(&self, block: usize) -> impl Iterator<Item = JournalEntry> {
        let block = self.blocks.get(block);
        let bytes = block.map_or(&[][..], |block| &block.bytes);
        let mut from = Reader::new(bytes, EVERY_FORMAT);
        let mut last = Last::default();
        std::iter::from_fn(move || {
            let entry = absolute(JournalEntry::decode(&mut from).ok()?, last);
            last.follow(&entry);
            Some(entry)
        })
    }
}

impl Last {
    fn follow(&mut self, entry: &JournalEntry) {
        (self.version, self.at_ms) = (entry.version, entry.at_ms);
        if let Journaled::Token { entered, .. } = entry.what {
            self.entered_ms = entered.at.service_ms;
        }
    }
}

fn relative(mut entry: JournalEntry, last: Last) -> JournalEntry {
    let (version, at_ms) = (entry.version, entry.at_ms);
    if let Journaled::Token { entered, .. } = &mut entry.what {
        *entered = Entered {
            at: Timestamp {
                service_ms: difference(entered.at.service_ms, last.entered_ms),
                wall_ms: difference(entered.at.wall_ms, at_ms),
            },
            version: version.wrapping_sub(entered.version),
        };
    }
    entry.version = version.wrapping_sub(last.version);
    entry.at_ms = difference(at_ms, last.at_ms);
    entry
}

/// The inverse of [`relative`].
fn absolute(mut entry: JournalEntry, last: Last) -> JournalEntry {
    entry.version = last.version.wrapping_add(entry.version);
    entry.at_ms = sum(last.at_ms, entry.at_ms);
    let (version, at_ms) = (entry.version, entry.at_ms);
    if let Journaled::Token { entered, .. } = &mut entry.what {
        *entered = Entered {
            at: Timestamp {
                service_ms: sum(last.entered_ms, entered.at.service_ms),
                wall_ms: sum(at_ms, entered.at.wall_ms),
            },
            version: version.wrapping_sub(entered.version),
        };
    }
    entry
}

/// Small for times that are near each other, whichever is later.
fn difference(to: u64, from: u64) -> u64 {
    let difference = to.wrapping_sub(from) as i64;
    ((difference << 1) ^ (difference >> 63)) as u64
}

fn sum(from: u64, difference: u64) -> u64 {
    from.wrapping_add((difference >> 1) ^ (difference & 1).wrapping_neg())
}

/// Reads entries from both ends, a block at a time.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    of: &'a Entries,
    next: usize,
    end: usize,
    ahead: Decoded,
    behind: Decoded,
}

#[derive(Default, Clone)]
struct Decoded {
    block: usize,
    entries: Vec<JournalEntry>,
}

impl Decoded {
    fn get(&mut self, of: &Entries, place: usize) -> Option<JournalEntry> {
        let packed = of.0.get()?;
        let place = packed.dropped + place;
        let block = place / BLOCK;
        if self.entries.is_empty() || self.block != block {
            *self = Self {
                block,
                entries: packed.block(block).collect(),
            };
        }
        self.entries.get(place % BLOCK).copied()
    }
}

impl Cursor<'_> {
    pub(crate) fn left(&self) -> usize {
        self.end - self.next
    }

    /// The next entry.
    pub(crate) fn peek(&mut self) -> Option<JournalEntry> {
        self.peek_nth(0)
    }

    pub(crate) fn peek_nth(&mut self, nth: usize) -> Option<JournalEntry> {
        let place = self.next + nth;
        (place < self.end).then(|| self.ahead.get(self.of, place))?
    }

    pub(crate) fn peek_back(&mut self) -> Option<JournalEntry> {
        let place = self.end.checked_sub(1).filter(|it| *it >= self.next)?;
        self.behind.get(self.of, place)
    }

    pub(crate) fn skip_next(&mut self, count: usize) {
        self.next = (self.next + count).min(self.end);
    }
}

impl Iterator for Cursor<'_> {
    type Item = JournalEntry;

    fn next(&mut self) -> Option<JournalEntry> {
        let entry = self.peek()?;
        self.next += 1;
        Some(entry)
    }
}

impl DoubleEndedIterator for Cursor<'_> {
    fn next_back(&mut self) -> Option<JournalEntry> {
        let entry = self.peek_back()?;
        self.end -= 1;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;
    use crate::JournaledToken;

    fn entry(version: u64, [at_ms, service_ms, wall_ms, token]: [u64; 4]) -> JournalEntry {
        let what = match token % 3 {
            0 => Journaled::QuotaRenewed,
            _ => Journaled::Token {
                lane: 3,
                token,
                entered: Entered {
                    at: Timestamp {
                        service_ms,
                        wall_ms,
                    },
                    version: version / 2,
                },
                what: JournaledToken::Entered { position: token },
            },
        };
        JournalEntry {
            version,
            at_ms,
            what,
        }
    }

    proptest! {
        #[test]
        fn as_a_plain_list_has_it(
            numbers in prop::collection::vec(any::<[u64; 4]>(), 1..200),
            near in any::<bool>(),
            drop_every in 2_usize..5,
            probe in 0_u64..500,
        ) {
            let (mut packed, mut plain) = (Entries::default(), VecDeque::new());
            for (nth, numbers) in numbers.into_iter().enumerate() {
                let numbers = if near { numbers.map(|it| it >> 50) } else { numbers };
                let entry = entry(nth as u64 * 2 + 1, numbers);
                packed.push(entry);
                plain.push_back(entry);
                if nth % drop_every == 0 {
                    packed.pop_front();
                    plain.pop_front();
                }
            }
            prop_assert_eq!(packed.len(), plain.len());
            prop_assert!(packed.cursor(0).eq(plain.iter().copied()));
            prop_assert!(packed.cursor(0).rev().eq(plain.iter().rev().copied()));
            prop_assert_eq!(packed.oldest(), plain.front().map(|it| it.version));
            let until = plain.iter().filter(|it| it.version <= probe).count();
            prop_assert_eq!(packed.until(probe), until);
            prop_assert_eq!(packed.has(probe), plain.iter().any(|it| it.version == probe));
            let rest = packed.cursor(until);
            prop_assert_eq!(rest.left(), plain.len() - until);
            prop_assert!(rest.eq(plain.iter().skip(until).copied()));
            packed.change(|entry| entry.at_ms = entry.at_ms.saturating_add(7));
            let changed = plain.iter().map(|it| it.at_ms.saturating_add(7));
            prop_assert!(packed.cursor(0).map(|it| it.at_ms).eq(changed));
        }
    }
}
