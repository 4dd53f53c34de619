//! A log in memory that behaves like a disk, also like a bad one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nowserving_replica::{EntryReader, LogState, ReadFailed, Write};
use raft::eraftpb::Entry;

use crate::shard_log::{ShardLog, starting};
use crate::{LogError, LogStats, LogStore, read_failed};

/// The unsynced batches that survive a crash: a prefix, as all are in one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crash {
    /// The number of whole batches.
    pub keep_batches: usize,
    /// The number of shards whose writes in the next batch survive. The log on disk drops a torn batch
    /// whole, but replicas do not rely on that, as shards are independent.
    pub keep_shards: usize,
}

#[derive(Clone, Debug)]
enum Change {
    Write(Box<Write>),
    Compact { shard: u32, through: u64 },
}

type Shards = BTreeMap<u32, ShardLog<Entry>>;

#[derive(Debug, Default)]
struct Disk {
    /// As reads see it.
    seen: Shards,
    /// As the disk has it.
    durable: Shards,
    /// Batches that are not on disk yet, in order.
    unsynced: Vec<Vec<Change>>,
    /// The shard, index and term of a durable entry in which a bit has flipped.
    flipped: Option<(u32, u64, u64)>,
    stats: LogStats,
}

/// A log in memory, for tests and simulations.
#[derive(Debug, Default)]
pub struct MemoryLog {
    disk: Mutex<Disk>,
    /// Past this many bytes of entries, [`LogStore::purge`] names shards.
    bytes_max: Option<u64>,
}

/// About as many as the log on disk needs for it.
fn bytes(entry: &Entry) -> u64 {
    8 + (entry.data.len() + entry.context.len()) as u64
}

fn write_to(log: &mut ShardLog<Entry>, write: &Write) {
    if let Some(start) = &write.start {
        *log = ShardLog::from_state(starting(start));
    }
    if let Some(first) = write.entries.first() {
        assert!(
            log.truncate(first.index),
            "a write leaves a hole: {write:?}"
        );
        for entry in &write.entries {
            log.push(entry.term, entry.clone());
        }
    }
    if let Some(hard_state) = &write.hard_state {
        log.state.hard_state = hard_state.clone();
    }
}

fn compact(log: &mut ShardLog<Entry>, through: u64) {
    if let Some(state) = log.compacted(through) {
        log.compact(state.compact_index, state.compact_term);
    }
}

fn apply(shards: &mut Shards, change: &Change) {
    match change {
        Change::Write(write) => write_to(shards.entry(write.shard).or_default(), write),
        Change::Compact { shard, through } => compact(shards.entry(*shard).or_default(), *through),
    }
}

impl Disk {
    fn put(&mut self, batch: Vec<Change>) {
        for change in &batch {
            apply(&mut self.seen, change);
            self.stats.bytes_written += change_bytes(change);
        }
        self.unsynced.push(batch);
    }

    /// The shard and index of an entry that is damaged, unless it is gone meanwhile.
    fn damaged(&self) -> Option<(u32, u64)> {
        let (shard, index, term) = self.flipped?;
        let log = self.durable.get(&shard)?;
        let still_there = index > log.state.compact_index && log.term(index) == Some(term);
        still_there.then_some((shard, index))
    }

    fn check_damage(&self, shard: u32, low: u64, high: u64) -> Result<(), ReadFailed> {
        match self.damaged() {
            Some((of, index)) if of == shard && (low..high).contains(&index) => {
                let why = format!("entry {index} is damaged");
                Err(read_failed(shard, low, high, why))
            }
            _ => Ok(()),
        }
    }

    fn used_bytes(&self) -> u64 {
        let entries = self.seen.values().flat_map(|log| &log.entries);
        entries.map(|(_, entry)| bytes(entry)).sum()
    }

    fn sync(&mut self) {
        for change in self.unsynced.drain(..).flatten() {
            apply(&mut self.durable, &change);
        }
        self.stats.syncs += 1;
    }
}

