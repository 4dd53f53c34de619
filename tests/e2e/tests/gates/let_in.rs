//! Who is let in, and until when.

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{Cluster, eventually};
use serde_json::{Value, json};

use super::front::{Front, PATIENCE, TICKETS, TO, VIP};
use super::kept_out::BODY_BYTES;
use super::proxy::Kind;
use super::visitor::Visitor;

/// Visitors that are there at the end.
pub struct Inside {
    /// Has a seat, and has used it.
    pub admitted: Visitor,
    /// Waits.
    pub waiting: Visitor,
}

pub async fn all(cluster: &Cluster, front: &Front) -> Result<Inside> {
    let mut first = admitted(front).await.context("the first")?;
    requests(front, &mut first).await.context("requests")?;
    cookies_of_others(front, &first).await.context("cookies")?;
    admitted(front).await.context("the second")?;
    let waiting = after_the_end(cluster, front, first).await;
    let mut admitted = waiting.context("after the seat's end")?;
    // Its seat is taken by now.
    ensure!(admitted.page(TO).await?.is_shops(), "it holds a seat");
    let mut waiting = front.stranger();
    waiting.enter(TICKETS, TO).await?;
    let answer = waiting.page(TO).await?;
    ensure!(answer.page().as_deref() == Some("waiting"), "{answer:?}");
    front.shop.seen();
    Ok(Inside { admitted, waiting })
}

/// Somebody who enters while a seat is free.
pub async fn admitted(front: &Front) -> Result<Visitor> {
    let mut visitor = front.stranger();
    let answer = visitor.enter(TICKETS, TO).await?;
    ensure!(answer.status == 303, "{answer:?}");
    ensure!(answer.head.get("location") == Some(TO), "{answer:?}");
    front.shop_saw_nothing()?;
    let asked = visitor.page(TO).await?.asked()?;
    ensure!(asked["path"] == TO && asked["method"] == "GET", "{asked}");
    one_pass(&asked)?;
    front.shop.seen();
    Ok(visitor)
}

async fn requests(front: &Front, visitor: &mut Visitor) -> Result<()> {
    let form = "x".repeat(BODY_BYTES);
    let asked = visitor.post("/tickets/buy", &form).await?.asked()?;
    ensure!(
        asked["method"] == "POST" && asked["body_bytes"] == BODY_BYTES,
        "{asked}"
    );
    one_pass(&asked)?;
    let asked = visitor.fetch("/tickets/free?n=1", None).await?.asked()?;
    one_pass(&asked)?;
    let asked = visitor
        .fetch("/tickets/hold", Some("{\"n\":1}"))
        .await?
        .asked()?;
    ensure!(asked["body_begins"] == "{\"n\":1}", "{asked}");
    let head = visitor.head(TO).await?;
    ensure!(head.is_shops() && head.body.is_empty(), "{head:?}");
    let answer = visitor.web_socket("/tickets/live").await?;
    ensure!(answer.is_none(), "no WebSocket: {answer:?}");
    // As many as shops of these days set; HAProxy has 15 KB of room for all headers.
    let (count, bytes) = match front.kind {
        Kind::Haproxy => (2, 4_000),
        _ => (3, 7_000),
    };
    let mut heavy = visitor.clone();
    for nth in 0..count {
        let cookie = format!("shop{nth}={}", "c".repeat(bytes));
        heavy = heavy.sending("X-Cookies", &cookie);
    }
    one_pass(&heavy.page(TO).await?.asked()?).context("with large headers")?;
    for name in ["Nowserving-Pass", "nowserving_pass"] {
        let mut forging = visitor.sending(name, "forged.by.me");
        one_pass(&forging.page(TO).await?.asked()?).context(name)?;
    }
    front.shop.seen();
    Ok(())
}

