//! The engine's files as copies in memory: a log is opened to be looked at, and nothing on disk changes.

use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use raft_engine::env::{FileSystem, Handle, Permission, WriteExt};

/// The files by path, each with its length without what a crash left at its end.
pub(crate) struct Copies(pub Vec<(PathBuf, usize)>);

/// The content of a file.
#[derive(Default)]
pub(crate) struct Copy(Mutex<Vec<u8>>);

pub(crate) struct Cursor {
    copy: Arc<Copy>,
    at: usize,
}

impl FileSystem for Copies {
    type Handle = Copy;
    type Reader = Cursor;
    type Writer = Cursor;

    fn create<P: AsRef<Path>>(&self, _path: P) -> Result<Copy> {
        Ok(Copy::default())
    }

    fn open<P: AsRef<Path>>(&self, path: P, _permission: Permission) -> Result<Copy> {
        let path = path.as_ref();
        let mut bytes = std::fs::read(path)?;
        if let Some((_, length)) = self.0.iter().find(|(known, _)| known == path) {
            bytes.truncate(*length);
        }
        Ok(Copy(Mutex::new(bytes)))
    }

    fn delete<P: AsRef<Path>>(&self, _path: P) -> Result<()> {
        Ok(())
    }

    fn rename<P: AsRef<Path>>(&self, _from: P, _to: P) -> Result<()> {
        Ok(())
    }

    fn new_reader(&self, copy: Arc<Copy>) -> Result<Cursor> {
        Ok(Cursor { copy, at: 0 })
    }

    fn new_writer(&self, copy: Arc<Copy>) -> Result<Cursor> {
        Ok(Cursor { copy, at: 0 })
    }
}

impl Copy {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handle for Copy {
    fn truncate(&self, offset: usize) -> Result<()> {
        self.bytes().truncate(offset);
        Ok(())
    }

    fn file_size(&self) -> Result<usize> {
        Ok(self.bytes().len())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

impl Read for Cursor {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        let bytes = self.copy.bytes();
        let count = bytes.get(self.at..).unwrap_or_default().read(into)?;
        self.at += count;
        Ok(count)
    }
}

impl Write for Cursor {
    fn write(&mut self, from: &[u8]) -> Result<usize> {
        let mut bytes = self.copy.bytes();
        let end = self.at + from.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[self.at..end].copy_from_slice(from);
        self.at = end;
        Ok(from.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Seek for Cursor {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let (from, by) = match to {
            SeekFrom::Start(offset) => (offset, 0),
            SeekFrom::Current(by) => (self.at as u64, by),
            SeekFrom::End(by) => (self.copy.bytes().len() as u64, by),
        };
        let at = from.checked_add_signed(by);
        let at = at.ok_or_else(|| Error::from(ErrorKind::InvalidInput))?;
        self.at = usize::try_from(at).map_err(Error::other)?;
        Ok(at)
    }
}

impl WriteExt for Cursor {
    fn truncate(&mut self, offset: usize) -> Result<()> {
        self.copy.bytes().truncate(offset);
        self.at = offset;
        Ok(())
    }

    fn allocate(&mut self, _offset: usize, _size: usize) -> Result<()> {
        Ok(())
    }
}
