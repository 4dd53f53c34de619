//! Everything that goes into the engine and everything that comes out of it.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use nowserving_line::{LineName, OperatorNote};
use nowserving_protocol::admin::{Mapping, OtherCluster};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::header::TraceContext;
use nowserving_protocol::keys::KeyPrint;
use nowserving_protocol::operation::Operation;
use nowserving_replica::{ConfState, Connection, ReadFailed, Restored, SnapshotMeta, Write};
use nowserving_shard::clock::Micros;
use nowserving_shard::limits::RuleTexts;
use nowserving_shard::members::Members;
use nowserving_shard::published::OutEvent;
use nowserving_shard::requests::RequestId;
use nowserving_shard::state::State;

use crate::delivery::{Delivery, LeaderTime};
use crate::envelope::{Candidate, SnapshotChunk, SnapshotRequest, Welcome};
use crate::frames::{PeerBatch, PeerFrame};
use crate::loops::{FromLoop, LoopPlace, ToLoop};
use crate::peers::contact::Standing;
use crate::request::{Outcome, Question, ReplyTo, Request};
use crate::snapshots::file::SnapshotFile;

/// The clocks, read by the caller for each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Monotonic, and it counts while the machine is suspended.
    pub us: Micros,
    /// Milliseconds since 1970: shown, and schedules of operators go by it.
    pub wall_ms: u64,
}

/// Fixed for the life of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub id: u64,
    /// The nodes that the cluster began with.
    pub nodes: Vec<u64>,
    /// The newest members that this node knew when it last ran.
    pub members: Members,
    pub cluster: String,
    /// Of the cluster.
    pub shards: u32,
    /// Of this engine among those of the node. It has a part of the shards.
    pub place: LoopPlace,
    /// First token of every subject.
    pub prefix: String,
    pub heartbeat_ms: u64,
    /// Without a leader for this long a node stands for election, or a little later: the nodes wait for each
    /// other in turn.
    pub election_ms: u64,
    /// Log entries applied between two snapshots of a shard.
    pub snapshot_entries: u64,
    /// The bound of the log of this engine's shards.
    pub log_bytes_max: u64,
    /// Where this node serves metrics, to be shown.
    pub metrics_addr: Option<String>,
    /// This build, to be shown.
    pub version: String,
    /// The newest format of log entries that this node reads: that of its build.
    pub entry_format: u32,
    /// A node whose transport takes less in one message serves nobody, in bytes.
    pub max_payload_min: usize,
    /// Whatever the engine picks is a hash of this: random for each start in production.
    pub seed: u64,
    /// The seeds of draws at the opening of lines are hashes of this: random for each start in production, and kept from
    /// everybody.
    pub draw_secret: nowserving_line::Secret,
}

/// This start of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boot {
    /// Its random number, by which peers tell it from other starts.
    pub start: u64,
    /// It has been refused before, and asks to be added under a new number.
    pub is_candidate: bool,
    /// Why its peers have refused its disk in an earlier start, if they have.
    pub disk_refused: Option<String>,
}

/// One shard as it was on disk.
#[derive(Debug, Default)]
pub struct RestoredShard {
    pub shard: u32,
    /// Its log, and a description of its snapshot.
    pub restored: Restored,
    /// The state in its snapshot, and what was applied since ([`RestoredShard::replay`]).
    pub state: State,
    pub replayed: Replayed,
    /// Its snapshot's file, if there is one.
    pub file: Option<SnapshotFile>,
}

/// What the entries had that a start has applied behind a snapshot.
#[derive(Debug, Default)]
pub struct Replayed {
    /// As [`State::apply_entry`] counts it.
    pub work: usize,
    /// The largest [`nowserving_shard::command::Entry::compact_floor`].
    pub compact_floor: u64,
}

/// The state in a received snapshot.
#[derive(Debug)]
pub struct ReceivedState(pub Box<State>);

/// Something large that is no part of any state any more.
#[derive(Debug)]
pub struct Dropped(pub Box<dyn Any + Send>);

/// They are too large to be compared.
impl PartialEq for Dropped {
    fn eq(&self, _: &Self) -> bool {
        false
    }
}

/// Why a peer's snapshot, of which all parts are here, is not this node's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotInstalled {
    /// It is not what was offered, or this build can't read it.
    Refused,
    /// It could not be read from this node's disk or written to it.
    NotStored,
}

/// States are too large to be compared.
impl PartialEq for ReceivedState {
    fn eq(&self, _: &Self) -> bool {
        false
    }
}

