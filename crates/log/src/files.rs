//! What the log does to its files. A write waits while the disk is full; a sync that fails ends the process.

use std::fs::{self, File};
use std::io::Result;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::FallocateFlags;

use crate::room::Room;

#[derive(Default)]
pub(crate) struct Files {
    pub room: Room,
    pub bytes_written: AtomicU64,
    pub syncs: AtomicU64,
    /// Sees each operation first, and may have it fail.
    #[cfg(test)]
    pub disk: crate::test_disk::TestDisk,
}

impl Files {
    /// Makes a folder, and those above it.
    pub fn create_dirs(&self, path: &Path) -> Result<()> {
        #[cfg(test)]
        self.disk.create_dirs(path)?;
        fs::create_dir_all(path)
    }

    /// Opens a file for reading and writing. With `create` it is made if it is missing.
    pub fn open(&self, path: &Path, create: bool) -> Result<File> {
        #[cfg(test)]
        self.disk.open(path)?;
        let mut options = File::options();
        options
            .read(true)
            .write(true)
            .create(create)
            .truncate(false);
        let file = options.open(path)?;
        #[cfg(test)]
        self.disk.opened(path, &file);
        Ok(file)
    }

    /// Empties a file and gives it a length.
    pub fn clear(&self, file: &File, bytes: u64) -> Result<()> {
        #[cfg(test)]
        self.disk.clear(file, bytes)?;
        file.set_len(0)?;
        file.set_len(bytes)
    }

    /// Writes all of it. What fails for want of room is done again at the same place.
    pub fn write(&self, file: &File, bytes: &[u8], at: u64) -> Result<()> {
        self.room.wait(|| self.write_now(file, bytes, at))?;
        self.count_written(bytes.len() as u64);
        Ok(())
    }

    pub fn count_written(&self, bytes: u64) {
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Writes all of it, or fails if there is no room.
    pub fn write_now(&self, file: &File, bytes: &[u8], at: u64) -> Result<()> {
        #[cfg(test)]
        let (bytes, written) = self.disk.write(file, bytes, at);
        file.write_all_at(bytes, at)?;
        #[cfg(test)]
        written?;
        Ok(())
    }

    /// Syncs the data of a file, and its length.
    pub fn try_sync(&self, file: &File) -> Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        #[cfg(test)]
        return self.disk.sync(file);
        #[cfg(not(test))]
        file.sync_data()
    }

    /// The same.
    ///
    /// # Panics
    /// The sync fails. Nobody knows then what is on disk: the kernel forgets which pages it could not write, so
    /// trying again "succeeds".
    pub fn sync(&self, file: &File) {
        if let Err(error) = self.try_sync(file) {
            panic!("a log file could not be synced: {error}");
        }
    }

    pub fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        #[cfg(test)]
        self.disk.rename(from, to)?;
        fs::rename(from, to)
    }

    pub fn remove(&self, path: &Path) -> Result<()> {
        #[cfg(test)]
        self.disk.remove(path)?;
        fs::remove_file(path)
    }

    /// Deletes an empty folder.
    pub fn remove_dir(&self, path: &Path) -> Result<()> {
        #[cfg(test)]
        self.disk.remove(path)?;
        fs::remove_dir(path)
    }

    /// Syncs the names in a folder.
    pub fn sync_dir(&self, path: &Path) -> Result<()> {
        #[cfg(test)]
        return self.disk.sync_dir(path);
        #[cfg(not(test))]
        File::open(path)?.sync_all()
    }

    /// Has the disk set bytes of a file aside. Failures are left to the write that needs the room.
    pub fn allocate(&self, file: &File, from: u64, bytes: u64) {
        let _ = rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, from, bytes);
    }
}
