//! What both logs promise.
#![allow(clippy::unwrap_used)]

use nowserving_log::{Crash, EngineLog, EngineOptions, LogStore, MemoryLog};
use nowserving_replica::{ConfState, EntryReader, LogState, SnapshotMeta, Write};
use raft::eraftpb::{Entry, HardState};

fn entry(term: u64, index: u64, bytes: usize) -> Entry {
    Entry {
        term,
        index,
        data: vec![index as u8; bytes].into(),
        ..Entry::default()
    }
}

fn write(shard: u32, entries: Vec<Entry>, state: Option<(u64, u64, u64)>) -> Write {
    let hard_state = state.map(|(term, vote, commit)| HardState {
        term,
        vote,
        commit,
        ..HardState::default()
    });
    Write {
        shard,
        number: 1,
        must_sync: !entries.is_empty(),
        entries,
        hard_state,
        start: None,
    }
}

fn state(term: u64, vote: u64, commit: u64, cut: (u64, u64), last_index: u64) -> LogState {
    let hard_state = HardState {
        term,
        vote,
        commit,
        ..HardState::default()
    };
    LogState {
        hard_state,
        compact_index: cut.0,
        compact_term: cut.1,
        last_index,
        ..LogState::default()
    }
}

fn both(check: impl Fn(&dyn LogStore)) {
    check(&MemoryLog::new());
    let dir = tempfile::tempdir().unwrap();
    check(&EngineLog::open(dir.path(), &EngineOptions::default()).unwrap());
}

#[test]
fn an_unwritten_shard_is_empty() {
    both(|log| {
        assert_eq!(log.load(7).unwrap(), LogState::default());
        assert!(log.entries(7, 1, 2, 1_000).is_err());
        assert!(log.term(7, 1).is_err());
        log.compact(7, 3).unwrap();
        assert_eq!(log.load(7).unwrap(), LogState::default());
    });
}

#[test]
fn the_start_of_a_group_is_kept() {
    let first = |log: &dyn LogStore, shard| log.load(shard).unwrap().start.conf_state.voters;
    both(|log| {
        log.write(&[Write::bootstrap(0, &[1, 2, 3]), Write::bootstrap(1, &[7])])
            .unwrap();
        let started = log.load(1).unwrap();
        assert_eq!((started.compact_index, started.compact_term), (1, 1));
        assert_eq!((started.last_index, started.start.term), (1, 1));
        assert_eq!((started.hard_state.term, started.hard_state.commit), (1, 1));
        log.write(&[write(0, vec![entry(2, 2, 10)], Some((2, 1, 2)))])
            .unwrap();
        log.compact(0, 1).unwrap();
        assert_eq!(first(log, 0), [1, 2, 3]);
        assert_eq!(first(log, 1), [7]);
        assert!(first(log, 2).is_empty());
    });
    let memory = MemoryLog::new();
    memory.write(&[Write::bootstrap(0, &[1])]).unwrap();
    memory.crash(Crash::default());
    assert_eq!(first(&memory, 0), [1], "it is synced");
}

/// A log that begins anew behind a snapshot: among its entries, at their end, and after them.
#[test]
fn a_snapshot_takes_the_place_of_all_entries() {
    for index in [3, 5, 40] {
        // Each in a thread of its own: raft-engine keeps a block that it has read for the thread, and takes
        // one of another log for the same.
        let check = std::thread::spawn(move || takes_the_place_of_all_entries(index));
        check.join().unwrap();
    }
}

