//! The events of a token, as a subscriber sees them.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use async_nats::Subscriber;
use futures::StreamExt;
use nowserving_e2e::{Cluster, number, under_one_leader};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

/// A token's life, in order; and no events where token events are switched off.
pub async fn tokens(cluster: &Cluster) -> Result<()> {
    under_one_leader(cluster, "tokens", tokens_of).await
}

async fn tokens_of(cluster: &Cluster, line: &str) -> Result<()> {
    let quiet = &format!("{line}-quiet");
    let api = cluster.api();
    let events = format!("nowserving.event.{line}.token.>");
    let mut incoming = api.subscribe(events).await?;
    let events_quiet = format!("nowserving.event.{quiet}.>");
    let mut events_quiet = api.subscribe(events_quiet).await?;
    let settings = json!({"seats": 1, "queue_limit": 5});
    api.admin(line, "create", settings).await?;
    let settings = json!({"seats": 1, "queue_limit": 5, "token_events": false});
    api.admin(quiet, "create", settings).await?;

    let mut tickets = Vec::new();
    for key in ["a", "b", "c"] {
        api.enter(quiet, key).await?;
        tickets.push(api.enter(line, key).await?["ticket"].clone());
    }
    api.ok(line, "claim", json!({"ticket": tickets[0]})).await?;
    api.ok(line, "leave", json!({"ticket": tickets[2]})).await?;
    api.ok(line, "complete", json!({"ticket": tickets[0]}))
        .await?;
    api.ok(line, "leave", json!({"ticket": tickets[1]})).await?;

    let none = || json!({});
    let expected = [
        (1, "entered", json!({"position": 1})),
        (1, "admitted", none()),
        (2, "entered", json!({"position": 1})),
        (3, "entered", json!({"position": 2})),
        (1, "claimed", none()),
        (3, "gone", json!({"reason": "left"})),
        (1, "gone", json!({"reason": "completed"})),
        (2, "admitted", none()),
        (2, "gone", json!({"reason": "left"})),
    ];
    let mut version = 0;
    for (token, what, with) in expected {
        let message = tokio::time::timeout(PATIENCE, incoming.next())
            .await?
            .context("no events")?;
        let event: Value = serde_json::from_slice(&message.payload)?;
        let subject = format!("nowserving.event.{line}.token.normal.{token}");
        ensure!(
            message.subject.as_str() == subject,
            "{}: {event}",
            message.subject
        );
        ensure!(
            event["line"] == line && event["lane"] == "normal",
            "{event}"
        );
        ensure!(
            event["token"] == token && event["event"] == what,
            "want {what} {token}: {event}"
        );
        for field in ["position", "reason"] {
            ensure!(event[field] == with[field], "want {with}: {event}");
        }
        ensure!(event["epoch"].is_u64() == (what == "claimed"), "{event}");
        let (previous, new) = (number(&event, "prev_version")?, number(&event, "version")?);
        ensure!(new > version, "version {new} after {version}: {event}");
        ensure!(
            version == 0 || previous == version,
            "a gap after {version}: {event}"
        );
        version = new;
        number(&event, "at_ms")?;
    }
    // Its events would come before the board that shows the same change.
    let last = number(&api.ok(quiet, "info", json!({})).await?, "version")?;
    loop {
        let event = next(&mut events_quiet).await?;
        ensure!(event.get("token").is_none(), "of a quiet line: {event}");
        if event.get("lanes").is_some() && number(&event, "version")? >= last {
            return Ok(());
        }
    }
}

pub async fn next(incoming: &mut Subscriber) -> Result<Value> {
    match tokio::time::timeout(PATIENCE, incoming.next()).await {
        Ok(Some(message)) => Ok(serde_json::from_slice(&message.payload)?),
        Ok(None) => bail!("the subscription has ended"),
        Err(_) => bail!("no event within {PATIENCE:?}"),
    }
}
