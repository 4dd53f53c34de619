//! The short form of `cargo xtask hour`: no seat is oversold, nobody is lost, and each step shows in the metrics.

use std::time::Duration;

use anyhow::{Result, ensure};
use nowserving_e2e::hour::{self, Plan};

#[tokio::test]
async fn operators_hour() -> Result<()> {
    // Beside other tests a machine is slow: only an effect that does not come within four times as long fails here.
    let plan = Plan {
        lasts: hour::QUICK,
        deadline: Duration::from_secs(5),
    };
    let outcome = hour::run(plan).await?;
    ensure!(outcome.is_well() && outcome.rows.len() == 10, "{outcome:?}");
    Ok(())
}
