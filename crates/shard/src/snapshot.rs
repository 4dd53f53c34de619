//! A shard's state as bytes: the file beside the log, and the hash by which nodes
//! compare their states.
//!
//! ```text
//! offset  bytes
//!      0      8  magic
//!      8      4  format: the newest one of an entry in the state, little-endian
//!     12      …  a `Header`, and the parts of the state one after the other
//!    end−32  32  BLAKE3 over everything before it
//! ```
//!
//! The digest is checked before anything is decoded: a file that was cut or
//! altered is refused, whatever it would have decoded to. It has no key, because a process that
//! can write into a node's folder can do worse.

use bytes::{Buf, Bytes};
use nowserving_codec::{Codec, Malformed, Reader, Writer};
use nowserving_kv as kv;
use nowserving_line::{BadDump, Head, Limits, LineDump, Lines, LiveBytes};

use crate::command::FORMAT_MIN;
use crate::requests::{Remembered, Requests};
use crate::restore::Uploads;
use crate::state::State;

const MAGIC: &[u8; 8] = b"NSSTATE\n";
/// That of builds before the first release.
const EARLIER_MAGIC: &[u8; 8] = b"NSSNAP\r\n";
const FORMAT_BYTES: usize = 4;
/// The length of a snapshot's digest.
pub const DIGEST_BYTES: usize = 32;

/// The cluster and shard of a snapshot, the last log entry that is in its state, and the members of the
/// shard's Raft group as of that entry.
#[derive(Codec, Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub cluster: String,
    pub shard: u32,
    pub index: u64,
    pub term: u64,
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
    pub voters_outgoing: Vec<u64>,
    pub learners_next: Vec<u64>,
    pub auto_leave: bool,
}

/// Why a snapshot is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    #[error("not a snapshot: its first bytes are not a snapshot's")]
    Magic,
    #[error("a snapshot of a build before the first release, which no later build reads")]
    Earlier,
    /// Written by a build with another format.
    #[error("a snapshot of format {format}, and this build reads {FORMAT_MIN} to {newest}")]
    Format { format: u32, newest: u32 },
    /// Cut off before its digest.
    #[error("a snapshot of {0} bytes is cut off")]
    Short(usize),
    /// Cut off or altered.
    #[error("the snapshot is cut off or altered: its digest does not hold")]
    Digest,
    #[error("a snapshot of cluster {found:?}, not of {expected:?}")]
    Cluster {
        /// The cluster in the snapshot.
        found: String,
        /// The cluster asked for.
        expected: String,
    },
    #[error("a snapshot of shard {found}, not of {expected}")]
    Shard {
        /// The shard in the snapshot.
        found: u32,
        /// The shard asked for.
        expected: u32,
    },
    /// Whole, but not in the form of this build's snapshots.
    #[error("a snapshot has {0}")]
    Malformed(#[from] Malformed),
    #[error("a snapshot contradicts itself: {0}")]
    Key(kv::BadEntry),
    /// Decoded, and contradicts itself.
    #[error("a snapshot contradicts itself: {0}")]
    Contradiction(#[from] BadDump),
}

/// The snapshot of a shard. Take it between log entries.
pub fn encode(header: &Header, state: &State) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&state.format.to_le_bytes());
    let mut to = Writer::after(bytes, state.format);
    header.encode(&mut to);
    state.clock.encode(&mut to);
    state.lines.head().encode(&mut to);
    to.number(state.lines.len() as u64);
    for line in state.lines.iter() {
        line.dump_as::<LiveBytes>().encode(&mut to);
    }
    let first = 0;
    let first = first + usize::from(nowserving_bite::is(nowserving_bite::Break::S17));
    to.number(state.requests.iter_from(first).count() as u64);
    for remembered in state.requests.iter_from(first) {
        put_remembered(remembered, &mut to);
    }
    state.members.encode(&mut to);
    state.uploads.encode(true, &mut to);
    state.kv.revision().encode(&mut to);
    to.number(state.kv.len() as u64);
    for entry in state.kv.iter_from(0) {
        put_key(entry, &mut to);
    }
    state.limits.encode(&mut to);
    let digest = blake3::hash(to.bytes());
    to.put(digest.as_bytes());
    to.into_bytes()
}

fn put_remembered((key, remembered): (u128, Remembered), to: &mut Writer) {
    key.encode(to);
    remembered.encode(to);
}

fn put_key((bucket, key, entry): (&str, &str, &kv::Entry), to: &mut Writer) {
    to.text(bucket);
    to.text(key);
    entry.encode(to);
}

/// Reads the snapshot of `shard` of `cluster`, of a format up to `newest`, as [`crate::command::decode`] does.
pub fn decode(
    bytes: Bytes,
    newest: u32,
    cluster: &str,
    shard: u32,
) -> Result<(Header, State), SnapshotError> {
    // No client can foresee the digest.
    let seed = digest_of(&bytes).and_then(|digest| digest.first_chunk().copied());
    let limits = Limits {
        hash_seed: seed.map_or(0, u64::from_le_bytes),
        ..Limits::default()
    };
    decode_with(limits, bytes, newest, cluster, shard)
}

