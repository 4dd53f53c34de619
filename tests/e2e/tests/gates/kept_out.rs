//! Who is kept out, whatever the request claims to be.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::Cluster;
use serde_json::{Value, json};

use super::front::{Front, PARTNER, TICKETS, TO};
use super::let_in;
use super::visitor::{Visitor, encoded};

/// A body that is larger than a proxy's buffers.
pub const BODY_BYTES: usize = 200_000;

pub async fn all(cluster: &Cluster, front: &Front) -> Result<()> {
    pages(front).await.context("pages")?;
    scripts(front).await.context("scripts")?;
    spoofed_headers(front).await.context("spoofed headers")?;
    paths(front).await.context("paths")?;
    other_hosts(front).await.context("other hosts")?;
    large_headers(front, front.proxy.addr)
        .await
        .context("large headers")?;
    forged_cookies(front).await.context("forged cookies")?;
    let before = next_token(cluster).await?;
    cookies_off(front).await.context("cookies off")?;
    ensure!(next_token(cluster).await? == before, "a number was taken");
    unguarded(front).await.context("paths without a line")
}

async fn pages(front: &Front) -> Result<()> {
    let mut stranger = front.stranger();
    let answer = stranger.page(TO).await?;
    front.kept_out(&answer)?;
    ensure!(answer.page().as_deref() == Some("enter"), "{answer:?}");
    let header = |name: &str| answer.head.get(name).unwrap_or_default().to_lowercase();
    ensure!(
        header("content-type").starts_with("text/html"),
        "{answer:?}"
    );
    ensure!(header("cache-control").contains("no-store"), "{answer:?}");
    ensure!(header("vary").contains("cookie"), "{answer:?}");
    ensure!(header("x-robots-tag").contains("noindex"), "{answer:?}");
    ensure!(header("retry-after").parse::<u32>().is_ok(), "{answer:?}");
    ensure!(
        header("content-security-policy").contains("default-src 'none'"),
        "{answer:?}"
    );
    ensure!(stranger.cookies.len() == 1, "the pre-cookie: {stranger:?}");

    // Its files come by the same proxy.
    let (_, script) = answer.body.split_once(" src=\"").context("a script")?;
    let (script, _) = script.split_once('"').context("a script")?;
    let script = script.replace("&#x2f;", "/");
    let script = front.stranger().fetch(&script, None).await?;
    ensure!(script.status == 200 && !script.is_shops(), "{script:?}");

    let head = front.stranger().head(TO).await?;
    front.kept_out(&head)?;
    ensure!(head.body.is_empty(), "{head:?}");
    let form = "x".repeat(BODY_BYTES);
    let posted = front.stranger().post("/tickets/buy", &form).await?;
    front.kept_out(&posted)?;
    ensure!(posted.page().is_some(), "{posted:?}");
    Ok(())
}

async fn scripts(front: &Front) -> Result<()> {
    let json = json!({"seats": "x".repeat(BODY_BYTES)}).to_string();
    for body in [None, Some("{}"), Some(json.as_str())] {
        let answer = front.stranger().fetch("/tickets/free?n=1", body).await?;
        front.kept_out(&answer)?;
        ensure!(answer.is_problem(), "{answer:?}");
    }
    for method in ["PUT", "DELETE", "PATCH"] {
        let answer = front
            .stranger()
            .ask(method, TO, &[("Accept", "*/*")], b"")
            .await?;
        front.kept_out(&answer)?;
        ensure!(answer.is_problem(), "{answer:?}");
    }
    let answer = front.stranger().web_socket("/tickets/live").await?;
    front.kept_out(&answer.context("a WebSocket to the shop")?)
}

