//! Fuzz targets of what a log's directory has: log files and the record of what was synced.

use std::fs;
use std::path::Path;

use nowserving_testkit::target;

use crate::Refused;
use crate::synced_record::{
    self, Found, LogFile, Queue, RECORD_BYTES, SLOT_BYTES, SyncedRecord, checksum,
};
use crate::verify::{Items, RECORD_HEADER, SUM, check_bytes};

const SEQ: u64 = 1;

fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/log-2");
    fs::read(path.join(name)).unwrap()
}

/// The log files, the newest of which may have bytes that were allocated ahead.
fn log_files() -> Vec<Vec<u8>> {
    let append = golden("0000000000000001.raftlog");
    let ahead = [&append[..], &[0; 64]].concat();
    vec![append, ahead, golden("0000000000000001.rewrite")]
}

fn checks(bytes: &[u8]) {
    match check_bytes(bytes, SEQ) {
        Ok(at) => {
            assert!(bytes[at..].iter().all(|byte| *byte == 0));
            // What a crash leaves is cut off there.
            assert!(matches!(check_bytes(&bytes[..at], SEQ), Ok(end) if end == at));
        }
        Err(broken) => assert!(!broken.text(Path::new("file")).is_empty()),
    }
}

#[test]
fn a_log_file() {
    target!(log_files(), checks);
}

/// The records of a log file: where each begins and where its items do.
fn records(file: &[u8]) -> Vec<(usize, usize)> {
    let header = golden("0000000000000001.rewrite").len();
    let number = |at: usize| u64::from_be_bytes(file[at..at + 8].try_into().unwrap()) as usize;
    let mut records = Vec::new();
    let mut at = header;
    while at < file.len() {
        records.push((at, at + number(at + 8)));
        at += number(at) >> 8;
    }
    assert_eq!(at, file.len());
    records
}

/// The items of a record, without their checksum.
fn items() -> Vec<Vec<u8>> {
    let file = golden("0000000000000001.raftlog");
    let records = records(&file);
    let ends = records.iter().skip(1).map(|(at, _)| *at);
    let ends = ends.chain([file.len()]).collect::<Vec<_>>();
    let items = records.iter().zip(ends);
    let items = items.map(|((_, items_at), end)| file[*items_at..end - SUM].to_vec());
    items.collect()
}

/// The shards of a record whose entries are damaged.
#[test]
fn the_items_of_a_record() {
    let named: Vec<_> = items().iter().map(|it| Items(it).shards()).collect();
    assert!(named.iter().all(Option::is_some), "{named:?}");
    target!(items(), |bytes| {
        if let Some(shards) = Items(bytes).shards() {
            assert!(shards.len() <= bytes.len());
        }
    });
}

/// A record whose items have a checksum that holds, behind entries whose one does not.
#[test]
fn a_record_with_damaged_entries() {
    target!(items(), |bytes| {
        let entries = [0; 8];
        let sum = crc32fast::hash(bytes) ^ SEQ as u32;
        let items_at = RECORD_HEADER + entries.len();
        let length = items_at + bytes.len() + SUM;
        let numbers = [(length as u64) << 8, items_at as u64].map(u64::to_be_bytes);
        let file = [
            &golden("0000000000000001.rewrite")[..],
            &numbers.concat(),
            &entries,
            bytes,
            &sum.to_le_bytes(),
        ];
        let broken = check_bytes(&file.concat(), SEQ).err().unwrap();
        let items = [bytes, &sum.to_le_bytes()].concat();
        assert_eq!(broken.shards, Items(&items).shards());
    });
}

/// As a directory with the golden log files has it.
fn look_at(bytes: &[u8]) -> Result<SyncedRecord, Refused> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(synced_record::FILE_NAME), bytes).unwrap();
    let files = [
        ("0000000000000001.raftlog", 265),
        ("0000000000000001.rewrite", 69),
    ];
    let found = files.map(|(name, len)| {
        let path = dir.path().join(name);
        let file = LogFile::parse(&path).unwrap();
        Found { path, file, len }
    });
    SyncedRecord::look_at(dir.path(), &found)
}

fn synced_record(bytes: &[u8]) {
    if let Ok(record) = look_at(bytes) {
        for (queue, len) in [(Queue::Append, 265), (Queue::Rewrite, 69)] {
            let synced = record.synced_len(LogFile { queue, seq: SEQ });
            assert!(synced <= len || synced == u64::MAX, "{synced}");
        }
    }
}

#[test]
fn a_synced_record() {
    target!(vec![golden(synced_record::FILE_NAME)], synced_record);
}

/// The checksums of both slots hold, whatever is in them.
#[test]
fn a_synced_record_whose_checksums_hold() {
    let good = golden(synced_record::FILE_NAME);
    let mut largest = good.clone();
    for slot in [0, SLOT_BYTES as usize] {
        largest[slot + 8..slot + RECORD_BYTES].fill(0xff);
    }
    target!(vec![good, largest], |bytes| {
        let mut bytes = bytes.to_vec();
        for slot in [0, SLOT_BYTES as usize] {
            if let Some(record) = bytes.get_mut(slot..slot + RECORD_BYTES) {
                let (content, sum) = record.split_at_mut(RECORD_BYTES - 8);
                sum.copy_from_slice(&checksum(content).to_le_bytes());
            }
        }
        synced_record(&bytes);
    });
}
