//! Proof that requests reach this node: a message to itself, the way requests come.

use nowserving_shard::clock::Micros;

/// Between two probes. The service clock stops about two of them after the last echo.
pub const PROBE_EVERY_US: Micros = 100_000;

/// When the next probe is due. On multiples of the interval, as all that a node does now and then.
#[must_use]
pub fn next_due(now: Micros) -> Micros {
    (now / PROBE_EVERY_US + 1) * PROBE_EVERY_US
}

/// The payload of a probe that is sent now.
#[must_use]
pub fn probe(now: Micros) -> [u8; 8] {
    now.to_le_bytes()
}

/// An echo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Echo {
    pub sent_at: Micros,
    /// Clients reach this node.
    pub is_proof: bool,
}

/// What is known from the echoes so far.
#[derive(Debug, Default)]
pub struct Echoes {
    /// The requests that were refused unread by the last one.
    turned_away: u64,
}

impl Echoes {
    /// Reads an echo; `turned_away`: the number of requests that this node has refused unread so far.
    pub fn read(&mut self, payload: &[u8], turned_away: u64, now: Micros) -> Option<Echo> {
        let sent_at = u64::from_le_bytes(payload.try_into().ok()?).min(now);
        // The probe came back, but requests before it were dropped or refused unread: clients cannot reach this node.
        let before = std::mem::replace(&mut self.turned_away, turned_away);
        Some(Echo {
            sent_at,
            is_proof: before == turned_away,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_proves_nothing_after_a_request_was_refused_unread() {
        let mut echoes = Echoes::default();
        let mut read = |payload: &[u8], turned_away| {
            let echo = echoes.read(payload, turned_away, 100);
            echo.map(|echo| (echo.sent_at, echo.is_proof))
        };
        assert_eq!(read(&probe(50), 0), Some((50, true)));
        assert_eq!(read(&probe(60), 1), Some((60, false)));
        assert_eq!(read(&probe(70), 1), Some((70, true)));
        assert_eq!(read(b"nonsense?", 1), None);
        // Nothing was sent later than now.
        assert_eq!(read(&probe(170), 1), Some((100, true)));
    }
}
