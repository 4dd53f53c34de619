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

/// Where a record is: the place of its chunk, and its own place there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct At(u32);

impl At {
    /// There is no record.
    pub const NONE: Self = Self(u32::MAX);

    fn of(chunk: usize, offset: usize) -> Self {
        Self(((chunk << ALIGNS_BITS) | (offset / ALIGN)) as u32)
    }

    #[inline]
    fn chunk(self) -> usize {
        (self.0 >> ALIGNS_BITS) as usize
    }

    #[inline]
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

    #[inline]
    fn kind(self) -> Kind {
        Kind::of_bits(self.0.into())
    }

    #[inline]
    fn key_len(self) -> usize {
        usize::from(self.0 >> KEY_SHIFT)
    }

    /// How many bytes the whole record has.
    #[inline]
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

/// A record that is there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record<'a> {
    head: Head,
    bytes: &'a [u8],
}

impl<'a> Record<'a> {
    #[inline]
    pub fn kind(self) -> Kind {
        self.head.kind()
    }

    #[inline]
    pub fn stays(self) -> bool {
        self.head.0 & STAYS != 0
    }

    /// The counter.
    #[inline]
    pub fn packed(self) -> &'a [u8] {
        &self.bytes[HEAD..HEAD + self.kind().width()]
    }

    #[inline]
    pub fn key(self) -> &'a [u8] {
        let begin = HEAD + self.kind().width();
        &self.bytes[begin..begin + self.head.key_len()]
    }
}

#[derive(Debug, Default)]
pub(super) struct Records {
    chunks: Vec<Chunk>,
    /// The places of those that are in use, the oldest first. The last one is open.
    order: VecDeque<u32>,
    vacant: Vec<u32>,
    /// Up to where the oldest one was looked at.
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
        self.chunks.iter().map(|it| it.bytes.capacity()).sum()
    }

    /// Whether a record may be added.
    pub fn has_room(&self) -> bool {
        // One chunk more is needed to move records.
        self.order.len() < CHUNKS_MAX - 1
    }

    #[inline]
    fn bytes(&self, at: At) -> &[u8] {
        &self.chunks[at.chunk()].bytes[at.offset()..]
    }

    /// Of a place that a record was added at, and not removed.
    #[inline]
    pub fn get(&self, at: At) -> Record<'_> {
        let bytes = self.bytes(at);
        Record {
            head: Head(u16::from_le_bytes([bytes[0], bytes[1]])),
            bytes,
        }
    }

    /// The kind and the counter, to be written over by one of its kind.
    #[inline]
    pub fn packed_mut(&mut self, at: At) -> (Kind, &mut [u8]) {
        let bytes = &mut self.chunks[at.chunk()].bytes[at.offset()..];
        let kind = Head(u16::from_le_bytes([bytes[0], bytes[1]])).kind();
        (kind, &mut bytes[HEAD..HEAD + kind.width()])
    }

    pub fn set_stays(&mut self, at: At, stays: bool) {
        let Head(head) = self.get(at).head;
        let head = if stays { head | STAYS } else { head & !STAYS };
        self.set_head(at, Head(head));
    }

    fn set_head(&mut self, at: At, head: Head) {
        let there = &mut self.chunks[at.chunk()].bytes[at.offset()..];
        there[..HEAD].copy_from_slice(&head.0.to_le_bytes());
    }

    /// The key has at most [`COUNTER_KEY_BYTES_MAX`].
    pub fn add(&mut self, key: &[u8], packed: &Packed) -> At {
        let head = Head::new(packed.kind, key);
        let at = self.begin(head.len());
        let to = &mut self.chunks[at.chunk()].bytes;
        to.extend(head.0.to_le_bytes());
        to.extend(packed.bytes());
        to.extend(key);
        self.end(at, head.len());
        at
    }

    /// Where the next record begins, which has so many bytes.
    fn begin(&mut self, bytes: usize) -> At {
        if let Some(last) = self.order.back() {
            let (last, len) = (*last as usize, self.chunks[*last as usize].bytes.len());
            if len + bytes <= CHUNK {
                return At::of(last, len);
            }
        }
        // The first one grows, so that few counters take little.
        let room = if self.order.is_empty() { 0 } else { CHUNK };
        let chunk = self.vacant.pop().unwrap_or_else(|| {
            self.chunks.push(Chunk::default());
            self.chunks.len() as u32 - 1
        });
        self.order.push_back(chunk);
        self.chunks[chunk as usize].bytes.reserve_exact(room);
        At::of(chunk as usize, 0)
    }

    fn end(&mut self, at: At, bytes: usize) {
        let chunk = &mut self.chunks[at.chunk()];
        chunk.bytes.resize(at.offset() + bytes, 0);
        chunk.used += bytes;
        self.bytes += bytes;
        self.used += bytes;
    }

    /// Returns how many bytes it had.
    pub fn remove(&mut self, at: At) -> usize {
        let head = self.get(at).head;
        self.set_head(at, Head(head.0 | DROPPED));
        self.used -= head.len();
        let chunk = &mut self.chunks[at.chunk()];
        chunk.used -= head.len();
        if chunk.used == 0 {
            self.free(at.chunk());
        }
        head.len()
    }

    /// Nothing in this chunk is in use.
    fn free(&mut self, place: usize) {
        let number = place as u32;
        let is_last = self.order.back() == Some(&number);
        if self.order.front() == Some(&number) {
            self.moved_to = 0;
        }
        let chunk = &mut self.chunks[place];
        self.bytes -= chunk.bytes.len();
        if is_last {
            chunk.bytes.clear();
            return;
        }
        chunk.bytes = Vec::new();
        // Looked for among all, but once for each 64 KiB.
        self.order.retain(|it| *it != number);
        self.vacant.push(number);
    }

    pub fn has_gaps(&self) -> bool {
        let gaps = self.bytes - self.used;
        self.order.len() > 1 && gaps > self.used / GAPS_SHARE + CHUNK
    }

    /// Moves the next record of the oldest chunk to the end if it is in use. There are several chunks.
    pub fn move_next(&mut self) -> Moved {
        let oldest = self.order.front().map_or(0, |oldest| *oldest as usize);
        let from = At::of(oldest, self.moved_to);
        let head = self.get(from).head;
        let bytes = head.len();
        self.moved_to += bytes;
        let is_used = head.0 & DROPPED == 0;
        let record = is_used.then(|| {
            let to = self.begin(bytes);
            let there = std::mem::take(&mut self.chunks[oldest].bytes);
            let record = &there[from.offset()..from.offset() + bytes];
            self.chunks[to.chunk()].bytes.extend(record);
            self.chunks[oldest].bytes = there;
            self.end(to, bytes);
            self.remove(from);
            (from, to)
        });
        Moved { bytes, record }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter::Counter;
    use crate::packed::Logs;

    #[test]
    fn emptied_chunks_are_used_again_while_the_oldest_one_stays() {
        let mut logs = Logs::default();
        let packed = Packed::of(Counter::FixedWindow(Default::default()), &mut logs);
        let mut records = Records::default();
        for number in 0..20_000_u32 {
            records.add(&number.to_be_bytes(), &packed);
        }
        let kept = records.order.len();
        let mut recent = VecDeque::new();
        for _ in 0..10_000 {
            recent.push_back(records.add(&[7; 2_000], &packed));
            if recent.len() > 100
                && let Some(oldest) = recent.pop_front()
            {
                records.remove(oldest);
            }
        }
        assert!(records.order.len() < kept + 10, "{}", records.order.len());
        assert!(records.chunks.len() < kept + 10);
    }
}
