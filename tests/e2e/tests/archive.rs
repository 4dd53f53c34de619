//! The archive of all events: the stream of `deploy/jetstream` on a NATS server that keeps streams,
//! asked as its own clients ask it (its API is requests with JSON).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_nats::Request;
use async_nats::header::NATS_MESSAGE_ID;
use futures::StreamExt;
use nowserving_e2e::{Cli, Cluster, eventually};
use serde_json::{Value, json};

use crate::command_line;

const LINE: &str = "archived";
const PATIENCE: Duration = Duration::from_secs(15);
/// For one message of those that are there.
const MESSAGE: Duration = Duration::from_secs(60);

/// Each event is recorded once and can be replayed from any moment on.
pub async fn keeps_what_happened(cluster: &Cluster) -> Result<()> {
    let definition = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../deploy/jetstream/nowserving-events.json"
    );
    let definition: Value = serde_json::from_str(&std::fs::read_to_string(definition)?)?;
    ask(cluster, "STREAM.CREATE.NOWSERVING_EVENTS", definition).await?;
    one_visit(cluster).await?;

    for (what, expected) in [
        ("token.*.*", &["entered", "admitted", "claimed", "gone"][..]),
        ("line", &["created", "phase"]),
    ] {
        let subject = format!("nowserving.event.{LINE}.{what}");
        // An answer may come before the event of the same change.
        let words = eventually("all of the visit is kept", PATIENCE, async || {
            let words = replay(cluster, &subject).await?;
            Ok((words.len() >= expected.len()).then_some(words))
        });
        let words = words.await?;
        ensure!(words == expected, "{what}: {words:?}");
    }
    the_second_of_two_is_left_out(cluster).await?;
    is_reported(cluster).await
}

async fn one_visit(cluster: &Cluster) -> Result<()> {
    let api = cluster.api();
    let settings = json!({"seats": 1, "queue_limit": 5});
    api.admin(LINE, "create", settings).await?;
    let entered = api.enter(LINE, "a").await?;
    let ticket = json!({"ticket": entered["ticket"]});
    api.ok(LINE, "claim", ticket.clone()).await?;
    api.ok(LINE, "complete", ticket).await?;
    api.admin(LINE, "configure", json!({"phase": "paused"}))
        .await?;
    Ok(())
}

/// As a new leader does, which cannot know the earlier leader's events.
async fn the_second_of_two_is_left_out(cluster: &Cluster) -> Result<()> {
    let client = cluster.api().client();
    let subject = format!("nowserving.event.{LINE}.line");
    let mut incoming = cluster.api().subscribe(subject.clone()).await?;
    cluster
        .api()
        .admin(LINE, "configure", json!({"phase": "open"}))
        .await?;
    let event = tokio::time::timeout(MESSAGE, incoming.next()).await?;
    let event = event.context("an event")?;
    let headers = event.headers.clone().context("headers")?;
    let body: Value = serde_json::from_slice(&event.payload)?;
    let id = format!("{LINE}/{}/line/{}", body["incarnation"], body["version"]);
    let sent = headers.get(NATS_MESSAGE_ID).map(|id| id.as_str());
    ensure!(sent == Some(&id), "{sent:?} and not {id}");

    client
        .publish_with_headers(subject.clone(), headers, event.payload)
        .await?;
    // Published after it: once the archive has it, the second one has arrived too.
    client.publish(subject.clone(), "{}".into()).await?;
    let words = eventually("the last one is kept", PATIENCE, async || {
        let words = replay(cluster, &subject).await?;
        let last = words.last().is_some_and(String::is_empty);
        Ok(last.then_some(words))
    });
    let words = words.await?;
    ensure!(words == ["created", "phase", "phase", ""], "{words:?}");
    Ok(())
}

/// The `event` of every message of a subject, in order.
async fn replay(cluster: &Cluster, subject: &str) -> Result<Vec<String>> {
    let events = events(cluster, subject).await?.into_iter();
    let word = |event: Value| event["event"].as_str().unwrap_or_default().to_owned();
    Ok(events.map(word).collect())
}

/// Every message of a subject, in order.
async fn events(cluster: &Cluster, subject: &str) -> Result<Vec<Value>> {
    let client = cluster.api().client();
    let inbox = client.new_inbox();
    let mut messages = cluster.api().subscribe(inbox.clone()).await?;
    let consumer = json!({
        "stream_name": "NOWSERVING_EVENTS",
        "config": {
            "deliver_policy": "by_start_time", "opt_start_time": "2000-01-01T00:00:00Z",
            "filter_subject": subject, "ack_policy": "none", "replay_policy": "instant",
            "deliver_subject": inbox, "inactive_threshold": 5_000_000_000_u64,
        },
    });
    let made = ask(cluster, "CONSUMER.CREATE.NOWSERVING_EVENTS", consumer).await?;
    let pending = made["num_pending"].as_u64().unwrap_or(0);
    let delivered = made["delivered"]["consumer_seq"].as_u64().unwrap_or(0);
    let mut events = Vec::new();
    for _ in 0..pending + delivered {
        let message = tokio::time::timeout(MESSAGE, messages.next()).await?;
        events.push(serde_json::from_slice(
            &message.context("a message")?.payload,
        )?);
    }
    Ok(events)
}

/// From the stream, and from its events in a file, in which each is twice.
async fn is_reported(cluster: &Cluster) -> Result<()> {
    let cli = Cli::new(cluster.nats.url());
    let by_stream = "archive report --stream NOWSERVING_EVENTS --line archived --tokens";
    let by_stream = command_line::done(&cli, by_stream).await?;
    let total = &by_stream["total"];
    ensure!(
        total["entered"] == 1 && total["gone"]["completed"] == 1,
        "{by_stream}"
    );
    let mut rows = String::new();
    for event in events(cluster, &format!("nowserving.event.{LINE}.token.*.*")).await? {
        rows.push_str(&format!("{event}\n{event}\n"));
    }
    let file = cluster.folder().join("archived.jsonl");
    std::fs::write(&file, &rows)?;
    let file = file.to_str().context("a folder that is no text")?;
    let words = ["archive", "report", file, "--tokens"];
    let report = cli.run(&words).await?.done()?;
    ensure!(report["total"] == *total, "{report} but {by_stream}");
    let missing = ["archive", "report", "--stream", "NO_SUCH_STREAM"];
    cli.run(&missing).await?.failed(1, "failed").map(drop)
}

/// One request to JetStream.
async fn ask(cluster: &Cluster, op: &str, body: Value) -> Result<Value> {
    let client = cluster.api().client();
    let payload = serde_json::to_vec(&body)?;
    // Its disk may be slow.
    let request = Request::new().payload(payload.into());
    let request = request.timeout(Some(MESSAGE));
    let answer = client
        .send_request(format!("$JS.API.{op}"), request)
        .await?;
    let answer: Value = serde_json::from_slice(&answer.payload)?;
    ensure!(answer["error"].is_null(), "{op}: {answer}");
    Ok(answer)
}
