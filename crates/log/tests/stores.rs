//! What both logs promise.
#![allow(clippy::unwrap_used)]

use nowserving_log::{Crash, DiskLog, LogOptions, LogStore, MemoryLog};
use nowserving_replica::{EntryReader, LogState, Write};
use raft::eraftpb::{Entry, HardState};

const OPTIONS: LogOptions = LogOptions {
    segment_bytes: 64 << 10,
    bytes_max: 1 << 20,
};

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

fn both(check: impl Fn(&dyn LogStore)) {
    check(&MemoryLog::new());
    let dir = tempfile::tempdir().unwrap();
    check(&DiskLog::open(dir.path(), &OPTIONS).unwrap());
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
fn only_one_process_has_it_open() {
    let dir = tempfile::tempdir().unwrap();
    let _log = DiskLog::open(dir.path(), &OPTIONS).unwrap();
    let error = DiskLog::open(dir.path(), &OPTIONS)
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("can't open"), "{error}");
}

/// Writes far more than its size, in shards of which one has entries in the oldest segment until it is named.
#[test]
fn space_is_given_back_and_idle_shards_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        segment_bytes: 64 << 10,
        bytes_max: 256 << 10,
    };
    let log = DiskLog::open(dir.path(), &options).unwrap();
    log.write(&[write(
        5,
        (1..=100).map(|index| entry(1, index, 10)).collect(),
        Some((1, 1, 100)),
    )])
    .unwrap();
    let mut named = Vec::new();
    for index in 1..=800 {
        let writes: Vec<Write> = (0..2)
            .map(|shard| write(shard, vec![entry(1, index, 2_000)], Some((1, 1, index))))
            .collect();
        log.write(&writes).unwrap();
        if index % 50 == 0 {
            for shard in 0..2 {
                log.compact(shard, index - 10).unwrap();
            }
            named.push(log.purge().unwrap());
            assert_eq!(log.entries(5, 91, 101, u64::MAX).unwrap().len(), 10);
            if named.ends_with(&[vec![5]]) {
                log.compact(5, 90).unwrap();
                log.write(&[write(5, vec![entry(1, 101, 10)], None)])
                    .unwrap();
                log.write(&[write(
                    5,
                    (91..=100).map(|it| entry(2, it, 10)).collect(),
                    None,
                )])
                .unwrap();
            }
            let bytes: u64 = std::fs::read_dir(dir.path())
                .unwrap()
                .map(|file| file.unwrap().metadata().unwrap().len())
                .sum();
            assert!(bytes < 600 << 10, "{bytes} bytes");
        }
    }
    named.retain(|named| !named.is_empty());
    assert!(
        named.len() > 3 && named.iter().all(|it| *it == [5]),
        "{named:?}"
    );
    let before: Vec<LogState> = [0, 1, 5].map(|shard| log.load(shard).unwrap()).to_vec();
    drop(log);
    let log = DiskLog::open(dir.path(), &options).unwrap();
    assert_eq!(
        [0, 1, 5].map(|shard| log.load(shard).unwrap()).to_vec(),
        before
    );
}

/// The reader meets segments which are deleted under it.
#[test]
fn reading_goes_on_during_purges() {
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        segment_bytes: 16 << 10,
        bytes_max: 64 << 10,
    };
    let log = DiskLog::open(dir.path(), &options).unwrap();
    let put = |index| {
        let writes = [(5, 10), (0, 2_000)]
            .map(|(shard, bytes)| write(shard, vec![entry(1, index, bytes)], None));
        log.write(&writes).unwrap();
    };
    (1..=50).for_each(put);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for index in 51..=600 {
                put(index);
                if index % 5 == 0 {
                    log.compact(0, index).unwrap();
                    log.compact(5, index - 40).unwrap();
                    log.purge().unwrap();
                }
            }
        });
        let mut reads = 0;
        while !writer.is_finished() {
            let last = log.load(5).unwrap().last_index;
            let read = log.entries(5, last - 19, last + 1, u64::MAX);
            // The writer may be quicker than the reader.
            if log.load(5).unwrap().compact_index < last - 19 {
                assert_eq!(read.unwrap().len(), 20);
                reads += 1;
            }
        }
        assert!(reads > 0);
        writer.join().unwrap();
    });
    let segments = std::fs::read_dir(dir.path()).unwrap().count();
    assert!(segments < 20, "{segments}");
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
