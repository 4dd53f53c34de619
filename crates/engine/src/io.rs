//! Everything that goes into the engine and everything that comes out of it.

use std::sync::Arc;

use bytes::Bytes;
use nowserving_line::LineName;
use nowserving_protocol::admin::Mapping;
use nowserving_protocol::error::{ApiError, Code};
use nowserving_replica::{ReadFailed, Restored, Write};
use nowserving_shard::clock::Micros;
use nowserving_shard::published::OutEvent;
use nowserving_shard::requests::RequestId;
use nowserving_shard::state::State;

use crate::contact::Standing;
use crate::delivery::{Delivery, LeaderTime};
use crate::frames::{PeerBatch, PeerFrame};
use crate::request::{Outcome, Question, ReplyTo, Request};

/// The clocks, read by the caller for each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Monotonic, and it counts while the machine is suspended.
    pub us: Micros,
    /// Milliseconds since 1970: shown, never compared.
    pub wall_ms: u64,
}

/// What the engine is told once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// This node.
    pub id: u64,
    /// All nodes, this one among them.
    pub nodes: Vec<u64>,
    /// The cluster's name.
    pub cluster: String,
    /// The number of shards.
    pub shards: u32,
    /// First token of every subject.
    pub prefix: String,
    /// Time between Raft heartbeats.
    pub heartbeat_ms: u64,
    /// Without a leader for this long (up to twice as long, by [`Config::seed`]) a node stands for
    /// election.
    pub election_ms: u64,
    /// Log entries applied between two snapshots of a shard.
    pub snapshot_entries: u64,
    /// Where this node serves metrics, to be shown.
    pub metrics_addr: Option<String>,
    /// This build, to be shown.
    pub version: String,
    /// Every draw of the engine is a hash of this: random for each start in production.
    pub seed: u64,
}

/// This start of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boot {
    /// Its random number, by which peers tell it from other starts.
    pub start: u64,
}

/// One shard as it was on disk.
#[derive(Debug)]
pub struct RestoredShard {
    /// Its number.
    pub shard: u32,
    /// Its log, and what its snapshot stands for.
    pub restored: Restored,
    /// The state in its snapshot.
    pub state: State,
}

/// What happens to a node.
#[derive(Debug, PartialEq)]
pub enum Input {
    /// A client asks about a line.
    Request {
        /// What.
        request: Box<Request>,
        /// How it came.
        delivery: Delivery,
    },
    /// An operator asks about the cluster.
    Cluster {
        /// What.
        question: Question,
        /// Where the answer goes.
        reply: ReplyTo,
    },
    /// What came of an [`Output::Forward`].
    Forwarded {
        /// Which one.
        id: ForwardId,
        /// What.
        result: ForwardResult,
    },
    /// A frame of a peer, authenticated and decoded, or refused with a reason.
    Frame(PeerFrame),
    /// Writes are durable.
    Persisted {
        /// Per shard the number of the newest write.
        numbers: Vec<(u32, u64)>,
        /// How many [`Output::Persist`] that were.
        writes: usize,
    },
    /// What became of an [`Output::WriteSnapshot`].
    SnapshotWritten {
        /// The shard.
        shard: u32,
        /// The last entry in it; `None`: it could not be written.
        index: Option<u64>,
    },
    /// These shards keep old log files alive.
    FilesPinned(Vec<u32>),
    /// What this node sent itself at this time, the way requests come, has come back.
    ProbeEchoed {
        /// When it was sent.
        sent_at: Micros,
    },
    /// Requests were turned away unread: the time until now must not count against anybody.
    RequestsDropped,
    /// What NATS does with requests on plain subjects.
    Mapping(Mapping),
    /// Hand leadership over, then end.
    Stop,
    /// Nothing more is to be had just now.
    EndTurn {
        /// All requests that reached this node were given to the engine. Tokens expire only then.
        inbox_empty: bool,
    },
}

