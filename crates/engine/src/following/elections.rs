//! When a node stands for election: at once if the leader's service connection is closed, else after the election
//! timeout; and after those that come before it in the shard's order, so that votes are not split.

use std::collections::BTreeMap;

use nowserving_replica::Connection;

use crate::draw::draw;
use crate::envelope::ClosedConnection;

/// Each node of the order waits so many ticks longer than the one before it.
const TURN_TICKS: u64 = 3;

/// The ticks that a node waits beyond the election timeout. The order of the voters is another one for each
/// shard and term; the leader that is gone has no place in it.
pub(crate) fn delay_ticks(
    me: u64,
    voters: &[u64],
    gone: Option<u64>,
    shard: u32,
    term: u64,
) -> u64 {
    let place = |id: u64| (draw([id, shard.into(), term]), id);
    let before = |id: &&u64| Some(**id) != gone && place(**id) < place(me);
    voters.iter().filter(before).count() as u64 * TURN_TICKS
}

/// The closed service connections of peers that this node knows of, the newest of each loop, each of the peer's present
/// start: no vote hold names another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ClosedConnections(BTreeMap<(u64, u64), u64>);

impl ClosedConnections {
    /// Returns whether it was not known yet.
    pub fn note(&mut self, peer: u64, connection: Connection) -> bool {
        let Connection { start, number } = connection;
        let known = self.0.get(&(peer, start)).is_some_and(|it| *it >= number);
        if !known {
            self.0.insert((peer, start), number);
        }
        !known
    }

    /// The peer has started again.
    pub fn forget(&mut self, peer: u64) {
        self.0.retain(|(id, _), _| *id != peer);
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, Connection)> + use<'_> {
        let closed = self.0.iter();
        closed.map(|((peer, start), number)| {
            let (start, number) = (*start, *number);
            (*peer, Connection { start, number })
        })
    }

    pub fn to_frame(&self) -> Vec<ClosedConnection> {
        let closed = self.0.iter();
        let closed = closed.map(|((node, start), number)| ClosedConnection {
            node: *node,
            start: *start,
            number: *number,
        });
        closed.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_but_the_leader_that_is_gone_has_a_turn_of_its_own() {
        for shard in 0..16 {
            let delay = |me, gone| delay_ticks(me, &[1, 2, 3], gone, shard, 7);
            let mut all = [1, 2, 3].map(|me| delay(me, None));
            all.sort_unstable();
            assert_eq!(all, [0, TURN_TICKS, 2 * TURN_TICKS]);
            let mut two = [1, 3].map(|me| delay(me, Some(2)));
            two.sort_unstable();
            assert_eq!(two, [0, TURN_TICKS]);
        }
    }

    #[test]
    fn no_node_is_first_in_every_shard_or_term() {
        for id in [1, 2, 3] {
            let first = |shard, term| delay_ticks(id, &[1, 2, 3], None, shard, term) == 0;
            let shards = (0..300).filter(|shard| first(*shard, 1)).count();
            let terms = (0..300).filter(|term| first(1, *term)).count();
            assert!((60..140).contains(&shards) && (60..140).contains(&terms));
        }
    }

    #[test]
    fn what_is_known_of_a_connection_holds_for_the_earlier_ones() {
        let connection = |start, number| Connection { start, number };
        let mut closed = ClosedConnections::default();
        assert!(closed.note(2, connection(7, 4)));
        assert!(!closed.note(2, connection(7, 4)) && !closed.note(2, connection(7, 3)));
        // That of another loop.
        assert!(closed.note(2, connection(7, 5)) && closed.note(2, connection(8, 1)));
        let told = closed.to_frame();
        let told = told.iter().map(|it| (it.node, it.start, it.number));
        assert_eq!(told.collect::<Vec<_>>(), [(2, 7, 5), (2, 8, 1)]);
        closed.forget(2);
        assert_eq!(closed.to_frame(), []);
    }
}
