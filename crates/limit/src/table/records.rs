//! Counters with their keys, in large chunks of memory: small allocations for each would take more.
//!
//! A record is appended to the last chunk. One that is dropped leaves a gap. If there are too many, the records of the
//! oldest chunk are appended once more, a few at each change: so memory stays in proportion to what is used, whatever the
//! lengths of keys that come and go, and no call takes long.

use std::collections::VecDeque;

use crate::COUNTER_KEY_BYTES_MAX;
use crate::packed::{Kind, Packed};

/// The bytes of a chunk.
const CHUNK: usize = 1 << 16;
/// Records begin at multiples of so many bytes.
const ALIGN: usize = 4;
const ALIGNS_BITS: u32 = (CHUNK / ALIGN).ilog2();
/// More chunks have no numbers.
const CHUNKS_MAX: usize = 1 << (u32::BITS - ALIGNS_BITS);
/// Of so many bytes in use, and a chunk besides, one more may be a gap.
const GAPS_SHARE: usize = 8;

const HEAD: usize = 2;
const _: () = assert!(COUNTER_KEY_BYTES_MAX << KEY_SHIFT <= u16::MAX as usize);
/// Above the kind in the head of a record.
const STAYS: u16 = 1 << Kind::BITS;
const DROPPED: u16 = 2 << Kind::BITS;
const KEY_SHIFT: u32 = Kind::BITS + 2;

/// Where a record is: the number of its chunk and its place there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct At(u32);

impl At {
    /// There is no record.
    pub const NONE: Self = Self(u32::MAX);

    fn of(chunk: u32, offset: usize) -> Self {
        Self(chunk << ALIGNS_BITS | (offset / ALIGN) as u32)
    }

    fn chunk(self) -> u32 {
        self.0 >> ALIGNS_BITS
    }

    fn offset(self) -> usize {
        self.0 as usize % (CHUNK / ALIGN) * ALIGN
    }
}

/// The beginning of a record: the kind of its counter, two marks, and the length of its key.
#[derive(Debug, Clone, Copy)]
struct Head(u16);

impl Head {
    fn new(kind: Kind, key: &[u8]) -> Self {
        Self((key.len() << KEY_SHIFT) as u16 | kind as u16)
    }

    fn kind(self) -> Kind {
        Kind::of_bits(self.0.into())
    }

    fn key_len(self) -> usize {
        usize::from(self.0 >> KEY_SHIFT)
    }

    /// How many bytes the whole record has.
    fn len(self) -> usize {
        (HEAD + self.kind().width() + self.key_len()).next_multiple_of(ALIGN)
    }
}

#[derive(Debug, Default)]
struct Chunk {
    /// Of no length if nothing in it is in use.
    bytes: Vec<u8>,
    used: usize,
}

#[derive(Debug, Default)]
pub(super) struct Records {
    /// The last one is open.
    chunks: VecDeque<Chunk>,
    /// The number of the first one.
    first: u32,
    /// Up to where the first one was looked at.
    moved_to: usize,
    /// The bytes of all chunks, and those of records in use.
    bytes: usize,
    used: usize,
}

/// What [`Records::move_next`] has done.
#[derive(Debug)]
pub(super) struct Moved {
    pub bytes: usize,
    /// From where to where, if it is in use.
    pub record: Option<(At, At)>,
}

