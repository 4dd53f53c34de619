//! What a power failure leaves of a log's files, for tests.
//!
//! The files are real. Beside them, this keeps what the disk would have: blocks are on it for certain once their file
//! is synced, names once their folder is. Of the others any may be there, as they were after any write. After a sync
//! that failed, blocks that are not on the disk count as written, as in Linux.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

/// What a disk writes as a whole. Many have larger ones; with these, small segments have several.
const BLOCK: usize = 512;
/// In place of a file, behind the name of a folder.
const FOLDER: usize = usize::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One operation fails: of a write to several blocks half is done, of a sync any part.
    Failure,
    /// There is room for no new file, and for blocks only that a file has, until there is some.
    NoRoom,
    /// There is none for those either, as where blocks are never written in place.
    Full,
    /// Nothing is done any more.
    Power,
}

#[derive(Default)]
pub struct TestDisk(Mutex<State>);

#[derive(Default)]
struct State {
    files: Vec<Stored>,
    /// Files by the number that the system has for them.
    numbers: BTreeMap<u64, usize>,
    names: BTreeMap<PathBuf, usize>,
    names_on_disk: BTreeMap<PathBuf, usize>,
    /// Changes of names that are not synced: each is made as a whole.
    renamed: Vec<Vec<(PathBuf, Option<usize>)>>,
    /// What fails, after so many operations.
    fault: Option<(u64, Fault)>,
    /// What did since it was mended.
    failed: Option<Fault>,
    random: u64,
}

#[derive(Default)]
struct Stored {
    seen: Vec<u8>,
    on_disk: Vec<u8>,
    /// Blocks that were written since the last sync, as they were after each write.
    unsynced: BTreeMap<usize, Vec<Vec<u8>>>,
    /// Blocks for which there is room.
    has_room: BTreeSet<usize>,
    /// Blocks could not be written, and which opened files were told so.
    lost: bool,
    told: BTreeSet<RawFd>,
}

/// A folder in memory, if there is such a one: what a disk does is played.
pub fn folder() -> tempfile::TempDir {
    let in_memory = tempfile::tempdir_in("/dev/shm");
    in_memory.or_else(|_| tempfile::tempdir()).unwrap()
}

fn draw(random: &mut u64, below: usize) -> usize {
    // Splitmix.
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*random ^ (*random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) % below as u64) as usize
}

impl Stored {
    fn of(bytes: Vec<u8>) -> Stored {
        let blocks = bytes.chunks(BLOCK).enumerate();
        let used = blocks.filter(|(_, block)| block.iter().any(|byte| *byte != 0));
        Stored {
            has_room: used.map(|(nth, _)| nth).collect(),
            seen: bytes.clone(),
            on_disk: bytes,
            ..Stored::default()
        }
    }

    fn write(&mut self, bytes: &[u8], at: usize) {
        let end = at + bytes.len();
        self.seen.resize(self.seen.len().max(end), 0);
        self.seen[at..end].copy_from_slice(bytes);
        for nth in at / BLOCK..end.div_ceil(BLOCK) {
            let block = self.seen.chunks(BLOCK).nth(nth).unwrap_or_default();
            self.unsynced.entry(nth).or_default().push(block.to_vec());
            self.has_room.insert(nth);
        }
    }

    /// What was lost before counts as written, and stays lost.
    fn sync(&mut self) {
        self.on_disk.resize(self.seen.len(), 0);
        for nth in std::mem::take(&mut self.unsynced).into_keys() {
            let block = nth * BLOCK..self.seen.len().min((nth + 1) * BLOCK);
            self.on_disk[block.clone()].copy_from_slice(&self.seen[block]);
        }
    }

    /// Any part of what was not synced gets to the disk, the rest never does.
    fn lose(&mut self, random: &mut u64) {
        if draw(random, 2) == 0 {
            self.on_disk.resize(self.seen.len(), 0);
        }
        for (nth, versions) in std::mem::take(&mut self.unsynced) {
            let Some(version) = versions.get(draw(random, versions.len() + 1)) else {
                continue;
            };
            let at = nth * BLOCK;
            let end = at + version.len();
            self.on_disk.resize(self.on_disk.len().max(end), 0);
            self.on_disk[at..end].copy_from_slice(version);
        }
    }
}

