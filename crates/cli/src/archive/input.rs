//! Where the events of an archive come from.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use async_nats::{RequestErrorKind, StatusCode};
use futures::StreamExt as _;
use nowserving_client::LineName;
use serde_json::{Value, json};

use super::events::Archive;
use nowserving_terminal::global::Global;

/// No event is longer: a payload over 1 MiB does not pass nats-server by default.
const ROW_BYTES_MAX: u64 = 8 * 1_024 * 1_024;
/// Messages that are asked for at once.
const BATCH: u64 = 1_000;
/// For the next message of a batch.
const PATIENCE: Duration = Duration::from_secs(10);
/// JetStream forgets a reader that has not asked for so long.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// The ends of a batch that is not full.
const ENDS: [StatusCode; 2] = [StatusCode::NOT_FOUND, StatusCode::TIMEOUT];
const STANDARD_INPUT: &str = "standard input";
const SUBJECT_PREFIX: &str = "nowserving";

/// Reads files one after the other, or standard input.
pub fn files(files: &[PathBuf], archive: &mut Archive) -> anyhow::Result<()> {
    if files.is_empty() {
        if io::stdin().is_terminal() {
            bail!("standard input is a terminal: name a file of events, or a stream by --stream");
        }
        archive.begin(STANDARD_INPUT);
        return rows(io::stdin().lock(), archive).context(STANDARD_INPUT);
    }
    for path in files {
        match path.as_path() == Path::new("-") {
            true => archive.begin(STANDARD_INPUT),
            false => archive.begin(&path.display().to_string()),
        }
        let read = match path.as_path() == Path::new("-") {
            true => rows(io::stdin().lock(), archive),
            false => File::open(path).and_then(|file| rows(BufReader::new(file), archive)),
        };
        read.with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn rows(mut input: impl BufRead, archive: &mut Archive) -> io::Result<()> {
    let mut row = Vec::new();
    loop {
        row.clear();
        let mut limited = io::Read::take(&mut input, ROW_BYTES_MAX);
        if limited.read_until(b'\n', &mut row)? == 0 {
            return Ok(());
        }
        archive.add(&row);
    }
}

/// Reads all events of tokens and lines that a stream has.
///
/// By JetStream's own requests: an ephemeral consumer on the server, from which batches are pulled. Whole batches are
/// acknowledged by their last message, which servers of all versions want.
pub async fn stream(
    stream: &str,
    lines: &[LineName],
    global: &Global,
    archive: &mut Archive,
) -> anyhow::Result<()> {
    let client = global.connect().await?;
    archive.begin(&format!("stream {stream}"));
    let prefix = global.prefix.as_deref().unwrap_or(SUBJECT_PREFIX);
    for subject in subjects(prefix, lines) {
        let read = read_subject(client.nats(), stream, &subject, archive).await;
        read.with_context(|| format!("stream {stream}, {subject}"))?;
    }
    Ok(())
}

fn subjects(prefix: &str, lines: &[LineName]) -> Vec<String> {
    let lines: Vec<String> = match lines.is_empty() {
        true => vec!["*".to_owned()],
        false => lines.iter().map(ToString::to_string).collect(),
    };
    // Not `token.>`: the events of a bucket named `token` match that, too.
    let kinds = ["line", "token.*.*"];
    let both = |line: String| kinds.map(|kind| format!("{prefix}.event.{line}.{kind}"));
    lines.into_iter().flat_map(both).collect()
}

async fn read_subject(
    nats: &async_nats::Client,
    stream: &str,
    subject: &str,
    archive: &mut Archive,
) -> anyhow::Result<()> {
    let consumer = json!({
        "stream_name": stream,
        "config": {
            "deliver_policy": "all", "filter_subject": subject, "ack_policy": "all",
            "replay_policy": "instant", "max_ack_pending": -1,
            "inactive_threshold": u64::try_from(FORGET_AFTER.as_nanos())?,
        },
    });
    let made = ask(nats, &format!("CONSUMER.CREATE.{stream}"), &consumer).await?;
    let name = made["name"].as_str().context("a consumer without a name")?;
    let mut left = made["num_pending"].as_u64().unwrap_or(0);
    let next = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}");
    while left > 0 {
        let got = pull(nats, &next, left.min(BATCH), archive).await?;
        left = left.saturating_sub(got);
        if got == 0 {
            // The oldest events can go while they are read.
            let of = format!("CONSUMER.INFO.{stream}.{name}");
            let pending = ask(nats, &of, &json!({})).await?["num_pending"].as_u64();
            match pending.unwrap_or(0) {
                0 => break,
                pending => bail!("JetStream keeps {pending} messages to itself"),
            }
        }
    }
    // It would be forgotten by itself.
    ask(
        nats,
        &format!("CONSUMER.DELETE.{stream}.{name}"),
        &json!({}),
    )
    .await?;
    Ok(())
}

/// One batch; returns how many messages it had.
async fn pull(
    nats: &async_nats::Client,
    next: &str,
    batch: u64,
    archive: &mut Archive,
) -> anyhow::Result<u64> {
    let inbox = nats.new_inbox();
    let mut messages = nats.subscribe(inbox.clone()).await?;
    let want = serde_json::to_vec(&json!({"batch": batch, "no_wait": true}))?;
    nats.publish_with_reply(next.to_owned(), inbox, want.into())
        .await?;
    let mut got = 0;
    let mut last = None;
    while got < batch {
        let message = tokio::time::timeout(PATIENCE, messages.next()).await;
        let message = message.context("JetStream is silent")?;
        let message = message.context("the connection has ended")?;
        match message.status {
            None => {}
            // No more messages now.
            Some(status) if ENDS.contains(&status) => break,
            Some(status) => bail!("JetStream says {status:?}"),
        }
        got += 1;
        archive.add(&message.payload);
        last = message.reply;
    }
    if let Some(reply) = last {
        nats.publish(reply, "+ACK".into()).await?;
    }
    Ok(got)
}

/// One request to JetStream.
async fn ask(nats: &async_nats::Client, op: &str, body: &Value) -> anyhow::Result<Value> {
    let payload = serde_json::to_vec(body)?;
    let asked = nats.request(format!("$JS.API.{op}"), payload.into());
    let answer = asked.await.map_err(|error| match error.kind() {
        RequestErrorKind::NoResponders => {
            anyhow!(
                "this NATS server has no JetStream: deploy/jetstream says how to archive events"
            )
        }
        _ => anyhow::Error::from(error).context("JetStream does not answer"),
    })?;
    let answer: Value = serde_json::from_slice(&answer.payload)?;
    if let Some(error) = answer["error"]["description"].as_str() {
        bail!("JetStream: {error}");
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn events_of_lines_come_before_those_of_their_tokens() {
        let expected = ["shops.event.*.line", "shops.event.*.token.*.*"];
        assert_eq!(subjects("shops", &[]), expected);
    }

    #[test]
    fn rows_are_read_to_the_last_one_without_an_end() {
        let mut archive = Archive::default();
        archive.begin("a.jsonl");
        let text = b"{}\n\nnothing\r\n{\"lanes\": []}\n{\"event\": 1}";
        assert!(rows(&text[..], &mut archive).is_ok());
        assert_eq!((archive.rows, archive.unreadable), (5, 3));
        assert!(!archive.is_unreadable(), "a board is there");
        let first = archive.first_unreadable.unwrap();
        assert_eq!((&*first.source, first.row), ("a.jsonl", 1));
        let mut garbage = Archive::default();
        for source in ["empty", "b.jsonl"] {
            assert!(!garbage.is_unreadable(), "there was nothing to read");
            garbage.begin(source);
        }
        assert!(rows(&b"\nnothing\n"[..], &mut garbage).is_ok());
        assert!(garbage.is_unreadable());
        assert_eq!(garbage.first_unreadable.unwrap().row, 2);
    }
}
