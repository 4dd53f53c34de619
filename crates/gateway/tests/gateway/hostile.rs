//! Requests that mean harm: they get clear answers, and others are served meanwhile.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::common::{Gateway, HTML};
use crate::frames::greeting;

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or(answer)
}

#[tokio::test]
async fn large_headers_are_refused() {
    let gateway = Gateway::without_cluster(|_| {}).await;
    let one = format!(
        "GET /healthz HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
        "x".repeat(1 << 20)
    );
    let answer = gateway.raw(one.as_bytes()).await;
    assert!(matches!(status(&answer), "431" | ""), "{answer}");
    let many = format!(
        "GET /healthz HTTP/1.1\r\nHost: a\r\n{}\r\n",
        "X: y\r\n".repeat(1_000)
    );
    let answer = gateway.raw(many.as_bytes()).await;
    assert!(matches!(status(&answer), "431" | ""), "{answer}");
    assert_eq!(gateway.get("/healthz", &[]).await.status, 200);
    gateway.stop().await;
}

/// A proxy asks with all headers that it has taken itself. To be refused them looks to some as if no gateway answered.
#[tokio::test]
async fn a_trusted_proxy_may_send_more_headers() {
    let cookies = "x".repeat(60_000);
    let headers = [
        ("X-Original-Method", "GET"),
        ("X-Original-URI", "/checkout"),
        ("Cookie", &cookies),
    ];
    let strangers = Gateway::without_cluster(|_| {}).await;
    assert_eq!(strangers.get("/gate/nginx", &headers).await.status, 431);
    strangers.stop().await;
    let gateway = Gateway::without_cluster(|config| {
        config.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
    })
    .await;
    assert_eq!(gateway.get("/gate/nginx", &headers).await.status, 401);
    let cookies = "x".repeat(70_000);
    let answer = gateway.get("/gate/nginx", &[("Cookie", &cookies)]).await;
    assert_eq!(answer.status, 431);
    // Many ones, which come by several reads: a refusal before all is read would be lost with the connection.
    let many = format!(
        "GET /gate/nginx HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Original-Method: GET\r\n\
         X-Original-URI: /checkout\r\n{}\r\n",
        "x: 0123456789\r\n".repeat(2_000)
    );
    let answer = gateway.raw(many.as_bytes()).await;
    assert_eq!(status(&answer), "401", "{answer}");
    gateway.stop().await;
}

/// What is behind the gate is the shop of the hosts that are named.
#[tokio::test]
async fn hosts_that_no_rule_names_are_refused() {
    let gateway = Gateway::without_cluster(|config| {
        config.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
        config.lines[0].hosts = vec!["other.example".to_owned()];
    })
    .await;
    let headers = [
        ("X-Original-Method", "GET"),
        ("X-Original-URI", "/"),
        ("X-Forwarded-Method", "GET"),
        ("X-Forwarded-Uri", "/"),
        ("X-Forwarded-Host", "shop.example"),
    ];
    // `Host` is the same.
    for path in ["/gate/nginx", "/gate/forward"] {
        assert_eq!(gateway.get(path, &headers).await.status, 403, "{path}");
    }
    let headers = [
        ("X-Forwarded-Method", "GET"),
        ("X-Forwarded-Uri", "/"),
        ("X-Forwarded-Host", "other.example"),
    ];
    assert_eq!(gateway.get("/gate/forward", &headers).await.status, 200);
    gateway.stop().await;
}

