//! The log as raft sees it: the newest entries in memory, older ones through an [`EntryReader`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use protobuf::Message as _;
use raft::eraftpb::{Entry, HardState, Snapshot};
use raft::storage::GetEntriesContext;
use raft::{RaftState, Storage, StorageError};

use crate::terms::Terms;
use crate::{ConfState, LogState, ReadFailed, SnapshotMeta};

/// Reads entries that are no longer in a replica's memory. The replica asks only for entries that were
/// reported as persisted and are not compacted.
pub trait EntryReader: Send + Sync {
    /// The entries from `low` up to, not including, `high`: at least one, then as many as stay within
    /// `max_bytes` (encoded) together.
    ///
    /// # Errors
    /// If any of them is missing or can't be read. [`crate::Replica::ready`] returns it then.
    fn entries(
        &self,
        shard: u32,
        low: u64,
        high: u64,
        max_bytes: u64,
    ) -> Result<Vec<Entry>, ReadFailed>;

    /// The term of one entry.
    ///
    /// # Errors
    /// If it is missing or can't be read.
    fn term(&self, shard: u32, index: u64) -> Result<u64, ReadFailed>;
}

/// Persisted entries kept in memory for each shard: enough for peers that lag by a moment.
const TAIL_BYTES: u64 = 1 << 20;
/// The limit of bytes read from disk for peers that lag further, per shard and turn. Without it a leader
/// loads 16 MiB a shard in one turn for a peer that returns after an hour.
const DISK_BYTES_PER_TURN: u64 = 512 << 10;
/// The limit of entries asked for in one read from disk: a reader may allocate for the range, not for the
/// result.
const DISK_ENTRIES_PER_READ: u64 = 1024;
/// The limit of sends that wait for the next turn; the next heartbeat's answer brings others back.
const MAX_DEFERRED: usize = 16;

pub(crate) struct Store {
    shard: u32,
    reader: Arc<dyn EntryReader>,
    initial: RaftState,
    compact_index: u64,
    last_index: u64,
    terms: Terms,
    /// The last entries of the log, without gaps; all that are not persisted yet are among them.
    tail: VecDeque<Entry>,
    tail_bytes: u64,
    disk_budget_bytes: Cell<u64>,
    deferred: RefCell<Vec<GetEntriesContext>>,
    /// This node's newest snapshot, as peers are told of it.
    offer: Option<Snapshot>,
    /// A peer needed a snapshot when there was none.
    snapshot_wanted: Cell<bool>,
    /// The first read that failed. Raft would panic on the error without saying which entries of which
    /// shard, so it is kept here and raft gets no entries instead.
    failed: RefCell<Option<ReadFailed>>,
}

fn size(entry: &Entry) -> u64 {
    u64::from(entry.compute_size())
}

impl Store {
    pub fn open(
        shard: u32,
        reader: Arc<dyn EntryReader>,
        log: &LogState,
        hard_state: HardState,
        conf_state: ConfState,
    ) -> Result<Store, ReadFailed> {
        let terms = Terms::load(
            reader.as_ref(),
            shard,
            (log.compact_index, log.compact_term),
            log.last_index,
        )?;
        Ok(Store {
            shard,
            reader,
            initial: RaftState::new(hard_state, conf_state.into()),
            compact_index: log.compact_index,
            last_index: log.last_index,
            terms,
            tail: VecDeque::new(),
            tail_bytes: 0,
            disk_budget_bytes: Cell::new(DISK_BYTES_PER_TURN),
            deferred: RefCell::default(),
            offer: None,
            snapshot_wanted: Cell::new(false),
            failed: RefCell::default(),
        })
    }

    pub fn last_index(&self) -> u64 {
        self.last_index
    }

    pub fn compact_index(&self) -> u64 {
        self.compact_index
    }