/// The same with other bounds of lines than a node's, for the simulation.
pub fn decode_with(
    limits: Limits,
    bytes: Bytes,
    newest: u32,
    cluster: &str,
    shard: u32,
) -> Result<(Header, State), SnapshotError> {
    // No client can foresee the digest.
    let seed = digest_of(&bytes).and_then(|digest| digest.first_chunk().copied());
    let seed = seed.map_or(0, u128::from_le_bytes);
    let (format, rest) = open(bytes, newest)?;
    let mut from = Reader::new(&rest, format);
    let header = Header::decode(&mut from)?;
    if header.cluster != cluster {
        return Err(SnapshotError::Cluster {
            found: header.cluster,
            expected: cluster.to_owned(),
        });
    }
    if header.shard != shard {
        return Err(SnapshotError::Shard {
            found: header.shard,
            expected: shard,
        });
    }
    let state = State {
        format,
        clock: Codec::decode(&mut from)?,
        lines: take_lines(limits, &mut from)?,
        requests: take_requests(seed, &mut from)?,
        members: Codec::decode(&mut from)?,
        uploads: Uploads::decode(limits, &mut from)?,
        kv: take_kv(&mut from)?,
        limits: Codec::decode(&mut from)?,
    };
    from.end()?;
    Ok((header, state))
}

fn take_lines(limits: Limits, from: &mut Reader<'_>) -> Result<Lines, SnapshotError> {
    let mut lines = Lines::from_head(limits, Head::decode(from)?)?;
    for _ in 0..from.count()? {
        lines.add(LineDump::<LiveBytes>::decode(from)?)?;
    }
    Ok(lines)
}

fn take_requests(seed: u128, from: &mut Reader<'_>) -> Result<Requests, Malformed> {
    let mut requests = Requests::new(seed);
    for _ in 0..from.count()? {
        let (key, remembered) = Codec::decode(from)?;
        requests.add(key, remembered)?;
    }
    Ok(requests)
}

fn take_kv(from: &mut Reader<'_>) -> Result<kv::Store, SnapshotError> {
    let mut store = kv::Store::new(kv::Limits::default(), Codec::decode(from)?);
    for _ in 0..from.count()? {
        let (bucket, key) = (from.text()?, from.text()?);
        let added = store.add(bucket, key, Codec::decode(from)?);
        added.map_err(SnapshotError::Key)?;
    }
    Ok(store)
}

/// The digest of everything before it at the end of a snapshot; it names a snapshot's content.
#[must_use]
pub fn digest_of(snapshot: &[u8]) -> Option<[u8; DIGEST_BYTES]> {
    snapshot.last_chunk().copied()
}

/// The format of [`hash_part`]: a build that gives another hash of the same state has another one.
/// A later format of entries alone needs no other one: the state is written in its own format.
pub const HASH_FORMAT: u32 = 1;
/// The lines in one part of a shard's state.
const PART_LINES: u64 = 16;
/// The tokens in it: live ones, and as many gone ones and journal entries.
const PART_TOKENS: u64 = 1_024;
/// The remembered requests in it.
const PART_REQUESTS: u64 = 256;
/// The key-values in it: half a mebibyte at most.
const PART_KEYS: u64 = 48;
/// The hash of a part of a shard's state, of bounded size. The parts follow each other as `nth` grows,
/// and begin again after the last one. For the same state and `nth` it is the same on every node.
pub fn hash_part(state: &State, nth: u64) -> [u8; 32] {
    let lines = &state.lines;
    let mut part = Writer::new(state.format);
    state.clock.encode(&mut part);
    lines.head().encode(&mut part);
    let count = lines.len() as u64;
    let taken = count.min(PART_LINES);
    if let Some(size) = PART_TOKENS.checked_div(taken) {
        let first = nth.wrapping_mul(taken);
        let twice = lines.iter().chain(lines.iter());
        let from_first = twice.skip((first % count) as usize);
        for (at, line) in (0..taken).zip(from_first) {
            let round = (first % count + at) / count + first / count;
            line.dump_part::<LiveBytes>(round, size).encode(&mut part);
        }
    }
    state.members.wanted.encode(&mut part);
    state.uploads.encode(false, &mut part);
    let parts = state.requests.len() as u64 / PART_REQUESTS + 1;
    let first = place(nth % parts, PART_REQUESTS);
    for remembered in state.requests.iter_from(first).take(PART_REQUESTS as usize) {
        put_remembered(remembered, &mut part);
    }
    let kv = &state.kv;
    kv.revision().encode(&mut part);
    let parts = kv.len() as u64 / PART_KEYS + 1;
    let first = place(nth % parts, PART_KEYS);
    for entry in kv.iter_from(first).take(PART_KEYS as usize) {
        put_key(entry, &mut part);
    }
    state.limits.encode_part(&mut part);
    blake3::hash(part.bytes()).into()
}

/// Where the part with this number begins.
fn place(part: u64, size: u64) -> usize {
    usize::try_from(part * size).unwrap_or(usize::MAX)
}

/// The format, and the bytes between it and the digest, after a check of both.
fn open(mut bytes: Bytes, newest: u32) -> Result<(u32, Bytes), SnapshotError> {
    if bytes.starts_with(EARLIER_MAGIC) {
        return Err(SnapshotError::Earlier);
    }
    if !bytes.starts_with(MAGIC) {
        return Err(SnapshotError::Magic);
    }
    let length = bytes.len();
    let body = MAGIC.len() + FORMAT_BYTES;
    if length < body + DIGEST_BYTES {
        return Err(SnapshotError::Short(length));
    }
    let digest = bytes.split_off(length - DIGEST_BYTES);
    let mut format = bytes.slice(MAGIC.len()..body);
    let format = format.get_u32_le();
    if !(FORMAT_MIN..=newest).contains(&format) {
        return Err(SnapshotError::Format { format, newest });
    }
    if blake3::hash(&bytes).as_bytes()[..] != digest[..] {
        return Err(SnapshotError::Digest);
    }
    Ok((format, bytes.slice(body..)))
}
