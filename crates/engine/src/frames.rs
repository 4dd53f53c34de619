//! The frames that nodes send each other, as the engine and the transport exchange them.

use nowserving_protocol::keys::KeyPrint;
use nowserving_replica::Message;
use nowserving_shard::clock::Micros;
use nowserving_shard::members::Members;

use crate::envelope::{
    ClosedConnection, LaggingMember, SnapshotChunk, SnapshotRequest, StateHash, Verdict,
};
use crate::peers::contact::{PeerHeader, Refusal};

/// A received frame.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerFrame {
    /// The sender; taken from the subject if the frame could not be opened.
    pub from: u64,
    /// Present also in a refused frame.
    pub header: PeerHeader,
    pub body: Result<FrameBody, Refusal>,
}

/// The content of a frame that was checked and decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct FrameBody {
    /// Clients can reach the sender.
    pub client_reachable: bool,
    pub disk_full: bool,
    /// In how many shards the sender lacks entries and has just refused the snapshot with them.
    pub refuses_snapshots: u32,
    /// The sender's monotonic clock when it made the frame.
    pub clock_us: Micros,
    /// The numbers of the service connections of its loops, that of the first loop first.
    pub connections: Vec<u64>,
    pub closed: Vec<ClosedConnection>,
    /// Members that lag in shards which the sender leads.
    pub lagging: Vec<LaggingMember>,
    pub metrics_addr: String,
    /// Where the sender takes direct links; empty: nowhere.
    pub link_addr: String,
    pub version: String,
    /// The newest format of log entries that the sender reads; 0: it does not say.
    pub entry_format: u32,
    /// What the sender's transport takes in one message, in bytes; 0: it does not say.
    pub max_payload: u64,
    /// The cluster keys that the sender has loaded.
    pub keys: Vec<KeyPrint>,
    pub messages: Vec<(u32, Message)>,
    pub state_hashes: Vec<StateHash>,
    pub snapshot_request: Option<SnapshotRequest>,
    pub snapshot_chunk: Option<Box<SnapshotChunk>>,
}

/// A node's output to a peer in one turn.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerBatch {
    /// Clients can reach this node.
    pub client_reachable: bool,
    pub disk_full: bool,
    /// In how many shards this node lacks entries and has just refused the snapshot with them.
    pub refuses_snapshots: u32,
    pub clock_us: Micros,
    /// The numbers of the service connections of this node's loops, that of the first loop first.
    pub connections: Vec<u64>,
    /// Closed service connections of peers.
    pub closed: Vec<ClosedConnection>,
    /// Members that lag in shards which this node leads.
    pub lagging: Vec<LaggingMember>,
    /// The newest format of log entries that this node reads.
    pub entry_format: u32,
    /// What this node's transport takes in one message, in bytes.
    pub max_payload: u64,
    /// The cluster keys that this node has loaded.
    pub keys: Vec<KeyPrint>,
    /// A quorum has accepted this start of this node.
    pub in_touch: bool,
    /// This node has nothing of any group yet.
    pub in_no_group: bool,
    /// This node's verdicts on starts of the peer.
    pub verdicts: Vec<Verdict>,
    /// The peer does not take part yet: the frame reports the disks that this node knows.
    pub reports_disks: bool,
    /// Empty in a sign of life.
    pub messages: Vec<OutMessage>,
    pub state_hashes: Vec<StateHash>,
    /// The identity of this node's cluster; 0 while it knows none.
    pub cluster_id: u64,
    /// Of the members that this node knows.
    pub members_version: u64,
    /// These members, if the peer knows older ones.
    pub members: Option<Members>,
    pub snapshot_request: Option<SnapshotRequest>,
    pub snapshot_chunk: Option<Box<SnapshotChunk>>,
}

/// An encoded Raft message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutMessage {
    pub shard: u32,
    pub raft: Vec<u8>,
    /// Carries log entries (for the metrics that show what polls cost).
    pub append: bool,
}

impl OutMessage {
    /// `None` for a message that is too large to be encoded; entries are capped far below.
    #[must_use]
    pub fn encode(shard: u32, message: &Message) -> Option<Self> {
        let raft = message.encode();
        let raft = raft.inspect_err(|error| {
            tracing::error!(shard, %error, "raft message not encodable");
        });
        Some(OutMessage {
            shard,
            raft: raft.ok()?,
            append: message.has_entries(),
        })
    }
}
