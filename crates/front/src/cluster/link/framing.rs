//! The bytes of an open link: each sealed frame with its length before it, in four bytes, the lowest first.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use super::LinkError;

/// A link takes frames of so many bytes. Over NATS larger ones travel in parts; none that a node sends comes near this.
pub const FRAME_BYTES_MAX: usize = (4 << 20) + 4_096;

const LENGTH_BYTES: usize = 4;
/// Room for so many bytes is made at a time. The frames in it share it, so that what is kept of one keeps little else.
const ROOM_BYTES: usize = 64 << 10;
/// If less room than this is left, more is made.
const ROOM_MIN: usize = 4 << 10;

/// Adds a frame to what is to be written. Returns false if it is too long to be taken.
pub fn push(out: &mut BytesMut, frame: &[u8]) -> bool {
    let length = u32::try_from(frame.len()).ok();
    let Some(length) = length.filter(|_| frame.len() <= FRAME_BYTES_MAX) else {
        return false;
    };
    out.reserve(LENGTH_BYTES + frame.len());
    out.put_u32_le(length);
    out.extend_from_slice(frame);
    true
}

/// Finds the frames in what is read.
#[derive(Debug)]
pub struct Reader {
    buffer: BytesMut,
    bytes_max: usize,
}

impl Reader {
    /// Takes frames of so many bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Reader {
        Reader {
            buffer: BytesMut::new(),
            bytes_max,
        }
    }

    /// Where the next bytes are read to.
    pub fn room(&mut self) -> &mut BytesMut {
        let missing = match self.announced() {
            Some(length) if length <= self.bytes_max => {
                (LENGTH_BYTES + length).saturating_sub(self.buffer.len())
            }
            _ => 0,
        };
        let left = self.buffer.capacity() - self.buffer.len();
        if left < missing.max(ROOM_MIN) {
            self.buffer.reserve(missing.max(ROOM_BYTES));
        }
        &mut self.buffer
    }

    /// The next frame, once all of it is there.
    ///
    /// # Errors
    /// A frame that is too long is announced. Nothing is allocated for it.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, LinkError> {
        let Some(length) = self.announced() else {
            return Ok(None);
        };
        if length > self.bytes_max {
            return Err(LinkError::TooLong(length, self.bytes_max));
        }
        if self.buffer.len() < LENGTH_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(LENGTH_BYTES);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }

    fn announced(&self) -> Option<usize> {
        let length = self.buffer.first_chunk::<LENGTH_BYTES>()?;
        Some(u32::from_le_bytes(*length) as usize)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn frames_come_whole_however_they_are_cut() {
        let frames: Vec<Vec<u8>> = [0, 1, 3, 70_000, 5].map(|it| vec![it as u8; it]).into();
        let mut sent = BytesMut::new();
        assert!(frames.iter().all(|it| push(&mut sent, it)));
        for step in [1, 2, 3, 4, 5, 1_000, sent.len()] {
            let mut reader = Reader::new(FRAME_BYTES_MAX);
            let mut came = Vec::new();
            for piece in sent.chunks(step) {
                reader.room().extend_from_slice(piece);
                while let Some(frame) = reader.next_frame().unwrap() {
                    came.push(frame.to_vec());
                }
            }
            assert_eq!(came, frames, "in steps of {step}");
        }
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_by_its_length_alone() {
        let mut reader = Reader::new(1_000);
        reader.room().put_u32_le(1_001);
        let refused = reader.next_frame();
        assert_eq!(refused, Err(LinkError::TooLong(1_001, 1_000)));
        let mut out = BytesMut::new();
        assert!(!push(&mut out, &vec![0; FRAME_BYTES_MAX + 1]));
        assert!(out.is_empty());
    }

    #[test]
    fn fuzz_what_is_read() {
        let mut sent = BytesMut::new();
        assert!(
            [3, 700, 0]
                .into_iter()
                .all(|it| push(&mut sent, &vec![9; it]))
        );
        nowserving_testkit::target!(vec![sent.to_vec()], |bytes| {
            let mut reader = Reader::new(1_000);
            reader.room().extend_from_slice(bytes);
            let mut taken = 0;
            while let Ok(Some(frame)) = reader.next_frame() {
                taken += LENGTH_BYTES + frame.len();
            }
            assert!(taken <= bytes.len());
        });
    }
}
