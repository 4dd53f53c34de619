//! Snapshots of this node's own, and the compaction of the log through them.
//!
//! The log keeps what some member lacks, up to its bound, `log_bytes_max`: past that it keeps nothing for a member
//! that is away. While a member fetches a snapshot or catches up behind it, its leader makes no newer one in its
//! place, and so keeps the log behind it, up to twice the bound.

use nowserving_replica::{Replica, SnapshotMeta};
use nowserving_shard::clock::Micros;

use super::file::SnapshotFile;
use crate::io::Output;

/// After a snapshot that could not be written (the disk is full?) the next try is this much later. A node that lacks
/// dropped entries waits for it.
const RETRY_MIN_US: Micros = 1_000_000;
/// The pause doubles with each further failure, up to this: a try costs as much as a snapshot.
const RETRY_MAX_US: Micros = 10_000_000;

/// The size of a node's log, as far as a shard keeps old files of it alive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LogSize {
    /// Within its bound, or others keep the files.
    #[default]
    Fits,
    Over,
    OverTwice,
}

/// When a snapshot may be tried again.
#[derive(Debug, Clone, Copy, Default)]
struct Retry {
    /// Since a snapshot was written.
    failures: u32,
    not_before: Micros,
}

impl Retry {
    fn after_failure(self, now: Micros) -> Retry {
        let pause_us = RETRY_MIN_US << self.failures.min(8);
        Retry {
            failures: self.failures.saturating_add(1),
            not_before: now + pause_us.min(RETRY_MAX_US),
        }
    }
}

/// The newest snapshot on this node's disk, and the next one.
#[derive(Debug, Default)]
pub(crate) struct OwnSnapshot {
    /// The last entry in it.
    index: u64,
    file: Option<SnapshotFile>,
    /// One is being written.
    under_way: bool,
    /// A peer needed one when there was none.
    wanted: bool,
    retry: Retry,
    /// An operator wants one that has this entry.
    backup_index: u64,
    log_size: LogSize,
    /// Every voter has the log through this index, according to the newest entry that says so.
    compact_floor: u64,
}

impl OwnSnapshot {
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Its file, if that has this digest.
    pub fn file_of(&self, digest: &[u8]) -> Option<SnapshotFile> {
        self.file.filter(|file| file.digest[..] == *digest)
    }

    pub fn file(&self) -> Option<SnapshotFile> {
        self.file
    }

    pub fn is_under_way(&self) -> bool {
        self.under_way
    }

    pub fn want(&mut self, wanted: bool) {
        self.wanted |= wanted;
    }

    pub fn raise_compact_floor(&mut self, index: u64) {
        self.compact_floor = self.compact_floor.max(index);
    }

    /// An operator wants this entry in a snapshot. Returns whether it is in the newest one.
    pub fn back_up(&mut self, index: u64) -> bool {
        self.backup_index = self.backup_index.max(index);
        self.index >= index
    }

    /// Whether one is due for a log that is applied through `applied`. `held`: a peer needs the one that is there.
    pub fn is_due(
        &self,
        shard: u32,
        applied: u64,
        entries: u64,
        held: impl Fn() -> bool,
        now: Micros,
    ) -> bool {
        let since = applied.saturating_sub(self.index);
        let for_backup = self.backup_index > self.index;
        let early = self.log_size > LogSize::Fits || self.wanted;
        let wanted = since >= entries || (early && since > 0) || for_backup;
        let may = !self.under_way && now >= self.retry.not_before;
        wanted && may && !(held() && self.may_be_held(shard))
    }

    /// Whether the snapshot on disk may stay for a peer.
    fn may_be_held(&self, shard: u32) -> bool {
        let too_much = self.log_size == LogSize::OverTwice;
        if too_much {
            tracing::warn!(
                shard,
                "the log has twice its bound while a node catches up by snapshot: that node needs another \
                 one. Raise log_bytes_max"
            );
        }
        !too_much
    }

    /// A snapshot is to be written, of what is applied.
    pub fn write(&mut self, shard: u32, replica: &Replica) -> Output {
        self.under_way = true;
        self.wanted = false;
        Output::WriteSnapshot {
            shard,
            index: replica.applied(),
            members: replica.members(),
        }
    }

    /// It is on disk, if that did not fail. Returns through which entry the log can go.
    pub fn written(
        &mut self,
        written: Option<(SnapshotMeta, SnapshotFile)>,
        replica: &mut Replica,
        now: Micros,
    ) -> Option<u64> {
        self.under_way = false;
        let Some((meta, file)) = written else {
            self.retry = self.retry.after_failure(now);
            return None;
        };
        self.retry = Retry::default();
        self.on_disk(meta, file, replica);
        let through = self.compact(replica);
        self.log_size = LogSize::Fits;
        Some(through)
    }

    /// The log keeps old files alive. Returns through which entry it can go.
    pub fn pinned(&mut self, size: LogSize, replica: &mut Replica) -> u64 {
        self.log_size = size;
        self.compact(replica)
    }

    /// This is the snapshot on disk now, and peers may have it.
    pub fn on_disk(&mut self, meta: SnapshotMeta, file: SnapshotFile, replica: &mut Replica) {
        self.index = meta.index;
        self.file = Some(file);
        replica.offer_snapshot(meta, file.to_data());
    }

    /// Compacts the log through the snapshot on disk: as far as no peer needs it, or, if the log is over its
    /// bound, whatever a peer lacks.
    fn compact(&mut self, replica: &mut Replica) -> u64 {
        replica.compact(match self.log_size {
            LogSize::Fits => self.index.min(self.compact_floor),
            LogSize::Over | LogSize::OverTwice => self.index,
        })
    }
}
