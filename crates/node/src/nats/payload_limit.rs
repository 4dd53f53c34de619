//! What the server of a connection takes in one message (`max_payload`).
//!
//! async-nats learns it when it connects, and at no other time: a server that is reloaded with another limit does not
//! say so. A lower limit shows when the server closes a connection on which too much is published. A higher one is found
//! out by connecting again: after a publish was refused, while the limit is below the minimum, and when the two
//! connections of a node differ.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::client::{PublishError, PublishErrorKind};
use async_nats::connection::State;
use nowserving_protocol::codec::MAX_PAYLOAD_MIN;
use tokio::sync::mpsc;

use crate::throttle::Throttle;

/// The interval in which the limits are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A connection is made again so often at most, to find out whether its limit was raised.
const TOO_SMALL_AGAIN: Duration = Duration::from_secs(2);
/// The same after a publish was refused.
const REFUSED_AGAIN: Duration = Duration::from_secs(30);

/// The limit of the server to which one client is connected.
#[derive(Debug, Clone)]
pub struct PayloadLimit {
    client: Client,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// A publish was refused since the connection was last made again for that.
    refused: AtomicBool,
    warnings: Mutex<Throttle>,
}

impl PayloadLimit {
    #[must_use]
    pub fn of(client: &Client) -> Self {
        PayloadLimit {
            client: client.clone(),
            shared: Arc::default(),
        }
    }

    /// In bytes, headers included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.client.max_payload()
    }

    /// The client library has refused to publish `what`, which is lost.
    pub fn refused(&self, what: &'static str, error: &PublishError) {
        if error.kind() != PublishErrorKind::MaxPayloadExceeded {
            // The node ends, or a requester's reply subject is none.
            return tracing::debug!(what, %error, "not published");
        }
        metrics::counter!("nowserving_publishes_refused_total", "what" => what).increment(1);
        self.shared.refused.store(true, Ordering::Relaxed);
        let warnings = &self.shared.warnings;
        let mut warnings = warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = warnings.count() {
            tracing::warn!(what, %error, count, max_payload = self.bytes(), "not published, and lost");
        }
    }

    fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    fn is_too_small(&self) -> bool {
        self.bytes() < MAX_PAYLOAD_MIN
    }

    async fn connect_again(&self) {
        // It fails only while the node ends.
        let _ = self.client.force_reconnect().await;
    }

    /// Names the server, without its address's password.
    fn server(&self) -> String {
        let info = self.client.server_info();
        format!("{} ({}:{})", info.server_name, info.host, info.port)
    }
}

/// The counters of refused publishes begin at 0.
pub fn begin_counters() {
    for what in ["frame", "event", "answer", "by_server"] {
        metrics::counter!("nowserving_publishes_refused_total", "what" => what).increment(0);
    }
}

/// The limits of a node's two connections.
#[derive(Debug, Clone)]
pub struct Limits {
    pub service: PayloadLimit,
    pub peers: PayloadLimit,
}

impl Limits {
    /// The limit in force: what both take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.service.bytes().min(self.peers.bytes())
    }

    fn each(&self) -> [&PayloadLimit; 2] {
        [&self.peers, &self.service]
    }

    /// Follows the limits until the node ends. One that is too small from the start is sent to `fatal`.
    ///
    /// # Errors
    /// None.
    pub async fn watch(self, fatal: mpsc::Sender<anyhow::Error>) -> anyhow::Result<()> {
        let mut interval = tokio::time::interval(LOOK_EVERY);
        let mut was_enough = false;
        let mut again = Again::default();
        loop {
            interval.tick().await;
            if !self.each().iter().all(|it| it.is_connected()) {
                continue;
            }
            match self.each().into_iter().find(|it| it.is_too_small()) {
                None => was_enough = true,
                Some(limit) if !was_enough => {
                    // Full: the node is about to end already.
                    let _ = fatal.try_send(too_small(limit));
                    return Ok(());
                }
                Some(_) => {}
            }
            let refused = |it: &PayloadLimit| it.shared.refused.load(Ordering::Relaxed);
            let seen = Seen {
                peers: self.peers.bytes(),
                service: self.service.bytes(),
                refused: self.each().into_iter().any(refused),
            };
            let Some(side) = again.next(seen, Instant::now()) else {
                continue;
            };
            for it in self.each() {
                it.shared.refused.store(false, Ordering::Relaxed);
            }
            match side {
                Side::Peers => self.peers.connect_again().await,
                Side::Service => self.service.connect_again().await,
            }
        }
    }
}

fn too_small(limit: &PayloadLimit) -> anyhow::Error {
    anyhow::anyhow!(
        "the NATS server {} takes {} bytes in one message, and a node needs {MAX_PAYLOAD_MIN}: raise its max_payload",
        limit.server(),
        limit.bytes()
    )
}

/// The limits of both connections, and whether a publish was refused on one of them.
#[derive(Debug, Clone, Copy)]
struct Seen {
    peers: usize,
    service: usize,
    refused: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Peers,
    Service,
}

/// Decides which connection is made again, to find out whether its limit has changed.
#[derive(Debug, Default)]
struct Again {
    at: Option<Instant>,
    /// How often it was tried to make these limits equal.
    differing: (usize, usize, u8),
}

impl Again {
    fn next(&mut self, seen: Seen, now: Instant) -> Option<Side> {
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
            (true, _) => TOO_SMALL_AGAIN,
            (false, true) => REFUSED_AGAIN,
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
        let (begin, mut again) = (Instant::now(), Again::default());
        seen.map(|(second, seen)| again.next(seen, begin + Duration::from_secs(second)))
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
