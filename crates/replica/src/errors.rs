//! The errors of a replica.

use raft::eraftpb::MessageType;

/// The data on disk is not that of a working replica. The node must not run with it under its old id.
#[derive(Debug, thiserror::Error)]
pub enum NewError {
    #[error("raft configuration of shard {shard}: {problem}")]
    Config { shard: u32, problem: String },
    /// The log lost synced data: entries, or the vote of the last one's term.
    #[error("shard {shard}: {what}")]
    LogLost { shard: u32, what: String },
    /// The snapshot is not one of this log: older, newer, or of another one.
    #[error("shard {shard}: {what}")]
    ForeignSnapshot { shard: u32, what: String },
    /// The log can't be read.
    #[error(transparent)]
    Read(#[from] ReadFailed),
}

/// Entries that should be in the log can't be read. The process must end: raft no longer knows its own
/// promises.
#[derive(Debug, thiserror::Error)]
#[error("shard {shard}: entries {low}..{high} can't be read")]
pub struct ReadFailed {
    pub shard: u32,
    /// The first entry asked for.
    pub low: u64,
    /// The entry after the last one asked for.
    pub high: u64,
    #[source]
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}

/// The reason for the refusal of a peer's message. Raft itself would panic on most of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepRefused {
    /// It is addressed to another node.
    #[error("addressed to node {0}")]
    WrongTo(u64),
    /// No other node has this number.
    #[error("not from another node, but from {0}")]
    WrongFrom(u64),
    /// A kind that members never send each other: raft's local kinds, and requests that followers here
    /// never forward (proposals, reads, transfers).
    #[error("{0:?} does not come from peers")]
    Kind(MessageType),
    /// A request for a snapshot, which no node makes, or a snapshot without a description of its file.
    #[error("a malformed message about a snapshot")]
    Snapshot,
    /// The members in a snapshot contradict each other, or this node is not among them.
    #[error("a snapshot with members that can't be")]
    Members,
    /// Term 0, or a term further ahead than any number of elections explains.
    #[error("absurd term {0}")]
    AbsurdTerm(u64),
    /// An index so large that arithmetic with it would overflow.
    #[error("absurd index {0}")]
    AbsurdIndex(u64),
    /// The entries are not consecutive, or their terms fall or exceed the sender's.
    #[error("malformed entries at index {0}")]
    MalformedEntries(u64),
    /// An entry changes the members in a form that this build does not read.
    #[error("unreadable change of the members at index {0}")]
    ConfChange(u64),
    /// The leader counts on entries that are not in this log: the disk lost entries that this node had
    /// acknowledged.
    #[error("commit index {commit} is past the last log entry {last}")]
    CommitPastLog {
        /// The leader's commit index for this node.
        commit: u64,
        /// The last entry here.
        last: u64,
    },
    /// The entry conflicts with a committed one: one of the logs is not of this group's past.
    #[error("conflict with the committed entry {0}")]
    ConflictsWithCommitted(u64),
    /// The peer acknowledges an entry that does not exist.
    #[error("acknowledges {index}, past the last log entry {last}")]
    AckPastLog {
        /// The index acknowledged or hinted at.
        index: u64,
        /// The last entry here.
        last: u64,
    },
    /// A vote for which this node has not asked yet.
    #[error("vote before it was asked for")]
    UnaskedVote,
    /// The sender claims to lead a term that another node leads.
    #[error("node {claims} claims to lead, but node {leads} leads this term")]
    SecondLeader { claims: u64, leads: u64 },
    /// This node waits for its first snapshot, and the message does not lead to one. Expected.
    #[error("waits for its first snapshot")]
    Uninitialized,
    /// This node has just started: a lease may depend on its earlier answers. Expected.
    #[error("started less than an election timeout ago")]
    JustStarted,
    /// This node answered a leader less than an election timeout ago, and that leader may hold a lease.
    /// Expected.
    #[error("answered a leader less than an election timeout ago")]
    LeaderAlive,
    /// This node is asked to take over, but has too many committed entries to apply. Expected.
    #[error("too far behind to lead")]
    FarBehind,
}

impl StepRefused {
    /// True for refusals that are part of normal work; all others are worth a line in the log.
    pub fn is_expected(&self) -> bool {
        matches!(
            self,
            StepRefused::Uninitialized
                | StepRefused::JustStarted
                | StepRefused::LeaderAlive
                | StepRefused::FarBehind
        )
    }
}

/// The reason for the refusal of a proposal. Nothing happened: it is safe to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Another node leads, or none.
    #[error("not the leader")]
    NotLeader,
    /// Too much is uncommitted, or leadership is being handed over.
    #[error("busy")]
    Busy,
    /// Over [`crate::MAX_COMMAND_BYTES`].
    #[error("a command of {0} bytes is too large")]
    TooLarge(usize),
    /// An empty command looks like the entry that opens a term.
    #[error("empty command")]
    Empty,
}

/// The reason why a change of the members is not in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembersError {
    /// Another node leads, or none.
    #[error("not the leader")]
    NotLeader,
    /// An earlier change is not applied yet, or a joint configuration is not over (or there is none).
    #[error("an earlier change of the members is in progress")]
    InProgress,
    /// Too much is uncommitted, or leadership is being handed over.
    #[error("busy")]
    Busy,
}

/// The reason why no read round was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Another node leads, or none.
    #[error("not the leader")]
    NotLeader,
    /// This leader has not committed an entry of its term yet; a moment later it will have.
    #[error("the leader is not ready yet")]
    NotReady,
    /// Too many rounds wait for a quorum.
    #[error("too many reads wait for a quorum")]
    Busy,
}

/// The reason why leadership is not handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// Another node leads, or none.
    #[error("not the leader")]
    NotLeader,
    /// The target is this node itself or not a voter.
    #[error("node {0} can't take over")]
    BadTarget(u64),
}
