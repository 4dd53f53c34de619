//! A node that was away for so long that the others have dropped what it lacks.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use nowserving_e2e::{Api, Cluster, HOUR_MS, eventually, number};
use serde_json::{Value, json};

const LINE: &str = "left-behind";
const CLIENTS: u64 = 32;
/// Long keys fill a log.
const KEY_BYTES: usize = 120;
const PATIENCE: Duration = Duration::from_secs(90);

/// The others compact their logs past what node 3 has; it comes back and catches up by snapshots while
/// people keep entering. Then it serves: no acknowledged ticket is lost without one of the others.
pub async fn catches_up_under_load(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let settings = json!({
        "seats": 2, "queue_limit": 1_000_000, "claim_timeout_ms": HOUR_MS,
        "waiting_idle_timeout_ms": HOUR_MS,
    });
    api.admin(LINE, "create", settings).await?;
    let stop = Cell::new(false);
    let crowd = try_join_all((0..CLIENTS).map(|client| enter(&api, client, &stop)));
    let story = async {
        left_behind_and_back(cluster).await?;
        stop.set(true);
        anyhow::Ok(())
    };
    let (tickets, ()) = tokio::try_join!(crowd, story)?;
    cluster.process(1)?.kill().await?;
    // A few hundred of them, over the whole time.
    let tickets = tickets.concat();
    for (token, ticket) in tickets.iter().step_by(tickets.len() / 300 + 1) {
        let status = api.status(LINE, ticket).await?;
        ensure!(number(&status, "token")? == *token, "{status}");
        ensure!(status["state"] != "gone", "{status}");
    }
    cluster.start_node(1).await?;
    cluster.wait_ready().await
}

async fn left_behind_and_back(cluster: &mut Cluster) -> Result<()> {
    let away = 3;
    cluster.process(away)?.kill().await?;
    let mut most = [0.0_f64; 2];
    eventually("the logs are dropped", PATIENCE, async || {
        let mut dropped = true;
        for (id, most) in (1..).zip(&mut most) {
            let kept = cluster
                .metrics(id)
                .await?
                .sum("nowserving_log_entries", &[]);
            *most = most.max(kept);
            dropped &= kept < *most / 2.0;
        }
        Ok(dropped.then_some(()))
    })
    .await?;
    cluster.start_node(away).await?;
    eventually("a snapshot is installed", PATIENCE, async || {
        let metrics = cluster.metrics(away).await?;
        let outcome = ["outcome=\"installed\""];
        let installed = metrics.sum("nowserving_snapshots_received_total", &outcome);
        Ok((installed > 0.0).then_some(()))
    })
    .await?;
    cluster.wait_ready().await
}

/// Enters one after the other, each with a key of its own. Returns the tickets that were acknowledged.
async fn enter(api: &Api, client: u64, stop: &Cell<bool>) -> Result<Vec<(u64, Value)>> {
    let mut tickets = Vec::new();
    while !stop.get() {
        let key = format!("{client}-{}-{}", tickets.len(), "x".repeat(KEY_BYTES));
        let status = api.enter(LINE, &key).await?;
        tickets.push((number(&status, "token")?, status["ticket"].clone()));
    }
    Ok(tickets)
}
