//! `move`: a waiting token goes on in another lane, and its holder with the ticket that it has.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Api, Cli, Cluster, Format, eventually, number};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

use super::{act, enter, has, lane_of, next_after_entering, next_is, serve, shows};
use crate::command_line::{done, refused};
use crate::events;

const PATIENCE: Duration = Duration::from_secs(15);

/// A line with one in checkout (normal 1), b and c waiting (normal 2, 3), and v (vip 1): full.
struct Crowd {
    a: Value,
    b: Value,
    c: Value,
    v: Value,
}

async fn crowd(api: &Api, line: &str) -> Result<Crowd> {
    let lanes = json!([
        {"name": "normal"}, {"name": "vip", "boost_ms": 600_000, "queue_limit": 2},
    ]);
    let settings = json!({"seats": 1, "queue_limit": 3, "lanes": lanes});
    api.admin(line, "create", settings).await?;
    let a = enter(api, line, "normal", "a").await?;
    act(api, line, "claim", &a).await?;
    Ok(Crowd {
        a,
        b: enter(api, line, "normal", "b").await?,
        c: enter(api, line, "normal", "c").await?,
        v: enter(api, line, "vip", "v").await?,
    })
}

fn to_vip(token: u64) -> Value {
    json!({"lane": "normal", "token": token, "to": "vip"})
}

/// The old ticket acts on the new token, to its end.
pub async fn life(cluster: &Cluster, format: Format, line: String) -> Result<()> {
    let line = line.as_str();
    let listener = cluster.api();
    let tokens = format!("nowserving.event.{line}.token.>");
    let mut incoming = listener.subscribe(tokens).await?;
    let api = &listener.by(format, nowserving_e2e::Route::Plain);
    let Crowd { a, b, c, v } = crowd(api, line).await?;
    // Only events of the move are checked.
    for _ in 0..2 {
        next_after_entering(&mut incoming).await?;
    }
    shows(api, line, &c, json!({"position": 2})).await?;

    let moved = api.admin(line, "move", to_vip(2)).await?;
    let new = json!({
        "lane": "vip", "token": 2, "state": "waiting", "position": 2,
        "entered_at_ms": b["entered_at_ms"], "incarnation": b["incarnation"],
    });
    has(&moved, &new)?;
    ensure!(moved["ticket"] != b["ticket"], "{moved}");
    let fields = json!({"to_lane": "vip", "to_token": 2, "reason": null});
    next_is(&mut incoming, "normal", 2, "moved", fields).await?;
    shows(api, line, &c, json!({"position": 1})).await?;

    let by_old = shows(api, line, &b, new.clone()).await?;
    ensure!(by_old["ticket"] == moved["ticket"], "{by_old}");
    let by_new = shows(api, line, &moved, new.clone()).await?;
    ensure!(by_new.get("ticket").is_none(), "nothing new: {by_new}");
    for op in ["find", "enter"] {
        let by_key = api.ok(line, op, json!({"key": "b"})).await?;
        has(&by_key, &new)?;
        ensure!(by_key["ticket"] == moved["ticket"], "{op}: {by_key}");
    }
    let again = api.admin(line, "move", to_vip(2)).await?;
    has(&again, &new)?;
    ensure!(again["ticket"] == moved["ticket"], "{again}");
    let is_seen = async |consistency: &str| {
        let body = json!({"ticket": b["ticket"], "consistency": consistency});
        let status = api.ok(line, "status", body).await?;
        has(&status, &new)?;
        ensure!(status["ticket"] == moved["ticket"], "{status}");
        Ok(Some(()))
    };
    is_seen("linearizable").await?;
    // Any node answers this, as soon as it has applied the move.
    eventually("it has been moved", PATIENCE, async || {
        is_seen("local").await
    })
    .await?;
    let board = api.ok(line, "info", json!({})).await?;
    has(
        lane_of(&board, "vip")?,
        &json!({"next_token": 3, "waiting": 2}),
    )?;

    // The vip lane before it; in it by number.
    serve(api, line, &a).await?;
    next_is(&mut incoming, "normal", 1, "gone", json!({})).await?;
    next_is(&mut incoming, "vip", 1, "admitted", json!({})).await?;
    act(api, line, "leave", &v).await?;
    next_is(&mut incoming, "vip", 1, "gone", json!({})).await?;
    next_is(&mut incoming, "vip", 2, "admitted", json!({})).await?;
    let claimed = act(api, line, "claim", &b).await?;
    let new = json!({"lane": "vip", "token": 2, "ticket": moved["ticket"]});
    has(&claimed, &new)?;
    let body = json!({"ticket": b["ticket"], "epoch": number(&claimed, "epoch")?});
    has(&api.ok(line, "renew", body.clone()).await?, &new)?;
    let completed = api.ok(line, "complete", body).await?;
    has(&completed, &new)?;
    let end = json!({"state": "gone", "reason": "completed", "epoch": claimed["epoch"]});
    has(&completed, &end)?;
    has(&shows(api, line, &b, end).await?, &new)?;
    // c has the seat; a moved token does not hold up `done_through`.
    let board = api.ok(line, "info", json!({})).await?;
    let normal = json!({"done_through": 2, "admitted_through": 3, "waiting": 0});
    has(lane_of(&board, "normal")?, &normal)
}

