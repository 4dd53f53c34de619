//! A tonic service behind both layers, and the metrics that both report. Nobody serves the line: the guard's own limit
//! decides.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use nowserving_client::limits::{Check, CheckReply, Entry};
use nowserving_client::{Client, ClientOptions, Guard, GuardOptions, OnUnavailable};
use nowserving_tower::{
    ConcurrencyGuardLayer, Decide, GrpcResponses, RateLimitLayer, Respond, Undecided,
};
use tonic::Code;
use tonic::body::Body;
use tonic::service::LayerExt;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower_layer::Layer;

/// Two requests, and no more.
#[derive(Clone, Default)]
struct Two(Arc<AtomicU32>);

impl Decide for Two {
    fn domain(&self) -> &str {
        "shop"
    }

    async fn decide(&self, _: Check) -> Result<CheckReply, Undecided> {
        let allowed = self.0.fetch_add(1, Ordering::SeqCst) < 2;
        Ok(CheckReply {
            allowed,
            limit: Some(2),
            retry_after_ms: (!allowed).then_some(1_200),
            ..CheckReply::default()
        })
    }
}

/// By the request's own type: what tonic hands to a layer.
fn by_path(request: &http::Request<Body>) -> Option<Check> {
    let path = request.uri().path().as_bytes();
    Some(Check::new(vec![vec![Entry::shortened("path", path)]]))
}

/// Without NATS.
async fn guard(on_unavailable: OnUnavailable) -> Guard {
    let mut connect = ClientOptions::default();
    connect.connect_in_background = true;
    let client = Client::connect_with("nats://127.0.0.1:1", connect).await;
    let mut options = GuardOptions::default();
    options.on_unavailable = on_unavailable;
    options.patience = Duration::from_millis(50);
    Guard::new(client.unwrap().line("reports").unwrap(), options)
}

/// The metric's value, whatever the order of its labels.
fn value(metrics: &PrometheusHandle, name: &str, labels: &[(&str, &str)]) -> f64 {
    let text = metrics.render();
    let has = |line: &str| {
        let named = line
            .strip_prefix(name)
            .is_some_and(|it| it.starts_with('{'));
        let mut labels = labels.iter();
        named && labels.all(|(key, value)| line.contains(&format!("{key}=\"{value}\"")))
    };
    let line = text.lines().find(|line| has(line));
    let line = line.unwrap_or_else(|| panic!("no {name} in\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_tonic_service_behind_both_layers() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let _here = metrics::set_default_local_recorder(&recorder);
    let limit = RateLimitLayer::new(Two::default(), by_path).respond_with(GrpcResponses);
    let own_limit = guard(OnUnavailable::Local(1)).await;
    let guarded = ConcurrencyGuardLayer::new(own_limit).respond_with(GrpcResponses);
    let (_, health) = tonic_health::server::health_reporter();
    let mut client = HealthClient::new(limit.layer(guarded.layer(health)));
    for _ in 0..2 {
        let response = client.check(HealthCheckRequest::default()).await.unwrap();
        assert_eq!(response.metadata().get("x-ratelimit-limit").unwrap(), "2");
    }
    let refused = client.check(HealthCheckRequest::default()).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.message(), "too many requests");
    assert_eq!(refused.metadata().get("retry-after").unwrap(), "2");

    let shop = ("domain", "shop");
    assert_eq!(
        value(&metrics, "nowserving_rate_limit_allowed", &[shop]),
        2.0
    );
    let over = [shop, ("reason", "over_limit")];
    assert_eq!(value(&metrics, "nowserving_rate_limit_blocked", &over), 1.0);
    let line = [("line", "reports")];
    for (name, times) in [
        ("nowserving_guard_allowed", 2.0),
        ("nowserving_guard_unavailable", 2.0),
        ("nowserving_guard_wait_seconds_count", 2.0),
    ] {
        assert_eq!(value(&metrics, name, &line), times, "{name}");
    }
}

#[tokio::test]
async fn what_a_guard_refuses_and_what_nobody_decides() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let _here = metrics::set_default_local_recorder(&recorder);
    let (_, health) = tonic_health::server::health_reporter();
    let denies = guard(OnUnavailable::Deny).await;
    let guarded = ConcurrencyGuardLayer::new(denies).respond_with(GrpcResponses);
    let mut client = HealthClient::new(guarded.layer(health.clone()));
    let refused = client.check(HealthCheckRequest::default()).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unavailable);
    let labels = [("line", "reports"), ("reason", "unavailable")];
    assert_eq!(value(&metrics, "nowserving_guard_blocked", &labels), 1.0);

    #[derive(Clone)]
    struct Nobody;
    impl Decide for Nobody {
        fn domain(&self) -> &str {
            "shop"
        }

        async fn decide(&self, _: Check) -> Result<CheckReply, Undecided> {
            Err(Undecided {
                is_transient: true,
                why: "as the test wants".to_owned(),
                retry_after: Some(Duration::from_secs(3)),
            })
        }
    }
    let limit = RateLimitLayer::new(Nobody, by_path).respond_with(GrpcResponses);
    let mut client = HealthClient::new(limit.layer(health));
    let refused = client.check(HealthCheckRequest::default()).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(refused.metadata().get("retry-after").unwrap(), "3");
    let shop = ("domain", "shop");
    for (name, labels) in [
        ("nowserving_rate_limit_unavailable", &[shop][..]),
        (
            "nowserving_rate_limit_blocked",
            &[shop, ("reason", "unavailable")],
        ),
    ] {
        assert_eq!(value(&metrics, name, labels), 1.0, "{name}");
    }
}

/// As users write it.
#[tokio::test]
async fn they_fit_tonics_server() {
    fn responds(_: impl Respond<http::Response<Body>>) {}
    responds(GrpcResponses);
    let (_, health) = tonic_health::server::health_reporter();
    let limit = RateLimitLayer::new(Two::default(), by_path).respond_with(GrpcResponses);
    let guarded = ConcurrencyGuardLayer::new(guard(OnUnavailable::Allow).await);
    let guarded = guarded.respond_with(GrpcResponses);
    let service = limit.named_layer(guarded.named_layer(health));
    let _ = tonic::transport::Server::builder().add_service(service);
}
