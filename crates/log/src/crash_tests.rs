//! What the log makes of a disk that fails, or whose power does, at chosen operations.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nowserving_replica::EntryReader as _;

use crate::damage_tests::{
    FILE_BYTES, SHARDS, batch, copy, files_of, last_indexes, newest_segment, open, options,
};
use crate::files::Files;
use crate::shard_log::ShardLog;
use crate::synced::{FILE_NAME, SLOT_BYTES};
use crate::test_disk::{Fault, TestDisk, folder};
use crate::{DiskLog, LogError, LogStore};

fn played(dir: &Path, random: u64) -> Arc<Files> {
    Arc::new(Files {
        disk: TestDisk::of(dir, random),
        ..Files::default()
    })
}

fn open_with(files: &Arc<Files>, dir: &Path) -> Result<DiskLog, LogError> {
    DiskLog::open_with(files.clone(), dir, &options())
}

/// Calls `once` with each number of operations after which something can fail, until nothing does, and with many random
/// numbers. It returns whether it did.
fn at_each_operation(randoms: u64, once: impl Fn(u64, u64) -> bool) {
    let fails = |after: &u64| {
        let failed: Vec<bool> = (0..randoms).map(|random| once(*after, random)).collect();
        failed.contains(&true)
    };
    let operations = (0..).take_while(fails).count();
    assert!(operations > 2, "{operations}");
}

/// The power fails at each operation of `act`, which is whether it is acknowledged. Afterwards the log has `before`, or
/// what `act` makes of it: for certain if that was acknowledged.
fn power_fails_in(prepare: impl Fn(&DiskLog), last: (u64, u64), act: impl Fn(&DiskLog) -> bool) {
    let (before, behind) = last;
    at_each_operation(20, |after, random| {
        let dir = folder();
        let path = dir.path().join("log");
        let files = played(&path, random);
        let log = open_with(&files, &path).unwrap();
        prepare(&log);
        files.disk.fail(after, Fault::Power);
        let acknowledged = catch_unwind(AssertUnwindSafe(|| act(&log))).unwrap_or(false);
        drop(log);
        let failed = files.disk.failed().is_some();
        files.disk.mend();
        files.disk.crash(&path);
        let log = open_with(&files, &path).unwrap();
        let found = last_indexes(&log);
        let least = if acknowledged { behind } else { before };
        let possible = (least..=behind).map(|last| vec![last; SHARDS as usize]);
        assert!(possible.clone().any(|it| it == found), "{after}: {found:?}");
        let read = log.entries(0, found[0], found[0] + 1, u64::MAX);
        assert_eq!(read.unwrap().len(), 1);
        log.write(&batch(found[0] + 1, true)).unwrap();
        failed
    });
}

/// Segments are full after some forty batches.
fn fill(log: &DiskLog, through: u64) {
    for index in 1..=through {
        log.write(&batch(index, true)).unwrap();
    }
}

fn compact(log: &DiskLog, through: u64) -> Result<(), LogError> {
    (0..SHARDS).try_for_each(|shard| log.compact(shard, through))
}

#[test]
fn the_power_fails_while_a_segment_begins() {
    let begins = |log: &DiskLog| {
        let mut writes = batch(6, true);
        writes[2].entries[0].data = vec![7; FILE_BYTES as usize].into();
        log.write(&writes).is_ok() && log.write(&batch(7, true)).is_ok()
    };
    power_fails_in(|log| fill(log, 5), (5, 7), begins);
}

#[test]
fn the_power_fails_while_segments_are_deleted() {
    let prepare = |log: &DiskLog| {
        fill(log, 200);
        compact(log, 195).unwrap();
    };
    power_fails_in(prepare, (200, 200), |log| log.purge().is_ok());
}

