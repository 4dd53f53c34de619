//! The layer around handlers that end in every way. A nats-server without a cluster: the guard's own limit decides,
//! as `on_unavailable` says. With a cluster: `tests/e2e`.
#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::StatusCode;
use nowserving_client::{Ask, Client, ClientOptions, Guard, GuardOptions, OnUnavailable, SlotKind};
use nowserving_testkit::nats::Nats;
use nowserving_tower::{AskBy, Blocked, ConcurrencyGuardLayer, Respond};
use tower_layer::Layer;
use tower_service::Service;

/// Over a NATS without a cluster.
async fn guard_over(nats: &Nats, on_unavailable: OnUnavailable) -> Guard {
    let client = Client::connect(&nats.url()).await.unwrap();
    let mut options = GuardOptions::default();
    options.on_unavailable = on_unavailable;
    options.patience = Duration::from_millis(100);
    Guard::new(client.line("nobody-serves-it").unwrap(), options)
}

/// Of a service that is there before NATS is.
async fn guard_without_nats(on_unavailable: OnUnavailable) -> Guard {
    let mut connect = ClientOptions::default();
    connect.connect_in_background = true;
    // Nobody listens on this port.
    let client = Client::connect_with("nats://127.0.0.1:1", connect).await;
    let mut options = GuardOptions::default();
    options.on_unavailable = on_unavailable;
    options.patience = Duration::from_millis(100);
    Guard::new(client.unwrap().line("reports").unwrap(), options)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Returns,
    Fails,
    Panics,
    Hangs,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Said {
    Done,
    Blocked(StatusCode),
}

#[derive(Clone, Default)]
struct Handler {
    running: Arc<AtomicUsize>,
}

struct Runs(Arc<AtomicUsize>);

impl Drop for Runs {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Service<Does> for Handler {
    type Response = Said;
    type Error = &'static str;
    type Future = Pin<Box<dyn Future<Output = Result<Said, &'static str>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, does: Does) -> Self::Future {
        let running = self.running.clone();
        Box::pin(async move {
            assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
            let _runs = Runs(running);
            tokio::task::yield_now().await;
            match does {
                Does::Returns => Ok(Said::Done),
                Does::Fails => Err("as the test wants"),
                Does::Panics => panic!("as the test wants"),
                Does::Hangs => pending().await,
            }
        })
    }
}

fn said(blocked: &Blocked) -> Said {
    Said::Blocked(blocked.status())
}

/// The guard learns that the cluster is away after its first call has failed.
async fn until_away(guard: &Guard) {
    while !guard.is_away() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn ask<S, Q>(service: &S, request: Q) -> Result<S::Response, S::Error>
where
    S: Service<Q> + Clone,
{
    let mut service = service.clone();
    poll_fn(|context| service.poll_ready(context)).await?;
    service.call(request).await
}

#[tokio::test]
async fn the_next_request_runs_however_the_last_one_ended() {
    // Nothing is sent: a request that NATS answers too late would be in doubt, and `drained` would wait for its outcome.
    let guard = guard_without_nats(OnUnavailable::Local(1)).await;
    let layer = ConcurrencyGuardLayer::new(guard.clone()).respond_with(said);
    let handler = Handler::default();
    for service in [
        layer.layer(handler.clone()),
        layer
            .clone()
            .keep_running_when_lost()
            .layer(handler.clone()),
    ] {
        assert_eq!(ask(&service, Does::Returns).await, Ok(Said::Done));
        let failed = ask(&service, Does::Fails).await;
        assert_eq!(failed, Err("as the test wants"));
        let panics = service.clone();
        let panics = tokio::spawn(async move { ask(&panics, Does::Panics).await });
        assert!(panics.await.unwrap_err().is_panic());
        let hangs = service.clone();
        let hangs = tokio::spawn(async move { ask(&hangs, Does::Hangs).await });
        while handler.running.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        // Its turn comes when the other is dropped, as a server does if the client goes.
        let waits = service.clone();
        let waits = tokio::spawn(async move { ask(&waits, Does::Returns).await });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        hangs.abort();
        assert_eq!(waits.await.unwrap(), Ok(Said::Done));
    }
    guard.drained().await;
    let counts = guard.counts();
    assert_eq!((counts.allowed, counts.unavailable), (10, 10));
}

#[tokio::test]
async fn a_long_wait_is_a_504_and_each_request_may_ask_for_its_own() {
    let nats = Nats::start(&[]);
    let guard = guard_over(&nats, OnUnavailable::Local(1)).await;
    let slot = guard.acquire(Ask::default()).await.unwrap();
    // From now on all of the wait is for the slot.
    until_away(&guard).await;
    let longest = |_: &Does| Ask::default().max_wait(Duration::from_millis(200));
    let layer = ConcurrencyGuardLayer::new(guard)
        .respond_with(said)
        .ask_by(longest);
    let service = layer.layer(Handler::default());
    let late = Ok(Said::Blocked(StatusCode::GATEWAY_TIMEOUT));
    assert_eq!(ask(&service, Does::Returns).await, late);
    drop(slot);
    assert_eq!(ask(&service, Does::Returns).await, Ok(Said::Done));
}

#[tokio::test]
async fn without_a_cluster_deny_is_a_503() {
    let nats = Nats::start(&[]);
    let guard = guard_over(&nats, OnUnavailable::Deny).await;
    let layer = ConcurrencyGuardLayer::new(guard.clone()).respond_with(said);
    let service = layer.layer(Handler::default());
    let denied = Ok(Said::Blocked(StatusCode::SERVICE_UNAVAILABLE));
    assert_eq!(ask(&service, Does::Returns).await, denied);
    until_away(&guard).await;
    assert_eq!(ask(&service, Does::Returns).await, denied);
    let allowed = guard_over(&nats, OnUnavailable::Allow).await;
    let slot = allowed.acquire(Ask::default()).await.unwrap();
    assert_eq!(slot.kind(), SlotKind::Allowed);
    let layer = ConcurrencyGuardLayer::new(allowed).respond_with(said);
    let service = layer.layer(Handler::default());
    assert_eq!(ask(&service, Does::Returns).await, Ok(Said::Done));
}

#[tokio::test]
async fn a_service_starts_without_nats() {
    let guard = guard_without_nats(OnUnavailable::Allow).await;
    assert!(guard.check().await.unwrap_err().is_transient());
    let layer = ConcurrencyGuardLayer::new(guard).respond_with(said);
    let service = layer.layer(Handler::default());
    assert_eq!(ask(&service, Does::Returns).await, Ok(Said::Done));
}

/// The layers that users write: it must be possible to name and box them.
#[tokio::test]
async fn it_fits_services_of_http() {
    #[derive(Clone)]
    struct Page;

    impl Service<http::Request<String>> for Page {
        type Response = http::Response<String>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<http::Response<String>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<String>) -> Self::Future {
            std::future::ready(Ok(http::Response::new(request.into_body())))
        }
    }

    fn respond(_: impl Respond<http::Response<String>>, _: impl AskBy<http::Request<String>>) {}
    respond(nowserving_tower::HttpResponses, nowserving_tower::Anyone);
    respond(nowserving_tower::GrpcResponses, nowserving_tower::Anyone);

    let nats = Nats::start(&[]);
    let guard = guard_over(&nats, OnUnavailable::Deny).await;
    let http = ConcurrencyGuardLayer::new(guard.clone()).layer(Page);
    let response = ask(&http, http::Request::new(String::new())).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.body(), "the cluster that admits does not answer\n");
    let grpc = ConcurrencyGuardLayer::new(guard)
        .respond_with(nowserving_tower::GrpcResponses)
        .layer(Page);
    let response = ask(&grpc, http::Request::new(String::new())).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "14");
}
