//! The cluster's key is rotated while clients go on.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{Api, Cli, Cluster, HOUR_MS, eventually, line_in};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

use crate::crash::insist;
use crate::members::{PATIENCE, change};

/// How long old tickets stay good: nodes are restarted meanwhile.
const OLD_TICKETS: &str = "20s";

async fn status(api: &Api) -> Result<Value> {
    api.cluster("status", json!({})).await
}

/// Waits until each node says that it has loaded these keys.
async fn loaded(api: &Api, ids: &[&[u64]]) -> Result<()> {
    eventually("the keys are loaded", PATIENCE, async || {
        let status = status(api).await?;
        let nodes = status["nodes"].as_array().context("nodes")?;
        let as_wanted = nodes.iter().zip(ids).all(|(node, ids)| {
            let found = node["keys"].as_array().into_iter().flatten();
            let found: Vec<u64> = found.filter_map(|key| key["id"].as_u64()).collect();
            found == **ids
        });
        Ok(as_wanted.then_some(()))
    })
    .await
}

/// Writes the first line of a key file and these of its key lines, from 1.
fn keep_lines(from: &Path, to: &Path, kept: &[usize]) -> Result<()> {
    let text = std::fs::read_to_string(from)?;
    let lines: Vec<&str> = text.lines().collect();
    let mut kept_text = format!("{}\n", lines.first().context("an empty file")?);
    for nth in kept {
        kept_text += &format!("{}\n", lines.get(*nth).context("no such line")?);
    }
    // The mode stays.
    Ok(std::fs::write(to, kept_text)?)
}

/// Goes through whole visits, one after the other. A refusal that no repetition mends ends it.
async fn visits(api: Api, line: String, stop: Arc<AtomicBool>, made: Arc<AtomicU64>) -> Result<()> {
    let mut nth = 0;
    while !stop.load(Ordering::Relaxed) {
        nth += 1;
        let entered = insist(&api, &line, "enter", &json!({"key": format!("k{nth}")})).await?;
        let ticket = json!({"ticket": entered["ticket"]});
        for op in ["status", "claim", "complete"] {
            insist(&api, &line, op, &ticket).await?;
        }
        made.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn restart(cluster: &mut Cluster, id: u64) -> Result<()> {
    cluster.process(id)?.stop(PATIENCE).await?;
    cluster.start_node(id).await?;
    cluster.wait_ready().await
}

/// Each node has a key file of its own.
pub async fn rotated_under_load(cluster: &mut Cluster) -> Result<()> {
    let (api, cli) = (cluster.api().clone(), Cli::new(cluster.nats.url()));
    let line = line_in(1, cluster.options().shards, "shop");
    let settings = json!({"seats": 100, "queue_limit": 1_000, "claim_timeout_ms": HOUR_MS});
    api.admin(&line, "create", settings).await?;
    let old = api.enter(&line, "early").await?["ticket"].clone();

    let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let load = visits(api.clone(), line.clone(), stop.clone(), Arc::clone(&made));
    let load = tokio::spawn(load);
    let rotated = rotate(cluster, (&api, &cli), &line, &old).await;
    let before = made.load(Ordering::Relaxed);
    let goes_on = eventually("visits go on", PATIENCE, async || {
        let more = load.is_finished() || made.load(Ordering::Relaxed) > before;
        Ok(more.then_some(()))
    });
    let goes_on = goes_on.await;
    stop.store(true, Ordering::Relaxed);
    load.await?.context("a visit failed")?;
    rotated?;
    goes_on
}

async fn rotate(
    cluster: &mut Cluster,
    (api, cli): (&Api, &Cli),
    line: &str,
    old: &Value,
) -> Result<()> {
    let files = [1, 2, 3].map(|id| cluster.key_file_of(id));
    // Too early: node 3 lacks the key.
    let [first, second, third] = &files;
    let file = first.to_str().context("a path")?;
    let added = change(cli, &["new-key", file]).await?;
    ensure!(added["id"] == 2, "{added}");
    keep_lines(first, second, &[1, 2])?;
    loaded(api, &[&[1, 2], &[1, 2], &[1]]).await?;
    let words = ["cluster", "rotate-key", "--to", "2"];
    let refused = cli.run(&words).await?.failed(1, "members_refused")?;
    let message = refused["message"].as_str().unwrap_or_default();
    ensure!(message.contains("not loaded by node 3:"), "{refused}");

    keep_lines(first, third, &[1, 2])?;
    loaded(api, &[&[1, 2], &[1, 2], &[1, 2]]).await?;
    let words = ["rotate-key", "--tickets-until", OLD_TICKETS, "--by", "ops"];
    change(cli, &words).await?;
    ensure!(api.status(line, old).await?["token"].is_u64());
    let changes = change(cli, &["changes"]).await?;
    let last = changes["changes"].as_array().and_then(|all| all.last());
    let last = last.context("no changes")?;
    ensure!(last["op"] == "rotate_key" && last["by"] == "ops", "{last}");
    let new = eventually("tickets of the new key", PATIENCE, async || {
        let ticket = api.enter(line, "early").await?["ticket"].clone();
        Ok((ticket != *old).then_some(ticket))
    })
    .await?;
    restart(cluster, 2).await?;

    eventually("the old key's time is over", PATIENCE, async || {
        let status = status(api).await?;
        Ok((status["key"]["old_is_over"] == true).then_some(()))
    })
    .await?;
    let ticket = json!({"ticket": old});
    api.refused(line, "status", ticket, Code::TicketInvalid)
        .await?;
    let table = cli.run_as_text(&["cluster", "status"]).await?;
    ensure!(format!("{table:?}").contains("can be removed"), "{table:?}");

    for file in &files {
        keep_lines(file, file, &[2])?;
    }
    loaded(api, &[&[2], &[2], &[2]]).await?;
    for id in [1, 2, 3] {
        restart(cluster, id).await?;
    }
    ensure!(api.status(line, &new).await?["token"].is_u64());
    starts_only_with_the_key_in_force(cluster, &files[2]).await
}

async fn starts_only_with_the_key_in_force(cluster: &mut Cluster, file: &Path) -> Result<()> {
    let good = std::fs::read(file)?;
    cluster.process(3)?.stop(PATIENCE).await?;
    let digits = "01".repeat(32);
    std::fs::write(file, format!("nowserving-cluster-key-v1\n1 {digits}\n"))?;
    cluster.start_node(3).await?;
    let ended = cluster.process(3)?.ended(PATIENCE).await?;
    ensure!(ended.code() == Some(1), "{ended}");
    let said = cluster.process(3)?.printed()?;
    ensure!(said.contains("it lacks key 2"), "{said}");
    std::fs::write(file, good)?;
    cluster.start_node(3).await?;
    cluster.wait_ready().await
}
