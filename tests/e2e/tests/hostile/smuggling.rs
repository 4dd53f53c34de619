//! Requests that a proxy and the gateway behind it could take for different ones. If they did, the gateway would get a
//! request that the proxy has not seen, and answer it to somebody else.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::eventually;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::gates::front::{Front, PATIENCE};
use crate::gates::let_in;
use crate::gates::visitor::{FROM, Visitor, connect};

/// A proxy may wait for more of a request: it is broken off.
const WAITS: Duration = Duration::from_secs(3);
/// Of other visitors after each attempt, by the connections that the proxy keeps.
const OTHERS: usize = 4;
/// Everybody may ask the shop for it: a gateway that was asked about it says yes to the whole of what follows.
const OPEN: &str = "/about";

pub async fn through(front: &Front) -> Result<()> {
    // No client can ask the gateway for it: a proxy asks the gateway about it, and then the shop for it. Gateways of one
    // test share a log.
    let smuggled = format!("/gate/smuggled-{}", front.kind.name());
    for (nth, attempt) in attempts(&smuggled).into_iter().enumerate() {
        let name = attempt.name.clone();
        one(front, &attempt).await.with_context(|| name.clone())?;
        others(front, nth).await.with_context(|| name.clone())?;
        let seen = front.shop.seen();
        ensure!(
            !seen.iter().any(|it| it.contains("/tickets")),
            "{name}: the shop saw {seen:?}"
        );
        let log = front.gateway.process().printed()?;
        ensure!(!log.contains(&smuggled), "{name}: the gateway was asked");
    }
    // Had it come, the log would have it.
    let mut direct = Visitor::new(front.gateway.addr());
    direct.page(&smuggled).await?;
    eventually("the log has it", PATIENCE, async || {
        let log = front.gateway.process().printed()?;
        Ok(log.contains(&smuggled).then_some(()))
    })
    .await
}

/// A first request, and what could be taken for a second one.
struct Attempt {
    name: String,
    /// The first request may reach the shop.
    may_pass: bool,
    bytes: String,
}

fn attempts(path: &str) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    let mut add = |method: &str, path: &str, headers: &str, body: &str| {
        attempts.push(Attempt {
            name: format!("{method} {path} {headers:?}"),
            may_pass: path == OPEN,
            bytes: format!(
                "{method} {path} HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n{headers}\r\n{body}"
            ),
        });
    };
    // To the gateway itself, to the shop by somebody who is not admitted, and with what may pass.
    for (path, smuggled) in [
        ("/_nowserving/enter", path),
        ("/tickets/buy", path),
        (OPEN, "/tickets/a"),
    ] {
        let smuggled = format!(
            "GET {smuggled} HTTP/1.1\r\nHost: shop.example\r\nNowserving-Pass: forged.by.me\r\n\r\n"
        );
        let all = smuggled.len();
        // Within a chunk; by the length it would be the next request.
        let chunked = format!("{all:x}\r\n{smuggled}\r\n0\r\n\r\n");
        for headers in [
            "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
            "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: Chunked\r\nContent-Length: 4\r\n",
        ] {
            add("POST", path, headers, &chunked);
        }
        // Within the length; by the chunks it would be the next request. Whoever takes this for chunks is wrong.
        let after_chunks = format!("0\r\n\r\n{smuggled}");
        let length = after_chunks.len();
        for encoding in [
            "Transfer-Encoding: xchunked",
            "Transfer-Encoding : chunked",
            " Transfer-Encoding: chunked",
            "Transfer-Encoding: x\r\n chunked",
            "Transfer-Encoding:\u{b}chunked",
            "Transfer-Encoding: chunked\u{b}",
            "Transfer-Encoding: \"chunked\"",
            "Transfer-Encoding: chunked, identity",
            "Transfer-Encoding\u{0}: chunked",
            "Transfer_Encoding: chunked",
            "X: y\nTransfer-Encoding: chunked",
            "X: y\rTransfer-Encoding: chunked",
            "Transfer-Encoding: chunk\r\nX: chunked",
        ] {
            let headers = format!("Content-Length: {length}\r\n{encoding}\r\n");
            add("POST", path, &headers, &after_chunks);
        }
        for headers in [
            format!("Content-Length: {all}\r\nContent-Length: 0\r\n"),
            format!("Content-Length: 0\r\nContent-Length: {all}\r\n"),
            format!("Content-Length: 0, {all}\r\n"),
            format!("Content-Length: +{all}\r\n"),
            format!("Content-Length: {all} \r\nX: y\r\n"),
            format!("Content-Length: {all}\r\nConnection: Content-Length\r\n"),
            format!("Content-Length: {all}\r\nExpect: 100-continue\r\n"),
            format!("Content-Length: {all}\r\nExpect: nothing\r\n"),
            "Content-Length: 18446744073709551616\r\n".to_owned(),
            "Content-Length: -1\r\n".to_owned(),
        ] {
            add("POST", path, &headers, &smuggled);
            add("GET", path, &headers, &smuggled);
        }
        // Sizes and extensions of chunks that not all read in the same way.
        for body in [
            format!("2;\nxy\r\n{all:x}\r\n{smuggled}\r\n0\r\n\r\n"),
            format!("0x{all:x}\r\n{smuggled}\r\n0\r\n\r\n"),
            format!("1{:016x}\r\n{smuggled}\r\n0\r\n\r\n", all),
            format!("{all:x};a=\"\r\n\"\r\n{smuggled}\r\n0\r\n\r\n"),
            format!("-{all:x}\r\n{smuggled}\r\n0\r\n\r\n"),
        ] {
            add("POST", path, "Transfer-Encoding: chunked\r\n", &body);
        }
        let upgrade = "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n";
        add("GET", path, upgrade, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    }
    attempts
}

