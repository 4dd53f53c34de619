//! When a node makes a connection to NATS again, to find out what its server takes in one message (`max_payload`).
//!
//! A client learns it when it connects, and at no other time: a server that is reloaded with another limit does not say
//! so. A lower limit shows when the server closes a connection on which too much is published. A higher one is found out
//! by connecting again: after a publish was refused, while the limit is below the minimum, and when the two connections
//! of a node differ.

use nowserving_protocol::codec::MAX_PAYLOAD_MIN;
use nowserving_shard::clock::Micros;

/// A connection is made again so often at most, to find out whether its limit was raised.
const TOO_SMALL_AGAIN_US: Micros = 2_000_000;
/// The same after a publish was refused.
const REFUSED_AGAIN_US: Micros = 30_000_000;

/// The limits of both connections, and whether a publish was refused on one of them.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    pub peers: usize,
    pub service: usize,
    pub refused: bool,
}

/// One of the two connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Peers,
    Service,
}

/// Decides which connection is made again, to find out whether its limit has changed.
#[derive(Debug, Default)]
pub struct Again {
    at: Option<Micros>,
    /// How often it was tried to make these limits equal.
    differing: (usize, usize, u8),
}

impl Again {
    /// The connection that is made again now.
    pub fn next(&mut self, seen: Seen, now: Micros) -> Option<Side> {
        let Seen {
            peers,
            service,
            refused,
        } = seen;
        if peers != service && peers >= MAX_PAYLOAD_MIN {
            let (a, b, tried) = self.differing;
            let tried = if (a, b) == (peers, service) { tried } else { 0 };
            self.differing = (peers, service, tried.saturating_add(1));
            // The one that costs nothing first. After that they are two servers with two limits.
            match tried {
                0 => return Some(Side::Peers),
                1 => return Some(Side::Service),
                _ => {}
            }
        }
        let pause = match (peers.min(service) < MAX_PAYLOAD_MIN, refused) {
            (true, _) => TOO_SMALL_AGAIN_US,
            (false, true) => REFUSED_AGAIN_US,
            (false, false) => return None,
        };
        if self.at.is_some_and(|at| now < at + pause) {
            return None;
        }
        self.at = Some(now);
        // Frames are repeated, and the answers on the service connection are not: that one follows if the limits differ
        // then.
        Some(
            match peers < MAX_PAYLOAD_MIN || service >= MAX_PAYLOAD_MIN {
                true => Side::Peers,
                false => Side::Service,
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = 1 << 20;
    const SMALL: usize = MAX_PAYLOAD_MIN - 1;

    /// What is made again at each of these seconds.
    fn again<const N: usize>(seen: [(u64, Seen); N]) -> [Option<Side>; N] {
        let mut again = Again::default();
        seen.map(|(second, seen)| again.next(seen, second * 1_000_000))
    }

    fn limits(peers: usize, service: usize) -> Seen {
        Seen {
            peers,
            service,
            refused: false,
        }
    }

    #[test]
    fn connections_with_one_limit_that_is_enough_stay() {
        let seen = limits(MAX_PAYLOAD_MIN, MAX_PAYLOAD_MIN);
        assert_eq!(again([(0, seen), (99, seen)]), [None, None]);
    }

    #[test]
    fn each_is_made_again_once_if_the_limits_differ() {
        let (seen, other) = (limits(LARGE, 2 * LARGE), limits(LARGE, 3 * LARGE));
        let found = again([(0, seen), (1, seen), (2, seen), (99, seen), (100, other)]);
        let (peers, service) = (Some(Side::Peers), Some(Side::Service));
        assert_eq!(found, [peers, service, None, None, peers]);
    }

    #[test]
    fn one_that_is_too_small_is_made_again_every_two_seconds() {
        let peers = Some(Side::Peers);
        for seen in [limits(SMALL, SMALL), limits(SMALL, LARGE)] {
            let found = again([(0, seen), (1, seen), (2, seen), (3, seen), (4, seen)]);
            assert_eq!(found, [peers, None, peers, None, peers]);
        }
        let (seen, service) = (limits(LARGE, SMALL), Some(Side::Service));
        let found = again([(0, seen), (1, seen), (2, seen), (3, seen), (4, seen)]);
        assert_eq!(found, [peers, service, service, None, service]);
    }

    #[test]
    fn after_a_refused_publish_one_is_made_again_every_thirty_seconds() {
        let seen = Seen {
            refused: true,
            ..limits(LARGE, LARGE)
        };
        let found = again([(0, seen), (29, seen), (30, seen), (31, seen)]);
        assert_eq!(found, [Some(Side::Peers), None, Some(Side::Peers), None]);
    }
}
