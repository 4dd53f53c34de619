//! The log on disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nowserving_replica::{EntryReader, LogState, ReadFailed, SnapshotMeta, Write};
use raft::eraftpb::{Entry, HardState, SnapshotMetadata};
use raft_engine::env::FileSystem;
use raft_engine::{Command, Config, Engine, LogBatch, MessageExt, ReadableSize, RecoveryMode};

use crate::copies::Copies;
use crate::files::{Counters, Files};
use crate::room::{OnFull, Room};
use crate::synced_record::{self, SyncedRecord};
use crate::{LogError, LogStats, LogStore, Refused, verify};
use crate::{engine_failed, io_failed, lost, read_failed};

const HARD_STATE: &[u8] = b"hard_state";
const START: &[u8] = b"start";
/// A read can fail because a purge has just deleted the file; the entry has been moved then.
const READ_ATTEMPTS: usize = 3;

/// The sizes of a log on disk.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// A file is closed when it gets this large. The default is 16 MiB: space is freed file by file, and a
    /// torn write can only be in the newest one.
    pub file_bytes: u64,
    /// Old files are deleted once all files together are larger than this. The default is 256 MiB: the
    /// engine's own default of 10 GB would fill a small machine's disk, and each start would read all of
    /// it, while the lines of a node fit into some hundred MiB.
    pub purge_threshold_bytes: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            file_bytes: 16 << 20,
            purge_threshold_bytes: 256 << 20,
        }
    }
}

/// The log on disk: one `raft-engine` for all shards of a node.
pub struct EngineLog<F: FileSystem = Files> {
    engine: Engine<F>,
    record: Arc<SyncedRecord>,
    counters: Arc<Counters>,
    room: Arc<Room>,
    stopped: AtomicBool,
    #[cfg(test)]
    pub(crate) faults: Arc<crate::files::Faults>,
}

struct Entries;

impl MessageExt for Entries {
    type Entry = Entry;

    fn index(entry: &Entry) -> u64 {
        entry.index
    }
}

impl EngineLog {
    /// Opens the log in `dir`, which is made if it is missing. Only one process can have it open.
    ///
    /// A write that was cut short by a crash is dropped: it was never acknowledged. Anything else that
    /// is damaged or missing is an error: every record is read and compared with its checksums.
    ///
    /// # Errors
    /// [`LogError::Lost`] if something is missing that was synced; others if files can't be used.
    pub fn open(dir: &Path, options: &EngineOptions) -> Result<EngineLog, LogError> {
        let io = |what: &str| io_failed(format!("{what} {}", dir.display()));
        let refused = |what| refused(dir, what);
        std::fs::create_dir_all(dir).map_err(io("can't make"))?;
        let log_files = synced_record::find(dir).map_err(io("can't list"))?;
        let record =
            SyncedRecord::open(dir, &log_files).map_err(refused("can't use the record in"))?;
        verify::open(&log_files, &record).map_err(refused("can't read the files in"))?;
        record.begin().map_err(io("can't use the record in"))?;
        let record = Arc::new(record);
        let counters = Arc::<Counters>::default();
        let room = record.room();
        #[cfg(test)]
        let faults = Arc::<crate::files::Faults>::default();
        let files = Files {
            record: record.clone(),
            room: room.clone(),
            counters: counters.clone(),
            #[cfg(test)]
            faults: faults.clone(),
        };
        let engine = Engine::open_with_file_system(config(dir, options), Arc::new(files))
            .map_err(|error| open_error(dir, error))?;
        // The engine syncs the directory for every file but the first ones.
        let parent = dir.parent().filter(|parent| parent.as_os_str() != "");
        for path in std::iter::once(dir).chain(parent) {
            std::fs::File::open(path)
                .and_then(|dir| dir.sync_all())
                .map_err(io("can't sync"))?;
        }
        synced_record::find(dir)
            .and_then(|log_files| record.opened(&log_files))
            .map_err(io("can't sync the files in"))?;
        Ok(EngineLog {
            engine,
            record,
            counters,
            room,
            stopped: AtomicBool::new(false),
            #[cfg(test)]
            faults,
        })
    }

    /// With `on_full`, a write that finds the disk full calls it and waits for room, and again until there is some;
    /// without it, which is so at first, such a write fails.
    pub fn wait_for_room(&self, on_full: Option<OnFull>) {
        self.room.set_on_full(on_full);
    }

