//! The shard loop: one thread owns all of a node's Raft groups and lines, so that state has no
//! locks. It drains its bounded inboxes, folds what it found into as few log entries, disk writes
//! and frames as can be, and goes to sleep.

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
use nowserving_engine::contact::Contact;
use nowserving_engine::{PeerBatch, PeerFrame, Standing, Subscription};
use nowserving_protocol::admin::Mapping;

use self::balance::{Balance, Peer};
use self::group::Shard;
use self::outbox::Outbox;
use self::persist::Persister;
use crate::clock::{monotonic_us, wall_ms};
use crate::config::Config;
use crate::health::Health;
use crate::request::{Answer, Inbound};
use crate::throttle::Throttle;
use nowserving_shard::clock::{ClientReachability, Micros};
use nowserving_shard::published::OutEvent;

/// Requests that wait for the loop at most.
pub const REQUESTS_MAX: usize = 8_192;
/// Frames that wait for the loop at most; Raft repeats what is dropped.
pub const FRAMES_MAX: usize = 4_096;

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
    pub listen: tokio::sync::watch::Sender<Vec<Subscription>>,
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
