//! From the first request to the shop and back: two steps, waiting, admission, leaving.

use nowserving_client::Code;

use crate::cluster::Cluster;
use crate::common::{Answer, Gateway, HTML, Jar};

const WAIT: &str = "/_nowserving/wait?line=sale&to=%2Fcheckout%3Fa%3D1";
const FORM: &str = "line=sale&to=%2Fcheckout%3Fa%3D1";

/// A browser.
struct Browser<'a> {
    gateway: &'a Gateway,
    jar: Jar,
}

impl<'a> Browser<'a> {
    fn new(gateway: &'a Gateway) -> Browser<'a> {
        let jar = Jar::default();
        Browser { gateway, jar }
    }

    async fn get(&mut self, path: &str) -> Answer {
        let answer = self
            .gateway
            .get(path, &[HTML, ("Cookie", &self.jar.header())])
            .await;
        self.jar.take(&answer);
        answer
    }

    async fn post(&mut self, path: &str) -> Answer {
        let headers = [HTML, ("Cookie", &self.jar.header())];
        let answer = self.gateway.post(path, &headers, FORM).await;
        self.jar.take(&answer);
        answer
    }

    /// As a proxy asks for it.
    async fn at_the_gate(&mut self, gate: &str) -> Answer {
        let cookies = self.jar.header();
        let headers = [
            HTML,
            ("Cookie", &cookies),
            ("X-Original-Method", "GET"),
            ("X-Original-URI", "/checkout?a=1"),
            ("X-Forwarded-Method", "GET"),
            ("X-Forwarded-Uri", "/checkout?a=1"),
            ("X-Forwarded-Host", "shop.example"),
            ("Nowserving-Pass", "forged"),
        ];
        let answer = self.gateway.get(gate, &headers).await;
        self.jar.take(&answer);
        answer
    }
}

async fn before(cluster: &Cluster) -> Gateway {
    let gateway = Gateway::start(&cluster.url(), |config| {
        config.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
        config.patience_ms = 5_000;
    })
    .await;
    gateway.ready().await;
    gateway
}

#[tokio::test]
async fn a_number_is_taken_when_the_pre_cookie_comes_back() {
    let cluster = Cluster::start(0).await;
    let gateway = before(&cluster).await;
    let mut browser = Browser::new(&gateway);
    for _ in 0..5 {
        // Each time without cookies.
        assert_eq!(gateway.get(WAIT, &[HTML]).await.page(), "enter");
    }
    assert_eq!(browser.get(WAIT).await.page(), "enter");
    assert_eq!(cluster.asked("enter"), 0);
    let sent = browser.post("/_nowserving/enter").await;
    assert_eq!(sent.status, 303);
    assert_eq!(
        sent.header("location"),
        Some("/_nowserving/wait?line=sale&to=%2Fcheckout%3Fa%3D1")
    );
    let waiting = browser.get(WAIT).await;
    assert_eq!((waiting.status, waiting.page().as_str()), (503, "waiting"));
    // The ticket is the cookie's alone.
    assert!(!waiting.body.contains("T1"), "{}", waiting.body);
    let status = browser.get("/_nowserving/v1/lines/sale/status").await;
    assert_eq!((status.status, status.page().as_str()), (200, "waiting"));
    assert!(status.body.contains("\"position\":3") && status.body.contains("\"keeps_ms\":198000"));
    // A form that is sent again, and another tab, take no second number.
    assert_eq!(browser.post("/_nowserving/enter").await.status, 303);
    assert_eq!((cluster.entered(), cluster.asked("enter")), (1, 1));
    gateway.stop().await;
}

#[tokio::test]
async fn copies_of_a_pre_cookie_are_one_number_at_every_gateway() {
    let cluster = Cluster::start(0).await;
    let gateways = [before(&cluster).await, before(&cluster).await];
    let mut browser = Browser::new(&gateways[0]);
    browser.get(WAIT).await;
    let copy = browser.jar.clone();
    for gateway in &gateways {
        let mut tab = Browser::new(gateway);
        tab.jar = copy.clone();
        assert_eq!(tab.get(WAIT).await.page(), "waiting");
        assert!(tab.jar.has("nowserving-sale"));
    }
    assert_eq!(cluster.entered(), 1);
    for gateway in gateways {
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_page_that_is_loaded_in_advance_takes_no_number() {
    let cluster = Cluster::start(0).await;
    let gateway = before(&cluster).await;
    let mut browser = Browser::new(&gateway);
    browser.get(WAIT).await;
    let cookies = browser.jar.header();
    for more in [("Sec-Purpose", "prefetch"), ("Sec-Fetch-Dest", "empty")] {
        gateway.get(WAIT, &[HTML, ("Cookie", &cookies), more]).await;
    }
    gateway
        .ask("HEAD", WAIT, &[HTML, ("Cookie", &cookies)], "")
        .await;
    assert_eq!(cluster.asked("enter"), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn somebody_who_is_admitted_at_once_comes_to_the_shop_with_a_pass() {
    let cluster = Cluster::start(1).await;
    let gateway = before(&cluster).await;
    let mut browser = Browser::new(&gateway);
    let gate = browser.at_the_gate("/gate/nginx").await;
    assert_eq!(gate.status, 401);
    let wait = gate.header("nowserving-wait").unwrap().to_owned();
    assert_eq!(browser.get(&wait).await.page(), "enter");
    let sent = browser.post("/_nowserving/enter").await;
    assert_eq!(
        (sent.status, sent.header("location")),
        (303, Some("/checkout?a=1"))
    );
    for (gate, status) in [("/gate/nginx", 204), ("/gate/forward", 200)] {
        let through = browser.at_the_gate(gate).await;
        assert_eq!(
            (through.status, through.header("nowserving-pass")),
            (status, Some("pass.of.1"))
        );
    }
    assert_eq!((cluster.asked("claim"), cluster.entered()), (1, 1));
    gateway.stop().await;
}

#[tokio::test]
async fn without_a_script_the_second_step_enters_at_the_shop_s_own_address() {
    let cluster = Cluster::start(1).await;
    let gateway = before(&cluster).await;
    let mut browser = Browser::new(&gateway);
    let first = browser.at_the_gate("/gate/forward").await;
    assert_eq!((first.status, first.page().as_str()), (503, "enter"));
    let second = browser.at_the_gate("/gate/forward").await;
    assert_eq!(
        (second.status, second.header("location")),
        (303, Some("/checkout?a=1"))
    );
    assert_eq!(browser.at_the_gate("/gate/forward").await.status, 200);
    gateway.stop().await;
}

#[tokio::test]
async fn a_visitor_leaves_and_takes_another_number() {
    let cluster = Cluster::start(0).await;
    let gateway = before(&cluster).await;
    let mut browser = Browser::new(&gateway);
    browser.get(WAIT).await;
    browser.post("/_nowserving/enter").await;
    assert_eq!(browser.post("/_nowserving/leave").await.status, 303);
    assert_eq!(browser.get(WAIT).await.page(), "left");
    assert_eq!(cluster.entered(), 1);
    let old = browser.jar.clone();
    assert_eq!(browser.post("/_nowserving/enter").await.status, 303);
    assert_eq!(browser.get(WAIT).await.page(), "waiting");
    // The button was pressed twice.
    browser.jar = old;
    browser.post("/_nowserving/enter").await;
    assert_eq!(cluster.entered(), 2);
    cluster.end(2, "idle");
    assert_eq!(browser.get(WAIT).await.page(), "idle");
    gateway.stop().await;
}

#[tokio::test]
async fn a_refusal_is_said_and_no_ticket_is_set() {
    let cluster = Cluster::start(0).await;
    let gateway = before(&cluster).await;
    for (code, page) in [
        (Code::SoldOut, "sold_out"),
        (Code::LineFull, "full"),
        (Code::LineClosed, "closed"),
    ] {
        cluster.sale.lock().unwrap().refuses = Some(code);
        let mut browser = Browser::new(&gateway);
        browser.get(WAIT).await;
        let refused = browser.post("/_nowserving/enter").await;
        assert_eq!((refused.status, refused.page().as_str()), (503, page));
        assert!(!browser.jar.has("nowserving-sale"));
    }
    gateway.stop().await;
}

#[tokio::test]
async fn forged_and_stolen_cookies_let_nobody_in() {
    let cluster = Cluster::start(1).await;
    let gateway = before(&cluster).await;
    let mut browser = Browser::new(&gateway);
    browser.get(WAIT).await;
    browser.post("/_nowserving/enter").await;
    for cookie in [
        "nowserving-sale=forged",
        "nowserving-sale=T1; nowserving-sale=T2",
        "nowserving-other=T1",
        "nowserving-sale.pre=AAAA",
        "__Host-nowserving-sale=T1",
    ] {
        let headers = [
            HTML,
            ("Cookie", cookie),
            ("X-Original-Method", "GET"),
            ("X-Original-URI", "/checkout"),
        ];
        assert_eq!(
            gateway.get("/gate/nginx", &headers).await.status,
            401,
            "{cookie}"
        );
        let pages = ["enter", "forgotten"];
        let page = gateway.get(WAIT, &[HTML, ("Cookie", cookie)]).await.page();
        assert!(pages.contains(&page.as_str()), "{cookie}: {page}");
    }
    // A forged ticket does not stand in the way of a number.
    let mut forged = Browser::new(&gateway);
    forged.get(WAIT).await;
    let cookies = format!("{}; nowserving-sale=forged", forged.jar.header());
    let sent = gateway
        .post("/_nowserving/enter", &[HTML, ("Cookie", &cookies)], FORM)
        .await;
    assert_eq!(
        (sent.status, sent.cookie("nowserving-sale").as_deref()),
        (303, Some("T2"))
    );
    gateway.stop().await;
}

#[tokio::test]
async fn other_paths_pass_and_paths_of_two_meanings_do_not() {
    let cluster = Cluster::start(0).await;
    let gateway = before(&cluster).await;
    for (uri, status) in [
        ("/", 204),
        ("/assets/app.css", 204),
        ("/checkout", 401),
        ("//checkout", 401),
        ("/checkout/../checkout", 401),
        ("/assets/%2e%2e/checkout", 401),
        ("/check%6fut?x", 401),
        ("/checkout;x=1", 401),
        ("/assets/..%2fcheckout", 403),
        ("/assets/..;/checkout", 403),
        ("/assets\\..\\checkout", 403),
    ] {
        let headers = [HTML, ("X-Original-Method", "GET"), ("X-Original-URI", uri)];
        assert_eq!(
            gateway.get("/gate/nginx", &headers).await.status,
            status,
            "{uri}"
        );
    }
    gateway.stop().await;
}
