//! A shard's state as bytes: the file beside the log, and the hash by which nodes
//! compare their states.
//!
//! ```text
//! offset  bytes
//!      0      8  magic "NSSNAP\r\n"
//!      8      4  format: the newest one of an entry in the state, little-endian
//!     12      …  a `SnapshotHeader`, then every section in the order of its kind: a
//!                `SectionHeader` and as many records as that says; each protobuf with
//!                its length before it
//!    end−32  32  BLAKE3 over everything before it
//! ```
//!
//! | section | records |
//! |---|---|
//! | clock | one `ClockState` |
//! | lines | a `LinesState`, then one `LineState` per line, by name |
//! | requests | a `RememberedRequest` each, the oldest first |
//! | members | one `Members`, then a `RecordedChange` each, the oldest first |
//! | uploads | an `Upload` each, by line |
//! | key-values | a `KvState`, then a `KvKey` each, by bucket and key; without the section no key was ever put |
//! | limits | a `LimitsState`, then one `LimitDomain` per domain, by name, a `LimitChange` each, the oldest first, and a `LimitCounter` each, by key; missing if nothing was ever said of limits |
//!
//! The digest is checked before anything is decoded: a file that was cut or
//! altered is refused, whatever it would have decoded to. It has no key, because a process that
//! can write into a node's folder can do worse.

use std::fmt;

use bytes::{Buf, Bytes};
use nowserving_kv as kv;
use nowserving_line::{BadDump, Head, Limits, Lines};
use prost::Message;

use crate::command::FORMAT_MIN;
use crate::kv_pb::{kv_entry_from_pb, kv_entry_to_pb};
use crate::limits::{self, LimitsState};
use crate::members::MembersState;
use crate::members_pb::{members_from_pb, members_to_pb, recorded_from_pb, recorded_to_pb};
use crate::pb;
use crate::pb::SectionKind;
/// The cluster and shard of a snapshot, the last log entry that is in its state, and the members of the
/// shard's Raft group as of that entry.
pub use crate::pb::SnapshotHeader as Header;
use crate::requests::Requests;
use crate::requests_pb::{remembered_from_pb, remembered_to_pb};
use crate::restore::Uploads;
use crate::snapshot_pb::{line_from_pb, line_to_pb};
use crate::state::{Clock, State};

const MAGIC: &[u8; 8] = b"NSSNAP\r\n";
const FORMAT_BYTES: usize = 4;
/// The length of a snapshot's digest.
pub const DIGEST_BYTES: usize = 32;

/// Why a snapshot is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    #[error("not a snapshot: its first bytes are not a snapshot's")]
    Magic,
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
    #[error("a snapshot does not decode: {0}")]
    Decode(String),
    /// Decoded, and contradicts itself.
    #[error("a snapshot contradicts itself: {0}")]
    Contradiction(#[from] BadDump),
}

impl SnapshotError {
    fn decode(what: impl fmt::Display) -> SnapshotError {
        SnapshotError::Decode(what.to_string())
    }
}

/// The snapshot of a shard. Take it between log entries.
pub fn encode(header: &Header, state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&state.format.to_le_bytes());
    put(&mut bytes, header);
    put_section(&mut bytes, SectionKind::Clock, 1);
    put(&mut bytes, &clock_to_pb(state.clock));
    put_section(&mut bytes, SectionKind::Lines, 1 + state.lines.len() as u64);
    put(&mut bytes, &lines_to_pb(&state.lines));
    for line in state.lines.iter() {
        put(&mut bytes, &line_to_pb(line.dump()));
    }
    let first = 0;
    #[cfg(feature = "bite")]
    let first = first + usize::from(nowserving_bite::is(nowserving_bite::Break::S17));
    let requests = state.requests.iter_from(first);
    put_section(&mut bytes, SectionKind::Requests, requests.count() as u64);
    for (key, remembered) in state.requests.iter_from(first) {
        put(&mut bytes, &remembered_to_pb(key, remembered));
    }
    let members = &state.members;
    put_section(
        &mut bytes,
        SectionKind::Members,
        1 + members.changes.len() as u64,
    );
    put(&mut bytes, &members_to_pb(&members.wanted));
    for change in &members.changes {
        put(&mut bytes, &recorded_to_pb(change));
    }
    let uploads = &state.uploads;
    put_section(&mut bytes, SectionKind::Uploads, uploads.len() as u64);
    for upload in uploads.to_pb(true) {
        put(&mut bytes, &upload);
    }
    let kv = &state.kv;
    if !kv.is_unused() {
        put_section(&mut bytes, SectionKind::Kv, 1 + kv.len() as u64);
        put(&mut bytes, &kv_to_pb(kv));
        for entry in kv.iter_from(0) {
            put(&mut bytes, &kv_entry_to_pb(entry));
        }
    }
    if !state.limits.is_unused() {
        put_limits(&mut bytes, &state.limits);
    }
    let digest = blake3::hash(&bytes);
    bytes.extend_from_slice(digest.as_bytes());
    bytes
}