/// What one server takes for the end of a request and another for its middle.
#[tokio::test]
async fn requests_of_two_lengths_are_refused() {
    let gateway = Gateway::without_cluster(|_| {}).await;
    for headers in [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5, 6\r\n",
        "Content-Length: +5\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
        "Content-Length : 5\r\n",
        "Folded: a\r\n b: c\r\n",
    ] {
        let smuggled = "GET /readyz HTTP/1.1\r\nHost: b\r\n\r\n";
        let request =
            format!("POST /_nowserving/enter HTTP/1.1\r\nHost: a\r\n{headers}\r\n{smuggled}");
        let answer = gateway.raw(request.as_bytes()).await;
        assert_eq!(status(&answer), "400", "{headers:?}: {answer}");
        assert_eq!(
            answer.matches("HTTP/1.1").count(),
            1,
            "{headers:?}: {answer}"
        );
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_form_has_a_length_and_comes_from_the_shop() {
    let gateway = Gateway::without_cluster(|_| {}).await;
    let long = format!("line=sale&to={}", "x".repeat(100_000));
    let answer = gateway.post("/_nowserving/enter", &[HTML], &long).await;
    assert_eq!((answer.status, answer.page().as_str()), (413, "error"));
    for site in ["cross-site", "same-site"] {
        let headers = [HTML, ("Sec-Fetch-Site", site)];
        for path in ["/_nowserving/enter", "/_nowserving/leave"] {
            let answer = gateway.post(path, &headers, "line=sale&to=/").await;
            assert_eq!(
                (answer.status, answer.page().as_str()),
                (403, "error"),
                "{path}"
            );
        }
    }
    // Older browsers say the origin alone, and programs nothing.
    for (origin, status) in [
        ("https://other.shop.example", 403),
        ("null", 403),
        ("https://shop.example", 503),
    ] {
        let headers = [HTML, ("Origin", origin)];
        for path in ["/_nowserving/enter", "/_nowserving/leave"] {
            let answer = gateway.post(path, &headers, "line=sale&to=/").await;
            let wanted = if path.ends_with("leave") && status == 503 {
                303
            } else {
                status
            };
            assert_eq!(answer.status, wanted, "{origin} {path}");
        }
    }
    assert_eq!(gateway.get("/_nowserving/leave", &[HTML]).await.status, 405);
    gateway.stop().await;
}

#[tokio::test]
async fn the_page_leads_to_the_shop_alone() {
    let gateway = Gateway::without_cluster(|_| {}).await;
    for to in [
        "https%3A%2F%2Fevil.example",
        "%2F%2Fevil.example",
        "%2F%5Cevil.example",
        "javascript%3Aalert(1)",
    ] {
        let page = gateway
            .get(&format!("/_nowserving/wait?line=sale&to={to}"), &[HTML])
            .await;
        assert_eq!(page.page(), "enter");
        assert!(
            !page.body.contains("evil") && !page.body.contains("alert"),
            "{to}"
        );
    }
    gateway.stop().await;
}

#[tokio::test]
async fn connections_that_say_nothing_keep_nobody_out() {
    let gateway = Gateway::without_cluster(|config| {
        config.streams_max = 10;
        config.connections_max = 200;
    })
    .await;
    let mut silent = Vec::new();
    for nth in 0..600 {
        let mut stream = TcpStream::connect(gateway.addr).await.unwrap();
        if nth % 3 == 0 {
            let _ = stream.write_all(b"GET /healthz HT").await;
        }
        silent.push(stream);
    }
    // Each one that is refused makes room for the next one.
    let answered = async {
        loop {
            let request = "GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            if status(&gateway.raw(request.as_bytes()).await) == "200" {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), answered)
        .await
        .unwrap();
    drop(silent);
    gateway.stop().await;
}

/// Where Envoy asks, nobody else takes a connection.
#[tokio::test]
async fn strangers_are_not_heard_where_envoy_asks() {
    for (trusted, is_greeted) in [("127.0.0.1/32", true), ("192.0.2.1/32", false)] {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let envoy = free.local_addr().unwrap();
        drop(free);
        let gateway = Gateway::without_cluster(|config| {
            config.envoy_listen = Some(envoy);
            config.trusted_proxies = vec![trusted.parse().unwrap()];
        })
        .await;
        let mut stream = TcpStream::connect(envoy).await.unwrap();
        let _ = stream.write_all(&greeting(&[])).await;
        let mut answer = [0; 1];
        let read = stream.read(&mut answer);
        let read = tokio::time::timeout(Duration::from_secs(20), read).await;
        assert_eq!(matches!(read.unwrap(), Ok(1)), is_greeted, "{trusted}");
        drop(stream);
        gateway.stop().await;
    }
}

/// One address cannot take all connections, not even by asking for something.
#[tokio::test]
async fn one_address_has_a_part_of_the_connections() {
    const MAX: usize = 20;
    let gateway = Gateway::without_cluster(|config| config.address_connections_max = MAX).await;
    let mut open = Vec::new();
    for _ in 0..MAX {
        let stream = kept(&gateway, Ipv4Addr::LOCALHOST).await;
        open.push(stream.expect("one of those that it may have"));
    }
    assert!(kept(&gateway, Ipv4Addr::LOCALHOST).await.is_none());
    // Somebody else.
    let other = kept(&gateway, Ipv4Addr::new(127, 0, 0, 2)).await;
    drop(other.expect("of another address"));
    open.pop();
    let again = async { while kept(&gateway, Ipv4Addr::LOCALHOST).await.is_none() {} };
    tokio::time::timeout(Duration::from_secs(20), again)
        .await
        .unwrap();
    drop(open);
    gateway.stop().await;
}

/// All visitors come by one proxy, and so do its questions.
#[tokio::test]
async fn a_proxy_finds_room_to_ask_whatever_visitors_do() {
    let gateway = Gateway::without_cluster(|config| {
        config.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
        config.streams_max = 10;
        config.connections_max = 110;
    })
    .await;
    // Fewer than half of the 100 beside streams are left.
    let mut open = Vec::new();
    for _ in 0..65 {
        open.push(
            kept(&gateway, Ipv4Addr::LOCALHOST)
                .await
                .expect("one of 110"),
        );
    }
    let answer = gateway.get("/_nowserving/wait?line=sale", &[HTML]).await;
    assert_eq!(
        (answer.status, answer.header("retry-after")),
        (503, Some("10"))
    );
    let elsewhere = kept(&gateway, Ipv4Addr::new(127, 0, 0, 2)).await;
    assert!(elsewhere.is_none(), "not by way of the proxy");
    let question = [
        ("X-Original-Method", "GET"),
        ("X-Original-URI", "/checkout"),
    ];
    assert_eq!(gateway.get("/gate/nginx", &question).await.status, 401);
    open.truncate(10);
    let again = async {
        while gateway
            .get("/_nowserving/wait?line=sale", &[HTML])
            .await
            .page()
            != "enter"
        {}
    };
    tokio::time::timeout(Duration::from_secs(20), again)
        .await
        .unwrap();
    drop(open);
    gateway.stop().await;
}

/// A connection that has got an answer and stays open; `None` if there was none.
async fn kept(gateway: &Gateway, from: Ipv4Addr) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    let mut stream = socket.connect(gateway.addr).await.unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    while !answer.ends_with(b"ok\n") {
        match stream.read_buf(&mut answer).await {
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
    }
    Some(stream)
}

/// It is not waited for.
#[tokio::test]
async fn a_stop_does_not_wait_for_idle_connections() {
    let gateway = Gateway::without_cluster(|_| {}).await;
    let mut idle = TcpStream::connect(gateway.addr).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    gateway.stop().await;
}
