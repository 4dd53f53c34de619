//! The journal: what happened, page by page; why others came first; the same over crashes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Api, Cli, Cluster, HOUR_MS, eventually, number};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

use super::{act, enter, has, serve};
use crate::command_line::{done, refused};

/// All that happens in [`history`]: `n`, normal 3, is overtaken by `v` and `s`, who come later.
const HISTORY: [&str; 26] = [
    "entered normal 1",
    "admitted normal 1",
    "entered normal 2",
    "entered normal 3",
    "entered vip 1",
    "entered staff 1",
    "entered vip 2",
    "entered normal 4",
    "gone normal 4",
    "claimed normal 1",
    "gone normal 1",
    "admitted staff 1",
    "claimed staff 1",
    "gone staff 1",
    "admitted vip 1",
    "moved vip 2",
    "configured",
    "claimed vip 1",
    "gone vip 1",
    "admitted normal 2",
    "claimed normal 2",
    "gone normal 2",
    "admitted normal 3",
    "claimed normal 3",
    "gone normal 3",
    "admitted other 1",
];

async fn history(api: &Api, line: &str) -> Result<()> {
    let lanes = json!([
        {"name": "normal"}, {"name": "vip", "boost_ms": 600_000},
        {"name": "staff", "absolute": true}, {"name": "other"},
    ]);
    let settings =
        json!({"seats": 1, "queue_limit": 20, "lanes": lanes, "claim_timeout_ms": HOUR_MS});
    api.admin(line, "create", settings).await?;
    let first = enter(api, line, "normal", "first").await?;
    clock_passes(api, line, &first).await?;
    let before = enter(api, line, "normal", "before").await?;
    let n = enter(api, line, "normal", "n").await?;
    clock_passes(api, line, &n).await?;
    let v = enter(api, line, "vip", "v").await?;
    let s = enter(api, line, "staff", "s").await?;
    enter(api, line, "vip", "w").await?;
    let left = enter(api, line, "normal", "l").await?;
    act(api, line, "leave", &left).await?;
    serve(api, line, &first).await?;
    serve(api, line, &s).await?;
    let away = json!({"lane": "vip", "token": 2, "to": "other"});
    api.admin(line, "move", away).await?;
    api.admin(line, "configure", json!({"call_ahead": 3}))
        .await?;
    for person in [&v, &before, &n] {
        serve(api, line, person).await?;
    }
    Ok(())
}

/// Until the next token will have a later `entered_at_ms`.
async fn clock_passes(api: &Api, line: &str, entered: &Value) -> Result<()> {
    let at_ms = number(entered, "entered_at_ms")?;
    eventually("the clock goes on", Duration::from_secs(5), async || {
        let status = act(api, line, "status", entered).await?;
        Ok((number(&status, "at_ms")? > at_ms).then_some(()))
    })
    .await
}

async fn page(api: &Api, line: &str, body: Value) -> Result<(Vec<Value>, Value)> {
    let page = api.admin(line, "journal", body).await?;
    let entries = page["entries"].as_array().context("entries")?.clone();
    Ok((entries, page["next"].clone()))
}

/// Page by page, all of a lane, and of one token.
pub async fn pages(api: Api, line: String) -> Result<()> {
    let line = line.as_str();
    history(&api, line).await?;
    let (all, next) = page(&api, line, json!({})).await?;
    ensure!(next.is_null(), "{next}");
    for pair in all.windows(2) {
        ensure!(number(&pair[1], "version")? > number(&pair[0], "version")?);
        ensure!(number(&pair[1], "at_ms")? >= number(&pair[0], "at_ms")?);
    }
    let history: Vec<String> = all.iter().map(in_short).collect();
    ensure!(history == HISTORY, "{history:?}");
    let positions = all.iter().filter_map(|entry| entry["position"].as_u64());
    ensure!(positions.eq([1, 1, 2, 1, 1, 2, 3]), "{all:?}");
    let configured = all.iter().find(|entry| entry["what"] == "configured");
    let changes = json!([{"setting": "call_ahead", "from": 0, "to": 3}]);
    has(
        configured.context("configured")?,
        &json!({"changes": changes}),
    )?;

    for limit in [1, 2, all.len()] {
        let (mut paged, mut body) = (Vec::new(), json!({"limit": limit}));
        loop {
            let (entries, next) = page(&api, line, body.clone()).await?;
            ensure!((1..=limit).contains(&entries.len()), "{entries:?}");
            paged.extend(entries);
            if next.is_null() {
                break;
            }
            body["after"] = next;
        }
        ensure!(paged == all, "by {limit}: {paged:?}");
    }
    let (vip, _) = page(&api, line, json!({"lane": "vip"})).await?;
    let of_vip = all.iter().filter(|entry| entry["lane"] == "vip");
    ensure!(vip.iter().eq(of_vip), "{vip:?}");
    let last = number(all.last().context("entries")?, "version")?;
    let (none, next) = page(&api, line, json!({"after": last})).await?;
    ensure!(none.is_empty() && next.is_null(), "{none:?}");
    refusals(&api, line).await
}

fn in_short(entry: &Value) -> String {
    let words = [&entry["what"], &entry["lane"]].map(|word| word.as_str().unwrap_or_default());
    let number = entry["token"].as_u64().map(|number| number.to_string());
    let short = format!("{} {} {}", words[0], words[1], number.unwrap_or_default());
    short.trim_end().to_owned()
}

