//! Reads the segments of a directory, one after the other, and compares every batch with its checksum. Nothing is
//! changed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::format::{self, BATCH_HEADER_BYTES, Header};
use crate::shard_log::{self, Index};
use crate::synced::{self, Synced};
use crate::{LogError, lost};

const EXTENSION: &str = "segment";
/// A segment that is being made. One that is found was not finished.
pub(crate) const NEW: &str = "new";

fn name(number: u32) -> String {
    format!("{number:010}.{EXTENSION}")
}

/// The path of a segment.
pub(crate) fn path(dir: &Path, number: u32) -> PathBuf {
    dir.join(name(number))
}

/// What is in a directory.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    pub index: Index,
    /// The segments in use, oldest first.
    pub segments: Vec<Header>,
    /// The end of the last whole batch of the newest segment.
    pub end: usize,
    /// All before this in it was synced.
    pub recorded: u64,
    /// The bytes after it that are not zero end there: a write that a crash cut short, which was never acknowledged.
    pub torn_end: usize,
    pub synced: Synced,
    /// Files that a crash left, to be deleted.
    pub leftovers: Vec<PathBuf>,
}

/// Reads the log in `dir`.
pub(crate) fn recover(dir: &Path) -> Result<Recovered, LogError> {
    let mut recovered = Recovered::default();
    let mut numbers = recovered.list(dir)?;
    let Some(synced) = Synced::read(dir)? else {
        if numbers.is_empty() {
            return Ok(recovered);
        }
        let what = format!("there are segments, but {} is missing", synced::FILE_NAME);
        return Err(lost(dir, what));
    };
    recovered.synced = synced;
    let deleted = numbers.iter().filter(|number| **number < synced.first);
    recovered.leftovers.extend(deleted.map(|it| path(dir, *it)));
    numbers.retain(|number| *number >= synced.first);
    let newest = numbers.last().copied().unwrap_or_default();
    let newest = newest.max(synced.segment);
    if newest == 0 {
        return Ok(recovered);
    }
    for number in synced.first..=newest {
        if numbers.binary_search(&number).is_err() {
            return Err(lost(dir, format!("{} is missing", name(number))));
        }
        let header = read_header(dir, number)?;
        recovered.segments.push(header);
    }
    recovered.read_segments(dir)?;
    Ok(recovered)
}

impl Recovered {
    /// The numbers of all segments.
    fn list(&mut self, dir: &Path) -> Result<Vec<u32>, LogError> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(dir)? {
            let file = entry?.path();
            match file.extension().and_then(|it| it.to_str()) {
                Some(EXTENSION) => {
                    let stem = file.file_stem().and_then(|it| it.to_str());
                    numbers.extend(stem.and_then(|it| it.parse::<u32>().ok()));
                }
                Some(NEW) => self.leftovers.push(file),
                _ => {}
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn read_segments(&mut self, dir: &Path) -> Result<(), LogError> {
        let mut bytes = Vec::new();
        for (nth, header) in self.segments.iter().enumerate() {
            bytes.clear();
            let mut file = File::open(path(dir, header.number))?;
            file.read_to_end(&mut bytes)?;
            let next = self.segments.get(nth + 1);
            if let Some(next) = next {
                // Behind that there may be what a crash left.
                bytes.truncate(next.previous_end as usize);
            }
            let index = &mut self.index;
            let end = walk(&bytes, header.salt, |at, records| {
                shard_log::apply(index, header.number, at, records)
            });
            let end = end.map_err(|(at, what)| {
                let place = (at, at + BATCH_HEADER_BYTES);
                lost(dir, damage(header.number, place, what))
            })?;
            // All of a segment is synced before the next one is made.
            let synced = match next {
                Some(next) => next.previous_end,
                None if self.synced.segment == header.number => self.synced.end.max(header.begun),
                None => header.begun,
            };
            self.torn_end = format::written(&bytes);
            let says_so = || format::synced_past(&bytes, end, self.torn_end, header.salt);
            if (end as u64) < synced || next.is_none() && says_so() {
                return Err(lost(dir, damaged_at(header, &bytes, end)));
            }
            (self.end, self.recorded) = (end, synced);
            if next.is_none() && self.torn_end > end && self.synced.damaged {
                let what = damaged_at(header, &bytes, end);
                let record = synced::FILE_NAME;
                let unknown = "is damaged, too, so it is unknown whether this was acknowledged";
                return Err(lost(dir, format!("{what}; {record} {unknown}")));
            }
        }
        let mut logs = self.index.iter();
        logs.find(|(_, log)| !log.is_whole()).map_or(Ok(()), |it| {
            let what = format!("entries of shard {} are in no segment", it.0);
            Err(lost(dir, what))
        })
    }
}

fn read_header(dir: &Path, number: u32) -> Result<Header, LogError> {
    let file = File::open(path(dir, number))?;
    let len = file.metadata()?.len();
    let mut bytes = Vec::new();
    file.take(Header::BYTES as u64).read_to_end(&mut bytes)?;
    let header = Header::decode(&bytes).filter(|header| header.number == number);
    let damage = |place, what| lost(dir, damage(number, place, what));
    let what = "its header is not that of this segment";
    let header = header.ok_or_else(|| damage((0, Header::BYTES), what))?;
    if len != header.bytes {
        let place = (len as usize, header.bytes as usize);
        return Err(damage(place, "its length is not that in its header"));
    }
    Ok(header)
}

/// Goes over the whole batches of a segment. Returns the end of the last one.
///
/// # Errors
/// That of `each`, and the batch's place.
pub(crate) fn walk(
    bytes: &[u8],
    salt: u32,
    mut each: impl FnMut(usize, &[u8]) -> Result<(), &'static str>,
) -> Result<usize, (usize, &'static str)> {
    let mut at = Header::BYTES;
    let read = |at| format::batch(bytes.get(at..)?, salt).filter(|batch| batch.whole);
    while let Some(batch) = read(at) {
        let records_at = at + BATCH_HEADER_BYTES;
        each(records_at, batch.records).map_err(|what| (at, what))?;
        at = records_at + batch.records.len();
    }
    Ok(at)
}

/// Says what is wrong with the batch at `at`.
fn damaged_at(header: &Header, bytes: &[u8], at: usize) -> String {
    let rest = bytes.get(at..).unwrap_or_default();
    let (length, what) = match format::batch(rest, header.salt) {
        _ if rest.iter().all(|byte| *byte == 0) => {
            let what = "there are zeros in place of records";
            (rest.len(), what.to_owned())
        }
        Some(batch) => {
            let shards = format::records(batch.records).map_while(|it| Some(it.ok()?.shard));
            let shards: BTreeSet<u32> = shards.collect();
            let what = "the checksum of records does not hold";
            let affected = format!("{what}; affected, as far as it can be read: shards {shards:?}");
            (BATCH_HEADER_BYTES + batch.records.len(), affected)
        }
        None => {
            let what = "the header of records is not valid";
            (BATCH_HEADER_BYTES, what.to_owned())
        }
    };
    damage(header.number, (at, at + length), &what)
}

/// Says where a segment is damaged: from a byte to another one.
pub(crate) fn damage(number: u32, (first, end): (usize, usize), what: &str) -> String {
    let name = name(number);
    format!("{name} is damaged at byte {first} (to byte {end}): {what}")
}