pub async fn cookies_of_others(front: &Front, admitted: &Visitor) -> Result<()> {
    let name = |line: &str| format!("__Host-nowserving-{line}");
    let ticket = admitted.cookies.get(&name(TICKETS));
    let ticket = ticket.context("a ticket")?;
    // Of another line.
    let mut other = front.stranger();
    other.cookies.insert(name(VIP), ticket.clone());
    let answer = other.page("/vip/a").await?;
    front.kept_out(&answer).context("another line's")?;
    // Parts of it, and others that look like it.
    let (half, rest) = ticket.split_at(ticket.len() / 2);
    let last = if ticket.ends_with('A') { "B" } else { "A" };
    let changed = format!("{}{last}", &ticket[..ticket.len() - 1]);
    for forged in [
        half,
        rest,
        &changed,
        &format!("{ticket}A"),
        &ticket.to_lowercase(),
    ] {
        let mut forger = front.stranger();
        forger.cookies.insert(name(TICKETS), forged.to_owned());
        let answer = forger.page(TO).await?;
        front.kept_out(&answer).with_context(|| forged.to_owned())?;
    }
    // Two of one name: one of them was smuggled in.
    for pair in [[ticket.as_str(), "AAAA"], ["AAAA", ticket]] {
        let [one, two] = pair.map(|value| format!("{}={value}", name(TICKETS)));
        let mut twice = front.stranger().sending("Cookie", &format!("{one}; {two}"));
        front.kept_out(&twice.page(TO).await?).context("two")?;
        let mut apart = front.stranger().sending("Cookie", &one);
        apart = apart.sending("Cookie", &two);
        front
            .kept_out(&apart.page(TO).await?)
            .context("two headers")?;
    }
    Ok(())
}

/// Somebody waits by a stream until the first one's seat is free, and gets it. Returns that one.
async fn after_the_end(cluster: &Cluster, front: &Front, mut first: Visitor) -> Result<Visitor> {
    let mut next = front.stranger();
    let answer = next.enter(TICKETS, TO).await?;
    let location = answer.head.get("location").unwrap_or_default();
    ensure!(
        answer.status == 303 && location.starts_with("/_nowserving/wait?"),
        "{answer:?}"
    );
    let answer = next.page(TO).await?;
    front.kept_out(&answer)?;
    ensure!(answer.page().as_deref() == Some("waiting"), "{answer:?}");
    let status = format!("/_nowserving/v1/lines/{TICKETS}/status");
    let status = next.fetch(&status, None).await?;
    ensure!(status.status == 200, "{status:?}");
    let status: Value = serde_json::from_str(&status.body)?;
    ensure!(
        status["page"] == "waiting" && status["position"] == 1,
        "{status}"
    );
    let events = format!("/_nowserving/v1/lines/{TICKETS}/events");
    let mut stream = next.stream(&events).await?;
    // The proxy holds nothing back: the stream stays open.
    stream.until("event: phase\n").await?;

    let ticket = first.cookies.get(&format!("__Host-nowserving-{TICKETS}"));
    let complete = json!({"ticket": ticket.context("a ticket")?});
    cluster.api().ok(TICKETS, "complete", complete).await?;
    stream.until("event: admitted\n").await?;
    eventually("the first one's seat has ended", PATIENCE, async || {
        let answer = first.page(TO).await?;
        Ok((answer.page().as_deref() == Some("completed")).then_some(()))
    })
    .await?;
    front.shop.seen();
    front.kept_out(&first.post("/tickets/buy", "n=1").await?)?;
    front.kept_out(&first.fetch(TO, None).await?)?;
    let socket = first.web_socket("/tickets/live").await?;
    front.kept_out(&socket.context("a WebSocket to the shop")?)?;
    let asked = next.page(TO).await?.asked()?;
    one_pass(&asked)?;
    Ok(next)
}

/// The shop got the gateway's pass, and no other.
pub fn one_pass(asked: &Value) -> Result<()> {
    let passes = asked["passes"].as_array().context("passes")?;
    let [pass] = passes.as_slice() else {
        anyhow::bail!("not one pass: {asked}");
    };
    let pass = pass.as_str().unwrap_or_default();
    ensure!(
        pass.starts_with("ey") && pass.split('.').count() == 3,
        "{pass}"
    );
    Ok(())
}

pub fn no_pass(asked: &Value) -> Result<()> {
    ensure!(asked["passes"] == json!([]), "a pass: {asked}");
    Ok(())
}