/// It gets one answer at most, of the shop only where that may be asked, and to the first request alone.
async fn one(front: &Front, attempt: &Attempt) -> Result<()> {
    let mut stream = connect(FROM, front.proxy.addr).await?;
    // It may be refused before it was read.
    let _ = stream.write_all(attempt.bytes.as_bytes()).await;
    let mut answers = Vec::new();
    let _ = tokio::time::timeout(WAITS, stream.read_to_end(&mut answers)).await;
    let answers = String::from_utf8_lossy(&answers);
    // One that only says to go on is none. The shop repeats how a body begins, in which no version stands before a space.
    let goes_on = answers.matches("HTTP/1.1 100 ").count();
    let heads = answers.matches("HTTP/1.1 ").count() + answers.matches("HTTP/1.0 ").count();
    let heads = heads - goes_on;
    ensure!(heads <= 1, "{heads} answers: {answers}");
    ensure!(!answers.contains(" 101 "), "{answers}");
    let is_shops = answers.to_ascii_lowercase().contains("x-shop: yes");
    ensure!(attempt.may_pass || !is_shops, "{answers}");
    let is_first = answers.contains(&format!("\"path\":\"{OPEN}\""));
    ensure!(
        !is_shops || is_first && answers.contains("\"passes\":[]"),
        "{answers}"
    );
    Ok(())
}

/// Each gets the answer to its own request.
async fn others(front: &Front, nth: usize) -> Result<()> {
    for other in 0..OTHERS {
        let own = format!("own-{nth}-{other}");
        let path = format!("{OPEN}?{own}");
        let asked = front.stranger().page(&path).await?.asked()?;
        ensure!(asked["path"] == path, "{asked}");
        let_in::no_pass(&asked)?;
        let path = format!("/_nowserving/wait?line=tickets&to=%2Ftickets%2F{own}");
        let answer = front.stranger().page(&path).await?;
        ensure!(
            answer.page().as_deref() == Some("enter") && answer.body.contains(&own),
            "{answer:?}"
        );
        let answer = front.stranger().page(&format!("/tickets/{own}")).await?;
        ensure!(
            answer.page().as_deref() == Some("enter") && answer.body.contains(&own),
            "{answer:?}"
        );
    }
    Ok(())
}
