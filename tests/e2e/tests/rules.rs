//! What operators set for a line, from the command to the journal, and over crashes. The rules themselves are proved in
//! `crates/line`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Api, CLOCKS_APART_MS, Cli, Cluster, HOUR_MS, eventually, number};
use serde_json::{Value, json};

use crate::command_line::{done, refused};
use crate::{events, snapshots};

const PATIENCE: Duration = Duration::from_secs(30);
const BURST: u64 = 3;
const PER_SECOND: u64 = 20;

/// Each setting by its option, and lanes, a move and the journal in one story.
pub async fn by_command(cli: &Cli) -> Result<()> {
    let line = "cli-rules";
    let create = "line create cli-rules --seats 1 --queue-limit 20 --lane normal --lane vip:boost=10m:limit=3 \
         --lane staff:absolute --call-ahead 1 --position-cap 2 --admission-rate 0.5/9 --quota 9 --standby-percent 100 \
         --phase pre_open --position-events 3";
    let made = done(cli, create).await?;
    let lanes = json!([
        {"name": "normal", "boost_ms": 0, "absolute": false, "queue_limit": null},
        {"name": "vip", "boost_ms": 600_000, "absolute": false, "queue_limit": 3},
        {"name": "staff", "boost_ms": 0, "absolute": true, "queue_limit": null},
    ]);
    for (setting, value) in [
        ("lanes", lanes),
        ("call_ahead", json!(1)),
        ("position_cap", json!(2)),
        ("admission_rate", json!({"per_second": 0.5, "burst": 9})),
        ("quota", json!({"total": 9, "standby_percent": 100})),
        ("phase", json!("pre_open")),
        ("position_events", json!([3])),
    ] {
        ensure!(made["settings"][setting] == value, "{setting}: {made}");
    }
    for (lane, key) in [
        ("normal", "a"),
        ("normal", "b"),
        ("vip", "v"),
        ("staff", "s"),
    ] {
        let entered = done(cli, &format!("enter {line} --lane {lane} --key {key}")).await?;
        ensure!(entered["state"] == "waiting", "{entered}");
    }
    let unset = "call_ahead,position_cap,admission_rate,quota,phase";
    let set = done(cli, &format!("line set {line} --unset {unset}")).await?;
    ensure!(set["settings"]["phase"] == "open", "{set}");

    let to_vip = format!("line move {line} --lane normal --token 2 --to vip");
    let moved = done(cli, &to_vip).await?;
    ensure!(moved["lane"] == "vip" && moved["token"] == 2, "{moved}");
    for key in ["s", "v", "b", "a"] {
        let next = done(cli, &format!("find {line} --key {key}")).await?;
        ensure!(next["state"] == "admitted", "{key} is next: {next}");
        let ticket = next["ticket"].as_str().context("ticket")?;
        done(cli, &format!("leave {line} {ticket}")).await?;
    }
    let gone = format!("line move {line} --lane normal --token 2 --to staff");
    refused(cli, &gone, "token_gone").await?;
    journal(cli, line).await
}

async fn journal(cli: &Cli, line: &str) -> Result<()> {
    let first = done(cli, &format!("line journal {line} --token 1")).await?;
    let explained = &first["explain"];
    ensure!(explained["overtakers_total"] == 3, "{explained}");
    let page = done(cli, &format!("line journal {line} --limit 2")).await?;
    let entries = page["entries"].as_array().context("entries")?;
    ensure!(
        entries.len() == 2 && page["next"] == entries[1]["version"],
        "{page}"
    );
    let rest = format!("line journal {line} --lane staff --after {}", page["next"]);
    let rest = done(cli, &rest).await?;
    let entries = rest["entries"].as_array().context("entries")?;
    let whats = entries.iter().map(|entry| &entry["what"]);
    ensure!(whats.eq(["entered", "admitted", "gone"].iter()), "{rest}");
    let never = format!("line journal {line} --token 99");
    refused(cli, &never, "token_not_found").await.map(drop)
}

/// A watcher with the old ticket sees its place go on in the new lane.
pub async fn watched_move(cli: &Cli) -> Result<()> {
    let line = "cli-watch-move";
    let create = format!("line create {line} --seats 1 --queue-limit 9 --lane normal --lane vip");
    done(cli, &create).await?;
    let mut last = Value::Null;
    for key in ["a", "b", "c"] {
        last = done(cli, &format!("enter {line} --key {key}")).await?;
    }
    let ticket = last["ticket"].as_str().context("ticket")?;
    let mut place = cli.start(&["watch", line, "--ticket", ticket]).await?;
    let first = place.next().await?.context("watch has ended")?;
    ensure!(
        first["token"] == 3 && first["position"] == 2,
        "as it entered: {first}"
    );
    let to_vip = format!("line move {line} --lane normal --token 3 --to vip");
    let moved = done(cli, &to_vip).await?;
    let there = place.next().await?.context("watch has ended")?;
    ensure!(
        there["lane"] == "vip" && there["token"] == 1 && there["position"] == 1,
        "{there}"
    );
    let new = moved["ticket"].as_str().context("ticket")?;
    done(cli, &format!("leave {line} {new}")).await?;
    let mut seen = there;
    while let Some(status) = place.next().await? {
        seen = status;
    }
    ensure!(seen["reason"] == "left", "{seen}");
    ensure!(place.child.wait().await?.success());
    Ok(())
}

