//! A status poll writes no byte to disk and sends nothing to peers.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use nowserving_e2e::{Api, Cluster, Format, Route};
use serde_json::{Value, json};

const WINDOW: Duration = Duration::from_secs(2);
/// Polls in a window that show something: far more than heartbeats.
const POLLS_MIN: u64 = 1_000;

/// The counters that stand for costs.
const COSTS: [&str; 4] = [
    "nowserving_log_bytes_written_total",
    "nowserving_log_syncs_total",
    "nowserving_proposals_total",
    "nowserving_peer_append_messages_sent_total",
];
const FRAMES: &str = "nowserving_peer_frames_sent_total";
const REQUESTS: &str = "nowserving_requests_total";

/// Thousands of polls, of tokens that wait, hold a seat and are gone, and of the board.
pub async fn cost_nothing(cluster: &mut Cluster) -> Result<()> {
    let line = "polls";
    let api = cluster.api().clone();
    api.admin(line, "create", json!({"seats": 2, "queue_limit": 1_000}))
        .await?;
    let mut tickets = Vec::new();
    for nth in 0..50 {
        tickets.push(api.enter(line, &format!("k{nth}")).await?["ticket"].clone());
    }
    api.ok(line, "claim", json!({"ticket": tickets[0]})).await?;
    api.ok(line, "leave", json!({"ticket": tickets[9]})).await?;
    counters_count(cluster, &api, line).await?;

    // Heartbeats go on anyway: they are measured without polls first.
    let idle = window(cluster, async || {
        tokio::time::sleep(WINDOW).await;
        Ok(())
    })
    .await?;
    ensure!(
        idle.costs == [0.0; 4],
        "an idle cluster writes: {COSTS:?} {idle:?}"
    );

    let direct = api.by(Format::MsgPack, Route::Shard(cluster.options().shards));
    let busy = window(cluster, async || poll(&direct, line, &tickets).await).await?;
    ensure!(
        busy.requests >= POLLS_MIN as f64,
        "too few polls to show anything: {busy:?}"
    );
    ensure!(busy.costs == [0.0; 4], "polls cost: {COSTS:?} {busy:?}");
    // As many frames as when idle; a poll each would be a thousand more.
    let frames_max = idle.frames * 1.5 + 50.0;
    ensure!(
        busy.frames <= frames_max,
        "polls send frames: {busy:?}, idle {idle:?}"
    );
    Ok(())
}

/// The counters do count: a write moves each of them. Otherwise zeros would show nothing.
async fn counters_count(cluster: &Cluster, api: &Api, line: &str) -> Result<()> {
    let write = window(cluster, async || {
        api.enter(line, "one more").await?;
        // The followers write and count a moment later.
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok(())
    });
    let write = write.await?;
    ensure!(
        write.costs.iter().all(|cost| *cost >= 1.0),
        "{COSTS:?} {write:?}"
    );
    ensure!(write.frames >= 1.0 && write.requests >= 1.0, "{write:?}");
    // A minority is not enough to have written it.
    ensure!(
        write.costs[1] >= 2.0,
        "one write must be synced by a majority: {write:?}"
    );
    Ok(())
}

async fn poll(api: &Api, line: &str, tickets: &[Value]) -> Result<()> {
    let end = Instant::now() + WINDOW;
    let pollers = (0..8).map(|poller: usize| async move {
        for turn in 0.. {
            if Instant::now() > end {
                break;
            }
            let ticket = &tickets[(poller + turn * 8) % tickets.len()];
            let consistency = if turn % 4 == 0 { "local" } else { "leader" };
            let body = json!({"ticket": ticket, "consistency": consistency});
            api.ok(line, "status", body).await?;
            if turn % 16 == 0 {
                api.ok(line, "info", json!({})).await?;
            }
        }
        anyhow::Ok(())
    });
    try_join_all(pollers).await.map(drop)
}

/// How much the counters of all nodes together have grown.
#[derive(Debug)]
struct Growth {
    costs: [f64; 4],
    frames: f64,
    requests: f64,
}

async fn window(cluster: &Cluster, during: impl AsyncFnOnce() -> Result<()>) -> Result<Growth> {
    let before = counters(cluster).await?;
    during().await?;
    let after = counters(cluster).await?;
    Ok(Growth {
        costs: std::array::from_fn(|at| after.costs[at] - before.costs[at]),
        frames: after.frames - before.frames,
        requests: after.requests - before.requests,
    })
}

async fn counters(cluster: &Cluster) -> Result<Growth> {
    let all = cluster.all_metrics().await?;
    let sum = |name: &str| all.iter().map(|node| node.sum(name, &[])).sum::<f64>();
    Ok(Growth {
        costs: COSTS.map(sum),
        frames: sum(FRAMES),
        requests: sum(REQUESTS),
    })
}
