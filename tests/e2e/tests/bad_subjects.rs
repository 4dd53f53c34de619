//! Reply subjects and frames that make no sense. Much of this cannot be sent with a
//! client library: see `RawNats`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use nowserving_e2e::{Cluster, HOUR_MS, RawNats, eventually};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(15);
/// The time limit for one message.
const MESSAGE: Duration = Duration::from_secs(60);
const LINE: &str = "victim";
/// Counters of what a node has read and refused: requests with a forbidden reply subject, frames.
const REPLIES: &str = "nowserving_replies_refused_total";
const FRAMES: &str = "nowserving_frames_refused_total";

/// One of our own subjects is no inbox: the nodes would take an answer there as a request, with the
/// nodes' rights.
pub async fn foreign_replies(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let settings = json!({"seats": 1, "queue_limit": 100, "claim_timeout_ms": HOUR_MS});
    api.admin(LINE, "create", settings).await?;
    let replies = [
        "nowserving.admin.line.victim.delete",
        "nowserving.raft.e2e.1.2",
    ];
    let mut incoming = api.subscribe("nowserving.>").await?;
    let before = count(cluster, REPLIES).await?;
    let mut raw = RawNats::connect(cluster.nats.port()).await?;
    for reply in replies {
        raw.publish(b"nowserving.line.victim.info", reply, b"{}")
            .await?;
        raw.publish(b"nowserving.admin.line.victim.show", reply, b"{}")
            .await?;
        raw.publish(b"nowserving.line.victim.enter", reply, b"{\"key\":")
            .await?;
    }
    let sent = 3.0 * replies.len() as f64;
    eventually("all have been read", PATIENCE, async || {
        let now = count(cluster, REPLIES).await?;
        let read = now.iter().sum::<f64>() - before.iter().sum::<f64>();
        Ok((read >= sent).then_some(()))
    })
    .await?;
    undisturbed(cluster).await?;
    // Every earlier answer comes before this one: the requests have been read.
    api.client().publish("nowserving.end", "".into()).await?;
    loop {
        let message = tokio::time::timeout(MESSAGE, incoming.next()).await?;
        let message = message.context("the subscription has ended")?;
        let subject = message.subject.as_str();
        let to_ours = subject == "nowserving.admin.line.victim.delete"
            || subject == "nowserving.raft.e2e.1.2" && message.payload.first() == Some(&b'{');
        ensure!(!to_ours, "answered to {subject}: {:?}", message.payload);
        if subject == "nowserving.end" {
            break;
        }
    }
    Ok(())
}

/// Frames that no member of the cluster made.
pub async fn frames(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.api().client().clone();
    let mut real = cluster.api().subscribe("nowserving.raft.e2e.1.2").await?;
    let real = tokio::time::timeout(MESSAGE, real.next())
        .await?
        .context("no frame seen")?
        .payload;
    let mut altered = real.to_vec();
    *altered.last_mut().context("an empty frame")? ^= 1;
    let froms = ["1", "2", "3", "9", "x", "18446744073709551616"];
    let payloads = [
        &b""[..],
        b"{}",
        b"\x00",
        &[0xff; 500],
        &altered,
        &real[..20],
        // A real one, replayed, and as if from or to another.
        &real,
    ];
    let before = count(cluster, FRAMES).await?;
    for to in cluster.ids() {
        for from in froms {
            let subject = format!("nowserving.raft.e2e.{to}.{from}");
            for payload in payloads {
                client
                    .publish(subject.clone(), payload.to_vec().into())
                    .await?;
            }
        }
    }
    let sent = (froms.len() * payloads.len()) as f64;
    eventually("each node has refused them all", PATIENCE, async || {
        let now = count(cluster, FRAMES).await?;
        let mut refused = now.iter().zip(&before).map(|(now, before)| now - before);
        Ok(refused.all(|refused| refused >= sent).then_some(()))
    })
    .await?;
    undisturbed(cluster).await
}

/// A subject that is not UTF-8. The nodes' NATS library takes it for a broken connection and makes
/// a new one: they may be away for a moment, but no longer.
pub async fn not_utf8(cluster: &mut Cluster) -> Result<()> {
    let mut raw = RawNats::connect(cluster.nats.port()).await?;
    let subjects: [&[u8]; 4] = [
        b"nowserving.line.\xff\xfe.enter",
        b"nowserving.line.victim.\xff",
        b"nowserving.admin.line.\xc3\x28.delete",
        b"nowserving.raft.e2e.1.\xff",
    ];
    for subject in subjects {
        let _ = raw.ask(subject, b"{}", Duration::from_millis(300)).await?;
    }
    let api = cluster.api().clone();
    eventually("the nodes are back", PATIENCE, async || {
        let body = json!({});
        let ask = api.ask(LINE, "info", &body);
        let reply = tokio::time::timeout(Duration::from_secs(3), ask).await??;
        let served = reply.code.is_none();
        let status = api.cluster("status", json!({})).await?;
        let nodes = status["nodes"].as_array().context("nodes")?;
        Ok((served && nodes.iter().all(|node| node["alive"] == true)).then_some(()))
    })
    .await?;
    undisturbed(cluster).await
}

/// All nodes live, and the line serves as before.
async fn undisturbed(cluster: &mut Cluster) -> Result<()> {
    let ids: Vec<u64> = cluster.ids().collect();
    for id in ids {
        ensure!(cluster.process(id)?.is_alive()?, "node {id} died");
    }
    let api = cluster.api();
    // Temporary errors are repeated: the machine may have paused.
    let status = api.enter(LINE, "a").await?;
    ensure!(status["token"] == 1, "{status}");
    eventually("all nodes live", PATIENCE, async || {
        let status = api.cluster("status", json!({})).await?;
        let nodes = status["nodes"].as_array().context("nodes")?;
        Ok(nodes.iter().all(|node| node["alive"] == true).then_some(()))
    })
    .await
}

/// A counter, of each node.
async fn count(cluster: &Cluster, name: &str) -> Result<Vec<f64>> {
    let metrics = cluster.all_metrics().await?;
    Ok(metrics.iter().map(|one| one.sum(name, &[])).collect())
}
