//! A peer's state, as its frames describe it.

use nowserving_protocol::keys::KeyPrint;
use nowserving_replica::Connection;
use nowserving_shard::clock::Micros;

use crate::delivery::LeaderTime;
use crate::envelope::LaggingMember;
use crate::frames::FrameBody;
use crate::loops::connections_of;

/// A peer that sent nothing for longer is taken for dead.
pub const ALIVE_MAX_US: Micros = 1_500_000;
/// A hand-over that can wait goes only to a peer that sent a frame within this time: most peers that have
/// just died are ruled out.
pub const PRESENT_MAX_US: Micros = 250_000;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peer {
    /// The random number of its start.
    pub start: Option<u64>,
    /// The numbers of the service connections of its loops, that of the first loop first. Empty: no frame has come.
    pub connections: Vec<u64>,
    /// When its last frame came; 0: none has.
    pub last_seen: Micros,
    /// Its own clock when it made that frame.
    pub clock_us: Micros,
    /// When the present run of frames without a longer gap began.
    pub up_since: Micros,
    /// A quorum has accepted it.
    pub in_touch: bool,
    /// Clients can reach it.
    pub client_reachable: bool,
    pub disk_full: bool,
    /// In how many shards it lacks entries and has just refused the snapshot with them.
    pub refuses_snapshots: u32,
    /// Members that lag in shards which it leads.
    pub lagging: Vec<LaggingMember>,
    pub metrics_addr: String,
    pub version: String,
    /// The newest format of log entries that it reads; 0: it has not said.
    pub entry_format: u32,
    /// What its transport takes in one message, in bytes; 0: it has not said.
    pub max_payload: u64,
    /// The cluster keys that it has loaded.
    pub keys: Vec<KeyPrint>,
    /// Of the members that it knows.
    pub members_version: u64,
}

impl Peer {
    /// Takes what a frame says of its sender.
    pub fn note(&mut self, body: &mut FrameBody, now: Micros) {
        if !self.alive(now) {
            self.up_since = now;
        }
        self.last_seen = now;
        self.clock_us = body.clock_us;
        self.connections = std::mem::take(&mut body.connections);
        self.client_reachable = body.client_reachable;
        self.disk_full = body.disk_full;
        self.refuses_snapshots = body.refuses_snapshots;
        self.lagging = std::mem::take(&mut body.lagging);
        self.metrics_addr = std::mem::take(&mut body.metrics_addr);
        self.version = std::mem::take(&mut body.version);
        self.entry_format = body.entry_format;
        self.max_payload = body.max_payload;
        self.keys = std::mem::take(&mut body.keys);
    }

    /// The reading of its clock at `now`, or an earlier one, as a frame takes time to arrive. `None` without
    /// a recent frame: clocks drift apart.
    #[must_use]
    pub fn clock(&self, now: Micros) -> Option<LeaderTime> {
        Some(LeaderTime {
            start: self.start.filter(|_| self.alive(now))?,
            us: self
                .clock_us
                .saturating_add(now.saturating_sub(self.last_seen)),
        })
    }

    /// The service connection of its loop that has this shard, according to its newest frame.
    #[must_use]
    pub fn connection(&self, shard: u32) -> Option<Connection> {
        let loops = u32::try_from(self.connections.len()).ok()?;
        let of_loop = shard.checked_rem(loops)?;
        let of_loop = match nowserving_bite::is(nowserving_bite::Break::S15Loop) {
            true => 0,
            false => of_loop,
        };
        let number = *self.connections.get(of_loop as usize)?;
        Some(Connection {
            start: connections_of(self.start?, of_loop),
            number,
        })
    }

    /// Whether a connection is one of its present start, and of the loop that has this shard.
    #[must_use]
    pub fn is_of(&self, shard: u32, connection: Connection) -> bool {
        let known = self.connection(shard);
        known.is_some_and(|it| it.start == connection.start)
    }

    /// Whether a connection is one of its present start, of any of its loops.
    #[must_use]
    pub fn has(&self, connection: Connection) -> bool {
        let loops = 0..self.connections.len() as u32;
        let mut starts = loops.filter_map(|of_loop| Some(connections_of(self.start?, of_loop)));
        starts.any(|start| start == connection.start)
    }

    #[must_use]
    pub fn alive(&self, now: Micros) -> bool {
        self.last_seen != 0 && now.saturating_sub(self.last_seen) < ALIVE_MAX_US
    }

    /// Whether it could lead.
    #[must_use]
    pub fn is_fit(&self, now: Micros) -> bool {
        self.alive(now) && self.client_reachable && !self.disk_full
    }

    #[must_use]
    pub fn present(&self, now: Micros) -> bool {
        self.last_seen != 0 && now.saturating_sub(self.last_seen) < PRESENT_MAX_US
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_at_its_end_does_not_overflow() {
        let peer = Peer {
            start: Some(7),
            last_seen: 1,
            clock_us: Micros::MAX,
            ..Peer::default()
        };
        let expected = LeaderTime {
            start: 7,
            us: Micros::MAX,
        };
        assert_eq!(peer.clock(2), Some(expected));
    }
}