    /// The term at `index`, if the log reaches there and is not compacted past it.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        if index > self.last_index {
            None
        } else {
            self.terms.get(index)
        }
    }

    /// Puts entries at the end, in place of all from the first one's index on.
    pub fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        while self
            .tail
            .back()
            .is_some_and(|entry| entry.index >= first.index)
        {
            if let Some(entry) = self.tail.pop_back() {
                self.tail_bytes -= size(&entry);
            }
        }
        for entry in entries {
            self.terms.append(entry.index, entry.term);
            self.tail_bytes += size(entry);
            self.tail.push_back(entry.clone());
            self.last_index = entry.index;
        }
    }

    /// Drops old entries from memory that are on disk: those through `persisted`.
    pub fn evict(&mut self, persisted: u64) {
        while self.tail_bytes > TAIL_BYTES
            && self
                .tail
                .front()
                .is_some_and(|entry| entry.index <= persisted)
        {
            self.drop_first();
        }
    }

    /// Drops everything through `index`, except its term.
    pub fn compact(&mut self, index: u64) {
        self.compact_index = index;
        self.terms.compact(index);
        while self.tail.front().is_some_and(|entry| entry.index <= index) {
            self.drop_first();
        }
    }

    /// Begins anew behind a snapshot.
    pub fn reset(&mut self, index: u64, term: u64) {
        self.compact_index = index;
        self.last_index = index;
        self.terms = Terms::new(index, term);
        self.tail.clear();
        self.tail_bytes = 0;
    }

    /// Peers that need a snapshot are told of this one from now on.
    pub fn offer(&mut self, snapshot: Snapshot) {
        self.offer = Some(snapshot);
    }

    /// Whether a peer needed a snapshot since the last call, and there was none.
    pub fn take_snapshot_wanted(&mut self) -> bool {
        self.snapshot_wanted.take()
    }

    fn drop_first(&mut self) {
        if let Some(entry) = self.tail.pop_front() {
            self.tail_bytes -= size(&entry);
        }
    }

    /// Begins a turn. Returns the sends that waited for it.
    pub fn next_turn(&mut self) -> Vec<GetEntriesContext> {
        self.disk_budget_bytes.set(DISK_BYTES_PER_TURN);
        self.deferred.take()
    }

    /// Whether the next turn has sends to make.
    pub fn has_news(&self) -> bool {
        !self.deferred.borrow().is_empty() || self.failed.borrow().is_some()
    }

    /// The first read that failed since the last turn.
    pub fn take_failed(&mut self) -> Option<ReadFailed> {
        self.failed.take()
    }

    /// Bytes of entries kept in memory.
    pub fn tail_bytes(&self) -> u64 {
        self.tail_bytes
    }

    /// Reads entries that are not in memory, from `low` up to `high`.
    fn read_disk(&self, low: u64, high: u64, max_bytes: u64) -> Result<Vec<Entry>, ReadFailed> {
        let entries = self.reader.entries(self.shard, low, high, max_bytes)?;
        let consecutive = entries
            .iter()
            .zip(low..high)
            .all(|(entry, index)| entry.index == index);
        if entries.is_empty() || !consecutive || entries.len() as u64 > high - low {
            let cause = "the log returned other entries than asked for".into();
            return Err(ReadFailed {
                shard: self.shard,
                low,
                high,
                cause,
            });
        }
        Ok(entries)
    }
}

impl Storage for Store {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(self.initial.clone())
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.compact_index {
            return Err(StorageError::Compacted.into());
        }
        if high > self.last_index + 1 {
            return Err(StorageError::Unavailable.into());
        }
        let max_bytes = max_size.into().unwrap_or(u64::MAX);
        let tail_first = self.last_index + 1 - self.tail.len() as u64;
        let mut entries = Vec::new();
        let mut bytes = 0;
        let mut next = low;
        if low < tail_first {
            let for_peer = context.can_async();
            if for_peer && self.disk_budget_bytes.get() == 0 {
                let mut deferred = self.deferred.borrow_mut();
                if deferred.len() < MAX_DEFERRED {
                    deferred.push(context);
                }
                return Err(StorageError::LogTemporarilyUnavailable.into());
            }
            let mut disk_high = high.min(tail_first);
            if max_bytes != u64::MAX {
                // Raft asks for more when it gets less; but where it gives no limit it needs all.
                disk_high = disk_high.min(low + DISK_ENTRIES_PER_READ);
            }
            entries = match self.read_disk(low, disk_high, max_bytes) {
                Ok(entries) => entries,
                Err(failed) => {
                    self.failed.borrow_mut().get_or_insert(failed);
                    return match for_peer {
                        true => Err(StorageError::LogTemporarilyUnavailable.into()),
                        false => Ok(Vec::new()),
                    };
                }
            };
            bytes = entries.iter().map(size).sum();
            next += entries.len() as u64;
            if for_peer {
                self.disk_budget_bytes
                    .set(self.disk_budget_bytes.get().saturating_sub(bytes.max(1)));
            }
            if next < tail_first {
                return Ok(entries);
            }
        }
        for entry in self
            .tail
            .range((next - tail_first) as usize..)
            .take((high - next) as usize)
        {
            bytes += size(entry);
            if bytes > max_bytes && !entries.is_empty() {
                break;
            }
            entries.push(entry.clone());
        }
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index > self.last_index {
            return Err(StorageError::Unavailable.into());
        }
        self.terms
            .get(index)
            .ok_or_else(|| StorageError::Compacted.into())
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.compact_index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last_index)
    }

    /// Raft panics on any other error than this one, and asks again after the peer's next answer. A new
    /// member can't use a snapshot that is older than its membership.
    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        let fits = |it: &&Snapshot| {
            let meta = SnapshotMeta::from(it.get_metadata().clone());
            meta.index >= request_index && meta.conf_state.nodes().any(|member| member == to)
        };
        let offer = self.offer.as_ref().filter(fits);
        offer.cloned().ok_or_else(|| {
            self.snapshot_wanted.set(true);
            StorageError::SnapshotTemporarilyUnavailable.into()
        })
    }
}
