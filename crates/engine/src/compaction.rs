//! Snapshots of this node's own, and the compaction of the log through them.
//!
//! The log keeps what some member lacks, up to its bound, `log_bytes_max`: past that it keeps nothing for a member
//! that is away. While a member fetches a snapshot or catches up behind it, its leader makes no newer one in its
//! place, and so keeps the log behind it, up to twice the bound.

use nowserving_replica::SnapshotMeta;
use nowserving_shard::clock::Micros;
use nowserving_shard::leader_state::LeaderState;

use crate::engine::Engine;
use crate::io::Output;
use crate::shard::Shard;
use crate::snapshot_file::SnapshotFile;

/// Concurrent snapshots at most.
const SNAPSHOTS_MAX: usize = 4;
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
pub(crate) struct Retry {
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

impl Engine {
    /// Starts one snapshot at most.
    pub(crate) fn start_snapshot(&mut self, now: Micros) {
        let under_way = self.shards.values().filter(|shard| shard.snapshotting);
        if under_way.count() >= SNAPSHOTS_MAX {
            return;
        }
        let entries = self.config.snapshot_entries;
        let due = |shard: &&mut Shard| shard.snapshot_is_due(entries, now);
        if let Some(shard) = self.shards.values_mut().find(due) {
            shard.snapshotting = true;
            shard.snapshot_wanted = false;
            self.ctx.out.outputs.push(Output::WriteSnapshot {
                shard: shard.id,
                index: shard.replica.applied(),
                members: shard.replica.members(),
            });
        }
    }

    /// The log has so many bytes, which is over its bound, and these shards keep its oldest files alive: a
    /// snapshot of each is due, and their logs are compacted through it.
    pub(crate) fn files_pinned(&mut self, shards: &[u32], log_bytes: u64) {
        let size = match log_bytes > self.config.log_bytes_max.saturating_mul(2) {
            true => LogSize::OverTwice,
            false => LogSize::Over,
        };
        for id in shards {
            let Some(shard) = self.shards.get_mut(id) else {
                continue;
            };
            shard.log_size = size;
            // Followers learn the compact floor from an entry.
            let leader_state = shard.leader_state.as_mut();
            let stamp = leader_state.and_then(LeaderState::propose_stamp);
            shard.queue_own(stamp);
            let compact = shard.compact();
            self.ctx.out.outputs.push(compact);
        }
    }

    pub(crate) fn snapshot_written(
        &mut self,
        shard: u32,
        written: Option<(SnapshotMeta, SnapshotFile)>,
        now: Micros,
    ) {
        let Some(shard) = self.shards.get_mut(&shard) else {
            return;
        };
        shard.snapshotting = false;
        match written {
            Some((meta, file)) => {
                shard.snapshot_retry = Retry::default();
                shard.snapshot_on_disk(meta, file);
                let compact = shard.compact();
                shard.log_size = LogSize::Fits;
                self.ctx.out.outputs.push(compact);
            }
            None => shard.snapshot_retry = shard.snapshot_retry.after_failure(now),
        }
    }
}

impl Shard {
    fn snapshot_is_due(&self, entries: u64, now: Micros) -> bool {
        let since = self.replica.applied().saturating_sub(self.snapshot_index);
        let for_backup = self.backup_index > self.snapshot_index;
        let early = self.log_size > LogSize::Fits || self.snapshot_wanted;
        let wanted = since >= entries || (early && since > 0) || for_backup;
        // One that is fetched is newer than what could be made.
        let may =
            !self.snapshotting && self.receive.is_none() && now >= self.snapshot_retry.not_before;
        wanted && may && !self.keeps_file(now)
    }

    /// Whether the snapshot on disk must stay for a peer.
    fn keeps_file(&self, now: Micros) -> bool {
        if !self.snapshot_sends.hold_file(now) {
            return false;
        }
        let too_much = self.log_size == LogSize::OverTwice;
        if too_much {
            tracing::warn!(
                shard = self.id,
                "the log has twice its bound while a node catches up by snapshot: that node needs another \
                 one. Raise log_bytes_max"
            );
        }
        !too_much
    }

    /// This is the snapshot on disk now, and peers may have it.
    pub fn snapshot_on_disk(&mut self, meta: SnapshotMeta, file: SnapshotFile) {
        self.snapshot_index = meta.index;
        self.snapshot_file = Some(file);
        self.replica.offer_snapshot(meta, file.to_data());
    }

    /// Compacts the log through the snapshot on disk: as far as no peer needs it, or, if the log is over its
    /// bound, whatever a peer lacks.
    fn compact(&mut self) -> Output {
        let through = match self.log_size {
            LogSize::Fits => self.snapshot_index.min(self.compact_floor),
            LogSize::Over | LogSize::OverTwice => self.snapshot_index,
        };
        Output::Compact {
            shard: self.id,
            through: self.replica.compact(through),
        }
    }
}
