//! The log on disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use nowserving_codec::Writer as Encoder;
use nowserving_replica::{EntryReader, LogState, ReadFailed, Write};
use raft::eraftpb::Entry;

use crate::files::Files;
use crate::format::{self, BATCH_HEADER_BYTES, Header};
use crate::memory::MemoryLog;
use crate::recover::{self, Recovered};
use crate::room::{OnFull, is_full};
use crate::shard_log::{self, Index, Place, ShardLog};
use crate::synced::SyncedRecord;
use crate::{LogError, LogStats, LogStore, io_failed, lost, read_failed};

/// The disk sets so many bytes of a segment aside at a time.
const ALLOCATE_BYTES: u64 = 2 << 20;
/// Offsets in a segment have 32 bits.
const BATCH_BYTES_MAX: u64 = 1 << 30;
/// Larger batches take long to be synced.
const SHORT_BYTES_MAX: u64 = 256 << 10;
/// Larger batches give their memory back.
const BUFFER_BYTES_MAX: usize = 4 << 20;

/// The sizes of a log on disk.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The size of a segment: space is freed segment by segment.
    pub segment_bytes: u64,
    /// A log over this size names the shards whose entries keep its oldest segments alive. Each start reads all of it.
    pub bytes_max: u64,
}

/// The log on disk, of all shards of a node.
pub struct DiskLog {
    dir: PathBuf,
    options: LogOptions,
    record: SyncedRecord,
    pub(crate) files: Arc<Files>,
    /// Held while a batch is written, also while that waits for room: purges and reads don't need it.
    writer: Mutex<Writer>,
    shared: Mutex<Shared>,
    stopped: AtomicBool,
    /// Locked until the end.
    _lock: File,
}

/// How a batch is written.
#[derive(Clone, Copy)]
struct How {
    sync: bool,
    /// Only if nothing but a write and a sync is needed for it.
    if_short: bool,
}

/// The newest segment.
struct Writer {
    header: Header,
    file: Arc<File>,
    end: u64,
    synced: u64,
    allocated: u64,
    /// The batch that is written, kept for its memory.
    buffer: Vec<u8>,
}

struct Shared {
    dir: PathBuf,
    index: Index,
    /// The bytes that each segment takes.
    segments: BTreeMap<u32, u64>,
    /// The file of the newest one. Older ones are opened when they are read.
    newest: Option<(u32, Arc<File>)>,
}

impl Shared {
    fn new(dir: &Path, recovered: Recovered) -> Shared {
        let ends = recovered.segments.iter().skip(1).map(|it| it.previous_end);
        let ends = ends.chain([recovered.end as u64]);
        let numbers = recovered.segments.iter().map(|header| header.number);
        Shared {
            dir: dir.to_owned(),
            segments: numbers.zip(ends).collect(),
            index: recovered.index,
            newest: None,
        }
    }

    fn used_bytes(&self) -> u64 {
        self.segments.values().sum()
    }

    /// This is the newest segment, and how far it goes.
    fn put(&mut self, writer: &Writer) {
        let number = writer.header.number;
        self.segments.insert(number, writer.end);
        self.newest = Some((number, writer.file.clone()));
    }

    /// Where entries are: as many as stay within `max_bytes`, and at least one; none if they are not there.
    fn find(
        &self,
        shard: u32,
        low: u64,
        high: u64,
        max_bytes: u64,
    ) -> Result<Vec<(Place, Arc<File>)>, LogError> {
        let log = self.index.get(&shard);
        let places = log.and_then(|log| log.range(low, high));
        let mut bytes = 0;
        let mut found = Vec::new();
        let mut opened = self.newest.clone();
        for place in places.into_iter().flatten() {
            bytes += u64::from(place.len);
            if bytes > max_bytes && !found.is_empty() {
                break;
            }
            let file = match opened {
                Some((number, file)) if number == place.segment => file,
                _ => Arc::new(self.open(place.segment)?),
            };
            found.push((*place, file.clone()));
            opened = Some((place.segment, file));
        }
        Ok(found)
    }

    /// A segment's file. It stays readable when the segment is deleted.
    fn open(&self, number: u32) -> Result<File, LogError> {
        let path = recover::path(&self.dir, number);
        let opened = File::open(&path);
        opened.map_err(io_failed(format!("can't read {}", path.display())))
    }
}