/// An event that the engine reacts to.
#[derive(Debug, PartialEq)]
pub enum Input {
    /// A client asks about a line.
    Request {
        request: Box<Request>,
        delivery: Delivery,
    },
    /// An operator asks about the cluster.
    Cluster { question: Question, reply: ReplyTo },
    /// The result of an [`Output::Forward`].
    Forwarded {
        id: ForwardId,
        result: ForwardResult,
    },
    /// A frame of a peer, authenticated and decoded, or refused with a reason.
    Frame(Box<PeerFrame>),
    /// Writes are durable.
    Persisted {
        /// Per shard the number of the newest write.
        numbers: Vec<(u32, u64)>,
        /// The number of finished [`Output::Persist`]s.
        writes: usize,
    },
    /// The result of an [`Output::WriteSnapshot`].
    SnapshotWritten {
        shard: u32,
        /// The snapshot that is on disk now; `None`: it could not be written.
        written: Option<(SnapshotMeta, SnapshotFile)>,
    },
    /// The result of an [`Output::OpenIncoming`] or [`Output::StoreIncoming`].
    SnapshotStored {
        shard: u32,
        file: SnapshotFile,
        /// The stored bytes of the file; `None`: it can't be written.
        offset: Option<u64>,
    },
    /// The result of an [`Output::InstallSnapshot`].
    SnapshotReceived {
        shard: u32,
        file: SnapshotFile,
        /// The state in it.
        state: Result<ReceivedState, NotInstalled>,
    },
    /// The result of an [`Output::ReadSnapshot`].
    SnapshotRead { to: u64, chunk: SnapshotChunk },
    /// The log is over its bound.
    FilesPinned {
        /// They keep old files of it alive.
        shards: Vec<u32>,
        /// Its size.
        log_bytes: u64,
    },
    /// A probe that this node sent itself at this time, by the way of requests, has come back.
    ProbeEchoed { sent_at: Micros },
    /// Requests were refused unread: no token may expire for the time until now.
    RequestsDropped,
    /// The disk of this node has become full, or has room again. Writes wait for room, so none fails.
    DiskFull(bool),
    /// What the transport takes in one message, in bytes: at the start, and when that has changed.
    MaxPayload(usize),
    /// The transport has refused an [`Output::Frame`], or a part of it: the frame is lost.
    FrameRefused {
        to: u64,
        /// The shards of the messages in it.
        shards: Vec<u32>,
    },
    /// How NATS routes requests on plain subjects.
    Mapping(Mapping),
    /// A node asks to be added.
    Candidate(Candidate),
    /// A member of another cluster of the same name that takes part answers a founder with its members.
    OtherCluster(Box<Members>),
    /// The other clusters that answer service discovery for this node's prefix, to be shown to operators.
    OtherClusters(Vec<OtherCluster>),
    /// The cluster keys that this node has loaded, the older one first: at its start, and when they have changed.
    Keys(Vec<KeyPrint>),
    /// The number of this node's service connection has grown. Must come before any request of that
    /// connection.
    ConnectionNumber(u64),
    /// A NATS server has closed a service connection of a peer.
    ConnectionClosed { peer: u64, connection: Connection },
    /// Hand leadership over, then end.
    Stop,
    /// From the node's first loop, to another one.
    Told(Box<ToLoop>),
    /// From another loop of the node, to the first one.
    ToldByLoop(Box<FromLoop>),
    /// No more input is waiting.
    EndTurn {
        /// All requests that reached this node were given to the engine. Tokens expire only then.
        inbox_empty: bool,
    },
}

