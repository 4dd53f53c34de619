//! The engine's files. They forward calls to the disk, wait while it is full, count bytes, and report syncs to
//! the [`SyncedRecord`].

use std::io::{Result, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use raft_engine::env::{DefaultFileSystem, FileSystem, Handle, Permission, WriteExt};

use crate::room::Room;
use crate::synced_record::{LogFile, SyncedRecord};

type DiskHandle = <DefaultFileSystem as FileSystem>::Handle;
type DiskWriter = <DefaultFileSystem as FileSystem>::Writer;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub bytes_written: AtomicU64,
    pub syncs: AtomicU64,
}

/// Switched on by tests: the next sync, or every write, fails; or every write has room for half of it.
#[derive(Debug, Default)]
#[cfg(test)]
pub(crate) struct Faults {
    pub sync: std::sync::atomic::AtomicBool,
    pub write: std::sync::atomic::AtomicBool,
    pub full: std::sync::atomic::AtomicBool,
}

#[cfg(test)]
impl Faults {
    fn check_write(&self, disk: &mut DiskWriter, bytes: &[u8]) -> Result<()> {
        use std::io::{Error, ErrorKind};
        if self.write.load(Ordering::Relaxed) {
            return Err(Error::other("injected"));
        }
        if self.full.load(Ordering::Relaxed) {
            let written = disk.write(bytes.get(..bytes.len() / 2).unwrap_or_default())?;
            disk.seek(SeekFrom::Current(-(written as i64)))?;
            return Err(Error::new(ErrorKind::StorageFull, "nospace"));
        }
        Ok(())
    }
}

pub struct Files {
    pub(crate) record: Arc<SyncedRecord>,
    pub(crate) room: Arc<Room>,
    pub(crate) counters: Arc<Counters>,
    #[cfg(test)]
    pub(crate) faults: Arc<Faults>,
}

pub struct FileHandle {
    disk: Arc<DiskHandle>,
    file: Option<LogFile>,
    /// The end of this process's writes.
    written: AtomicU64,
    record: Arc<SyncedRecord>,
    room: Arc<Room>,
    counters: Arc<Counters>,
    #[cfg(test)]
    faults: Arc<Faults>,
}

pub struct FileWriter {
    disk: DiskWriter,
    handle: Arc<FileHandle>,
    offset: u64,
}

impl Files {
    fn handle(&self, path: &Path, disk: DiskHandle) -> FileHandle {
        FileHandle {
            disk: Arc::new(disk),
            file: LogFile::parse(path),
            written: AtomicU64::new(0),
            record: self.record.clone(),
            room: self.room.clone(),
            counters: self.counters.clone(),
            #[cfg(test)]
            faults: self.faults.clone(),
        }
    }
}

impl FileSystem for Files {
    type Handle = FileHandle;
    type Reader = <DefaultFileSystem as FileSystem>::Reader;
    type Writer = FileWriter;

    fn create<P: AsRef<Path>>(&self, path: P) -> Result<FileHandle> {
        let created = self.room.wait(|| DefaultFileSystem.create(path.as_ref()))?;
        Ok(self.handle(path.as_ref(), created))
    }

    fn open<P: AsRef<Path>>(&self, path: P, permission: Permission) -> Result<FileHandle> {
        Ok(self.handle(
            path.as_ref(),
            DefaultFileSystem.open(path.as_ref(), permission)?,
        ))
    }

    fn delete<P: AsRef<Path>>(&self, path: P) -> Result<()> {
        if let Some(file) = LogFile::parse(path.as_ref()) {
            self.record.deleting(file)?;
        }
        DefaultFileSystem.delete(path)
    }

    fn rename<P: AsRef<Path>>(&self, from: P, to: P) -> Result<()> {
        DefaultFileSystem.rename(from, to)
    }

    fn new_reader(&self, handle: Arc<FileHandle>) -> Result<Self::Reader> {
        DefaultFileSystem.new_reader(handle.disk.clone())
    }

    fn new_writer(&self, handle: Arc<FileHandle>) -> Result<FileWriter> {
        Ok(FileWriter {
            disk: DefaultFileSystem.new_writer(handle.disk.clone())?,
            handle,
            offset: 0,
        })
    }
}

impl Handle for FileHandle {
    fn truncate(&self, offset: usize) -> Result<()> {
        self.disk.truncate(offset)
    }

    fn file_size(&self) -> Result<usize> {
        self.disk.file_size()
    }

    fn sync(&self) -> Result<()> {
        #[cfg(test)]
        if self.faults.sync.load(Ordering::Relaxed) {
            return Err(std::io::Error::other("injected"));
        }
        let written = self.written.load(Ordering::Acquire);
        self.disk.sync()?;
        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        if let Some(file) = self.file {
            self.record.synced(file, written);
        }
        Ok(())
    }
}

impl Write for FileWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        // A write that fails does not move on: the next attempt is made at the same offset.
        let count = self.handle.room.wait(|| {
            #[cfg(test)]
            self.handle.faults.check_write(&mut self.disk, bytes)?;
            self.disk.write(bytes)
        })?;
        self.offset += count as u64;
        self.handle.written.store(self.offset, Ordering::Release);
        self.handle
            .counters
            .bytes_written
            .fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    fn flush(&mut self) -> Result<()> {
        self.disk.flush()
    }
}

impl Seek for FileWriter {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        self.offset = self.disk.seek(to)?;
        Ok(self.offset)
    }
}

impl WriteExt for FileWriter {
    fn truncate(&mut self, offset: usize) -> Result<()> {
        self.disk.truncate(offset)?;
        self.offset = offset as u64;
        self.handle.written.store(self.offset, Ordering::Release);
        Ok(())
    }

    /// Failures are left to the write that needs the room: this only allocates ahead.
    fn allocate(&mut self, offset: usize, size: usize) -> Result<()> {
        let _ = self.disk.allocate(offset, size);
        Ok(())
    }
}