impl DiskLog {
    /// Opens the log in `dir`, which is made if it is missing. Only one process can have it open.
    ///
    /// A write that was cut short by a crash is dropped: it was never acknowledged. Anything else that
    /// is damaged or missing is an error: every record is read and compared with its checksum.
    ///
    /// # Errors
    /// [`LogError::Lost`] if something is missing that was synced; others if files can't be used.
    pub fn open(dir: &Path, options: &LogOptions) -> Result<DiskLog, LogError> {
        DiskLog::open_with(Arc::default(), dir, options)
    }

    pub(crate) fn open_with(
        files: Arc<Files>,
        dir: &Path,
        options: &LogOptions,
    ) -> Result<DiskLog, LogError> {
        files.create_dirs(dir)?;
        let lock = File::open(dir)?;
        let locked = lock.try_lock().map_err(std::io::Error::from);
        locked.map_err(io_failed("can't open it for this process alone"))?;
        let recovered = recover::recover(dir)?;
        for path in &recovered.leftovers {
            files.remove(path)?;
        }
        let mut synced = recovered.synced;
        synced.first = synced.first.max(1);
        // Before the first segment: without the record that would have been lost.
        let record = SyncedRecord::begin(dir, synced, files.clone())?;
        sync_names(&files, dir)?;
        let writer = match recovered.segments.last() {
            Some(header) => Writer::go_on(dir, &files, *header, &recovered)?,
            None => Writer::make(dir, &files, new_header(synced.first, options), &mut [])?,
        };
        record.synced(writer.header.number, writer.end)?;
        let mut shared = Shared::new(dir, recovered);
        shared.put(&writer);
        Ok(DiskLog {
            dir: dir.to_owned(),
            options: options.clone(),
            record,
            files,
            writer: Mutex::new(writer),
            shared: Mutex::new(shared),
            stopped: AtomicBool::new(false),
            _lock: lock,
        })
    }

    /// Reads the log in `dir` into memory, after the same checks as [`DiskLog::open`]. Nothing in `dir` changes.
    /// No process may have it open.
    ///
    /// # Errors
    /// As [`DiskLog::open`].
    pub fn look_at(dir: &Path) -> Result<MemoryLog, LogError> {
        let recovered = recover::recover(dir)?;
        if recovered.segments.is_empty() {
            return Err(lost(dir, "there are no segments".to_owned()));
        }
        let shared = Shared::new(dir, recovered);
        let log = MemoryLog::new();
        for (shard, known) in &shared.index {
            let state = known.state.clone();
            let (low, high) = (state.compact_index + 1, state.last_index + 1);
            let found = shared.find(*shard, low, high, u64::MAX)?;
            let entries = read(dir, low, &found)?;
            log.put(*shard, state, entries);
        }
        Ok(log)
    }

    /// The shards that were ever written.
    pub(crate) fn shards(&self) -> Vec<u32> {
        self.shared().index.keys().copied().collect()
    }

    /// Gives a shard that was never written here this state, without entries.
    pub(crate) fn begin(&self, shard: u32, state: &LogState) -> Result<(), LogError> {
        let how = How {
            sync: false,
            if_short: false,
        };
        let put = self.put(how, |batch| {
            format::put(batch, shard, Some(state), Some(&state.hard_state), &[]);
            Ok(())
        });
        put.map(drop)
    }

    /// With `on_full`, a write that finds the disk full calls it and waits for room, and again until there is some;
    /// without it, which is so at first, such a write fails.
    pub fn wait_for_room(&self, on_full: Option<OnFull>) {
        self.files.room.set_on_full(on_full);
    }