fn change_bytes(change: &Change) -> u64 {
    match change {
        Change::Write(write) => 8 + write.entries.iter().map(bytes).sum::<u64>(),
        Change::Compact { .. } => 8,
    }
}

impl MemoryLog {
    pub fn new() -> MemoryLog {
        MemoryLog::default()
    }

    /// One that is over its size with more bytes of entries than this.
    pub fn with_size(bytes_max: u64) -> MemoryLog {
        MemoryLog {
            bytes_max: Some(bytes_max),
            ..MemoryLog::default()
        }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first half of [`LogStore::write`]: the batch can be read, but a crash may lose it.
    pub fn write_unsynced(&self, writes: &[Write]) {
        self.disk().put(
            writes
                .iter()
                .cloned()
                .map(Box::new)
                .map(Change::Write)
                .collect(),
        )
    }

    /// The second half: everything written so far survives crashes.
    pub fn sync(&self) {
        self.disk().sync();
    }

    /// The result of [`LogStore::load`] after a crash that loses everything unsynced.
    pub fn load_durable(&self, shard: u32) -> LogState {
        self.disk()
            .durable
            .get(&shard)
            .map_or_else(LogState::default, |log| log.state.clone())
    }

    /// A copy of what would survive a crash that loses everything unsynced.
    #[must_use]
    pub fn durable_copy(&self) -> MemoryLog {
        let durable = self.disk().durable.clone();
        MemoryLog {
            disk: Mutex::new(Disk {
                seen: durable.clone(),
                durable,
                ..Disk::default()
            }),
            bytes_max: self.bytes_max,
        }
    }

    /// Gives a shard this state, as if it was on disk.
    pub(crate) fn put(&self, shard: u32, state: LogState, entries: Vec<Entry>) {
        let mut log = ShardLog::from_state(LogState {
            last_index: state.compact_index,
            ..state
        });
        entries
            .into_iter()
            .for_each(|entry| log.push(entry.term, entry));
        let mut disk = self.disk();
        disk.durable.insert(shard, log.clone());
        disk.seen.insert(shard, log);
    }

    /// Takes over all shards of another log, as they would survive a crash.
    pub(crate) fn take_all(&self, from: &MemoryLog) {
        let from = from.disk();
        let mut disk = self.disk();
        disk.durable.extend(from.durable.clone());
        disk.seen.extend(from.durable.clone());
        disk.flipped = disk.flipped.or(from.flipped);
    }

    /// The parts of a log that is moved to so many, each of which has a shard in turn; as they would survive a crash.
    #[must_use]
    pub fn moved(parts: &[Arc<MemoryLog>], count: u32, bytes_max: u64) -> Vec<Arc<MemoryLog>> {
        let all = MemoryLog::new();
        parts.iter().for_each(|part| all.take_all(part));
        let all = all.disk();
        let part = |index| {
            let part = MemoryLog::with_size(bytes_max);
            let shards = all.durable.iter().filter(|it| it.0 % count == index);
            let shards: Shards = shards.map(|(shard, log)| (*shard, log.clone())).collect();
            {
                let mut disk = part.disk();
                disk.seen.clone_from(&shards);
                disk.durable = shards;
                disk.flipped = all.flipped.filter(|it| it.0 % count == index);
            }
            Arc::new(part)
        };
        (0..count).map(part).collect()
    }

    /// Batches that a crash may lose.
    pub fn unsynced(&self) -> usize {
        self.disk().unsynced.len()
    }

    /// The power fails and comes back.
    pub fn crash(&self, crash: Crash) {
        let mut disk = self.disk();
        let disk = &mut *disk;
        let batches = std::mem::take(&mut disk.unsynced);
        let whole = batches.iter().take(crash.keep_batches).flatten();
        let torn = batches
            .iter()
            .skip(crash.keep_batches)
            .take(1)
            .flat_map(|batch| batch.iter().take(crash.keep_shards));
        for change in whole.chain(torn) {
            apply(&mut disk.durable, change);
        }
        disk.seen = disk.durable.clone();
    }

    /// Flips a bit in one of the durable entries, chosen by `draw`. As with the log on disk, reading the
    /// entry fails, and so does the next start, as it checks all entries. Returns false if there is no
    /// entry.
    pub fn flip_bit(&self, draw: u64) -> bool {
        let mut disk = self.disk();
        let entries = disk
            .durable
            .iter()
            .flat_map(|(shard, log)| log.entries.iter().map(|(_, e)| (*shard, e.index, e.term)));
        let count = entries.clone().count() as u64;
        let chosen = draw.checked_rem(count).map(|nth| nth as usize);
        let flipped = chosen.and_then(|nth| entries.clone().nth(nth));
        disk.flipped = flipped;
        disk.flipped.is_some()
    }

    /// Entries as they were written, whatever has flipped since.
    ///
    /// # Errors
    /// There are no such entries.
    pub fn entries_as_written(
        &self,
        shard: u32,
        low: u64,
        high: u64,
    ) -> Result<Vec<Entry>, ReadFailed> {
        let disk = self.disk();
        let found = disk.seen.get(&shard).and_then(|log| log.range(low, high));
        let found = found.ok_or_else(|| read_failed(shard, low, high, "no such entries"))?;
        Ok(found.cloned().collect())
    }

    /// Undoes the flipped bit, as an operator does who restores the file.
    pub fn repair(&self) {
        self.disk().flipped = None;
    }
}

impl EntryReader for MemoryLog {
    fn entries(
        &self,
        shard: u32,
        low: u64,
        high: u64,
        max_bytes: u64,
    ) -> Result<Vec<Entry>, ReadFailed> {
        let disk = self.disk();
        let found = disk.seen.get(&shard).and_then(|log| log.range(low, high));
        let found = found.ok_or_else(|| read_failed(shard, low, high, "no such entries"))?;
        disk.check_damage(shard, low, high)?;
        let mut sum = 0;
        let fits = |entry: &&Entry| {
            sum += bytes(entry);
            sum <= max_bytes || entry.index == low
        };
        Ok(found.take_while(fits).cloned().collect())
    }

