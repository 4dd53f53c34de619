//! A status poll writes no byte to disk and sends nothing to peers.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use futures::future::try_join_all;
use nowserving_e2e::{Api, Cluster, Format, HOUR_MS, Route, eventually};
use serde_json::{Value, json};

const IDLE: Duration = Duration::from_secs(2);
/// Far more than heartbeats.
const POLLERS: usize = 8;
const TURNS: usize = 300;

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
    // While a timeout may come soon, the leader logs its clock now and then.
    let settings = json!({
        "seats": 2, "queue_limit": 1_000, "waiting_idle_timeout_ms": HOUR_MS,
        "claim_timeout_ms": HOUR_MS, "checkout_timeout_ms": HOUR_MS, "checkout_max_ms": HOUR_MS,
    });
    api.admin(line, "create", settings).await?;
    let mut tickets = Vec::new();
    for nth in 0..50 {
        tickets.push(api.enter(line, &format!("k{nth}")).await?["ticket"].clone());
    }
    api.ok(line, "claim", json!({"ticket": tickets[0]})).await?;
    api.ok(line, "leave", json!({"ticket": tickets[9]})).await?;
    counters_count(cluster, &api, line).await?;

    // Heartbeats go on anyway: they are measured without polls first.
    let idle = window(cluster, async || {
        tokio::time::sleep(IDLE).await;
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
        busy.requests >= (POLLERS * TURNS) as f64,
        "polls are not counted: {busy:?}"
    );
    ensure!(busy.costs == [0.0; 4], "polls cost: {COSTS:?} {busy:?}");
    // About as many frames a second as when idle; a poll each would be thousands more.
    let frames_max = idle.frames / idle.seconds * busy.seconds * 2.0 + 50.0;
    ensure!(
        busy.frames <= frames_max,
        "polls send frames: {busy:?}, idle {idle:?}"
    );
    Ok(())
}

/// The counters do count: a write moves each of them. Otherwise zeros would show nothing.
async fn counters_count(cluster: &Cluster, api: &Api, line: &str) -> Result<()> {
    let nth = Cell::new(0);
    let write = window(cluster, async || {
        let key = format!("one more {}", nth.replace(nth.get() + 1));
        api.enter(line, &key).await.map(drop)
    })
    .await?;
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
    let pollers = (0..POLLERS).map(|poller| async move {
        for turn in 0..TURNS {
            let ticket = &tickets[(poller + turn * POLLERS) % tickets.len()];
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

/// How much the counters of all nodes together have grown, and in which time.
#[derive(Debug)]
struct Growth {
    costs: [f64; 4],
    frames: f64,
    requests: f64,
    seconds: f64,
}

/// On a machine that pauses for long enough another node is elected, which writes: then the measurement
/// is repeated.
async fn window(cluster: &Cluster, during: impl AsyncFn() -> Result<()>) -> Result<Growth> {
    for _ in 0..5 {
        let (terms, before) = (terms(cluster).await?, settled(cluster).await?);
        let start = Instant::now();
        during().await?;
        let after = settled(cluster).await?;
        let seconds = start.elapsed().as_secs_f64();
        if terms == self::terms(cluster).await? {
            return Ok(Growth {
                costs: std::array::from_fn(|at| after.costs[at] - before.costs[at]),
                frames: after.frames - before.frames,
                requests: after.requests - before.requests,
                seconds,
            });
        }
    }
    bail!("leaders change all the time")
}

async fn terms(cluster: &Cluster) -> Result<Vec<Option<u64>>> {
    let status = cluster.api().cluster("status", json!({})).await?;
    let shards = status["shards"].as_array().into_iter().flatten();
    Ok(shards.map(|shard| shard["term"].as_u64()).collect())
}

/// The counters, once nothing is being written any more: followers do so a moment later.
async fn settled(cluster: &Cluster) -> Result<Growth> {
    let mut last = counters(cluster).await?;
    eventually("nothing is written", Duration::from_secs(15), async || {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = counters(cluster).await?;
        let before = std::mem::replace(&mut last, now);
        Ok((before.costs == last.costs).then_some(()))
    })
    .await?;
    Ok(last)
}

async fn counters(cluster: &Cluster) -> Result<Growth> {
    let all = cluster.all_metrics().await?;
    let sum = |name: &str| all.iter().map(|node| node.sum(name, &[])).sum::<f64>();
    Ok(Growth {
        costs: COSTS.map(sum),
        frames: sum(FRAMES),
        requests: sum(REQUESTS),
        seconds: 0.0,
    })
}
