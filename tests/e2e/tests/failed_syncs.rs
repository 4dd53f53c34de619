//! A sync that fails: what is on disk is unknown then, so the process ends, and its next start verifies the log.

use std::time::Duration;

use anyhow::{Result, ensure};
use nowserving_e2e::{Cluster, HOUR_MS, number};
use serde_json::json;

use crate::damage::checked;

const LINE: &str = "sync";
const NODE: u64 = 3;
const PATIENCE: Duration = Duration::from_secs(60);
/// Of a node's syncs, which one fails: one of its start, and a later one.
const FAILING: [u32; 2] = [1, 8];

/// One of a node's syncs fails: the node ends, nothing acknowledged is lost, and its directory is whole.
pub async fn end_the_node(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let settings = json!({
        "seats": 2, "queue_limit": 10_000, "claim_timeout_ms": HOUR_MS,
        "waiting_idle_timeout_ms": HOUR_MS,
    });
    api.admin(LINE, "create", settings).await?;
    let mut acknowledged = Vec::new();
    for failing in FAILING {
        cluster.process(NODE)?.kill().await?;
        let inject = format!("inject=fdatasync:error=EIO:when={failing}");
        cluster
            .start_node_under(
                NODE,
                &["strace", "-f", "-qq", "-o", "/dev/null", "-e", &inject],
            )
            .await?;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while cluster.process(NODE)?.is_alive()? {
            ensure!(
                tokio::time::Instant::now() < deadline,
                "sync {failing} does not end the node"
            );
            let key = format!("{failing}-{}", acknowledged.len());
            let status = api.ok(LINE, "enter", json!({"key": key})).await?;
            acknowledged.push((key, number(&status, "token")?));
        }
        let status = cluster.process(NODE)?.ended(PATIENCE).await?;
        ensure!(!status.success(), "sync {failing}: {status}");
        let report = checked(cluster, NODE).await?;
        ensure!(report["ok"] == true, "sync {failing}: {report}");
        cluster.start_node(NODE).await?;
        cluster.wait_ready().await?;
    }
    for (key, token) in acknowledged {
        let again = api.ok(LINE, "enter", json!({"key": key})).await?;
        ensure!(again["token"] == token, "{key}: {token} {again}");
    }
    Ok(())
}