/// Each would let the client in, if the gateway took it for the proxy's.
async fn spoofed_headers(front: &Front) -> Result<()> {
    for (name, value) in [
        ("X-Forwarded-For", PARTNER),
        ("X-Forwarded-For", "198.51.100.7, 127.0.0.1"),
        ("X-Real-IP", PARTNER),
        ("Forwarded", "for=198.51.100.7;host=elsewhere.example"),
        ("X-Client-IP", PARTNER),
        ("X-Envoy-External-Address", PARTNER),
        ("X-Forwarded-Host", "elsewhere.example"),
        ("X-Host", "elsewhere.example"),
        ("X-Forwarded-Uri", "/assets/app.css"),
        ("X-Forwarded-Method", "OPTIONS"),
        ("X-Original-URI", "/assets/app.css"),
        ("X-Original-URL", "/assets/app.css"),
        ("X-Original-Method", "OPTIONS"),
        ("X-Rewrite-URL", "/assets/app.css"),
        ("X-Envoy-Original-Path", "/assets/app.css"),
        ("X-HTTP-Method-Override", "OPTIONS"),
        ("X_Forwarded_For", PARTNER),
        ("Nowserving-Pass", "forged.by.me"),
        ("Nowserving_Pass", "forged.by.me"),
        ("Nowserving-Wait", "/assets/app.css"),
        ("Nowserving-Line", "other"),
    ] {
        let answer = front.stranger().sending(name, value).page(TO).await?;
        let check = front.kept_out(&answer);
        check.with_context(|| format!("{name}: {value}"))?;
        ensure!(
            answer.page().as_deref() == Some("enter"),
            "{name}: {answer:?}"
        );
    }
    // All at once, and to the gateway's own address.
    let wait = format!("/_nowserving/wait?line={TICKETS}&to={}", encoded(TO));
    let answer = front
        .stranger()
        .sending("X-Forwarded-For", PARTNER)
        .sending("X-Forwarded-Host", "elsewhere.example")
        .sending("X-Original-URI", "/assets/app.css")
        .page(&wait)
        .await?;
    front.kept_out(&answer)
}

/// Ways to write a path behind the line, and others that only look like it. The shop sees none of them.
pub async fn paths(front: &Front) -> Result<()> {
    for path in [
        "/tickets",
        "/tickets/",
        "//tickets/a",
        "/./tickets/a",
        "/tickets/a/../b",
        "/assets/../tickets/a",
        "/assets/%2e%2e/tickets/a",
        "/assets/..%2ftickets/a",
        "/assets/..%5ctickets/a",
        "/%74ickets/a",
        "/tickets%2fa",
        "/tickets;v=1/a",
        "/tickets;x",
        "/tickets/../tickets/a",
        "/TICKETS/a",
        "/%54ickets/a",
        "/tickets/%00",
        "/tickets%00/a",
        "/tickets\0/a",
        "/tickets\\a",
        "/tickets/a#/assets/",
        "/tickets/a?/assets/",
        "/_nowserving/../tickets/a",
        "/_nowserving/%2e%2e/tickets/a",
        "/_nowserving/..%2ftickets/a",
        "/gate/forward/../../tickets/a",
        "http://shop.example/tickets/a",
        "http://elsewhere.example/tickets/a",
        "https://shop.example:443/tickets/a",
        "shop.example/tickets/a",
        "tickets/a",
        "*",
    ] {
        let answer = front.stranger().page(path).await?;
        let check = front.shop_saw_nothing();
        check.with_context(|| format!("{path}: {answer:?}"))?;
        ensure!((400..600).contains(&answer.status), "{path}: {answer:?}");
    }
    Ok(())
}

/// A shop that answers to every name would be open under one that no line has.
pub async fn other_hosts(front: &Front) -> Result<()> {
    for host in [
        "elsewhere.example",
        "shop.example.elsewhere.example",
        "other.shop.example",
        "shop.example@elsewhere.example",
        "127.0.0.1",
        "shop.example.",
        "SHOP.EXAMPLE:8080",
        "",
    ] {
        for path in [TO, "http://shop.example/tickets/a"] {
            let mut visitor = front.stranger();
            visitor.host = host.to_owned();
            let answer = visitor.page(path).await?;
            let check = front.shop_saw_nothing();
            check.with_context(|| format!("{host:?} {path}: {answer:?}"))?;
            ensure!((400..600).contains(&answer.status), "{host:?}: {answer:?}");
        }
    }
    let mut visitor = front.stranger();
    visitor.host = "elsewhere.example".to_owned();
    let answer = visitor.page("/about").await?;
    ensure!((400..500).contains(&answer.status), "{answer:?}");
    front.shop_saw_nothing()
}

