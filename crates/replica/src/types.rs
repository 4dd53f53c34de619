//! The inputs and outputs of a [`crate::Replica`].

use std::time::Duration;

use bytes::Bytes;
use nowserving_codec::Codec;
use raft::eraftpb::{self, Entry, EntryType, HardState, SnapshotMetadata};

use crate::Message;

/// Microseconds of a monotonic clock that also counts while the machine is suspended
/// (`CLOCK_BOOTTIME`): a lease must end in that time, too.
pub type Micros = u64;

/// The largest command [`crate::Replica::propose`] takes, in bytes. An entry is never split over
/// messages, and a message must fit a frame of the transport (1 MiB by default) with room to spare.
pub const MAX_COMMAND_BYTES: usize = 512 * 1024;

/// One of a node's connections to NATS by which clients' requests reach it (its service connection).
///
/// A node counts them, and its count grows before a request of the next one can reach its engine. A node
/// tells its peers the number of its connection in each frame. A lease is used only for requests that came
/// by the connection with which it was asked for ([`crate::Replica::connection_lost`]). So once the server
/// has closed that connection, every request that the leader can still answer under the lease was sent
/// before that, and the answer may be any state of between. That is why the proof of it ends a voter's
/// loyalty to the lease ([`crate::Replica::connection_closed`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Connection {
    /// The random number of the node's start.
    pub start: u64,
    /// Counts the connections of that start.
    pub number: u64,
}

#[derive(Clone, Debug)]
pub struct Config {
    /// Only for [`Write`] and [`crate::EntryReader`].
    pub shard: u32,
    /// This node; not 0, and one of the group's members, which come from [`Restored`].
    pub id: u64,
    /// Ticks without a leader before this node stands for election (randomized: this to twice this).
    pub election_ticks: usize,
    /// Ticks between heartbeats; less than `election_ticks`.
    pub heartbeat_ticks: usize,
    /// The time between two ticks.
    pub tick: Duration,
    /// The time for which a leader may answer reads on its own, from the start of a read round. At most
    /// nine tenths of the election timeout; the rest allows for clocks of different speed.
    pub lease: Duration,
    /// Whether followers are told at once what is committed. Else they hear of it by the next entries or the next
    /// heartbeat: a message and an answer less for each peer, in each commit of a group without more to say.
    pub tells_commits: bool,
}

impl Config {
    /// The election timeout (before randomization), in µs.
    pub fn election_timeout(&self) -> Micros {
        micros(self.tick).saturating_mul(self.election_ticks as u64)
    }
}

/// A duration in µs, saturating.
pub(crate) fn micros(duration: Duration) -> Micros {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A new group's log begins after this index, as if a snapshot of the empty state had been installed
/// there. So no node has a first entry, and a node that joins must get a snapshot with the members in it.
pub const BOOTSTRAP_INDEX: u64 = 1;
/// The term of [`BOOTSTRAP_INDEX`]; the first leader's is greater.
pub const BOOTSTRAP_TERM: u64 = 1;

/// The state of a shard's log. The default is that of a log that was never written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogState {
    /// Term, vote and commit index as last written.
    pub hard_state: HardState,
    /// The log's start record, see [`Write::start`]. Index 0: the group was never started on this disk.
    pub start: SnapshotMeta,
    /// The last index that was compacted, or that of the start record; the first entry is the one after it.
    pub compact_index: u64,
    /// The term of the entry at `compact_index`.
    pub compact_term: u64,
    /// The last entry; equal to `compact_index` if there is none.
    pub last_index: u64,
}

/// The description of a snapshot of the state.
#[derive(Clone, Codec, Debug, Default, PartialEq)]
pub struct SnapshotMeta {
    /// The last entry in it. 0: there is no snapshot.
    pub index: u64,
    pub term: u64,
    /// The members as of that entry.
    pub conf_state: ConfState,
}

/// The members of a group, which may be a joint configuration of two halves.
#[derive(Clone, Codec, Debug, Default, PartialEq, Eq)]
pub struct ConfState {
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
    /// The voters of the outgoing half; empty unless there are two.
    pub voters_outgoing: Vec<u64>,
    /// Voters of the outgoing half that become learners.
    pub learners_next: Vec<u64>,
    /// Raft ends the joint configuration by itself.
    pub auto_leave: bool,
}

impl ConfState {
    pub fn of_voters(voters: &[u64]) -> ConfState {
        ConfState {
            voters: voters.to_vec(),
            ..ConfState::default()
        }
    }

    /// All members: those that vote, in either half, then the others.
    pub fn nodes(&self) -> impl Iterator<Item = u64> {
        let voters = self.voters.iter().chain(&self.voters_outgoing);
        let learners = self.learners.iter().chain(&self.learners_next);
        voters.chain(learners).copied()
    }
}

impl From<eraftpb::ConfState> for ConfState {
    fn from(it: eraftpb::ConfState) -> ConfState {
        ConfState {
            voters: it.voters,
            learners: it.learners,
            voters_outgoing: it.voters_outgoing,
            learners_next: it.learners_next,
            auto_leave: it.auto_leave,
        }
    }
}