/// A moved waiter is a hole of its old lane.
pub async fn holes(api: Api) -> Result<()> {
    let line = "move-holes";
    let mut boards = api
        .subscribe(format!("nowserving.event.{line}.board"))
        .await?;
    let Crowd { b, .. } = crowd(&api, line).await?;
    let mut holes = Vec::new();
    let version = number(&api.admin(line, "move", to_vip(2)).await?, "version")?;
    loop {
        let board = events::next(&mut boards).await?;
        let listed = lane_of(&board, "normal")?["holes"].as_array();
        holes.extend(listed.context("holes")?.iter().cloned());
        if number(&board, "version")? >= version {
            break;
        }
    }
    ensure!(holes == [json!([2, 2])], "{holes:?}");
    let last = json!({"key": "c"});
    let c = api.ok(line, "find", last).await?;
    let asked = json!({"ticket": c["ticket"], "holes": true});
    let status = api.ok(line, "status", asked).await?;
    has(
        &status,
        &json!({"position": 1, "admitted_through": 2, "holes": []}),
    )?;
    // Asked with the old ticket the holes are those of the new lane.
    let asked = json!({"ticket": b["ticket"], "holes": true});
    let status = api.ok(line, "status", asked).await?;
    has(
        &status,
        &json!({"position": 2, "admitted_through": 0, "holes": []}),
    )
}

/// Refused moves: by state and by destination.
pub async fn refusals(api: Api, line: String) -> Result<()> {
    let line = line.as_str();
    let Crowd { a, b, v, .. } = crowd(&api, line).await?;
    let unknown_lane = json!({"lane": "normal", "token": 2, "to": "nowhere"});
    let same = json!({"lane": "normal", "token": 2, "to": "normal"});
    let moved_here = json!({"lane": "vip", "token": 1, "to": "vip"});
    for (body, code, names) in [
        (to_vip(1), Code::NotWaiting, ""),
        (to_vip(4), Code::TokenNotFound, ""),
        (to_vip(0), Code::TokenNotFound, ""),
        (unknown_lane, Code::BadRequest, "to"),
        (same, Code::BadRequest, "to"),
        (moved_here, Code::BadRequest, "to"),
        (
            json!({"lane": "x.y", "token": 1, "to": "vip"}),
            Code::BadRequest,
            "lane",
        ),
        (
            json!({"lane": "normal", "token": -1, "to": "vip"}),
            Code::BadRequest,
            "token",
        ),
        (
            json!({"lane": "normal", "token": 2}),
            Code::BadRequest,
            "to",
        ),
        (json!({"token": 2, "to": "vip"}), Code::BadRequest, "lane"),
        (
            json!({"lane": "normal", "token": 2, "to": "vip", "key": "b"}),
            Code::BadRequest,
            "key",
        ),
    ] {
        let error = api.admin_refused(line, "move", body.clone(), code).await?;
        let message = error["message"].as_str().unwrap_or_default();
        ensure!(message.contains(names), "{body}: {error}");
    }

    api.admin(line, "move", to_vip(2)).await?;
    // Two wait there now: b and v.
    let full = api
        .admin_refused(line, "move", to_vip(3), Code::LineFull)
        .await?;
    number(&full, "retry_after_ms")?;
    act(&api, line, "leave", &v).await?;
    let third = api.admin(line, "move", to_vip(3)).await?;
    ensure!(third["token"] == 3 && third["position"] == 2, "{third}");
    // Asked again when it does not wait any more, it is still where it was put.
    serve(&api, line, &a).await?;
    let again = api.admin(line, "move", to_vip(2)).await?;
    has(
        &again,
        &json!({"state": "admitted", "lane": "vip", "token": 2}),
    )?;
    let back = json!({"lane": "normal", "token": 2, "to": "normal"});
    api.admin_refused(line, "move", back, Code::NotWaiting)
        .await?;
    act(&api, line, "leave", &b).await?;
    let gone = api
        .admin_refused(line, "move", to_vip(2), Code::TokenGone)
        .await?;
    ensure!(gone["reason"] == "left", "{gone}");
    Ok(())
}

