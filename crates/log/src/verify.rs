//! Checks every record of the log files before the engine opens them.
//!
//! On opening, the engine verifies a record's list of items, but its entries only when they are read:
//! perhaps months later, by a leader that sends them to a peer. The compression type and the file header
//! have no checksum at all. With the engine's own checks, a node with a damaged log would start, and panic
//! much later. This reads all files once, one after the other.
//!
//! The layout is that of raft-engine 0.4 (version 2, not aligned, not compressed):
//!
//! ```text
//! file    magic, u64 version, u64 alignment, records
//! record  u56 length, u8 compression, u64 offset of the items,
//!         entries and their CRC-32, if there are any,
//!         items and their CRC-32, XORed with the file's number
//! ```
//!
//! All numbers are big-endian but for the checksums.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::path::Path;

use crate::Refused;
use crate::synced_record::{self, FILE_HEADER_BYTES, Found, LogFile, SyncedRecord};

const MAGIC: &[u8] = b"RAFT-LOG-FILE-HEADER-9986AB3E47F320B394C8E84916EB0ED5";
const VERSION: u64 = 2;
const FILE_HEADER: usize = FILE_HEADER_BYTES as usize;
pub(crate) const RECORD_HEADER: usize = 16;
pub(crate) const SUM: usize = 4;

/// Checks all files; returns where the last whole record of each ends.
pub(crate) fn check_all(files: &[Found], record: &SyncedRecord) -> Result<Vec<End>, Refused> {
    files
        .iter()
        .map(|found| check(found, files, record))
        .collect()
}

/// Checks all files before the engine opens them. Cuts off what a crash leaves at the end of the newest
/// file of a queue: bytes allocated ahead, and a torn write, which was never acknowledged.
pub(crate) fn open(files: &[Found], record: &SyncedRecord) -> Result<(), Refused> {
    for (found, end) in files.iter().zip(check_all(files, record)?) {
        if end.torn {
            let file = found.path.display().to_string();
            tracing::info!(
                file,
                at = end.at,
                "dropped a write that a crash cut short: it was never acknowledged"
            );
        }
        if end.at < FILE_HEADER {
            // The engine makes a new one.
            fs::remove_file(&found.path)?;
        } else if (end.at as u64) < found.len {
            let file = OpenOptions::new().write(true).open(&found.path)?;
            file.set_len(end.at as u64)?;
            file.sync_all()?;
        }
    }
    Ok(())
}

/// Looks for damage in the synced bytes while the engine runs, to say where a read failed.
pub(crate) fn find(files: &[Found], record: &SyncedRecord) -> Option<String> {
    files
        .iter()
        .find_map(|found| match check(found, files, record) {
            Err(Refused::Lost(what)) => Some(what),
            // Perhaps purged meanwhile.
            Ok(_) | Err(Refused::Io(_)) => None,
        })
}

pub(crate) struct End {
    /// The end of the last whole record.
    pub at: usize,
    /// A torn write follows.
    pub torn: bool,
}

/// Checks one file.
fn check(found: &Found, files: &[Found], record: &SyncedRecord) -> Result<End, Refused> {
    let LogFile { queue, seq } = found.file;
    let newer = |other: &Found| other.file.queue == queue && other.file.seq > seq;
    // Before the file is read: the engine may write and sync more meanwhile, which is then read in part.
    let synced = record.synced_len(found.file);
    let bytes = fs::read(&found.path)?;
    // The engine syncs all of a file before it makes the next one.
    let synced = if files.iter().any(newer) {
        bytes.len()
    } else {
        usize::try_from(synced).unwrap_or(usize::MAX)
    };
    let broken = match check_bytes(&bytes, seq) {
        Ok(at) if at >= synced => return Ok(End { at, torn: false }),
        Ok(at) => Broken {
            start: at,
            bytes: (at, synced),
            what: "there are zeros in place of records",
            shards: None,
        },
        Err(broken) => broken,
    };
    let unsynced = broken.start >= synced;
    if unsynced && !record.is_damaged() {
        return Ok(End {
            at: broken.start,
            torn: true,
        });
    }
    let mut what = broken.text(&found.path);
    if unsynced {
        what += &format!(
            "; {} is damaged, too, so it is unknown whether this was acknowledged",
            synced_record::FILE_NAME
        );
    }
    Err(Refused::Lost(what))
}

#[derive(Debug)]
pub(crate) struct Broken {
    start: usize,
    /// The first damaged byte and the one after the last.
    bytes: (usize, usize),
    what: &'static str,
    /// The shards with entries there, if that can still be read.
    pub shards: Option<BTreeSet<u64>>,
}