/// Reads the snapshot of `shard` of `cluster`, of a format up to `newest`, as [`crate::command::decode`] does.
pub fn decode(
    bytes: Bytes,
    newest: u32,
    cluster: &str,
    shard: u32,
) -> Result<(Header, State), SnapshotError> {
    let (format, mut rest) = open(bytes, newest)?;
    let header = take::<Header>(&mut rest)?;
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
    let clock = take_clock(&mut rest)?;
    let lines = take_lines(&mut rest, clock)?;
    let requests = take_requests(&mut rest)?;
    let members = take_members(&mut rest)?;
    let uploads = take_uploads(&mut rest)?;
    let kv = match is_next(&rest, SectionKind::Kv) {
        true => take_kv(&mut rest)?,
        false => kv::Store::default(),
    };
    let limits = match is_next(&rest, SectionKind::Limits) {
        true => take_limits(&mut rest)?,
        false => LimitsState::default(),
    };
    if rest.has_remaining() {
        return Err(SnapshotError::decode("bytes after its end"));
    }
    let state = State {
        format,
        clock,
        lines,
        requests,
        members,
        uploads,
        kv,
        limits,
    };
    Ok((header, state))
}

fn put_limits(bytes: &mut Vec<u8>, limits: &LimitsState) {
    let changes = limits.changes.iter();
    let records = 1 + limits.rules.domains().len() + changes.len() + limits.saved.len();
    put_section(bytes, SectionKind::Limits, records as u64);
    put(bytes, &limits::pb::state_to_pb(limits));
    for domain in limits::pb::domains_to_pb(&limits.rules) {
        put(bytes, &domain);
    }
    for change in changes {
        put(bytes, &limits::pb::change_to_pb(change));
    }
    for counter in limits::pb::counters_to_pb(&limits.saved, None) {
        put(bytes, &counter);
    }
}

fn take_limits(rest: &mut Bytes) -> Result<LimitsState, SnapshotError> {
    let records = take_section(rest, SectionKind::Limits)?;
    let head = take::<pb::LimitsState>(rest)?;
    let (domains, changes) = (head.domains, head.changes);
    let mut limits = limits::pb::state_from_pb(head);
    for _ in 0..domains {
        let added = limits::pb::add_domain(&mut limits.rules, take(rest)?);
        added.map_err(SnapshotError::decode)?;
    }
    for _ in 0..changes {
        let added = limits::pb::add_change(&mut limits.changes, take(rest)?);
        added.map_err(SnapshotError::decode)?;
    }
    for _ in domains.saturating_add(changes).saturating_add(1)..records {
        let added = limits::pb::add_counter(&mut limits.saved, take(rest)?);
        added.map_err(SnapshotError::decode)?;
    }
    Ok(limits)
}

fn take_clock(rest: &mut Bytes) -> Result<Clock, SnapshotError> {
    let records = take_section(rest, SectionKind::Clock)?;
    if records != 1 {
        return Err(SnapshotError::decode("not one clock"));
    }
    let clock = take::<pb::ClockState>(rest)?;
    Ok(Clock {
        now_ms: clock.now_ms,
    })
}

