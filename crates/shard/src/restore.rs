//! Lines that are put back from a backup: they come in parts, through the log, and are put in place by a last
//! command.
//!
//! | part | content |
//! |---|---|
//! | 0 | a `LineDump` without its long lists |
//! | 1, 2, … | `LineItem`s up to its end: live tokens, then callers, then gone tokens, then the journal |
//!
//! Before that each part has its format.
//!
//! Each replica decodes and checks a part as it is applied, so that the last command has little left to do: a turn
//! that decodes a million tokens would take seconds. What grows with the tokens even so, the shifting of their
//! times, is done in pages: the last command is refused as unfinished, and repeated, until that is done. The digest is a chain: BLAKE3 over the digest so far and the
//! next part, beginning with zeros. Every command can be repeated.

use std::any::Any;
use std::collections::BTreeMap;

use bytes::Bytes;
use nowserving_codec::{self as codec, Codec, Malformed, Reader, Writer};
use nowserving_line::{
    ClockShift, Event, Limits, Line, LineBuilder, LineDump, LineItem, LineName, Lines,
    OperatorNote, Restore, RestoreRefused, Stamp,
};

use crate::command::{FORMAT, FORMAT_MIN};

/// The most bytes of a part. A request with one must not be larger than nodes read, in JSON too; and a turn that
/// applies one must be short.
pub const PART_BYTES_MAX: usize = 40 * 1_024;
/// A part is sent once it has so many bytes, or if the next item would make it larger than [`PART_BYTES_MAX`]. No item
/// alone is larger than that, nor is part 0: names, labels and schedules are bounded.
const PART_BYTES: usize = 32 * 1_024;
/// The most lines that a shard takes in at once.
pub const UPLOADS_MAX: usize = 8;
/// The most bytes of all their parts.
const UPLOADS_BYTES_MAX: u64 = 2 << 30;
/// An upload is dropped this long after its last command, on the service clock.
pub const UPLOAD_KEPT_MS: u64 = 600_000;

/// A step of putting a line back.
#[derive(Codec, Clone, Debug, PartialEq, Eq)]
pub struct RestoreCommand {
    pub line: LineName,
    /// Chosen at random by the client: one for each time that it sends the line.
    pub upload: u128,
    pub step: RestoreStep,
}

#[derive(Codec, Clone, Debug, PartialEq, Eq)]
pub enum RestoreStep {
    /// Number 0 begins an upload, and ends another one of this line.
    Part { number: u32, data: PartBytes },
    /// Puts the line in place.
    Finish {
        /// How many parts there must be.
        parts: u32,
        digest: [u8; 32],
        how: Restore,
    },
}

/// The bytes of a part: see the top of this file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartBytes(pub Bytes);

impl From<Bytes> for PartBytes {
    fn from(bytes: Bytes) -> Self {
        PartBytes(bytes)
    }
}

impl Codec for PartBytes {
    fn encode(&self, to: &mut Writer) {
        to.number(self.0.len() as u64);
        to.put(&self.0);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = from.count()?;
        Ok(PartBytes(Bytes::copy_from_slice(from.take(count)?)))
    }

    /// A member that does not read all of the part would keep another line than the rest.
    fn first_format(&self) -> u32 {
        u32::decode(&mut Reader::new(&self.0, FORMAT_MIN)).unwrap_or(FORMAT_MIN)
    }
}

/// The answer to a [`RestoreCommand`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreReply {
    /// So many parts are here; that is the number of the part that is wanted next.
    Staged { parts: u32 },
    /// The line is in place.
    Done,
}

/// Why a [`RestoreCommand`] is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    #[error("{UPLOADS_MAX} lines are being restored in this shard already")]
    TooMany,
    #[error(
        "data: the parts of all lines that are being restored in this shard have at most {UPLOADS_BYTES_MAX} bytes"
    )]
    TooLarge,
    #[error("data: part {number} is none of this build's: {what}")]
    Part { number: u32, what: String },
    #[error("parts: {staged} are here, not {asked}: send the line anew")]
    Parts { staged: u32, asked: u32 },
    #[error("the times of its tokens are being shifted: repeat the request")]
    Unfinished,
    #[error("digest: not that of the parts that are here: send the line anew")]
    Digest,
    #[error(transparent)]
    Line(#[from] RestoreRefused),
}

/// The lines of a shard that are being sent.
#[derive(Debug, Default)]
pub struct Uploads {
    by_line: BTreeMap<LineName, Upload>,
    /// What an entry has dropped.
    discarded: Vec<Discarded>,
}

/// No part of the state any more. To drop a line of a million tokens takes long: a tenth of a second.
pub type Discarded = Box<dyn Any + Send>;

#[derive(Debug)]
struct Upload {
    id: u128,
    parts: u32,
    digest: [u8; 32],
    bytes: u64,
    touched_ms: u64,
    /// `None`: the line was put in place. That is remembered for the repetition of the last command.
    builder: Option<Box<LineBuilder>>,
}

