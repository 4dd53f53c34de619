//! The short form of `cargo xtask hour`: no seat is oversold, nobody is lost, and each step shows in the metrics in time.

use std::time::Duration;

use anyhow::{Result, ensure};
use nowserving_e2e::hour::{self, Plan};

/// The promise of docs/reliability.md. It is about a machine that does nothing else: nextest runs this test alone. `cargo
/// test` runs it beside all others, each with a cluster of its own; then an effect may take four times as long.
const IN_TIME: Duration = Duration::from_secs(5);

#[tokio::test]
async fn operators_hour() -> Result<()> {
    let plan = Plan {
        lasts: hour::QUICK,
        deadline: IN_TIME,
    };
    let outcome = hour::run(plan).await?;
    ensure!(outcome.is_well() && outcome.rows.len() == 11, "{outcome:?}");
    let alone = std::env::var_os("NEXTEST").is_some();
    ensure!(outcome.is_in_time() || !alone, "{outcome:?}");
    Ok(())
}
