//! How large a request may be: up to our own limit it is read, beyond it is refused by name, and
//! beyond NATS's it never reaches a node.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Cluster, Format, HOUR_MS, RawNats, eventually};
use nowserving_protocol::codec::MAX_REQUEST_BYTES;
use nowserving_protocol::error::Code;
use serde_json::json;

/// The default payload limit of nats-server.
const NATS_MAX: usize = 1024 * 1024;
const PATIENCE: Duration = Duration::from_secs(60);

/// Payloads at and over each limit, in both formats, of users and of operators.
pub async fn payloads(cluster: &Cluster) -> Result<()> {
    let line = "limits";
    let api = cluster.api();
    let settings = json!({"seats": 1, "queue_limit": 100, "claim_timeout_ms": HOUR_MS});
    api.admin(line, "create", settings).await?;
    ensure!(MAX_REQUEST_BYTES == 65_536, "the contract says so");
    let subject = format!("nowserving.line.{line}.enter");
    for (key, format) in [("j", Format::Json), ("m", Format::MsgPack)] {
        let entered = api.call_subject(&subject, enter(format, key, MAX_REQUEST_BYTES));
        entered.await?.accepted(format)?;
        for bytes in [MAX_REQUEST_BYTES + 1, NATS_MAX] {
            let reply = api.call_subject(&subject, enter(format, "l", bytes));
            let error = reply.await?.refused(format, Code::BadRequest)?;
            let message = error["message"].as_str().unwrap_or_default();
            let is_clear = message.contains(&bytes.to_string()) && message.contains("65536");
            ensure!(is_clear, "{bytes} bytes: {error}");
        }
    }
    // White space does not count as a field, and so is the one thing that an operator's request
    // can be filled with.
    let subject = format!("nowserving.admin.line.{line}.show");
    let show = |bytes| format!("{{{}}}", " ".repeat(bytes - 2));
    let shown = api.call_subject(&subject, show(MAX_REQUEST_BYTES));
    shown.await?.accepted(Format::Json)?;
    let refused = api.call_subject(&subject, show(MAX_REQUEST_BYTES + 1));
    refused.await?.refused(Format::Json, Code::BadRequest)?;

    over_nats_own(cluster, line).await?;
    // None of the large ones has taken a number.
    ensure!(api.enter(line, "next").await?["token"] == 3);
    Ok(())
}

/// nats-server itself refuses it and ends the sender's connection; other clients notice nothing.
async fn over_nats_own(cluster: &Cluster, line: &str) -> Result<()> {
    let mut raw = RawNats::connect(cluster.nats.port()).await?;
    let subject = format!("nowserving.line.{line}.enter");
    let large = enter(Format::Json, "l", NATS_MAX + 1);
    let asked = raw.ask(subject.as_bytes(), &large, PATIENCE);
    // It may close before it has read everything, and then its error is lost.
    if let Ok(answer) = asked.await {
        let answer = answer.context("no answer at all")?;
        ensure!(answer.contains("Maximum Payload"), "{answer}");
    }
    eventually("another client is served", PATIENCE, async || {
        let mut other = RawNats::connect(cluster.nats.port()).await?;
        let asked = other.ask(subject.as_bytes(), b"{\"key\":\"j\"}", PATIENCE);
        let answer = asked.await?.context("no answer")?;
        ensure!(answer.contains("\"token\":1"), "{answer}");
        Ok(Some(()))
    })
    .await
}

/// A request of exactly this size by a key of one letter, nearly all of it in a field of its own.
fn enter(format: Format, key: &str, bytes: usize) -> Vec<u8> {
    match format {
        Format::Json => {
            let mut payload = format!("{{\"key\":\"{key}\",\"x_filling\":\"").into_bytes();
            payload.resize(bytes - 2, b'x');
            payload.extend_from_slice(b"\"}");
            payload
        }
        Format::MsgPack => {
            // A map of two; the filling's length in four bytes, so that any fits.
            let mut payload = [b"\x82\xa3key\xa1", key.as_bytes()].concat();
            payload.extend_from_slice(b"\xa9x_filling\xdb");
            let left = bytes - payload.len() - 4;
            payload.extend_from_slice(&(left as u32).to_be_bytes());
            payload.resize(bytes, b'x');
            payload
        }
    }
}
