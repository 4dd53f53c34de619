//! Running scenarios against a cluster.

use std::fmt::Display;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::FutureExt;
use futures::future::{LocalBoxFuture, join_all};

use crate::cluster::Cluster;
use crate::options::Options;

/// Nothing here takes longer, on a slow machine either; some dozens run side by side.
const PATIENCE: Duration = Duration::from_secs(400);
/// A scenario under one leader is run so often at most.
const RUNS_MAX: usize = 3;

/// Starts a cluster and runs `body` against it; shows and keeps the logs if that fails.
///
/// # Errors
/// The cluster does not start, or `body` fails.
pub async fn run(
    options: Options,
    body: impl AsyncFnOnce(&mut Cluster) -> Result<()>,
) -> Result<()> {
    let mut cluster = Cluster::start(options).await?;
    let outcome = body(&mut cluster).await;
    if let Err(error) = &outcome {
        // Before the logs, too: of a long output only the end, or only the beginning, may be kept.
        eprintln!("failed: {error:?}");
        cluster.show_logs();
        cluster.keep();
    }
    outcome
}

/// Runs a scenario that needs every event in a new line, and again in another one if it fails and the leader has changed:
/// the new leader may publish an event a second time, and does not publish events that its predecessor wrote and did not
/// publish.
///
/// # Errors
/// It fails under one leader, or the leader changes all the time.
pub async fn under_one_leader(
    cluster: &Cluster,
    name: impl Display,
    scenario: impl AsyncFn(&Cluster, &str) -> Result<()>,
) -> Result<()> {
    for nth in 1..=RUNS_MAX {
        let line = format!("{name}-{nth}");
        let term = cluster.term_of(&line).await?;
        let outcome = scenario(cluster, &line).await;
        if outcome.is_ok() || cluster.term_of(&line).await? == term {
            return outcome;
        }
        eprintln!("{line}: the leader has changed: {outcome:?}");
    }
    bail!("{name}: the leader changes all the time")
}

/// Scenarios that share a cluster and do not disturb each other: each has lines of its own.
#[derive(Default)]
pub struct Scenarios<'a>(Vec<(String, LocalBoxFuture<'a, Result<()>>)>);

impl<'a> Scenarios<'a> {
    /// Adds one, unless `E2E_ONLY` names others.
    #[must_use]
    pub fn with(
        mut self,
        name: impl Into<String>,
        run: impl Future<Output = Result<()>> + 'a,
    ) -> Self {
        let (name, only) = (name.into(), std::env::var("E2E_ONLY").unwrap_or_default());
        if name.contains(&only) {
            self.0.push((name, run.boxed_local()));
        }
        self
    }

    /// Runs them all side by side and reports the outcome of each.
    ///
    /// # Errors
    /// One of them failed.
    pub async fn run(self) -> Result<()> {
        anyhow::ensure!(
            !self.0.is_empty(),
            "E2E_ONLY names no scenario of this test"
        );
        let runs = self.0.into_iter().map(|(name, run)| async move {
            let start = Instant::now();
            let outcome = tokio::time::timeout(PATIENCE, run).await;
            let outcome = outcome.unwrap_or_else(|_| bail!("not done within {PATIENCE:?}"));
            let took = start.elapsed().as_secs_f64();
            match &outcome {
                Ok(()) => eprintln!("scenario {name}: ok, {took:.1} s"),
                Err(error) => eprintln!("scenario {name}: FAILED, {took:.1} s: {error:?}"),
            }
            (name, outcome.is_ok())
        });
        let failed = join_all(runs).await.into_iter().filter(|(_, ok)| !ok);
        let failed: Vec<String> = failed.map(|(name, _)| name).collect();
        if !failed.is_empty() {
            bail!("failed: {}", failed.join(", "));
        }
        Ok(())
    }
}