impl Uploads {
    /// Drops what was not touched for long.
    pub(crate) fn forget(&mut self, now_ms: u64) {
        let kept = |upload: &Upload| upload.touched_ms.saturating_add(UPLOAD_KEPT_MS) > now_ms;
        let old = self.by_line.extract_if(.., |_, upload| !kept(upload));
        let old = old.filter_map(|(_, upload)| Some(upload.builder? as Discarded));
        self.discarded.extend(old);
    }

    pub(crate) fn take_discarded(&mut self) -> Vec<Discarded> {
        std::mem::take(&mut self.discarded)
    }

    /// The bytes of all parts that are here.
    pub(crate) fn bytes(&self) -> u64 {
        self.by_line.values().map(|upload| upload.bytes).sum()
    }

    pub(crate) fn apply(
        &mut self,
        lines: &mut Lines,
        stamp: Stamp,
        command: &RestoreCommand,
        note: Option<&OperatorNote>,
        events: Option<&mut Vec<Event>>,
    ) -> Result<RestoreReply, RestoreError> {
        let RestoreCommand { line, upload, step } = command;
        let known = self.by_line.get_mut(line).filter(|it| it.id == *upload);
        match (known, step) {
            (None, RestoreStep::Part { number: 0, data }) => {
                self.begin((line, *upload), data, lines.limits(), stamp.now_ms)
            }
            (None, RestoreStep::Part { .. }) => Ok(RestoreReply::Staged { parts: 0 }),
            (None, RestoreStep::Finish { parts, .. }) => Err(RestoreError::Parts {
                staged: 0,
                asked: *parts,
            }),
            (Some(it), RestoreStep::Part { number, data }) => {
                it.touched_ms = stamp.now_ms;
                if *number != it.parts || !it.takes_parts() {
                    return Ok(RestoreReply::Staged { parts: it.parts });
                }
                self.add(line, *number, data)
            }
            (Some(it), RestoreStep::Finish { .. }) if it.builder.is_none() => {
                it.touched_ms = stamp.now_ms;
                Ok(RestoreReply::Done)
            }
            (Some(it), RestoreStep::Finish { parts, digest, how }) => {
                it.touched_ms = stamp.now_ms;
                it.check(*parts, digest)?;
                if let Some(builder) = &mut it.builder {
                    // Refused for the line that is there: the operator can change that, and the parts stay.
                    let refused = lines.check_restore(line, builder.incarnation(), how.overwrite);
                    refused.map_err(RestoreRefused::Line)?;
                    let shifted = builder.shift_page(how.clock_ms, stamp.now_ms);
                    shifted.ok_or(RestoreError::Unfinished)?;
                }
                if let Some(builder) = it.builder.take() {
                    it.bytes = 0;
                    let put = lines.put_back(stamp, *builder, *how, events);
                    let replaced = put.inspect_err(|_| drop(self.by_line.remove(line)))?;
                    if let Some(note) = note {
                        lines.note_restored(line, note);
                    }
                    self.discarded
                        .extend(replaced.map(|it| Box::new(it) as Discarded));
                }
                Ok(RestoreReply::Done)
            }
        }
    }

    fn begin(
        &mut self,
        (line, id): (&LineName, u128),
        data: &PartBytes,
        limits: Limits,
        now_ms: u64,
    ) -> Result<RestoreReply, RestoreError> {
        let under_way =
            |(name, upload): &(&LineName, &Upload)| *name != line && upload.builder.is_some();
        if self.by_line.iter().filter(under_way).count() >= UPLOADS_MAX {
            return Err(RestoreError::TooMany);
        }
        let bad = |what: String| RestoreError::Part { number: 0, what };
        let dump = head_from_bytes(data).map_err(|it| bad(it.to_string()))?;
        if dump.name != *line {
            let what = format!("it is of line {}, not of {line}", dump.name);
            return Err(bad(what));
        }
        let builder = LineBuilder::new(dump, limits);
        let builder = builder.map_err(|it| bad(it.to_string()))?;
        let upload = Upload {
            id,
            parts: 1,
            digest: chain([0; 32], &data.0),
            bytes: data.0.len() as u64,
            touched_ms: now_ms,
            builder: Some(Box::new(builder)),
        };
        let old = self.by_line.insert(line.clone(), upload);
        let old = old.and_then(|old| Some(old.builder? as Discarded));
        self.discarded.extend(old);
        Ok(RestoreReply::Staged { parts: 1 })
    }

    /// Adds the next part of an upload that is under way. One that makes no sense ends the upload.
    fn add(
        &mut self,
        line: &LineName,
        number: u32,
        data: &PartBytes,
    ) -> Result<RestoreReply, RestoreError> {
        if self.bytes().saturating_add(data.0.len() as u64) > UPLOADS_BYTES_MAX {
            return Err(RestoreError::TooLarge);
        }
        let Some(upload) = self.by_line.get_mut(line) else {
            return Ok(RestoreReply::Staged { parts: 0 });
        };
        let added = match &mut upload.builder {
            Some(builder) => add_items(builder, data),
            None => Ok(()),
        };
        if let Err(what) = added {
            self.by_line.remove(line);
            return Err(RestoreError::Part { number, what });
        }
        upload.parts += 1;
        upload.digest = chain(upload.digest, &data.0);
        upload.bytes += data.0.len() as u64;
        Ok(RestoreReply::Staged {
            parts: upload.parts,
        })
    }

