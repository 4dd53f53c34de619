//! Damages the log on disk, byte by byte.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use nowserving_replica::{ConfState, EntryReader, LogState, SnapshotMeta, Write};
use raft::eraftpb::{Entry, HardState};

use crate::recover::{NEW, recover};
use crate::test_disk::{Fault, folder};
use crate::{DiskLog, LogError, LogOptions, LogStore};

pub const SHARDS: u32 = 3;
pub const BATCHES: u64 = 6;
/// The logs begin anew in this batch.
const RESTART: u64 = 3;
pub const FILE_BYTES: u64 = 8 << 10;

pub fn options() -> LogOptions {
    LogOptions {
        segment_bytes: FILE_BYTES,
        bytes_max: 1 << 20,
    }
}

pub fn batch(index: u64, must_sync: bool) -> Vec<Write> {
    let of = |shard: u32| {
        let data = format!("shard {shard} entry {index}").into_bytes();
        let entry = Entry {
            term: 1 + index / 3,
            index,
            data: data.into(),
            ..Entry::default()
        };
        let hard_state = HardState {
            term: 1 + index / 3,
            vote: 2,
            commit: index - 1,
            ..HardState::default()
        };
        Write {
            shard,
            number: index,
            entries: vec![entry],
            hard_state: Some(hard_state),
            must_sync,
            start: (index == RESTART).then(|| start(index - 1)),
        }
    };
    (0..SHARDS).map(of).collect()
}

/// A snapshot through `index`, as the members would be then.
fn start(index: u64) -> SnapshotMeta {
    SnapshotMeta {
        index,
        term: 1,
        conf_state: ConfState {
            learners: vec![3],
            ..ConfState::of_voters(&[1, 2])
        },
    }
}

pub fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let path = file.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

pub fn files_of(dir: &Path, kind: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == kind));
    files.sort();
    files
}

pub fn newest_segment(dir: &Path) -> PathBuf {
    files_of(dir, "segment").pop().unwrap()
}

/// A directory as a kill leaves it: some synced batches, then perhaps one that was not, then the zeros
/// that the file was allocated ahead with. Returns the synced bytes and all bytes.
pub fn killed(to: &Path, unsynced: bool) -> (u64, u64) {
    let dir = folder();
    let log = DiskLog::open(dir.path(), &options()).unwrap();
    for index in 1..=BATCHES {
        log.write(&batch(index, true)).unwrap();
    }
    let end = |dir: &Path| recover(dir).unwrap().end as u64;
    let synced = end(dir.path());
    if unsynced {
        log.write(&batch(BATCHES + 1, false)).unwrap();
    }
    let all = end(dir.path());
    copy(dir.path(), to);
    (synced, all)
}

/// All that can be seen of a log.
fn contents(log: &DiskLog) -> Result<BTreeMap<u32, (LogState, Vec<Entry>)>, String> {
    let mut contents = BTreeMap::new();
    for shard in 0..SHARDS {
        let state = log.load(shard).map_err(|error| error.to_string())?;
        let (first, last) = (state.compact_index + 1, state.last_index);
        let entries = match first <= last {
            false => Vec::new(),
            true => log
                .entries(shard, first, last + 1, u64::MAX)
                .map_err(|error| error.to_string())?,
        };
        contents.insert(shard, (state, entries));
    }
    Ok(contents)
}

pub fn open(dir: &Path) -> Result<DiskLog, LogError> {
    DiskLog::open(dir, &options())
}

pub fn last_indexes(log: &DiskLog) -> Vec<u64> {
    (0..SHARDS)
        .map(|shard| log.load(shard).unwrap().last_index)
        .collect()
}

#[test]
fn a_kill_loses_nothing_written() {
    let dir = folder();
    let killed_dir = dir.path().join("killed");
    killed(&killed_dir, true);
    assert!(
        newest_segment(&killed_dir).metadata().unwrap().len() >= FILE_BYTES,
        "there are zeros at the end"
    );
    let log = open(&killed_dir).unwrap();
    assert_eq!(last_indexes(&log), [BATCHES + 1; SHARDS as usize]);
    log.write(&batch(BATCHES + 2, true)).unwrap();
}

