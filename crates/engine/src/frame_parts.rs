//! Frames that are larger than what the transport takes in one message travel in parts, each sealed as a frame of its
//! own. An entry that was committed can be neither cut nor refused, so no limit of the transport may keep it back.
//!
//! The receiver keeps the parts of one frame of each sender. A part that is lost means that the frame is: Raft repeats.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use prost::Message as _;

use crate::envelope::{Frame, FramePart, OVERHEAD_BYTES};

/// A frame of more bytes is not put together. None comes near it: the largest log entry has 512 KiB, and a frame may have
/// a few facts beside one.
const WHOLE_BYTES_MAX: usize = 4 << 20;
/// What a part has beside its data at most: the envelope, and some numbers.
const PART_REST_BYTES: usize = OVERHEAD_BYTES + 100;
/// A part has so much data at least, whatever the transport takes: that bounds their number.
const PART_DATA_MIN: usize = 256;
const PARTS_MAX: usize = WHOLE_BYTES_MAX / PART_DATA_MIN;
/// Ways on which parts are kept at once; only holders of the cluster's key can send any.
const WAYS_MAX: usize = 64;

/// Cuts a frame into frames of which each has at most so many bytes when it is sealed.
#[must_use]
pub fn cut(frame: Frame, bytes_max: usize) -> Vec<Frame> {
    if nowserving_bite::is(nowserving_bite::Break::L3Parts) {
        return vec![frame];
    }
    if sealed_bytes(&frame) <= bytes_max {
        return vec![frame];
    }
    let whole = Bytes::from(frame.encode_to_vec());
    let data_bytes = bytes_max.saturating_sub(PART_REST_BYTES).max(PART_DATA_MIN);
    let count = whole.len().div_ceil(data_bytes);
    let parts = (0..count).map(|index| {
        let begin = index * data_bytes;
        let part = FramePart {
            index: index as u32,
            count: count as u32,
            data: whole.slice(begin..whole.len().min(begin + data_bytes)),
        };
        Frame {
            from: frame.from,
            to: frame.to,
            starts: frame.starts.first().copied().into_iter().collect(),
            seq: frame.seq,
            part: Some(part),
            ..Frame::default()
        }
    });
    parts.collect()
}

/// The bytes of a sealed frame.
#[must_use]
pub fn sealed_bytes(frame: &Frame) -> usize {
    OVERHEAD_BYTES + frame.encoded_len()
}

/// Puts frames together from their parts.
#[derive(Debug, Default)]
pub struct Assembly(BTreeMap<Way, Incomplete>);

/// From which node in which start to which. Each counts its frames by itself, and a part for another node can come again
/// on this one's subject.
type Way = (u64, Option<u64>, u64);

/// The newest frame of one way, as far as it is there.
#[derive(Debug)]
struct Incomplete {
    seq: u64,
    parts: Vec<Option<Bytes>>,
    bytes: usize,
}

impl Assembly {
    /// Takes an opened frame: returns it if it is whole, or the frame of which it is the last part.
    pub fn take(&mut self, mut frame: Frame) -> Option<Frame> {
        let Some(part) = frame.part.take() else {
            return Some(frame);
        };
        let way = (frame.from, frame.starts.first().copied(), frame.to);
        if self.0.len() >= WAYS_MAX && !self.0.contains_key(&way) {
            self.0.clear();
        }
        let incomplete = self.0.entry(way).or_insert_with(|| Incomplete::of(&frame));
        if !incomplete.belongs(&frame, &part) {
            return None;
        }
        if !incomplete.add(part) {
            return None;
        }
        let whole = self.0.remove(&way)?.join();
        let whole = Frame::decode(whole).ok()?;
        let of = |it: &Frame| (it.from, it.starts.first().copied(), it.to, it.seq);
        (of(&whole) == of(&frame) && whole.part.is_none()).then_some(whole)
    }
}

impl Incomplete {
    fn of(frame: &Frame) -> Incomplete {
        Incomplete {
            seq: frame.seq,
            parts: Vec::new(),
            bytes: 0,
        }
    }

    /// Whether this part is of this frame. That of a newer frame takes its place: the rest of this one was lost, or it
    /// would be refused as late.
    fn belongs(&mut self, frame: &Frame, part: &FramePart) -> bool {
        if frame.seq < self.seq {
            return false;
        }
        let count = part.count as usize;
        if frame.seq > self.seq {
            *self = Incomplete::of(frame);
        }
        if self.parts.is_empty() && (1..=PARTS_MAX).contains(&count) {
            self.parts = vec![None; count];
        }
        self.parts.len() == count
    }

    /// Returns whether all parts are there.
    fn add(&mut self, part: FramePart) -> bool {
        let Some(place) = self.parts.get_mut(part.index as usize) else {
            return false;
        };
        if place.is_none() && self.bytes + part.data.len() <= WHOLE_BYTES_MAX {
            self.bytes += part.data.len();
            *place = Some(part.data);
        }
        self.parts.iter().all(Option::is_some)
    }

