//! Troubles with disks: full ones, ones that fail, lost ones, and an older copy put back.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::cluster::Cluster;
use crate::members::candidate;
use crate::strace::fail_syncs;
use crate::wait::eventually;

/// The size of a node's disk if disks fill up.
pub const DISK_BYTES: u64 = 96 << 20;
/// A node sees within this time that its disk is full, that it has room again, or that a sync failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Fills the disks of all nodes, and makes room again. Returns when there was room.
pub async fn fill_all(cluster: &Cluster, lasts: Duration) -> Result<Instant> {
    for id in cluster.ids() {
        cluster.disk(id)?.fill(0)?;
    }
    tokio::time::sleep(lasts).await;
    for id in cluster.ids() {
        // Its peers hear of it with its next message.
        eventually("the disk of the node is full", PATIENCE, async || {
            Ok(is_full(cluster, id).await?.then_some(()))
        })
        .await?;
        cluster.disk(id)?.clear()?;
    }
    Ok(Instant::now())
}

/// Waits until a node takes writes again.
pub async fn has_room(cluster: &Cluster, id: u64) -> Result<()> {
    eventually("the node has room again", PATIENCE, async || {
        Ok((!is_full(cluster, id).await?).then_some(()))
    })
    .await
}

async fn is_full(cluster: &Cluster, id: u64) -> Result<bool> {
    Ok(cluster.status_of(id).await?["disk_full"] == true)
}

/// Makes the syncs of a node fail, which ends it. Returns when it had ended.
pub async fn fail_sync(cluster: &mut Cluster, id: u64) -> Result<Instant> {
    let process = cluster.process(id)?;
    let mut strace = fail_syncs(process.pid().context("it has ended")?)?;
    let ended = process.ended(PATIENCE).await?;
    let at = Instant::now();
    ensure!(!ended.success(), "a sync failed on node {id}: {ended}");
    strace.wait().await?;
    Ok(at)
}

/// A dead node comes back with an empty disk, and takes the place of `number`.
pub async fn replace(cluster: &mut Cluster, id: u64, number: u64) -> Result<()> {
    std::fs::remove_dir_all(cluster.data_dir(id))?;
    cluster.start_node_joining(id).await?;
    candidate(cluster.api()).await?;
    cluster.replace(number).await
}

/// Copies a node's data directory; the node runs on with the original.
pub async fn copy(cluster: &mut Cluster, id: u64) -> Result<()> {
    cluster.process(id)?.kill().await?;
    let copy = copy_of(cluster, id);
    let copied = Command::new("cp")
        .arg("-a")
        .arg(cluster.data_dir(id))
        .arg(copy)
        .status()?;
    ensure!(copied.success(), "cp: {copied}");
    cluster.start_node(id).await?;
    // From here on its peers know that the copy is old.
    cluster.wait_serving(id).await?;
    cluster.wait_served().await
}

/// A dead node comes back with the copy: it is refused, `cluster status` says why, and one command brings it
/// back under another number.
pub async fn roll_back(cluster: &mut Cluster, id: u64, number: u64) -> Result<()> {
    let data = cluster.data_dir(id);
    std::fs::remove_dir_all(&data)?;
    std::fs::rename(copy_of(cluster, id), &data)?;
    cluster.start_node(id).await?;
    let asks = candidate(cluster.api()).await?;
    let reason = asks["reason"].as_str().unwrap_or_default();
    ensure!(
        asks["node"] == number && reason.contains("older copy"),
        "{asks}"
    );
    cluster.replace(number).await?;
    ensure!(
        cluster.process(id)?.is_alive()?,
        "node {id} needed a restart"
    );
    Ok(())
}

fn copy_of(cluster: &Cluster, id: u64) -> PathBuf {
    cluster.folder().join(format!("node-{id}.copy"))
}
