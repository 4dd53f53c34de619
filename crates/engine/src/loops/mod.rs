//! Several loops of one node. Each runs an engine with its own shards, and has its own service connection and its own part
//! of the log. The first loop decides for all of them, and is their only way to the peers: see `docs/design/loops.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nowserving_protocol::admin::ShardStatus;
use nowserving_protocol::error::ApiError;
use nowserving_replica::ConfState;
use nowserving_shard::clock::Micros;
use nowserving_shard::members::Members;

use crate::ctx::KnownLeader;
use crate::draw::draw;
use crate::engine::Gauges;
use crate::envelope::{LaggingMember, SnapshotChunk, SnapshotRequest, StateHash};
use crate::following::elections::ClosedConnections;
use crate::frames::OutMessage;
use crate::peers::peer::Peer;
use crate::request::{Outcome, Question, ReplyTo};
use crate::shard::{Shard, Shards};

pub(crate) mod groups;
pub(crate) mod lists;
#[cfg(test)]
mod loops_tests;

/// The loops of a node at most.
pub const LOOPS_MAX: u32 = 8;

/// Which of a node's loops it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopPlace {
    /// From 0, which is the first loop.
    pub index: u32,
    /// How many the node has, from 1 to [`LOOPS_MAX`], and no more than shards.
    pub count: u32,
}

impl LoopPlace {
    /// Of a node with one loop.
    pub const ONLY: LoopPlace = LoopPlace { index: 0, count: 1 };

    /// The places of a node's loops.
    pub fn all(count: u32) -> impl Iterator<Item = LoopPlace> {
        (0..count).map(move |index| LoopPlace { index, count })
    }

    #[must_use]
    pub fn is_first(self) -> bool {
        self.index == 0
    }

    /// Whether the loop has this shard.
    #[must_use]
    pub fn has(self, shard: u32) -> bool {
        self.loop_of(shard) == self.index
    }

    /// Which of the node's loops has a shard.
    #[must_use]
    pub fn loop_of(self, shard: u32) -> u32 {
        shard % self.count.max(1)
    }
}

/// The start under which a loop's service connections are counted, of a node's `start`. That of the first loop is the
/// node's own, so with one loop there is no other; each loop has another one, so that proof about the connection of one
/// loop is never taken for proof about that of another.
#[must_use]
pub fn connections_of(start: u64, index: u32) -> u64 {
    match index {
        0 => start,
        _ => draw([start, index.into()]),
    }
}

/// What the first loop has decided for all loops of its node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// When, on the node's monotonic clock. It holds for an election timeout.
    pub(crate) made_at: Micros,
    /// A quorum has accepted this start of the node.
    pub(crate) in_touch: bool,
    /// The node is about to stop.
    pub(crate) stopping: bool,
    pub(crate) disk_full: bool,
    /// Entries proposed now can be written and committed.
    pub(crate) has_room: bool,
    /// The newest wanted members.
    pub(crate) members: Members,
    /// The nodes that this one exchanges frames with.
    pub(crate) peers: BTreeSet<u64>,
    /// What their frames say of them.
    pub(crate) nodes: BTreeMap<u64, Peer>,
    pub(crate) closed: ClosedConnections,
}

impl Decision {
    /// Whether the node takes part by it, and it is not too old.
    #[must_use]
    pub fn takes_part(&self, now: Micros, election_us: Micros) -> bool {
        let age_us = now.saturating_sub(self.made_at);
        if nowserving_bite::is(nowserving_bite::Break::S5Decision) {
            return self.in_touch;
        }
        self.in_touch && age_us < election_us
    }
}

/// What a peer's frame has for the shards of one loop.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoopFrame {
    pub(crate) from: u64,
    pub(crate) messages: Vec<(u32, nowserving_replica::Message)>,
    pub(crate) state_hashes: Vec<StateHash>,
    pub(crate) snapshot_request: Option<SnapshotRequest>,
    pub(crate) snapshot_chunk: Option<Box<SnapshotChunk>>,
}

impl LoopFrame {
    /// Takes out what is for such shards.
    pub(crate) fn split_off(&mut self, such: impl Fn(u32) -> bool) -> LoopFrame {
        let is_request = |it: &mut SnapshotRequest| such(it.shard);
        let is_chunk = |it: &mut Box<SnapshotChunk>| such(it.shard);
        LoopFrame {
            from: self.from,
            messages: self
                .messages
                .extract_if(.., |(shard, _)| such(*shard))
                .collect(),
            state_hashes: self
                .state_hashes
                .extract_if(.., |it| such(it.shard))
                .collect(),
            snapshot_request: self.snapshot_request.take_if(is_request),
            snapshot_chunk: self.snapshot_chunk.take_if(is_chunk),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.state_hashes.is_empty()
            && self.snapshot_request.is_none()
            && self.snapshot_chunk.is_none()
    }
}

/// From the first loop to another one, in a turn.
#[derive(Debug, Default, PartialEq)]
pub struct ToLoop {
    /// The newest.
    pub(crate) decision: Arc<Decision>,
    pub(crate) frames: Vec<LoopFrame>,
    /// Frames that the transport has refused: to which peer, and with messages of which shards.
    pub(crate) refused: Vec<(u64, Vec<u32>)>,
    /// Questions about all shards, by their numbers.
    pub(crate) questions: Vec<(u64, Question)>,
}

impl ToLoop {
    /// When the decision in it was made, on the node's monotonic clock.
    #[must_use]
    pub fn decided_at(&self) -> Micros {
        self.decision.made_at
    }
}

/// From a loop to the first one, in a turn.
#[derive(Debug, Default, PartialEq)]
pub struct FromLoop {
    /// Which loop it is.
    pub(crate) index: u32,
    /// The number of its service connection.
    pub(crate) connection: u64,
    /// By peer.
    pub(crate) messages: BTreeMap<u64, Vec<OutMessage>>,
    pub(crate) state_hashes: Vec<StateHash>,
    pub(crate) snapshot_requests: Vec<(u64, SnapshotRequest)>,
    pub(crate) snapshot_chunks: Vec<(u64, SnapshotChunk)>,
    /// Answers to questions, by their numbers.
    pub(crate) answers: Vec<(u64, Result<Outcome, ApiError>)>,
    /// Now and then, and when something in it that others wait for has changed.
    pub(crate) report: Option<Box<LoopReport>>,
}

impl FromLoop {
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.state_hashes.is_empty()
            && self.snapshot_requests.is_empty()
            && self.snapshot_chunks.is_empty()
            && self.answers.is_empty()
    }
}

