//! Where the Raft state of a node is kept: one log for all its shards.
//!
//! [`EngineLog`] keeps it on disk (`raft-engine`), [`MemoryLog`] in memory, where it can be lost, torn
//! and made to fail as a disk would.

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod damage_tests;
mod engine;
mod files;
mod memory;
mod synced_record;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod synced_record_tests;
mod verify;

use nowserving_replica::{EntryReader, LogState, ReadFailed, Write};

pub use engine::{EngineLog, EngineOptions};
pub use memory::{Crash, MemoryLog};

/// The log of a node's shards.
///
/// One thread writes, in the order in which the replicas handed their writes out; any thread reads.
pub trait LogStore: EntryReader {
    /// What is kept for a shard; the default of [`LogState`] for one that was never written.
    ///
    /// # Errors
    /// If it can't be read.
    fn load(&self, shard: u32) -> Result<LogState, LogError>;

    /// Writes all of this in one batch, all or nothing, with one sync if any part must be synced.
    /// Later writes of a shard replace its entries from their first index on.
    ///
    /// # Errors
    /// The node must stop: what is on disk is not what the replicas in memory count on. The log
    /// refuses everything from then on. A failed sync panics, and nothing may catch that: the kernel
    /// forgets which pages it could not write, so trying again "succeeds".
    fn write(&self, writes: &[Write]) -> Result<(), LogError>;

    /// Drops the entries of a shard before `through`; its term is kept. Not synced: after a crash
    /// there may be more than wanted.
    ///
    /// # Errors
    /// As for [`LogStore::write`].
    fn compact(&self, shard: u32, through: u64) -> Result<(), LogError>;

    /// Gives space back, if there is enough to give. To be called every few seconds. Returns the shards
    /// whose entries keep old files alive: make snapshots of those and cut their logs.
    ///
    /// # Errors
    /// If old entries can't be read or written anew. The log is as good as before.
    fn purge(&self) -> Result<Vec<u32>, LogError>;

    /// What was written since the start.
    fn stats(&self) -> LogStats;
}

/// Counters of a log since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Bytes written to files, all included.
    pub bytes_written: u64,
    /// Syncs of log files.
    pub syncs: u64,
    /// What the log holds now, in bytes.
    pub used_bytes: u64,
}

/// What went wrong with a log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Something that was on disk, and may have been acknowledged, is not there any more. The node
    /// must not run with this directory as it is.
    #[error("the log in {dir} lost data: {what}")]
    Lost {
        /// The directory.
        dir: String,
        /// What is missing or damaged.
        what: String,
    },
    /// A file operation failed.
    #[error("log: {what}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The engine refuses or can't read.
    #[error("log: {what}")]
    Engine {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: raft_engine::Error,
    },
    /// An earlier write failed.
    #[error("the log takes nothing more after a failed write")]
    Stopped,
    /// A failure that a test asked for.
    #[error("injected failure")]
    Injected,
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
