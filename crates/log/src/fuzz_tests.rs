//! Fuzz targets of what a log's directory has: segments, and the record of what was synced.

use std::fs;
use std::path::Path;

use nowserving_testkit::target;

use crate::format::{self, BATCH_HEADER_BYTES, Header};
use crate::recover::walk;
use crate::shard_log::{self, Index};
use crate::synced::{self, RECORD_BYTES, SLOT_BYTES, Synced};

fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/log-1");
    fs::read(path.join(name)).unwrap()
}

fn segment() -> Vec<u8> {
    golden("0000000001.segment")
}

/// The records of a segment's batches.
fn batches() -> Vec<Vec<u8>> {
    let mut batches = Vec::new();
    let bytes = segment();
    let salt = Header::decode(&bytes).unwrap().salt;
    let walked = walk(&bytes, salt, |_, records| {
        batches.push(records.to_vec());
        Ok(())
    });
    assert!(walked.unwrap() > Header::BYTES && batches.len() > 1);
    batches
}

#[test]
fn a_segment() {
    target!(vec![segment()], |bytes| {
        let header = Header::decode(bytes);
        let salt = header.map_or(0, |header| header.salt);
        assert!(header.is_none_or(|it| it.encode() == bytes[..Header::BYTES]));
        let end = walk(bytes, salt, |_, _| Ok(())).unwrap();
        assert!(end <= bytes.len().max(Header::BYTES));
        let written = format::written(bytes);
        let last = bytes.iter().rposition(|byte| *byte != 0);
        assert_eq!(written, last.map_or(0, |last| last + 1));
        let says_so = format::synced_past(bytes, end, written, salt);
        assert_eq!(says_so, format::synced_past(bytes, end, bytes.len(), salt));
    });
}

/// Batches whose checksums hold, whatever is in them.
#[test]
fn a_batch() {
    target!(batches(), |records| {
        let mut bytes = vec![0; BATCH_HEADER_BYTES];
        bytes.extend_from_slice(records);
        format::seal(&mut bytes, 7, 0);
        let found = format::batch(&bytes, 7);
        let found = found.map(|it| (it.records, it.whole));
        assert_eq!(found, (!records.is_empty()).then_some((records, true)));
        let mut index = Index::default();
        let _ = shard_log::apply(&mut index, 1, BATCH_HEADER_BYTES, records);
        for log in index.values().filter(|log| log.is_whole()) {
            assert!(log.state.last_index >= log.state.compact_index);
        }
    });
}

/// As it is, and with checksums that hold, whatever is in it.
#[test]
fn a_synced_record() {
    let good = golden(synced::FILE_NAME);
    target!(vec![good], |bytes| {
        Synced::decode(bytes);
        let mut bytes = bytes.to_vec();
        for slot in [0, SLOT_BYTES as usize] {
            if let Some(record) = bytes.get_mut(slot..slot + RECORD_BYTES) {
                let sum = crc32fast::hash(&record[..RECORD_BYTES - 8]);
                record[RECORD_BYTES - 8..].copy_from_slice(&u64::from(sum).to_le_bytes());
            }
        }
        Synced::decode(&bytes);
    });
}
