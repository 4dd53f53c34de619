//! A dispatcher admits tokens: the next ones, and one out of order; by raw requests and by the command.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use nowserving_e2e::{Api, Cli, Cluster, eventually, number};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

use crate::command_line::{done, refused};

const PATIENCE: Duration = Duration::from_secs(15);

async fn create(api: &Api, line: &str, seats: u32) -> Result<()> {
    let lanes = json!([{"name": "normal"}, {"name": "vip", "boost_ms": 600_000}]);
    let settings =
        json!({"seats": seats, "queue_limit": 100, "lanes": lanes, "admission": "called"});
    let made = api.admin(line, "create", settings).await?;
    ensure!(made["settings"]["admission"] == "called", "{made}");
    Ok(())
}

async fn enter(api: &Api, line: &str, lane: &str, key: &str) -> Result<Value> {
    let entered = api
        .ok(line, "enter", json!({"key": key, "lane": lane}))
        .await?;
    ensure!(entered["state"] == "waiting", "{entered}");
    Ok(entered)
}

/// The keys that the answer lists.
fn admitted(answer: &Value) -> Result<Vec<&str>> {
    let tokens = answer["admitted"].as_array().context("admitted")?;
    let keys = tokens.iter().map(|token| token["key"].as_str());
    keys.collect::<Option<_>>().context("keys")
}

pub async fn next_ones(api: Api, line: &str) -> Result<()> {
    create(&api, line, 3).await?;
    for (lane, key) in [
        ("normal", "ann"),
        ("normal", "bob"),
        ("vip", "cat"),
        ("normal", "dan"),
    ] {
        enter(&api, line, lane, key).await?;
    }
    let info = api.ok(line, "info", json!({})).await?;
    ensure!(info["held_back_by"] == json!({"by": "called"}), "{info}");
    ensure!(info["newcomer_eta_ms"].is_null(), "{info}");
    let call = json!({"n": 2, "call_id": "shift-1"});
    let called = api.admin(line, "call_next", call.clone()).await?;
    let cat = json!({"lane": "vip", "token": 1, "key": "cat"});
    ensure!(admitted(&called)? == ["cat", "ann"], "{called}");
    ensure!(called["admitted"][0] == cat, "{called}");
    // Repeated, by a new request: the same answer, and nobody else.
    ensure!(api.admin(line, "call_next", call).await? == called);
    let shown = api.admin(line, "show", json!({})).await?;
    ensure!(shown["counts"]["admitted"] == 2, "{shown}");

    let none = json!({"n": 5, "lane": "vip", "call_id": "shift-2"});
    let none = api.admin(line, "call_next", none).await?;
    ensure!(none == json!({"admitted": []}), "{none}");
    let rest = json!({"n": 1024, "call_id": "shift-3"});
    let rest = api.admin(line, "call_next", rest).await?;
    ensure!(admitted(&rest)? == ["bob"], "one seat was free: {rest}");
    let cat = api.ok(line, "find", json!({"key": "cat"})).await?;
    api.ok(line, "leave", json!({"ticket": cat["ticket"]}))
        .await?;
    let dan = api.ok(line, "find", json!({"key": "dan"})).await?;
    ensure!(dan["state"] == "waiting", "a seat that is free: {dan}");
    // The answer names keys of tokens that are gone, too.
    let again = json!({"n": 1, "call_id": "shift-1"});
    ensure!(api.admin(line, "call_next", again).await? == called);

    switched(&api, line).await?;
    let dan = api.ok(line, "find", json!({"key": "dan"})).await?;
    ensure!(dan["state"] == "admitted", "{dan}");
    refusals(&api, line).await
}

/// By a schedule, and for all lines with a label.
async fn switched(api: &Api, line: &str) -> Result<()> {
    let nightly = json!([{"at": "2099-01-01T00:00:00Z", "set": {"admission": "called"}}]);
    let set = json!({"labels": {"calls": line}, "schedule": nightly});
    let set = api.admin(line, "configure", set).await?;
    ensure!(set["settings"]["schedule"] == nightly, "{set}");
    let auto = json!({"labels": {"calls": line}, "set": {"admission": "auto"}});
    // The node that answers may apply the label a moment later.
    eventually("the line is listed", PATIENCE, async || {
        let answer = api.cluster("configure_lines", auto.clone()).await?;
        let changes = json!([{"setting": "admission", "from": "called", "to": "auto"}]);
        Ok((answer["lines"][0]["changes"] == changes).then_some(()))
    })
    .await
}

async fn refusals(api: &Api, line: &str) -> Result<()> {
    let long = "x".repeat(65);
    for (op, body, says) in [
        ("call_next", json!({"n": 1}), "call_id"),
        ("call_next", json!({"n": 0, "call_id": "a"}), "n"),
        ("call_next", json!({"n": 1025, "call_id": "a"}), "1024"),
        (
            "call_next",
            json!({"n": 1, "call_id": long}),
            "call_id: 1 to 64",
        ),
        ("call_next", json!({"n": 1, "call_id": "a b"}), "call_id"),
        (
            "call_next",
            json!({"n": 1, "call_id": "a", "lane": "gold"}),
            "lane",
        ),
        ("take", json!({}), "key: required"),
        ("take", json!({"lane": "vip"}), "token: required"),
        ("take", json!({"key": "a", "token": 3}), "key: not together"),
        ("take", json!({"lane": "gold", "token": 3}), "lane"),
        ("take", json!({"key": "a", "buy": "ops"}), "buy"),
        ("take", json!({"key": "a", "by": "ann"}), "by"),
        ("configure", json!({"admission": "never"}), "admission"),
    ] {
        let error = api
            .admin_refused(line, op, body.clone(), Code::BadRequest)
            .await?;
        let message = error["message"].as_str().unwrap_or_default();
        ensure!(message.contains(says), "{op} {body}: {error}");
    }
    for (body, code) in [
        (json!({"key": "nobody"}), Code::TokenNotFound),
        (json!({"lane": "vip", "token": 99}), Code::TokenNotFound),
        (json!({"lane": "vip", "token": 1}), Code::TokenGone),
    ] {
        api.admin_refused(line, "take", body, code).await?;
    }
    let call = json!({"n": 1, "call_id": "a"});
    api.admin_refused("no-such-line", "call_next", call, Code::LineNotFound)
        .await?;
    Ok(())
}

