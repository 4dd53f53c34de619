//! What the server of a connection takes in one message (`max_payload`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::Client;
use async_nats::client::{PublishError, PublishErrorKind};
use async_nats::connection::State;
use nowserving_front::payload_limit::{Again, Seen, Side};
use nowserving_protocol::codec::MAX_PAYLOAD_MIN;
use tokio::sync::mpsc;

use crate::clock::monotonic_us;
use crate::throttle::Throttle;

/// The interval in which the limits are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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

/// The limits of a loop's service connection and of the node's connection for frames.
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

    /// Follows the limits until the node ends. One that is too small from the start is sent to `fatal`. `is_first`: of the
    /// node's loops. The others leave the connection for frames to it.
    ///
    /// # Errors
    /// None.
    pub async fn watch(
        self,
        is_first: bool,
        fatal: mpsc::Sender<anyhow::Error>,
    ) -> anyhow::Result<()> {
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
            let Some(side) = again.next(seen, monotonic_us()) else {
                continue;
            };
            self.service.shared.refused.store(false, Ordering::Relaxed);
            let of_peers = &self.peers.shared.refused;
            match side {
                Side::Peers if is_first => {
                    of_peers.store(false, Ordering::Relaxed);
                    self.peers.connect_again().await;
                }
                // So that the first loop makes it again.
                Side::Peers => of_peers.store(seen.refused, Ordering::Relaxed),
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
