//! What the synced record finds missing, and what follows from damage of the record itself.

use std::fs;
use std::path::Path;

use nowserving_replica::Write;
use raft::eraftpb::Entry;

use crate::damage_tests::{
    FILE_BYTES, HEADER, SHARDS, append_file, batch, copy, files_of, killed, last_indexes, open,
};
use crate::synced_record::FILE_NAME;
use crate::{EngineLog, EngineOptions, LogError, LogStore};

#[test]
fn a_missing_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
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
    for name in names.iter().filter(|name| *name != "LOCK") {
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

/// Also where entries have been rewritten, and where the files with them were given back since.
#[test]
fn a_missing_file_of_rewritten_entries_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let options = EngineOptions {
        file_bytes: FILE_BYTES,
        purge_threshold_bytes: 8 * FILE_BYTES,
    };
    let open = |dir: &Path| EngineLog::open(dir, &options);
    let missed = |state: &str| {
        let copied = dir.path().join("copied");
        for file in [files_of(&path, "rewrite"), files_of(&path, "raftlog")].concat() {
            copy(&path, &copied);
            let name = file.file_name().unwrap();
            fs::remove_file(copied.join(name)).unwrap();
            let opened = open(&copied);
            assert!(
                matches!(opened, Err(LogError::Lost { .. })),
                "{state}: {name:?}"
            );
        }
        copy(&path, &copied);
        open(&copied).unwrap();
    };
    let log = open(&path).unwrap();
    let mut index = 0;
    let mut write_until = |done: &dyn Fn() -> bool| {
        while !done() {
            index += 1;
            let mut writes = batch(index, true);
            for write in &mut writes {
                write.entries[0].data = vec![index as u8; 1_000].into();
            }
            // What stays in the third shard is rewritten, until it goes, too.
            for shard in 0..if index % 30 == 0 { 3 } else { 2 } {
                log.compact(shard, index - 1).unwrap();
            }
            log.purge().unwrap();
            log.write(&writes).unwrap();
            assert!(index < 10_000, "the engine rewrites nothing");
        }
    };
    let rewritten = || files_of(&path, "rewrite");
    missed("new");
    write_until(&|| fs::metadata(&rewritten()[0]).unwrap().len() > HEADER as u64);
    missed("rewritten");
    let first = rewritten()[0].clone();
    write_until(&|| !first.exists());
    missed("rewritten again");
    drop(log);
    missed("stopped");
}

/// In either slot: with the newer one damaged, the older one counts, in which the last log record is not yet
/// synced.
#[test]
fn damage_of_the_record_and_of_the_last_log_record_is_refused_on_every_start() {
    let dir = tempfile::tempdir().unwrap();
    let (killed_dir, work) = (dir.path().join("killed"), dir.path().join("work"));
    let (synced, _) = killed(&killed_dir, false);
    let log = fs::read(append_file(&killed_dir)).unwrap();
    let record = fs::read(killed_dir.join(FILE_NAME)).unwrap();
    let mut in_doubt = Vec::new();
    for slot in [0, 4096] {
        copy(&killed_dir, &work);
        let (mut log, mut record) = (log.clone(), record.clone());
        log[synced as usize - 10] ^= 1;
        record[slot + 20] ^= 1;
        fs::write(append_file(&work), log).unwrap();
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
    let dir = tempfile::tempdir().unwrap();
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

#[test]
fn a_damaged_record_falls_back_to_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
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
