//! How a request reached a node.

use nowserving_shard::clock::Micros;

/// How a request reached this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    pub via: Via,
    /// NATS routed it to this node after this time, on this node's monotonic clock: a probe that this
    /// node sent then came back before it.
    pub routed_after: Micros,
    /// A forwarded request's time of sending, on the leader's clock.
    pub forwarded_at: Option<LeaderTime>,
    /// A forwarded request came on its shard's own subject, so the leader may have it too.
    pub shared: bool,
    /// Of a forwarded write that its client named: the term of the leader that the forwarding node knew.
    pub term: Option<u64>,
}

/// A time on the monotonic clock of a leader, as another node knows it: not later than the time that is
/// meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderTime {
    /// The start of the leader's process ([`crate::Boot::start`]): another start, another clock.
    pub start: u64,
    /// Its clock's reading.
    pub us: Micros,
}

/// The subscription by which a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// On a subject of all nodes: no other node has it.
    Plain,
    /// On its shard's own subject.
    Shard(ShardDelivery),
    /// Forwarded by a node, on a subject to which only a leader subscribes. Never forwarded again.
    Forwarded,
}

/// A node's subscription to a shard's subject by which a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardDelivery {
    /// The leader's.
    Leader,
    /// That of the group of all nodes that know no leader.
    Leaderless,
    /// One that is about to end. Its replacement, here or on another node, gets the message too.
    Draining,
}
