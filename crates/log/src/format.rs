//! The bytes of a segment.
//!
//! ```text
//! segment  header, batches, perhaps one that a crash has torn, zeros to its end
//! batch    u32 checksum of the header, u32 length of the records, u32 bytes of this segment that were synced before,
//!          u32 checksum of the records, records
//! record   what is written of one shard, as `nowserving_codec` has it: see [`Record`]
//! ```
//!
//! Numbers outside of records are little-endian; checksums are CRC-32. Those of batches begin with the segment's salt,
//! which is drawn at random: no user's bytes in an entry can pass for a batch. A header has a checksum of its own, so that
//! batches can be looked for at each byte.

use std::ops::Range;

use nowserving_codec::{Codec, Malformed, Reader, Writer};
use nowserving_replica::{LogState, SnapshotMeta};
use raft::eraftpb::{Entry, EntryType, HardState};

pub(crate) const BATCH_HEADER_BYTES: usize = 16;
/// The format of records.
pub(crate) const FORMAT: u32 = 1;

/// Numbers with a magic before them and their checksum behind.
pub(crate) fn sign<const N: usize>(magic: &[u8; 8], numbers: [u64; N]) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    let sum = crc32fast::hash(&bytes);
    bytes.extend(u64::from(sum).to_le_bytes());
    bytes
}

/// The numbers at the beginning of `bytes`, if they were signed.
pub(crate) fn signed<const N: usize>(magic: &[u8; 8], bytes: &[u8]) -> Option<[u64; N]> {
    let (found, _) = bytes.strip_prefix(magic)?.as_chunks();
    let found: &[[u8; 8]; N] = found.first_chunk()?;
    let numbers = found.map(u64::from_le_bytes);
    bytes.starts_with(&sign(magic, numbers)).then_some(numbers)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub number: u32,
    pub salt: u32,
    /// The file's length, which never changes.
    pub bytes: u64,
    /// The end of the last batch of the segment before.
    pub previous_end: u64,
    /// The end of what was in this segment, and synced, when it got its name.
    pub begun: u64,
}

impl Header {
    const MAGIC: &[u8; 8] = b"nsvlog01";
    pub const BYTES: usize = 56;

    pub fn encode(&self) -> Vec<u8> {
        let (number, salt) = (self.number.into(), self.salt.into());
        let numbers = [number, salt, self.bytes, self.previous_end, self.begun];
        sign(Header::MAGIC, numbers)
    }

    pub fn decode(bytes: &[u8]) -> Option<Header> {
        let [number, salt, bytes, previous_end, begun] = signed(Header::MAGIC, bytes)?;
        Some(Header {
            number: number.try_into().ok()?,
            salt: salt.try_into().ok()?,
            bytes,
            previous_end,
            begun,
        })
    }
}

fn checksum(salt: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(salt);
    hasher.update(bytes);
    hasher.finalize()
}

/// Completes a batch whose records are in `buffer` behind the room for its header.
pub(crate) fn seal(buffer: &mut [u8], salt: u32, synced: u32) {
    let length = (buffer.len() - BATCH_HEADER_BYTES) as u32;
    buffer[4..8].copy_from_slice(&length.to_le_bytes());
    buffer[8..12].copy_from_slice(&synced.to_le_bytes());
    let sum = checksum(salt, &buffer[BATCH_HEADER_BYTES..]);
    buffer[12..16].copy_from_slice(&sum.to_le_bytes());
    let sum = checksum(salt, &buffer[4..BATCH_HEADER_BYTES]);
    buffer[..4].copy_from_slice(&sum.to_le_bytes());
}

/// A batch as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch<'a> {
    pub records: &'a [u8],
    /// So many bytes of its segment were synced before.
    pub synced: usize,
    /// Whether their checksum holds.
    pub whole: bool,
}

/// The batch at the beginning of `bytes`, if its header is valid.
pub(crate) fn batch(bytes: &[u8], salt: u32) -> Option<Batch<'_>> {
    let (header, rest) = bytes.split_first_chunk::<BATCH_HEADER_BYTES>()?;
    let number = |nth: usize| u32::from_le_bytes(header.as_chunks().0[nth]);
    let length = number(1) as usize;
    let records = rest.get(..length).filter(|records| !records.is_empty())?;
    let valid = number(0) == checksum(salt, &header[4..]);
    valid.then(|| Batch {
        records,
        synced: number(2) as usize,
        whole: number(3) == checksum(salt, records),
    })
}

/// Where the zeros begin that a segment ends with: what was allocated in advance and is not written yet.
pub(crate) fn written(bytes: &[u8]) -> usize {
    const PAGE: [u8; 4096] = [0; 4096];
    // They are most of a new segment. A page at a time is compared many times faster than a byte at a time.
    let pages = bytes.rchunks(PAGE.len());
    let zeros = pages.take_while(|page| **page == PAGE[..page.len()]);
    let rest = &bytes[..bytes.len() - zeros.map(<[u8]>::len).sum::<usize>()];
    let last = rest.iter().rposition(|byte| *byte != 0);
    last.map_or(0, |last| last + 1)
}