impl Records {
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        let chunks = self.chunks.iter().map(|chunk| chunk.bytes.capacity());
        chunks.sum::<usize>() + self.chunks.capacity() * size_of::<Chunk>()
    }

    /// Whether a record may be added.
    pub fn has_room(&self) -> bool {
        // One chunk more is needed to move records.
        self.chunks.len() < CHUNKS_MAX - 1
    }

    fn chunk(&self, at: At) -> Option<&Chunk> {
        self.chunks.get(self.place(at))
    }

    fn chunk_mut(&mut self, at: At) -> Option<&mut Chunk> {
        let place = self.place(at);
        self.chunks.get_mut(place)
    }

    fn place(&self, at: At) -> usize {
        at.chunk().wrapping_sub(self.first) as usize % CHUNKS_MAX
    }

    fn bytes(&self, at: At) -> &[u8] {
        let chunk = self.chunk(at);
        let bytes = chunk.and_then(|chunk| chunk.bytes.get(at.offset()..));
        bytes.unwrap_or_default()
    }

    fn bytes_mut(&mut self, at: At) -> &mut [u8] {
        let chunk = self.chunk_mut(at);
        let bytes = chunk.and_then(|chunk| chunk.bytes.get_mut(at.offset()..));
        bytes.unwrap_or_default()
    }

    /// Of a record that is there.
    fn head(&self, at: At) -> Head {
        let head = self.bytes(at).first_chunk();
        Head(head.map_or(0, |head| u16::from_le_bytes(*head)))
    }

    fn set_head(&mut self, at: At, head: Head) {
        if let Some(there) = self.bytes_mut(at).first_chunk_mut() {
            *there = head.0.to_le_bytes();
        }
    }

    pub fn kind(&self, at: At) -> Kind {
        self.head(at).kind()
    }

    pub fn packed(&self, at: At) -> &[u8] {
        let width = self.kind(at).width();
        self.bytes(at).get(HEAD..HEAD + width).unwrap_or_default()
    }

    /// Writes a counter over one of its kind.
    pub fn write(&mut self, at: At, packed: &Packed) {
        let width = packed.kind.width();
        if let Some(there) = self.bytes_mut(at).get_mut(HEAD..HEAD + width) {
            there.copy_from_slice(packed.bytes());
        }
    }

    pub fn key(&self, at: At) -> &[u8] {
        let head = self.head(at);
        let begin = HEAD + head.kind().width();
        let key = self.bytes(at).get(begin..begin + head.key_len());
        key.unwrap_or_default()
    }

    pub fn stays(&self, at: At) -> bool {
        self.head(at).0 & STAYS != 0
    }

    pub fn set_stays(&mut self, at: At, stays: bool) {
        let Head(head) = self.head(at);
        let head = if stays { head | STAYS } else { head & !STAYS };
        self.set_head(at, Head(head));
    }

    /// The key has at most [`COUNTER_KEY_BYTES_MAX`].
    pub fn add(&mut self, key: &[u8], packed: &Packed) -> At {
        let head = Head::new(packed.kind, key);
        let at = self.begin(head.len());
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.bytes.extend(head.0.to_le_bytes());
            chunk.bytes.extend(packed.bytes());
            chunk.bytes.extend(key);
        }
        self.end(at, head.len());
        at
    }

    /// Where the next record begins, which has so many bytes.
    fn begin(&mut self, bytes: usize) -> At {
        let last = self.chunks.back();
        if last.is_none_or(|last| last.bytes.len() + bytes > CHUNK) {
            // The first one grows, so that few counters take little.
            let room = if self.chunks.is_empty() { 0 } else { CHUNK };
            self.chunks.push_back(Chunk {
                bytes: Vec::with_capacity(room),
                used: 0,
            });
        }
        let number = self.first.wrapping_add(self.chunks.len() as u32 - 1);
        At::of(number, self.chunks.back().map_or(0, |it| it.bytes.len()))
    }

    fn end(&mut self, at: At, bytes: usize) {
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.bytes.resize(at.offset() + bytes, 0);
            chunk.used += bytes;
        }
        self.bytes += bytes;
        self.used += bytes;
    }

    /// Returns how many bytes it had.
    pub fn remove(&mut self, at: At) -> usize {
        let head = self.head(at);
        self.set_head(at, Head(head.0 | DROPPED));
        self.unuse(at, head.len());
        head.len()
    }

    fn unuse(&mut self, at: At, bytes: usize) {
        self.used -= bytes;
        let place = self.place(at);
        let is_last = place + 1 == self.chunks.len();
        let Some(chunk) = self.chunks.get_mut(place) else {
            return;
        };
        chunk.used -= bytes;
        if chunk.used > 0 {
            return;
        }
        self.bytes -= chunk.bytes.len();
        match is_last {
            true => chunk.bytes.clear(),
            false => chunk.bytes = Vec::new(),
        }
        if place == 0 {
            self.moved_to = 0;
        }
        while self.chunks.len() > 1 && self.chunks.front().is_some_and(|it| it.bytes.is_empty()) {
            self.chunks.pop_front();
            self.first = self.first.wrapping_add(1);
            self.moved_to = 0;
        }
    }

    pub fn has_gaps(&self) -> bool {
        let gaps = self.bytes - self.used;
        self.chunks.len() > 1 && gaps > self.used / GAPS_SHARE + CHUNK
    }

    /// Moves the next record of the first chunk to the end if it is in use. There are several chunks.
    pub fn move_next(&mut self) -> Moved {
        let from = At::of(self.first, self.moved_to);
        let head = self.head(from);
        let bytes = head.len();
        self.moved_to += bytes;
        if head.0 & DROPPED != 0 {
            return Moved {
                bytes,
                record: None,
            };
        }
        let to = self.begin(bytes);
        let first = self.chunks.front_mut();
        let first = first.map(|first| std::mem::take(&mut first.bytes));
        let first = first.unwrap_or_default();
        if let (Some(last), Some(record)) = (
            self.chunks.back_mut(),
            first.get(from.offset()..from.offset() + bytes),
        ) {
            last.bytes.extend(record);
        }
        if let Some(there) = self.chunks.front_mut() {
            there.bytes = first;
        }
        self.end(to, bytes);
        self.set_head(from, Head(head.0 | DROPPED));
        self.unuse(from, bytes);
        Moved {
            bytes,
            record: Some((from, to)),
        }
    }
}