    fn term(&self, shard: u32, index: u64) -> Result<u64, ReadFailed> {
        let disk = self.disk();
        disk.check_damage(shard, index, index + 1)?;
        let term = disk.seen.get(&shard).and_then(|log| log.term(index));
        term.ok_or_else(|| read_failed(shard, index, index + 1, "no such entry"))
    }
}

impl LogStore for MemoryLog {
    fn load(&self, shard: u32) -> Result<LogState, LogError> {
        let disk = self.disk();
        if let Some((shard, index)) = disk.damaged() {
            return Err(LogError::Lost {
                dir: "memory".into(),
                what: format!("entry {index} of shard {shard} is damaged"),
            });
        }
        Ok(disk
            .seen
            .get(&shard)
            .map_or_else(LogState::default, |log| log.state.clone()))
    }

    fn write(&self, writes: &[Write]) -> Result<(), LogError> {
        self.write_unsynced(writes);
        if writes.iter().any(|write| write.must_sync) {
            self.sync();
        }
        Ok(())
    }

    fn write_if_short(&self, writes: &[Write]) -> Result<bool, LogError> {
        self.write(writes).map(|()| true)
    }

    fn compact(&self, shard: u32, through: u64) -> Result<(), LogError> {
        self.disk().put(vec![Change::Compact { shard, through }]);
        Ok(())
    }

    fn purge(&self) -> Result<Vec<u32>, LogError> {
        let disk = self.disk();
        let bytes = disk.used_bytes();
        let with_entries = disk.seen.iter().filter(|(_, log)| !log.entries.is_empty());
        Ok(match self.bytes_max.is_some_and(|max| bytes > max) {
            true => with_entries.map(|(shard, _)| *shard).collect(),
            false => Vec::new(),
        })
    }

    fn stats(&self) -> LogStats {
        let disk = self.disk();
        LogStats {
            used_bytes: disk.used_bytes(),
            ..disk.stats
        }
    }
}