fn take_lines(rest: &mut Bytes, clock: Clock) -> Result<Lines, SnapshotError> {
    let records = take_section(rest, SectionKind::Lines)?;
    let head = take::<pb::LinesState>(rest)?;
    let head = Head {
        now_ms: clock.now_ms,
        version_floor: head.version_floor,
        epoch_floor: head.epoch_floor,
        incarnation_floor: head.incarnation_floor,
    };
    let mut lines = Lines::from_head(Limits::default(), head)?;
    for _ in 1..records {
        let line = take::<pb::LineState>(rest)?;
        lines.add(line_from_pb(line).map_err(SnapshotError::decode)?)?;
    }
    Ok(lines)
}

fn take_requests(rest: &mut Bytes) -> Result<Requests, SnapshotError> {
    let records = take_section(rest, SectionKind::Requests)?;
    let mut requests = Requests::default();
    for _ in 0..records {
        let it = take::<pb::RememberedRequest>(rest)?;
        let (key, remembered) = remembered_from_pb(it).map_err(SnapshotError::decode)?;
        requests.insert(key, remembered);
    }
    Ok(requests)
}

fn take_members(rest: &mut Bytes) -> Result<MembersState, SnapshotError> {
    let records = take_section(rest, SectionKind::Members)?;
    let wanted = members_from_pb(take(rest)?).map_err(SnapshotError::decode)?;
    let mut members = MembersState {
        wanted,
        ..MembersState::default()
    };
    for _ in 1..records {
        let change = recorded_from_pb(take(rest)?).map_err(SnapshotError::decode)?;
        members.remember(change);
    }
    Ok(members)
}

fn take_uploads(rest: &mut Bytes) -> Result<Uploads, SnapshotError> {
    let records = take_section(rest, SectionKind::Uploads)?;
    let mut uploads = Uploads::default();
    for _ in 0..records {
        let added = uploads.add_pb(take(rest)?);
        added.map_err(SnapshotError::Decode)?;
    }
    Ok(uploads)
}

fn take_kv(rest: &mut Bytes) -> Result<kv::Store, SnapshotError> {
    let records = take_section(rest, SectionKind::Kv)?;
    let head = take::<pb::KvState>(rest)?;
    let mut store = kv::Store::new(kv::Limits::default(), head.revision);
    for _ in 1..records {
        let key = take::<pb::KvKey>(rest)?;
        let added = store.add(&key.bucket, &key.key, kv_entry_from_pb(&key));
        added.map_err(SnapshotError::decode)?;
    }
    Ok(store)
}

/// The digest of everything before it at the end of a snapshot; it names a snapshot's content.
#[must_use]
pub fn digest_of(snapshot: &[u8]) -> Option<[u8; DIGEST_BYTES]> {
    snapshot.last_chunk().copied()
}

/// The format of [`hash_part`]: a build that gives another hash of the same state has another one.
/// New state changes no hash if its fields are left out while they have their default.
pub const HASH_FORMAT: u32 = 3;
/// The lines in one part of a shard's state.
const PART_LINES: u64 = 16;
/// The tokens in it: live ones, and as many gone ones and journal entries.
const PART_TOKENS: u64 = 1_024;
/// The remembered requests in it.
const PART_REQUESTS: u64 = 256;
/// The key-values in it: half a mebibyte at most.
const PART_KEYS: u64 = 48;
/// The counters of limits in it: those from which on idle ones are looked for next, which moves on as they are used.
const PART_COUNTERS: usize = 256;
/// Fewer of them if they are long: the last one begins within this many bytes of the first.
const PART_COUNTERS_BYTES: usize = 65_536;

