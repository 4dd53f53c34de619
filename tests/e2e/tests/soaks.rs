//! Short forms of `cargo xtask soak`: nothing is lost, doubled, overtaken or oversold.

use std::time::Duration;

use anyhow::Result;
use nowserving_e2e::skipped;
use nowserving_e2e::soak::{self, Trouble};

async fn short(trouble: Trouble) -> Result<()> {
    if let Some(lack) = trouble.lacks().await? {
        return skipped(&format!("soak {trouble:?}"), &format!("it lacks {lack}"));
    }
    soak::run(trouble, Duration::from_secs(15)).await.map(drop)
}

#[tokio::test]
async fn nodes_are_killed() -> Result<()> {
    short(Trouble::Kill).await
}

#[tokio::test]
async fn nodes_are_restarted() -> Result<()> {
    short(Trouble::Restart).await
}

#[tokio::test]
async fn nodes_stand_still() -> Result<()> {
    short(Trouble::Pause).await
}

#[tokio::test]
async fn nats_is_killed() -> Result<()> {
    short(Trouble::NatsKill).await
}

#[tokio::test]
async fn one_nats_server_of_three_is_killed() -> Result<()> {
    short(Trouble::OneNatsKill).await
}

#[tokio::test]
async fn nodes_are_cut_off() -> Result<()> {
    short(Trouble::CutOff).await
}

#[tokio::test]
async fn nodes_are_heard_by_nobody() -> Result<()> {
    short(Trouble::CutOneWay).await
}

#[tokio::test]
async fn nodes_are_replaced() -> Result<()> {
    short(Trouble::Replace).await
}

#[tokio::test]
async fn disks_are_full() -> Result<()> {
    short(Trouble::DiskFull).await
}

#[tokio::test]
async fn all_disks_are_full() -> Result<()> {
    short(Trouble::AllDisksFull).await
}

#[tokio::test]
async fn syncs_fail() -> Result<()> {
    short(Trouble::SyncError).await
}

#[tokio::test]
async fn nodes_are_rolled_back() -> Result<()> {
    short(Trouble::RolledBack).await
}