fn takes_the_place_of_all_entries(index: u64) {
    let conf_state = ConfState {
        learners: vec![3],
        ..ConfState::of_voters(&[1, 2])
    };
    let term = 2;
    let start = SnapshotMeta {
        index,
        term,
        conf_state,
    };
    let anew = Write {
        start: Some(start.clone()),
        must_sync: true,
        ..write(0, Vec::new(), Some((2, 0, index)))
    };
    let expected = LogState {
        start,
        ..state(2, 0, index, (index, 2), index)
    };
    let entries = |from: u64| (from..from + 5).map(|index| entry(2, index, 10)).collect();
    let before = [
        write(1, entries(1), None),
        write(0, entries(1), Some((2, 1, 4))),
    ];
    let after = write(0, entries(index + 1), None);
    both(|log| {
        log.write(&before).unwrap();
        log.write(std::slice::from_ref(&anew)).unwrap();
        assert_eq!(log.load(0).unwrap(), expected);
        assert!(log.entries(0, index, index + 1, u64::MAX).is_err());
        log.write(std::slice::from_ref(&after)).unwrap();
        assert_eq!(log.load(0).unwrap().last_index, index + 5);
        let read = log.entries(0, index + 1, index + 6, u64::MAX).unwrap();
        assert_eq!(read, after.entries);
        let with_entries = Write {
            entries: entries(index + 1),
            ..anew.clone()
        };
        log.write(&[with_entries]).unwrap();
        assert_eq!(log.load(0).unwrap().last_index, index + 5);
        assert_eq!(log.load(1).unwrap().last_index, 5, "another shard's stay");
    });
    let dir = tempfile::tempdir().unwrap();
    let open = || EngineLog::open(dir.path(), &EngineOptions::default()).unwrap();
    open().write(&before).unwrap();
    open().write(std::slice::from_ref(&anew)).unwrap();
    assert_eq!(open().load(0).unwrap(), expected);
    open().write(std::slice::from_ref(&after)).unwrap();
    assert_eq!(open().load(0).unwrap().last_index, index + 5);
    let memory = MemoryLog::new();
    memory.write(&before).unwrap();
    memory.write(&[anew]).unwrap();
    memory.crash(Crash::default());
    assert_eq!(memory.load(0).unwrap(), expected);
}

#[test]
fn shards_are_kept_apart() {
    both(|log| {
        let of = |shard: u32| {
            (1..=3)
                .map(|index| entry(u64::from(shard) + 1, index, 10))
                .collect::<Vec<_>>()
        };
        let writes: Vec<Write> = (0..16)
            .map(|shard| write(shard, of(shard), Some((shard.into(), 1, 2))))
            .collect();
        log.write(&writes).unwrap();
        for shard in 0..16 {
            assert_eq!(
                log.load(shard).unwrap(),
                state(shard.into(), 1, 2, (0, 0), 3)
            );
            assert_eq!(log.entries(shard, 1, 4, u64::MAX).unwrap(), of(shard));
        }
    });
}

#[test]
fn entries_come_as_asked_for() {
    both(|log| {
        let entries: Vec<Entry> = (1..=10).map(|index| entry(1, index, 100)).collect();
        log.write(&[write(0, entries.clone(), None)]).unwrap();
        assert_eq!(log.entries(0, 3, 6, u64::MAX).unwrap(), entries[2..5]);
        assert_eq!(
            log.entries(0, 3, 11, 0).unwrap(),
            entries[2..3],
            "one at least"
        );
        assert_eq!(log.entries(0, 3, 11, 250).unwrap(), entries[2..4]);
        assert!(log.entries(0, 3, 12, u64::MAX).is_err());
        assert!(log.entries(0, 0, 2, u64::MAX).is_err());
    });
}

#[test]
fn later_entries_replace_earlier_ones() {
    both(|log| {
        log.write(&[write(
            0,
            (1..=5).map(|index| entry(1, index, 10)).collect(),
            Some((1, 1, 1)),
        )])
        .unwrap();
        log.write(&[write(0, vec![entry(2, 3, 10)], Some((2, 3, 2)))])
            .unwrap();
        assert_eq!(log.load(0).unwrap(), state(2, 3, 2, (0, 0), 3));
        assert_eq!(
            [1, 2, 3].map(|index| log.term(0, index).unwrap()),
            [1, 1, 2]
        );
        assert!(log.term(0, 4).is_err());
    });
}