    fn join(self) -> Bytes {
        let mut whole = BytesMut::with_capacity(self.bytes);
        self.parts
            .iter()
            .flatten()
            .for_each(|it| whole.extend_from_slice(it));
        whole.freeze()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::envelope::ShardMessage;

    const LIMIT: usize = 1_024;

    fn frame(seq: u64, bytes: usize) -> Frame {
        Frame {
            cluster: "c".to_owned(),
            from: u64::MAX,
            to: 2,
            starts: vec![u64::MAX, 8],
            seq,
            messages: vec![ShardMessage {
                shard: 3,
                raft: (0..bytes).map(|it| it as u8).collect::<Vec<_>>().into(),
            }],
            ..Frame::default()
        }
    }

    fn put_together(assembly: &mut Assembly, parts: &[Frame]) -> Vec<Frame> {
        let taken = parts.iter().map(|part| assembly.take(part.clone()));
        taken.flatten().collect()
    }

    #[test]
    fn every_part_fits_whatever_the_limit_and_the_size() {
        for limit in [LIMIT, 65_536, 1 << 20] {
            for bytes in [0, 1, limit - 100, limit - 1, limit, 3 * limit + 7, 700_000] {
                let whole = frame(u64::MAX, bytes);
                let parts = cut(whole.clone(), limit);
                assert!(parts.iter().all(|it| sealed_bytes(it) <= limit));
                assert_eq!(parts.len() == 1, sealed_bytes(&whole) <= limit);
                let together = put_together(&mut Assembly::default(), &parts);
                assert_eq!(together, [whole]);
            }
        }
    }

    #[test]
    fn parts_may_come_twice_and_in_any_order_and_a_lost_one_is_a_lost_frame() {
        let whole = frame(5, 5_000);
        let parts = cut(whole.clone(), LIMIT);
        let mut mixed: Vec<Frame> = parts
            .iter()
            .rev()
            .flat_map(|it| [it.clone(), it.clone()])
            .collect();
        let mut assembly = Assembly::default();
        let last = mixed.pop().unwrap();
        assert_eq!(
            put_together(&mut assembly, &mixed),
            std::slice::from_ref(&whole)
        );
        // A double of the last one begins the frame anew, which stays incomplete.
        assert_eq!(assembly.take(last), None);
        let (lost, rest) = parts.split_first().unwrap();
        let mut assembly = Assembly::default();
        assert_eq!(put_together(&mut assembly, rest), []);
        let next = frame(6, 5_000);
        assert_eq!(
            put_together(&mut assembly, &cut(next.clone(), LIMIT)[..2]),
            []
        );
        assert_eq!(assembly.take(lost.clone()), None, "it is late");
        assert_eq!(
            put_together(&mut assembly, &cut(next.clone(), LIMIT)[2..]),
            [next]
        );
        // A start of the sender begins to count anew.
        let mut again = frame(1, 5_000);
        again.starts = vec![99];
        assert_eq!(put_together(&mut assembly, rest), []);
        assert_eq!(
            put_together(&mut assembly, &cut(again.clone(), LIMIT)),
            [again]
        );
    }

    /// As if somebody without the key had published them again on another node's subject; and of a twin.
    #[test]
    fn parts_for_another_node_or_of_another_start_are_kept_apart() {
        let whole = frame(5, 5_000);
        let to_other = Frame {
            to: 3,
            ..frame(5, 5_000)
        };
        let twin = Frame {
            starts: vec![7, 8],
            ..frame(5, 5_000)
        };
        let mut assembly = Assembly::default();
        let all = [&whole, &to_other, &twin].map(|it| cut(it.clone(), LIMIT));
        let mut together = Vec::new();
        for nth in 0..all[0].len() {
            for parts in &all {
                together.extend(assembly.take(parts[nth].clone()));
            }
        }
        assert_eq!(together, [whole, to_other, twin]);
        // One of the three in place of another is none of it.
        let [own, foreign, _] = all;
        let mixed = [&own[..1], &foreign[1..2], &own[2..]].concat();
        assert_eq!(put_together(&mut Assembly::default(), &mixed), []);
    }

    #[test]
    fn the_memory_is_bounded() {
        let part = |from, index, count, bytes| Frame {
            from,
            starts: vec![1],
            seq: 1,
            part: Some(FramePart {
                index,
                count,
                data: vec![0; bytes].into(),
            }),
            ..Frame::default()
        };
        let mut assembly = Assembly::default();
        for count in [0, PARTS_MAX as u32 + 1, u32::MAX] {
            assert_eq!(assembly.take(part(1, 0, count, 9)), None);
        }
        assert_eq!(assembly.take(part(2, 7, 7, 9)), None);
        for index in 0..9 {
            assert_eq!(assembly.take(part(3, index, 9, WHOLE_BYTES_MAX / 8)), None);
        }
        assert!(assembly.0.values().all(|it| it.bytes <= WHOLE_BYTES_MAX));
        for from in 0..1_000 {
            assert_eq!(assembly.take(part(from, 0, 2, 9)), None);
        }
        assert!(assembly.0.len() <= WAYS_MAX);
    }
}