impl State {
    /// What fails in this operation.
    fn fault(&mut self) -> Option<Fault> {
        let (left, fault) = self.fault?;
        if left > 0 {
            self.fault = Some((left - 1, fault));
            return None;
        }
        if fault == Fault::Failure {
            self.fault = None;
        }
        self.failed = Some(fault);
        Some(fault)
    }

    /// For an operation that needs no room.
    fn check(&mut self) -> Result<()> {
        match self.fault() {
            Some(Fault::Failure | Fault::Power) => Err(Error::other("injected")),
            _ => Ok(()),
        }
    }

    fn stored(&mut self, file: &File) -> &mut Stored {
        let number = file.metadata().unwrap().ino();
        let nth = self.numbers[&number];
        &mut self.files[nth]
    }

    fn add(&mut self, number: u64, stored: Stored) -> usize {
        self.files.push(stored);
        let nth = self.files.len() - 1;
        self.numbers.insert(number, nth);
        nth
    }

    fn rename(&mut self, changes: Vec<(PathBuf, Option<usize>)>) {
        set_names(&mut self.names, &changes);
        self.renamed.push(changes);
    }

    /// Takes over what is in a folder, and on disk.
    fn load(&mut self, dir: &Path) {
        let files = fs::read_dir(dir).into_iter().flatten();
        for path in files.map(|file| file.unwrap().path()) {
            if path.is_dir() {
                self.names.insert(path.clone(), FOLDER);
                self.load(&path);
                continue;
            }
            let number = path.metadata().unwrap().ino();
            let nth = self.add(number, Stored::of(fs::read(&path).unwrap()));
            self.names.insert(path, nth);
        }
        self.names_on_disk.clone_from(&self.names);
    }

    /// Whether the folders of a file are on disk.
    fn is_reachable(&self, path: &Path) -> bool {
        let mut folders = path.ancestors().skip(1);
        let missing =
            |it: &Path| self.names.get(it) == Some(&FOLDER) && !self.names_on_disk.contains_key(it);
        !folders.any(missing)
    }
}

fn set_names(names: &mut BTreeMap<PathBuf, usize>, changes: &[(PathBuf, Option<usize>)]) {
    for (path, nth) in changes {
        match nth {
            Some(nth) => names.insert(path.clone(), *nth),
            None => names.remove(path),
        };
    }
}

