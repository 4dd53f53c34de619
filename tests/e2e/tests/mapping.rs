//! The mapping line of NATS: with it a stopped node loses no requests; the cluster reports a missing or
//! wrong one.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Api, Cli, Cluster, eventually};
use rustix::process::Signal;
use serde_json::{Value, json};

const LINE: &str = "mapping";
const PATIENT_LINE: &str = "patient";
const PATIENCE: Duration = Duration::from_secs(30);
/// Without the mapping a third of them would be lost.
const POLLS: usize = 30;
const POLL_EVERY: Duration = Duration::from_millis(600);
/// The stopped node answers no poll: the next one must come before the token is idle.
const POLL_MAX: Duration = Duration::from_secs(1);
const IDLE_MS: u64 = 3_000;
/// A slow machine answers by then, and a stopped node never.
const ANSWERED_MS: u64 = 10_000;
/// Longer than the test takes.
const PATIENT_IDLE_MS: u64 = 3_600_000;

/// With the mapping. Each node is stopped in turn while a client waits and polls on plain subjects.
pub async fn past_a_stopped_node(cluster: &mut Cluster) -> Result<()> {
    is_said(cluster, "ok").await?;
    let api = cluster.api().clone();
    // No polls while a node comes back.
    let (leader, body) = waits(cluster, PATIENT_LINE, PATIENT_IDLE_MS).await?;
    let ids: Vec<u64> = cluster.ids().collect();
    for &id in ids.iter().filter(|id| **id != leader) {
        cluster.process(id)?.signal(Signal::STOP)?;
        for nth in 0..POLLS {
            let answered = is_answered(&api, PATIENT_LINE, &body).await;
            answered.with_context(|| format!("poll {nth} with node {id} stopped"))?;
        }
        cluster.process(id)?.signal(Signal::CONT)?;
        cluster.wait_ready().await?;
    }
    // The leader itself: until there is another one no node answers, and no token is recycled for it.
    let (leader, body) = waits(cluster, LINE, IDLE_MS).await?;
    cluster.process(leader)?.signal(Signal::STOP)?;
    let (hasty, mut answered) = (api.within(500), 0);
    eventually("polls are answered again", PATIENCE, async || {
        tokio::time::sleep(POLL_EVERY).await;
        // No request may be lost any more for as long as a timeout lasts.
        let poll = tokio::time::timeout(POLL_MAX, hasty.ask(LINE, "status", &body));
        let Ok(Ok(reply)) = poll.await else {
            answered = 0;
            return Ok(None);
        };
        if reply.code.is_none() {
            ensure!(reply.body["state"] == "waiting", "{:?}", reply.body);
            answered += 1;
        }
        Ok((answered >= IDLE_MS / 600 * 2).then_some(()))
    })
    .await?;
    cluster.process(leader)?.signal(Signal::CONT)?;
    cluster.wait_ready().await
}

/// A new line with a waiting token; returns its leader and the payload of a poll.
async fn waits(cluster: &Cluster, line: &str, idle_ms: u64) -> Result<(u64, Value)> {
    let api = cluster.api();
    let settings = json!({
        "seats": 1, "queue_limit": 10, "waiting_idle_timeout_ms": idle_ms,
        "claim_timeout_ms": PATIENT_IDLE_MS,
    });
    api.admin(line, "create", settings).await?;
    let leader = cluster.leader_of(line).await?;
    api.enter(line, "seated").await?;
    let ticket = api.enter(line, "polls").await?["ticket"].clone();
    Ok((leader, json!({"ticket": ticket})))
}

/// A poll is answered: at once, or once there is a leader again.
async fn is_answered(api: &Api, line: &str, body: &Value) -> Result<()> {
    let began = Instant::now();
    loop {
        let reply = api.within(ANSWERED_MS).ask(line, "status", body).await?;
        if !reply.passes() || began.elapsed() > PATIENCE {
            ensure!(reply.body["state"] == "waiting", "{reply:?}");
            return Ok(());
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// The log, `cluster status` and its text name the fault and its fix, each time that it changes.
pub async fn is_reported(cluster: &mut Cluster) -> Result<()> {
    let shards = cluster.options().shards;
    let status = is_said(cluster, "missing").await?;
    is_in_every_log(cluster, "does not map plain requests", 1).await?;
    is_advised(cluster, &status).await?;
    cluster.nats.restart(Some(shards * 2)).await?;
    is_said(cluster, "wrong").await?;
    is_in_every_log(cluster, "maps plain requests elsewhere", 1).await?;
    cluster.nats.restart(Some(shards)).await?;
    let status = is_said(cluster, "ok").await?;
    ensure!(status.get("mapping_line").is_none(), "{status}");
    is_in_every_log(cluster, "does not map plain requests", 1).await
}

/// The line that is missing is that of the docs, and the text has it.
async fn is_advised(cluster: &Cluster, status: &Value) -> Result<()> {
    let shards = cluster.options().shards;
    let line = status["mapping_line"].as_str().context("a line")?;
    let configured = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/protocol/subjects.md"
    ))?;
    ensure!(shards != 16 || configured.contains(line), "{line}");
    let cli = Cli::new(cluster.nats.url());
    let said = cli.run_as_text(&["cluster", "status"]).await?;
    let text: Vec<&str> = said.lines.iter().filter_map(Value::as_str).collect();
    let text = text.join("\n");
    ensure!(text.contains("no mapping") && text.contains(line), "{text}");
    Ok(())
}

/// Every node says this of the mapping.
async fn is_said(cluster: &Cluster, word: &str) -> Result<Value> {
    let api = cluster.api();
    let mut agree = std::collections::BTreeSet::new();
    let all = cluster.ids().count();
    let what = format!("every node says that the mapping is {word}");
    eventually(&what, PATIENCE, async || {
        let status = api.cluster("status", json!({})).await?;
        if status["mapping"] == word {
            agree.insert(status["answered_by"].as_u64());
        } else {
            agree.clear();
        }
        Ok((agree.len() == all).then_some(status))
    })
    .await
}

/// Exactly this many times, not at every check.
async fn is_in_every_log(cluster: &mut Cluster, words: &str, times: usize) -> Result<()> {
    let ids: Vec<u64> = cluster.ids().collect();
    for id in ids {
        let printed = cluster.process(id)?.printed()?;
        let count = printed.lines().filter(|line| line.contains(words)).count();
        ensure!(count == times, "node {id}: {count} × {words:?}\n{printed}");
    }
    Ok(())
}
