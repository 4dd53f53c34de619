//! The gRPC server: the rate limit service and the standard health service.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use metrics::{describe_counter, describe_histogram};
use nowserving_client::{Client, LineName};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::server::NamedService;
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

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
}

impl Server {
    /// Listens. Requests are answered by [`Server::run`].
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub async fn bind(addr: SocketAddr, client: &Client, options: Options) -> io::Result<Server> {
        let answering = Answering {
            domains: options.domains,
            on_unavailable: options.on_unavailable,
            with_headers: options.response_headers,
        };
        let limiters = Limiters::new(client.clone(), options.patience);
        Ok(Server {
            listener: TcpListener::bind(addr).await?,
            service: Service::new(limiters, answering),
        })
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
        describe();
        let (reporter, health) = tonic_health::server::health_reporter();
        set_health(&reporter, ServingStatus::Serving).await;
        let service = RateLimitServiceServer::new(self.service);
        let (stops, stopping) = oneshot::channel();
        let stop = async move {
            stop.await;
            set_health(&reporter, ServingStatus::NotServing).await;
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

/// Of the server as a whole, and of the service.
async fn set_health(reporter: &HealthReporter, status: ServingStatus) {
    let service = <RateLimitServiceServer<Service<Limiters>> as NamedService>::NAME;
    reporter.set_service_status("", status).await;
    reporter.set_service_status(service, status).await;
}

fn describe() {
    describe_counter!(
        "nowserving_envoy_requests_total",
        "Requests of Envoy, by the cluster's domain (empty: one without rules) and outcome."
    );
    describe_counter!(
        "nowserving_envoy_overrides_ignored_total",
        "Limits that descriptors carried, which the cluster's rules replace."
    );
    describe_histogram!(
        "nowserving_envoy_seconds",
        "Time from a request of Envoy to its answer."
    );
}
