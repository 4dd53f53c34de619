//! What nodes send each other, between the engine and the transport.

use nowserving_shard::clock::Micros;
use protobuf::Message as _;
use raft::eraftpb::Message;

use crate::contact::PeerHeader;
use crate::envelope::{StateHash, Verdict};

/// One frame that came under the number of a peer.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerFrame {
    /// The sender; if the frame could not be opened, what its subject says.
    pub from: u64,
    /// What it says of sender and receiver, also if it is refused.
    pub header: PeerHeader,
    /// The rest of it, or why it is refused.
    pub body: Result<FrameBody, String>,
}

/// What is in a frame that was checked and decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct FrameBody {
    /// The sender's clients can reach it.
    pub client_reachable: bool,
    /// The sender's monotonic clock when it made the frame.
    pub clock_us: Micros,
    /// Where it serves metrics.
    pub metrics_addr: String,
    /// Its build.
    pub version: String,
    /// Raft messages by shard.
    pub messages: Vec<(u32, Message)>,
    /// Hashes of its state.
    pub state_hashes: Vec<StateHash>,
}

/// What a node sends a peer in one turn.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerBatch {
    /// This node's clients can reach it.
    pub client_reachable: bool,
    /// This node's monotonic clock.
    pub clock_us: Micros,
    /// A quorum has accepted this start of this node.
    pub in_touch: bool,
    /// What this node says of the peer's starts.
    pub verdicts: Vec<Verdict>,
    /// Raft messages; none: only a sign of life.
    pub messages: Vec<OutMessage>,
    /// Hashes of this node's state.
    pub state_hashes: Vec<StateHash>,
}

/// A Raft message, encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutMessage {
    /// Which shard.
    pub shard: u32,
    /// Protobuf.
    pub raft: Vec<u8>,
    /// Carries log entries (for the metrics that show what polls cost).
    pub append: bool,
}

impl OutMessage {
    /// Encodes a message of `shard`. `None` if it can't be: only one past protobuf's 2 GiB, and
    /// entries are capped far below.
    #[must_use]
    pub fn encode(shard: u32, message: &Message) -> Option<Self> {
        let raft = message.write_to_bytes();
        let raft = raft.inspect_err(|error| {
            tracing::error!(shard, %error, "raft message not encodable");
        });
        Some(OutMessage {
            shard,
            raft: raft.ok()?,
            append: !message.entries.is_empty(),
        })
    }
}
