//! Shown times are of the wall clock, however long the shards' service clocks stood still.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Api, CLOCKS_APART_MS, Cluster, HOUR_MS, number};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::events;

/// The contract allows this difference between `at_ms` and the wall clock of the node that answers.
const OFF_MS_MAX: u64 = 1_000;
/// For this long there is no leader: much longer than the contract's tolerance.
const IDLE: Duration = Duration::from_secs(4);
const LINE: &str = "clocks";

/// All nodes are killed; the next ones start after an idle time in which no clock of a shard runs.
pub async fn show_the_wall_clock(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let settings = json!({
        "seats": 3, "queue_limit": 10, "claim_timeout_ms": HOUR_MS, "checkout_timeout_ms": HOUR_MS / 2,
    });
    let (made, made_at) = timed(api.admin(LINE, "create", settings)).await?;
    made_at.has(&made["board"], "at_ms")?;
    made_at.has(&made, "created_at_ms")?;
    let (old, old_at) = user(&api, "enter", json!({"key": "old"})).await?;
    old_at.has(&old, "entered_at_ms")?;
    let limited = format!(
        "domain: {LINE}\ndescriptors:\n  - {{key: ip, rate_limit: {{unit: minute, requests_per_unit: 100, exact: true}}}}\n"
    );
    api.apply_rules(LINE, &limited).await?;
    // It is in the log: without that the shard's clock would begin anew by the wall clock.
    ends_on_the_minute(&api).await?;

    let ids: Vec<u64> = cluster.ids().collect();
    for id in &ids {
        cluster.process(*id)?.signal(Signal::KILL)?;
    }
    for id in &ids {
        cluster.process(*id)?.ended(Duration::from_secs(5)).await?;
    }
    // This is the idle time itself: it waits for no condition.
    tokio::time::sleep(IDLE).await;
    for id in &ids {
        cluster.start_node(*id).await?;
    }
    cluster.wait_ready().await?;

    let mut incoming = api.subscribe(format!("nowserving.event.{LINE}.>")).await?;
    let (new, new_at) = user(&api, "enter", json!({"key": "new"})).await?;
    new_at.has(&new, "entered_at_ms")?;
    remains(&new, HOUR_MS, &new_at)?;
    for _ in 0..2 {
        // The token's event and the board, in either order.
        let event = events::next(&mut incoming).await?;
        Span {
            to: now_ms()?,
            ..new_at
        }
        .has(&event, "at_ms")?;
    }
    everything_else(&api, &old, &new).await?;
    ends_on_the_minute(&api).await?;
    let shown = api.admin(LINE, "show", json!({})).await?;
    ensure!(shown["created_at_ms"] == made["created_at_ms"], "{shown}");
    shown_times(&api, &[("old", &old, &old_at), ("new", &new, &new_at)]).await
}

/// The window of a rate limit.
async fn ends_on_the_minute(api: &Api) -> Result<()> {
    const MINUTE_MS: u64 = 60_000;
    let ask = json!({"descriptors": [[{"key": "ip", "value": "a"}]]});
    let (checked, span) = timed(async {
        let checked = api.check(LINE, &ask).await?;
        checked.accepted(api.format())
    })
    .await?;
    let reset_ms = number(&checked, "reset_ms")?;
    let earliest = span.from.saturating_sub(OFF_MS_MAX) + reset_ms;
    let latest = span.to + OFF_MS_MAX + reset_ms;
    ensure!(
        latest / MINUTE_MS * MINUTE_MS >= earliest,
        "no minute ends from {earliest} to {latest}: {checked}"
    );
    Ok(())
}