#[test]
fn compaction_keeps_the_last_term() {
    both(|log| {
        let entries = vec![
            entry(1, 1, 10),
            entry(2, 2, 10),
            entry(3, 3, 10),
            entry(3, 4, 10),
        ];
        log.write(&[write(0, entries, Some((3, 1, 4)))]).unwrap();
        for (through, cut) in [(0, (0, 0)), (2, (2, 2)), (1, (2, 2)), (4, (4, 3))] {
            log.compact(0, through).unwrap();
            assert_eq!(
                log.load(0).unwrap(),
                state(3, 1, 4, cut, 4),
                "cut through {through}"
            );
            assert_eq!(log.term(0, 4).unwrap(), 3);
        }
        log.write(&[write(0, vec![entry(3, 5, 10)], None)]).unwrap();
        assert_eq!(log.load(0).unwrap(), state(3, 1, 4, (4, 3), 5));
    });
}

#[test]
fn one_write_of_all_shards_is_one_sync_and_reading_is_none() {
    both(|log| {
        let before = log.stats();
        let writes: Vec<Write> = (0..16)
            .map(|shard| write(shard, vec![entry(1, 1, 50)], Some((1, 1, 0))))
            .collect();
        log.write(&writes).unwrap();
        let after = log.stats();
        assert_eq!(after.syncs, before.syncs + 1);
        assert!(after.bytes_written >= before.bytes_written + 16 * 50);
        log.write(&[write(3, Vec::new(), Some((1, 1, 1)))]).unwrap();
        let commit = log.stats();
        assert_eq!(
            commit.syncs, after.syncs,
            "a commit index alone waits for no disk"
        );
        assert!(commit.bytes_written > after.bytes_written);
        for shard in 0..16 {
            log.load(shard).unwrap();
            log.entries(shard, 1, 2, u64::MAX).unwrap();
            log.term(shard, 1).unwrap();
        }
        log.write(&[]).unwrap();
        assert_eq!(log.stats(), commit);
    });
}

#[test]
fn the_engine_comes_back_with_everything() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b");
    for start in 0..5 {
        let log = EngineLog::open(&path, &EngineOptions::default()).unwrap();
        let expected = if start == 0 {
            LogState::default()
        } else {
            state(start, 2, start, (0, 0), start * 3)
        };
        assert_eq!(log.load(9).unwrap(), expected);
        let entries = (start * 3 + 1..=start * 3 + 3)
            .map(|index| entry(start + 1, index, 1_000))
            .collect();
        log.write(&[write(9, entries, Some((start + 1, 2, start + 1)))])
            .unwrap();
    }
}

#[test]
fn only_one_process_has_it_open() {
    let dir = tempfile::tempdir().unwrap();
    let _log = EngineLog::open(dir.path(), &EngineOptions::default()).unwrap();
    let error = EngineLog::open(dir.path(), &EngineOptions::default())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("can't open"), "{error}");
}

/// Writes far more than the threshold, in shards of which one is never cut.
#[test]
fn space_is_given_back_and_idle_shards_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let options = EngineOptions {
        file_bytes: 64 << 10,
        purge_threshold_bytes: 256 << 10,
    };
    let log = EngineLog::open(dir.path(), &options).unwrap();
    log.write(&[write(
        5,
        (1..=100).map(|index| entry(1, index, 10)).collect(),
        Some((1, 1, 100)),
    )])
    .unwrap();
    let mut named = Vec::new();
    for index in 1..=800 {
        let writes: Vec<Write> = (0..2)
            .map(|shard| write(shard, vec![random_entry(index)], Some((1, 1, index))))
            .collect();
        log.write(&writes).unwrap();
        if index % 50 == 0 {
            for shard in 0..2 {
                log.compact(shard, index - 10).unwrap();
            }
            named.extend(log.purge().unwrap());
        }
    }
    let bytes: u64 = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    assert!(bytes < 1 << 20, "{bytes} bytes for 3.2 MB written");
    assert!(named.contains(&5), "{named:?}");
    let before: Vec<LogState> = [0, 1, 5].map(|shard| log.load(shard).unwrap()).to_vec();
    drop(log);
    let log = EngineLog::open(dir.path(), &options).unwrap();
    assert_eq!(
        [0, 1, 5].map(|shard| log.load(shard).unwrap()).to_vec(),
        before
    );
    assert_eq!(
        log.entries(5, 1, 101, u64::MAX).unwrap().len(),
        100,
        "rewritten, not lost"
    );
}

