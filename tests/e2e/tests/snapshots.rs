//! Snapshots, and the log that they let nodes compact.

use std::time::Duration;

use anyhow::{Result, ensure};
use nowserving_e2e::{Api, Cluster, HOUR_MS, eventually, number};
use serde_json::{Value, json};

const LINE: &str = "long-lived";
/// Writes a phase, each an entry of its own: several times as many as make a snapshot due.
const WRITES: u64 = 320;
/// The most entries in a node's log when all members are well: a few more than the next
/// snapshot needs.
const KEPT_MAX: f64 = 150.0;

/// The log is compacted by snapshots, not past what a dead member has; and a restart from the snapshot
/// and the rest of the log has every acknowledged write.
pub async fn and_a_log_that_is_cut(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    api.admin(
        LINE,
        "create",
        json!({"seats": 2, "queue_limit": 10_000, "claim_timeout_ms": HOUR_MS}),
    )
    .await?;
    let mut tickets = enter(&api, 1).await?;
    for id in cluster.ids() {
        cut(cluster, &api, id).await?;
    }

    // A member that is away keeps the others from compacting, so that it needs no snapshot of theirs.
    let away = 3;
    cluster.process(away)?.kill().await?;
    let before = written(cluster, 1).await?;
    tickets.extend(enter(&api, WRITES + 1).await?);
    eventually("another snapshot", Duration::from_secs(30), async || {
        Ok((written(cluster, 1).await? > before).then_some(()))
    })
    .await?;
    for id in [1, 2] {
        eventually("the log is kept", Duration::from_secs(30), async || {
            Ok((kept(cluster, id).await? >= WRITES as f64).then_some(()))
        })
        .await?;
    }
    cluster.start_node(away).await?;
    cluster.wait_ready().await?;
    for id in cluster.ids() {
        cut(cluster, &api, id).await?;
    }

    cluster.restart_all().await?;
    for (ticket, token) in tickets.iter().zip(1u64..) {
        let status = api.status(LINE, ticket).await?;
        ensure!(number(&status, "token")? == token, "{status}");
        ensure!(status["state"] != "gone", "{status}");
    }
    let next = api.enter(LINE, "next").await?;
    ensure!(next["token"] == 2 * WRITES + 1, "{next}");
    Ok(())
}

/// Enters [`WRITES`] people one after the other, so that each is an entry.
async fn enter(api: &Api, first: u64) -> Result<Vec<Value>> {
    let mut tickets = Vec::new();
    for nth in first..first + WRITES {
        let body = json!({"key": format!("k{nth}")});
        let status = api.ok(LINE, "enter", body.clone()).await?;
        ensure!(status["token"] == nth, "{status}");
        tickets.push(status["ticket"].clone());
    }
    Ok(tickets)
}

/// Waits until node `id` has compacted its log. Nodes learn from later entries how far all members have
/// come, so a few more are made.
async fn cut(cluster: &Cluster, api: &Api, id: u64) -> Result<()> {
    eventually("the log is cut", Duration::from_secs(30), async || {
        // The answer is the same again, but it takes a log entry.
        api.ok(LINE, "enter", json!({"key": "k1"})).await?;
        Ok((kept(cluster, id).await? <= KEPT_MAX).then_some(()))
    })
    .await
}

async fn kept(cluster: &Cluster, id: u64) -> Result<f64> {
    let metrics = cluster.metrics(id).await?;
    ensure!(metrics.has("nowserving_log_entries"), "no such metric");
    Ok(metrics.sum("nowserving_log_entries", &[]))
}

/// How many snapshots node `id` has written since it started.
pub async fn written(cluster: &Cluster, id: u64) -> Result<f64> {
    let metrics = cluster.metrics(id).await?;
    Ok(metrics.sum("nowserving_snapshots_total", &["outcome=\"written\""]))
}
