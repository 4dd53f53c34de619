//! A node's connections: named, with jittered reconnects and early detection of half-open connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, Server, ServerError};
use nowserving_protocol::servers::Servers;
use nowserving_security::{Security, explained};
use tokio::sync::Notify;

use super::rights::Rights;
use super::stats::Stats;

/// The number of a client's connection, which tells it from earlier ones.
///
/// It grows before each attempt to connect, so before anything can be read from the new connection.
#[derive(Debug, Clone, Default)]
pub struct ConnectionNumber(Arc<Numbered>);

#[derive(Debug, Default)]
struct Numbered {
    now: AtomicU64,
    grew: Notify,
}

impl ConnectionNumber {
    /// The number of the connection of now, or of one that is being made.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.0.now.load(Ordering::Acquire)
    }

    /// What belonged to the connection so far is over.
    pub fn end(&self) {
        self.0.now.fetch_add(1, Ordering::AcqRel);
        self.0.grew.notify_waiters();
    }

    /// Waits until what belonged to the connection of this number is over.
    pub async fn ended(&self, number: u64) {
        loop {
            // Before the number is read, so that no growth is missed.
            let grown = self.0.grew.notified();
            if self.now() != number {
                return;
            }
            grown.await;
        }
    }
}

/// Connects to one of `servers`, or keeps trying in the background. Messages
/// dropped by a slow consumer are counted in `stats`; events about rights go to `rights`.
///
/// # Errors
/// A URL that cannot be read, or a file of `security` that cannot be used.
pub async fn connect(
    servers: &Servers,
    security: &Security,
    name: &str,
    kind: &'static str,
    stats: Arc<Stats>,
    rights: Rights,
) -> anyhow::Result<(Client, ConnectionNumber)> {
    let number = ConnectionNumber::default();
    let attempt = number.clone();
    let counted = Counted::new(kind);
    let options = servers
        .log_in(
            security.options()?,
            ConnectOptions::user_and_password,
            ConnectOptions::token,
        )
        .name(name)
        .custom_inbox_prefix(rights.inbox())
        .retry_on_initial_connect()
        .ping_interval(Duration::from_secs(2))
        .connection_timeout(Duration::from_secs(2))
        .subscription_capacity(65_536)
        // Frames and answers are stale after an outage; Raft and clients repeat them.
        .client_capacity(4_096)
        .reconnect_delay_callback(move |attempts| {
            attempt.end();
            reconnect_delay(attempts)
        })
        // The event of a failed attempt does not say what has failed; the list of servers does.
        .reconnect_to_server_callback(move |servers, _| {
            tell_why(kind, &servers);
            async { None }
        })
        .event_callback(move |event| {
            if matches!(event, Event::SlowConsumer(_)) {
                stats.turn_away();
            }
            counted.note(&event);
            if matches!(&event, Event::ServerError(error) if is_too_large(error)) {
                metrics::counter!("nowserving_publishes_refused_total", "what" => "by_server")
                    .increment(1);
            }
            let unreported = (!rights.note(&event)).then_some(event);
            async move {
                if let Some(event) = unreported {
                    tell(kind, event);
                }
            }
        });
    let connected = options.connect(servers.urls()).await;
    let client = connected.map_err(|error| match error.kind() {
        // Without the text: a comma in a password would put half of it there.
        ConnectErrorKind::ServerParse => {
            anyhow::anyhow!("nats: not a list of server URLs: {error}")
        }
        _ => error.into(),
    })?;
    Ok((client, number))
}

/// Whether the server has refused a message as larger than its `max_payload`. It closes the connection after that.
fn is_too_large(error: &ServerError) -> bool {
    matches!(error, ServerError::Other(text) if text.eq_ignore_ascii_case("maximum payload violation"))
}

/// One client in the metrics.
struct Counted {
    kind: &'static str,
    is_up: AtomicBool,
    was_up: AtomicBool,
}

