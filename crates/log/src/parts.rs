//! The parts of a node's log: one log of its own for each of the node's loops. Of n parts, shard i is in part i mod n.
//!
//! ```text
//! log              one part: the folder of that log. Several: a file with their number
//! log.parts-3/0..2 the parts, if there are three
//! log.parts-1      what was the folder `log`, while the number of parts changes
//! ```
//!
//! A start with another number copies all shards into new parts, syncs them, and changes what is `log` in one step. So a
//! crash leaves either the old parts or the new ones, whole, and the rest is deleted at the next start. A build that knows
//! no parts does not start where there are several: it can't make a folder where the file is.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nowserving_replica::{EntryReader as _, LogState, Write};

use crate::disk_log::DiskLog;
use crate::files::Files;
use crate::memory::MemoryLog;
use crate::{LogError, LogOptions, LogStore as _, format, io_failed, lost};

const MAGIC: &[u8; 8] = b"nsvparts";
/// Entries are copied so many bytes at a time.
const COPIED_BYTES: u64 = 1 << 20;

/// Opens the log of a node in `dir`, in so many parts. If it is there in another number of parts, it is moved to new ones
/// first. Only one process can have it open.
///
/// # Errors
/// As [`DiskLog::open`], of any part.
pub fn open(dir: &Path, parts: u32, options: &LogOptions) -> Result<Vec<DiskLog>, LogError> {
    open_with(&Arc::default(), dir, parts, options)
}

pub(crate) fn open_with(
    files: &Arc<Files>,
    dir: &Path,
    parts: u32,
    options: &LogOptions,
) -> Result<Vec<DiskLog>, LogError> {
    let place = Place::of(files, dir)?;
    let known = place.tidy()?;
    if known != parts {
        place.move_to(known, parts, options)?;
    }
    place.open(parts, options)
}

/// Reads the log in `dir`, of all parts, into memory, after the same checks as [`open`]. Nothing changes.
///
/// # Errors
/// As [`DiskLog::look_at`], of any part.
pub fn look_at(dir: &Path) -> Result<MemoryLog, LogError> {
    let files = Arc::default();
    let place = Place::of(&files, dir)?;
    let parts = place.known()?;
    let folders = place.folders(parts.unwrap_or(1), parts.is_none());
    if let [folder] = folders.as_slice() {
        return DiskLog::look_at(folder);
    }
    let log = MemoryLog::new();
    for folder in folders {
        log.take_all(&DiskLog::look_at(&folder)?);
    }
    Ok(log)
}

/// Whether there is a log in `dir`, in any number of parts.
#[must_use]
pub fn are_there(dir: &Path) -> bool {
    let files = Arc::default();
    let moved = Place::of(&files, dir).is_ok_and(|place| place.beside(1).exists());
    moved || dir.exists()
}

/// Deletes the log in `dir`, in any number of parts.
///
/// # Errors
/// Something can't be deleted.
pub fn remove(dir: &Path) -> Result<(), LogError> {
    let files = Arc::default();
    let place = Place::of(&files, dir)?;
    place.remove_all(&place.dir)?;
    Ok(place.remove_others(None)?)
}

struct Place<'a> {
    files: &'a Arc<Files>,
    dir: PathBuf,
    parent: PathBuf,
    name: String,
}

