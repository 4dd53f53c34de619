//! Requests that mean harm: they get clear answers, and others are served meanwhile.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::common::{Gateway, HTML};

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
