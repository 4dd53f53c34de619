//! An operator's hour: all that an operator does on a live cluster under load, one step after the other.
//!
//! Each step names the metric that shows its effect, and is timed from the answer of its command until all nodes' metrics say
//! so. Two crowds are audited meanwhile: `nowserving crowd` in a line of its own, and people in the line that the
//! operator changes, whose seats are counted from outside, too.

mod in_line;
mod people;
mod steps;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join3;
use serde::Serialize;
use serde_json::Value;

use crate::cli::{Cli, Running};
use crate::cluster::Cluster;
use crate::options::Options;
use crate::{number, scenario};

use people::People;

pub use people::Audit;

/// The line that the operator changes.
const LINE: &str = "hour";
/// Its seats, before and after they are raised.
const SEATS: u64 = 20;
const RAISED: u64 = 30;
/// All steps one after the other, with hardly a pause.
pub const QUICK: Duration = Duration::from_secs(25);
/// Of the crowd in the other line.
const SHOPPERS_A_SECOND: u64 = 10;

/// How the steps are spread, and by when they must have their effect.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub lasts: Duration,
    /// Counts as in time. It is waited for longer, so that the table shows how late it was.
    pub deadline: Duration,
}

/// One step.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub step: &'static str,
    /// The time that its command took.
    pub command_ms: u64,
    pub metric: &'static str,
    /// From the command's answer until the metrics of all nodes showed it.
    pub seen_after_ms: u64,
    pub in_time: bool,
}

/// What came of an hour.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub rows: Vec<Row>,
    pub people: Audit,
    /// Tokens of the backup that are not in the cluster into which it was restored, or in another state or order.
    pub lost_by_restore: u64,
    /// The report of `nowserving crowd`.
    pub crowd: Value,
    crowd_is_well: bool,
}

impl Outcome {
    /// No seat was oversold, nobody lost, and just those kicked that had not been heard of.
    #[must_use]
    pub fn is_well(&self) -> bool {
        let people = &self.people;
        let faults = people.lost
            + people.doubled
            + people.oversold
            + people.wrongly_kicked
            + people.asleep.abs_diff(people.kicked)
            + self.lost_by_restore;
        faults == 0 && people.completed > 0 && people.kicked > 0 && self.crowd_is_well
    }

    /// Each effect was seen by the deadline.
    #[must_use]
    pub fn is_in_time(&self) -> bool {
        self.rows.iter().all(|row| row.in_time)
    }
}

/// Runs one.
///
/// # Errors
/// A step fails or has no effect, or somebody could not go on.
pub async fn run(plan: Plan) -> Result<Outcome> {
    let mut outcome = None;
    let options = Options {
        // Snapshots are made and sent, too.
        snapshot_entries: 2_000,
        ..Options::default()
    };
    scenario::run(options, async |cluster| {
        outcome = Some(hour(cluster, plan).await?);
        Ok(())
    })
    .await?;
    outcome.context("no outcome")
}

async fn hour(cluster: &mut Cluster, plan: Plan) -> Result<Outcome> {
    let mut crowd = start_crowd(cluster, plan.lasts).await?;
    let people = People::create(cluster.api(), SEATS).await?;
    let steps = async {
        let done = steps::all(cluster, &people, plan).await;
        people.stop();
        done
    };
    let (done, (), ()) = try_join3(steps, people.come_and_go(), people.watch_seats()).await?;
    let people = people.audit().await?;
    let report = crowd.next().await?.context("the crowd has no report")?;
    let ended = crowd.child.wait().await?;
    ensure!(number(&report, "acknowledged")? > 0, "{report}");
    Ok(Outcome {
        rows: done.rows,
        people,
        lost_by_restore: done.lost_by_restore,
        crowd: report,
        crowd_is_well: ended.success(),
    })
}

async fn start_crowd(cluster: &Cluster, lasts: Duration) -> Result<Running> {
    let shoppers = (lasts.as_secs() * SHOPPERS_A_SECOND).clamp(50, 30_000);
    let words = [
        "crowd".to_owned(),
        "--shoppers".to_owned(),
        shoppers.to_string(),
        "--seats".to_owned(),
        SEATS.to_string(),
        "--for".to_owned(),
        format!("{}s", lasts.as_secs()),
    ];
    Cli::new(cluster.nats_urls()).start(&words).await
}