impl<'a> Place<'a> {
    fn of(files: &'a Arc<Files>, dir: &Path) -> Result<Self, LogError> {
        let name = dir.file_name().and_then(|it| it.to_str());
        let (Some(parent), Some(name)) = (dir.parent(), name) else {
            return Err(std::io::Error::from(ErrorKind::InvalidInput).into());
        };
        Ok(Place {
            files,
            dir: dir.to_owned(),
            parent: parent.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Where so many parts are, if not in the folder of the log itself. No operator calls a copy of the log so.
    fn beside(&self, parts: u32) -> PathBuf {
        self.parent.join(format!("{}.parts-{parts}", self.name))
    }

    /// The folder of each part. `moved`: one part, which has not got its name yet.
    fn folders(&self, parts: u32, moved: bool) -> Vec<PathBuf> {
        match parts {
            1 if moved && self.beside(1).exists() => vec![self.beside(1)],
            1 => vec![self.dir.clone()],
            _ => (0..parts)
                .map(|part| self.beside(parts).join(part.to_string()))
                .collect(),
        }
    }

    /// In how many parts the log is; `None`: there is nothing in its place.
    fn known(&self) -> Result<Option<u32>, LogError> {
        match fs::metadata(&self.dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Ok(found) if found.is_dir() => return Ok(Some(1)),
            found => found?,
        };
        let bytes = fs::read(&self.dir)?;
        let parts = format::signed::<1>(MAGIC, &bytes).and_then(|it| u32::try_from(it[0]).ok());
        let parts = parts.filter(|it| *it > 1);
        let parts = parts.ok_or_else(|| lost(&self.dir, "it is not a number of parts".into()))?;
        match self.folders(parts, false).iter().find(|it| !it.exists()) {
            Some(missing) => Err(lost(missing, "this part is missing".into())),
            None => Ok(Some(parts)),
        }
    }

    /// Finishes a move that was cut short, or takes it back. Returns the number of parts.
    fn tidy(&self) -> Result<u32, LogError> {
        let known = self.known()?;
        if known.is_none() && self.beside(1).exists() {
            self.files.rename(&self.beside(1), &self.dir)?;
            self.files.sync_dir(&self.parent)?;
        }
        let parts = known.unwrap_or(1);
        self.remove_others(Some(parts))?;
        Ok(parts)
    }

    /// Deletes parts that are not those of this number.
    fn remove_others(&self, parts: Option<u32>) -> std::io::Result<()> {
        let listed = match fs::read_dir(&self.parent) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            listed => listed?,
        };
        for entry in listed {
            let path = entry?.path();
            let name = path.file_name().and_then(|it| it.to_str());
            let number = name.and_then(|it| it.strip_prefix(&self.name)?.strip_prefix(".parts-"));
            let number: Option<u32> = number.and_then(|it| it.parse().ok());
            let number = number.filter(|it| self.beside(*it) == path);
            if number.is_some_and(|it| Some(it) != parts || it == 1) {
                tracing::info!(path = %path.display(), "deleting what a move of the log has left");
                self.remove_all(&path)?;
            }
        }
        Ok(())
    }

    fn remove_all(&self, path: &Path) -> std::io::Result<()> {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Ok(found) if found.is_dir() => {
                for entry in fs::read_dir(path)? {
                    self.remove_all(&entry?.path())?;
                }
                self.files.remove_dir(path)
            }
            found => {
                found?;
                self.files.remove(path)
            }
        }
    }

    fn open(&self, parts: u32, options: &LogOptions) -> Result<Vec<DiskLog>, LogError> {
        let folders = self.folders(parts, false).into_iter();
        let open = |folder: PathBuf| DiskLog::open_with(self.files.clone(), &folder, options);
        folders.map(open).collect()
    }

    fn move_to(&self, known: u32, parts: u32, options: &LogOptions) -> Result<(), LogError> {
        tracing::info!(from = known, to = parts, "the log is moved to other parts");
        let new = match parts {
            1 => vec![self.beside(1)],
            _ => self.folders(parts, false),
        };
        {
            let old = self.open(known, options)?;
            let new = new
                .iter()
                .map(|it| DiskLog::open_with(self.files.clone(), it, options));
            let new: Vec<DiskLog> = new.collect::<Result<_, _>>()?;
            for from in &old {
                for shard in from.shards() {
                    let to = new.get((shard % parts) as usize);
                    let to = to.ok_or_else(|| std::io::Error::from(ErrorKind::InvalidInput))?;
                    copy(from, to, shard)?;
                }
            }
        }
        self.files.sync_dir(&self.parent)?;
        let switched = match (known, parts) {
            (_, 1) => self.one_part(),
            (1, _) => self.several_parts(true, parts),
            _ => self.several_parts(false, parts),
        };
        switched.map_err(io_failed("can't move the log to other parts"))?;
        Ok(self.remove_others(Some(parts))?)
    }

    fn one_part(&self) -> std::io::Result<()> {
        self.files.remove(&self.dir)?;
        self.files.sync_dir(&self.parent)?;
        self.files.rename(&self.beside(1), &self.dir)?;
        self.files.sync_dir(&self.parent)
    }

    /// `was_one`: the log is its own folder until now.
    fn several_parts(&self, was_one: bool, parts: u32) -> std::io::Result<()> {
        let new = self.parent.join(format!("{}.new", self.name));
        let file = self.files.open(&new, true)?;
        let bytes = format::sign(MAGIC, [parts.into()]);
        self.files.clear(&file, bytes.len() as u64)?;
        self.files.write(&file, &bytes, 0)?;
        self.files.try_sync(&file)?;
        if was_one {
            self.files.rename(&self.dir, &self.beside(1))?;
            self.files.sync_dir(&self.parent)?;
        }
        self.files.rename(&new, &self.dir)?;
        self.files.sync_dir(&self.parent)
    }
}

fn empty(shard: u32) -> Write {
    Write {
        shard,
        number: 0,
        entries: Vec::new(),
        hard_state: None,
        must_sync: false,
        start: None,
    }
}

/// Copies a shard's state and entries to another log, synced.
fn copy(from: &DiskLog, to: &DiskLog, shard: u32) -> Result<(), LogError> {
    let state = from.load(shard)?;
    let begins = LogState {
        last_index: state.compact_index,
        ..state.clone()
    };
    to.begin(shard, &begins)?;
    let mut low = state.compact_index + 1;
    while low <= state.last_index {
        let entries = from.entries(shard, low, state.last_index + 1, COPIED_BYTES);
        let entries = entries.map_err(std::io::Error::other)?;
        low += entries.len() as u64;
        let write = Write {
            entries,
            ..empty(shard)
        };
        to.write(&[write])?;
    }
    let last = Write {
        hard_state: Some(state.hard_state),
        must_sync: true,
        ..empty(shard)
    };
    to.write(&[last])
}
