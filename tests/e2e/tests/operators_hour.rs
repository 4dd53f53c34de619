//! The short form of `cargo xtask hour`: no seat is oversold, nobody is lost, and each step shows in the metrics.

use std::time::Duration;

use anyhow::{Result, ensure};
use nowserving_e2e::hour::{self, Plan};

#[tokio::test]
async fn operators_hour() -> Result<()> {
    // Beside other tests a machine is slow: no effect at all within four times as long is a failure, a late one is not.
    let plan = Plan {
        lasts: hour::QUICK,
        deadline: Duration::from_secs(20),
    };
    let outcome = hour::run(plan).await?;
    ensure!(outcome.is_well() && outcome.rows.len() == 10, "{outcome:?}");
    Ok(())
}