#[test]
fn the_power_fails_while_one_thread_purges_and_another_one_writes() {
    for random in 0..200 {
        let dir = folder();
        let path = dir.path().join("log");
        let files = played(&path, random);
        let log = open_with(&files, &path).unwrap();
        fill(&log, 100);
        files.disk.fail(20 + random % 100, Fault::Power);
        let synced = AtomicU64::new(100);
        let written = AtomicBool::new(false);
        let purge = || {
            while !written.load(Ordering::Relaxed) && log.purge().is_ok() {
                std::hint::spin_loop();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = catch_unwind(AssertUnwindSafe(purge));
            });
            let _ = catch_unwind(AssertUnwindSafe(|| -> Result<(), LogError> {
                for index in 101.. {
                    log.write(&batch(index, true))?;
                    synced.store(index, Ordering::Relaxed);
                    compact(&log, index - 20)?;
                }
                Ok(())
            }));
            written.store(true, Ordering::Relaxed);
        });
        drop(log);
        files.disk.mend();
        files.disk.crash(&path);
        let found = last_indexes(&open_with(&files, &path).unwrap());
        let synced = synced.into_inner();
        let possible = [synced, synced + 1].map(|last| vec![last; SHARDS as usize]);
        assert!(possible.contains(&found), "{synced}: {found:?}");
    }
}

/// Also where the folders above the log are new.
#[test]
fn the_power_fails_in_the_first_start() {
    at_each_operation(40, |after, random| {
        let dir = folder();
        let path = dir.path().join("new").join("log");
        let files = played(&path, random);
        files.disk.fail(after, Fault::Power);
        let first = catch_unwind(|| open_with(&files, &path).map(|log| log.write(&batch(1, true))));
        let acknowledged = matches!(first, Ok(Ok(Ok(()))));
        let failed = files.disk.failed().is_some();
        files.disk.mend();
        files.disk.crash(&path);
        let found = last_indexes(&open_with(&files, &path).unwrap());
        assert!(!acknowledged || found == [1; SHARDS as usize], "{found:?}");
        failed
    });
}

/// The kernel shows what it could not write, and no later sync writes it.
#[test]
fn what_may_never_have_been_synced_is_written_again_at_a_start() {
    for random in 0..20 {
        let dir = folder();
        let path = dir.path().join("log");
        let files = played(&path, random);
        let log = open_with(&files, &path).unwrap();
        log.write(&batch(1, true)).unwrap();
        files.disk.fail(1, Fault::Failure);
        let failed = catch_unwind(AssertUnwindSafe(|| log.write(&batch(2, true))));
        assert!(failed.is_err());
        drop(log);
        // Killed.
        let found = last_indexes(&open_with(&files, &path).unwrap());
        assert_eq!(found, [2; SHARDS as usize]);
        files.disk.crash(&path);
        assert_eq!(last_indexes(&open_with(&files, &path).unwrap()), found);
    }
}

/// Of two batches the second one is on the disk, and the first one is not. A start drops both; it fails once, and so does
/// its first sync. Then there is another batch as long as the first one, which ends with a block.
#[test]
fn nothing_is_appended_behind_a_torn_end() {
    let mut failures = 0;
    for (random, after) in (0..300).flat_map(|random| (12..18).map(move |after| (random, after))) {
        let dir = folder();
        let path = dir.path().join("log");
        let files = played(&path, random);
        let log = open_with(&files, &path).unwrap();
        let with = |index: u64, byte: u8, bytes: usize| {
            let mut writes = batch(index, false);
            writes[0].entries[0].data = vec![byte; bytes].into();
            writes
        };
        log.write(&batch(1, true)).unwrap();
        let before = log.stats().used_bytes;
        log.write(&with(2, 1, 1_024)).unwrap();
        let bytes = 1_536 - log.stats().used_bytes as usize % 512;
        drop(log);
        fs::remove_dir_all(&path).unwrap();
        let files = played(&path, random);
        let log = open_with(&files, &path).unwrap();
        log.write(&batch(1, true)).unwrap();
        assert_eq!(log.stats().used_bytes, before);
        log.write(&with(2, 1, bytes)).unwrap();
        log.write(&with(3, 1, bytes)).unwrap();
        drop(log);
        files.disk.crash(&path);
        if DiskLog::look_at(&path).unwrap().load(0).unwrap().last_index > 1 {
            continue;
        }
        files.disk.fail(after, Fault::Failure);
        drop(catch_unwind(|| open_with(&files, &path).map(drop)));
        failures += u32::from(files.disk.failed().is_some());
        files.disk.mend();
        let log = open_with(&files, &path).unwrap();
        let mut writes = with(2, 2, bytes);
        writes[0].must_sync = true;
        log.write(&writes).unwrap();
        drop(log);
        files.disk.crash(&path);
        let log = open_with(&files, &path).unwrap();
        assert_eq!(last_indexes(&log), [2; SHARDS as usize]);
        assert_eq!(log.entries(0, 2, 3, 0).unwrap()[0].data[0], 2);
    }
    assert!(failures > 50, "{failures}");
}

