//! The snapshots that operators download, a chunk at a time.
//!
//! A snapshot file is replaced as a whole and never changed, so a hard link keeps the one that a download began with,
//! for no more than the disk space of an old file. Links are dropped when a download ends or stops for a minute, and
//! at the next start.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nowserving_protocol::backup::{BACKUP_CHUNK_MAX, BackupChunkReply, BackupReply, Blob};
use nowserving_protocol::error::{ApiError, Code};

use crate::data_dir::random_u64;
use crate::shards::snapshots::file_name;

/// A snapshot is dropped this long after its last chunk was asked for.
pub const KEPT_FOR: Duration = Duration::from_secs(60);
/// The most snapshots that are kept at once.
const KEPT_MAX: usize = 4;

#[derive(Debug, Default)]
pub struct Backups {
    snapshots: PathBuf,
    dir: PathBuf,
    kept: Mutex<Vec<Kept>>,
}

#[derive(Debug)]
struct Kept {
    id: String,
    bytes: u64,
    asked_at: Instant,
}

impl Backups {
    /// Keeps links to the files of `snapshots` in `dir`, which is emptied.
    ///
    /// # Errors
    /// The folder can't be emptied or made.
    pub fn open(snapshots: PathBuf, dir: PathBuf) -> anyhow::Result<Backups> {
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| dir.display().to_string());
            }
            _ => fs::create_dir(&dir).with_context(|| dir.display().to_string())?,
        }
        Ok(Backups {
            snapshots,
            dir,
            kept: Mutex::default(),
        })
    }

    /// Begins a download of the newest snapshot of a shard, if it is `ready`.
    ///
    /// # Errors
    /// `overloaded`: too many downloads are under way. `unavailable`: the file can't be kept.
    pub fn begin(&self, shard: u32, index: u64, ready: bool) -> Result<BackupReply, ApiError> {
        let mut reply = BackupReply {
            shard,
            index,
            id: None,
            bytes: None,
        };
        if !ready {
            return Ok(reply);
        }
        self.sweep();
        let mut kept = self.lock();
        if kept.len() >= KEPT_MAX {
            let error =
                "this node keeps as many snapshots for downloads as it may; nothing happened";
            return Err(ApiError::new(Code::Overloaded, error).retry_after_ms(1_000));
        }
        let new = self.link(shard).map_err(|error| {
            let text = format!("the snapshot of shard {shard} can't be kept: {error:#}");
            tracing::warn!("{text}");
            ApiError::new(Code::Unavailable, text).retry_after_ms(1_000)
        })?;
        (reply.id, reply.bytes) = (Some(new.id.clone()), Some(new.bytes));
        kept.push(new);
        Ok(reply)
    }

    /// A chunk of so many bytes at most; at the end of the snapshot, drops it.
    pub fn chunk(&self, id: &str, offset: u64, bytes_max: usize) -> BackupChunkReply {
        let mut kept = self.lock();
        let place = kept.iter().position(|it| it.id == id);
        let data = place.and_then(|place| {
            if offset >= kept[place].bytes {
                let it = kept.remove(place);
                self.unlink(&it);
                return Some(Vec::new());
            }
            kept[place].asked_at = Instant::now();
            drop(kept);
            let read = self.read(id, offset, bytes_max.min(BACKUP_CHUNK_MAX));
            read.inspect_err(|error| tracing::warn!(%error, id, "a snapshot's chunk can't be read"))
                .ok()
        });
        BackupChunkReply {
            offset,
            data: data.map(Blob),
        }
    }

    /// Drops the snapshots that nobody asked for in a while.
    pub fn sweep(&self) {
        let mut kept = self.lock();
        for old in kept.extract_if(.., |it| it.asked_at.elapsed() >= KEPT_FOR) {
            self.unlink(&old);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link(&self, shard: u32) -> anyhow::Result<Kept> {
        let id = format!("{:016x}", random_u64()?);
        let path = self.dir.join(&id);
        fs::hard_link(self.snapshots.join(file_name(shard)), &path)?;
        Ok(Kept {
            bytes: fs::metadata(&path)?.len(),
            id,
            asked_at: Instant::now(),
        })
    }

    fn read(&self, id: &str, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut file = File::open(self.dir.join(id))?;
        file.seek(SeekFrom::Start(offset))?;
        let mut data = Vec::new();
        file.take(bytes as u64).read_to_end(&mut data)?;
        Ok(data)
    }

    fn unlink(&self, kept: &Kept) {
        if let Err(error) = fs::remove_file(self.dir.join(&kept.id)) {
            tracing::warn!(%error, id = kept.id, "a snapshot that was downloaded can't be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn data(backups: &Backups, id: &str, offset: u64) -> Option<Vec<u8>> {
        let chunk = backups.chunk(id, offset, usize::MAX);
        chunk.data.map(|data| data.0)
    }

    #[test]
    fn a_download_gets_the_file_that_it_began_with() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backups");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("left-over"), "x").unwrap();
        let backups = Backups::open(dir.path().to_owned(), path.clone()).unwrap();
        let links = || fs::read_dir(&path).unwrap().count();
        assert_eq!(links(), 0);
        assert_eq!(
            backups.begin(3, 9, true).unwrap_err().code,
            Code::Unavailable
        );
        let first = vec![7; BACKUP_CHUNK_MAX + 5];
        fs::write(dir.path().join(file_name(3)), &first).unwrap();
        assert_eq!(backups.begin(3, 9, false).unwrap().id, None);
        let begun = backups.begin(3, 9, true).unwrap();
        assert_eq!(begun.bytes, Some(first.len() as u64));
        crate::data_dir::write_atomically(dir.path(), &file_name(3), b"newer").unwrap();
        let id = begun.id.unwrap();
        let small = backups.chunk(&id, 0, 9).data.unwrap().0;
        assert_eq!(small, &first[..9]);
        let chunk = data(&backups, &id, 0).unwrap();
        assert_eq!(chunk.len(), BACKUP_CHUNK_MAX);
        let rest = data(&backups, &id, chunk.len() as u64).unwrap();
        assert_eq!([chunk, rest].concat(), first);
        assert_eq!(links(), 1);
        assert_eq!(data(&backups, &id, first.len() as u64).unwrap(), b"");
        assert_eq!((links(), data(&backups, &id, 0)), (0, None));
        assert_eq!(data(&backups, "../shard-3.snap", 0), None);
        for _ in 0..KEPT_MAX {
            backups.begin(3, 9, true).unwrap();
        }
        assert_eq!(
            backups.begin(3, 9, true).unwrap_err().code,
            Code::Overloaded
        );
        for kept in &mut *backups.lock() {
            kept.asked_at -= KEPT_FOR;
        }
        backups.sweep();
        assert_eq!(links(), 0);
        backups.begin(3, 9, true).unwrap();
    }
}
