//! What is the matter, in words: `/readyz`, and the page of an address that asks too often.

use nowserving_gateway::{AddressLimitsConfig, OnUnavailable};
use nowserving_testkit::nats::Nats;
use serde_json::json;

use crate::cluster::Cluster;
use crate::common::{Gateway, HTML, Jar};

const WAIT: &str = "/_nowserving/wait?line=sale&to=%2Fcheckout";

#[tokio::test]
async fn a_line_that_does_not_exist_is_named_until_it_is_created() {
    let cluster = Cluster::start(0).await;
    cluster.sale.lock().unwrap().is_missing = true;
    let gateway = Gateway::start(&cluster.url(), |config| {
        config.on_unavailable = OnUnavailable::Allow;
        config.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
    })
    .await;
    gateway.unready("the line sale does not exist").await;
    let said = gateway.get("/readyz", &[]).await.body;
    let create = "`nowserving line create sale --seats";
    assert!(said.contains(create), "{said}");
    let at = format!(" --nats {}`", cluster.url());
    assert!(said.contains(&at), "{said}");
    // A mistake of the set-up opens no shop: nobody is told more than that it takes a while.
    let gate = [
        HTML,
        ("X-Forwarded-Method", "GET"),
        ("X-Forwarded-Uri", "/checkout"),
        ("X-Forwarded-Host", "shop.example"),
    ];
    let mut jar = Jar::default();
    jar.take(&gateway.get("/gate/forward", &gate).await);
    let cookies = jar.header();
    let gate = [&gate[..], &[("Cookie", cookies.as_str())]].concat();
    let answer = gateway.get("/gate/forward", &gate).await;
    assert_eq!(
        (answer.status, answer.page().as_str()),
        (503, "unavailable_new")
    );
    cluster.sale.lock().unwrap().is_missing = false;
    gateway.ready().await;
    gateway.stop().await;
}

#[tokio::test]
async fn whoever_has_a_number_of_a_line_that_was_deleted_is_promised_nothing() {
    let cluster = Cluster::start(0).await;
    let gateway = Gateway::start(&cluster.url(), |_| {}).await;
    gateway.ready().await;
    let mut jar = Jar::default();
    jar.take(&gateway.get(WAIT, &[HTML]).await);
    let pre = jar.header();
    jar.take(&gateway.get(WAIT, &[HTML, ("Cookie", &pre)]).await);
    assert_eq!(cluster.entered(), 1);
    cluster.sale.lock().unwrap().is_missing = true;
    let cookies = jar.header();
    let status = "/_nowserving/v1/lines/sale/status";
    for path in [WAIT, status] {
        let answer = gateway.get(path, &[HTML, ("Cookie", &cookies)]).await;
        assert_eq!(
            (answer.status, answer.page().as_str()),
            (503, "uncertain"),
            "{path}"
        );
    }
    gateway.stop().await;
}

#[tokio::test]
async fn the_internet_is_not_told_why_the_gateway_is_not_ready() {
    let gateway = Gateway::without_cluster(|config| {
        config.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
    })
    .await;
    let asked_from = async |address: &str| {
        let answer = gateway
            .get("/readyz", &[("X-Forwarded-For", address)])
            .await;
        assert_eq!(answer.status, 503);
        answer.body
    };
    let said = asked_from("192.168.1.1").await;
    assert!(said.contains("no connection to NATS"), "{said}");
    let said = asked_from("203.0.113.9").await;
    assert!(
        said.starts_with("not ready: the reason is in the gateway's log"),
        "{said}"
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_connection_that_is_lost_is_named() {
    let mut cluster = Cluster::start(0).await;
    let gateway = Gateway::start(&cluster.url(), |_| {}).await;
    gateway.ready().await;
    cluster.stop_nats();
    gateway.unready("no connection to NATS").await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_cluster_without_nodes_is_named() {
    let nats = Nats::start(&[]);
    let gateway = Gateway::start(&nats.url(), |_| {}).await;
    let why = "no answer from the cluster about the line sale: no node listens";
    gateway.unready(why).await;
    gateway.stop().await;
}

#[tokio::test]
async fn nodes_that_fall_silent_are_named_until_they_answer() {
    let cluster = Cluster::start(0).await;
    let gateway = Gateway::start(&cluster.url(), |_| {}).await;
    gateway.ready().await;
    cluster.sale.lock().unwrap().is_silent = true;
    let why = "no answer from the cluster about the line sale: no answer in time";
    gateway.unready(why).await;
    cluster.sale.lock().unwrap().is_silent = false;
    gateway.ready().await;
    gateway.stop().await;
}

#[tokio::test]
async fn over_the_limit_of_an_address_the_page_says_when_to_come_again() {
    let cluster = Cluster::start(5).await;
    let limited = json!({
        "allowed": false, "limit": 1, "remaining": 0, "reset_ms": 41_000, "retry_after_ms": 41_000,
        "descriptors": [{"allowed": false, "limit": 1}],
    });
    cluster.sale.lock().unwrap().check = limited;
    let gateway = Gateway::start(&cluster.url(), |config| {
        config.address_limits = Some(AddressLimitsConfig {
            domain: "web".to_owned(),
            requests: vec!["enter".to_owned()],
        });
    })
    .await;
    gateway.ready().await;
    let mut jar = Jar::default();
    jar.take(&gateway.get(WAIT, &[HTML]).await);
    let cookies = jar.header();
    let headers = [HTML, ("Cookie", cookies.as_str())];
    let second = gateway.get(WAIT, &headers).await;
    let form = "line=sale&to=%2Fcheckout";
    let by_form = gateway.post("/_nowserving/enter", &headers, form).await;
    for answer in [second, by_form] {
        assert_eq!((answer.status, answer.page().as_str()), (429, "limited"));
        assert_eq!(answer.header("retry-after"), Some("41"));
        // Without script it comes again then, and not sooner.
        assert!(
            answer.body.contains("content=\"41; url="),
            "{}",
            answer.body
        );
        assert!(answer.body.contains("in 41\u{a0}s."), "{}", answer.body);
    }
    assert_eq!(cluster.entered(), 0);
    cluster.sale.lock().unwrap().check = json!({
        "allowed": true, "limit": 1, "remaining": 0, "reset_ms": 1, "retry_after_ms": null,
        "descriptors": [{"allowed": true, "limit": 1}],
    });
    let entered = gateway.post("/_nowserving/enter", &headers, form).await;
    assert_eq!((entered.status, cluster.entered()), (303, 1));
    gateway.stop().await;
}
