//! A node that was away for so long that the others have dropped what it lacks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use nowserving_e2e::{Api, Cluster, HOUR_MS, eventually, number};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::crash::insist;

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
    let away = 3;
    cluster.process(away)?.kill().await?;
    let crowd = Crowd::start(&api);
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
    cluster.wait_ready().await?;
    let tickets = crowd.end().await?;
    cluster.process(1)?.kill().await?;
    // A few hundred of them, over the whole time.
    for (token, ticket) in tickets.iter().step_by(tickets.len() / 300 + 1) {
        let body = json!({"ticket": ticket});
        let status = insist(&api, LINE, "status", &body).await?;
        ensure!(number(&status, "token")? == *token, "{status}");
        ensure!(status["state"] != "gone", "{status}");
    }
    cluster.start_node(1).await?;
    cluster.wait_ready().await
}

/// Clients that enter one after the other, each with a key of its own.
struct Crowd {
    stop: Arc<AtomicBool>,
    clients: JoinSet<Result<Vec<(u64, Value)>>>,
}

impl Crowd {
    fn start(api: &Api) -> Crowd {
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let (api, stop) = (api.clone(), stop.clone());
            clients.spawn(async move {
                let mut tickets = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let nth = tickets.len();
                    let key = format!("{client}-{nth}-{}", "x".repeat(KEY_BYTES));
                    let status = insist(&api, LINE, "enter", &json!({"key": key})).await?;
                    tickets.push((number(&status, "token")?, status["ticket"].clone()));
                }
                Ok(tickets)
            });
        }
        Crowd { stop, clients }
    }

    /// The tickets that were acknowledged.
    async fn end(self) -> Result<Vec<(u64, Value)>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut tickets = Vec::new();
        for client in self.clients.join_all().await {
            tickets.extend(client?);
        }
        tickets.sort_by_key(|(token, _)| *token);
        Ok(tickets)
    }
}