async fn everything_else(api: &Api, old: &Value, new: &Value) -> Result<()> {
    let ticket = json!({"ticket": new["ticket"]});
    let (claimed, span) = user(api, "claim", ticket.clone()).await?;
    remains(&claimed, HOUR_MS / 2, &span)?;
    let renew = json!({"ticket": new["ticket"], "epoch": claimed["epoch"]});
    let (renewed, span) = user(api, "renew", renew).await?;
    remains(&renewed, HOUR_MS / 2, &span)?;
    for consistency in ["leader", "linearizable", "local"] {
        let ask = json!({"ticket": old["ticket"], "consistency": consistency});
        let (status, _) = user(api, "status", ask).await?;
        ensure!(status["entered_at_ms"] == old["entered_at_ms"], "{status}");
        // The service clock stood still without a leader: the deadline is later than shown, not earlier.
        let (first, later) = (
            number(old, "expires_at_ms")?,
            number(&status, "expires_at_ms")?,
        );
        ensure!(later + CLOCKS_APART_MS >= first, "{status} after {old}");
        ensure!(number(&status, "expires_in_ms")? <= HOUR_MS, "{status}");
        user(api, "info", json!({"consistency": consistency})).await?;
    }
    user(api, "find", json!({"key": "new"})).await?;
    let (done, _) = user(api, "complete", ticket).await?;
    ensure!(done.get("expires_at_ms").is_none(), "{done}");
    ensure!(done.get("expires_in_ms").is_none(), "{done}");
    Ok(())
}

/// The journal has the same times, of before the crash and after.
async fn shown_times(api: &Api, people: &[(&str, &Value, &Span)]) -> Result<()> {
    for (key, status, span) in people {
        let ask = json!({"token": status["token"]});
        let page = api.admin(LINE, "journal", ask).await?;
        let entered = &status["entered_at_ms"];
        ensure!(
            page["explain"]["entered_at_ms"] == *entered,
            "{key}: {page}"
        );
        for (entry, what) in [(0, "entered"), (1, "admitted")] {
            let entry = &page["entries"][entry];
            ensure!(entry["what"] == what, "{key}: {page}");
            ensure!(entry["entered_at_ms"] == *entered, "{key}: {page}");
            span.has(entry, "at_ms")?;
        }
    }
    Ok(())
}

/// A request of a user; every reply to one has an `at_ms`, and what it says of a deadline fits.
async fn user(api: &Api, op: &str, body: Value) -> Result<(Value, Span)> {
    let (reply, span) = timed(api.ok(LINE, op, body)).await?;
    span.has(&reply, "at_ms")?;
    if reply.get("expires_at_ms").is_some() || reply.get("expires_in_ms").is_some() {
        let at_ms = number(&reply, "at_ms")?;
        let (expires_at_ms, in_ms) = (
            number(&reply, "expires_at_ms")?,
            number(&reply, "expires_in_ms")?,
        );
        ensure!(expires_at_ms == at_ms + in_ms, "{op}: {reply}");
    }
    Ok((reply, span))
}

/// The whole time is left, but for what went by since the request was sent.
fn remains(reply: &Value, timeout_ms: u64, span: &Span) -> Result<()> {
    let left_ms = number(reply, "expires_in_ms")?;
    let passed_ms = span.to.saturating_sub(span.from) + CLOCKS_APART_MS;
    ensure!(
        left_ms <= timeout_ms && left_ms + passed_ms >= timeout_ms,
        "{left_ms} ms of {timeout_ms} ms left: {reply}"
    );
    Ok(())
}

/// By the clock of this test, from before a request to after its answer.
#[derive(Copy, Clone, Debug)]
struct Span {
    from: u64,
    to: u64,
}

impl Span {
    fn has(&self, reply: &Value, field: &str) -> Result<()> {
        let ms = number(reply, field)?;
        let allowed = self.from.saturating_sub(OFF_MS_MAX)..=self.to + OFF_MS_MAX;
        ensure!(
            allowed.contains(&ms),
            "{field} not within {self:?}: {reply}"
        );
        Ok(())
    }
}

async fn timed(ask: impl Future<Output = Result<Value>>) -> Result<(Value, Span)> {
    let from = now_ms()?;
    let reply = ask.await?;
    Ok((
        reply,
        Span {
            from,
            to: now_ms()?,
        },
    ))
}

fn now_ms() -> Result<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.context("before 1970")?.as_millis()).context("too late")
}
