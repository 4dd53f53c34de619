//! Writes and syncs of the log's files. A write waits while the disk is full; a sync that fails ends the process.

use std::fs::File;
use std::io::Result;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::FallocateFlags;

use crate::room::Room;

#[derive(Default)]
pub(crate) struct Files {
    pub room: Room,
    pub bytes_written: AtomicU64,
    pub syncs: AtomicU64,
    #[cfg(test)]
    pub faults: Faults,
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
    fn check_write(&self, file: &File, bytes: &[u8], at: u64) -> Result<()> {
        use std::io::{Error, ErrorKind};
        if self.write.load(Ordering::Relaxed) {
            return Err(Error::other("injected"));
        }
        if self.full.load(Ordering::Relaxed) {
            file.write_all_at(bytes.get(..bytes.len() / 2).unwrap_or_default(), at)?;
            return Err(Error::new(ErrorKind::StorageFull, "nospace"));
        }
        Ok(())
    }
}

impl Files {
    /// Writes all of it. What fails for want of room is done again at the same place.
    pub fn write(&self, file: &File, bytes: &[u8], at: u64) -> Result<()> {
        self.room.wait(|| {
            #[cfg(test)]
            self.faults.check_write(file, bytes, at)?;
            file.write_all_at(bytes, at)
        })?;
        self.bytes_written
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Syncs the data of a file.
    ///
    /// # Panics
    /// The sync fails. Nobody knows then what is on disk: the kernel forgets which pages it could not write, so
    /// trying again "succeeds".
    pub fn sync(&self, file: &File) {
        #[cfg(test)]
        assert!(!self.faults.sync.load(Ordering::Relaxed), "injected");
        if let Err(error) = file.sync_data() {
            panic!("a log file could not be synced: {error}");
        }
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    /// Has the disk set bytes of a file aside. Failures are left to the write that needs the room.
    pub fn allocate(&self, file: &File, from: u64, bytes: u64) {
        let _ = rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, from, bytes);
    }
}
