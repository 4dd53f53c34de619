//! Lines with more tokens than one log entry changes: states that are seen only while background work
//! goes on, and the tokens that are forgotten in the end.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use nowserving_e2e::{Api, Format, HOUR_MS, Route, eventually, number};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

/// Tokens that one entry of the log ends at most.
const PER_ENTRY: usize = 1_024;
/// Gone tokens whose end is remembered.
const REMEMBERED: usize = 65_536;
const PATIENCE: Duration = Duration::from_secs(50);

/// A line that is being deleted refuses every `enter`. That lasts for a few log entries; if it is over
/// before the first request, the test tries again.
pub async fn closing(api: &Api) -> Result<()> {
    let mut seen = Vec::new();
    eventually("a line is seen closing", PATIENCE, async || {
        // Asked once: a repetition would hide the error.
        Ok(close_once(api, "closing", &mut seen).await.transpose())
    })
    .await??;
    eprintln!("refused by a line that closes: {}", seen.len());
    Ok(())
}

/// Adds to `seen` what was refused; done if that was in both formats.
async fn close_once(api: &Api, line: &str, seen: &mut Vec<Format>) -> Result<Option<()>> {
    let create = json!({"seats": 1, "queue_limit": 1_000_000});
    api.admin(line, "create", create).await?;
    let ticket = api.enter(line, "first").await?["ticket"].clone();
    fill(api, line, 24 * PER_ENTRY).await?;
    let deleting = api.admin(line, "delete", json!({"force": true})).await?;
    ensure!(deleting["line"] == line, "{deleting}");
    // In turn, until the line is no more.
    for nth in 0.. {
        let format = [Format::Json, Format::MsgPack][nth % 2];
        let asking = api.by(format, Route::Plain);
        let reply = asking
            .call(line, "enter", &json!({"key": format!("late-{nth}")}))
            .await?;
        match reply.code.as_deref() {
            Some("line_not_found") => break,
            _ => drop(reply.refused(format, Code::LineClosed)?),
        }
        seen.push(format);
    }
    // Its tickets have gone with it.
    let status = json!({"ticket": ticket});
    api.refused(line, "status", status, Code::LineNotFound)
        .await?;
    let both = seen.contains(&Format::Json) && seen.contains(&Format::MsgPack);
    Ok(both.then_some(()))
}

/// A crowd is admitted when its line opens and ended when it closes, in a few log entries each: no later
/// token overtakes during the one, and nothing changes the line during the other.
pub async fn opened_and_closed(api: &Api) -> Result<()> {
    let line = "large-phases";
    let crowd = 8 * PER_ENTRY as u64;
    let settings = json!({
        "seats": crowd, "queue_limit": 1_000_000, "phase": "pre_open", "token_events": false,
        "waiting_idle_timeout_ms": HOUR_MS, "claim_timeout_ms": HOUR_MS,
    });
    api.admin(line, "create", settings).await?;
    fill(api, line, 8 * PER_ENTRY).await?;
    let open = json!({"phase": "open"});
    api.admin(line, "configure", open.clone()).await?;
    // Free seats are not for later entrants yet.
    let late = api.enter(line, "late").await?;
    ensure!(late["state"] == "waiting", "{late}");
    let shown = eventually("all are admitted", PATIENCE, async || {
        let shown = api.admin(line, "show", json!({})).await?;
        Ok((number(&shown["counts"], "admitted")? >= crowd).then_some(shown))
    })
    .await?;
    ensure!(shown["counts"]["admitted"] == crowd, "{shown}");
    let late = api.status(line, &late["ticket"]).await?;
    ensure!(late["position"] == 1, "{late}");

    api.admin(line, "configure", json!({"phase": "closed"}))
        .await?;
    let subject = format!("nowserving.admin.line.{line}.configure");
    let body = serde_json::to_vec(&open)?;
    let mut refused = 0;
    let opened = eventually("it can be opened again", PATIENCE, async || {
        let reply = api.call_subject(&subject, body.clone()).await?;
        if reply.code.is_none() {
            return Ok(Some(Ok(reply.body)));
        }
        refused += 1;
        // Nothing else is "not yet".
        let other = reply.refused(Format::Json, Code::LineClosed).err();
        Ok(other.map(Err))
    })
    .await??;
    eprintln!("refused by a line that closes its phase: {refused}");
    ensure!(opened["counts"]["gone"]["closed"] == crowd + 1, "{opened}");
    let next = api.enter(line, "next").await?;
    ensure!(next["token"] == crowd + 2, "{next}");
    ensure!(next["state"] == "admitted", "{next}");
    Ok(())
}

/// Of the many that are gone, the oldest are only known to be gone.
pub async fn forgotten(api: &Api) -> Result<()> {
    let line = "forgotten";
    // Every token here is recycled at once: that costs no request.
    let settings = json!({
        "seats": 1, "queue_limit": 1_000_000, "waiting_idle_timeout_ms": 100,
        "claim_timeout_ms": HOUR_MS, "token_events": false,
    });
    api.admin(line, "create", settings).await?;
    let first = api.enter(line, "first").await?["ticket"].clone();
    let ticket = json!({"ticket": first});
    api.ok(line, "leave", ticket.clone()).await?;
    let start = Instant::now();
    let last = fill(api, line, REMEMBERED + 10).await?;
    eprintln!("{REMEMBERED} entered in {:?}", start.elapsed());
    eventually("they are gone", PATIENCE, async || {
        let shown = api.admin(line, "show", json!({})).await?;
        let idle = number(&shown["counts"]["gone"], "idle")?;
        let waiting = number(&shown["counts"], "waiting")?;
        // All but the first of them, which got the seat. One that entered again when its answer was lost counts twice.
        Ok((idle >= REMEMBERED as u64 + 9 && waiting == 0).then_some(()))
    })
    .await?;

    for api in [api.clone(), api.by(Format::MsgPack, Route::Plain)] {
        let status = api.ok(line, "status", ticket.clone()).await?;
        ensure!(
            status["state"] == "gone" && status["reason"] == "forgotten",
            "{status}"
        );
        // Its reason is forgotten: so not even the operation that ended it can be repeated.
        for op in ["leave", "claim", "complete"] {
            let error = api.refused(line, op, ticket.clone(), Code::TokenGone);
            let error = error.await?;
            ensure!(error["reason"] == "forgotten", "{op}: {error}");
        }
        let status = api.status(line, &last).await?;
        ensure!(status["reason"] == "idle", "{status}");
    }
    Ok(())
}

/// Enters this many times, a few hundred at once. Returns the ticket of one of the last.
async fn fill(api: &Api, line: &str, count: usize) -> Result<Value> {
    let enters = futures::stream::iter((0..count).map(|nth| async move {
        let status = api.enter(line, &format!("k{nth}")).await?;
        anyhow::Ok(status["ticket"].clone())
    }));
    let mut enters = enters.buffered(512);
    let mut last = None;
    while let Some(ticket) = enters.next().await {
        last = Some(ticket?);
    }
    last.context("nobody entered")
}