/// What a loop tells the first one about itself and its shards.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LoopReport {
    pub groups: BTreeMap<u32, GroupReport>,
    /// The oldest and the newest members in the states of its shards.
    pub members: Option<(Members, Members)>,
    pub client_reachable: bool,
    pub refuses_snapshots: u32,
    pub lagging: Vec<LaggingMember>,
    /// It stops, and has handed its shards over.
    pub is_drained: bool,
    /// Requests are under way to other leaders.
    pub forwards: bool,
    /// What NATS takes in one message on its connection; 0: not known yet.
    pub max_payload: usize,
    pub gauges: Gauges,
}

/// A group, as the loop that has its shard sees it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GroupReport {
    pub members: ConfState,
    pub leader: KnownLeader,
    pub status: ShardStatus,
    /// The nodes that have caught up, as far as that is known.
    pub caught_up: BTreeSet<u64>,
    /// The nodes that are known to lag.
    pub lag: BTreeSet<u64>,
}

/// An engine's part among those of its node.
#[derive(Debug)]
pub(crate) enum Role {
    First(First),
    Other(Other),
}

/// Of the first loop.
#[derive(Debug, Default)]
pub(crate) struct First {
    /// By their indexes, without the first.
    pub others: BTreeMap<u32, OtherLoop>,
    /// The others are told at the end of this turn.
    pub news: bool,
    pub questions: BTreeMap<u64, Asked>,
    /// Questions so far.
    pub asked: u64,
}

/// Another loop, as the first one knows it.
#[derive(Debug, Default)]
pub(crate) struct OtherLoop {
    /// When something last came from it.
    pub heard_at: Micros,
    /// The number of its service connection.
    pub connection: u64,
    /// `None`: none has come yet.
    pub report: Option<LoopReport>,
    /// Of this turn.
    pub frames: Vec<LoopFrame>,
    pub refused: Vec<(u64, Vec<u32>)>,
    pub questions: Vec<(u64, Question)>,
}

/// A question to which the loops give their parts of the answer.
#[derive(Debug)]
pub(crate) struct Asked {
    pub question: Question,
    pub reply: ReplyTo,
    pub since: Micros,
    pub parts: Vec<Outcome>,
}

/// Of another loop.
#[derive(Debug, Default)]
pub(crate) struct Other {
    /// `None`: none has come yet.
    pub decision: Option<Arc<Decision>>,
    /// The first loop is told of the groups at the end of this turn.
    pub report_due: bool,
    /// What goes to the first loop at the end of this turn.
    pub outgoing: FromLoop,
}

impl Role {
    pub fn of(place: LoopPlace) -> Role {
        match place.is_first() {
            true => Role::First(First {
                others: (1..place.count)
                    .map(|it| (it, OtherLoop::default()))
                    .collect(),
                ..First::default()
            }),
            false => Role::Other(Other {
                report_due: true,
                ..Other::default()
            }),
        }
    }

    /// The other loops, as the first one knows them.
    pub fn others(&self) -> impl Iterator<Item = (&u32, &OtherLoop)> {
        let first = match self {
            Role::First(first) => Some(&first.others),
            Role::Other(_) => None,
        };
        first.into_iter().flatten()
    }

    pub fn reports(&self) -> impl Iterator<Item = &LoopReport> {
        self.others().filter_map(|(_, it)| it.report.as_ref())
    }

    /// The leader of a shard that another loop has, as that has reported.
    pub fn known_leader(&self, shard: u32) -> Option<KnownLeader> {
        let mut groups = self.reports().filter_map(|it| it.groups.get(&shard));
        groups.next().map(|it| it.leader)
    }

    pub fn first_mut(&mut self) -> Option<&mut First> {
        match self {
            Role::First(first) => Some(first),
            Role::Other(_) => None,
        }
    }

    /// Something has changed that the others act on.
    pub fn news(&mut self) {
        match self {
            Role::First(first) => first.news = true,
            Role::Other(other) => other.report_due = true,
        }
    }
}

/// The oldest and the newest members in the states of shards.
pub(crate) fn members_of(shards: &Shards) -> Option<(Members, Members)> {
    let known = || shards.values().map(|it| it.state.members().wanted());
    let oldest = known().min_by_key(|it| it.version)?;
    let newest = known().max_by_key(|it| it.version)?;
    Some((oldest.clone(), newest.clone()))
}

/// The status of a shard, as operators see it.
pub(crate) fn shard_status(shard: &Shard) -> ShardStatus {
    ShardStatus {
        shard: shard.id,
        leader: shard.replica.leader(),
        term: shard.replica.term(),
        applied: shard.replica.applied(),
        committed: shard.replica.committed(),
        voters: shard.replica.voters(),
        learners: shard.replica.members().learners,
        differs: shard.agreement.differs(),
    }
}
