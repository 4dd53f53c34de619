//! Short forms of `cargo xtask soak`: nothing is lost, doubled, overtaken or oversold. These kinds of trouble are in no
//! other test; the command runs all of them.

use std::time::Duration;

use anyhow::Result;
use nowserving_e2e::soak::{self, Trouble};

/// Time for a blow and the recovery from it.
async fn short(trouble: Trouble) -> Result<()> {
    soak::run(trouble, Duration::from_secs(8)).await.map(drop)
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
async fn nodes_are_rolled_back() -> Result<()> {
    short(Trouble::RolledBack).await
}
