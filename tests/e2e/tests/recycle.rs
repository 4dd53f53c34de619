//! Seats of clients that vanish come free, each by its own timeout and not before, and go to the next.

use anyhow::{Result, ensure};
use nowserving_e2e::{CLOCKS_APART_MS, Cluster, HOUR_MS, number, under_one_leader};
use nowserving_protocol::error::Code;
use serde_json::json;

use crate::events;

/// A claimed seat that is not completed, and an admission that is not claimed, go to the next.
pub async fn seats_come_free(cluster: &Cluster) -> Result<()> {
    under_one_leader(cluster, "recycle-seats", seats_come_free_in).await
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
