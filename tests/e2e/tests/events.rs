//! Events: boards, tokens and lines, as a subscriber sees them.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use async_nats::Subscriber;
use futures::StreamExt;
use nowserving_e2e::{Cli, Cluster, Format, number, pointers, under_one_leader};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
/// Boards ascend, show gaps, and end with the final pointers.
pub async fn boards(cluster: &Cluster) -> Result<()> {
    under_one_leader(cluster, "boards", boards_of).await
}

async fn boards_of(cluster: &Cluster, line: &str) -> Result<()> {
    let api = cluster.api();
    let boards = format!("nowserving.event.{line}.board");
    let mut incoming = api.subscribe(boards).await?;
    api.admin(line, "create", json!({"seats": 3, "queue_limit": 200}))
        .await?;

    let mut tickets = Vec::new();
    for number in 0..40 {
        tickets.push(api.enter(line, &format!("k{number}")).await?["ticket"].clone());
    }
    for ticket in tickets.iter().take(3) {
        api.ok(line, "claim", json!({"ticket": ticket})).await?;
        api.ok(line, "complete", json!({"ticket": ticket})).await?;
    }
    for ticket in tickets.iter().skip(10).step_by(3) {
        api.ok(line, "leave", json!({"ticket": ticket})).await?;
    }
    let last = api.ok(line, "info", json!({})).await?;

    let mut version = 0;
    let mut next_token = 0;
    loop {
        let board = next(&mut incoming).await?;
        ensure!(
            board["line"] == line && board["incarnation"] == last["incarnation"],
            "{board}"
        );
        let (previous, new) = (number(&board, "prev_version")?, number(&board, "version")?);
        ensure!(new > version, "version {new} after {version}: {board}");
        ensure!(
            version == 0 || previous == version,
            "a gap after {version}: {board}"
        );
        ensure!(previous < new, "{board}");
        version = new;
        let now = pointers(&board)?;
        ensure!(now[3] >= next_token, "next_token fell: {board}");
        next_token = now[3];
        let known = board["admitted"].is_u64() && board["in_checkout"].is_u64();
        ensure!(
            known && board["seats"] == 3 && board["phase"] == "open",
            "{board}"
        );
        ensure!(board["lanes"][0]["holes"].is_array(), "{board}");
        if version >= number(&last, "version")? {
            ensure!(version == number(&last, "version")?, "{board} but {last}");
            ensure!(now == pointers(&last)?, "{board} but {last}");
            ensure!(
                board["lanes"][0]["waiting"] == last["lanes"][0]["waiting"],
                "{board}"
            );
            return Ok(());
        }
    }
}

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

/// With `event_key`, each event of a token says whose it is, as text or as bytes.
pub async fn keys(cluster: &Cluster) -> Result<()> {
    under_one_leader(cluster, "tokens-keys", keys_of).await
}

async fn keys_of(cluster: &Cluster, line: &str) -> Result<()> {
    let (api, cli) = (cluster.api(), Cli::new(cluster.nats.url()));
    let events = format!("nowserving.event.{line}.token.>");
    let mut incoming = api.subscribe(events).await?;
    let words = ["line", "create", line, "--seats", "1", "--queue-limit", "5"];
    let made = cli.run(&words).await?.done()?;
    ensure!(made["settings"]["event_key"] == false, "{made}");
    api.enter(line, "before").await?;
    for _ in ["entered", "admitted"] {
        let event = next(&mut incoming).await?;
        ensure!(event.get("key").is_none(), "not asked for: {event}");
    }
    let set = cli
        .run(&["line", "set", line, "--event-key", "true"])
        .await?;
    ensure!(set.done()?["settings"]["event_key"] == true);
    let bytes = b"\x81\xa3key\xc4\x03\xff\x00a".to_vec();
    let enter = format!("nowserving.line.{line}.enter");
    let entered = api.call_subject(&enter, bytes).await?;
    entered.accepted(Format::MsgPack)?;
    let ticket = api.enter(line, "大明").await?["ticket"].clone();
    api.ok(line, "enter", json!({"anonymous": true})).await?;
    api.ok(line, "leave", json!({"ticket": ticket})).await?;
    for (what, token, key) in [
        ("entered", 2, json!([255, 0, 97])),
        ("entered", 3, json!("大明")),
        ("entered", 4, Value::Null),
        ("gone", 3, json!("大明")),
    ] {
        let event = next(&mut incoming).await?;
        ensure!(
            event["event"] == what && event["token"] == token && event["key"] == key,
            "want {what} {token} {key}: {event}"
        );
    }
    for wrong in [json!(1), json!("yes")] {
        let body = json!({"event_key": wrong});
        let refused = api.admin_refused(line, "configure", body, Code::BadRequest);
        let refused = refused.await?.to_string();
        ensure!(refused.contains("event_key"), "{refused}");
    }
    Ok(())
}

/// Events of operators' changes to a line.
pub async fn lines(cluster: &Cluster) -> Result<()> {
    under_one_leader(cluster, "line-events", lines_of).await
}

async fn lines_of(cluster: &Cluster, line: &str) -> Result<()> {
    let api = cluster.api();
    let events = format!("nowserving.event.{line}.line");
    let mut incoming = api.subscribe(events).await?;
    let created = api
        .admin(line, "create", json!({"seats": 1, "queue_limit": 5}))
        .await?;
    api.admin(line, "configure", json!({"seats": 2})).await?;
    api.admin(line, "delete", json!({"force": true})).await?;
    let mut version = 0;
    for what in ["created", "configured", "deleted"] {
        let event = next(&mut incoming).await?;
        ensure!(
            event["event"] == what && event["line"] == line,
            "want {what}: {event}"
        );
        ensure!(event["incarnation"] == created["incarnation"], "{event}");
        ensure!(number(&event, "version")? > version, "{event}");
        ensure!(version == 0 || event["prev_version"] == version, "{event}");
        version = number(&event, "version")?;
    }
    Ok(())
}

pub async fn next(incoming: &mut Subscriber) -> Result<Value> {
    match tokio::time::timeout(PATIENCE, incoming.next()).await {
        Ok(Some(message)) => Ok(serde_json::from_slice(&message.payload)?),
        Ok(None) => bail!("the subscription has ended"),
        Err(_) => bail!("no event within {PATIENCE:?}"),
    }
}
