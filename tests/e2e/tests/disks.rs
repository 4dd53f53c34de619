//! A disk is a vote: a node that has lost its disk must not vote under its old number.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use nowserving_e2e::{Api, Cluster, HOUR_MS, eventually, line_in, number};
use serde_json::{Value, json};

use crate::crash::insist;

const LINES: u32 = 8;
/// Numbers that two nodes have acknowledged while the third was dead.
const PER_LINE: u64 = 5;
/// Frames of the wiped node that another has dropped: by then it has stood for election more than once,
/// and been asked for its own vote.
const REFUSED_MIN: f64 = 10.0;
const PATIENCE: Duration = Duration::from_secs(30);

struct Entered {
    line: String,
    key: String,
    token: u64,
    ticket: Value,
    epoch: Option<u64>,
}

/// Node 3 dies, nodes 1 and 2 acknowledge writes, all stop, and node 2 comes back with an empty disk.
/// With its vote node 3 would be a majority without those writes.
pub async fn wiped_over_a_restart(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let shards = cluster.options().shards;
    let lines: Vec<String> = (0..LINES)
        .map(|nth| line_in(nth, shards, "wiped"))
        .collect();
    for line in &lines {
        let settings = json!({
            "seats": 2, "queue_limit": 100, "claim_timeout_ms": HOUR_MS,
            "waiting_idle_timeout_ms": HOUR_MS,
        });
        api.admin(line, "create", settings).await?;
    }
    cluster.process(3)?.kill().await?;
    let entered = enter_all(&api, &lines).await?;
    for id in [1, 2] {
        cluster.process(id)?.kill().await?;
    }
    let (data, away) = (cluster.data_dir(2), cluster.folder().join("node-2.away"));
    std::fs::rename(&data, &away)?;

    cluster.start_node(2).await?;
    cluster.start_node(3).await?;
    refuses_another_disk(cluster, 3).await?;
    // Two of three are there, and yet there is no majority.
    let (asking, newcomer) = (api.within(500), json!({"key": "new"}));
    for line in &lines {
        let reply = eventually("a node answers", PATIENCE, async || {
            asking.ask(line, "enter", &newcomer).await.map(Some)
        });
        let reply = reply.await?;
        ensure!(
            reply.passes() || reply.is_unknown(),
            "{line}: served by a wiped disk: {reply:?}"
        );
    }

    // Node 1 has it all, and node 3 keeps its vote.
    cluster.start_node(1).await?;
    cluster.wait_served().await?;
    check(&api, &entered).await?;
    refuses_another_disk(cluster, 1).await?;
    for line in &lines {
        ensure!(cluster.leader_of(line).await? != 2, "{line}: led by node 2");
        let next = insist(&api, line, "enter", &newcomer).await?;
        ensure!(next["token"] == PER_LINE + 1, "{line}: {next}");
    }

    // With its own disk it is a member as before: every shard comes home.
    cluster.process(2)?.kill().await?;
    std::fs::remove_dir_all(&data)?;
    std::fs::rename(&away, &data)?;
    cluster.start_node(2).await?;
    cluster.wait_ready().await?;
    check(&api, &entered).await
}

/// Enters and, where a seat is free, claims it.
async fn enter_all(api: &Api, lines: &[String]) -> Result<Vec<Entered>> {
    let mut entered = Vec::new();
    for line in lines {
        for nth in 1..=PER_LINE {
            let key = format!("k{nth}");
            let status = insist(api, line, "enter", &json!({"key": key})).await?;
            let ticket = status["ticket"].clone();
            let mut epoch = None;
            if nth == 1 {
                let claimed = insist(api, line, "claim", &json!({"ticket": ticket})).await?;
                epoch = Some(number(&claimed, "epoch")?);
            }
            entered.push(Entered {
                line: line.clone(),
                key,
                token: number(&status, "token")?,
                ticket,
                epoch,
            });
        }
    }
    Ok(entered)
}

/// Node `id` counts and drops the messages of the wiped node, and logs why.
async fn refuses_another_disk(cluster: &mut Cluster, id: u64) -> Result<()> {
    eventually(
        "frames of the wiped node are refused",
        PATIENCE,
        async || {
            let refused = cluster.metrics(id).await?;
            let refused = refused.sum("nowserving_frames_refused_total", &[]);
            Ok((refused >= REFUSED_MIN).then_some(()))
        },
    )
    .await?;
    let log = cluster.process(id)?.printed()?;
    let said = |line: &str| line.contains("node 2") && line.contains("another disk");
    ensure!(log.lines().any(said), "node {id} does not say why");
    Ok(())
}

/// Everything acknowledged is there, and no number was given twice.
async fn check(api: &Api, entered: &[Entered]) -> Result<()> {
    let mut numbers = BTreeSet::new();
    for one in entered {
        let line = &one.line;
        ensure!(numbers.insert((line, one.token)), "{line}: {}", one.token);
        let status = api.status(line, &one.ticket).await?;
        ensure!(status["token"] == one.token, "{line}: {status}");
        ensure!(status["state"] != "gone", "{line}: {status}");
        ensure!(
            status["epoch"].as_u64() == one.epoch,
            "{line}: not {:?}: {status}",
            one.epoch
        );
        let again = insist(api, line, "enter", &json!({"key": one.key})).await?;
        ensure!(again["ticket"] == one.ticket, "{line}: {again}");
    }
    Ok(())
}
