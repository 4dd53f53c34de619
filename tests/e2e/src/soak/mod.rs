//! A cluster under an audited crowd, while one kind of trouble comes again and again.
//!
//! The crowd is `nowserving crowd`: its shoppers check every answer and ask about every number once more in the
//! end. Beside it a prober measures after each blow how long writes are not acknowledged. A soak of a few
//! seconds is a test; `cargo xtask soak` runs long ones and prints a table.

pub(crate) mod disks;
mod trouble;
mod upgrade;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::json;

use crate::api::line_in;
use crate::cli::Cli;
use crate::cluster::Cluster;
use crate::{number, scenario};

pub use trouble::{Blow, Trouble};

/// Shoppers a second: enough that each blow hits writes under way, and little enough for two cores.
const SHOPPERS_A_SECOND: u64 = 25;
const SEATS: u64 = 50;
/// The last blow falls this long before the last shopper comes through.
const QUIET: Duration = Duration::from_secs(5);
/// Between two blows, after everything is served again.
const PAUSE: Duration = Duration::from_millis(1_500);

/// What came of one soak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    pub trouble: String,
    /// How often it came.
    pub blows: usize,
    /// Writes of the crowd that were acknowledged.
    pub acknowledged: u64,
    pub lost: u64,
    /// Numbers, keys or fencing numbers that were given twice.
    pub doubled: u64,
    pub overtaken: u64,
    /// Seats held at once beyond those that there are.
    pub oversold: u64,
    /// From a blow to the first acknowledged write that was sent after it, in milliseconds.
    pub recovery_ms_median: u64,
    pub recovery_ms_max: u64,
    /// From a blow until all nodes took part again: also how long a node was kept away.
    pub whole_ms_max: u64,
}

/// Runs one, for about so long.
///
/// # Errors
/// A promise was broken, a shopper could not go on, or the cluster does not come back.
pub async fn run(trouble: Trouble, lasts: Duration) -> Result<Row> {
    let mut row = None;
    scenario::run(trouble.options(), async |cluster| {
        row = Some(soak(cluster, trouble, lasts).await?);
        Ok(())
    })
    .await?;
    row.context("no outcome")
}

async fn soak(cluster: &mut Cluster, trouble: Trouble, lasts: Duration) -> Result<Row> {
    create_probed_lines(cluster).await?;
    let begin = Instant::now();
    let shoppers = (lasts.as_secs() * SHOPPERS_A_SECOND).clamp(50, 50_000);
    let words = [
        "crowd".to_owned(),
        "--shoppers".to_owned(),
        shoppers.to_string(),
        "--seats".to_owned(),
        SEATS.to_string(),
        "--for".to_owned(),
        format!("{}s", lasts.as_secs()),
    ];
    let mut crowd = Cli::new(cluster.nats_urls()).start(&words).await?;
    let mut blows = Vec::new();
    while blows.is_empty() || begin.elapsed() + QUIET < lasts {
        tokio::time::sleep(PAUSE).await;
        let blow = trouble.strike(cluster, blows.len()).await?;
        let (back, whole) = (blow.recovery.as_millis(), blow.whole.as_millis());
        eprintln!(
            "{}: back after {back} ms, whole after {whole} ms",
            trouble.name()
        );
        blows.push(blow);
    }
    let report = crowd.next().await?.context("the crowd has no report")?;
    let ended = crowd.child.wait().await?;
    let row = Row::new(trouble, &report, &blows)?;
    ensure!(
        row.is_well() && ended.success(),
        "{ended}: {row:?}: {report}"
    );
    Ok(row)
}

/// One line in each shard, for the prober: their numbers are never asked for.
async fn create_probed_lines(cluster: &Cluster) -> Result<()> {
    let shards = cluster.options().shards;
    for shard in 0..shards {
        let settings = json!({"seats": 1, "queue_limit": 1_000_000});
        let line = line_in(shard, shards, "probe");
        cluster.api().admin(&line, "create", settings).await?;
    }
    Ok(())
}

impl Row {
    fn new(trouble: Trouble, report: &serde_json::Value, blows: &[Blow]) -> Result<Row> {
        let mut recoveries: Vec<Duration> = blows.iter().map(|blow| blow.recovery).collect();
        recoveries.sort_unstable();
        let longest = recoveries.last().copied();
        let median = recoveries.get(recoveries.len() / 2).copied();
        let whole = blows.iter().map(|blow| blow.whole).max();
        let ms = |time: Option<Duration>| time.map_or(0, |it| it.as_millis() as u64);
        let in_checkout_max = number(report, "in_checkout_max")?;
        Ok(Row {
            trouble: trouble.name(),
            blows: blows.len(),
            acknowledged: number(report, "acknowledged")?,
            lost: number(report, "lost")?,
            doubled: number(report, "duplicates")?,
            overtaken: number(report, "overtakes")?,
            oversold: in_checkout_max.saturating_sub(number(report, "seats")?),
            recovery_ms_median: ms(median),
            recovery_ms_max: ms(longest),
            whole_ms_max: ms(whole),
        })
    }

    fn is_well(&self) -> bool {
        self.lost + self.doubled + self.overtaken + self.oversold == 0 && self.acknowledged > 0
    }
}
