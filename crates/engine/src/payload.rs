//! What the transport takes in one message. Frames and parts of snapshots are cut by it; a node whose server takes less
//! than the minimum serves nobody, as answers and entries would be lost.

use nowserving_shard::clock::Micros;

use crate::engine::Engine;

/// Raft messages in one frame at most this many bytes, whatever the transport takes. Hashes of the state, one a shard
/// at most, come on top.
const FRAME_BYTES_MAX: usize = 640 * 1_024;

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

impl Engine {
    /// This node was connected to another server, or to one with another limit.
    pub(crate) fn max_payload(&mut self, bytes: usize, now: Micros) {
        let was = std::mem::replace(&mut self.ctx.payload.max, bytes);
        let problem = self.ctx.payload.problem();
        match problem {
            Some(problem) => tracing::error!(problem, "this node serves nobody"),
            None if was < self.ctx.payload.min => {
                tracing::info!(max_payload = bytes, "the NATS server takes enough again");
            }
            None => tracing::info!(
                max_payload = bytes,
                "bytes that the NATS server takes in one message"
            ),
        }
        self.announce_standing(now);
    }

    /// The transport has refused a frame. It is lost, and Raft must know: it would go on sending what follows entries that
    /// the peer lacks, and wait for the answer to a snapshot until that is offered again.
    pub(crate) fn frame_refused(&mut self, to: u64, shards: &[u32], now: Micros) {
        for id in shards {
            if let Some(shard) = self.shards.get_mut(id) {
                shard.replica.report_unreachable(to);
                shard.offer_snapshot_again(to, now);
                shard.dirty = true;
            }
        }
    }
}
