//! The rules that operators set for a line: lanes, moves, pace, phases, quota, what is shown, the
//! journal, forecasts; and that they hold over crashes.

pub mod bad_settings;
pub mod changes;
pub mod forecasts;
pub mod journal;
pub mod lanes;
pub mod moves;
pub mod pace;
pub mod phases;
pub mod quota;
pub mod shown;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_nats::Subscriber;
use nowserving_e2e::{Api, Cli, Cluster, Format, Scenarios, eventually, under_one_leader};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{events, snapshots};

/// [`under_one_leader`], for a scenario that makes its requests by `api`.
async fn by_api(
    cluster: &Cluster,
    api: &Api,
    name: String,
    scenario: impl AsyncFn(&Cluster, Api, String) -> Result<()>,
) -> Result<()> {
    let scenario =
        async |cluster: &Cluster, line: &str| scenario(cluster, api.clone(), line.to_owned()).await;
    under_one_leader(cluster, name, scenario).await
}

/// All that do not disturb each other.
pub async fn side_by_side(cluster: &Cluster, cli: &Cli, json: &Api, msgpack: &Api) -> Result<()> {
    let mut all = Scenarios::default();
    for (name, api, format) in [
        ("json", json, Format::Json),
        ("msgpack", msgpack, Format::MsgPack),
    ] {
        let line = |rule: &str| format!("{rule}-{name}");
        all = all
            .with(
                "lanes_order",
                by_api(cluster, api, line("order"), lanes::order),
            )
            .with("lanes_limit", lanes::own_limit(api.clone(), line("limit")))
            .with(
                "lanes_removed",
                lanes::removed_and_returned(api.clone(), line("removed")),
            )
            .with(
                "moves_life",
                under_one_leader(
                    cluster,
                    line("move"),
                    async move |cluster: &Cluster, line: &str| {
                        moves::life(cluster, format, line.to_owned()).await
                    },
                ),
            )
            .with(
                "moves_refusals",
                moves::refusals(api.clone(), line("refusals")),
            )
            .with(
                "pace",
                by_api(cluster, api, line("pace"), pace::goes_on_by_itself),
            )
            .with(
                "phases_opened",
                phases::opened_and_paused(api.clone(), line("opened")),
            )
            .with(
                "phases_closed",
                phases::drained_and_closed(api.clone(), line("closed")),
            )
            .with(
                "quota",
                by_api(cluster, api, line("quota"), quota::sells_what_there_is),
            )
            .with(
                "call_ahead",
                by_api(cluster, api, line("ahead"), shown::call_ahead),
            )
            .with(
                "held_back",
                by_api(cluster, api, line("held-back"), shown::held_back),
            )
            .with(
                "position_cap",
                shown::position_cap(api.clone(), line("cap")),
            )
            .with(
                "release",
                by_api(cluster, api, line("release"), shown::release_on_claim),
            )
            .with("journal_pages", journal::pages(api.clone(), line("pages")))
            .with(
                "journal_explains",
                journal::explains(api.clone(), line("explains")),
            )
            .with("forecasts", forecasts::begin(api.clone(), line("forecast")))
            .with(
                "bad_settings",
                bad_settings::every_one(api.clone(), line("bad-settings")),
            );
    }
    all.with("moves_holes", moves::holes(json.clone()))
        .with("moves_often", moves::to_and_fro(json.clone()))
        .with(
            "phases_published",
            under_one_leader(cluster, "phase-events", phases::are_published),
        )
        .with(
            "call_ahead_lanes",
            under_one_leader(cluster, "called-lanes", shown::call_ahead_by_lane),
        )
        .with("bad_settings_text", bad_settings::texts(json.clone()))
        .with("cli_lanes", lanes::by_cli(cli))
        .with("cli_moves", moves::by_cli(cli))
        .with("cli_watch_move", moves::watched(cli))
        .with("cli_pace", pace::by_cli(cli))
        .with("cli_phases", phases::by_cli(cli))
        .with("cli_quota", quota::by_cli(cli))
        .with("cli_shown", shown::by_cli(cli))
        .with("cli_journal", journal::by_cli(cli, json))
        .with("cli_bad_settings", bad_settings::by_cli(cli))
        .run()
        .await
}