#[test]
fn a_torn_write_goes_and_nothing_else() {
    let dir = folder();
    let (killed_dir, work) = (dir.path().join("killed"), dir.path().join("work"));
    let (synced, all) = killed(&killed_dir, true);
    let bytes = fs::read(newest_segment(&killed_dir)).unwrap();
    assert!(all > synced + 50);
    for at in synced..all {
        copy(&killed_dir, &work);
        let mut damaged = bytes.clone();
        // Zeros from there on, and garbage from there on.
        let zeros = at % 2 == 0;
        match zeros {
            true => damaged[at as usize..].fill(0),
            false => damaged[at as usize..all as usize]
                .iter_mut()
                .for_each(|byte| *byte ^= 0x5a),
        }
        fs::write(newest_segment(&work), damaged).unwrap();
        let log = open(&work).unwrap_or_else(|error| panic!("torn at {at} of {all}: {error}"));
        let last = log.load(0).unwrap().last_index;
        assert!(
            last == BATCHES || (zeros && last == BATCHES + 1),
            "torn at {at}: {last}"
        );
        assert_eq!(
            last_indexes(&log),
            [last; SHARDS as usize],
            "all or nothing"
        );
        log.write(&batch(last + 1, true)).unwrap();
        drop(log);
        assert_eq!(
            last_indexes(&open(&work).unwrap()),
            [last + 1; SHARDS as usize]
        );
    }
}

/// Cut off, at any byte: a segment has its whole length from the beginning. Or zeros instead.
#[test]
fn a_log_that_lost_synced_bytes_is_refused() {
    let dir = folder();
    let (killed_dir, work) = (dir.path().join("killed"), dir.path().join("work"));
    let (synced, _) = killed(&killed_dir, false);
    let bytes = fs::read(newest_segment(&killed_dir)).unwrap();
    let synced = bytes[..synced as usize]
        .iter()
        .rposition(|byte| *byte != 0)
        .unwrap();
    for at in 0..bytes.len() {
        let cut = (at <= synced || at % 100 == 0).then(|| bytes[..at].to_vec());
        let mut zeros = bytes.clone();
        zeros[at..].fill(0);
        let zeros = (at <= synced).then_some(zeros);
        for damaged in cut.into_iter().chain(zeros) {
            copy(&killed_dir, &work);
            fs::write(newest_segment(&work), damaged).unwrap();
            assert!(
                matches!(open(&work), Err(LogError::Lost { .. })),
                "at {at} of {synced}"
            );
        }
    }
}

#[test]
fn a_flipped_bit_is_refused_on_every_start() {
    let dir = folder();
    let (killed_dir, work) = (dir.path().join("killed"), dir.path().join("work"));
    let (synced, _) = killed(&killed_dir, false);
    let bytes = fs::read(newest_segment(&killed_dir)).unwrap();
    for at in 0..synced as usize {
        copy(&killed_dir, &work);
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(newest_segment(&work), damaged).unwrap();
        for _ in 0..2 {
            let refused = open(&work).err().map(|error| error.to_string());
            let refused = refused.unwrap_or_default();
            assert!(refused.contains("at byte "), "flipped at {at}: {refused}");
        }
    }
}

/// A log of several files with small and large records, as a stop leaves it.
fn several_files(dir: &Path) {
    let log = open(dir).unwrap();
    for index in 1..=40 {
        let mut writes = batch(index, true);
        if index % 4 == 0 {
            let data = format!("large {index} ").repeat(900).into_bytes();
            writes[1].entries[0].data = data.into();
        }
        log.write(&writes).unwrap();
    }
}

/// Flips one bit in a byte of every log file, in all bytes of small records and some of large ones.
fn flips(dir: &Path) -> Vec<(PathBuf, usize)> {
    let mut flips = Vec::new();
    for file in fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_owned();
        if path.extension().is_none_or(|kind| kind != "segment") {
            continue;
        }
        let used = fs::read(&path)
            .unwrap()
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1);
        let step = |at: &usize| *at < 110 || at.is_multiple_of(61) || *at + 60 > used;
        flips.extend((0..used).filter(step).map(|at| (PathBuf::from(&name), at)));
    }
    flips
}

