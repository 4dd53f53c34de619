//! The path that completes a visit, and proxies that are not trusted.

use crate::cluster::Cluster;
use crate::common::{Answer, Gateway, HTML, Jar};

const DONE: &str = "/checkout/done";

async fn before(cluster: &Cluster) -> Gateway {
    let nats = cluster.url();
    let gateway = Gateway::start(&nats, |config| {
        config.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
        config.patience_ms = 5_000;
        config.lines[0].complete_path = Some(DONE.parse().unwrap());
    });
    let gateway = gateway.await;
    gateway.ready().await;
    gateway
}

/// Somebody with a seat.
async fn visitor(gateway: &Gateway) -> Jar {
    let mut jar = Jar::default();
    let wait = "/_nowserving/wait?line=sale&to=%2Fcheckout";
    jar.take(&gateway.get(wait, &[HTML]).await);
    let headers = [HTML, ("Cookie", &jar.header())];
    let form = "line=sale&to=%2Fcheckout";
    let entered = gateway.post("/_nowserving/enter", &headers, form).await;
    assert_eq!(
        (entered.status, entered.header("location")),
        (303, Some("/checkout"))
    );
    jar.take(&entered);
    jar
}

/// As nginx asks.
async fn gate(gateway: &Gateway, jar: &Jar, method: &str, path: &str) -> Answer {
    let cookies = jar.header();
    let headers = [
        HTML,
        ("Cookie", &cookies),
        ("X-Original-Method", method),
        ("X-Original-URI", path),
    ];
    gateway.get("/gate/nginx", &headers).await
}

#[tokio::test]
async fn a_gateway_that_stops_completes_what_is_to_be_completed() {
    let cluster = Cluster::start(1).await;
    let gateway = before(&cluster).await;
    let jar = visitor(&gateway).await;
    assert_eq!(gate(&gateway, &jar, "GET", "/checkout").await.status, 204);
    assert_eq!(gate(&gateway, &jar, "GET", DONE).await.status, 204);
    assert_eq!(cluster.asked("complete"), 0, "its page needs more");
    gateway.stop().await;
    assert_eq!(cluster.asked("complete"), 1);
}

#[tokio::test]
async fn whoever_has_completed_can_read_the_page_of_that_again_and_no_other() {
    let cluster = Cluster::start(1).await;
    let gateway = before(&cluster).await;
    let jar = visitor(&gateway).await;
    cluster.end(1, "completed");
    let done = gate(&gateway, &jar, "GET", DONE).await;
    assert_eq!((done.status, done.header("nowserving-pass")), (204, None));
    for (method, path) in [
        ("POST", DONE),
        ("GET", "/checkout"),
        ("GET", "/checkout/done/more"),
    ] {
        let kept_out = gate(&gateway, &jar, method, path).await;
        assert_eq!(kept_out.status, 401, "{method} {path}");
    }
    // Whose seat ended otherwise has bought nothing.
    cluster.end(1, "checkout_expired");
    assert_eq!(gate(&gateway, &jar, "GET", DONE).await.status, 401);
    gateway.stop().await;
}

#[tokio::test]
async fn a_proxy_that_is_not_trusted_is_told_what_to_configure() {
    let gateway = Gateway::without_cluster(|config| config.trusted_proxies = Vec::new()).await;
    for path in ["/gate/nginx", "/gate/forward"] {
        let refused = gateway.get(path, &[HTML]).await;
        assert_eq!(refused.status, 403);
        assert!(refused.body.contains("trusted_proxies"), "{}", refused.body);
    }
    gateway.stop().await;
}
