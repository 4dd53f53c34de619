//! Phases: when numbers are given, and when seats.

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Api, Cli, Cluster, number};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

use super::{act, has, next_after_entering, next_is, serve, show, shows};
use crate::command_line::{done, refused};
use crate::events;

async fn switch(api: &Api, line: &str, phase: &str) -> Result<Value> {
    let reply = api
        .admin(line, "configure", json!({"phase": phase}))
        .await?;
    has(&reply["settings"], &json!({"phase": phase}))?;
    has(&reply["board"], &json!({"phase": phase}))?;
    Ok(reply)
}

async fn enter_all<const N: usize>(api: &Api, line: &str, keys: [&str; N]) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for key in keys {
        all.push(api.enter(line, key).await?);
    }
    Ok(all)
}

/// `pre_open`, `open`, `paused`: numbers are given all the time, seats only while it is open.
pub async fn opened_and_paused(api: Api, line: String) -> Result<()> {
    let line = line.as_str();
    let settings = json!({"seats": 2, "queue_limit": 20, "phase": "pre_open"});
    let made = api.admin(line, "create", settings).await?;
    let lane = json!({"admitted_through": 0, "accepts_through": 22});
    has(&made["board"]["lanes"][0], &lane)?;
    let early = enter_all(&api, line, ["a", "b", "c", "d"]).await?;
    for (status, position) in early.iter().zip(1..) {
        has(status, &json!({"state": "waiting", "position": position}))?;
    }
    let info = api.ok(line, "info", json!({})).await?;
    has(&info["settings"], &json!({"phase": "pre_open"}))?;

    // At once: with the answer they have their seats, and not more than there are.
    let opened = switch(&api, line, "open").await?;
    has(&opened["counts"], &json!({"admitted": 2, "waiting": 2}))?;
    let claimed = act(&api, line, "claim", &early[0]).await?;

    switch(&api, line, "paused").await?;
    // The seats that are held can be used up …
    serve(&api, line, &early[1]).await?;
    let renew = json!({"ticket": early[0]["ticket"], "epoch": claimed["epoch"]});
    api.ok(line, "renew", renew).await?;
    act(&api, line, "complete", &early[0]).await?;
    // … and no token gets one.
    let late = api.enter(line, "e").await?;
    has(&late, &json!({"token": 5, "position": 3}))?;
    shows(
        &api,
        line,
        &early[2],
        json!({"position": 1, "eta_ms": null}),
    )
    .await?;
    has(
        &show(&api, line).await?["counts"],
        &json!({"admitted": 0, "waiting": 3}),
    )?;

    let opened = switch(&api, line, "open").await?;
    has(&opened["counts"], &json!({"admitted": 2, "waiting": 1}))?;
    shows(&api, line, &late, json!({"position": 1})).await?;
    Ok(())
}

/// `draining`: no new numbers, but every live token gets its turn. `closed`: all tokens go; opened again,
/// the numbers go on.
pub async fn drained_and_closed(api: Api, line: String) -> Result<()> {
    let line = line.as_str();
    let settings = json!({"seats": 1, "queue_limit": 20});
    api.admin(line, "create", settings).await?;
    let people = enter_all(&api, line, ["a", "b", "c", "d"]).await?;
    let drained = switch(&api, line, "draining").await?;
    has(
        &drained["board"]["lanes"][0],
        &json!({"accepts_through": 4}),
    )?;
    let newcomer = json!({"key": "late"});
    let refused = api
        .refused(line, "enter", newcomer.clone(), Code::LineClosed)
        .await?;
    let message = refused["message"].as_str().unwrap_or_default();
    ensure!(
        message.contains("takes no new numbers (draining)"),
        "{refused}"
    );
    let again = api.enter(line, "b").await?;
    ensure!(again["ticket"] == people[1]["ticket"], "{again}");
    serve(&api, line, &people[0]).await?;
    shows(&api, line, &people[1], json!({"state": "admitted"})).await?;
    let claimed = act(&api, line, "claim", &people[1]).await?;

    switch(&api, line, "closed").await?;
    let end = json!({"state": "gone", "reason": "closed"});
    shows(&api, line, &people[1], end.clone()).await?;
    for person in &people[2..] {
        shows(&api, line, person, end.clone()).await?;
    }
    let shown = shows(&api, line, &people[1], json!({"epoch": claimed["epoch"]})).await?;
    number(&shown, "epoch")?;
    shows(&api, line, &people[0], json!({"reason": "completed"})).await?;
    api.refused(line, "enter", newcomer.clone(), Code::LineClosed)
        .await?;
    let claim = json!({"ticket": people[2]["ticket"]});
    let gone = api.refused(line, "claim", claim, Code::TokenGone).await?;
    ensure!(gone["reason"] == "closed", "{gone}");
    let counts = show(&api, line).await?["counts"].clone();
    has(&counts["gone"], &json!({"closed": 3, "completed": 1}))?;

    switch(&api, line, "open").await?;
    let next = api.enter(line, "b").await?;
    has(&next, &json!({"token": 5, "state": "admitted"}))?;
    let claimed_again = act(&api, line, "claim", &next).await?;
    ensure!(number(&claimed_again, "epoch")? > number(&claimed, "epoch")?);
    // Closed and empty, it can be deleted without force.
    switch(&api, line, "closed").await?;
    api.admin(line, "delete", json!({})).await?;
    Ok(())
}