    /// Whether a write waits for room.
    pub fn waits_for_room(&self) -> bool {
        self.files.room.is_waited_for()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: another thread writes, and may be waiting for room.
    fn free_writer(&self) -> Option<MutexGuard<'_, Writer>> {
        match self.writer.try_lock() {
            Ok(writer) => Some(writer),
            Err(TryLockError::Poisoned(writer)) => Some(writer.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Writes a batch with the records that `encode` adds, if there are any. Returns whether that was done.
    fn put(
        &self,
        how: How,
        encode: impl FnOnce(&mut Encoder) -> std::io::Result<()>,
    ) -> Result<bool, LogError> {
        let writer = match how.if_short {
            true => self.free_writer(),
            false => Some(self.writer()),
        };
        let Some(mut writer) = writer else {
            return Ok(false);
        };
        let writer = &mut *writer;
        if self.stopped.load(Ordering::Acquire) {
            return Err(LogError::Stopped);
        }
        let mut batch = std::mem::take(&mut writer.buffer);
        batch.clear();
        batch.resize(BATCH_HEADER_BYTES, 0);
        let mut encoder = Encoder::after(batch, format::FORMAT);
        let encoded = encode(&mut encoder);
        let mut batch = encoder.into_bytes();
        let written = encoded.and_then(|()| match batch.len() > BATCH_HEADER_BYTES {
            true => self.put_batch(writer, &mut batch, how),
            false => Ok(true),
        });
        if batch.capacity() <= BUFFER_BYTES_MAX {
            writer.buffer = batch;
        }
        if written.is_err() {
            self.stopped.store(true, Ordering::Release);
        }
        written.map_err(io_failed(format!("can't write in {}", self.dir.display())))
    }

    fn put_batch(&self, writer: &mut Writer, batch: &mut [u8], how: How) -> std::io::Result<bool> {
        let len = batch.len() as u64;
        if len > BATCH_BYTES_MAX {
            return Err(std::io::Error::other("a batch is too large"));
        }
        let has_place = writer.end + len <= writer.header.bytes.min(writer.allocated);
        if how.if_short && (!has_place || len > SHORT_BYTES_MAX) {
            return Ok(false);
        }
        if writer.end + len > writer.header.bytes {
            self.begin_segment(writer, len)?;
        }
        if writer.end + len > writer.allocated {
            let rest = writer.header.bytes - writer.end;
            let ahead = len.max(ALLOCATE_BYTES).min(rest);
            self.files.allocate(&writer.file, writer.end, ahead);
            writer.allocated = writer.end + ahead;
        }
        format::seal(batch, writer.header.salt, writer.synced as u32);
        if how.if_short {
            match self.files.write_now(&writer.file, batch, writer.end) {
                // Nobody has read it, and the next write goes to the same place.
                Err(error) if is_full(&error) => return Ok(false),
                written => written?,
            }
            self.files.count_written(len);
        } else {
            self.files.write(&writer.file, batch, writer.end)?;
        }
        let records_at = writer.end as usize + BATCH_HEADER_BYTES;
        let number = writer.header.number;
        writer.end += len;
        if how.sync {
            self.files.sync(&writer.file);
            writer.synced = writer.end;
            self.record.synced(number, writer.end)?;
        }
        let shared = &mut *self.shared();
        shared.put(writer);
        let records = &batch[BATCH_HEADER_BYTES..];
        let applied = shard_log::apply(&mut shared.index, number, records_at, records);
        applied.map_err(std::io::Error::other)?;
        Ok(true)
    }

    fn write_as(&self, writes: &[Write], if_short: bool) -> Result<bool, LogError> {
        let sync = writes.iter().any(|write| write.must_sync);
        self.put(How { sync, if_short }, |batch| {
            // Before anything is written: a start would meet it again.
            if !shard_log::fit(&self.shared().index, writes) {
                return Err(std::io::Error::other("entries leave a hole in the log"));
            }
            for write in writes {
                let start = write.start.as_ref().map(shard_log::starting);
                let (start, hard_state) = (start.as_ref(), write.hard_state.as_ref());
                format::put(batch, write.shard, start, hard_state, &write.entries);
            }
            Ok(())
        })
    }

    /// Makes the next segment, with room for a batch of `len` bytes. It begins with the state of all shards.
    fn begin_segment(&self, writer: &mut Writer, len: u64) -> std::io::Result<()> {
        self.files.sync(&writer.file);
        let mut encoder = Encoder::after(vec![0; BATCH_HEADER_BYTES], format::FORMAT);
        for (shard, ShardLog { state, .. }) in &self.shared().index {
            let hard_state = Some(&state.hard_state);
            format::put(&mut encoder, *shard, Some(state), hard_state, &[]);
        }
        let mut batch = encoder.into_bytes();
        let mut header = new_header(writer.header.number + 1, &self.options);
        header.previous_end = writer.end;
        header.bytes = header.bytes.max(header.begun + batch.len() as u64 + len);
        *writer = Writer::make(&self.dir, &self.files, header, &mut batch)?;
        self.record.synced(header.number, writer.end)?;
        self.shared().put(writer);
        Ok(())
    }

    /// Deletes the oldest segments, as far as none of their entries is in use.
    fn delete_free(&self) -> std::io::Result<()> {
        let (first, newest, end, free) = {
            let shared = self.shared();
            let Some((newest, end)) = shared.segments.last_key_value() else {
                return Ok(());
            };
            let oldest = shared.index.values().filter_map(oldest_segment).min();
            let first = oldest.unwrap_or(*newest);
            let free: Vec<u32> = shared.segments.range(..first).map(|it| *it.0).collect();
            (first, *newest, *end, free)
        };
        if free.is_empty() {
            return Ok(());
        }
        // What freed them. The kernel tells an opened file of a failed write once: opened anew, it takes no failure away
        // from the one who writes.
        let newest_path = recover::path(&self.dir, newest);
        self.files.sync(&self.files.open(&newest_path, false)?);
        self.record.deleting(first, newest, end)?;
        for number in free {
            match self.files.remove(&recover::path(&self.dir, number)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => self.shared().segments.remove(&number),
            };
        }
        self.files.sync_dir(&self.dir)
    }
}

/// Syncs the names of the log's folder and of those above it, which may be new, as far as it can be done.
fn sync_names(files: &Files, dir: &Path) -> std::io::Result<()> {
    for path in dir.canonicalize()?.ancestors() {
        match files.sync_dir(path) {
            Err(error) if can_never_be_synced(&error) => {}
            synced => synced?,
        }
    }
    Ok(())
}

/// Of a folder: nobody but its owner may read it, or its file system can't sync it or is never written.
fn can_never_be_synced(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied
            | ErrorKind::InvalidInput
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::Unsupported
    )
}

fn oldest_segment(log: &ShardLog<Place>) -> Option<u32> {
    log.entries.front().map(|(_, place)| place.segment)
}

fn new_header(number: u32, options: &LogOptions) -> Header {
    Header {
        number,
        salt: RandomState::new().build_hasher().finish() as u32,
        bytes: options.segment_bytes,
        previous_end: 0,
        begun: Header::BYTES as u64,
    }
}

impl Writer {
    fn on(header: Header, file: File, end: u64) -> Writer {
        Writer {
            header,
            file: Arc::new(file),
            end,
            synced: end,
            allocated: end,
            buffer: Vec::new(),
        }
    }

    /// Makes a segment, with a batch if that has items. It gets its name when all of that is synced.
    fn make(
        dir: &Path,
        files: &Files,
        mut header: Header,
        batch: &mut [u8],
    ) -> std::io::Result<Writer> {
        let begins_with = if batch.len() > BATCH_HEADER_BYTES {
            format::seal(batch, header.salt, 0);
            &*batch
        } else {
            &[]
        };
        header.begun += begins_with.len() as u64;
        let path = recover::path(dir, header.number);
        let new = path.with_extension(recover::NEW);
        let file = files.room.wait(|| files.open(&new, true))?;
        files.room.wait(|| files.clear(&file, header.bytes))?;
        files.write(&file, &[&header.encode(), begins_with].concat(), 0)?;
        files.sync(&file);
        files.room.wait(|| files.rename(&new, &path))?;
        files.sync_dir(dir)?;
        Ok(Writer::on(header, file, header.begun))
    }

    /// Goes on with the newest segment that was found, and syncs it.
    fn go_on(
        dir: &Path,
        files: &Files,
        header: Header,
        found: &Recovered,
    ) -> std::io::Result<Writer> {
        let (end, torn_end) = (found.end as u64, found.torn_end as u64);
        let file = files.open(&recover::path(dir, header.number), false)?;
        // Once more: what may never have been synced. After a sync that failed, the kernel keeps it in memory as if it
        // were on disk: it is read back, and the next sync does nothing about it.
        let mut bytes = vec![0; (end - found.recorded) as usize];
        file.read_exact_at(&mut bytes, found.recorded)?;
        files.write_now(&file, &bytes, found.recorded)?;
        files.try_sync(&file)?;
        let mut writer = Writer::on(header, file, end);
        if torn_end > end {
            tracing::info!(
                segment = header.number,
                at = end,
                "dropped a write that a crash cut short"
            );
            // It stays there, and the next batch begins another segment. Zeros in its place may never get to the disk,
            // although they are read: then old batches would follow new ones.
            writer.header.bytes = end;
        }
        Ok(writer)
    }
}

/// Reads the entries from `low` on, and compares them with their checksums.
fn read(dir: &Path, low: u64, found: &[(Place, Arc<File>)]) -> Result<Vec<Entry>, LogError> {
    let mut entries = Vec::with_capacity(found.len());
    let mut bytes = Vec::new();
    for (index, (place, file)) in (low..).zip(found) {
        bytes.resize(place.len as usize, 0);
        file.read_exact_at(&mut bytes, place.offset.into())?;
        let whole = crc32fast::hash(&bytes) == place.sum;
        match format::decode_entry(index, &bytes) {
            Ok(entry) if whole => entries.push(entry),
            _ => {
                let (at, len) = (place.offset as usize, place.len as usize);
                let what = "an entry is not as it was written";
                let what = recover::damage(place.segment, (at, at + len), what);
                return Err(lost(dir, what));
            }
        }
    }
    Ok(entries)
}

impl EntryReader for DiskLog {
    fn entries(
        &self,
        shard: u32,
        low: u64,
        high: u64,
        max_bytes: u64,
    ) -> Result<Vec<Entry>, ReadFailed> {
        let failed = |error| read_failed(shard, low, high, error);
        let found = self.shared().find(shard, low, high, max_bytes);
        let found = found.map_err(failed)?;
        if found.is_empty() {
            return Err(read_failed(shard, low, high, "no such entries"));
        }
        read(&self.dir, low, &found).map_err(failed)
    }

    fn term(&self, shard: u32, index: u64) -> Result<u64, ReadFailed> {
        let shared = self.shared();
        let term = shared.index.get(&shard).and_then(|log| log.term(index));
        term.ok_or_else(|| read_failed(shard, index, index + 1, "no such entry"))
    }
}

impl LogStore for DiskLog {
    fn load(&self, shard: u32) -> Result<LogState, LogError> {
        let shared = self.shared();
        let state = shared.index.get(&shard).map(|log| log.state.clone());
        Ok(state.unwrap_or_default())
    }

    fn write(&self, writes: &[Write]) -> Result<(), LogError> {
        self.write_as(writes, false).map(drop)
    }

    fn write_if_short(&self, writes: &[Write]) -> Result<bool, LogError> {
        self.write_as(writes, true)
    }

    fn compact(&self, shard: u32, through: u64) -> Result<(), LogError> {
        let how = How {
            sync: false,
            if_short: false,
        };
        let put = self.put(how, |batch| {
            let shared = self.shared();
            let log = shared.index.get(&shard);
            if let Some(state) = log.and_then(|log| log.compacted(through)) {
                format::put(batch, shard, Some(&state), None, &[]);
            }
            Ok(())
        });
        put.map(drop)
    }

    fn purge(&self) -> Result<Vec<u32>, LogError> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(LogError::Stopped);
        }
        let deleted = self.delete_free();
        deleted.map_err(io_failed("can't delete old segments"))?;
        let shared = self.shared();
        let mut excess = shared.used_bytes().saturating_sub(self.options.bytes_max);
        let too_old = shared.segments.iter().take_while(|(_, bytes)| {
            let exceeds = excess > 0;
            excess = excess.saturating_sub(**bytes);
            exceeds
        });
        let newest_of_them = too_old.last().map(|(number, _)| *number);
        let shards = shared.index.iter();
        let named = shards.filter(|(_, log)| {
            let oldest = oldest_segment(log);
            oldest.is_some() && oldest <= newest_of_them
        });
        Ok(named.map(|(shard, _)| *shard).collect())
    }

    fn stats(&self) -> LogStats {
        LogStats {
            bytes_written: self.files.bytes_written.load(Ordering::Relaxed),
            syncs: self.files.syncs.load(Ordering::Relaxed),
            used_bytes: self.shared().used_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_write_that_must_be_short_waits_for_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let options = LogOptions {
            segment_bytes: 1 << 20,
            bytes_max: 4 << 20,
        };
        let log = DiskLog::open(&dir.path().join("log"), &options).unwrap();
        let writes = [Write::bootstrap(0, &[1])];
        log.write(&writes).unwrap();
        let other = log.writer();
        assert!(!log.write_if_short(&writes).unwrap());
        drop(other);
        assert!(log.write_if_short(&writes).unwrap());
    }
}