/// To and fro, as often as may be; every ticket that it ever had is as good as the last one.
pub async fn to_and_fro(api: Api) -> Result<()> {
    let line = "move-often";
    let lanes = json!([{"name": "normal"}, {"name": "vip"}]);
    let settings = json!({"seats": 1, "queue_limit": 9, "lanes": lanes});
    api.admin(line, "create", settings).await?;
    api.enter(line, "seated").await?;
    let first = api.enter(line, "a").await?;
    let mut all = vec![first.clone()];
    for nth in 0..16 {
        let to = ["vip", "normal"][nth % 2];
        // By the number that it had first.
        let body = json!({"lane": "normal", "token": 2, "to": to});
        let moved = api.admin(line, "move", body).await?;
        has(&moved, &json!({"lane": to, "position": 1}))?;
        all.push(moved);
    }
    let last = all.last().context("moved")?.clone();
    for former in &all {
        let entered_at_ms = &first["entered_at_ms"];
        let now = json!({
            "lane": "normal", "token": last["token"], "entered_at_ms": entered_at_ms,
        });
        shows(&api, line, former, now).await?;
    }
    let more = json!({"lane": "normal", "token": last["token"], "to": "vip"});
    let refused = api
        .admin_refused(line, "move", more, Code::BadRequest)
        .await?;
    let message = refused["message"].as_str().unwrap_or_default();
    ensure!(message.contains("token"), "{refused}");
    let left = act(&api, line, "leave", &first).await?;
    has(&left, &json!({"token": last["token"], "reason": "left"}))?;
    for former in &all {
        let end = json!({"state": "gone", "reason": "left", "token": last["token"]});
        shows(&api, line, former, end).await?;
    }
    Ok(())
}

/// A watcher with the old ticket sees its place go on in the new lane.
pub async fn watched(cli: &Cli) -> Result<()> {
    let line = "cli-watch-move";
    done(
        cli,
        &format!("line create {line} --seats 1 --queue-limit 9 --lane normal --lane vip"),
    )
    .await?;
    let mut last = Value::Null;
    for key in ["a", "b", "c"] {
        last = done(cli, &format!("enter {line} --key {key}")).await?;
    }
    let ticket = last["ticket"].as_str().context("ticket")?;
    let mut place = cli.start(&["watch", line, "--ticket", ticket]).await?;
    let first = place.next().await?.context("watch has ended")?;
    has(
        &first,
        &json!({"lane": "normal", "token": 3, "position": 2}),
    )?;
    let moved = done(
        cli,
        &format!("line move {line} --lane normal --token 3 --to vip"),
    )
    .await?;
    let there = place.next().await?.context("watch has ended")?;
    has(
        &there,
        &json!({"lane": "vip", "token": 1, "position": 1, "state": "waiting"}),
    )?;
    done(cli, &format!("enter {line} --lane vip --key d")).await?;
    let first = done(cli, &format!("find {line} --key a")).await?;
    for person in [&first, &done(cli, &format!("find {line} --key b")).await?] {
        let ticket = person["ticket"].as_str().context("ticket")?;
        done(cli, &format!("leave {line} {ticket}")).await?;
    }
    let new = moved["ticket"].as_str().context("ticket")?;
    let mut seen = there;
    while seen["state"] == "waiting" {
        seen = place.next().await?.context("watch has ended")?;
    }
    has(
        &seen,
        &json!({"lane": "vip", "token": 1, "state": "admitted"}),
    )?;
    done(cli, &format!("leave {line} {new}")).await?;
    while let Some(status) = place.next().await? {
        seen = status;
    }
    has(&seen, &json!({"state": "gone", "reason": "left"}))?;
    ensure!(place.child.wait().await?.success());
    Ok(())
}

/// By the command line tool.
pub async fn by_cli(cli: &Cli) -> Result<()> {
    let line = "cli-move";
    done(
        cli,
        "line create cli-move --seats 1 --queue-limit 3 --lane normal --lane vip:limit=1",
    )
    .await?;
    for key in ["a", "b", "c"] {
        done(cli, &format!("enter {line} --key {key}")).await?;
    }
    let old = done(cli, "find cli-move --key b").await?;
    let moving = "line move cli-move --lane normal --token 2 --to vip";
    let moved = done(cli, moving).await?;
    let new = json!({"lane": "vip", "token": 1, "position": 1, "state": "waiting"});
    has(&moved, &new)?;
    ensure!(done(cli, moving).await?["ticket"] == moved["ticket"]);
    let ticket = old["ticket"].as_str().context("ticket")?;
    let status = done(cli, &format!("status {line} {ticket}")).await?;
    has(&status, &new)?;
    ensure!(status["ticket"] == moved["ticket"], "{status}");
    for (words, code) in [
        ("--lane normal --token 1 --to vip", "not_waiting"),
        ("--lane normal --token 3 --to normal", "bad_request"),
        ("--lane normal --token 3 --to vip", "line_full"),
        ("--lane normal --token 9 --to vip", "token_not_found"),
        ("--lane normal --token 3 --to nowhere", "bad_request"),
    ] {
        refused(cli, &format!("line move {line} {words}"), code).await?;
    }
    let left = done(cli, &format!("leave {line} {ticket}")).await?;
    has(&left, &json!({"lane": "vip", "token": 1, "reason": "left"}))
}
