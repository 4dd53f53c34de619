#![allow(clippy::unwrap_used)]

use nowserving_client::limits::Entry;
use tonic::Code as Grpc;

use super::*;
use crate::pb::{self, Code, DescriptorStatus, RateLimitDescriptor};

/// Allows `hits` up to 5 to each descriptor; remembers what it was asked.
#[derive(Clone, Default)]
struct Five {
    asked: Arc<Mutex<Vec<(String, Check)>>>,
    fails: Option<Undecided>,
    is_away: bool,
    /// This domain has no rules.
    unmatched: Option<&'static str>,
}

impl Cluster for Five {
    async fn check(&self, domain: &LineName, check: Check) -> Result<CheckReply, Undecided> {
        let asked = (domain.as_str().to_owned(), check.clone());
        self.asked.lock().unwrap().push(asked);
        if let Some(fails) = &self.fails {
            return Err(fails.clone());
        }
        let allowed = check.hits() <= 5;
        let counted = if check.dry_run { 0 } else { check.hits() };
        let remaining = Some(5_u32.saturating_sub(counted));
        let descriptor = |entries: &Vec<Entry>| DescriptorReply {
            allowed,
            limit: Some(5),
            unit: Some("second".to_owned()),
            name: Some(entries[0].key.clone()),
            remaining,
            ..DescriptorReply::default()
        };
        Ok(CheckReply {
            allowed,
            limit: Some(5),
            remaining,
            retry_after_ms: (!allowed).then_some(900),
            without_cluster: self.is_away,
            unmatched: self.unmatched == Some(domain.as_str()),
            descriptors: check.descriptors.iter().map(descriptor).collect(),
            ..CheckReply::default()
        })
    }
}

fn service(cluster: Five, on_unavailable: OnUnavailable) -> Service<Five> {
    let shop = LineName::try_from("shop").unwrap();
    let answering = Answering {
        domains: BTreeMap::from([("default/shop.http".to_owned(), shop)]),
        on_unavailable,
        with_headers: true,
    };
    Service::new(cluster, answering)
}

fn request(domain: &str, hits: &[Option<u64>]) -> RateLimitRequest {
    let descriptors = hits
        .iter()
        .enumerate()
        .map(|(nth, hits)| RateLimitDescriptor {
            entries: vec![pb::Entry {
                key: format!("key-{nth}"),
                value: b"value".to_vec(),
            }],
            limit: Some(pb::RateLimitOverride::default()),
            hits_addend: *hits,
            is_negative_hits: false,
        });
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.collect(),
        hits_addend: 0,
    }
}

async fn ask(
    service: &Service<Five>,
    request: RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    let answered = service.should_rate_limit(Request::new(request)).await;
    answered.map(Response::into_inner)
}

#[tokio::test]
async fn a_domain_can_have_another_name_in_the_cluster() {
    let cluster = Five::default();
    let service = service(cluster.clone(), OnUnavailable::Error);
    for (asked, known) in [
        ("default/shop.http", Some("shop")),
        ("own", Some("own")),
        ("a.b", None),
    ] {
        let response = ask(&service, request(asked, &[None])).await.unwrap();
        assert_eq!(response.overall_code(), Code::Ok, "{asked}");
        assert_eq!(response.statuses.len(), 1);
        let asked = cluster.asked.lock().unwrap().pop();
        assert_eq!(asked.as_ref().map(|(domain, _)| domain.as_str()), known);
        assert_eq!(
            response.statuses[0].current_limit.is_some(),
            known.is_some()
        );
    }
}

/// Whether no domain of the cluster can have the name, or none has it. Anybody who may ask can make up names.
#[test]
fn a_domain_without_rules_is_told_once_and_counted_by_name() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let cluster = Five {
        unmatched: Some("nowhere"),
        ..Five::default()
    };
    let service = service(cluster, OnUnavailable::Error);
    let ask = |domain: &str| {
        let asked = request(domain, &[None]);
        // In this thread, which has the recorder.
        let answered = metrics::with_local_recorder(&recorder, || {
            futures::executor::block_on(service.answer(&asked))
        });
        assert_eq!(answered.unwrap().overall_code(), Code::Ok, "{domain}");
    };
    assert_eq!(service.without_rules.tell("example.com"), Told::Now);
    for domain in ["example.com", "nowhere", "nowhere", "shop"] {
        ask(domain);
    }
    assert_eq!(service.without_rules.tell("nowhere"), Told::Before);
    let long = "x.".repeat(NAME_BYTES_MAX);
    assert_eq!(service.without_rules.tell(&long), Told::Never);
    for nth in 0..2 * NAMES_MAX {
        ask(&format!("{nth}.example.com"));
    }
    let rendered = recorder.handle().render();
    let count = |domain: &str, outcome: &str| {
        let labels = format!("{{domain=\"{domain}\",outcome=\"{outcome}\"}} ");
        let mut lines = rendered.lines();
        let found = lines
            .find_map(|line| line.split_once(&labels))
            .map(|it| it.1);
        found.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    assert_eq!(count("example.com", "without_rules"), 1);
    assert_eq!(count("nowhere", "without_rules"), 2);
    assert_eq!(count("shop", "ok"), 1);
    assert_eq!(count("7.example.com", "without_rules"), 1);
    let rest = 2 * NAMES_MAX - (NAMES_MAX - 2);
    assert_eq!(count("", "without_rules"), rest as u64);
    assert_eq!(rendered.matches("without_rules").count(), NAMES_MAX + 1);
}

