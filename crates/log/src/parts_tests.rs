//! A log is moved to other parts, and the power fails meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use nowserving_replica::EntryReader as _;
use raft::eraftpb::{Entry, HardState};

use crate::files::Files;
use crate::test_disk::{Fault, TestDisk, folder};
use crate::{DiskLog, LogOptions, LogStore as _, parts};
use nowserving_replica::Write;

const SHARDS: u32 = 5;

fn options() -> LogOptions {
    LogOptions {
        segment_bytes: 8 << 10,
        bytes_max: 1 << 20,
    }
}

fn part_of(logs: &[DiskLog], shard: u32) -> &DiskLog {
    &logs[shard as usize % logs.len()]
}

fn synced(shard: u32, entries: Vec<Entry>, hard_state: HardState) -> Write {
    Write {
        shard,
        number: 0,
        entries,
        hard_state: Some(hard_state),
        must_sync: true,
        start: None,
    }
}

/// Some entries a shard, the first of which are compacted.
fn fill(logs: &[DiskLog]) {
    for shard in 0..SHARDS {
        let log = part_of(logs, shard);
        log.write(&[Write::bootstrap(shard, &[1, 2, 3])]).unwrap();
        let first = log.load(shard).unwrap().last_index + 1;
        for index in first..first + 20 {
            let entry = Entry {
                term: 2,
                index,
                data: vec![shard as u8; 100].into(),
                ..Entry::default()
            };
            let hard_state = HardState {
                term: 3,
                vote: u64::from(shard) + 1,
                commit: index,
                ..HardState::default()
            };
            log.write(&[synced(shard, vec![entry], hard_state)])
                .unwrap();
        }
        log.compact(shard, first + u64::from(shard)).unwrap();
        let hard_state = log.load(shard).unwrap().hard_state;
        log.write(&[synced(shard, Vec::new(), hard_state)]).unwrap();
    }
}

/// All that is known of all shards.
fn contents(logs: &[DiskLog]) -> Vec<(nowserving_replica::LogState, Vec<Entry>)> {
    let shards = (0..SHARDS).map(|shard| {
        let log = part_of(logs, shard);
        let state = log.load(shard).unwrap();
        let (low, high) = (state.compact_index + 1, state.last_index + 1);
        let entries = log.entries(shard, low, high, u64::MAX).unwrap();
        assert_eq!(entries.len() as u64, high - low);
        (state, entries)
    });
    shards.collect()
}

fn names(dir: &Path) -> Vec<String> {
    let listed = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = listed
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_log_keeps_all_in_any_number_of_parts() {
    let dir = folder();
    let log = dir.path().join("log");
    let logs = parts::open(&log, 1, &options()).unwrap();
    fill(&logs);
    let before = contents(&logs);
    drop(logs);
    for (count, expected) in [
        (1, vec!["log"]),
        (3, vec!["log", "log.parts-3"]),
        (3, vec!["log", "log.parts-3"]),
        (2, vec!["log", "log.parts-2"]),
        (8, vec!["log", "log.parts-8"]),
        (1, vec!["log"]),
    ] {
        let logs = parts::open(&log, count, &options()).unwrap();
        assert_eq!(logs.len(), count as usize);
        assert!(contents(&logs) == before, "{count}");
        drop(logs);
        assert_eq!(names(dir.path()), expected);
        let seen = parts::look_at(&log).unwrap();
        assert_eq!(seen.load(4).unwrap(), before[4].0);
    }
    parts::open(&log, 2, &options()).unwrap();
    assert!(
        DiskLog::open(&log, &options()).is_err(),
        "by an older build"
    );
    parts::remove(&log).unwrap();
    assert_eq!(names(dir.path()), Vec::<String>::new());
}

#[test]
fn a_part_that_is_missing_is_not_made_anew() {
    let dir = folder();
    let log = dir.path().join("log");
    fill(&parts::open(&log, 3, &options()).unwrap());
    std::fs::remove_dir_all(dir.path().join("log.parts-3/1")).unwrap();
    for count in [1, 3] {
        let error = parts::open(&log, count, &options()).err().unwrap();
        assert!(error.to_string().contains("missing"), "{error}");
    }
}

/// The power fails at each operation of a move; at the next start, to any number of parts, everything is there.
#[test]
fn the_power_fails_while_a_log_is_moved() {
    for (from, to) in [(1, 3), (3, 1), (3, 2)] {
        let mut after = 0;
        loop {
            let mut failed = false;
            for random in 0..4 {
                failed |= power_fails_in_move(from, to, after, random);
            }
            if !failed {
                break;
            }
            after += 1 + after / 16;
        }
        assert!(after > 20, "{after}");
    }
}

fn power_fails_in_move(from: u32, to: u32, after: u64, random: u64) -> bool {
    let dir = folder();
    let log = dir.path().join("log");
    let logs = parts::open(&log, from, &options()).unwrap();
    fill(&logs);
    let before = contents(&logs);
    drop(logs);
    let files = Arc::new(Files {
        disk: TestDisk::of(dir.path(), random),
        ..Files::default()
    });
    files.disk.fail(after, Fault::Power);
    let moved = || drop(parts::open_with(&files, &log, to, &options()));
    let _ = catch_unwind(AssertUnwindSafe(moved));
    let failed = files.disk.failed().is_some();
    files.disk.mend();
    files.disk.crash(dir.path());
    let next = [from, to][random as usize % 2];
    let logs = parts::open_with(&files, &log, next, &options());
    let logs = logs.unwrap_or_else(|error| panic!("{from} to {to} after {after}: {error}"));
    assert!(contents(&logs) == before, "{from} to {to} after {after}");
    failed
}

#[test]
fn a_copy_beside_the_log_is_left_alone() {
    let dir = folder();
    let log = dir.path().join("log");
    drop(parts::open(&log, 1, &options()).unwrap());
    let copies =
        ["log-1", "log-20261130", "log.parts-02", "log.parts-x"].map(|it| dir.path().join(it));
    for copy in &copies {
        std::fs::create_dir(copy).unwrap();
    }
    let left = dir.path().join("log.parts-2");
    std::fs::create_dir(&left).unwrap();
    drop(parts::open(&log, 1, &options()).unwrap());
    assert!(copies.iter().all(|it| it.is_dir()));
    assert!(!left.exists());
}
