//! The time in which this node must not vote, as a leader's lease may depend on its earlier answers.

use std::collections::BTreeMap;

use crate::{Connection, Micros};

/// A lease begins when the leader starts the round. A node that answered must refuse every other candidate,
/// itself included, for an election timeout after its answer. Raft has such a rule but counts ticks, and
/// after a stall ticks come too early. So this keeps the rule by the clock.
///
/// The rule ends early with the proof that the leader's service connection is closed: all requests that
/// the leader can still answer under that lease were sent before. See [`Connection`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct VoteHold {
    timeout_us: Micros,
    /// Until then this node may have answered a leader before it restarted.
    started_until: Micros,
    /// This node answered a leader, and the clock was read again since: the answer was not later than this.
    answered_at: Option<Micros>,
    /// This node answered a leader after this reading of the clock, perhaps long after (the process may
    /// have been stopped in between). The next different reading goes into `answered_at`.
    answered_after: Option<Micros>,
    /// The leader of the newest answer, with its connection when it asked.
    leader: Option<(u64, Connection)>,
    /// The newest connection of each peer that its frames have named.
    connections: BTreeMap<u64, Connection>,
    /// The newest connection of each peer that is known to be closed.
    closed: BTreeMap<u64, Connection>,
}

impl VoteHold {
    /// `fresh`: this node never took part, so it never answered.
    pub fn new(timeout_us: Micros, now: Micros, fresh: bool) -> VoteHold {
        let started_until = if fresh {
            now
        } else {
            now.saturating_add(timeout_us)
        };
        VoteHold {
            timeout_us,
            started_until,
            answered_at: None,
            answered_after: None,
            leader: None,
            connections: BTreeMap::new(),
            closed: BTreeMap::new(),
        }
    }

    /// Takes every reading of the clock.
    pub fn clock(&mut self, now: Micros) {
        if self.answered_after.is_some_and(|before| now > before) {
            self.answered_after = None;
            self.answered_at = Some(now);
        }
    }

    /// A frame of this peer, whose messages are stepped after this, was sent with this connection.
    pub fn peer_connection(&mut self, peer: u64, connection: Connection) {
        note(&mut self.connections, peer, connection);
    }

    /// This node answers a leader.
    pub fn answers(&mut self, now: Micros, leader: u64) {
        self.answered_after = Some(now);
        let connection = self.connections.get(&leader);
        self.leader = connection.map(|connection| (leader, *connection));
    }

    /// This connection of a peer is closed, and so are its earlier ones.
    pub fn connection_closed(&mut self, peer: u64, connection: Connection) {
        note(&mut self.closed, peer, connection);
    }

    pub fn just_started(&self, now: Micros) -> bool {
        now < self.started_until
    }

    pub fn leader_alive(&self, now: Micros) -> bool {
        let answered = self.answered_after.is_some()
            || self
                .answered_at
                .is_some_and(|at| now < at.saturating_add(self.timeout_us));
        answered && self.cut_off_leader().is_none()
    }

    /// The leader that this node answered last, if its connection of then is closed.
    pub fn cut_off_leader(&self) -> Option<u64> {
        let (leader, connection) = self.leader?;
        let closed = self.closed.get(&leader)?;
        (closed.start == connection.start && closed.number >= connection.number).then_some(leader)
    }
}

/// Within a start numbers only grow; a frame that came late changes nothing.
fn note(known: &mut BTreeMap<u64, Connection>, peer: u64, connection: Connection) {
    let newest = known.entry(peer).or_insert(connection);
    if newest.start != connection.start || newest.number < connection.number {
        *newest = connection;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_from_the_first_reading_after_the_answer() {
        let mut hold = VoteHold::new(1000, 0, true);
        assert!(!hold.just_started(0) && !hold.leader_alive(0));
        hold.clock(100);
        // The process sleeps here for long, and the heartbeat arrives meanwhile.
        hold.answers(100, 2);
        assert!(hold.leader_alive(100));
        hold.clock(5000);
        assert!(hold.leader_alive(5999));
        assert!(!hold.leader_alive(6000));
    }

    #[test]
    fn a_restarted_node_does_not_vote_for_one_timeout() {
        let hold = VoteHold::new(1000, 50, false);
        assert!(hold.just_started(1049));
        assert!(!hold.just_started(1050));
    }

    #[test]
    fn only_the_end_of_the_connection_that_asked_ends_it() {
        let connection = |start, number| Connection { start, number };
        let mut hold = VoteHold::new(1000, 0, true);
        hold.peer_connection(2, connection(7, 4));
        hold.answers(100, 2);
        hold.clock(101);
        for (peer, closed) in [(3, (7, 4)), (2, (7, 3)), (2, (8, 4))] {
            hold.connection_closed(peer, connection(closed.0, closed.1));
            assert!(hold.leader_alive(200), "{peer} {closed:?}");
        }
        hold.connection_closed(2, connection(7, 4));
        assert!(!hold.leader_alive(200));
        assert_eq!(hold.cut_off_leader(), Some(2));
        // It goes on asking without having noticed; then it has a new one.
        hold.answers(300, 2);
        assert!(!hold.leader_alive(300));
        hold.peer_connection(2, connection(7, 5));
        hold.answers(400, 2);
        assert!(hold.leader_alive(400));
        // A late frame of the earlier connection.
        hold.peer_connection(2, connection(7, 4));
        hold.answers(500, 2);
        assert!(hold.leader_alive(500));
    }

    #[test]
    fn a_leader_that_never_named_a_connection_is_not_cut_off() {
        let mut hold = VoteHold::new(1000, 0, true);
        hold.answers(100, 2);
        let (start, number) = (7, u64::MAX);
        hold.connection_closed(2, Connection { start, number });
        assert!(hold.leader_alive(200));
    }
}