    /// The uploads as snapshots have them; without the lines as hashes do, which the digests stand for.
    pub(crate) fn encode(&self, with_lines: bool, to: &mut Writer) {
        to.number(self.by_line.len() as u64);
        for (line, it) in &self.by_line {
            line.encode(to);
            it.id.encode(to);
            it.parts.encode(to);
            it.digest.encode(to);
            it.bytes.encode(to);
            it.touched_ms.encode(to);
            it.shift().encode(to);
            let builder = it.builder.as_ref();
            builder.is_some().encode(to);
            if let Some(builder) = builder.filter(|_| with_lines) {
                builder.dump().encode(to);
            }
        }
    }

    /// Reads what [`Uploads::encode`] wrote, with the lines.
    pub(crate) fn decode(limits: Limits, from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut uploads = Uploads::default();
        for _ in 0..from.count()? {
            let line = LineName::decode(from)?;
            let mut upload = Upload {
                id: Codec::decode(from)?,
                parts: Codec::decode(from)?,
                digest: Codec::decode(from)?,
                bytes: Codec::decode(from)?,
                touched_ms: Codec::decode(from)?,
                builder: None,
            };
            let shift = Option::<ClockShift>::decode(from)?;
            if let Some(dump) = Option::<LineDump>::decode(from)? {
                let builder = LineBuilder::new(dump, limits);
                let mut builder = builder.map_err(|bad| Malformed(bad.what))?;
                if let Some(shift) = shift {
                    builder.resume_shift(shift);
                }
                upload.builder = Some(Box::new(builder));
            }
            if uploads.by_line.insert(line, upload).is_some() {
                return Err(Malformed("two uploads of one line"));
            }
        }
        Ok(uploads)
    }
}

impl Upload {
    fn shift(&self) -> Option<ClockShift> {
        self.builder.as_ref()?.clock_shift()
    }

    /// Whether the line is not complete yet.
    fn takes_parts(&self) -> bool {
        self.builder.is_some() && self.shift().is_none()
    }

    fn check(&self, parts: u32, digest: &[u8; 32]) -> Result<(), RestoreError> {
        if parts != self.parts {
            return Err(RestoreError::Parts {
                staged: self.parts,
                asked: parts,
            });
        }
        match *digest == self.digest {
            true => Ok(()),
            false => Err(RestoreError::Digest),
        }
    }
}

fn chain(digest: [u8; 32], part: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&digest);
    hasher.update(part);
    hasher.finalize().into()
}

/// The parts of a line, and their digest.
#[must_use]
pub fn parts_of(line: &Line) -> (Vec<Bytes>, [u8; 32]) {
    let mut head = line.dump();
    let format = head.first_format();
    let items = head.take_items();
    let mut parts = Parts::default();
    parts.push(codec::encode(&(format, head), format));
    let mut part = begin(format);
    let empty = part.bytes().len();
    for item in items {
        let before = part.bytes().len();
        item.encode(&mut part);
        if before > empty && part.bytes().len() > PART_BYTES_MAX {
            part.truncate(before);
            parts.push(std::mem::replace(&mut part, begin(format)).into_bytes());
            item.encode(&mut part);
        }
        if part.bytes().len() >= PART_BYTES {
            parts.push(std::mem::replace(&mut part, begin(format)).into_bytes());
        }
    }
    if part.bytes().len() > empty {
        parts.push(part.into_bytes());
    }
    (parts.parts, parts.digest)
}

fn begin(format: u32) -> Writer {
    let mut part = Writer::new(format);
    format.encode(&mut part);
    part
}

#[derive(Default)]
struct Parts {
    parts: Vec<Bytes>,
    digest: [u8; 32],
}

impl Parts {
    fn push(&mut self, part: Vec<u8>) {
        self.digest = chain(self.digest, &part);
        self.parts.push(part.into());
    }
}

/// A part after its format.
fn open(data: &PartBytes) -> Result<Reader<'_>, Malformed> {
    let mut from = Reader::new(&data.0, FORMAT_MIN);
    let format = u32::decode(&mut from)?;
    if !(FORMAT_MIN..=FORMAT).contains(&format) {
        return Err(Malformed("a format that this build does not read"));
    }
    from.set_format(format);
    Ok(from)
}

fn head_from_bytes(data: &PartBytes) -> Result<LineDump, Malformed> {
    let mut from = open(data)?;
    let head = LineDump::decode(&mut from)?;
    from.end()?;
    Ok(head)
}

fn add_items(builder: &mut LineBuilder, data: &PartBytes) -> Result<(), String> {
    let mut from = open(data).map_err(|bad| bad.to_string())?;
    while !from.is_empty() {
        let item = LineItem::decode(&mut from).map_err(|bad| bad.to_string())?;
        builder.add(item).map_err(|bad| bad.to_string())?;
    }
    Ok(())
}