/// Crashes of the leader, then of all nodes, change none of this.
pub async fn over_crashes(cluster: &mut Cluster) -> Result<()> {
    journal::over_a_crash(cluster).await?;
    pace::over_a_crash(cluster).await?;
    forecasts::over_a_crash(cluster).await?;
    let api = cluster.api().clone();
    // As many entries as make a snapshot due, on each node since it was last started.
    let settings = json!({"seats": 1, "queue_limit": 1});
    api.admin("crash-filler", "create", settings).await?;
    for _ in 0..60 {
        let status = api.enter("crash-filler", "k").await?;
        let ticket = json!({"ticket": status["ticket"]});
        api.ok("crash-filler", "leave", ticket).await?;
    }
    for id in cluster.ids() {
        eventually("a snapshot", Duration::from_secs(30), async || {
            Ok((snapshots::written(cluster, id).await? > 0.0).then_some(()))
        })
        .await?;
    }
    let before = remembered(&api).await?;
    restart_all(cluster).await?;
    let after = remembered(&api).await?;
    for (before, after) in before.iter().zip(&after) {
        ensure!(before == after, "{before} has become {after}");
    }
    Ok(())
}

/// The fields of the lines that do not change by themselves.
async fn remembered(api: &Api) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for line in ["crash-journal", "crash-pace", "crash-forecast"] {
        all.push(api.admin(line, "journal", json!({"limit": 1_000})).await?);
        let shown = show(api, line).await?;
        for field in ["settings", "settings_version", "counts", "forecast"] {
            ensure!(shown.get(field).is_some(), "no {field}: {shown}");
            all.push(json!({"line": line, field: shown[field]}));
        }
    }
    Ok(all)
}

/// kill -9 of all nodes at once, and up again.
async fn restart_all(cluster: &mut Cluster) -> Result<()> {
    let ids: Vec<u64> = cluster.ids().collect();
    for id in &ids {
        cluster.process(*id)?.signal(Signal::KILL)?;
    }
    for id in &ids {
        cluster.process(*id)?.ended(Duration::from_secs(60)).await?;
        cluster.start_node(*id).await?;
    }
    cluster.wait_ready().await
}

/// Takes a number in a lane.
async fn enter(api: &Api, line: &str, lane: &str, key: &str) -> Result<Value> {
    api.ok(line, "enter", json!({"key": key, "lane": lane}))
        .await
}

/// Does `op` for the holder of the ticket in a status.
async fn act(api: &Api, line: &str, op: &str, of: &Value) -> Result<Value> {
    api.ok(line, op, json!({"ticket": of["ticket"]})).await
}

/// Uses an admitted token's seat and gives it back.
async fn serve(api: &Api, line: &str, of: &Value) -> Result<Value> {
    act(api, line, "claim", of).await?;
    let done = act(api, line, "complete", of).await?;
    ensure!(done["reason"] == "completed", "{done}");
    Ok(done)
}

/// The status of a token must have these fields with these values.
async fn shows(api: &Api, line: &str, of: &Value, fields: Value) -> Result<Value> {
    let status = act(api, line, "status", of).await?;
    has(&status, &fields)?;
    Ok(status)
}

/// A map must have these fields with these values; null also stands for one that is missing.
fn has(value: &Value, fields: &Value) -> Result<()> {
    for (name, wanted) in fields.as_object().context("fields")? {
        ensure!(value[name] == *wanted, "want {name} {wanted}: {value}");
    }
    Ok(())
}

/// The next token event must be this one; that somebody entered is told elsewhere.
async fn next_is(
    incoming: &mut Subscriber,
    lane: &str,
    token: u64,
    what: &str,
    fields: Value,
) -> Result<Value> {
    let event = next_after_entering(incoming).await?;
    has(
        &event,
        &json!({"lane": lane, "token": token, "event": what}),
    )?;
    has(&event, &fields)?;
    Ok(event)
}

/// The next event that is not of somebody who entered.
async fn next_after_entering(incoming: &mut Subscriber) -> Result<Value> {
    loop {
        let event = events::next(incoming).await?;
        if event["event"] != "entered" {
            return Ok(event);
        }
    }
}

/// The next event of this kind; others are skipped.
async fn next_of(incoming: &mut Subscriber, what: &str) -> Result<Value> {
    loop {
        let event = events::next(incoming).await?;
        if event["event"] == what {
            return Ok(event);
        }
    }
}

async fn show(api: &Api, line: &str) -> Result<Value> {
    api.admin(line, "show", json!({})).await
}

/// A lane of a board.
fn lane_of<'a>(board: &'a Value, lane: &str) -> Result<&'a Value> {
    let lanes = board["lanes"].as_array().context("lanes")?;
    let found = lanes.iter().find(|each| each["lane"] == lane);
    found.with_context(|| format!("no lane {lane}: {board}"))
}