    /// Whether a write waits for room.
    pub fn waits_for_room(&self) -> bool {
        self.room.is_waited_for()
    }

    /// Opens a copy of the log in `dir` in memory, after the same checks as [`EngineLog::open`]. Nothing in `dir`
    /// changes, also when it is written to. No process may have it open.
    ///
    /// # Errors
    /// As [`EngineLog::open`].
    pub fn look_at(dir: &Path) -> Result<impl LogStore + use<>, LogError> {
        let refused = |what| refused(dir, what);
        let log_files = synced_record::find(dir).map_err(io_failed("can't list the log"))?;
        let record = SyncedRecord::look_at(dir, &log_files).map_err(refused("can't read"))?;
        let ends = verify::check_all(&log_files, &record).map_err(refused("can't read"))?;
        let ends = log_files.into_iter().zip(ends);
        let copies = ends.map(|(found, end)| (found.path, end.at)).collect();
        let config = config(dir, &EngineOptions::default());
        let engine = Engine::open_with_file_system(config, Arc::new(Copies(copies)));
        Ok(EngineLog {
            engine: engine.map_err(|error| open_error(dir, error))?,
            room: record.room(),
            record: Arc::new(record),
            counters: Arc::default(),
            stopped: AtomicBool::new(false),
            #[cfg(test)]
            faults: Arc::default(),
        })
    }
}

impl<F: FileSystem> EngineLog<F> {
    fn put(&self, batch: &mut LogBatch, sync: bool) -> Result<(), LogError> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(LogError::Stopped);
        }
        let written = self.engine.write(batch, sync);
        let written = written
            .map_err(engine_failed("can't write"))
            .and_then(|_| self.publish());
        if written.is_err() {
            self.stopped.store(true, Ordering::Release);
        }
        written
    }

    fn publish(&self) -> Result<(), LogError> {
        let published = self.record.publish();
        published.map_err(io_failed("can't record what is synced"))
    }

    /// The last message written under a key of a shard, or the default.
    fn message<M: protobuf::Message + Default>(
        &self,
        shard: u32,
        key: &[u8],
    ) -> Result<M, LogError> {
        let found = self.engine.get_message(u64::from(shard), key);
        let failed = engine_failed(format!("can't read the state of shard {shard}"));
        found.map(Option::unwrap_or_default).map_err(failed)
    }

    fn fetch(
        &self,
        shard: u32,
        low: u64,
        high: u64,
        max_bytes: u64,
    ) -> Result<Vec<Entry>, ReadFailed> {
        let max_bytes = usize::try_from(max_bytes).ok();
        let mut attempt = 1;
        loop {
            let mut entries = Vec::new();
            match self.engine.fetch_entries_to::<Entries>(
                u64::from(shard),
                low,
                high,
                max_bytes,
                &mut entries,
            ) {
                // The engine's answer for a shard that it does not know.
                Ok(0) => return Err(read_failed(shard, low, high, "no such entries")),
                Ok(_) => return Ok(entries),
                Err(_) if attempt < READ_ATTEMPTS => attempt += 1,
                Err(error) => return Err(read_failed(shard, low, high, self.explain(error))),
            }
        }
    }

    /// Why a read failed. The engine names neither file nor offset.
    fn explain(&self, error: raft_engine::Error) -> Box<dyn std::error::Error + Send + Sync> {
        let dir = Path::new(self.engine.path());
        let files = synced_record::find(dir).ok();
        match files.and_then(|files| verify::find(&files, &self.record)) {
            Some(damage) => lost(dir, damage).into(),
            None => error.into(),
        }
    }
}

fn config(dir: &Path, options: &EngineOptions) -> Config {
    Config {
        dir: dir.to_string_lossy().into_owned(),
        recovery_mode: RecoveryMode::AbsoluteConsistency,
        target_file_size: ReadableSize(options.file_bytes),
        purge_threshold: ReadableSize(options.purge_threshold_bytes),
        // Not compressed: that saves little of what is kept for a short time, and the type of
        // compression is the only byte of a record without a checksum (see `verify`).
        batch_compression_threshold: ReadableSize(0),
        // Recycled files keep old records after the new ones, and their old names until they are used. That
        // is more states for a crash to leave, for a saving that matters at thousands of files.
        enable_log_recycle: false,
        ..Config::default()
    }
}

