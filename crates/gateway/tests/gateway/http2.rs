//! HTTP/2 as bytes: what a browser would not send.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;

use crate::frames::{DATA, END_HEADERS, END_STREAM, GO_AWAY, HEADERS, PING, frame, greeting, next};
use crate::tls::{Secure, Secured};

const PATIENCE: Duration = Duration::from_secs(20);
const RESET: u8 = 3;
const ENHANCE_YOUR_CALM: [u8; 4] = [0, 0, 0, 11];

/// HPACK without its table.
fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        for text in [name, value] {
            bytes.push(u8::try_from(text.len()).unwrap());
            bytes.extend_from_slice(text.as_bytes());
        }
    }
    bytes
}

fn request<'a>(method: &'a str, path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<u8> {
    let own = [
        (":method", method),
        (":scheme", "https"),
        (":path", path),
        (":authority", "localhost"),
    ];
    fields(&[&own, more].concat())
}

/// The first frame about this stream, or about the whole connection if that ends: its kind and what it has.
async fn first_about(client: &mut Secure, stream: u32) -> (u8, Vec<u8>) {
    let read = async {
        loop {
            let (kind, _, about, payload) = next(client).await.unwrap();
            if about == stream || kind == GO_AWAY {
                return (kind, payload);
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap()
}

async fn greeted(gateway: &Secured) -> Secure {
    let mut client = gateway.client(b"h2").await;
    client.write_all(&greeting(&[])).await.unwrap();
    client
}

/// Each would be another request for a server behind that speaks HTTP/1.
#[tokio::test]
async fn requests_that_are_none_are_refused_and_others_answered() {
    let gateway = Secured::start().await;
    let malformed: [&[(&str, &str)]; 9] = [
        &[("transfer-encoding", "chunked")],
        &[("connection", "close")],
        &[("content-length", "5"), ("content-length", "6")],
        &[("content-length", "x")],
        // Shorter and longer than the body.
        &[("content-length", "3")],
        &[("content-length", "30")],
        &[("x", "a\r\nb: c")],
        &[("X-Upper", "a")],
        &[(":path", "/other")],
    ];
    for more in malformed {
        let mut client = greeted(&gateway).await;
        let headers = request("POST", "/_nowserving/enter", more);
        let mut sent = frame(HEADERS, END_HEADERS, 1, &headers);
        sent.extend(frame(DATA, END_STREAM, 1, b"line=sale"));
        client.write_all(&sent).await.unwrap();
        let (kind, payload) = first_about(&mut client, 1).await;
        // Some end the stream, others the connection.
        assert!(
            kind == RESET || kind == GO_AWAY,
            "{more:?}: {kind} {payload:?}"
        );
    }
    let mut client = greeted(&gateway).await;
    let healthy = request("GET", "/healthz", &[]);
    let sent = frame(HEADERS, END_STREAM | END_HEADERS, 1, &healthy);
    client.write_all(&sent).await.unwrap();
    let (kind, payload) = first_about(&mut client, 1).await;
    // `:status 200` of HPACK's table.
    assert_eq!((kind, payload.first()), (HEADERS, Some(&0x88)));
    drop(client);
    gateway.stop().await;
}

/// The list of headers has a length, which the settings say.
#[tokio::test]
async fn large_headers_are_refused() {
    let gateway = Secured::start().await;
    let mut client = greeted(&gateway).await;
    let long = "x".repeat(100);
    let many: Vec<(&str, &str)> = vec![("x-many", &long); 150];
    let sent = frame(
        HEADERS,
        END_STREAM | END_HEADERS,
        1,
        &request("GET", "/healthz", &many),
    );
    client.write_all(&sent).await.unwrap();
    let (kind, payload) = first_about(&mut client, 1).await;
    let is_431 = kind == HEADERS && payload.windows(3).any(|it| it == b"431");
    // HPACK may have the digits by Huffman's code.
    let is_refused = kind == HEADERS && payload.first() != Some(&0x88);
    assert!(
        is_431 || is_refused || kind == RESET || kind == GO_AWAY,
        "{kind} {payload:?}"
    );
    drop(client);
    gateway.stop().await;
}

/// A stream that is begun and taken back, again and again, makes the gateway work for nothing.
#[tokio::test]
async fn rapid_resets_end_the_connection_and_nothing_else() {
    let gateway = Secured::start().await;
    let mut client = greeted(&gateway).await;
    let mut sent = Vec::new();
    let get = request("GET", "/_nowserving/wait?line=sale", &[]);
    for stream in (1..4_000).step_by(2) {
        for (kind, flags, payload) in [
            (HEADERS, END_STREAM | END_HEADERS, get.as_slice()),
            (RESET, 0, &[0, 0, 0, 8]),
        ] {
            sent.extend(frame(kind, flags, stream, payload));
        }
    }
    let _ = client.write_all(&sent).await;
    // To take them all would be to answer this.
    let _ = client.write_all(&frame(PING, 0, 0, &[7; 8])).await;
    let ends = async {
        while let Some((kind, _, _, payload)) = next(&mut client).await {
            assert!(kind != PING || payload != [7; 8], "it has taken them all");
            if kind == GO_AWAY {
                assert_eq!(payload[4..8], ENHANCE_YOUR_CALM, "{payload:?}");
            }
        }
    };
    // What it says may be lost: it ends the connection before it has read all.
    tokio::time::timeout(PATIENCE, ends).await.unwrap();
    let page = gateway.page().await;
    assert!(page.starts_with("HTTP/1.1 503"), "{page}");
    drop(client);
    gateway.stop().await;
}
