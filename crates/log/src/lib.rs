//! The Raft state of a node on disk: one log for all its shards.
//!
//! [`LogStore::write`] takes the [`Write`]s of all shards as one batch: one buffer, one write, one sync. [`DiskLog`]
//! appends it to the newest segment (`format`), notes in `synced` how far that is synced, and then in `shard_log`
//! where each entry is. Replicas read old entries back ([`EntryReader`]). [`LogStore::compact`] drops entries that are
//! in a snapshot, and [`LogStore::purge`] deletes segments that hold no others. Each segment begins with the state
//! of all shards, so nothing but entries keeps an older one alive. At a start, `recover` reads all segments,
//! compares all batches with their checksums, and makes the index; what a crash left at the end of a
//! segment stays there, unread: nothing is appended behind it.
//!
//! [`MemoryLog`] keeps the same in memory, where tests and simulations make it fail as a disk would.

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod crash_tests;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod damage_tests;
mod disk_log;
mod files;
mod format;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod fuzz_tests;
mod memory;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod model_tests;
pub mod parts;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod parts_tests;
mod recover;
mod room;
mod shard_log;
mod synced;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod synced_tests;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod test_disk;

use std::path::Path;

use nowserving_replica::{EntryReader, LogState, ReadFailed, Write};

pub use disk_log::{DiskLog, LogOptions};
pub use memory::{Crash, MemoryLog};
pub use room::OnFull;

/// The log of a node's shards.
///
/// One writes at a time, in the order in which the replicas handed their writes out; any thread reads.
pub trait LogStore: EntryReader {
    /// The state of a shard; the default of [`LogState`] if it was never written.
    ///
    /// # Errors
    /// If it can't be read.
    fn load(&self, shard: u32) -> Result<LogState, LogError>;

    /// Writes all of this in one batch, all or nothing, with one sync if any part must be synced.
    /// Later writes of a shard replace its entries from their first index on.
    ///
    /// # Errors
    /// The node must stop: the disk does not have what the replicas in memory count on. The log refuses
    /// everything from then on. A failed sync panics, and nothing may catch that: the kernel forgets which
    /// pages it could not write, so trying again "succeeds".
    fn write(&self, writes: &[Write]) -> Result<(), LogError>;

    /// As [`LogStore::write`], unless that would take longer than one write and one sync, because a file is to be made, there is
    /// no room, or another thread is writing: then it writes nothing and returns false.
    ///
    /// # Errors
    /// As for [`LogStore::write`].
    fn write_if_short(&self, writes: &[Write]) -> Result<bool, LogError>;

    /// Drops the entries of a shard through `through`, but keeps the last one's term. Not synced: after a
    /// crash entries may be back.
    ///
    /// # Errors
    /// As for [`LogStore::write`].
    fn compact(&self, shard: u32, through: u64) -> Result<(), LogError>;

    /// Deletes the oldest files, as far as none of their entries is in use; call it every few seconds. Returns the
    /// shards whose entries keep old files alive: make snapshots of those and compact their logs.
    ///
    /// # Errors
    /// If a file can't be deleted. The log is as good as before.
    fn purge(&self) -> Result<Vec<u32>, LogError>;

    /// Counters since the log was opened.
    fn stats(&self) -> LogStats;
}

/// Counters of a log since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Bytes written to segments.
    pub bytes_written: u64,
    /// Syncs of segments and of their record.
    pub syncs: u64,
    /// The size of the log, in bytes.
    pub used_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Something is missing or damaged that was on disk and may have been acknowledged. The node must not
    /// run with this directory as it is.
    #[error("the log in {dir} lost data: {what}")]
    Lost { dir: String, what: String },
    /// A file operation failed.
    #[error("log: {what}")]
    Io {
        what: String,
        #[source]
        source: std::io::Error,
    },
    /// An earlier write failed.
    #[error("the log takes nothing more after a failed write")]
    Stopped,
}

impl From<std::io::Error> for LogError {
    fn from(source: std::io::Error) -> LogError {
        io_failed("a file can't be used")(source)
    }
}

fn lost(dir: &Path, what: String) -> LogError {
    let dir = dir.display().to_string();
    LogError::Lost { dir, what }
}

fn io_failed(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> LogError {
    let what = what.into();
    move |source| LogError::Io { what, source }
}

/// An error of the reading side.
fn read_failed(
    shard: u32,
    low: u64,
    high: u64,
    cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> ReadFailed {
    ReadFailed {
        shard,
        low,
        high,
        cause: cause.into(),
    }
}
