//! Snapshots of this node's own, and the compaction of the log through them.
//!
//! The log keeps what some member lacks, up to its bound, `log_bytes_max`: past that it keeps nothing for a member
//! that is away. While a member fetches a snapshot or catches up behind it, its leader makes no newer one in its
//! place, and so keeps the log behind it, up to twice the bound.
//!
//! One is due after so many entries. Under load an entry has many commands, and to apply them anew takes a restart
//! longer than to read a snapshot. So one is made as soon as little is asked.

use nowserving_replica::{Replica, SnapshotMeta};
use nowserving_shard::clock::Micros;

use super::file::SnapshotFile;
use crate::io::Output;

/// After a snapshot that could not be written (the disk is full?) the next try is this much later. A node that lacks
/// dropped entries waits for it.
const RETRY_MIN_US: Micros = 1_000_000;
/// The pause doubles with each further failure, up to this: a try costs as much as a snapshot.
const RETRY_MAX_US: Micros = 10_000_000;

/// A shard with no more work in an interval of maintenance is quiet …
const QUIET_WORK: u64 = 250;
/// … once that was so for this long.
const QUIET_US: Micros = 1_500_000;
/// A quiet shard's snapshot is due after this part of the entries after which a busy one's is, as work …
const QUIET_PART: u64 = 16;
/// … and of the state that it has to write: so making snapshots costs little beside the work.
const QUIET_PART_OF_STATE: u64 = 8;

/// The work that a restart would have to do anew, as [`State::apply_entry`] counts it.
#[derive(Debug, Default)]
struct Unsaved {
    /// Since the last snapshot.
    work: u64,
    /// As much of it is in the one that is being written.
    in_writing: u64,
    /// As much of it was there at the last look.
    looked: u64,
    /// When a look last found more than a quiet shard does; `None` before the first look.
    busy_at: Option<Micros>,
    /// A snapshot was made since. One is enough: a shard that always has a little to do must not make one after the
    /// other.
    is_saved: bool,
}

impl Unsaved {
    /// To be called in each slow maintenance.
    fn look(&mut self, now: Micros) {
        if self.work - self.looked > QUIET_WORK || self.busy_at.is_none() {
            self.busy_at = Some(now);
            self.is_saved = false;
        }
        self.looked = self.work;
    }

    fn written(&mut self) {
        let written = std::mem::take(&mut self.in_writing);
        self.work -= written;
        self.looked = self.looked.saturating_sub(written);
        self.is_saved = true;
    }

    /// Whether the shard is quiet, and has done this much.
    fn is_quiet_after(&self, work: u64, now: Micros) -> bool {
        let since = self.busy_at.unwrap_or(now);
        !self.is_saved && self.work >= work && now.saturating_sub(since) >= QUIET_US
    }
}

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
    unsaved: Unsaved,
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

    /// Entries were applied that were so much work.
    pub fn add_work(&mut self, work: usize) {
        self.unsaved.work += work as u64;
    }

    /// Looks how much was done. To be called in each slow maintenance.
    pub fn look(&mut self, now: Micros) {
        self.unsaved.look(now);
    }

    /// Whether one is due for a log that is applied through `applied`, to a state of this size. `held`: a peer needs the
    /// one that is there.
    pub fn is_due(
        &self,
        shard: u32,
        (applied, size): (u64, u64),
        entries: u64,
        held: impl Fn() -> bool,
        now: Micros,
    ) -> bool {
        let since = applied.saturating_sub(self.index);
        let for_backup = self.backup_index > self.index;
        let early = self.log_size > LogSize::Fits || self.wanted;
        let much = (entries / QUIET_PART).max(size / QUIET_PART_OF_STATE);
        let for_restart = since > 0 && self.unsaved.is_quiet_after(much, now);
        let wanted = since >= entries || (early && since > 0) || for_backup || for_restart;
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
        self.unsaved.in_writing = self.unsaved.work;
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
        self.unsaved.written();
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

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK_US: Micros = 250_000;
    const ENTRIES: u64 = 20_000;
    /// What a quiet shard must have done.
    const MUCH: usize = 1_250;

    /// Looks so often, with so much work before each look. Returns whether a snapshot is due, of a state of this size.
    fn due_after(own: &mut OwnSnapshot, looks: &[usize], size: u64, now: &mut Micros) -> bool {
        for work in looks {
            own.add_work(*work);
            *now += LOOK_US;
            own.look(*now);
        }
        own.is_due(0, (50, size), ENTRIES, || false, *now)
    }

    #[test]
    fn a_quiet_shard_saves_what_a_restart_would_have_to_do_anew() {
        let (own, now) = (&mut OwnSnapshot::default(), &mut 7);
        assert!(!due_after(own, &[MUCH, 251, 251, 251, 251, 251], 0, now));
        assert!(!due_after(own, &[0; 5], 0, now));
        assert!(due_after(own, &[250], 0, now));
        assert!(!due_after(own, &[250], 1 << 20, now), "little of the state");
        assert!(!due_after(own, &[251], 0, now), "a busy shard again");
    }

    #[test]
    fn one_snapshot_is_enough_until_the_shard_is_busy_again() {
        let (own, now) = (&mut OwnSnapshot::default(), &mut 7);
        assert!(due_after(own, &[MUCH, 0, 0, 0, 0, 0, 0, 0], 0, now));
        own.unsaved.in_writing = own.unsaved.work;
        own.add_work(100);
        own.unsaved.written();
        assert!(!due_after(own, &[150; 20], 0, now));
        assert!(due_after(own, &[251, 0, 0, 0, 0, 0, 0], 0, now));
    }

    #[test]
    fn a_node_that_has_just_started_serves_first() {
        let (own, now) = (&mut OwnSnapshot::default(), &mut 9_000_000);
        own.add_work(MUCH);
        assert!(!due_after(own, &[0; 6], 0, now));
        assert!(due_after(own, &[0], 0, now));
    }
}