/// The hash of a part of a shard's state, of bounded size. The parts follow each other as `nth` grows,
/// and begin again after the last one. For the same state and `nth` it is the same on every node.
pub fn hash_part(state: &State, nth: u64) -> [u8; 32] {
    let lines = &state.lines;
    let mut part = Vec::new();
    put(&mut part, &clock_to_pb(state.clock));
    put(&mut part, &lines_to_pb(lines));
    let count = lines.len() as u64;
    let taken = count.min(PART_LINES);
    if let Some(size) = PART_TOKENS.checked_div(taken) {
        let first = nth.wrapping_mul(taken);
        let twice = lines.iter().chain(lines.iter());
        let from_first = twice.skip((first % count) as usize);
        for (at, line) in (0..taken).zip(from_first) {
            let round = (first % count + at) / count + first / count;
            put(&mut part, &line_to_pb(line.dump_part(round, size)));
        }
    }
    if state.members.wanted.version > 0 {
        put(&mut part, &members_to_pb(&state.members.wanted));
    }
    for upload in state.uploads.to_pb(false) {
        put(&mut part, &upload);
    }
    let count = state.requests.len() as u64;
    if let Some(parts) = count.checked_div(PART_REQUESTS) {
        let first = (nth % (parts + 1)) * PART_REQUESTS;
        let remembered = state
            .requests
            .iter_from(usize::try_from(first).unwrap_or(0));
        for (key, remembered) in remembered.take(PART_REQUESTS as usize) {
            put(&mut part, &remembered_to_pb(key, remembered));
        }
    }
    let kv = &state.kv;
    if !kv.is_unused() {
        put(&mut part, &kv_to_pb(kv));
        let parts = kv.len() as u64 / PART_KEYS + 1;
        let first = usize::try_from((nth % parts) * PART_KEYS).unwrap_or(0);
        for entry in kv.iter_from(first).take(PART_KEYS as usize) {
            put(&mut part, &kv_entry_to_pb(entry));
        }
    }
    if !state.limits.is_unused() {
        put_part_of_limits(&mut part, &state.limits);
    }
    blake3::hash(&part).into()
}

/// Without the texts of rules, but for their versions, and of operators' changes the newest.
fn put_part_of_limits(part: &mut Vec<u8>, limits: &LimitsState) {
    put(part, &limits::pb::state_to_pb(limits));
    for (_, rules) in limits.rules.domains() {
        prost::encoding::encode_varint(rules.version, part);
    }
    if let Some(newest) = limits.changes.iter().next_back() {
        put(part, &limits::pb::change_to_pb(newest));
    }
    let counters = limits::pb::counters_to_pb(&limits.saved, limits.saved.expired_to());
    let first = part.len();
    for counter in counters.take(PART_COUNTERS) {
        put(part, &counter);
        if part.len() - first > PART_COUNTERS_BYTES {
            break;
        }
    }
}

/// The format, and the bytes between it and the digest, after a check of both.
fn open(mut bytes: Bytes, newest: u32) -> Result<(u32, Bytes), SnapshotError> {
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

fn put(bytes: &mut Vec<u8>, part: &impl Message) {
    prost::encoding::encode_varint(part.encoded_len() as u64, bytes);
    part.encode_raw(bytes);
}

fn put_section(bytes: &mut Vec<u8>, kind: SectionKind, records: u64) {
    let kind = kind.into();
    put(bytes, &pb::SectionHeader { kind, records });
}

fn take<M: Message + Default>(rest: &mut Bytes) -> Result<M, SnapshotError> {
    M::decode_length_delimited(rest).map_err(SnapshotError::decode)
}

/// Whether there is another section, and it is of this kind.
fn is_next(rest: &Bytes, kind: SectionKind) -> bool {
    let section = take::<pb::SectionHeader>(&mut rest.clone());
    section.is_ok_and(|section| section.kind == i32::from(kind))
}

/// The number of records of the next section, which must be of this kind.
fn take_section(rest: &mut Bytes, kind: SectionKind) -> Result<u64, SnapshotError> {
    let section = take::<pb::SectionHeader>(rest)?;
    if section.kind != i32::from(kind) {
        let (expected, found) = (kind.as_str_name(), section.kind);
        let what = format!("instead of {expected} it has a section of kind {found}");
        return Err(SnapshotError::Decode(what));
    }
    Ok(section.records)
}

fn clock_to_pb(clock: Clock) -> pb::ClockState {
    pb::ClockState {
        now_ms: clock.now_ms,
    }
}

fn lines_to_pb(lines: &Lines) -> pb::LinesState {
    let head = lines.head();
    pb::LinesState {
        version_floor: head.version_floor,
        epoch_floor: head.epoch_floor,
        incarnation_floor: head.incarnation_floor,
    }
}

fn kv_to_pb(kv: &kv::Store) -> pb::KvState {
    pb::KvState {
        revision: kv.revision(),
    }
}
