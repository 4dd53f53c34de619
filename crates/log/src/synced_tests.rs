//! What the synced record finds missing, and what follows from damage of the record itself.

use std::fs;

use nowserving_replica::{EntryReader as _, Write};
use raft::eraftpb::Entry;

use crate::damage_tests::{
    SHARDS, batch, copy, files_of, killed, last_indexes, newest_segment, open,
};
use crate::recover::recover;
use crate::synced::FILE_NAME;
use crate::test_disk::folder;
use crate::{LogError, LogStore};

#[test]
fn a_missing_file_is_refused() {
    let dir = folder();
    let (whole, work) = (dir.path().join("whole"), dir.path().join("work"));
    let log = open(&whole).unwrap();
    let large = |index| {
        let data: Vec<u8> = (0..3_000_u64)
            .map(|at| (at * at * 31 + index * 7 + at / 3) as u8)
            .collect();
        let entries = vec![Entry {
            term: 1,
            index,
            data: data.into(),
            ..Entry::default()
        }];
        [Write {
            shard: 0,
            number: index,
            entries,
            hard_state: None,
            must_sync: true,
            start: None,
        }]
    };
    for index in 1..=20 {
        log.write(&large(index)).unwrap();
    }
    drop(log);
    let names: Vec<String> = fs::read_dir(&whole)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.len() > 6, "{names:?}");
    for name in &names {
        copy(&whole, &work);
        fs::remove_file(work.join(name)).unwrap();
        assert!(
            matches!(open(&work), Err(LogError::Lost { .. })),
            "without {name}"
        );
    }
    // All of them, as after a move to another disk that forgot the log files.
    copy(&whole, &work);
    for name in names.iter().filter(|name| *name != FILE_NAME) {
        fs::remove_file(work.join(name)).unwrap();
    }
    assert!(matches!(open(&work), Err(LogError::Lost { .. })));
    copy(&whole, &work);
    assert_eq!(open(&work).unwrap().load(0).unwrap().last_index, 20);
}

/// Also where the segments before were deleted: of a running log, a killed one, and when it was opened again.
#[test]
fn a_missing_file_behind_deleted_ones_is_refused() {
    let dir = folder();
    let (path, copied) = (dir.path().join("log"), dir.path().join("copied"));
    let log = open(&path).unwrap();
    let first = newest_segment(&path);
    for index in 1..=300 {
        log.write(&batch(index, false)).unwrap();
        for shard in 0..SHARDS {
            log.compact(shard, index.saturating_sub(90)).unwrap();
        }
        if index % 100 == 0 {
            log.purge().unwrap();
        }
    }
    assert!(!first.exists() && files_of(&path, "segment").len() > 2);
    let missed = || {
        for file in files_of(&path, "segment") {
            copy(&path, &copied);
            let name = file.file_name().unwrap();
            fs::remove_file(copied.join(name)).unwrap();
            assert!(
                matches!(open(&copied), Err(LogError::Lost { .. })),
                "{name:?}"
            );
        }
        copy(&path, &copied);
        let log = open(&copied).unwrap();
        assert_eq!(log.entries(1, 251, 301, u64::MAX).unwrap().len(), 50);
    };
    missed();
    drop(log);
    drop(open(&path).unwrap());
    missed();
}

/// In either slot: with the newer one damaged, the older one counts, in which the last log record is not yet
/// synced.
#[test]
fn damage_of_the_record_and_of_the_last_log_record_is_refused_on_every_start() {
    let dir = folder();
    let (killed_dir, work) = (dir.path().join("killed"), dir.path().join("work"));
    let (synced, _) = killed(&killed_dir, false);
    let log = fs::read(newest_segment(&killed_dir)).unwrap();
    let record = fs::read(killed_dir.join(FILE_NAME)).unwrap();
    let mut in_doubt = Vec::new();
    for slot in [0, 4096] {
        copy(&killed_dir, &work);
        let (mut log, mut record) = (log.clone(), record.clone());
        log[synced as usize - 10] ^= 1;
        record[slot + 20] ^= 1;
        fs::write(newest_segment(&work), log).unwrap();
        fs::write(work.join(FILE_NAME), record).unwrap();
        let refused = [open(&work), open(&work)].map(|opened| match opened {
            Err(LogError::Lost { what, .. }) => what.contains(FILE_NAME),
            _ => panic!("slot {slot}: not refused"),
        });
        in_doubt.push(refused);
    }
    in_doubt.sort_unstable();
    assert_eq!(
        in_doubt,
        [[false; 2], [true; 2]],
        "the newer slot alone says that the log record was synced"
    );
}

#[test]
fn an_older_record_finds_less_but_refuses_no_intact_log() {
    let dir = folder();
    let path = dir.path().join("log");
    let log = open(&path).unwrap();
    let mut records = Vec::new();
    for index in 1..=40 {
        records.push(fs::read(path.join(FILE_NAME)).unwrap());
        log.write(&batch(index, true)).unwrap();
    }
    drop(log);
    for record in records {
        fs::write(path.join(FILE_NAME), record).unwrap();
        assert_eq!(last_indexes(&open(&path).unwrap()), [40; SHARDS as usize]);
    }
}

/// As after a power failure. What each batch says was synced before it does not get old.
#[test]
fn an_older_record_finds_damage_before_the_last_batch() {
    let dir = folder();
    let (path, work) = (dir.path().join("log"), dir.path().join("work"));
    let log = open(&path).unwrap();
    let record = fs::read(path.join(FILE_NAME)).unwrap();
    let mut ends = Vec::new();
    for index in 1..=4 {
        log.write(&batch(index, true)).unwrap();
        ends.push(recover(&path).unwrap().end);
    }
    drop(log);
    let bytes = fs::read(newest_segment(&path)).unwrap();
    for at in ends[0]..ends[3] {
        copy(&path, &work);
        fs::write(work.join(FILE_NAME), &record).unwrap();
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(newest_segment(&work), damaged).unwrap();
        match open(&work) {
            Err(LogError::Lost { .. }) => assert!(at < ends[2], "flipped at {at} of {ends:?}"),
            opened => {
                assert!(at >= ends[2], "flipped at {at} of {ends:?}");
                assert_eq!(last_indexes(&opened.unwrap()), [3; SHARDS as usize]);
            }
        }
    }
}

#[test]
fn a_damaged_record_falls_back_to_the_one_before() {
    let dir = folder();
    let path = dir.path().join("log");
    killed(&path, false);
    let record = path.join(FILE_NAME);
    let bytes = fs::read(&record).unwrap();
    let mut damaged = bytes.clone();
    damaged[20] ^= 1;
    fs::write(&record, &damaged).unwrap();
    assert!(open(&path).is_ok());
    damaged = bytes;
    (damaged[20], damaged[4096 + 20]) = (0xff, 0xff);
    fs::write(&record, &damaged).unwrap();
    assert!(matches!(open(&path), Err(LogError::Lost { .. })));
}
