//! The check of all messages against docs/asyncapi.yaml: that it sees them, and that it fails when it should.

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Cluster, Described, Format, Kind, Message, Route, Side, Traffic};
use nowserving_protocol::codec::{self, Format as Encoding};
use nowserving_protocol::user::{Key, StatusRequest, TokenBy};
use serde_json::{Value, json};

const ENTER: &str = "nowserving.line.described.enter";
const BOARD: &str = "nowserving.event.described.board";

/// Requests, replies and events of a cluster come by, in both formats.
pub async fn all_messages_are_seen(cluster: &mut Cluster) -> Result<()> {
    let traffic = cluster.traffic().context("nobody reads along")?;
    let before = traffic.checked()?;
    let api = cluster.api();
    let mut boards = api.subscribe(BOARD).await?;
    let settings = json!({"seats": 1, "queue_limit": 9, "schedule": null, "x_of": ["us"]});
    api.admin("described", "create", settings).await?;
    let msgpack = api.by(Format::MsgPack, Route::Shard(cluster.options().shards));
    for (api, key) in [(api, "json"), (&msgpack, "msgpack")] {
        let enter = json!({"key": key, "lane": null, "x_trace": {"any": [1, null]}});
        api.ok("described", "enter", enter).await?;
    }
    // Refused, so only the error is checked.
    let nobody = json!({"key": 5, "color": "red"});
    let refused = api.ask("described", "find", &nobody).await?;
    ensure!(
        refused.code.as_deref() == Some("bad_request"),
        "{refused:?}"
    );
    crate::events::next(&mut boards).await?;
    let after = traffic.checked()?;
    ensure!(after.replies >= before.replies + 4, "{before:?} {after:?}");
    ensure!(after.events > before.events, "{before:?} {after:?}");
    noticed()?;
    altered(cluster).await
}

/// What a cluster must not say, told as a mistake with its subject.
fn noticed() -> Result<()> {
    const INBOX: &str = "_INBOX.any";
    let said = |asked: Option<&str>, subject: &str, payload: &str| -> Result<String> {
        let traffic = Traffic::new()?;
        let message = |subject, reply, payload| Message {
            subject,
            reply,
            payload,
        };
        if let Some(asked) = asked {
            traffic.saw(Side::Server, &message(asked, Some(INBOX), b"{}"));
        }
        traffic.saw(Side::Node, &message(subject, None, payload.as_bytes()));
        let told = traffic.checked().map(|checked| checked.to_string());
        Ok(told.unwrap_or_else(|error| format!("{error:#}")))
    };
    let mood = "nowserving.event.described.mood";
    let list = "nowserving.shard.3.kv.described.list";
    for (asked, subject, payload, told) in [
        (Some(ENTER), INBOX, r#"{"token": 1}"#, ENTER),
        (Some(ENTER), INBOX, "[]", ENTER),
        (Some(list), INBOX, r#"{"entries": []}"#, list),
        (None, BOARD, r#"{"line": "described"}"#, BOARD),
        (None, mood, "{}", mood),
        // No answer to anything that was asked.
        (None, INBOX, "{}", "0 replies, 0 events"),
        (
            Some("nowserving.raft.e2e.1.2"),
            INBOX,
            "{}",
            "0 replies, 0 events",
        ),
    ] {
        let all = said(asked, subject, payload)?;
        ensure!(all.starts_with(told), "{told}: {all}");
    }
    Ok(())
}

/// Real messages, of which one thing at a time is not as described, and a description that is not of them.
async fn altered(cluster: &Cluster) -> Result<()> {
    let api = cluster.api();
    let request = json!({"key": "ann"});
    let reply = api.ok("described", "enter", request.clone()).await?;
    let published = Described::published()?;
    let check = |described: &Described, request: &Value, reply: &Value| -> Result<()> {
        let Some(Kind::Request(asks)) = described.kind(ENTER) else {
            anyhow::bail!("{ENTER} is not described");
        };
        described.check_reply(
            asks,
            request.to_string().as_bytes(),
            reply.to_string().as_bytes(),
        )
    };
    check(published, &request, &reply)?;
    let with = |value: &Value, field: &str, to: Value| {
        let mut value = value.clone();
        value[field] = to;
        value
    };
    let mut without = reply.clone();
    without.as_object_mut().context("no map")?.remove("version");
    let error = |error: Value| json!({ "error": error });
    for (what, request, reply) in [
        (
            "a field of another type",
            &request,
            with(&reply, "token", json!("1")),
        ),
        (
            "a field that is not described",
            &request,
            with(&reply, "mood", json!("good")),
        ),
        (
            "a word that is no state",
            &request,
            with(&reply, "state", json!("lost")),
        ),
        ("a field is missing", &request, without),
        (
            "an unknown code",
            &request,
            error(json!({"code": "on_fire", "message": ""})),
        ),
        (
            "an error without message",
            &request,
            error(json!({"code": "forbidden"})),
        ),
        (
            "a request with an unknown field",
            &with(&request, "color", json!("red")),
            reply.clone(),
        ),
        (
            "a request with too long a key",
            &with(&request, "key", json!("x".repeat(129))),
            reply.clone(),
        ),
        (
            "a request with two users",
            &with(&request, "anonymous", json!(true)),
            reply.clone(),
        ),
    ] {
        let wrong = check(published, request, &reply);
        ensure!(wrong.is_err(), "not noticed: {what}");
    }
    let wrong = check(published, &request, &with(&reply, "token", json!("1")));
    let told = format!("{:#}", wrong.err().context("not noticed")?);
    for part in [
        "/token",
        "StatusReply",
        r#""token":"1""#,
        "docs/asyncapi.yaml",
    ] {
        ensure!(told.contains(part), "{part} is not in {told}");
    }
    let text = Described::text()?;
    let other = text.replace("admitted_through:", "admitted_to:");
    ensure!(other != text, "nothing was altered");
    let other = Described::read(&other)?;
    ensure!(check(&other, &request, &reply).is_err(), "another document");

    let Some(Kind::Event(board)) = published.kind(BOARD) else {
        anyhow::bail!("{BOARD} is not described");
    };
    let not_a_board = published.check_event(board, br#"{"line": "described"}"#);
    ensure!(not_a_board.is_err(), "not a board");
    ensure!(published.kind("nowserving.event.described.mood").is_none());
    // Binary in MessagePack is what text is in JSON.
    let Some(Kind::Request(asks)) = published.kind("nowserving.shard.3.described.status") else {
        anyhow::bail!("status is not described");
    };
    let key = Key::new(&b"\xff\xfe"[..])?;
    let status = StatusRequest::new(TokenBy::Key(key));
    let request = codec::encode(&status, Encoding::MsgPack);
    let ask = json!({"key": "ann"});
    let reply = api.ok("described", "status", ask).await?;
    published.check_reply(asks, &request, reply.to_string().as_bytes())
}