impl Broken {
    pub fn text(&self, path: &Path) -> String {
        let name = Path::new(path.file_name().unwrap_or_default()).display();
        let (first, end) = self.bytes;
        let affected = match &self.shards {
            None => "it is unknown which shards are affected".to_owned(),
            Some(shards) => {
                let shards: Vec<String> = shards.iter().map(u64::to_string).collect();
                format!("affected: shard {}", shards.join(", "))
            }
        };
        let what = self.what;
        format!("{name} is damaged at byte {first} (to byte {end}): {what}; {affected}")
    }
}

/// Returns where the last record ends.
pub(crate) fn check_bytes(bytes: &[u8], seq: u64) -> Result<usize, Broken> {
    let numbers = [VERSION.to_be_bytes(), [0; 8]].concat();
    if !bytes.starts_with(MAGIC) || bytes.get(MAGIC.len()..FILE_HEADER) != Some(&numbers[..]) {
        return Err(Broken {
            start: 0,
            bytes: (0, FILE_HEADER),
            what: "its header is not that of a log file",
            shards: None,
        });
    }
    let mut at = FILE_HEADER;
    while let Some(rest) = bytes.get(at..).filter(|rest| !is_zero(rest)) {
        at += check_record(rest, at, seq)?;
    }
    Ok(at)
}

/// Bytes that were allocated ahead.
fn is_zero(rest: &[u8]) -> bool {
    rest.first().is_none_or(|byte| *byte == 0) && rest.iter().all(|byte| *byte == 0)
}

/// Checks the record at the beginning of `rest`, which is at `at` in its file; returns its length.
fn check_record(rest: &[u8], at: usize, seq: u64) -> Result<usize, Broken> {
    let broken = |(first, end): (usize, usize), what, shards| Broken {
        start: at,
        bytes: (at + first, at + end),
        what,
        shards,
    };
    let number = |from: usize| {
        let bytes = rest.get(from..from + 8)?.try_into().ok()?;
        usize::try_from(u64::from_be_bytes(bytes)).ok()
    };
    let (Some(length), Some(items_at)) = (number(0), number(8)) else {
        return Err(broken((0, rest.len()), "a record is cut off", None));
    };
    let (length, compression) = (length >> 8, length & 0xff);
    let parts = rest
        .get(..length)
        .filter(|_| compression == 0 && items_at >= RECORD_HEADER)
        .and_then(|record| {
            Some((
                record.get(RECORD_HEADER..items_at)?,
                record.get(items_at..)?,
            ))
        });
    let Some((entries, items)) = parts else {
        let header = (0, RECORD_HEADER);
        return Err(broken(header, "the header of a record is not valid", None));
    };
    if !sum_holds(items, seq as u32) {
        let what = "the checksum of a record's items does not hold";
        return Err(broken((0, length), what, None));
    }
    if !entries.is_empty() && !sum_holds(entries, 0) {
        let what = "the checksum of a record's entries does not hold";
        let place = (RECORD_HEADER, items_at);
        return Err(broken(place, what, Items(items).shards()));
    }
    Ok(length)
}

fn sum_holds(block: &[u8], signature: u32) -> bool {
    block
        .split_last_chunk::<SUM>()
        .is_some_and(|(data, sum)| crc32fast::hash(data) == u32::from_le_bytes(*sum) ^ signature)
}

/// A record's list of items, to be read from the front.
pub(crate) struct Items<'a>(pub &'a [u8]);

impl Items<'_> {
    /// The shards in it. `None` if it is not of the known layout.
    pub fn shards(mut self) -> Option<BTreeSet<u64>> {
        let mut shards = BTreeSet::new();
        for _ in 0..self.number()? {
            shards.insert(self.number()?);
            match self.byte()? {
                // Entries: how many, the first one's index, and where each ends.
                1 => match self.number()? {
                    0 => {}
                    count => (0..=count).try_for_each(|_| self.number().map(drop))?,
                },
                // A command; only the one to compact has a number.
                2 => {
                    if self.byte()? == 2 {
                        self.number()?;
                    }
                }
                // A key, and its value unless it is deleted.
                3 => {
                    let operation = self.byte()?;
                    self.skip()?;
                    if operation == 1 {
                        self.skip()?;
                    }
                }
                _ => return None,
            }
        }
        Some(shards)
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// A number of seven bits a byte, the lowest first.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// Some bytes with their length before them.
    fn skip(&mut self) -> Option<()> {
        let length = usize::try_from(self.number()?).ok()?;
        self.0 = self.0.get(length..)?;
        Some(())
    }
}