#[tokio::test]
async fn parts_are_put_together_in_the_order_of_the_request() {
    let service = service(Five::default(), OnUnavailable::Error);
    let asked = request("shop", &[Some(2), Some(6), Some(3), Some(2)]);
    let response = ask(&service, asked).await.unwrap();
    assert_eq!(response.overall_code(), Code::OverLimit);
    let codes = response.statuses.iter().map(DescriptorStatus::code);
    let expected = [Code::Ok, Code::OverLimit, Code::Ok, Code::Ok];
    assert_eq!(codes.collect::<Vec<_>>(), expected);
    let names = response.statuses.iter();
    let names = names.map(|it| it.current_limit.clone().unwrap().name);
    let expected = ["key-0", "key-1", "key-2", "key-3"];
    assert_eq!(names.collect::<Vec<_>>(), expected);
    let header = |name: &str| {
        let mut headers = response.response_headers_to_add.iter();
        headers.find(|it| it.key == name).map(|it| it.value.clone())
    };
    assert_eq!(header("x-ratelimit-remaining").as_deref(), Some("0"));
    assert_eq!(header("retry-after").as_deref(), Some("1"));
}

#[tokio::test]
async fn what_the_cluster_does_not_decide() {
    let forbidden = Undecided {
        is_transient: false,
        why: "forbidden".to_owned(),
        retry_after: None,
    };
    for (is_away, fails) in [(true, None), (false, Some(forbidden))] {
        let cluster = Five {
            fails,
            is_away,
            ..Five::default()
        };
        for (on_unavailable, code) in [
            (OnUnavailable::Allow, Code::Ok),
            (OnUnavailable::Deny, Code::OverLimit),
        ] {
            let service = service(cluster.clone(), on_unavailable);
            let response = ask(&service, request("shop", &[None, None])).await.unwrap();
            assert_eq!(response.overall_code(), code);
            let codes = response.statuses.iter().map(DescriptorStatus::code);
            assert_eq!(codes.collect::<Vec<_>>(), [code, code]);
        }
        let service = service(cluster, OnUnavailable::Error);
        let error = ask(&service, request("shop", &[None])).await.unwrap_err();
        assert_eq!(error.code(), Grpc::Unavailable);
    }
}

#[tokio::test]
async fn bad_requests() {
    let cluster = Five::default();
    let service = service(cluster.clone(), OnUnavailable::Allow);
    for bad in [request("", &[None]), request("shop", &[])] {
        let error = ask(&service, bad).await.unwrap_err();
        assert_eq!(error.code(), Grpc::InvalidArgument);
    }
    assert!(cluster.asked.lock().unwrap().is_empty());
}

/// A limit of 1,000 that counts, for all descriptors.
#[derive(Clone, Default)]
struct Thousand(Arc<Mutex<u32>>);

impl Cluster for Thousand {
    async fn check(&self, _: &LineName, check: Check) -> Result<CheckReply, Undecided> {
        let mut counted = self.0.lock().unwrap();
        let then = *counted + check.hits();
        let allowed = then <= 1_000;
        if allowed && !check.dry_run {
            *counted = then;
        }
        let descriptor = DescriptorReply {
            allowed,
            limit: Some(1_000),
            remaining: Some(1_000 - *counted),
            ..DescriptorReply::default()
        };
        Ok(CheckReply {
            allowed,
            limit: descriptor.limit,
            remaining: descriptor.remaining,
            descriptors: vec![descriptor; check.descriptors.len()],
            ..CheckReply::default()
        })
    }
}

/// Envoy asks with 0 and reports the cost when the stream is done, and looks at the first answer alone.
#[tokio::test]
async fn costs_that_are_reported_after_the_response_use_up_the_limit() {
    let cluster = Thousand::default();
    let answering = Answering {
        domains: BTreeMap::new(),
        on_unavailable: OnUnavailable::Error,
        with_headers: false,
    };
    let service = Service::new(cluster.clone(), answering);
    let ask = async |hits| {
        let request = Request::new(request("shop", &[Some(hits)]));
        let response = service.should_rate_limit(request).await.unwrap();
        let response = response.into_inner();
        (
            response.overall_code(),
            response.statuses[0].limit_remaining,
        )
    };
    assert_eq!(ask(900).await, (Code::Ok, 100));
    assert_eq!(ask(0).await, (Code::Ok, 100), "only asks");
    assert_eq!(
        ask(200).await,
        (Code::OverLimit, 0),
        "the 100 are counted, and not left"
    );
    assert_eq!(*cluster.0.lock().unwrap(), 1_000);
    assert_eq!(ask(0).await.0, Code::OverLimit);
}

#[tokio::test]
async fn a_refund_counts_nothing() {
    let cluster = Five::default();
    let service = service(cluster.clone(), OnUnavailable::Error);
    let mut refund = request("shop", &[Some(500)]);
    refund.descriptors[0].is_negative_hits = true;
    let response = ask(&service, refund).await.unwrap();
    assert_eq!(response.overall_code(), Code::Ok);
    let asked = cluster.asked.lock().unwrap();
    assert!(asked.iter().all(|(_, check)| check.dry_run));
}
