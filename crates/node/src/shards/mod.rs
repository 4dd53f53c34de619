//! The shard loop: one thread owns all of a node's Raft groups and lines, so that state has no
//! locks. It drains its bounded inboxes, folds what it found into as few log entries, disk writes
//! and frames as can be, and goes to sleep.

pub mod agreement;
pub mod apply;
pub mod balance;
mod gauges;
pub mod group;
mod listing;
pub mod outbox;
pub mod persist;
pub mod reads;
pub mod restore;
pub mod snapshots;
mod standing;
mod steps;
mod turn;
mod upkeep;

#[cfg(test)]
mod clocks_tests;
#[cfg(test)]
mod group_tests;
#[cfg(test)]
mod rules_tests;
#[cfg(test)]
mod standing_tests;
#[cfg(test)]
mod test_rig;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use nowserving_protocol::admin::Mapping;
use nowserving_protocol::frame::{StateHash, Verdict};
use raft::eraftpb::Message;

use self::balance::{Balance, Peer};
use self::group::Shard;
use self::outbox::{OutMessage, Outbox};
use self::persist::Persister;
use crate::clock::{monotonic_us, wall_ms};
use crate::config::Config;
use crate::contact::{Contact, Standing, Word};
use crate::health::Health;
use crate::request::{Answer, Inbound};
use crate::throttle::Throttle;
use nowserving_shard::clock::{ClientReachability, Micros};
use nowserving_shard::published::OutEvent;

/// Requests that wait for the loop at most.
pub const REQUESTS_MAX: usize = 8_192;
/// Frames that wait for the loop at most; Raft repeats what is dropped.
pub const FRAMES_MAX: usize = 4_096;

/// One frame that came under the number of a peer.
#[derive(Debug)]
pub struct PeerFrame {
    /// The sender; if the frame could not be opened, what its subject says.
    pub from: u64,
    /// What it says of sender and receiver, also if it is refused.
    pub word: Word,
    /// The rest of it, or why it is refused.
    pub taken: Result<Taken, String>,
}

/// What is in a frame that was checked and decoded.
#[derive(Debug)]
pub struct Taken {
    /// The sender's users can reach it.
    pub client_reachable: bool,
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
#[derive(Debug)]
pub struct PeerBatch {
    /// This node's users can reach it.
    pub client_reachable: bool,
    /// A quorum has accepted this start of this node.
    pub in_touch: bool,
    /// What this node says of the peer's starts.
    pub verdicts: Vec<Verdict>,
    /// Raft messages; none: only a sign of life.
    pub messages: Vec<OutMessage>,
    /// Hashes of this node's state.
    pub state_hashes: Vec<StateHash>,
}

/// Things that the rest of the node tells the loop.
#[derive(Debug)]
pub enum Control {
    /// A probe sent at this time came back on the service connection.
    Echo(Micros),
    /// What NATS does with plain requests.
    Mapping(Mapping),
    /// Hand leadership over, then end.
    Stop,
}

/// How this node listens on a shard's subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Listen {
    /// Not at all: another node leads.
    #[default]
    No,
    /// As its leader, in its lease.
    Leader {
        /// Between two terms another may have listened.
        term: u64,
    },
    /// As one of all nodes, in a group, to pass on what comes to whoever may answer: nobody leads
    /// as far as we know, or we do and are out of our lease (just elected and not ready, or out of
    /// touch with our peers).
    Orphan,
}

/// Everything that flows into the loop.
#[derive(Debug)]
pub struct Inputs {
    /// From clients.
    pub requests: Receiver<Inbound>,
    /// From peers.
    pub frames: Receiver<PeerFrame>,
    /// From the rest of the node.
    pub control: Receiver<Control>,
}

/// Everything that flows out of it.
#[derive(Debug)]
pub struct Outputs {
    /// Answers, a turn's at a time. Not bounded here: each belongs to a request that was counted
    /// against a bound when it was taken in.
    pub answers: tokio::sync::mpsc::UnboundedSender<Vec<Answer>>,
    /// Events, a turn's at a time; dropped when full (subscribers see the gap).
    pub events: tokio::sync::mpsc::Sender<Vec<OutEvent>>,
    /// To each peer; dropped when full (Raft repeats).
    pub peers: BTreeMap<u64, tokio::sync::mpsc::Sender<PeerBatch>>,
    /// How to listen on each shard's subject.
    pub listen: tokio::sync::watch::Sender<Vec<Listen>>,
    /// Whether to serve at all.
    pub standing: tokio::sync::watch::Sender<Standing>,
    /// For whoever watches over this process.
    pub health: Arc<Health>,
}

/// The loop's state.
pub struct Shards {
    config: Config,
    shards: Vec<Shard>,
    reachability: ClientReachability,
    contact: Contact,
    /// The machine's clock at the beginning of the turn, for display.
    wall_ms: u64,
    balance: Balance,
    peers: BTreeMap<u64, Peer>,
    last_sent: BTreeMap<u64, Micros>,
    inputs: Inputs,
    outputs: Outputs,
    persister: Persister,
    snapshots: snapshots::Writer,
    out: Outbox,
    refusals: Throttle,
    /// `None` until it is known.
    mapping: Option<Mapping>,
    writes_in_flight: usize,
    stopping_since: Option<Micros>,
    tick: Duration,
    next_tick: Micros,
    next_upkeep: Micros,
    next_slow_upkeep: Micros,
    next_line_gauges: Micros,
    /// When to say next why this node does not serve.
    next_complaint: Micros,
}

/// How many Raft ticks make a heartbeat interval.
pub const TICKS_PER_HEARTBEAT: u64 = 2;

impl Shards {
    /// Puts the loop together; [`Shards::run`] then runs it on the calling thread.
    #[must_use]
    pub fn new(
        config: Config,
        contact: Contact,
        shards: Vec<Shard>,
        inputs: Inputs,
        outputs: Outputs,
        persister: Persister,
        snapshots: snapshots::Writer,
    ) -> Self {
        let now = monotonic_us();
        let tick = Duration::from_millis(config.heartbeat_ms) / TICKS_PER_HEARTBEAT as u32;
        let settle = 2 * Duration::from_millis(config.election_ms);
        Shards {
            balance: Balance::new(config.id, config.nodes.clone(), settle),
            contact,
            shards,
            reachability: ClientReachability::new(now),
            wall_ms: wall_ms(),
            peers: BTreeMap::new(),
            last_sent: BTreeMap::new(),
            inputs,
            outputs,
            persister,
            snapshots,
            out: Outbox::default(),
            refusals: Throttle::default(),
            mapping: None,
            writes_in_flight: 0,
            stopping_since: None,
            next_tick: now + tick.as_micros() as u64,
            next_upkeep: now,
            next_slow_upkeep: now,
            next_line_gauges: now,
            next_complaint: now + standing::FIRST_COMPLAINT_US,
            tick,
            config,
        }
    }
}
