//! A small file beside the log files that records how far they were synced.
//!
//! On opening, raft-engine can't tell a torn write, which was never acknowledged, from a damaged one,
//! which was. Its tolerant mode cuts the last file off at the first record that it can't read, later good
//! ones included, with a warning; it also drops all files before a missing one. Its strict mode refuses
//! every log after a kill: files are allocated ahead, so an unclean end leaves zeros. So `verify` cuts off
//! what a crash may leave after the synced bytes, and the engine then opens in its strict mode.
//!
//! The record is written after each sync, but not synced itself. A kill loses nothing of it. After a
//! power failure it may be some seconds old: damage in those seconds' records can pass for a torn write,
//! but an intact log is never refused. The record is synced before a file is deleted, so a missing file
//! that is not recorded as deleted was lost.
//!
//! A bit of the record itself may flip. It is kept in two slots; if one of them is damaged, the other one
//! may be older, and nothing is cut.

use std::cmp::Ordering;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Refused;
use crate::room::Room;

/// The record's file name; raft-engine ignores files with names unlike its own.
pub(crate) const FILE_NAME: &str = "synced";

const MAGIC: &[u8; 8] = b"nsvsync1";
pub(crate) const RECORD_BYTES: usize = 72;
/// Two slots, written in turn, in different blocks of the disk: one of them is always whole.
pub(crate) const SLOT_BYTES: u64 = 4096;
/// The bytes before a log file's first record.
pub(crate) const FILE_HEADER_BYTES: u64 = 69;

/// The two sequences of files that the engine keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// New entries.
    Append,
    /// Old entries, rewritten so that old files can be deleted.
    Rewrite,
}

/// A log file's queue and number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogFile {
    pub queue: Queue,
    pub seq: u64,
}

impl LogFile {
    /// Reads a name such as `0000000000000007.raftlog`.
    pub fn parse(path: &Path) -> Option<LogFile> {
        let (seq, suffix) = path.file_name()?.to_str()?.split_once('.')?;
        let queue = match suffix {
            "raftlog" => Queue::Append,
            "rewrite" => Queue::Rewrite,
            _ => return None,
        };
        Some(LogFile {
            queue,
            seq: seq.parse().ok()?,
        })
    }
}

/// A log file that was found.
pub(crate) struct Found {
    pub path: PathBuf,
    pub file: LogFile,
    pub len: u64,
}

/// The log files in a directory.
pub(crate) fn find(dir: &Path) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let Some(file) = LogFile::parse(&path) else {
            continue;
        };
        let len = path.metadata()?.len();
        found.push(Found { path, file, len });
    }
    found.sort_by_key(|found| found.file.seq);
    Ok(found)
}

/// The end of the synced data of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Synced {
    /// Files through this one may have been deleted.
    deleted_through: u64,
    /// The newest file with synced bytes; 0 if there is none.
    seq: u64,
    /// The number of synced bytes in it.
    len: u64,
}

#[derive(Debug, Default)]
struct State {
    counter: u64,
    queues: [Synced; 2],
    /// Changed since it was written.
    dirty: bool,
    bytes_written: u64,
}

impl State {
    fn synced(&mut self, file: LogFile, len: u64) {
        let known = &mut self.queues[file.queue as usize];
        if (file.seq, len) > (known.seq, known.len) {
            (known.seq, known.len) = (file.seq, len);
            self.dirty = true;
        }
    }

    /// The file and its header are on disk, even if it has no records.
    fn exists(&mut self, file: LogFile) {
        self.synced(file, FILE_HEADER_BYTES);
    }
}

/// The record, kept open.
pub(crate) struct SyncedRecord {
    file: File,
    state: Mutex<State>,
    /// A slot was damaged: more may have been synced than the record says.
    damaged: bool,
    room: Arc<Room>,
}

impl SyncedRecord {
    /// Reads the record, or begins one in a directory without log files, and looks for missing files.
    /// Nothing is written before [`SyncedRecord::begin`].
    pub fn open(dir: &Path, log_files: &[Found]) -> Result<SyncedRecord, Refused> {
        SyncedRecord::open_with(OpenOptions::new().write(true).create(true), dir, log_files)
    }

    /// The same, of a directory that is only looked at. There must be a record.
    pub fn look_at(dir: &Path, log_files: &[Found]) -> Result<SyncedRecord, Refused> {
        SyncedRecord::open_with(&mut OpenOptions::new(), dir, log_files)
    }

    fn open_with(
        options: &mut OpenOptions,
        dir: &Path,
        log_files: &[Found],
    ) -> Result<SyncedRecord, Refused> {
        let path = dir.join(FILE_NAME);
        let exists = path.try_exists()?;
        if !exists && !log_files.is_empty() {
            return Err(Refused::Lost(format!(
                "there are log files, but {FILE_NAME} is missing"
            )));
        }
        let file = options.read(true).truncate(false).open(&path)?;
        let mut state = State::default();
        let mut damaged = false;
        if file.metadata()?.len() > 0 {
            let slots = [read_slot(&file, 0)?, read_slot(&file, SLOT_BYTES)?];
            damaged = slots.iter().any(|slot| matches!(slot, Slot::Damaged));
            let whole = slots.into_iter().filter_map(|slot| match slot {
                Slot::Whole(state) => Some(state),
                Slot::Unwritten | Slot::Damaged => None,
            });
            state = whole
                .max_by_key(|state| state.counter)
                .ok_or_else(|| Refused::Lost(format!("{FILE_NAME} can't be read")))?;
        } else if !log_files.is_empty() {
            return Err(Refused::Lost(format!("{FILE_NAME} is empty")));
        }
        let record = SyncedRecord {
            file,
            state: Mutex::new(state),
            damaged,
            room: Arc::default(),
        };
        record.check(log_files)?;
        Ok(record)
    }

