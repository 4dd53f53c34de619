//! Idle tokens are recycled, each by its own timeout and not before; their seats go to the next.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nowserving_e2e::{
    Api, CLOCKS_APART_MS, Cli, Cluster, HOUR_MS, eventually, number, under_one_leader,
};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

use crate::events;

const PATIENCE: Duration = Duration::from_secs(15);
const TRIES_MAX: u32 = 4;

/// A claimed seat that is not completed, and an admission that is not claimed, go to the next.
pub async fn seats_come_free(cluster: &Cluster) -> Result<()> {
    under_one_leader(cluster, "recycle-seats", seats_come_free_in).await?;
    renewing_has_an_end(cluster.api()).await
}

async fn seats_come_free_in(cluster: &Cluster, line: &str) -> Result<()> {
    let api = cluster.api();
    let (checkout_ms, claim_ms) = (700, 500);
    let settings = json!({
        "seats": 1, "queue_limit": 10,
        "claim_timeout_ms": HOUR_MS, "checkout_timeout_ms": checkout_ms,
    });
    let events = format!("nowserving.event.{line}.token.>");
    let mut incoming = api.subscribe(events).await?;
    api.admin(line, "create", settings).await?;
    let mut tickets = Vec::new();
    for key in ["a", "b", "c"] {
        tickets.push(api.enter(line, key).await?["ticket"].clone());
    }
    // For clocks that start later: a is admitted, and may take its time to claim.
    let soon = json!({"claim_timeout_ms": claim_ms});
    api.admin(line, "configure", soon).await?;
    let claimed = api.ok(line, "claim", json!({"ticket": tickets[0]})).await?;
    // Here a vanishes, and b, which is next, never comes. No request comes meanwhile.
    let mut at = Vec::new();
    for (token, what, reason) in [
        (1, "admitted", ""),
        (1, "claimed", ""),
        (1, "gone", "checkout_expired"),
        (2, "admitted", ""),
        (2, "gone", "no_show"),
        (3, "admitted", ""),
    ] {
        let mut event = events::next(&mut incoming).await?;
        while event["event"] == "entered" {
            event = events::next(&mut incoming).await?;
        }
        ensure!(
            event["token"] == token && event["event"] == what,
            "want {token} {what}: {event}"
        );
        ensure!(event["reason"].as_str().unwrap_or("") == reason, "{event}");
        at.push(number(&event, "at_ms")?);
    }
    let expires_at_ms = number(&claimed, "expires_at_ms")?;
    for (end, due) in [
        (at[2], at[1] + checkout_ms),
        (at[2], expires_at_ms),
        (at[4], at[3] + claim_ms),
    ] {
        let in_its_time = end + CLOCKS_APART_MS >= due;
        ensure!(in_its_time, "before its time: {claimed}, {at:?}");
    }

    let status = api.status(line, &tickets[0]).await?;
    ensure!(
        status["state"] == "gone" && status["reason"] == "checkout_expired",
        "{status}"
    );
    let late = api
        .refused(
            line,
            "complete",
            json!({"ticket": tickets[0]}),
            Code::TokenGone,
        )
        .await?;
    ensure!(late["reason"] == "checkout_expired", "{late}");
    Ok(())
}

/// Renewing keeps the seat past `checkout_timeout_ms`, up to `checkout_max_ms`.
async fn renewing_has_an_end(api: &Api) -> Result<()> {
    let line = "recycle-renew";
    let (timeout_ms, max_ms) = (3_000, 7_500);
    let settings = json!({
        "seats": 1, "queue_limit": 10, "checkout_timeout_ms": timeout_ms, "checkout_max_ms": max_ms,
    });
    api.admin(line, "create", settings).await?;
    // If a request takes longer than the timeout, the seat is lost because of that: then another one is renewed.
    let mut tries = 0;
    let (claimed, last, gone) = loop {
        tries += 1;
        let ticket = api.enter(line, &format!("k{tries}")).await?["ticket"].clone();
        let mut asked_at = Instant::now();
        let claimed = api.ok(line, "claim", json!({"ticket": ticket})).await?;
        let renew = json!({"ticket": ticket, "epoch": claimed["epoch"]});
        let mut last = claimed.clone();
        let gone = eventually("renewing ends", PATIENCE, async || {
            let now = Instant::now();
            let reply = api.call(line, "renew", &renew).await?;
            if reply.code.is_none() {
                (last, asked_at) = (reply.body, now);
                tokio::time::sleep(Duration::from_millis(100)).await;
                return Ok(None);
            }
            Ok(Some(reply.body))
        })
        .await?;
        let is_too_late = asked_at.elapsed() >= Duration::from_millis(timeout_ms);
        if !is_too_late || tries == TRIES_MAX {
            break (claimed, last, gone);
        }
    };
    ensure!(gone["error"]["code"] == "token_gone", "{gone}");
    ensure!(gone["error"]["reason"] == "checkout_expired", "{gone}");
    let since_ms = number(&claimed, "at_ms")?;
    ensure!(
        number(&last, "expires_in_ms")? < timeout_ms,
        "the end is not nearer than any renewal would put it: {last}"
    );
    ensure!(
        number(&last, "at_ms")? > since_ms + timeout_ms,
        "renewing did not help: {last}"
    );
    Ok(())
}