/// The leader dies while the admission rate lets tokens pass one by one. Then all nodes do, which come back from
/// snapshots: nothing that the line knows has changed.
pub async fn over_crashes(cluster: &mut Cluster) -> Result<()> {
    let line = "crash-pace";
    let api = cluster.api().clone();
    let admitted = paced_over_a_crash(cluster, line).await?;
    // As many entries as make a snapshot due, on each node since it was last started.
    let settings = json!({"seats": 1, "queue_limit": 1});
    api.admin("crash-filler", "create", settings).await?;
    for _ in 0..60 {
        let status = api.enter("crash-filler", "k").await?;
        let ticket = json!({"ticket": status["ticket"]});
        api.ok("crash-filler", "leave", ticket).await?;
    }
    for id in cluster.ids() {
        eventually("a snapshot", PATIENCE, async || {
            Ok((snapshots::written(cluster, id).await? > 0.0).then_some(()))
        })
        .await?;
    }
    let before = remembered(&api, line).await?;
    cluster.restart_all().await?;
    ensure!(admissions(&api, line).await? == admitted);
    let after = remembered(&api, line).await?;
    for (before, after) in before.iter().zip(&after) {
        ensure!(before == after, "{before} has become {after}");
    }
    Ok(())
}

/// The fields of a line that do not change by themselves.
async fn remembered(api: &Api, line: &str) -> Result<Vec<Value>> {
    let mut all = vec![api.admin(line, "journal", json!({"limit": 1_000})).await?];
    let shown = api.admin(line, "show", json!({})).await?;
    for field in ["settings", "settings_version", "counts", "forecast"] {
        ensure!(shown.get(field).is_some(), "no {field}: {shown}");
        all.push(shown[field].clone());
    }
    Ok(all)
}

/// kill -9 of the leader in the middle: the next one does not give the saved burst twice, and admits
/// without requests. Returns the times of all admissions.
async fn paced_over_a_crash(cluster: &mut Cluster, line: &str) -> Result<Vec<u64>> {
    let people = 60;
    let api = cluster.api().clone();
    let events = format!("nowserving.event.{line}.token.>");
    let mut incoming = api.subscribe(events).await?;
    let settings = json!({
        "seats": 1_000, "queue_limit": 100, "claim_timeout_ms": HOUR_MS,
        "admission_rate": {"per_second": PER_SECOND, "burst": BURST},
    });
    api.admin(line, "create", settings).await?;
    let enter = async |nth| {
        api.ok(line, "enter", json!({"key": format!("k{nth}")}))
            .await
    };
    futures::future::try_join_all((0..people).map(enter)).await?;
    let leader = cluster.leader_of(line).await?;
    let mut last = 0;
    // The dead leader's last events may be lost, but not that of the last admission.
    while last < people {
        let event = events::next(&mut incoming).await?;
        if event["event"] != "admitted" {
            continue;
        }
        last = last.max(number(&event, "token")?);
        if last >= people / 4 && cluster.process(leader)?.is_alive()? {
            cluster.process(leader)?.kill().await?;
        }
    }
    cluster.wait_served().await?;
    let admitted = admissions(&api, line).await?;
    ensure!(admitted.len() as u64 == people, "{admitted:?}");
    within_the_rate(&admitted)?;
    cluster.start_node(leader).await?;
    cluster.wait_ready().await?;
    Ok(admitted)
}

/// In every interval at most the burst plus the rate times its length.
fn within_the_rate(at_ms: &[u64]) -> Result<()> {
    for (first, from) in at_ms.iter().enumerate() {
        for (last, to) in at_ms.iter().enumerate().skip(first) {
            let many = (last - first + 1) as u64;
            let passed_ms = to.checked_sub(*from).context("the clock went back")? + CLOCKS_APART_MS;
            ensure!(
                many * 1_000 <= BURST * 1_000 + PER_SECOND * passed_ms,
                "{many} within {passed_ms} ms: {at_ms:?}"
            );
        }
    }
    Ok(())
}

/// When tokens were admitted, in their order, as the journal has it.
async fn admissions(api: &Api, line: &str) -> Result<Vec<u64>> {
    let page = api.admin(line, "journal", json!({"limit": 1_000})).await?;
    let entries = page["entries"].as_array().context("entries")?;
    let admitted = entries.iter().filter(|entry| entry["what"] == "admitted");
    let admitted: Vec<&Value> = admitted.collect();
    let tokens = admitted.iter().map(|entry| entry["token"].as_u64());
    ensure!(
        tokens.eq((1..=admitted.len() as u64).map(Some)),
        "each once, in order: {page}"
    );
    let times = admitted.iter().map(|entry| number(entry, "at_ms"));
    times.collect()
}