    /// The room on its disk, which is that of the log files.
    pub fn room(&self) -> Arc<Room> {
        self.room.clone()
    }

    /// Whether more may have been synced than the record says.
    pub fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// The log files agree with the record: both slots are written anew, a damaged one first, and synced,
    /// before the engine makes its first files. Then both have their place on disk: a file of a full disk can be
    /// deleted, although that is recorded before.
    pub fn begin(&self) -> io::Result<()> {
        for _slot in 0..2 {
            self.write(&mut self.state())?;
            self.file.sync_all()?;
        }
        Ok(())
    }

    /// The engine is open: the newest file of each queue has its header on disk, and its name.
    pub fn opened(&self, log_files: &[Found]) -> io::Result<()> {
        for queue in [Queue::Append, Queue::Rewrite] {
            if let Some(newest) = log_files.iter().rfind(|found| found.file.queue == queue) {
                File::open(&newest.path)?.sync_all()?;
                self.state().exists(newest.file);
            }
        }
        self.publish()
    }

    fn check(&self, log_files: &[Found]) -> Result<(), Refused> {
        let state = self.state();
        for queue in [Queue::Append, Queue::Rewrite] {
            let synced = state.queues[queue as usize];
            let files = || log_files.iter().filter(|found| found.file.queue == queue);
            let mut expected = files().next().map_or(1, |first| {
                first.file.seq.min(synced.deleted_through.saturating_add(1))
            });
            for found in files() {
                let seq = found.file.seq;
                if seq != expected {
                    return Err(Refused::Lost(format!(
                        "{queue:?} file {expected} is missing"
                    )));
                }
                expected = seq.saturating_add(1);
            }
            let newest = files().find(|found| found.file.seq == synced.seq);
            let len = newest.map_or(0, |found| found.len);
            if len < synced.len {
                let (seq, all) = (synced.seq, synced.len);
                return Err(Refused::Lost(format!(
                    "{queue:?} file {seq} has {len} of {all} synced bytes"
                )));
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file was synced through `len`. The next [`SyncedRecord::publish`] writes that down.
    pub fn synced(&self, file: LogFile, len: u64) {
        let mut state = self.state();
        // The header of a new file is synced before its directory, so a power failure may remove the file.
        if len > FILE_HEADER_BYTES {
            state.synced(file, len);
        }
    }

    /// The number of bytes of a file that are recorded as synced.
    pub fn synced_len(&self, file: LogFile) -> u64 {
        let known = self.state().queues[file.queue as usize];
        match file.seq.cmp(&known.seq) {
            Ordering::Less => u64::MAX,
            Ordering::Equal => known.len,
            Ordering::Greater => 0,
        }
    }

    /// Writes the record if it has changed.
    pub fn publish(&self) -> io::Result<()> {
        let mut state = self.state();
        if state.dirty {
            self.write(&mut state)
        } else {
            Ok(())
        }
    }

    /// A file is about to be deleted. The engine keeps at least the newest one, and has synced that one's
    /// header and name.
    pub fn deleting(&self, file: LogFile) -> io::Result<()> {
        let mut state = self.state();
        let next = LogFile {
            seq: file.seq + 1,
            ..file
        };
        state.exists(next);
        let known = &mut state.queues[file.queue as usize];
        known.deleted_through = known.deleted_through.max(file.seq);
        self.write(&mut state)?;
        self.file.sync_data()
    }

    /// Bytes written to the record's file.
    pub fn bytes_written(&self) -> u64 {
        self.state().bytes_written
    }

    fn write(&self, state: &mut State) -> io::Result<()> {
        state.counter += 1;
        let mut record = [0; RECORD_BYTES];
        let numbers = state
            .queues
            .iter()
            .flat_map(|queue| [queue.deleted_through, queue.seq, queue.len]);
        for (at, number) in std::iter::once(state.counter).chain(numbers).enumerate() {
            record[8 + at * 8..16 + at * 8].copy_from_slice(&number.to_le_bytes());
        }
        record[..8].copy_from_slice(MAGIC);
        let sum = checksum(&record[..RECORD_BYTES - 8]);
        record[RECORD_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
        let slot = state.counter % 2 * SLOT_BYTES;
        self.room.wait(|| self.file.write_all_at(&record, slot))?;
        state.bytes_written += RECORD_BYTES as u64;
        state.dirty = false;
        Ok(())
    }
}

enum Slot {
    Unwritten,
    Whole(State),
    /// Not a torn write: so few bytes of one block are written whole or not at all.
    Damaged,
}

fn read_slot(file: &File, offset: u64) -> io::Result<Slot> {
    let mut record = [0; RECORD_BYTES];
    match file.read_exact_at(&mut record, offset) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Slot::Damaged),
        read => read?,
    }
    if record == [0; RECORD_BYTES] {
        return Ok(Slot::Unwritten);
    }
    let number = |at: usize| {
        record[at * 8..at * 8 + 8]
            .try_into()
            .map_or(0, u64::from_le_bytes)
    };
    let last = RECORD_BYTES / 8 - 1;
    if &record[..8] != MAGIC || number(last) != checksum(&record[..RECORD_BYTES - 8]) {
        return Ok(Slot::Damaged);
    }
    let queue = |at: usize| Synced {
        deleted_through: number(at),
        seq: number(at + 1),
        len: number(at + 2),
    };
    Ok(Slot::Whole(State {
        counter: number(1),
        queues: [queue(2), queue(5)],
        ..State::default()
    }))
}

/// FNV-1a, against decay only.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
