//! The log of an earlier build is read.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use nowserving_log::{DiskLog, LogOptions, LogStore as _};
use nowserving_replica::{ConfState, EntryReader as _, SnapshotMeta, Write};
use raft::eraftpb::{Entry, EntryType, HardState};

fn entry(index: u64) -> Entry {
    let mut entry = Entry {
        term: 3,
        index,
        data: format!("entry {index}").into_bytes().into(),
        ..Entry::default()
    };
    if index == 9 {
        entry.set_entry_type(EntryType::EntryConfChangeV2);
    }
    entry
}

fn hard_state() -> HardState {
    HardState {
        term: 4,
        vote: 2,
        commit: 8,
        ..HardState::default()
    }
}

/// As after the install of a snapshot, in the middle of a change of members.
fn start() -> SnapshotMeta {
    SnapshotMeta {
        index: 6,
        term: 3,
        conf_state: ConfState {
            voters: vec![1, 2, 4],
            learners: vec![5],
            voters_outgoing: vec![1, 2, 3],
            learners_next: vec![3],
            auto_leave: true,
        },
    }
}

fn options() -> LogOptions {
    LogOptions {
        segment_bytes: 1 << 10,
        bytes_max: 1 << 20,
    }
}

fn write(dir: &Path) {
    let log = DiskLog::open(dir, &options()).unwrap();
    log.write(&[Write::bootstrap(0, &[1, 2, 3])]).unwrap();
    log.write(&[Write {
        shard: 1,
        number: 1,
        entries: (7..=9).map(entry).collect(),
        hard_state: Some(hard_state()),
        must_sync: true,
        start: Some(start()),
    }])
    .unwrap();
}

#[test]
fn a_log_of_format_1() {
    let golden = nowserving_testkit::golden::path(env!("CARGO_MANIFEST_DIR"), "log-1", write);
    let copy = tempfile::tempdir().unwrap();
    for file in fs::read_dir(golden).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    let log = DiskLog::open(copy.path(), &options()).unwrap();
    assert_eq!(log.load(0).unwrap().start.conf_state.voters, [1, 2, 3]);
    let found = log.load(1).unwrap();
    assert_eq!((found.start, found.hard_state), (start(), hard_state()));
    assert_eq!(found.last_index, 9);
    let entries = log.entries(1, 7, 10, u64::MAX).unwrap();
    assert_eq!(entries, [entry(7), entry(8), entry(9)]);
}
