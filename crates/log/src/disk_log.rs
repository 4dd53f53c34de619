//! The log on disk.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nowserving_codec::Writer as Encoder;
use nowserving_replica::{EntryReader, LogState, ReadFailed, Write};
use raft::eraftpb::Entry;

use crate::files::Files;
use crate::format::{self, BATCH_HEADER_BYTES, Header};
use crate::memory::MemoryLog;
use crate::recover::{self, Recovered};
use crate::room::OnFull;
use crate::shard_log::{self, Index, Place, ShardLog};
use crate::synced::SyncedRecord;
use crate::{LogError, LogStats, LogStore, io_failed, lost, read_failed};

/// The disk sets so many bytes of a segment aside at a time.
const ALLOCATE_BYTES: u64 = 2 << 20;
/// Offsets in a segment have 32 bits.
const BATCH_BYTES_MAX: u64 = 1 << 30;
/// Larger batches give their memory back.
const BUFFER_BYTES_MAX: usize = 4 << 20;

/// The sizes of a log on disk.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The size of a segment: space is freed segment by segment, and a torn write can only be in the newest one.
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
    index: Index,
    segments: BTreeMap<u32, Segment>,
}

struct Segment {
    file: Arc<File>,
    /// The bytes that it takes.
    bytes: u64,
}

impl Shared {
    fn open(dir: &Path, recovered: Recovered) -> std::io::Result<Shared> {
        let mut options = File::options();
        options.read(true).write(true);
        let open = |header: &Header| {
            let file = Arc::new(options.open(recover::path(dir, header.number))?);
            let bytes = header.bytes;
            Ok((header.number, Segment { file, bytes }))
        };
        let segments = recovered.segments.iter().map(open);
        Ok(Shared {
            segments: segments.collect::<std::io::Result<_>>()?,
            index: recovered.index,
        })
    }

