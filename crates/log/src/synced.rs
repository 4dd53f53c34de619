//! A small file beside the segments that records how far they were synced.
//!
//! Nothing in a segment tells its last batch, synced and damaged since, from a torn write, which was never
//! acknowledged; and nothing tells of a segment that is missing behind the last one. The record is written after
//! each sync, but not synced itself. A kill loses nothing of it. After a power failure it may be some seconds old. All
//! but the newest batches are known to have been synced then, too: each batch and each segment says what was synced
//! before it. The record is synced before a segment is deleted, so a missing one that is not recorded as deleted was
//! lost.
//!
//! A bit of the record itself may flip. It is kept in two slots; if one of them is damaged, the other one
//! may be older, and nothing is cut.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::files::Files;
use crate::format::{sign, signed};
use crate::room::is_full;
use crate::{LogError, lost};

pub(crate) const FILE_NAME: &str = "synced";

const MAGIC: &[u8; 8] = b"nsvsyn01";
pub(crate) const RECORD_BYTES: usize = 48;
/// Two slots, written in turn, in different blocks of the disk: one of them is always whole.
pub(crate) const SLOT_BYTES: u64 = 4096;

/// What the record says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Synced {
    /// Grows with each write of the record.
    counter: u64,
    /// Segments before this one may have been deleted.
    pub first: u32,
    /// The newest segment with synced bytes; 0 if there is none.
    pub segment: u32,
    /// Where they end.
    pub end: u64,
    /// A slot was damaged: more may have been synced.
    pub damaged: bool,
}

impl Synced {
    /// What the record in `dir` says; `None`: there is none.
    pub fn read(dir: &Path) -> Result<Option<Synced>, LogError> {
        let bytes = match std::fs::read(dir.join(FILE_NAME)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        if bytes.iter().all(|byte| *byte == 0) {
            // The very first start was cut short.
            return Ok(None);
        }
        Synced::decode(&bytes)
            .map(Some)
            .ok_or_else(|| lost(dir, format!("{FILE_NAME} is damaged, or of another build")))
    }

    /// Of the slots that are whole the newer one. `None`: there is none.
    pub fn decode(bytes: &[u8]) -> Option<Synced> {
        let slots = [0, SLOT_BYTES as usize].map(|at| bytes.get(at..)?.get(..RECORD_BYTES));
        let whole = slots.map(|slot| {
            let [counter, first, segment, end] = signed(MAGIC, slot?)?;
            Some(Synced {
                counter,
                first: first.try_into().ok()?,
                segment: segment.try_into().ok()?,
                end,
                damaged: false,
            })
        });
        let newest = whole.into_iter().flatten().max_by_key(|it| it.counter)?;
        // The first write of the first start fills one of them.
        let damaged = newest.counter > 1 && whole.iter().any(Option::is_none);
        Some(Synced { damaged, ..newest })
    }

    /// A purge that syncs can be late behind the writer.
    fn advance(&mut self, segment: u32, end: u64) {
        (self.segment, self.end) = (self.segment, self.end).max((segment, end));
    }
}

/// The record, kept open.
pub(crate) struct SyncedRecord {
    file: File,
    state: Mutex<Synced>,
    files: Arc<Files>,
}

impl SyncedRecord {
    /// Opens the record to be written on. Both slots are written anew, a damaged one first, and synced. Then both have
    /// their place on disk: a file of a full disk can be deleted, although that is recorded before.
    pub fn begin(dir: &Path, synced: Synced, files: Arc<Files>) -> io::Result<SyncedRecord> {
        let record = SyncedRecord {
            file: files.open(&dir.join(FILE_NAME), true)?,
            state: Mutex::new(synced),
            files,
        };
        for _slot in 0..2 {
            record.write(&mut record.state())?;
            record.files.try_sync(&record.file)?;
        }
        Ok(record)
    }

    fn state(&self) -> MutexGuard<'_, Synced> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A segment was synced through `end`. That is not recorded if there is no room for it: an older record refuses no
    /// log that is whole. To wait would keep a purge waiting, too, which makes room.
    pub fn synced(&self, segment: u32, end: u64) -> io::Result<()> {
        let mut state = self.state();
        state.advance(segment, end);
        match self.write(&mut state) {
            Err(error) if is_full(&error) => Ok(()),
            written => written,
        }
    }

    /// The same, and the segments before `first` are about to be deleted.
    ///
    /// # Panics
    /// The sync fails, as [`Files::sync`] says.
    pub fn deleting(&self, first: u32, segment: u32, end: u64) -> io::Result<()> {
        let mut state = self.state();
        state.advance(segment, end);
        state.first = state.first.max(first);
        // In both slots: one that says that they are there, and is all that is left, would refuse a log that is whole.
        self.write(&mut state)?;
        self.write(&mut state)?;
        self.files.sync(&self.file);
        Ok(())
    }

    fn write(&self, state: &mut Synced) -> io::Result<()> {
        let counter = state.counter + 1;
        let slot = counter % 2 * SLOT_BYTES;
        let (first, segment) = (state.first.into(), state.segment.into());
        let record = sign(MAGIC, [counter, first, segment, state.end]);
        self.files.write_now(&self.file, &record, slot)?;
        // Else the next write is of the same slot: the other one is whole.
        state.counter = counter;
        Ok(())
    }
}