/// An action that the node carries out for the engine.
#[derive(Debug, PartialEq)]
pub enum Output {
    /// Answer a request.
    Reply {
        to: ReplyTo,
        result: Result<Outcome, ApiError>,
    },
    /// Answer a request with what another node answered.
    RelayReply {
        to: ReplyTo,
        /// Set if it is an error.
        error: Option<Code>,
        /// Unchanged.
        answer: RelayedAnswer,
    },
    /// Publish an event. It may be lost: subscribers see the gap.
    Event(OutEvent),
    /// Send a frame to a peer. It may be lost: Raft repeats.
    Frame { to: u64, batch: PeerBatch },
    /// Make these durable, then say so ([`Input::Persisted`]).
    Persist(Vec<Write>),
    /// Entries of a shard through this index are no longer needed.
    Compact {
        shard: u32,
        /// The last entry to go.
        through: u64,
    },
    /// Make a snapshot of a shard from what is on disk, then say so ([`Input::SnapshotWritten`]).
    WriteSnapshot {
        shard: u32,
        /// The last entry in it.
        index: u64,
        /// The members as of that entry.
        members: ConfState,
    },
    /// Open what is there of a peer's snapshot, or begin it ([`Input::SnapshotStored`]). The disk keeps one
    /// such file a shard.
    OpenIncoming { shard: u32, file: SnapshotFile },
    /// Store the next part of it ([`Input::SnapshotStored`]).
    StoreIncoming {
        file: SnapshotFile,
        chunk: SnapshotChunk,
    },
    /// Delete what is there of a peer's snapshot.
    DropIncoming { shard: u32 },
    /// Verify a peer's snapshot, which is whole now, decode it, and make it durably this node's own
    /// ([`Input::SnapshotReceived`]). It is newer than any [`Output::WriteSnapshot`] before it, and none follows
    /// before the answer.
    InstallSnapshot {
        shard: u32,
        meta: SnapshotMeta,
        file: SnapshotFile,
    },
    /// Read a part of this node's snapshot for a peer ([`Input::SnapshotRead`]), if that is still the file
    /// that is asked for.
    ReadSnapshot {
        to: u64,
        request: SnapshotRequest,
        /// The part's length at most.
        bytes_max: usize,
    },
    /// Forward a request to the leader of its shard, once ([`Input::Forwarded`]).
    Forward(ForwardTry),
    /// For another loop of the node ([`Input::Told`]). It may be lost: Raft repeats, and what else is in it comes again.
    ToLoop { index: u32, told: Box<ToLoop> },
    /// For the node's first loop ([`Input::ToldByLoop`]). It may be lost, too.
    FromLoop(Box<FromLoop>),
    /// From now on, subscribe to a shard's subjects in this way.
    Subscribe {
        shard: u32,
        subscription: Subscription,
    },
    /// The newest wanted members that this node knows, to be kept for its next start, and the nodes that it
    /// exchanges frames with.
    Members {
        wanted: Members,
        peers: BTreeSet<u64>,
    },
    /// The rules of rate limits, of all domains.
    Rules(RuleTexts),
    /// Drop this on another thread: that can take a tenth of a second.
    Drop(Dropped),
    /// Tell a candidate that it was added.
    Welcome(Welcome),
    /// This node began or stopped taking part, or the reason why it does not has changed.
    Standing(Standing),
    /// This node began or stopped serving requests, or the reason why it does not has changed.
    Serves(Result<(), String>),
    /// The node must end. The last output.
    Exit(ExitReason),
}

/// A node's subscriptions to a shard's subjects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Subscription {
    /// None: another node leads.
    #[default]
    No,
    /// The leader's, in its lease.
    Leader {
        /// Between two terms another node may have been subscribed.
        term: u64,
    },
    /// One of a group of all nodes, which forward requests to the next leader. A node that knows no leader
    /// has it, and a leader without a lease (just elected and not ready, or out of touch with its peers).
    Leaderless,
}

/// The id of an [`Output::Forward`]; unique in the life of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForwardId(pub u64);

/// One try to have a request answered by the leader of its shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardTry {
    pub id: ForwardId,
    pub shard: u32,
    /// Or the bucket.
    pub line: LineName,
    pub op: Operation,
    /// Who asked, and why.
    pub note: Option<Box<OperatorNote>>,
    pub payload: Bytes,
    /// The leader's time to answer.
    pub timeout_ms: u64,
    /// A write's id, the same for each try.
    pub request_id: Option<RequestId>,
    /// When it is sent, on the leader's clock. Without it a leader takes no writes.
    pub sent_at: Option<LeaderTime>,
    /// The leader may have the message too: it executes its own copy only ([`Delivery::shared`]).
    pub shared: bool,
    /// Of a write that its client named: the leader's term, as this node knows it ([`Delivery::term`]).
    pub term: Option<u64>,
    /// The trace that the request is a part of.
    pub trace: Option<Box<TraceContext>>,
}

/// The result of a try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForwardResult {
    Answered {
        /// Set if it is an error.
        error: Option<Code>,
        /// Unchanged.
        answer: RelayedAnswer,
    },
    /// No node is subscribed there: nothing happened.
    NoResponders,
    /// No answer came in time.
    TimedOut,
    /// It could not be sent, or the connection was lost.
    Failed,
    /// It is larger than what the transport takes in one message: nothing happened.
    TooLarge {
        /// With its headers.
        bytes: usize,
        bytes_max: usize,
    },
}

/// A leader's answer, which the engine does not decode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayedAnswer {
    /// Names and values.
    pub headers: Vec<(String, String)>,
    pub payload: Bytes,
}

/// The reason why a node must end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitReason {
    /// It was asked to stop, and has handed over the shards that it could.
    Stopped,
    /// Its log cannot be read.
    ReadFailed(ReadFailure),
    /// A committed entry that this build cannot apply. Going on would make its state differ.
    EntryUnreadable(String),
    /// It was removed from the cluster, and no group has it any more.
    Removed,
    /// Its state differs from the other nodes'.
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
