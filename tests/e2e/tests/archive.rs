//! The archive of all events: the stream of `deploy/jetstream` on a NATS server that keeps streams,
//! asked as its own clients ask it (its API is requests with JSON).

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use async_nats::Request;
use async_nats::header::NATS_MESSAGE_ID;
use futures::StreamExt;
use nowserving_e2e::{Cli, Cluster, HOUR_MS, eventually, number};
use nowserving_protocol::time;
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
    reports_what_the_journal_says(cluster).await
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

/// From the stream alone, and from its events in a file: each token as the line's own journal has it.
async fn reports_what_the_journal_says(cluster: &Cluster) -> Result<()> {
    let (api, cli) = (cluster.api(), Cli::new(cluster.nats.url()));
    many_visits(cluster).await?;
    let mut expected = Vec::new();
    for (lane, token) in [
        ("normal", 1),
        ("normal", 2),
        ("vip", 2),
        ("vip", 1),
        ("normal", 4),
        ("normal", 5),
    ] {
        let ask = json!({"lane": lane, "token": token});
        let journal = api.admin(DAY, "journal", ask).await?;
        expected.push(row_of(lane, token, &journal)?);
    }
    let words = "archive report --stream NOWSERVING_EVENTS --line archived-day --tokens";
    // An answer may come before the events of the same change.
    let report = eventually("all events are kept", PATIENCE, async || {
        let report = command_line::done(&cli, words).await?;
        let kept = report["lines"][0]["tokens"] == json!(expected);
        ensure!(kept, "{report} but {expected:?}");
        Ok(Some(report))
    });
    let report = report.await?;
    for (field, value) in [
        ("gaps", json!([])),
        ("missing_numbers", json!([])),
        ("restored", json!([])),
        ("unreadable", json!(0)),
    ] {
        ensure!(report[field] == value, "{field}: {report}");
    }
    let total = &report["total"];
    let shown = api.admin(DAY, "show", json!({})).await?;
    ensure!(total["entered"] == 6 && total["admitted"] == 3, "{total}");
    ensure!(
        total["live"] == json!({"admitted": 1, "waiting": 1}),
        "{total}"
    );
    for reason in ["completed", "left", "kicked"] {
        let counted = &shown["counts"]["gone"][reason];
        ensure!(total["gone"][reason] == *counted, "{total} but {shown}");
    }
    by_day(&cli, cluster, &report).await
}

const DAY: &str = "archived-day";

/// Tokens that complete, leave, move, are kicked, and stay.
async fn many_visits(cluster: &Cluster) -> Result<()> {
    let api = cluster.api();
    let lanes = json!([{"name": "normal"}, {"name": "vip"}]);
    let settings = json!({
        "seats": 1, "queue_limit": 20, "lanes": lanes, "event_key": true,
        "claim_timeout_ms": HOUR_MS,
    });
    api.admin(DAY, "create", settings).await?;
    let mut tickets = Vec::new();
    for (key, lane) in [
        ("ann", "normal"),
        ("bob", "normal"),
        ("cat", "normal"),
        ("dan", "vip"),
        ("eve", "normal"),
        ("fay", "normal"),
    ] {
        let entered = api.ok(DAY, "enter", json!({"key": key, "lane": lane}));
        tickets.push(json!({"ticket": entered.await?["ticket"]}));
    }
    let to = json!({"lane": "normal", "token": 3, "to": "vip"});
    api.admin(DAY, "move", to).await?;
    for (op, who) in [
        ("claim", 0),
        ("complete", 0),
        ("claim", 1),
        ("leave", 1),
        ("leave", 4),
    ] {
        api.ok(DAY, op, tickets[who].clone()).await?;
    }
    api.admin(DAY, "kick", json!({"keys": ["cat"]})).await?;
    Ok(())
}