    fn used_bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.bytes).sum()
    }

    /// The newest segment has a file of so many bytes.
    fn put(&mut self, writer: &Writer) {
        let (file, bytes) = (writer.file.clone(), writer.end);
        let segment = Segment { file, bytes };
        self.segments.insert(writer.header.number, segment);
    }

    /// Where entries are: as many as stay within `max_bytes`, and at least one.
    fn find(
        &self,
        shard: u32,
        low: u64,
        high: u64,
        max_bytes: u64,
    ) -> Option<Vec<(Place, Arc<File>)>> {
        let mut bytes = 0;
        let mut found = Vec::new();
        for place in self.index.get(&shard)?.range(low, high)? {
            bytes += u64::from(place.len);
            if bytes > max_bytes && !found.is_empty() {
                break;
            }
            let segment = self.segments.get(&place.segment)?;
            found.push((*place, segment.file.clone()));
        }
        Some(found)
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
        fs::create_dir_all(dir)?;
        let lock = File::open(dir)?;
        let locked = lock.try_lock().map_err(std::io::Error::from);
        locked.map_err(io_failed("can't open it for this process alone"))?;
        let recovered = recover::recover(dir)?;
        for path in &recovered.leftovers {
            fs::remove_file(path)?;
        }
        let (end, torn_end) = (recovered.end as u64, recovered.torn_end as u64);
        let recorded = recovered.recorded;
        let newest = recovered.segments.last().copied();
        let mut synced = recovered.synced;
        synced.first = synced.first.max(1);
        let mut shared = Shared::open(dir, recovered)?;
        let files = Arc::<Files>::default();
        // Before the first segment: without the record that would have been lost.
        let record = SyncedRecord::begin(dir, synced, files.clone())?;
        let writer = match newest.zip(shared.segments.values().last()) {
            Some((header, segment)) => {
                let writer = Writer::on(header, segment.file.clone(), end);
                writer.write_again(recorded)?;
                writer.cut(torn_end)?;
                writer
            }
            None => Writer::make(dir, &files, new_header(synced.first, options), &mut [])?,
        };
        shared.put(&writer);
        // The name of the log's folder, and of the one with it.
        for path in dir.ancestors().take(2).filter(|it| *it != "") {
            File::open(path)?.sync_all()?;
        }
        record.synced(writer.header.number, writer.end)?;
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
        let shared = Shared::open(dir, recovered)?;
        let log = MemoryLog::new();
        for (shard, known) in &shared.index {
            let state = known.state.clone();
            let (low, high) = (state.compact_index + 1, state.last_index + 1);
            let found = shared.find(*shard, low, high, u64::MAX);
            let entries = read(dir, low, &found.unwrap_or_default())?;
            log.put(*shard, state, entries);
        }
        Ok(log)
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

    /// Writes a batch with the records that `encode` adds, if there are any.
    fn put(&self, sync: bool, encode: impl FnOnce(&mut Encoder)) -> Result<(), LogError> {
        let writer = self.writer.lock();
        let writer = &mut *writer.unwrap_or_else(PoisonError::into_inner);
        if self.stopped.load(Ordering::Acquire) {
            return Err(LogError::Stopped);
        }
        let mut batch = std::mem::take(&mut writer.buffer);
        batch.clear();
        batch.resize(BATCH_HEADER_BYTES, 0);
        let mut encoder = Encoder::after(batch, format::FORMAT);
        encode(&mut encoder);
        let mut batch = encoder.into_bytes();
        let written = match batch.len() > BATCH_HEADER_BYTES {
            true => self.put_batch(writer, &mut batch, sync),
            false => Ok(()),
        };
        if batch.capacity() <= BUFFER_BYTES_MAX {
            writer.buffer = batch;
        }
        if written.is_err() {
            self.stopped.store(true, Ordering::Release);
        }
        written.map_err(io_failed(format!("can't write in {}", self.dir.display())))
    }

    fn put_batch(&self, writer: &mut Writer, batch: &mut [u8], sync: bool) -> std::io::Result<()> {
        let len = batch.len() as u64;
        if len > BATCH_BYTES_MAX {
            return Err(std::io::Error::other("a batch is too large"));
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
        self.files.write(&writer.file, batch, writer.end)?;
        let records_at = writer.end as usize + BATCH_HEADER_BYTES;
        let number = writer.header.number;
        writer.end += len;
        if sync {
            self.files.sync(&writer.file);
            writer.synced = writer.end;
            self.record.synced(number, writer.end)?;
        }
        let shared = &mut *self.shared();
        shared.put(writer);
        let records = &batch[BATCH_HEADER_BYTES..];
        let applied = shard_log::apply(&mut shared.index, number, records_at, records);
        applied.map_err(std::io::Error::other)
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
        let (first, newest, end) = {
            let shared = self.shared();
            let Some((newest, segment)) = shared.segments.last_key_value() else {
                return Ok(());
            };
            let oldest = shared.index.values().filter_map(oldest_segment).min();
            let first = oldest.unwrap_or(*newest);
            if shared.segments.range(..first).next().is_none() {
                return Ok(());
            }
            (first, *newest, segment.bytes)
        };
        // What freed them. The kernel tells an opened file of a failed write once: opened anew, it takes no failure away
        // from the one who writes.
        self.files
            .sync(&File::open(recover::path(&self.dir, newest))?);
        self.record.deleting(first, newest, end)?;
        let free = {
            let mut shared = self.shared();
            let kept = shared.segments.split_off(&first);
            std::mem::replace(&mut shared.segments, kept)
        };
        for number in free.keys() {
            fs::remove_file(recover::path(&self.dir, *number))?;
        }
        File::open(&self.dir)?.sync_all()
    }
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
    fn on(header: Header, file: Arc<File>, end: u64) -> Writer {
        Writer {
            header,
            file,
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
        let mut open = File::options();
        open.read(true).write(true).create(true).truncate(true);
        let file = files.room.wait(|| open.open(&new))?;
        files.room.wait(|| file.set_len(header.bytes))?;
        files.write(&file, &[&header.encode(), begins_with].concat(), 0)?;
        files.sync(&file);
        files.room.wait(|| fs::rename(&new, &path))?;
        File::open(dir)?.sync_all()?;
        Ok(Writer::on(header, Arc::new(file), header.begun))
    }

    /// Writes what may never have been synced once more. After a sync that failed, the kernel keeps it in memory as if it
    /// were on disk: it is read back, and the next sync does nothing about it.
    fn write_again(&self, from: u64) -> std::io::Result<()> {
        let mut bytes = vec![0; (self.end - from) as usize];
        self.file.read_exact_at(&mut bytes, from)?;
        self.file.write_all_at(&bytes, from)
    }

    /// Removes what a crash left behind the last whole batch, and syncs all before it.
    fn cut(&self, torn_end: u64) -> std::io::Result<()> {
        if torn_end > self.end {
            let (segment, at) = (self.header.number, self.end);
            tracing::info!(segment, at, "dropped a write that a crash cut short");
            let zeros = vec![0; (torn_end - self.end) as usize];
            self.file.write_all_at(&zeros, self.end)?;
        }
        self.file.sync_all()
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
        let found = self.shared().find(shard, low, high, max_bytes);
        let found = found.ok_or_else(|| read_failed(shard, low, high, "no such entries"))?;
        let entries = read(&self.dir, low, &found);
        entries.map_err(|error| read_failed(shard, low, high, error))
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
        let sync = writes.iter().any(|write| write.must_sync);
        self.put(sync, |batch| {
            for write in writes {
                let start = write.start.as_ref().map(shard_log::starting);
                let (start, hard_state) = (start.as_ref(), write.hard_state.as_ref());
                format::put(batch, write.shard, start, hard_state, &write.entries);
            }
        })
    }

    fn compact(&self, shard: u32, through: u64) -> Result<(), LogError> {
        self.put(false, |batch| {
            let shared = self.shared();
            let log = shared.index.get(&shard);
            if let Some(state) = log.and_then(|log| log.compacted(through)) {
                format::put(batch, shard, Some(&state), None, &[]);
            }
        })
    }

    fn purge(&self) -> Result<Vec<u32>, LogError> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(LogError::Stopped);
        }
        let deleted = self.delete_free();
        deleted.map_err(io_failed("can't delete old segments"))?;
        let shared = self.shared();
        let mut excess = shared.used_bytes().saturating_sub(self.options.bytes_max);
        let too_old = shared.segments.iter().take_while(|(_, segment)| {
            let exceeds = excess > 0;
            excess = excess.saturating_sub(segment.bytes);
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
