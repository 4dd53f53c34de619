//! Disks that are full for a while: nothing acknowledged is lost, polls are served, and no node ends.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use nowserving_e2e::{Api, Cluster, HOUR_MS, eventually, line_in, number};
use serde_json::{Value, json};

/// The size of each node's disk, of which a node leaves a tenth free.
pub const DISK_BYTES: u64 = 96 << 20;
const RESERVE_BYTES: u64 = DISK_BYTES / 10;
const WORKERS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(30);
/// Acknowledged entries before, during and after.
const MANY: usize = 100;
/// To fill all disks takes less, on a slow machine too.
const IDLE_MS: u64 = 6_000;
/// Longer than any token survives without a request, also under a new leader.
const FULL: Duration = Duration::from_millis(IDLE_MS / 2 * 3 + 1_000);
/// A poll is repeated so often at most.
const POLLS_MAX: usize = 3;
/// Entries that are asked for again at most.
const CHECKED: usize = 500;

struct Entered {
    line: String,
    key: String,
    token: u64,
    ticket: Value,
}

/// One line in each shard.
async fn lines(cluster: &Cluster, prefix: &str) -> Result<Vec<String>> {
    let shards = cluster.options().shards;
    let lines: Vec<String> = (0..shards)
        .map(|nth| line_in(nth, shards, prefix))
        .collect();
    for line in &lines {
        let settings = json!({
            "seats": 2, "queue_limit": 100_000, "claim_timeout_ms": HOUR_MS,
            "waiting_idle_timeout_ms": HOUR_MS,
        });
        cluster.api().admin(line, "create", settings).await?;
    }
    Ok(lines)
}

/// Enters until `stop`; whatever is refused or unanswered is asked for again.
async fn load(
    api: &Api,
    lines: &[String],
    entered: &RefCell<Vec<Entered>>,
    stop: &Cell<bool>,
) -> Result<()> {
    let worker = |worker: usize| async move {
        for nth in 0.. {
            if stop.get() {
                break;
            }
            let line = &lines[nth % lines.len()];
            let key = format!("{worker}-{nth}");
            let status = api.ok(line, "enter", json!({"key": key})).await?;
            entered.borrow_mut().push(Entered {
                line: line.clone(),
                key,
                token: number(&status, "token")?,
                ticket: status["ticket"].clone(),
            });
        }
        anyhow::Ok(())
    };
    try_join_all((0..WORKERS).map(worker)).await.map(drop)
}

/// Waits for so many more acknowledgements.
async fn more(entered: &RefCell<Vec<Entered>>) -> Result<()> {
    let goal = entered.borrow().len() + MANY;
    eventually("writes are acknowledged", PATIENCE, async || {
        Ok((entered.borrow().len() >= goal).then_some(()))
    })
    .await
}

/// What was acknowledged is there under its number: of each part of the run some.
async fn check(api: &Api, entered: &[Entered]) -> Result<()> {
    let every = entered.len().div_ceil(CHECKED);
    for one in entered.iter().step_by(every) {
        let again = api.ok(&one.line, "enter", json!({"key": one.key})).await?;
        ensure!(
            again["token"] == one.token && again["ticket"] == one.ticket,
            "{again}"
        );
    }
    Ok(())
}

/// The nodes that report a full disk, and how many shards each node leads.
async fn seen(api: &Api) -> Result<(Vec<u64>, Vec<u64>)> {
    let status = api.cluster("status", json!({})).await?;
    let nodes = status["nodes"].as_array().context("no nodes")?;
    let full = nodes.iter().filter(|node| node["disk_full"] == true);
    let full = full.map(|node| number(node, "id")).collect::<Result<_>>()?;
    let leads = nodes.iter().map(|node| number(node, "leads"));
    Ok((full, leads.collect::<Result<_>>()?))
}

async fn alive(cluster: &mut Cluster) -> Result<()> {
    for id in cluster.ids() {
        ensure!(cluster.process(id)?.is_alive()?, "node {id} has ended");
    }
    Ok(())
}