/// A row of the report, from the entries of a token in the journal.
fn row_of(lane: &str, token: u64, journal: &Value) -> Result<Value> {
    let mut row = json!({"lane": lane, "token": token, "state": "waiting"});
    let mut former = Vec::new();
    for entry in journal["entries"].as_array().context("no entries")? {
        let at_ms = number(entry, "at_ms")?;
        let waited_ms = at_ms - number(entry, "entered_at_ms")?;
        match entry["what"].as_str().unwrap_or_default() {
            "entered" => {
                row["entered_at_ms"] = json!(at_ms);
                row["position"] = entry["position"].clone();
            }
            what @ ("admitted" | "taken") => {
                if what == "taken" {
                    row["taken"] = json!(true);
                }
                row["state"] = json!("admitted");
                row["admitted_at_ms"] = json!(at_ms);
                row["waited_ms"] = json!(waited_ms);
            }
            "claimed" => {
                row["state"] = json!("in_checkout");
                row["claimed_at_ms"] = json!(at_ms);
            }
            "gone" => {
                row["left"] = row["state"].clone();
                row["state"] = json!("gone");
                row["gone_at_ms"] = json!(at_ms);
                row["reason"] = entry["reason"].clone();
            }
            "moved" => former.push(json!({"lane": entry["lane"], "token": entry["token"]})),
            other => bail!("{other} in {journal}"),
        }
    }
    if !former.is_empty() {
        row["former"] = json!(former);
    }
    // The journal has no keys.
    let key = match (lane, token) {
        ("normal", 1) => "ann",
        ("normal", 2) => "bob",
        ("vip", 2) => "cat",
        ("vip", 1) => "dan",
        ("normal", 4) => "eve",
        _ => "fay",
    };
    row["key"] = json!(key);
    Ok(row)
}

/// The same events from a file, each twice; and by day.
async fn by_day(cli: &Cli, cluster: &Cluster, by_stream: &Value) -> Result<()> {
    let mut rows = String::new();
    for subject in ["token.*.*", "line"] {
        let subject = format!("nowserving.event.{DAY}.{subject}");
        for event in events(cluster, &subject).await? {
            rows.push_str(&format!("{event}\n{subject} {event}\n"));
        }
    }
    rows.push_str("no event\n");
    let file = cluster.folder().join("archived-day.jsonl");
    std::fs::write(&file, &rows)?;
    let file = file.to_str().context("a folder that is no text")?;
    let report = cli
        .run(&["archive", "report", file, "--tokens"])
        .await?
        .done()?;
    for field in ["lines", "total", "gaps"] {
        ensure!(
            report[field] == by_stream[field],
            "{report} but {by_stream}"
        );
    }
    let count = rows.lines().count() as u64;
    ensure!(report["duplicates"] == (count - 1) / 2, "{report}");
    ensure!(
        report["unreadable"] == 1 && report["first_unreadable"] == count,
        "{report}"
    );

    let entered_at_ms = number(&by_stream["lines"][0]["tokens"][0], "entered_at_ms")?;
    let day = &time::text(entered_at_ms)[..10];
    for (day, zone, entered) in [(day, "UTC", 1), ("2001-02-03", "Asia/Taipei", 0)] {
        let words = ["archive", "report", file, "--day", day, "--zone", zone];
        let report = cli.run(&words).await?.done()?;
        ensure!(report["day"] == day && report["zone"] == zone, "{report}");
        // The first six may have come around midnight.
        let found = number(&report["total"], "entered")?;
        ensure!((found > 0) == (entered > 0), "{report}");
    }
    let words = ["archive", "report", file, "--tokens"];
    let text = format!("{:?}", cli.run_as_text(&words).await?);
    for part in [
        "6 tokens entered",
        "kicked, was normal 3",
        "are no events, the first is row",
    ] {
        ensure!(text.contains(part), "{part}: {text}");
    }
    let path = cluster.folder().join("garbage.jsonl");
    std::fs::write(&path, "no event\n{}\n")?;
    let garbage = path.to_str().context("a folder that is no text")?;
    for (words, code, error) in [
        (&["--day", "2026-02-30"][..], 2, "bad_request"),
        (&["--zone", "Mars/Olympus"], 2, "bad_request"),
        (&["no-such-file"], 1, "failed"),
        (&[garbage], 1, "failed"),
        (&["--stream", "NO_SUCH_STREAM"], 1, "failed"),
    ] {
        let words = [&["archive", "report"], words].concat();
        cli.run(&words).await?.failed(code, error)?;
    }
    Ok(())
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
