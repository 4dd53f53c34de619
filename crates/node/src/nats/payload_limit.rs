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
        self.shared.refused.store(false, Ordering::Relaxed);
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
            if let Some(limit) = again.next(&self) {
                limit.connect_again().await;
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

/// Decides which connection is made again, to find out whether its limit has changed.
#[derive(Debug, Default)]
struct Again {
    at: Option<Instant>,
    /// How often it was tried to make these limits equal.
    differing: (usize, usize, u8),
}

impl Again {
    fn next<'a>(&mut self, limits: &'a Limits) -> Option<&'a PayloadLimit> {
        let (peers, service) = (&limits.peers, &limits.service);
        if peers.bytes() != service.bytes() && !peers.is_too_small() {
            let (a, b, tried) = self.differing;
            let same = (a, b) == (peers.bytes(), service.bytes());
            let tried = if same { tried } else { 0 };
            self.differing = (peers.bytes(), service.bytes(), tried.saturating_add(1));
            // The one that costs nothing first. After that they are two servers with two limits.
            match tried {
                0 => return Some(peers),
                1 => return Some(service),
                _ => {}
            }
        }
        let too_small = peers.is_too_small() || service.is_too_small();
        let refused = limits
            .each()
            .iter()
            .any(|it| it.shared.refused.load(Ordering::Relaxed));
        let pause = match (too_small, refused) {
            (true, _) => TOO_SMALL_AGAIN,
            (false, true) => REFUSED_AGAIN,
            (false, false) => return None,
        };
        if self.at.is_some_and(|at| at.elapsed() < pause) {
            return None;
        }
        self.at = Some(Instant::now());
        limits
            .each()
            .iter()
            .for_each(|it| it.shared.refused.store(false, Ordering::Relaxed));
        // Frames are repeated, and the answers on the service connection are not: that one follows if the limits differ
        // then.
        Some(match service.is_too_small() && !peers.is_too_small() {
            true => service,
            false => peers,
        })
    }
}