impl TestDisk {
    /// One that has the files in `dir`, and leaves to chance what can be so or so.
    pub fn of(dir: &Path, random: u64) -> TestDisk {
        let mut state = State {
            random,
            ..State::default()
        };
        state.load(dir);
        TestDisk(Mutex::new(state))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Has an operation fail, after so many others.
    pub fn fail(&self, after: u64, fault: Fault) {
        self.state().fault = Some((after, fault));
    }

    /// Nothing fails any more.
    pub fn mend(&self) {
        let mut state = self.state();
        (state.fault, state.failed) = (None, None);
    }

    /// What failed, if anything did since it was mended.
    pub fn failed(&self) -> Option<Fault> {
        self.state().failed
    }

    /// What was written to a file since its last sync can't be, which only those are told that sync it.
    pub fn lose_writes(&self, path: &Path) {
        let state = &mut *self.state();
        let stored = &mut state.files[state.names[path]];
        stored.unsynced.clear();
        stored.lost = true;
        stored.told.clear();
    }

    /// The power goes and comes back. No log has the files open.
    pub fn crash(&self, dir: &Path) {
        let state = &mut *self.state();
        for changes in std::mem::take(&mut state.renamed) {
            if draw(&mut state.random, 2) == 0 {
                set_names(&mut state.names_on_disk, &changes);
            }
        }
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir).unwrap();
        for (path, nth) in &state.names_on_disk {
            if *nth != FOLDER && state.is_reachable(path) {
                let stored = &mut state.files[*nth];
                stored.lose(&mut state.random);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, &stored.on_disk).unwrap();
            }
        }
        let mut left = State {
            random: state.random,
            ..State::default()
        };
        left.load(dir);
        *state = left;
    }

    pub fn create_dirs(&self, path: &Path) -> Result<()> {
        let mut state = self.state();
        state.check()?;
        for made in path.ancestors().take_while(|it| !it.exists()) {
            state.rename(vec![(made.to_owned(), Some(FOLDER))]);
        }
        Ok(())
    }

    pub fn open(&self, path: &Path) -> Result<()> {
        match self.state().fault() {
            Some(Fault::NoRoom | Fault::Full) if !path.exists() => {
                Err(ErrorKind::StorageFull.into())
            }
            Some(Fault::Failure | Fault::Power) => Err(Error::other("injected")),
            _ => Ok(()),
        }
    }

    pub fn opened(&self, path: &Path, file: &File) {
        let mut state = self.state();
        let number = file.metadata().unwrap().ino();
        let known = state.names.get(path).copied();
        if known.is_none() {
            // Perhaps one that was removed had the number.
            let stored = Stored::of(fs::read(path).unwrap());
            let nth = state.add(number, stored);
            state.rename(vec![(path.to_owned(), Some(nth))]);
        }
        let stored = state.stored(file);
        stored.told.remove(&file.as_raw_fd());
    }

    pub fn clear(&self, file: &File, bytes: u64) -> Result<()> {
        let mut state = self.state();
        state.check()?;
        let stored = state.stored(file);
        stored.unsynced.clear();
        stored.seen = vec![0; bytes as usize];
        stored.on_disk.clear();
        Ok(())
    }

    /// Returns what is written of these bytes, and whether that is all.
    pub fn write<'a>(&self, file: &File, bytes: &'a [u8], at: u64) -> (&'a [u8], Result<()>) {
        let mut state = self.state();
        let fault = state.fault();
        let stored = state.stored(file);
        let at = at as usize;
        let blocks = at / BLOCK..(at + bytes.len()).div_ceil(BLOCK);
        let within_one = blocks.len() < 2;
        let in_place = blocks.into_iter().all(|nth| stored.has_room.contains(&nth));
        let failed = match fault {
            Some(Fault::NoRoom) if in_place => None,
            Some(Fault::NoRoom | Fault::Full) => Some(ErrorKind::StorageFull.into()),
            Some(Fault::Failure | Fault::Power) => Some(Error::other("injected")),
            None => None,
        };
        let written = match failed {
            Some(_) if within_one => &[],
            Some(_) => &bytes[..bytes.len() / 2],
            None => bytes,
        };
        stored.write(written, at);
        (written, failed.map_or(Ok(()), Err))
    }

    pub fn sync(&self, file: &File) -> Result<()> {
        let state = &mut *self.state();
        let failed = state.fault();
        let mut random = state.random;
        let stored = state.stored(file);
        match failed {
            Some(Fault::Power) => return Err(Error::other("injected")),
            Some(Fault::Failure) => stored.lose(&mut random),
            _ if stored.lost && stored.told.insert(file.as_raw_fd()) => {}
            _ => {
                stored.sync();
                return Ok(());
            }
        }
        state.random = random;
        Err(Error::other("injected"))
    }

    pub fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut state = self.state();
        state.check()?;
        // With what is in it, if it is a folder.
        let mut moved: Vec<(PathBuf, usize)> = Vec::new();
        for (path, nth) in &state.names {
            if let Ok(below) = path.strip_prefix(from) {
                moved.push((below.to_owned(), *nth));
            }
        }
        let to_path = |below: &PathBuf, dir: &Path| match below.as_os_str().is_empty() {
            true => dir.to_owned(),
            false => dir.join(below),
        };
        let changes = moved.iter().flat_map(|(below, nth)| {
            [
                (to_path(below, from), None),
                (to_path(below, to), Some(*nth)),
            ]
        });
        state.rename(changes.collect());
        Ok(())
    }

    pub fn remove(&self, path: &Path) -> Result<()> {
        let mut state = self.state();
        state.check()?;
        state.rename(vec![(path.to_owned(), None)]);
        Ok(())
    }

    pub fn sync_dir(&self, path: &Path) -> Result<()> {
        let state = &mut *self.state();
        state.check()?;
        let State {
            renamed,
            names_on_disk,
            ..
        } = state;
        renamed.retain(|changes| {
            // What is in a folder goes with its name.
            let mut names = changes.iter().take(2);
            let synced = names.all(|(it, _)| it.parent() == Some(path));
            if synced {
                set_names(names_on_disk, changes);
            }
            !synced
        });
        Ok(())
    }
}