/// A purge that synced the writer's file would be told of the writer's failure in its place.
#[test]
fn a_purge_takes_no_failure_of_a_sync_from_the_writer() {
    let dir = folder();
    let path = dir.path().join("log");
    let files = played(&path, 1);
    let log = open_with(&files, &path).unwrap();
    fill(&log, 100);
    compact(&log, 99).unwrap();
    files.disk.lose_writes(&newest_segment(&path));
    let _ = catch_unwind(AssertUnwindSafe(|| log.purge()));
    let written = catch_unwind(AssertUnwindSafe(|| log.write(&batch(101, true))));
    assert!(written.is_err());
}

#[test]
fn segments_that_could_not_be_deleted_are_deleted_later() {
    let dir = folder();
    let path = dir.path().join("log");
    let files = played(&path, 1);
    let log = open_with(&files, &path).unwrap();
    fill(&log, 200);
    compact(&log, 199).unwrap();
    let before = files_of(&path, "segment").len();
    // It opens and syncs the newest segment, writes two slots, syncs them, and deletes one segment.
    files.disk.fail(6, Fault::Failure);
    assert!(log.purge().is_err());
    let between = files_of(&path, "segment").len();
    assert_eq!(between, before - 1);
    log.purge().unwrap();
    assert_eq!(files_of(&path, "segment").len(), 1);
}

/// On a disk that never writes in place, the record may find no room.
#[test]
fn no_write_waits_for_the_record_of_what_is_synced() {
    let dir = folder();
    let path = dir.path().join("log");
    let files = played(&path, 1);
    let log = open_with(&files, &path).unwrap();
    log.write(&batch(1, true)).unwrap();
    log.wait_for_room(Some(Box::new(|| panic!("it waits"))));
    for after in [2, 0] {
        files.disk.fail(after, Fault::Full);
        let written = catch_unwind(AssertUnwindSafe(|| log.write(&batch(2, true))));
        assert_eq!(written.is_ok(), after == 2, "{written:?}");
        files.disk.mend();
    }
    drop(log);
    files.disk.crash(&path);
    let log = open_with(&files, &path).unwrap();
    assert_eq!(last_indexes(&log), [2; SHARDS as usize]);
}

/// Else it would be on disk, and refused by each start.
#[test]
fn of_a_batch_that_leaves_a_hole_nothing_is_written() {
    let dir = folder();
    let log = open(dir.path()).unwrap();
    fill(&log, 2);
    let mut writes = batch(3, true);
    writes[1].entries[0].index = 4;
    assert!(matches!(log.write(&writes), Err(LogError::Io { .. })));
    drop(log);
    let log = open(dir.path()).unwrap();
    assert_eq!(last_indexes(&log), [2; SHARDS as usize]);
    // What one write of a batch begins, the next one goes on with.
    log.write(&[batch(3, true), batch(4, true)].concat())
        .unwrap();
}