/// The event, the board's hole, the journal and its explanation.
pub async fn one_out_of_order(cluster: &Cluster, api: Api, line: &str) -> Result<()> {
    create(&api, line, 2).await?;
    let mut people = Vec::new();
    for key in ["ann", "bob", "cat", "dan"] {
        people.push(enter(&api, line, "normal", key).await?);
    }
    let events = format!("nowserving.event.{line}.token.normal.3");
    let mut events = cluster.api().subscribe(events).await?;
    let mut boards = cluster
        .api()
        .subscribe(format!("nowserving.event.{line}.board"))
        .await?;
    let taken = api.admin(line, "take", json!({"key": "cat"})).await?;
    let cat = json!({"admitted": [{"lane": "normal", "token": 3, "key": "cat"}]});
    ensure!(taken == cat, "{taken}");
    // Again, by her number: she has her seat.
    let by_number = json!({"lane": "normal", "token": 3, "call_id": "c"});
    ensure!(api.admin(line, "take", by_number.clone()).await? == cat);
    let event = events.next().await.context("an event")?;
    let event: Value = serde_json::from_slice(&event.payload)?;
    ensure!(
        event["event"] == "admitted" && event["by"] == "take",
        "{event}"
    );
    // A watcher of the fourth is told that the third does not wait any more.
    let version = number(&event, "version")?;
    loop {
        let board = boards.next().await.context("a board")?;
        let board: Value = serde_json::from_slice(&board.payload)?;
        if number(&board, "version")? >= version {
            let normal = &board["lanes"][0];
            ensure!(normal["holes"] == json!([[3, 3]]), "{board}");
            ensure!(normal["admitted_through"] == 0, "{board}");
            break;
        }
    }
    let body = json!({"ticket": people[3]["ticket"], "holes": true});
    let dan = api.ok(line, "status", body).await?;
    ensure!(dan["position"] == 3 && dan["turn"] == 3, "{dan}");
    ensure!(dan["holes"] == json!([[3, 3]]), "{dan}");
    ensure!(dan["eta_ms"].is_null(), "{dan}");

    let ask = json!({"lane": "normal", "token": 1});
    let story = api.admin(line, "journal", ask).await?;
    let overtaker = &story["explain"]["overtakers"][0];
    ensure!(
        overtaker["token"] == 3 && overtaker["by"] == "take",
        "{story}"
    );
    let story = api.admin(line, "journal", json!({"token": 3})).await?;
    ensure!(story["entries"][1]["what"] == "taken", "{story}");

    // Seats, then the phase, hold a take back.
    api.admin(line, "take", json!({"key": "bob"})).await?;
    for (change, says) in [
        (json!({"seats": 2}), "every seat is held"),
        (json!({"phase": "paused"}), "phase"),
    ] {
        api.admin(line, "configure", change).await?;
        let error = api
            .admin_refused(line, "take", json!({"key": "ann"}), Code::NotAdmitted)
            .await?;
        let message = error["message"].as_str().unwrap_or_default();
        ensure!(message.contains(says), "{error}");
    }
    let cat = api.ok(line, "find", json!({"key": "cat"})).await?;
    api.ok(line, "leave", json!({"ticket": cat["ticket"]}))
        .await?;
    let gone = api.admin(line, "take", by_number).await?;
    ensure!(gone == taken, "what the call was answered: {gone}");
    Ok(())
}

/// By the command line tool.
pub async fn by_command(cli: Cli) -> Result<()> {
    let cli = &cli;
    let line = "called-command";
    let words = format!("line create {line} --seats 5 --queue-limit 9 --admission called");
    let made = done(cli, &words).await?;
    ensure!(made["settings"]["admission"] == "called", "{made}");
    for key in ["ann", "bob", "cat"] {
        done(cli, &format!("enter {line} --key {key}")).await?;
    }
    let words = format!("line call-next {line} --call-id monday-1");
    let called = done(cli, &words).await?;
    ensure!(admitted(&called)? == ["ann"], "{called}");
    ensure!(done(cli, &words).await? == called, "the same call");
    let taken = done(cli, &format!("line take {line} --token normal:3")).await?;
    ensure!(admitted(&taken)? == ["cat"], "{taken}");
    let rest = done(cli, &format!("line call-next {line} --n 9 --lane normal")).await?;
    ensure!(admitted(&rest)? == ["bob"], "{rest}");
    let none = format!("line take {line} --key nobody");
    refused(cli, &none, "token_not_found").await?;
    for wrong in ["", " --key a --token normal:1"] {
        let words = format!("line take {line}{wrong}");
        let words: Vec<&str> = words.split(' ').collect();
        cli.run(&words).await?.failed(2, "bad_request")?;
    }
    let shown = done(cli, &format!("line set {line} --unset admission")).await?;
    ensure!(shown["settings"]["admission"] == "auto", "{shown}");
    Ok(())
}