/// What a node has to do.
#[derive(Debug, PartialEq)]
pub enum Output {
    /// Answer a request.
    Reply {
        /// To whom.
        to: ReplyTo,
        /// What.
        result: Result<Outcome, ApiError>,
    },
    /// Answer a request with what another node answered.
    RelayReply {
        /// To whom.
        to: ReplyTo,
        /// What, as it came.
        answer: RelayedAnswer,
    },
    /// Publish an event. It may be lost: subscribers see the gap.
    Event(OutEvent),
    /// Send a frame to a peer. It may be lost: Raft repeats.
    Frame {
        /// To which peer.
        to: u64,
        /// What is in it.
        batch: PeerBatch,
    },
    /// Make these durable, then say so ([`Input::Persisted`]).
    Persist(Vec<Write>),
    /// Entries of a shard through this index are not needed any more.
    Compact {
        /// The shard.
        shard: u32,
        /// The last entry to go.
        through: u64,
    },
    /// Make a snapshot of a shard from what is on disk, then say so ([`Input::SnapshotWritten`]).
    WriteSnapshot {
        /// The shard.
        shard: u32,
        /// The last entry in it.
        index: u64,
    },
    /// Pass a request on to the leader of its shard, once ([`Input::Forwarded`]).
    Forward(ForwardTry),
    /// Listen on a shard's subjects in this way from now on.
    Subscribe {
        /// The shard.
        shard: u32,
        /// How.
        subscription: Subscription,
    },
    /// Whether this node takes part has changed, or why it does not.
    Standing(Standing),
    /// Whether requests are served by way of this node has changed, or why they are not.
    Serves(Result<(), String>),
    /// The node must end, for this reason. The last output.
    Exit(ExitReason),
}

/// How a node listens on a shard's subjects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Subscription {
    /// Not at all: another node leads.
    #[default]
    No,
    /// As its leader, in its lease.
    Leader {
        /// Between two terms another node may have listened.
        term: u64,
    },
    /// As one of all nodes, in a group, to pass on what comes to the next leader: nobody leads as far
    /// as this node knows, or it does and is out of its lease (just elected and not ready, or out of
    /// touch with its peers).
    Leaderless,
}

/// Names an [`Output::Forward`]; unique in the life of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForwardId(pub u64);

/// One try to have a request answered by the leader of its shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardTry {
    /// Names it.
    pub id: ForwardId,
    /// The shard.
    pub shard: u32,
    /// The line.
    pub line: LineName,
    /// The operation: the last word of the subject.
    pub op: &'static str,
    /// Whether it is an operator's.
    pub admin: bool,
    /// The payload to send.
    pub payload: Bytes,
    /// The leader gets this long.
    pub timeout_ms: u64,
    /// Which call it belongs to, the same for each try; for a write.
    pub request_id: Option<RequestId>,
    /// When it is sent, on the leader's clock. Without it a leader takes no writes.
    pub sent_at: Option<LeaderTime>,
    /// The leader may have the message too: it executes its own copy only ([`Delivery::shared`]).
    pub shared: bool,
}

/// What came of a try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForwardResult {
    /// An answer.
    Answered {
        /// Its error, if it is one.
        error: Option<Code>,
        /// As it came.
        answer: RelayedAnswer,
    },
    /// Nobody listens there: nothing happened.
    NoResponders,
    /// No answer came in time.
    TimedOut,
    /// It could not be sent, or the connection was lost.
    Failed,
}

/// A leader's answer, which the engine does not look into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayedAnswer {
    /// Header by header.
    pub headers: Vec<(String, String)>,
    /// The payload.
    pub payload: Bytes,
}

/// Why a node has to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitReason {
    /// It was told to, and has handed over what it could.
    Stopped,
    /// Its log cannot be read.
    ReadFailed(ReadFailure),
    /// A committed entry that this build cannot apply. Going on would make its state differ.
    EntryUnreadable(String),
    /// Its state is not that of the other nodes.
    StateDiffers(crate::agreement::StateDiffers),
}

/// [`ReadFailed`], compared by its text.
#[derive(Debug, Clone, thiserror::Error)]
#[error(transparent)]
pub struct ReadFailure(pub Arc<ReadFailed>);

impl PartialEq for ReadFailure {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

impl Eq for ReadFailure {}