/// One node's disk fills up under load: the others lead, and it takes part again once there is room.
pub async fn of_one_node(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let lines = lines(cluster, "one").await?;
    let (entered, stop) = (RefCell::new(Vec::new()), Cell::new(false));
    let story = async {
        more(&entered).await?;
        cluster.disk(1)?.fill(0)?;
        eventually(
            "node 1 reports it and leads nothing",
            PATIENCE,
            async || {
                let (full, leads) = seen(&api).await?;
                Ok((full == [1] && leads[0] == 0).then_some(()))
            },
        )
        .await?;
        more(&entered).await?;
        alive(cluster).await?;
        cluster.disk(1)?.clear()?;
        eventually("node 1 leads again", PATIENCE, async || {
            let (full, leads) = seen(&api).await?;
            Ok((full.is_empty() && leads[0] > 0).then_some(()))
        })
        .await?;
        more(&entered).await?;
        stop.set(true);
        anyhow::Ok(())
    };
    tokio::try_join!(load(&api, &lines, &entered, &stop), story)?;
    alive(cluster).await?;
    let entered = entered.into_inner();
    check(&api, &entered).await?;
    // Its log is whole.
    cluster.process(1)?.kill().await?;
    cluster.start_node(1).await?;
    cluster.wait_ready().await?;
    check(&api, &entered).await
}

/// All disks are full, whether nothing is left or only the reserve: writes are refused at once, polls are
/// answered, nobody expires, and everything goes on once there is room.
pub async fn of_all_nodes(cluster: &mut Cluster) -> Result<()> {
    for (prefix, left) in [("none", 0), ("reserve", RESERVE_BYTES)] {
        all(cluster, prefix, left)
            .await
            .with_context(|| format!("{prefix} left"))?;
    }
    Ok(())
}

async fn all(cluster: &mut Cluster, prefix: &str, left: u64) -> Result<()> {
    let api = cluster.api().clone();
    let lines = lines(cluster, prefix).await?;
    let idle = format!("{prefix}-idle");
    let settings = json!({
        "seats": 1, "queue_limit": 100, "claim_timeout_ms": HOUR_MS, "waiting_idle_timeout_ms": IDLE_MS,
    });
    api.admin(&idle, "create", settings).await?;
    api.ok(&idle, "enter", json!({"key": "holder"})).await?;
    let (entered, stop) = (RefCell::new(Vec::new()), Cell::new(false));
    let story = async {
        more(&entered).await?;
        let waiting = api.ok(&idle, "enter", json!({"key": "silent"})).await?;
        for id in cluster.ids() {
            cluster.disk(id)?.fill(left)?;
        }
        refused(&api, &lines).await?;
        let served = tokio::time::Instant::now();
        while served.elapsed() < FULL {
            polls_are_answered(&api, &entered).await?;
        }
        alive(cluster).await?;
        for id in cluster.ids() {
            cluster.disk(id)?.clear()?;
        }
        let status = api.status(&idle, &waiting["ticket"]).await?;
        ensure!(status["state"] == "waiting", "{status}");
        more(&entered).await?;
        stop.set(true);
        anyhow::Ok(())
    };
    tokio::try_join!(load(&api, &lines, &entered, &stop), story)?;
    alive(cluster).await?;
    check(&api, &entered.into_inner()).await
}

/// A write is refused, and told why, on every line.
async fn refused(api: &Api, lines: &[String]) -> Result<()> {
    for line in lines {
        eventually("a write is refused", PATIENCE, async || {
            let reply = api.ask(line, "enter", &json!({"key": "refused"})).await?;
            let message = reply.body["error"]["message"].as_str().unwrap_or_default();
            let refused = reply.code.as_deref() == Some("unavailable") && message.contains("disk");
            Ok(refused.then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// The newest tickets of all lines, each asked for once.
async fn polls_are_answered(api: &Api, entered: &RefCell<Vec<Entered>>) -> Result<()> {
    let newest: Vec<(String, Value)> = {
        let entered = entered.borrow();
        let newest = entered.iter().rev().take(20);
        newest
            .map(|one| (one.line.clone(), one.ticket.clone()))
            .collect()
    };
    for (line, ticket) in newest {
        let body = json!({"ticket": ticket});
        let mut reply = api.ask(&line, "status", &body).await;
        // A slow machine may stand still for longer than the request's deadline.
        for _ in 1..POLLS_MAX {
            if reply.as_ref().is_ok_and(|it| !it.passes()) {
                break;
            }
            reply = api.ask(&line, "status", &body).await;
        }
        let reply = reply?;
        ensure!(reply.code.is_none(), "{line}: {reply:?}");
    }
    Ok(())
}