/// Waiting tokens without requests go; polled ones stay.
pub async fn only_the_silent_go(cluster: &Cluster) -> Result<()> {
    let line = "recycle-waiting";
    let api = cluster.api();
    // Longer than a slow machine stands still.
    let idle_ms = 10_000;
    let settings = json!({"seats": 1, "queue_limit": 10, "waiting_idle_timeout_ms": idle_ms});
    api.admin(line, "create", settings).await?;
    let seated = api.enter(line, "seated").await?;
    let entered = api.enter(line, "silent").await?;
    let mut polling = Vec::new();
    for (key, consistency) in [("polls", "leader"), ("polls carefully", "linearizable")] {
        polling.push((api.enter(line, key).await?["ticket"].clone(), consistency));
    }
    let last = api.enter(line, "asks locally").await?["ticket"].clone();
    ensure!(
        number(&entered, "poll_after_ms")? <= idle_ms / 3,
        "{entered}"
    );

    let poll = async || -> Result<Vec<Value>> {
        let mut statuses = Vec::new();
        for (ticket, consistency) in &polling {
            let body = json!({"ticket": ticket, "consistency": consistency});
            statuses.push(api.ok(line, "status", body).await?);
        }
        // This one does not mark the token as seen.
        api.ok(
            line,
            "status",
            json!({"ticket": last, "consistency": "local"}),
        )
        .await?;
        Ok(statuses)
    };
    let all_wait = |statuses: &[Value]| statuses.iter().all(|one| one["state"] == "waiting");
    let statuses = eventually("the silent are gone", PATIENCE, async || {
        let statuses = poll().await?;
        let is_first = statuses[0]["position"] == 1 && statuses[0]["ahead"] == 0;
        Ok((is_first || !all_wait(&statuses)).then_some(statuses))
    })
    .await?;
    ensure!(all_wait(&statuses), "{statuses:?}");
    let silent = api.status(line, &entered["ticket"]).await?;
    ensure!(
        silent["state"] == "gone" && silent["reason"] == "idle",
        "{silent}"
    );
    let waited_ms = number(&silent, "at_ms")? - number(&entered, "entered_at_ms")?;
    ensure!(
        waited_ms + CLOCKS_APART_MS >= idle_ms,
        "gone after {waited_ms} ms"
    );
    eventually("`local` does not count", PATIENCE, async || {
        poll().await?;
        let body = json!({"ticket": last, "consistency": "local"});
        Ok((api.ok(line, "status", body).await?["reason"] == "idle").then_some(()))
    })
    .await?;

    // No waiting token got a seat by it, and a token with a seat need not poll.
    let info = api.ok(line, "info", json!({})).await?;
    ensure!(
        info["admitted"] == 1 && info["lanes"][0]["waiting"] == 2,
        "{info}"
    );
    ensure!(api.status(line, &seated["ticket"]).await?["state"] == "admitted");
    // The key of a gone token enters anew, at the end.
    let again = api.enter(line, "silent").await?;
    ensure!(
        again["token"] == 6 && again["state"] == "waiting",
        "{again}"
    );
    Ok(())
}

/// Whoever has waited for `max_wait_ms` goes, although its client asks all the time.
pub async fn waits_expire(cluster: &Cluster) -> Result<()> {
    let (line, max_wait_ms) = ("recycle-waits", 1_500);
    let (api, cli) = (cluster.api(), Cli::new(cluster.nats.url()));
    let create = ["line", "create", line, "--seats", "1", "--queue-limit", "5"];
    let created = cli.run(&create).await?.done()?;
    ensure!(created["settings"]["max_wait_ms"].is_null(), "{created}");
    api.enter(line, "seated").await?;
    let entered = api.enter(line, "waits").await?;
    let set = ["line", "set", line, "--max-wait", "1500ms"];
    let set = cli.run(&set).await?.done()?;
    ensure!(set["settings"]["max_wait_ms"] == max_wait_ms, "{set}");
    let gone = eventually("the wait expires", PATIENCE, async || {
        let status = api.status(line, &entered["ticket"]).await?;
        Ok((status["state"] == "gone").then_some(status))
    })
    .await?;
    ensure!(gone["reason"] == "wait_expired", "{gone}");
    let waited_ms = number(&gone, "at_ms")? - number(&entered, "entered_at_ms")?;
    ensure!(waited_ms + CLOCKS_APART_MS >= max_wait_ms, "{waited_ms} ms");
    let shown = api.admin(line, "show", json!({})).await?;
    ensure!(shown["counts"]["gone"]["wait_expired"] == 1, "{shown}");
    let body = json!({"max_wait_ms": 999});
    let refused = api
        .admin_refused(line, "configure", body, Code::BadRequest)
        .await?;
    let message = refused["message"].as_str().unwrap_or("");
    ensure!(message.contains("max_wait_ms"), "{refused}");
    Ok(())
}
