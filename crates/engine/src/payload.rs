//! What the transport takes in one message. Frames and parts of snapshots are cut by it; a node whose server takes less
//! than the minimum serves nobody, as answers and entries would be lost.

use nowserving_line::Op;
use nowserving_protocol::codec::MAX_PAYLOAD_MIN;
use nowserving_protocol::error::ApiError;
use nowserving_shard::command::Command;

/// Raft messages in one frame at most this many bytes, whatever the transport takes. Hashes of the state, one a shard
/// at most, come on top.
const FRAME_BYTES_MAX: usize = 640 * 1_024;

/// Tokens that the answer to `call_next` has room for with the smallest limit, as JSON, where a byte of a key can take six:
/// each has its lane's name of 64 bytes, its key of 128, its number, and the names of these fields.
const CALLED_AT_MIN: usize = MAX_PAYLOAD_MIN / (64 + 6 * 128 + 64);

/// Parts of snapshots that a node asks for in an interval of maintenance have so many bytes together, as one has that is
/// read from disk where the transport takes it.
const PARTS_BYTES_MAX: usize = 256 * 1_024;

/// The limit in force on this node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Payload {
    /// In bytes.
    pub max: usize,
    /// With less, nobody is served.
    pub min: usize,
}

impl Payload {
    /// Raft messages in one frame, or a part of a snapshot, in bytes: the rest of the frame has room beside them in most
    /// cases. A frame that is larger all the same travels in parts.
    pub fn content_bytes_max(self) -> usize {
        FRAME_BYTES_MAX.min(self.max - self.max / 4)
    }

    /// The refusal of a write whose answer could be too large. What was done could not be told.
    pub fn answer_too_large(self, command: &Command) -> Option<ApiError> {
        let Command::Line(Op::CallNext { n, .. }) = command else {
            return None;
        };
        let most = CALLED_AT_MIN * self.max / self.min.max(1);
        (*n as usize > most).then(|| {
            let max = self.max;
            ApiError::bad_request(format!(
                "n: at most {most} where the NATS server takes {max} bytes in one message (max_payload), not {n}"
            ))
        })
    }

    /// Parts of snapshots that a node asks for in an interval of maintenance, at most.
    pub fn snapshot_parts_max(self) -> usize {
        (PARTS_BYTES_MAX / self.content_bytes_max().max(1)).max(1)
    }

    /// The problem that the limit is too small, if it is.
    pub fn problem(self) -> Option<String> {
        let Payload { max, min } = self;
        (max < min).then(|| {
            format!("the NATS server takes {max} bytes in one message (max_payload), and {min} are needed")
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_line::{CALL_MAX, KEY_BYTES_MAX, NUMBER_MAX};
    use nowserving_protocol::admin::{CalledReply, CalledTokenReply};
    use nowserving_protocol::codec::{Format, encode};
    use nowserving_protocol::user::Key;

    use super::*;

    fn call_next(n: u32) -> Command {
        Command::Line(Op::CallNext {
            line: "shop".parse().unwrap(),
            call_id: "c".into(),
            lane: None,
            n,
        })
    }

    #[test]
    fn a_call_takes_no_more_than_its_answer_can_tell() {
        let payload = |max| Payload {
            max,
            min: MAX_PAYLOAD_MIN,
        };
        assert_eq!(
            payload(1 << 20).answer_too_large(&call_next(CALL_MAX)),
            None
        );
        let most = CALLED_AT_MIN as u32;
        let smallest = payload(MAX_PAYLOAD_MIN);
        assert_eq!(smallest.answer_too_large(&call_next(most)), None);
        let refused = smallest.answer_too_large(&call_next(most + 1)).unwrap();
        assert!(refused.message.starts_with("n: at most 73 "), "{refused}");

        let token = CalledTokenReply {
            lane: "x".repeat(64).parse().unwrap(),
            token: NUMBER_MAX,
            key: Some(Key::new(vec![1; KEY_BYTES_MAX]).unwrap()),
        };
        let called = CalledReply {
            admitted: vec![token; most as usize],
        };
        assert!(encode(&called, Format::Json).len() + 256 < MAX_PAYLOAD_MIN);
    }
}
