//! What is the matter, in words: `/readyz`.

use nowserving_gateway::OnUnavailable;
use nowserving_testkit::nats::Nats;

use crate::cluster::Cluster;
use crate::common::{Gateway, HTML, Jar};

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