/// More than the proxy or the gateway takes: no reason to let somebody in, also not where the shop is open while no gateway
/// answers. Some end the connection before they have read it all.
pub async fn large_headers(front: &Front, proxy: SocketAddr) -> Result<()> {
    let visitor = Visitor::new(proxy);
    let mut many = visitor.clone();
    for nth in 0..300 {
        many.headers.push((format!("X-{nth}"), "y".to_owned()));
    }
    let large = |count: usize| {
        let mut visitor = visitor.clone();
        for nth in 0..count {
            visitor
                .headers
                .push((format!("X-Large-{nth}"), "y".repeat(7_000)));
        }
        visitor
    };
    let one = visitor.sending("X-One", &"y".repeat(1 << 20));
    for (what, mut visitor) in [
        ("many", many),
        ("14 KB", large(2)),
        ("28 KB", large(4)),
        ("56 KB", large(8)),
        ("140 KB", large(20)),
        ("1 MB", large(150)),
        ("one of 1 MB", one),
    ] {
        let answer = visitor.page(TO).await;
        let check = front.shop_saw_nothing();
        check.with_context(|| format!("{what}: {answer:.200?}"))?;
        if let Ok(answer) = answer {
            ensure!(
                (400..600).contains(&answer.status),
                "{what}: {answer:.200?}"
            );
        }
    }
    for length in [7_000, 12_000, 30_000, 100_000] {
        let path = format!("/tickets/{}", "a".repeat(length));
        let answer = visitor.clone().page(&path).await;
        let check = front.shop_saw_nothing();
        check.with_context(|| format!("a path of {length}: {answer:.200?}"))?;
    }
    Ok(())
}

pub async fn forged_cookies(front: &Front) -> Result<()> {
    let names = ["__Host-nowserving-tickets", "nowserving-tickets"];
    let long = "a".repeat(3_000);
    for name in names {
        for value in ["", "AAAA", "../..", "%00", &long, "\"quoted\""] {
            let cookie = format!("{name}={value}");
            let mut forger = front.stranger().sending("Cookie", &cookie);
            let answer = forger.page(TO).await?;
            let check = front.kept_out(&answer);
            check.with_context(|| format!("{cookie:.60}"))?;
        }
    }
    Ok(())
}

/// Such a client is told so, and takes no number.
async fn cookies_off(front: &Front) -> Result<()> {
    let mut without = front.stranger();
    without.keeps_cookies = false;
    let answer = without.enter(TICKETS, TO).await?;
    front.kept_out(&answer)?;
    ensure!(answer.page().as_deref() == Some("cookies"), "{answer:?}");
    let wait = format!("/_nowserving/wait?line={TICKETS}&to={}&step=2", encoded(TO));
    let answer = without.page(&wait).await?;
    front.kept_out(&answer)?;
    ensure!(answer.page().as_deref() == Some("cookies"), "{answer:?}");
    Ok(())
}

async fn next_token(cluster: &Cluster) -> Result<Value> {
    let info = cluster.api().ok(TICKETS, "info", json!({})).await?;
    Ok(info["lanes"][0]["next_token"].clone())
}

/// The shop has these as they were asked for, and no pass.
async fn unguarded(front: &Front) -> Result<()> {
    for path in [
        "/",
        "/about?x=%2F&y=a+b",
        "/assets/app.css?v=1",
        "/ticketsale",
    ] {
        for name in [
            "Nowserving-Pass",
            "nowserving-pass",
            "Nowserving_Pass",
            "NOWSERVING_PASS",
        ] {
            let mut visitor = front.stranger().sending(name, "forged.by.me");
            let asked = visitor.page(path).await?.asked()?;
            ensure!(asked["path"] == path, "{asked}");
            let_in::no_pass(&asked).with_context(|| format!("{name} {path}"))?;
        }
    }
    let form = "x".repeat(BODY_BYTES);
    let asked = front.stranger().post("/about", &form).await?.asked()?;
    ensure!(asked["body_bytes"] == BODY_BYTES, "{asked}");
    let answer = front.stranger().web_socket("/live").await?;
    ensure!(answer.is_none(), "no WebSocket: {answer:?}");
    front.shop.seen();
    Ok(())
}