/// Whether a whole batch behind `at`, which begins before `written`, says that the byte at `at` was synced before.
pub(crate) fn synced_past(bytes: &[u8], at: usize, written: usize, salt: u32) -> bool {
    (at + 1..written).any(|from| {
        let synced = bytes[from..].get(8..).and_then(|it| it.first_chunk());
        let synced = synced.map_or(0, |it| u32::from_le_bytes(*it) as usize);
        // Checksums are computed of few places only.
        at < synced && synced <= from && batch(&bytes[from..], salt).is_some_and(|it| it.whole)
    })
}

/// What a batch says about a shard.
pub(crate) struct Record {
    pub shard: u32,
    /// Where the shard is, without its hard state. If it was elsewhere, its log begins anew. Each segment begins
    /// with all shards, so that older ones can be deleted.
    pub state: Option<LogState>,
    pub hard_state: Option<HardState>,
    /// The index of the first entry, if there are any: they replace all from there on.
    pub first: u64,
    /// The term of each entry, and its place among the bytes of the batch's records.
    pub entries: Vec<(u64, Range<usize>)>,
}

/// Writes a [`Record`].
pub(crate) fn put(
    to: &mut Writer,
    shard: u32,
    state: Option<&LogState>,
    hard_state: Option<&HardState>,
    entries: &[Entry],
) {
    let state = state.map(|it| {
        let numbers = [it.compact_index, it.compact_term, it.last_index];
        (it.start.clone(), numbers)
    });
    let hard_state = hard_state.map(|it| [it.term, it.vote, it.commit]);
    (shard, state, hard_state).encode(to);
    to.number(entries.first().map_or(0, |entry| entry.index));
    to.number(entries.len() as u64);
    for entry in entries {
        to.byte(entry.entry_type as u8);
        to.number(entry.term);
        for bytes in [&entry.data, &entry.context] {
            to.number(bytes.len() as u64);
            to.put(bytes);
        }
    }
}

/// The records of a batch, up to the end or the first one that can't be read.
pub(crate) fn records(bytes: &[u8]) -> impl Iterator<Item = Result<Record, Malformed>> {
    let mut from = Reader::new(bytes, FORMAT);
    std::iter::from_fn(move || (!from.is_empty()).then(|| record(&mut from, bytes.len())))
}

/// Reads a record of a batch whose records have `length` bytes.
fn record(from: &mut Reader<'_>, length: usize) -> Result<Record, Malformed> {
    type State = (SnapshotMeta, [u64; 3]);
    let (shard, state, hard_state): (u32, Option<State>, Option<[u64; 3]>) = Codec::decode(from)?;
    let state = state.map(
        |(start, [compact_index, compact_term, last_index])| LogState {
            start,
            compact_index,
            compact_term,
            last_index,
            ..LogState::default()
        },
    );
    let hard_state = hard_state.map(|[term, vote, commit]| HardState {
        term,
        vote,
        commit,
        ..HardState::default()
    });
    let first = from.number()?;
    let mut entries = Vec::new();
    for _ in 0..from.count()? {
        let at = length - from.left();
        let (_, term, _) = entry(from)?;
        entries.push((term, at..length - from.left()));
    }
    Ok(Record {
        shard,
        state,
        hard_state,
        first,
        entries,
    })
}

/// The type and term of an entry, its data and context.
fn entry<'a>(from: &mut Reader<'a>) -> Result<(EntryType, u64, [&'a [u8]; 2]), Malformed> {
    let entry_type = match from.byte()? {
        0 => EntryType::EntryNormal,
        1 => EntryType::EntryConfChange,
        2 => EntryType::EntryConfChangeV2,
        _ => return Err(Malformed("an entry of no known type")),
    };
    let term = from.number()?;
    let mut bytes = || from.count().and_then(|count| from.take(count));
    Ok((entry_type, term, [bytes()?, bytes()?]))
}

/// The entry at `index`, whose bytes are these.
pub(crate) fn decode_entry(index: u64, bytes: &[u8]) -> Result<Entry, Malformed> {
    let (entry_type, term, [data, context]) = entry(&mut Reader::new(bytes, FORMAT))?;
    Ok(Entry {
        entry_type,
        term,
        index,
        data: data.to_vec().into(),
        context: context.to_vec().into(),
        ..Entry::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_byte_that_is_not_zero_is_found_on_any_page() {
        for length in [0, 1, 4_095, 4_096, 4_097, 8_191, 8_192, 8_193, 20_000] {
            let mut bytes = vec![0; length];
            assert_eq!(written(&bytes), 0);
            for at in (0..length).step_by(61).chain(length.checked_sub(1)) {
                bytes[at] = 1;
                assert_eq!(written(&bytes), at + 1, "of {length}");
            }
        }
    }
}
