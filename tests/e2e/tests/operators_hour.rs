//! The short form of `cargo xtask hour`: no seat is oversold, nobody is lost, and each step shows in the metrics in time.

use std::time::Duration;

use anyhow::{Result, ensure};
use nowserving_e2e::hour::{self, Outcome, Plan};

/// The promise of docs/reliability.md. It is about a machine that does nothing else: nextest runs this test alone. `cargo
/// test` runs it beside all others, each with a cluster of its own; then an effect may take longer.
const IN_TIME: Duration = Duration::from_secs(5);

#[tokio::test]
async fn operators_hour() -> Result<()> {
    let plan = Plan {
        lasts: hour::QUICK,
        deadline: IN_TIME,
    };
    let first = well(plan).await?;
    let alone = std::env::var_os("NEXTEST").is_some();
    if first.is_in_time() || !alone {
        return Ok(());
    }
    // Perhaps the machine stood still for a moment: then it is not the same step that is late again.
    let second = well(plan).await?;
    let again = late(&second).find(|step| late(&first).any(|it| it == *step));
    ensure!(again.is_none(), "{again:?} is late: {first:?}, {second:?}");
    Ok(())
}

async fn well(plan: Plan) -> Result<Outcome> {
    let outcome = hour::run(plan).await?;
    ensure!(outcome.is_well() && outcome.rows.len() == 11, "{outcome:?}");
    Ok(outcome)
}

fn late(outcome: &Outcome) -> impl Iterator<Item = &'static str> {
    let rows = outcome.rows.iter().filter(|row| !row.in_time);
    rows.map(|row| row.step)
}