impl From<ConfState> for eraftpb::ConfState {
    fn from(it: ConfState) -> eraftpb::ConfState {
        eraftpb::ConfState {
            voters: it.voters,
            learners: it.learners,
            voters_outgoing: it.voters_outgoing,
            learners_next: it.learners_next,
            auto_leave: it.auto_leave,
            ..eraftpb::ConfState::default()
        }
    }
}

impl From<SnapshotMetadata> for SnapshotMeta {
    fn from(mut message: SnapshotMetadata) -> SnapshotMeta {
        SnapshotMeta {
            index: message.index,
            term: message.term,
            conf_state: message.take_conf_state().into(),
        }
    }
}

impl From<SnapshotMeta> for SnapshotMetadata {
    fn from(meta: SnapshotMeta) -> SnapshotMetadata {
        SnapshotMetadata {
            index: meta.index,
            term: meta.term,
            conf_state: Some(meta.conf_state.into()).into(),
            ..SnapshotMetadata::default()
        }
    }
}

/// The data on disk from which a replica is made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Restored {
    pub log: LogState,
    /// The newest snapshot. The replica hands out committed entries from the one after it on, or after `applied`. A group
    /// that was just started has none.
    pub snapshot: SnapshotMeta,
    /// What the owner has applied behind the snapshot goes through this entry; 0: nothing.
    pub applied: u64,
}

/// A node's role in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Follows a leader, or waits for one.
    Follower,
    /// Stands for election, or asks in a pre-vote whether it would be elected.
    Candidate,
    Leader,
}

/// A change of role, of known leader or of term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleChange {
    pub role: Role,
    /// The leader, if known.
    pub leader: Option<u64>,
    pub term: u64,
}

/// The id of a round of [`crate::Replica::read_index`]; never reused by a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// A quorum confirmed that this node led when the round began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadGrant {
    pub id: ReadId,
    /// Reads of this round may be answered once this index is applied.
    pub index: u64,
}

/// A write for the disk. Writes of a shard are made in the order of `number`.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub shard: u32,
    /// The number for [`crate::Replica::on_persisted`]; grows, with gaps.
    pub number: u64,
    /// Consecutive entries; they replace everything from the first one's index on.
    pub entries: Vec<Entry>,
    /// The new hard state, in the same batch as the entries.
    pub hard_state: Option<HardState>,
    /// False if only the commit index moved: such a write need not be synced (raft finds the index
    /// again), but must be reported as others.
    pub must_sync: bool,
    /// The log begins anew behind this snapshot: all earlier entries go, then those of this write follow.
    /// The hard state is in the same write.
    pub start: Option<SnapshotMeta>,
}

impl Write {
    /// The write that starts a group on this disk, with its first voters. It must be on disk before
    /// [`crate::Replica::new`], and is not reported to the replica.
    pub fn bootstrap(shard: u32, voters: &[u64]) -> Write {
        let start = SnapshotMeta {
            index: BOOTSTRAP_INDEX,
            term: BOOTSTRAP_TERM,
            conf_state: ConfState::of_voters(voters),
        };
        Write::reset(shard, start, HardState::default())
    }

    /// The write after which the log holds nothing but `start`. A vote in an earlier term is gone with that
    /// term.
    pub(crate) fn reset(shard: u32, start: SnapshotMeta, mut hard_state: HardState) -> Write {
        if start.term > hard_state.term {
            hard_state.term = start.term;
            hard_state.vote = raft::INVALID_ID;
        }
        hard_state.commit = start.index;
        Write {
            shard,
            number: 0,
            entries: Vec::new(),
            hard_state: Some(hard_state),
            must_sync: true,
            start: Some(start),
        }
    }
}

/// The content of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The entry with which a leader opens its term.
    Empty,
    /// A command, as proposed.
    Command(Bytes),
    /// A change of the members, for [`crate::Replica::apply_members`].
    ConfChange(Bytes),
}

/// A committed entry: final, the same on every node. The replica hands out each one once, in order, and
/// after it is on this node's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub index: u64,
    /// Its term: shows the outcome of a proposal, see [`crate::Replica::propose`].
    pub term: u64,
    pub payload: Payload,
}

impl Committed {
    pub(crate) fn changes_members(&self) -> bool {
        matches!(self.payload, Payload::ConfChange(_))
    }
}

impl From<Entry> for Committed {
    fn from(entry: Entry) -> Committed {
        let payload = match entry.entry_type {
            EntryType::EntryNormal if entry.data.is_empty() => Payload::Empty,
            EntryType::EntryNormal => Payload::Command(entry.data),
            EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
                Payload::ConfChange(entry.data)
            }
        };
        Committed {
            index: entry.index,
            term: entry.term,
            payload,
        }
    }
}

/// The work of a replica's owner at the end of a turn.
#[derive(Clone, Debug, Default)]
pub struct Ready {
    /// Messages to send now.
    pub send: Vec<Message>,
    /// A write for the disk; then call [`crate::Replica::on_persisted`] with its number.
    pub write: Option<Write>,
    /// Entries to apply; then call [`crate::Replica::on_applied`].
    pub committed: Vec<Committed>,
    /// Rounds of `read_index` that a quorum has confirmed.
    pub reads: Vec<ReadGrant>,
    /// Rounds that will never be confirmed, as the leadership in which they began has ended.
    pub reads_failed: Vec<ReadId>,
    /// Set if the role, the leader or the term changed since the last turn.
    pub role: Option<RoleChange>,
}
