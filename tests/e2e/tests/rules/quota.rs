//! `quota`: units, standby tokens, and units that come back.

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Api, Cli, Cluster};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

use super::{act, has, next_is, serve, show, shows};
use crate::command_line::{done, refused};

async fn sold_out(api: &Api, line: &str, key: &str) -> Result<()> {
    let body = json!({"key": key});
    let error = api.refused(line, "enter", body, Code::SoldOut).await?;
    ensure!(error.get("retry_after_ms").is_none(), "{error}");
    Ok(())
}

/// Three units and one standby token. A seat that expires gives its unit back.
pub async fn sells_what_there_is(cluster: &Cluster, api: Api, line: String) -> Result<()> {
    let line = line.as_str();
    let events = format!("nowserving.event.{line}.token.>");
    let mut incoming = cluster.api().subscribe(events).await?;
    let quota = json!({"total": 3, "standby_percent": 50});
    let settings = json!({"seats": 2, "queue_limit": 20, "quota": quota});
    let made = api.admin(line, "create", settings).await?;
    ensure!(made["settings"]["quota"] == quota, "{made}");
    // 3 × 150 %, rounded down.
    let mut people = Vec::new();
    for key in ["a", "b", "c", "d"] {
        people.push(api.enter(line, key).await?);
    }
    sold_out(&api, line, "e").await?;
    let again = api.enter(line, "d").await?;
    ensure!(again["token"] == 4, "who is in is answered: {again}");
    let info = api.ok(line, "info", json!({})).await?;
    has(&info["settings"], &json!({"quota": {"total": 3}}))?;
    has(&info["lanes"][0], &json!({"accepts_through": 4}))?;

    serve(&api, line, &people[0]).await?;
    serve(&api, line, &people[1]).await?;
    // Two are sold and c holds the third: there is a seat for d, but no unit.
    shows(&api, line, &people[2], json!({"state": "admitted"})).await?;
    shows(
        &api,
        line,
        &people[3],
        json!({"state": "waiting", "position": 1}),
    )
    .await?;
    has(
        &show(&api, line).await?["board"],
        &json!({"admitted": 1, "in_checkout": 0}),
    )?;
    let short = json!({"checkout_timeout_ms": 200});
    api.admin(line, "configure", short).await?;
    act(&api, line, "claim", &people[2]).await?;
    for (token, what, reason) in [
        (1, "admitted", Value::Null),
        (2, "admitted", Value::Null),
        (1, "claimed", Value::Null),
        (1, "gone", json!("completed")),
        (3, "admitted", Value::Null),
        (2, "claimed", Value::Null),
        (2, "gone", json!("completed")),
        (3, "claimed", Value::Null),
        (3, "gone", json!("checkout_expired")),
        (4, "admitted", Value::Null),
    ] {
        let fields = json!({"reason": reason});
        next_is(&mut incoming, "normal", token, what, fields).await?;
    }
    let unit_back = json!({"checkout_timeout_ms": null});
    api.admin(line, "configure", unit_back).await?;
    // So there is room for a standby token again, which goes once all is sold.
    let hopeful = api.enter(line, "e").await?;
    has(&hopeful, &json!({"token": 5, "state": "waiting"}))?;
    sold_out(&api, line, "f").await?;
    serve(&api, line, &people[3]).await?;
    next_is(&mut incoming, "normal", 4, "claimed", json!({})).await?;
    next_is(&mut incoming, "normal", 4, "gone", json!({})).await?;
    let reason = json!({"reason": "sold_out"});
    next_is(&mut incoming, "normal", 5, "gone", reason.clone()).await?;
    shows(
        &api,
        line,
        &hopeful,
        json!({"state": "gone", "reason": "sold_out"}),
    )
    .await?;
    let gone = api
        .refused(
            line,
            "claim",
            json!({"ticket": hopeful["ticket"]}),
            Code::TokenGone,
        )
        .await?;
    has(&gone, &reason)?;
    sold_out(&api, line, "f").await?;
    raised(&api, line).await
}

/// With a raised quota the line goes on. With one below the units sold all waiting tokens go.
async fn raised(api: &Api, line: &str) -> Result<()> {
    let more = json!({"quota": {"total": 5}});
    api.admin(line, "configure", more).await?;
    let first = api.enter(line, "g").await?;
    let second = api.enter(line, "h").await?;
    has(&first, &json!({"token": 6, "state": "admitted"}))?;
    sold_out(api, line, "i").await?;
    let none = json!({"quota": null});
    api.admin(line, "configure", none).await?;
    let waiting = api.enter(line, "i").await?;
    ensure!(waiting["state"] == "waiting", "{waiting}");
    let less = json!({"quota": {"total": 1}});
    api.admin(line, "configure", less).await?;
    let end = json!({"state": "gone", "reason": "sold_out"});
    shows(api, line, &waiting, end).await?;
    // A token with a seat keeps it.
    serve(api, line, &first).await?;
    serve(api, line, &second).await?;
    let counts = show(api, line).await?["counts"].clone();
    let gone = json!({"completed": 5, "sold_out": 2, "checkout_expired": 1});
    has(&counts["gone"], &gone)
}

/// By the command line tool.
pub async fn by_cli(cli: &Cli) -> Result<()> {
    let made = done(
        cli,
        "line create cli-quota --seats 5 --queue-limit 9 --quota 1 --standby-percent 100",
    )
    .await?;
    let quota = json!({"total": 1, "standby_percent": 100});
    ensure!(made["settings"]["quota"] == quota, "{made}");
    let first = done(cli, "enter cli-quota --key a").await?;
    let standby = done(cli, "enter cli-quota --key b").await?;
    ensure!(standby["state"] == "waiting", "{standby}");
    let error = refused(cli, "enter cli-quota --key c", "sold_out").await?;
    ensure!(error.get("retry_after_ms").is_none(), "{error}");
    let ticket = first["ticket"].as_str().context("ticket")?;
    done(cli, &format!("claim cli-quota {ticket}")).await?;
    done(cli, &format!("complete cli-quota {ticket}")).await?;
    let ticket = standby["ticket"].as_str().context("ticket")?;
    let gone = done(cli, &format!("status cli-quota {ticket}")).await?;
    has(&gone, &json!({"state": "gone", "reason": "sold_out"}))
}