/// Line events: one for the phase, another for other settings.
pub async fn are_published(cluster: &Cluster, line: &str) -> Result<()> {
    let api = cluster.api();
    let mut incoming = api
        .subscribe(format!("nowserving.event.{line}.line"))
        .await?;
    let mut tokens = api
        .subscribe(format!("nowserving.event.{line}.token.>"))
        .await?;
    let mut boards = api
        .subscribe(format!("nowserving.event.{line}.board"))
        .await?;
    let settings = json!({"seats": 2, "queue_limit": 9, "phase": "pre_open"});
    api.admin(line, "create", settings).await?;
    enter_all(api, line, ["a", "b", "c"]).await?;
    switch(api, line, "open").await?;
    let both = json!({"phase": "paused", "seats": 3});
    api.admin(line, "configure", both).await?;
    api.admin(line, "configure", json!({"phase": "paused"}))
        .await?;
    let closed = switch(api, line, "closed").await?;

    let mut version = 0;
    for (what, phase) in [
        ("created", Value::Null),
        ("phase", json!("open")),
        ("configured", Value::Null),
        ("phase", json!("paused")),
        ("phase", json!("closed")),
    ] {
        let event = events::next(&mut incoming).await?;
        has(&event, &json!({"event": what, "phase": phase}))?;
        ensure!(version == 0 || event["prev_version"] == version, "{event}");
        version = number(&event, "version")?;
    }
    ensure!(closed["settings_version"] == version, "{closed}");
    for token in 1..=2 {
        next_is(&mut tokens, "normal", token, "admitted", json!({})).await?;
    }
    let mut ended = Vec::new();
    for _ in 0..3 {
        let event = next_after_entering(&mut tokens).await?;
        has(&event, &json!({"event": "gone", "reason": "closed"}))?;
        ended.push(number(&event, "token")?);
    }
    ended.sort_unstable();
    ensure!(ended == [1, 2, 3], "{ended:?}");
    // The board says so in the end.
    loop {
        let board = events::next(&mut boards).await?;
        if board["phase"] == "closed" && board["lanes"][0]["done_through"] == 3 {
            return Ok(());
        }
    }
}

/// By the command line tool.
pub async fn by_cli(cli: &Cli) -> Result<()> {
    let made = done(
        cli,
        "line create cli-phase --seats 1 --queue-limit 9 --phase pre_open",
    )
    .await?;
    ensure!(made["settings"]["phase"] == "pre_open", "{made}");
    let early = done(cli, "enter cli-phase --key a").await?;
    ensure!(early["state"] == "waiting", "{early}");
    for (phase, admitted, waiting) in [
        ("open", 1, 0),
        ("paused", 1, 0),
        ("draining", 1, 0),
        ("closed", 0, 0),
    ] {
        let set = done(cli, &format!("line set cli-phase --phase {phase}")).await?;
        ensure!(set["settings"]["phase"] == phase, "{set}");
        let counts = json!({"admitted": admitted, "waiting": waiting});
        has(&set["counts"], &counts)?;
        if ["draining", "closed"].contains(&phase) {
            refused(cli, "enter cli-phase --key b", "line_closed").await?;
        }
    }
    let ticket = early["ticket"].as_str().context("ticket")?;
    let gone = done(cli, &format!("status cli-phase {ticket}")).await?;
    has(&gone, &json!({"state": "gone", "reason": "closed"}))?;
    done(cli, "line set cli-phase --unset phase").await?;
    let back = done(cli, "enter cli-phase --key b").await?;
    has(&back, &json!({"token": 2, "state": "admitted"}))
}
