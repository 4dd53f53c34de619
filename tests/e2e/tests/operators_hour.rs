//! The short form of `cargo xtask hour`: no seat is oversold, nobody is lost, and each step shows in the metrics. How soon it
//! does is measured by the command, on a machine that does nothing else.

use std::time::Duration;

use anyhow::{Result, ensure};
use nowserving_e2e::hour::{self, Plan};

#[tokio::test]
async fn operators_hour() -> Result<()> {
    let plan = Plan {
        lasts: hour::QUICK,
        deadline: Duration::from_secs(5),
    };
    let outcome = hour::run(plan).await?;
    ensure!(outcome.is_well() && outcome.rows.len() == 11, "{outcome:?}");
    Ok(())
}