#[test]
fn a_flipped_bit_in_any_file_is_refused_on_opening_with_its_place() {
    let dir = folder();
    let (whole, work) = (dir.path().join("whole"), dir.path().join("work"));
    several_files(&whole);
    copy(&whole, &work);
    let contents_before = contents(&open(&work).unwrap()).unwrap();
    let flips = flips(&whole);
    let files: std::collections::BTreeSet<_> = flips.iter().map(|(name, _)| name).collect();
    assert!(files.len() > 3, "{files:?}");
    let mut outcomes: BTreeMap<&str, (u32, String)> = BTreeMap::new();
    for (name, at) in &flips {
        let before = fs::read(work.join(name)).unwrap();
        let mut damaged = before.clone();
        damaged[*at] ^= 1 << (at % 8);
        fs::write(work.join(name), damaged).unwrap();
        let met = std::panic::catch_unwind(|| match open(&work) {
            Err(error) => {
                let error = error.to_string();
                let named = error.contains(name.to_str().unwrap()) && error.contains("at byte ");
                (
                    if named {
                        "refused, named"
                    } else {
                        "refused, not named"
                    },
                    error,
                )
            }
            Ok(log) => match contents(&log) {
                Err(error) => ("opened, unreadable", error),
                Ok(read) if read == contents_before => ("no effect", String::new()),
                Ok(_) => ("opened, other contents", String::new()),
            },
        });
        // A log that is refused is not changed.
        fs::write(work.join(name), before).unwrap();
        let (outcome, error) = met.unwrap_or(("panicked", String::new()));
        let count = &mut outcomes.entry(outcome).or_default().0;
        *count += 1;
        if *count < 4 {
            println!("{} at {at}: {outcome}: {error}", name.display());
        }
    }
    println!("{outcomes:?}");
    let outcomes: Vec<_> = outcomes.keys().copied().collect();
    assert_eq!(outcomes, ["refused, named"]);
}

/// What crashes leave beside the segments in use.
#[test]
fn leftovers_go() {
    let dir = folder();
    drop(open(dir.path()).unwrap());
    let first = newest_segment(dir.path());
    let begun = dir.path().join("0000000002").with_extension(NEW);
    let deleted = first.with_file_name("0000000000.segment");
    fs::write(&begun, b"nsvlog01").unwrap();
    fs::copy(&first, &deleted).unwrap();
    drop(open(dir.path()).unwrap());
    assert!(first.exists() && !begun.exists() && !deleted.exists());
}

#[test]
#[should_panic(expected = "injected")]
fn a_failed_sync_panics() {
    let dir = folder();
    let log = open(dir.path()).unwrap();
    log.files.disk.fail(1, Fault::Failure);
    let _ = log.write(&batch(1, true));
}

#[test]
fn a_failed_write_stops_the_log() {
    let dir = folder();
    let log = open(dir.path()).unwrap();
    log.write(&batch(1, true)).unwrap();
    log.files.disk.fail(0, Fault::Failure);
    assert!(matches!(
        log.write(&batch(2, true)),
        Err(LogError::Io { .. })
    ));
    assert!(matches!(log.write(&batch(2, true)), Err(LogError::Stopped)));
    assert!(matches!(log.compact(0, 1), Err(LogError::Stopped)));
    assert_eq!(log.load(0).unwrap().last_index, 1);
    drop(log);
    let log = open(dir.path()).unwrap();
    assert_eq!(last_indexes(&log), [1; SHARDS as usize]);
    log.write(&batch(2, true)).unwrap();
}

#[test]
fn damage_that_comes_later_is_named_by_the_read_that_meets_it() {
    let dir = folder();
    let log = open(dir.path()).unwrap();
    for index in 1..=BATCHES {
        log.write(&batch(index, true)).unwrap();
    }
    let file = newest_segment(dir.path());
    let mut bytes = fs::read(&file).unwrap();
    let entry = b"shard 2 entry 3";
    let at = bytes.windows(entry.len()).position(|w| w == entry).unwrap();
    bytes[at] ^= 1;
    fs::write(&file, bytes).unwrap();
    let failed = log.entries(2, 3, 4, u64::MAX).unwrap_err();
    let cause = failed.cause.to_string();
    let name = file.file_name().unwrap().to_str().unwrap();
    // Before its data there are its type, its term, and the number of bytes.
    let place = format!("{name} is damaged at byte {}", at - 3);
    assert!(cause.contains(&place), "{cause}");
    drop(log);
    let refused = open(dir.path()).map(drop).unwrap_err().to_string();
    assert!(
        refused.contains(name) && refused.contains("shards {0, 1, 2}"),
        "{refused}"
    );
}

