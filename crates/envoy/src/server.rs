//! The gRPC server: the rate limit service and the standard health service.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use async_nats::connection::State;
use nowserving_client::{Client, LineName};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tonic::server::NamedService;
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tracing::{info, warn};

use crate::pb::RateLimitServiceServer;
use crate::service::{Answering, Limiters, OnUnavailable, Service};

/// A request is some hundred bytes; the descriptors of a large one some thousand.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Requests of one connection at the same time.
const STREAMS_MAX: u32 = 1_024;
/// A connection whose other side is gone is found by this.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Requests that are being answered when the server stops have this long. Envoy's watches of its health would last forever.
const STOPS_WITHIN: Duration = Duration::from_secs(5);

/// An instance without a connection to NATS for so long says that it does not serve; a reconnect takes less.
const CUT_OFF_AFTER: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How a server answers.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The cluster's names of domains that have another name in Envoy's configuration. A domain that is not among them has
    /// the same name in both.
    pub domains: BTreeMap<String, LineName>,
    /// What happens to requests that the cluster does not decide.
    pub on_unavailable: OnUnavailable,
    /// How long the cluster may take to decide; default 100 ms. Less than the `timeout` of Envoy's configuration.
    pub patience: Duration,
    /// Responses to Envoy carry the header fields of [`nowserving_tower::rate_limit_fields`] for its client; default `false`.
    pub response_headers: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            domains: BTreeMap::new(),
            on_unavailable: OnUnavailable::default(),
            patience: Duration::from_millis(100),
            response_headers: false,
        }
    }
}

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    service: Service<Limiters>,
    client: Client,
    /// Requests fail while the cluster is away, so another instance should have them.
    fails_when_away: bool,
    serves: watch::Sender<bool>,
}

impl Server {
    /// Listens. Requests are answered by [`Server::run`].
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub async fn bind(addr: SocketAddr, client: &Client, options: Options) -> io::Result<Server> {
        let fails_when_away = options.on_unavailable == OnUnavailable::Error;
        let answering = Answering {
            domains: options.domains,
            on_unavailable: options.on_unavailable,
            with_headers: options.response_headers,
        };
        let limiters = Limiters::new(client.clone(), options.patience);
        Ok(Server {
            listener: TcpListener::bind(addr).await?,
            service: Service::new(limiters, answering),
            client: client.clone(),
            fails_when_away,
            serves: watch::Sender::new(true),
        })
    }

    /// Whether the service is healthy, as the health service says it until the server stops.
    pub fn serves(&self) -> watch::Receiver<bool> {
        self.serves.subscribe()
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not say.
    pub fn addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers requests until `stop` ends.
    ///
    /// # Errors
    /// The server fails.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), tonic::transport::Error> {
        let (reporter, health) = tonic_health::server::health_reporter();
        for name in ["", SERVICE] {
            reporter
                .set_service_status(name, ServingStatus::Serving)
                .await;
        }
        let service = RateLimitServiceServer::new(self.service);
        let (stops, stopping) = oneshot::channel();
        let nats = self.client.nats().clone();
        let is_connected = move || nats.connection_state() == State::Connected;
        let (serves, fails_when_away) = (self.serves, self.fails_when_away);
        let stop = async move {
            tokio::select! {
                () = stop => {}
                () = report(&reporter, &serves, is_connected), if fails_when_away => {}
            }
            for name in ["", SERVICE] {
                reporter
                    .set_service_status(name, ServingStatus::NotServing)
                    .await;
            }
            let _ = stops.send(());
        };
        let served = tonic::transport::Server::builder()
            .max_concurrent_streams(STREAMS_MAX)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .add_service(health)
            .add_service(service.max_decoding_message_size(REQUEST_BYTES_MAX))
            .serve_with_incoming_shutdown(
                TcpIncoming::from(self.listener).with_nodelay(Some(true)),
                stop,
            );
        let late = async {
            // Without an end it is not late.
            if stopping.await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(STOPS_WITHIN).await;
        };
        tokio::select! {
            served = served => served,
            () = late => Ok(()),
        }
    }
}

/// The service's name in the health service. The name of the server as a whole is empty, and it serves until it stops.
const SERVICE: &str = <RateLimitServiceServer<Service<Limiters>> as NamedService>::NAME;

/// Keeps the service's health up to date, without an end.
async fn report(
    reporter: &HealthReporter,
    serves: &watch::Sender<bool>,
    is_connected: impl Fn() -> bool,
) {
    // Before the first connection it is not healthy.
    let mut connected_at: Option<Instant> = None;
    loop {
        if is_connected() {
            connected_at = Some(Instant::now());
        }
        let is_serving = connected_at.is_some_and(|at| at.elapsed() < CUT_OFF_AFTER);
        let has_changed =
            serves.send_if_modified(|it| std::mem::replace(it, is_serving) != is_serving);
        if has_changed {
            let status = match is_serving {
                true => ServingStatus::Serving,
                false => ServingStatus::NotServing,
            };
            match is_serving {
                true => info!("NATS is back: healthy"),
                false => warn!("no connection to NATS: not healthy"),
            }
            reporter.set_service_status(SERVICE, status).await;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_server::Health;
    use tonic_health::server::HealthService;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_instance_without_nats_is_not_healthy_and_is_so_again() {
        let reporter = HealthReporter::new();
        let service = HealthService::from_health_reporter(reporter.clone());
        let status = async |name: &str| {
            let asked = tonic::Request::new(HealthCheckRequest {
                service: name.to_owned(),
            });
            service.check(asked).await.unwrap().into_inner().status()
        };
        reporter
            .set_service_status(SERVICE, ServingStatus::Serving)
            .await;
        let connected = Arc::new(AtomicBool::new(true));
        let state = connected.clone();
        let reports = reporter.clone();
        let serves = watch::Sender::new(true);
        let told = serves.subscribe();
        tokio::spawn(
            async move { report(&reports, &serves, || state.load(Ordering::SeqCst)).await },
        );
        let yes = tonic_health::pb::health_check_response::ServingStatus::Serving;
        let no = tonic_health::pb::health_check_response::ServingStatus::NotServing;
        for _ in 0..2 {
            tokio::time::sleep(2 * CUT_OFF_AFTER).await;
            assert_eq!((status(SERVICE).await, *told.borrow()), (yes, true));
            connected.store(false, Ordering::SeqCst);
            tokio::time::sleep(CUT_OFF_AFTER / 2).await;
            assert_eq!(status(SERVICE).await, yes, "a reconnect takes less");
            tokio::time::sleep(CUT_OFF_AFTER).await;
            assert_eq!((status(SERVICE).await, *told.borrow()), (no, false));
            assert_eq!(status("").await, yes, "the process lives");
            connected.store(true, Ordering::SeqCst);
        }
    }
}
