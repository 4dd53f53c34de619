//! No NATS anywhere: every answer says so in the form that was asked for.

use nowserving_gateway::OnUnavailable;

use crate::common::{Gateway, HTML, Jar};

const WAIT: &str = "/_nowserving/wait?line=sale&to=%2Fcheckout%3Fa%3D1";

#[tokio::test]
async fn it_starts_lives_and_says_that_it_is_not_ready() {
    let gateway = Gateway::without_cluster(|_| {}).await;
    assert_eq!(gateway.get("/healthz", &[]).await.status, 200);
    let ready = gateway.get("/readyz", &[]).await;
    assert_eq!(ready.status, 503);
    let why = "no connection to NATS";
    assert!(ready.body.contains(why), "{}", ready.body);
    assert_eq!(gateway.get("/_nowserving/jwks.json", &[]).await.status, 503);
    assert_eq!(
        gateway
            .get("/_nowserving/v1/lines/sale/board", &[])
            .await
            .status,
        503
    );
    gateway.stop().await;
}

#[tokio::test]
async fn the_first_step_costs_no_question_and_the_second_says_that_the_cluster_is_away() {
    let gateway = Gateway::without_cluster(|_| {}).await;
    let first = gateway.get(WAIT, &[HTML]).await;
    assert_eq!((first.status, first.page().as_str()), (503, "enter"));
    for (name, value) in [
        ("cache-control", "no-store"),
        ("vary", "Accept, Cookie"),
        ("x-robots-tag", "noindex"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "same-origin"),
        ("content-type", "text/html; charset=utf-8"),
    ] {
        assert_eq!(first.header(name), Some(value), "{name}");
    }
    assert!(first.header("retry-after").is_some());
    assert!(
        first
            .header("content-security-policy")
            .unwrap()
            .starts_with("default-src 'none'")
    );
    assert!(first.body.contains("&amp;step=2") || first.body.contains("&step=2"));
    let mut jar = Jar::default();
    jar.take(&first);
    let second = gateway.get(WAIT, &[HTML, ("Cookie", &jar.header())]).await;
    assert_eq!(
        (second.status, second.page().as_str()),
        (503, "unavailable_new")
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_client_without_cookies_is_told_so_and_not_sent_in_circles() {
    let gateway = Gateway::without_cluster(|_| {}).await;
    for answer in [
        gateway.get(&format!("{WAIT}&step=2"), &[HTML]).await,
        gateway
            .post("/_nowserving/enter", &[HTML], "line=sale&to=%2Fcheckout")
            .await,
    ] {
        assert_eq!((answer.status, answer.page().as_str()), (503, "cookies"));
        // So that it works once they are allowed.
        assert!(answer.cookie("nowserving-sale.pre").is_some());
    }
    gateway.stop().await;
}

#[tokio::test]
async fn scripts_get_data() {
    let gateway = Gateway::without_cluster(|_| {}).await;
    let status = gateway.get("/_nowserving/v1/lines/sale/status", &[]).await;
    assert_eq!(
        (status.status, status.page().as_str()),
        (503, "unavailable_new")
    );
    let problem = gateway
        .get(WAIT, &[("Sec-Fetch-Dest", "empty"), HTML])
        .await;
    assert_eq!(
        (problem.status, problem.page().as_str()),
        (503, "unavailable_new")
    );
    assert_eq!(
        problem.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(problem.cookie("nowserving-sale.pre"), None);
    assert!(
        problem
            .body
            .contains("/_nowserving/wait?line=sale&to=%2Fcheckout%3Fa%3D1")
    );
    gateway.stop().await;
}

#[tokio::test]
async fn with_deny_there_is_no_page() {
    let gateway =
        Gateway::without_cluster(|config| config.on_unavailable = OnUnavailable::Deny).await;
    let mut jar = Jar::default();
    jar.take(&gateway.get(WAIT, &[HTML]).await);
    let denied = gateway.get(WAIT, &[HTML, ("Cookie", &jar.header())]).await;
    assert_eq!(denied.status, 503);
    assert_eq!(
        denied.header("content-type"),
        Some("application/problem+json")
    );
    gateway.stop().await;
}

/// A proxy that waits in vain takes the gateway for dead, and may open the shop.
#[tokio::test]
async fn a_proxy_is_answered_before_it_stops_waiting_however_patient_the_gateway_is() {
    let gateway = Gateway::without_cluster(|config| {
        config.patience_ms = 60_000;
        config.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
    })
    .await;
    let mut jar = Jar::default();
    jar.take(&gateway.get(WAIT, &[HTML]).await);
    let cookies = jar.header();
    let headers = [
        HTML,
        ("Cookie", &cookies),
        ("X-Forwarded-Method", "GET"),
        ("X-Forwarded-Uri", "/checkout"),
        ("X-Forwarded-Host", "shop.example"),
    ];
    let answer = gateway.get("/gate/forward", &headers).await;
    assert_eq!(
        (answer.status, answer.page().as_str()),
        (503, "unavailable_new")
    );
    gateway.stop().await;
}

#[tokio::test]
async fn an_unknown_line_is_an_error_and_the_way_back_names_the_line_as_well() {
    let gateway = Gateway::without_cluster(|_| {}).await;
    let unknown = gateway
        .get("/_nowserving/wait?line=other&to=/", &[HTML])
        .await;
    assert_eq!((unknown.status, unknown.page().as_str()), (404, "error"));
    let by_path = gateway
        .get("/_nowserving/wait?to=%2Fcheckout%2Fx", &[HTML])
        .await;
    assert_eq!(by_path.page(), "enter");
    let none = gateway.get("/_nowserving/wait?to=%2F", &[HTML]).await;
    assert_eq!(none.page(), "error");
    assert_eq!(
        gateway
            .get("/_nowserving/v1/lines/other/status", &[])
            .await
            .status,
        404
    );
    assert_eq!(
        gateway
            .get("/_nowserving/v1/lines/a%20b/status", &[])
            .await
            .status,
        404
    );
    gateway.stop().await;
}

/// The gateway's address is easily taken for that of the shop.
#[tokio::test]
async fn a_path_of_the_shop_is_answered_with_where_the_shop_is() {
    let gateway = Gateway::without_cluster(|_| {}).await;
    let page = gateway.get("/checkout/1?a=1", &[HTML]).await;
    assert_eq!(page.status, 404);
    let kind = "text/plain; charset=utf-8";
    assert_eq!(page.header("content-type"), Some(kind));
    let problem = gateway.get("/checkout/1", &[]).await;
    assert_eq!(problem.status, 404);
    let kind = "application/problem+json";
    assert_eq!(problem.header("content-type"), Some(kind));
    for answer in [page, problem] {
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        let wait = "/_nowserving/wait?line=sale";
        assert!(answer.body.contains(wait), "{}", answer.body);
    }
    let other = gateway.get("/other", &[HTML]).await;
    assert_eq!(other.status, 404);
    assert!(!other.body.contains("wait?line"), "{}", other.body);
    gateway.stop().await;
}

/// Apps ask at its own paths by way of the proxy.
#[tokio::test]
async fn its_own_paths_are_none_of_the_shop() {
    let gateway = Gateway::without_cluster(|config| config.lines[0].paths.clear()).await;
    let unknown = gateway.get("/_nowserving/v2/lines", &[]).await;
    assert_eq!(unknown.status, 404);
    assert!(!unknown.body.contains("wait?line"), "{}", unknown.body);
    gateway.stop().await;
}

#[tokio::test]
async fn the_language_is_chosen_and_kept() {
    let gateway = Gateway::without_cluster(|_| {}).await;
    let german = gateway
        .get(WAIT, &[HTML, ("Accept-Language", "de-AT,en;q=0.5")])
        .await;
    assert!(german.body.contains("<html lang=\"de\" dir=\"ltr\""));
    let arabic = gateway.get(&format!("{WAIT}&lang=ar"), &[HTML]).await;
    assert!(arabic.body.contains("<html lang=\"ar\" dir=\"rtl\""));
    let mut jar = Jar::default();
    jar.take(&arabic);
    assert!(jar.has("nowserving.lang"));
    let again = gateway
        .get(
            WAIT,
            &[HTML, ("Cookie", &jar.header()), ("Accept-Language", "de")],
        )
        .await;
    assert!(again.body.contains("<html lang=\"ar\""));
    gateway.stop().await;
}

#[tokio::test]
async fn assets_are_kept_for_good() {
    let gateway = Gateway::without_cluster(|_| {}).await;
    let page = gateway.get(WAIT, &[HTML]).await.body;
    let (_, rest) = page.split_once("\"assets\":\"/_nowserving/page/").unwrap();
    let (hash, _) = rest.split_once('/').unwrap();
    let css = gateway
        .get(&format!("/_nowserving/page/{hash}/page.css"), &[])
        .await;
    assert_eq!(css.header("content-type"), Some("text/css; charset=utf-8"));
    assert!(css.header("cache-control").unwrap().contains("immutable"));
    for path in ["../page.css", "..%2fpage.css", "x/../../Cargo.toml", "%00"] {
        let answer = gateway
            .get(&format!("/_nowserving/page/{hash}/{path}"), &[])
            .await;
        assert!(
            (400..500).contains(&answer.status),
            "{path}: {}",
            answer.status
        );
    }
    gateway.stop().await;
}