impl Counted {
    /// Not connected yet. The metrics begin at 0, so that alarms have data.
    fn new(kind: &'static str) -> Self {
        let counted = Counted {
            kind,
            is_up: AtomicBool::new(false),
            was_up: AtomicBool::new(false),
        };
        counted.wanted(1.0);
        counted.connections(0.0);
        counted.reconnects(0);
        counted.slow_consumer(0);
        counted
    }

    fn note(&self, event: &Event) {
        match event {
            Event::Connected if !self.is_up.swap(true, Ordering::Relaxed) => {
                self.connections(1.0);
                let again = self.was_up.swap(true, Ordering::Relaxed);
                self.reconnects(again.into());
            }
            Event::Disconnected | Event::Closed if self.is_up.swap(false, Ordering::Relaxed) => {
                self.connections(-1.0);
            }
            Event::SlowConsumer(_) => self.slow_consumer(1),
            _ => {}
        }
    }

    fn wanted(&self, more: f64) {
        metrics::gauge!("nowserving_nats_connections_wanted", "kind" => self.kind).increment(more);
    }

    fn connections(&self, more: f64) {
        metrics::gauge!("nowserving_nats_connected", "kind" => self.kind).increment(more);
    }

    fn reconnects(&self, more: u64) {
        metrics::counter!("nowserving_nats_reconnects_total", "kind" => self.kind).increment(more);
    }

    fn slow_consumer(&self, more: u64) {
        metrics::counter!("nowserving_nats_slow_consumer_total", "kind" => self.kind)
            .increment(more);
    }
}

/// The client is gone: it was dropped, or could not be made.
impl Drop for Counted {
    fn drop(&mut self) {
        self.wanted(-1.0);
        if *self.is_up.get_mut() {
            self.connections(-1.0);
        }
    }
}

fn tell(kind: &'static str, event: Event) {
    match event {
        Event::Connected => tracing::info!(kind, "connected to NATS"),
        Event::Disconnected => tracing::warn!(kind, "lost the connection to NATS"),
        Event::SlowConsumer(id) => {
            tracing::warn!(kind, id, "messages were dropped: slow consumer");
        }
        // A failed attempt, by its kind alone: `tell_why` knows more.
        Event::ClientError(error) => tracing::debug!(kind, %error, "NATS"),
        other => tracing::info!(kind, %other, "NATS"),
    }
}

/// Before an attempt to connect: why those before have failed.
fn tell_why(kind: &'static str, servers: &[Server]) {
    for server in servers.iter().filter(|it| it.failed_attempts > 0) {
        let error = explained(server.last_error.as_deref().unwrap_or("unknown"));
        // Not the whole address: it may have a password.
        let address = format!("{}:{}", server.addr.host(), server.addr.port());
        tracing::warn!(
            kind,
            server = address,
            error,
            "NATS is not reachable; trying again"
        );
    }
}

/// async-nats's own delay has no jitter: after a server's restart all clients would come at once.
fn reconnect_delay(attempts: usize) -> Duration {
    let ceiling_ms = 20_u64 << attempts.min(6);
    let random = crate::data_dir::random_u64().unwrap_or(0);
    Duration::from_millis(ceiling_ms / 2 + random % ceiling_ms)
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    /// With a witness for each of two servers, the loss of one shows.
    #[test]
    fn a_connection_that_is_lost_is_still_wanted_until_its_client_is_gone() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let expect = |connected: u8, wanted: u8| {
            let text = recorder.handle().render();
            for (name, count) in [("connected", connected), ("connections_wanted", wanted)] {
                let sample = format!("nowserving_nats_{name}{{kind=\"witness\"}} {count}\n");
                assert!(text.contains(&sample), "{sample}{text}");
            }
        };
        metrics::with_local_recorder(&recorder, || {
            let (kept, lost) = (Counted::new("witness"), Counted::new("witness"));
            expect(0, 2);
            kept.note(&Event::Connected);
            lost.note(&Event::Connected);
            expect(2, 2);
            lost.note(&Event::Disconnected);
            expect(1, 2);
            drop(lost);
            expect(1, 1);
            drop(kept);
            expect(0, 0);
        });
    }
}