/// Not compressible, unlike real commands: the sizes above are to be those on disk.
fn random_entry(index: u64) -> Entry {
    let mut seed = index;
    let data: Vec<u8> = (0..2_000)
        .map(|_| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u8
        })
        .collect();
    Entry {
        term: 1,
        index,
        data: data.into(),
        ..Entry::default()
    }
}

/// The reader meets files which are purged under it.
#[test]
fn reading_goes_on_during_purges() {
    let dir = tempfile::tempdir().unwrap();
    let options = EngineOptions {
        file_bytes: 16 << 10,
        purge_threshold_bytes: 64 << 10,
    };
    let log = EngineLog::open(dir.path(), &options).unwrap();
    log.write(&[write(
        5,
        (1..=20).map(|index| entry(1, index, 10)).collect(),
        Some((1, 1, 20)),
    )])
    .unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for index in 1..=600 {
                log.write(&[write(0, vec![random_entry(index)], Some((1, 1, index)))])
                    .unwrap();
                if index % 5 == 0 {
                    log.compact(0, index).unwrap();
                    log.purge().unwrap();
                }
            }
        });
        let mut reads = 0;
        while !writer.is_finished() {
            assert_eq!(log.entries(5, 1, 21, u64::MAX).unwrap().len(), 20);
            reads += 1;
        }
        assert!(reads > 0);
        writer.join().unwrap();
    });
}

#[test]
fn a_crash_takes_what_was_not_synced() {
    let log = MemoryLog::new();
    log.write(&[write(0, vec![entry(1, 1, 1)], Some((1, 1, 0)))])
        .unwrap();
    for index in 2..=4 {
        let writes =
            [0, 1].map(|shard| write(shard, vec![entry(1, index - u64::from(shard), 1)], None));
        log.write_unsynced(&writes);
    }
    assert_eq!(
        (
            log.load(0).unwrap().last_index,
            log.load_durable(0).last_index,
            log.unsynced()
        ),
        (4, 1, 3)
    );
    // One batch whole, and of the next the first shard's part.
    log.crash(Crash {
        keep_batches: 1,
        keep_shards: 1,
    });
    assert_eq!(
        (
            log.load(0).unwrap().last_index,
            log.load(1).unwrap().last_index
        ),
        (3, 1)
    );
    assert_eq!(log.unsynced(), 0);
    log.crash(Crash::default());
    assert_eq!(
        log.load(0).unwrap().last_index,
        3,
        "what survived is on disk"
    );
}

#[test]
fn a_flipped_bit_is_met_by_who_reads_it_and_by_the_next_start() {
    let log = MemoryLog::new();
    assert!(!log.flip_bit(7), "nothing to damage");
    let entries = (1..=3).map(|index| entry(1, index, 1)).collect();
    log.write(&[
        write(0, vec![entry(1, 1, 1)], None),
        write(1, entries, None),
    ])
    .unwrap();
    log.write_unsynced(&[write(0, vec![entry(1, 2, 1)], None)]);
    let starts = |log: &MemoryLog| [0, 1].map(|shard| log.load(shard).is_ok());
    // One entry in the first shard and three in the second are durable.
    for (draw, shard, index) in [(0, 0, 1), (2, 1, 2), (4, 0, 1), (6, 1, 2)] {
        assert!(log.flip_bit(draw));
        assert!(log.entries(shard, index, index + 1, 0).is_err());
        assert!(log.term(shard, index).is_err());
        assert!(log.entries(1 - shard, 1, 2, 0).is_ok());
        log.crash(Crash::default());
        assert_eq!(starts(&log), [false; 2]);
        log.repair();
        assert_eq!(starts(&log), [true; 2]);
    }
    assert!(log.flip_bit(3));
    assert!(log.entries(1, 1, 3, u64::MAX).is_ok() && log.entries(1, 1, 4, u64::MAX).is_err());
    // What is replaced or dropped takes its damage with it.
    log.write(&[write(1, vec![entry(2, 3, 1)], None)]).unwrap();
    assert_eq!(starts(&log), [true; 2]);
    assert!(log.flip_bit(0));
    log.compact(0, 1).unwrap();
    log.sync();
    assert_eq!(starts(&log), [true; 2]);
}