/// Both slots are written at a start: there is no other way to zeros than damage.
#[test]
fn a_slot_of_zeros_is_damage() {
    let dir = folder();
    let (path, work) = (dir.path().join("log"), dir.path().join("work"));
    let log = open(&path).unwrap();
    fill(&log, 3);
    drop(log);
    for slot in [0, SLOT_BYTES as usize] {
        copy(&path, &work);
        let mut record = fs::read(path.join(FILE_NAME)).unwrap();
        record[slot..].iter_mut().take(100).for_each(|it| *it = 0);
        fs::write(work.join(FILE_NAME), record).unwrap();
        drop(open(&work).unwrap());
        copy(&path, &work);
        let mut record = fs::read(path.join(FILE_NAME)).unwrap();
        record[slot..].iter_mut().take(100).for_each(|it| *it = 0);
        fs::write(work.join(FILE_NAME), record).unwrap();
        let segment = newest_segment(&work);
        let mut bytes = fs::read(&segment).unwrap();
        let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        bytes[last] ^= 1;
        fs::write(segment, bytes).unwrap();
        assert!(matches!(open(&work), Err(LogError::Lost { .. })), "{slot}");
    }
}

#[test]
fn either_slot_alone_tells_of_deletions() {
    let dir = folder();
    let (path, work) = (dir.path().join("log"), dir.path().join("work"));
    let log = open(&path).unwrap();
    fill(&log, 100);
    compact(&log, 99).unwrap();
    log.purge().unwrap();
    assert_eq!(files_of(&path, "segment").len(), 1);
    for slot in [0, SLOT_BYTES as usize] {
        copy(&path, &work);
        let mut record = fs::read(path.join(FILE_NAME)).unwrap();
        record[slot + 20] ^= 1;
        fs::write(work.join(FILE_NAME), record).unwrap();
        let found = open(&work).map(|log| last_indexes(&log));
        assert_eq!(found.unwrap(), [100; SHARDS as usize], "{slot}");
    }
}

#[test]
fn a_start_does_not_change_how_large_the_log_is() {
    let dir = folder();
    let log = open(dir.path()).unwrap();
    fill(&log, 100);
    let before = log.stats().used_bytes;
    drop(log);
    assert_eq!(open(dir.path()).unwrap().stats().used_bytes, before);
}

#[test]
fn segments_are_open_only_while_they_are_read() {
    let dir = folder();
    let log = open(dir.path()).unwrap();
    fill(&log, 400);
    assert!(files_of(dir.path(), "segment").len() > 3);
    assert_eq!(log.entries(0, 3, 401, u64::MAX).unwrap().len(), 398);
    let opened = fs::read_dir("/proc/self/fd").unwrap();
    let opened = opened.filter_map(|it| fs::read_link(it.unwrap().path()).ok());
    let of_the_log = opened.filter(|it| it.starts_with(dir.path()));
    // Its folder, the record, and the newest segment.
    assert_eq!(of_the_log.count(), 3);
}

#[test]
fn a_compacted_log_gives_its_memory_back() {
    let mut log = ShardLog::<u64>::default();
    (0..100_000).for_each(|entry| log.push(1, entry));
    log.compact(99_000, 1);
    assert!(log.entries.capacity() < 10_000);
    assert_eq!(log.range(99_001, 100_001).unwrap().count(), 1_000);
}

/// Bytes that look like the beginnings of batches cost no checksum of all that follows.
#[test]
fn a_long_torn_end_is_searched_fast() {
    let dir = folder();
    let log = open(dir.path()).unwrap();
    log.write(&batch(1, true)).unwrap();
    drop(log);
    let segment = newest_segment(dir.path());
    let mut bytes = fs::read(&segment).unwrap();
    let end = crate::format::written(&bytes);
    let salt = crate::format::Header::decode(&bytes).unwrap().salt;
    bytes.truncate(end);
    // Each is 512 KiB long, and all before it is said to be synced.
    bytes.extend([0, 0, 8, 0].repeat(512 << 10));
    let started = std::time::Instant::now();
    assert!(!crate::format::synced_past(
        &bytes,
        FILE_BYTES as usize,
        bytes.len(),
        salt
    ));
    assert!(started.elapsed() < std::time::Duration::from_secs(5));
}