fn refused(dir: &Path, what: &str) -> impl FnOnce(Refused) -> LogError {
    move |error| match error {
        Refused::Lost(what) => lost(dir, what),
        Refused::Io(source) => io_failed(format!("{what} {}", dir.display()))(source),
    }
}

/// Damage that the engine finds is a loss: what a crash leaves was cut off before.
fn open_error(dir: &Path, error: raft_engine::Error) -> LogError {
    let what = format!("can't open {}", dir.display());
    match error {
        raft_engine::Error::Io(error) if error.kind() != std::io::ErrorKind::InvalidData => {
            io_failed(what)(error)
        }
        raft_engine::Error::Other(_) => engine_failed(what)(error),
        damage => lost(dir, damage.to_string()),
    }
}

impl<F: FileSystem> EntryReader for EngineLog<F> {
    fn entries(
        &self,
        shard: u32,
        low: u64,
        high: u64,
        max_bytes: u64,
    ) -> Result<Vec<Entry>, ReadFailed> {
        self.fetch(shard, low, high, max_bytes)
    }

    fn term(&self, shard: u32, index: u64) -> Result<u64, ReadFailed> {
        let entries = self.fetch(shard, index, index + 1, 0)?;
        let entry = entries.first();
        entry
            .map(|entry| entry.term)
            .ok_or_else(|| read_failed(shard, index, index + 1, "no such entry"))
    }
}

impl<F: FileSystem> LogStore for EngineLog<F> {
    fn load(&self, shard: u32) -> Result<LogState, LogError> {
        let region = u64::from(shard);
        let start = SnapshotMeta::from(self.message::<SnapshotMetadata>(shard, START)?);
        let mut state = LogState {
            hard_state: self.message::<HardState>(shard, HARD_STATE)?,
            compact_index: start.index,
            compact_term: start.term,
            last_index: start.index,
            start,
        };
        if let (Some(first), Some(last)) = (
            self.engine.first_index(region),
            self.engine.last_index(region),
        ) {
            state.last_index = last;
            if first > state.start.index + 1 {
                // `compact` leaves the last entry it drops, for its term.
                state.compact_index = first;
                let dir = Path::new(self.engine.path());
                let term = self.term(shard, first);
                state.compact_term = term.map_err(|failed| lost(dir, failed.cause.to_string()))?;
            }
        }
        Ok(state)
    }

    fn write(&self, writes: &[Write]) -> Result<(), LogError> {
        let mut batch = LogBatch::default();
        for write in writes {
            let region = u64::from(write.shard);
            let mut add = || {
                if let Some(start) = &write.start {
                    batch.add_command(region, Command::Clean);
                    let start = SnapshotMetadata::from(start.clone());
                    batch.put_message(region, START.to_vec(), &start)?;
                }
                batch.add_entries::<Entries>(region, &write.entries)?;
                if let Some(state) = &write.hard_state {
                    batch.put_message(region, HARD_STATE.to_vec(), state)?;
                }
                Ok(())
            };
            let shard = write.shard;
            add().map_err(engine_failed(format!("can't encode shard {shard}")))?;
        }
        self.put(&mut batch, writes.iter().any(|write| write.must_sync))
    }

    fn compact(&self, shard: u32, through: u64) -> Result<(), LogError> {
        let mut batch = LogBatch::default();
        batch.add_command(u64::from(shard), Command::Compact { index: through });
        self.put(&mut batch, false)
    }

    fn purge(&self) -> Result<Vec<u32>, LogError> {
        let regions = self.engine.purge_expired_files();
        let regions = regions.map_err(engine_failed("can't purge"))?;
        self.publish()?;
        Ok(regions
            .into_iter()
            .filter_map(|region| u32::try_from(region).ok())
            .collect())
    }

    fn stats(&self) -> LogStats {
        LogStats {
            bytes_written: self.counters.bytes_written.load(Ordering::Relaxed)
                + self.record.bytes_written(),
            syncs: self.counters.syncs.load(Ordering::Relaxed),
            used_bytes: self.engine.get_used_size() as u64,
        }
    }
}