async fn refusals(api: &Api, line: &str) -> Result<()> {
    for (body, names) in [
        (json!({"limit": 0}), "limit"),
        (json!({"limit": 1_001}), "limit"),
        (json!({"limit": "1"}), "limit"),
        (json!({"after": -1}), "after"),
        (json!({"lane": "nowhere"}), "lane"),
        (json!({"token": "3"}), "token"),
        (json!({"tokens": 3}), "tokens"),
    ] {
        let error = api.admin_refused(line, "journal", body.clone(), Code::BadRequest);
        let error = error.await?;
        let message = error["message"].as_str().unwrap_or_default();
        ensure!(message.contains(names), "{body}: {error}");
    }
    let never = json!({"token": 99});
    api.admin_refused(line, "journal", never, Code::TokenNotFound)
        .await?;
    api.admin_refused("journal-nowhere", "journal", json!({}), Code::LineNotFound)
        .await?;
    Ok(())
}

/// Why was X before me?
pub async fn explains(api: Api, line: String) -> Result<()> {
    let line = line.as_str();
    history(&api, line).await?;
    let n = api.admin(line, "journal", json!({"token": 3})).await?;
    let explained = &n["explain"];
    has(
        explained,
        &json!({"lane": "normal", "token": 3, "cut": false}),
    )?;
    has(
        explained,
        &json!({"own_lane_before": 1, "overtakers_total": 2}),
    )?;
    let overtakers = explained["overtakers"].as_array().context("overtakers")?;
    let by = [
        json!({"lane": "staff", "token": 1, "by": "absolute", "boost_ms": null}),
        json!({"lane": "vip", "token": 1, "by": "boost", "boost_ms": 600_000}),
    ];
    ensure!(overtakers.len() == 2, "{explained}");
    for (overtaker, by) in overtakers.iter().zip(by) {
        has(overtaker, &by)?;
        ensure!(number(overtaker, "entered_at_ms")? > number(explained, "entered_at_ms")?);
    }
    let entries = n["entries"].as_array().context("entries")?;
    let own: Vec<String> = entries.iter().map(in_short).collect();
    let story = ["entered", "admitted", "claimed", "gone"];
    ensure!(
        own == story.map(|what| format!("{what} normal 3")),
        "{own:?}"
    );
    has(&entries[0], &json!({"position": 2}))?;
    number(&entries[2], "epoch")?;
    ensure!(entries[2]["entered_at_ms"] == explained["entered_at_ms"]);
    has(&entries[3], &json!({"reason": "completed"}))?;

    // A moved token is the same by either number.
    for (lane, token) in [("vip", 2), ("other", 1)] {
        let ask = json!({"lane": lane, "token": token});
        let w = api.admin(line, "journal", ask).await?;
        let now = json!({"lane": "other", "token": 1, "overtakers_total": 0});
        has(&w["explain"], &now)?;
        let entries = w["entries"].as_array().context("entries")?;
        let own: Vec<String> = entries.iter().map(in_short).collect();
        let story = ["entered vip 2", "moved vip 2", "admitted other 1"];
        ensure!(own == story, "{own:?}");
        has(&entries[1], &json!({"to_lane": "other", "to_token": 1}))?;
        let entered_at = entries.iter().map(|entry| &entry["entered_at_ms"]);
        ensure!(entered_at.clone().eq([&entries[0]["at_ms"]; 3]), "{w}");
    }
    Ok(())
}

/// By the command line tool, as by JSON.
pub async fn by_cli(cli: &Cli, api: &Api) -> Result<()> {
    let line = "cli-journal";
    history(api, line).await?;
    let all = api.admin(line, "journal", json!({})).await?;
    ensure!(done(cli, "line journal cli-journal").await? == all);
    let token = api.admin(line, "journal", json!({"token": 3})).await?;
    ensure!(done(cli, "line journal cli-journal --token 3").await? == token);
    let short = done(cli, "line journal cli-journal --limit 2").await?;
    let entries = short["entries"].as_array().context("entries")?;
    ensure!(
        entries.len() == 2 && short["next"] == entries[1]["version"],
        "{short}"
    );
    let rest = format!(
        "line journal cli-journal --lane staff --after {}",
        short["next"]
    );
    let rest = done(cli, &rest).await?;
    let entries = rest["entries"].as_array().context("entries")?;
    let staff = entries.iter().all(|entry| entry["lane"] == "staff");
    ensure!(entries.len() == 4 && staff, "{rest}");
    refused(
        cli,
        "line journal cli-journal --token 99",
        "token_not_found",
    )
    .await?;
    refused(cli, "line journal cli-journal --lane no", "bad_request").await?;
    Ok(())
}

/// The journal is replicated.
pub async fn over_a_crash(cluster: &mut Cluster) -> Result<()> {
    let line = "crash-journal";
    let api = cluster.api().clone();
    history(&api, line).await?;
    let asks = [
        json!({}),
        json!({"token": 3}),
        json!({"lane": "vip", "token": 1}),
    ];
    let mut before = Vec::new();
    for ask in &asks {
        before.push(api.admin(line, "journal", ask.clone()).await?);
    }
    let leader = cluster.leader_of(line).await?;
    cluster.process(leader)?.kill().await?;
    cluster.wait_served().await?;
    for (ask, before) in asks.iter().zip(&before) {
        let after = api.admin(line, "journal", ask.clone()).await?;
        ensure!(after == *before, "{before} has become {after}");
    }
    cluster.start_node(leader).await?;
    cluster.wait_ready().await
}