#[test]
fn a_torn_write_before_a_whole_one_goes_with_all_after_it() {
    let dir = folder();
    // Pages of two writes without a sync, of which the disk kept the second one only.
    let (written, killed_dir) = (dir.path().join("written"), dir.path().join("killed"));
    let log = open(&written).unwrap();
    for index in 1..=BATCHES {
        log.write(&batch(index, true)).unwrap();
    }
    let synced = recover(&written).unwrap().end;
    for index in [BATCHES + 1, BATCHES + 2] {
        log.write(&batch(index, false)).unwrap();
    }
    copy(&written, &killed_dir);
    let file = newest_segment(&killed_dir);
    let mut bytes = fs::read(&file).unwrap();
    bytes[synced + 20] ^= 1;
    fs::write(&file, bytes).unwrap();
    let log = open(&killed_dir).unwrap();
    assert_eq!(last_indexes(&log), [BATCHES; SHARDS as usize]);
    contents(&log).unwrap();
}

#[test]
fn a_write_waits_while_the_disk_is_full() {
    let dir = folder();
    let log = open(dir.path()).unwrap();
    log.write(&batch(1, true)).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    log.wait_for_room(Some(Box::new(move || {
        let _ = tell.send(());
    })));
    log.files.disk.fail(0, Fault::Full);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| log.write(&batch(2, true)));
        // Tried more than once.
        told.recv().unwrap();
        told.recv().unwrap();
        assert!(log.waits_for_room());
        assert_eq!(last_indexes(&log), [1; SHARDS as usize], "reads go on");
        log.files.disk.mend();
        writing.join().unwrap().unwrap();
    });
    assert!(!log.waits_for_room());
    log.write(&batch(3, true)).unwrap();
    drop(log);
    assert_eq!(
        last_indexes(&open(dir.path()).unwrap()),
        [3; SHARDS as usize]
    );
}

#[test]
fn a_write_that_is_to_wait_no_more_fails_and_leaves_the_log_whole() {
    let dir = folder();
    let log = open(dir.path()).unwrap();
    log.write(&batch(1, true)).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    log.wait_for_room(Some(Box::new(move || {
        let _ = tell.send(());
    })));
    log.files.disk.fail(0, Fault::Full);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| log.write(&batch(2, true)));
        told.recv().unwrap();
        log.wait_for_room(None);
        assert!(writing.join().unwrap().is_err());
    });
    drop(log);
    let log = open(dir.path()).unwrap();
    assert_eq!(last_indexes(&log), [1; SHARDS as usize]);
    log.write(&batch(2, true)).unwrap();
}

/// Every file of a directory with its content.
fn bytes_of(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    files
        .map(|path| (path.clone(), fs::read(&path).unwrap()))
        .collect()
}

#[test]
fn to_look_at_a_log_changes_nothing_and_finds_what_opening_it_finds() {
    let dir = folder();
    let (killed_dir, work) = (dir.path().join("killed"), dir.path().join("work"));
    let (synced, all) = killed(&killed_dir, true);
    let bytes = fs::read(newest_segment(&killed_dir)).unwrap();
    let states = |log: &dyn LogStore| -> Vec<LogState> {
        (0..SHARDS).map(|shard| log.load(shard).unwrap()).collect()
    };
    let damages = (0..all).flat_map(|at| [(at, false), (at, true)]);
    for (at, cut) in damages.filter(|(at, cut)| !cut || at % 20 == 0) {
        copy(&killed_dir, &work);
        let mut damaged = bytes.clone();
        match cut {
            true => damaged.truncate(at as usize),
            false => damaged[at as usize] ^= 1 << (at % 8),
        }
        fs::write(newest_segment(&work), damaged).unwrap();
        let before = bytes_of(&work);
        let seen = DiskLog::look_at(&work).map(|log| states(&log));
        assert!(bytes_of(&work) == before, "looking at it changed it");
        let opened = open(&work).map(|log| states(&log));
        assert_eq!(seen.is_err(), cut || at < synced, "at {at}, cut: {cut}");
        match (seen, opened) {
            (Ok(seen), Ok(opened)) => assert_eq!(seen, opened),
            (seen, opened) => assert_eq!(
                seen.unwrap_err().to_string(),
                opened.unwrap_err().to_string()
            ),
        }
    }
}
