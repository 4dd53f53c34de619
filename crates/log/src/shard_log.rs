//! The log of a shard: entries, or where they are, and the rest of its state.

use std::collections::{BTreeMap, VecDeque};

use nowserving_replica::{LogState, SnapshotMeta, Write};

use crate::format::{self, Record};

/// Where an entry is on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub segment: u32,
    pub offset: u32,
    pub len: u32,
    /// The checksum of its bytes when they were written, or checked with their batch, which is not read whole again.
    pub sum: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ShardLog<T> {
    pub state: LogState,
    /// The entries begin after this one: past the compacted ones only while segments are read, where the log was
    /// compacted further later, and the segments before deleted.
    base: u64,
    /// Each with its term.
    pub entries: VecDeque<(u64, T)>,
}

impl<T> ShardLog<T> {
    /// One without entries.
    pub fn from_state(state: LogState) -> ShardLog<T> {
        ShardLog {
            base: state.last_index,
            state,
            entries: VecDeque::new(),
        }
    }

    /// Whether all entries there should be are there.
    pub fn is_whole(&self) -> bool {
        self.base == self.state.compact_index
    }

    /// Drops the entries from `first` on. False: there is a hole before it.
    pub fn truncate(&mut self, first: u64) -> bool {
        let Some(before) = first.checked_sub(1) else {
            return false;
        };
        let fits = (self.state.compact_index..=self.state.last_index).contains(&before);
        if fits {
            self.entries
                .truncate(before.saturating_sub(self.base) as usize);
            self.base = self.base.min(before);
            self.state.last_index = before;
        }
        fits
    }

    pub fn push(&mut self, term: u64, entry: T) {
        self.entries.push_back((term, entry));
        self.state.last_index += 1;
    }

    pub fn term(&self, index: u64) -> Option<u64> {
        if index == self.state.compact_index {
            return Some(self.state.compact_term);
        }
        let nth = index.checked_sub(self.base.checked_add(1)?)?;
        self.entries.get(nth as usize).map(|(term, _)| *term)
    }

    /// The entries from `low` up to `high`, if all are there, and at least one.
    pub fn range(&self, low: u64, high: u64) -> Option<impl Iterator<Item = &T>> {
        let there = low > self.base && low < high && high <= self.state.last_index + 1;
        let nth = |index: u64| (index - self.base - 1) as usize;
        there.then(|| {
            self.entries
                .range(nth(low)..nth(high))
                .map(|(_, entry)| entry)
        })
    }

    /// The state without the entries through `through`, if any of them is there.
    pub fn compacted(&self, through: u64) -> Option<LogState> {
        let compact_index = through.min(self.state.last_index);
        let compact_term = self.term(compact_index)?;
        (compact_index > self.state.compact_index).then(|| LogState {
            compact_index,
            compact_term,
            ..self.state.clone()
        })
    }

    /// Drops the entries through `through`, whose term is this.
    pub fn compact(&mut self, through: u64, term: u64) {
        let dropped = through.saturating_sub(self.base) as usize;
        self.entries.drain(..dropped.min(self.entries.len()));
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(2 * self.entries.len());
        }
        self.base = self.base.max(through);
        (self.state.compact_index, self.state.compact_term) = (through, term);
    }
}

impl ShardLog<Place> {
    /// Takes over what a batch says, whose `records` are in `segment` at `offset`.
    ///
    /// # Errors
    /// What is wrong with it, although its checksum holds.
    fn apply(
        &mut self,
        segment: u32,
        offset: usize,
        records: &[u8],
        record: Record,
    ) -> Result<(), &'static str> {
        if let Some(state) = record.state {
            if state.start != self.state.start || state.last_index != self.state.last_index {
                *self = ShardLog::from_state(state);
            } else if state.compact_index > self.state.last_index {
                return Err("more was compacted than there is");
            } else if state.compact_index > self.state.compact_index {
                self.compact(state.compact_index, state.compact_term);
            }
        }
        if let Some(hard_state) = record.hard_state {
            self.state.hard_state = hard_state;
        }
        let first = record.first;
        if !record.entries.is_empty() && (first > u64::MAX / 2 || !self.truncate(first)) {
            return Err("entries leave a hole in the log");
        }
        for (term, at) in record.entries {
            let place = Place {
                segment,
                offset: (offset + at.start) as u32,
                len: at.len() as u32,
                sum: crc32fast::hash(&records[at]),
            };
            self.push(term, place);
        }
        Ok(())
    }
}

/// The state of a log that begins behind a snapshot.
pub(crate) fn starting(start: &SnapshotMeta) -> LogState {
    LogState {
        compact_index: start.index,
        compact_term: start.term,
        last_index: start.index,
        start: start.clone(),
        ..LogState::default()
    }
}

/// The logs of all shards.
pub(crate) type Index = BTreeMap<u32, ShardLog<Place>>;

/// Whether none of these writes leaves a hole in its shard's log.
pub(crate) fn fit(index: &Index, writes: &[Write]) -> bool {
    let mut bounds = BTreeMap::new();
    writes.iter().all(|write| {
        let (compacted, last) = bounds.entry(write.shard).or_insert_with(|| {
            let state = index.get(&write.shard).map(|log| &log.state);
            state.map_or((0, 0), |it| (it.compact_index, it.last_index))
        });
        if let Some(start) = &write.start {
            (*compacted, *last) = (start.index, start.index);
        }
        let Some(first) = write.entries.first() else {
            return true;
        };
        let fits = (*compacted..=*last).contains(&first.index.wrapping_sub(1));
        *last = first.index.wrapping_add(write.entries.len() as u64 - 1);
        fits
    })
}

/// Takes over what a batch says, whose `records` are in `segment` at `offset`.
///
/// # Errors
/// What is wrong with them, although their checksum holds.
pub(crate) fn apply(
    index: &mut Index,
    segment: u32,
    offset: usize,
    records: &[u8],
) -> Result<(), &'static str> {
    for record in format::records(records) {
        let record = record.map_err(|malformed| malformed.0)?;
        let log = index.entry(record.shard).or_default();
        log.apply(segment, offset, records, record)?;
    }
    Ok(())
}
