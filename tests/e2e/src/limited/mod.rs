//! Many processes that share rate limits, and the loss of the leader that counts.
//!
//! The processes are the program `limited` (`src/bin/limited.rs`). Three limits: one of `RATE` a second, of which they take
//! as much as they get; one that is not refilled, and an exact one that is not, of which they take a hit now and then, so
//! that neither is used up when the leader dies.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::api::number;
use crate::cluster::Cluster;
use crate::options::Options;
use crate::process::Process;
use crate::program::example;
use crate::scenario;

const DOMAIN: &str = "limited";
/// Hits a second, and at once.
const RATE: u64 = 100;
/// Of which the bucket is full after this long.
const FULL_AFTER_MS: u64 = 1_000;
/// The leader's checkpoints are so far apart, and one takes this long to be in the log of a majority on a slow machine.
const CHECKPOINT_MS: u64 = 200 + 800;
/// For the processes to start.
const STARTS: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(60);

/// How many of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub processes: u64,
    pub seconds: u64,
    /// Checks a second, in each process.
    pub quota_per_s: u64,
    pub exact_per_s: u64,
    /// After a third of the time.
    pub leader_dies: bool,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    pub processes: u64,
    pub took_ms: u64,
    /// Hits that passed the limit of `RATE` a second.
    pub rate_passed: u64,
    /// The longest time without any.
    pub rate_gap_ms: u64,
    /// All times without any in which the bucket was full: the machine stood still, or there was no leader.
    pub rate_stalled_ms: u64,
    pub quota: u64,
    pub quota_passed: u64,
    /// Of these in the last checkpoint interval before the leader died: it may have forgotten them.
    pub quota_may_be_forgotten: u64,
    /// Attempts without an answer, which may have counted besides the one that was answered.
    pub quota_repeated: u64,
    pub exact: u64,
    pub exact_passed: u64,
    /// Calls without an answer, which may have counted.
    pub exact_unknown: u64,
    pub refused: u64,
    pub failed: u64,
}

/// Runs one, with a cluster of its own.
///
/// # Errors
/// More passed than may.
pub async fn run(plan: Plan) -> Result<Report> {
    let mut report = None;
    // All counters have the same leader.
    let options = Options {
        shards: 1,
        ..Options::default()
    };
    scenario::run(options, async |cluster| {
        report = Some(limited(cluster, plan).await?);
        Ok(())
    })
    .await?;
    report.context("no outcome")
}

impl Plan {
    /// Half of what is asked for: with the leader's death after a third, it is used up after that.
    fn total(self, per_s: u64) -> u64 {
        self.processes * per_s * self.seconds / 2
    }

    fn rules(self) -> String {
        let (quota, exact) = (self.total(self.quota_per_s), self.total(self.exact_per_s));
        format!(
            "domain: {DOMAIN}
descriptors:
  - {{key: rate, rate_limit: {{unit: second, requests_per_unit: {RATE}, algorithm: token_bucket}}}}
  - {{key: quota, rate_limit: {{unit: year, requests_per_unit: {quota}, algorithm: token_bucket}}}}
  - {{key: exact, rate_limit: {{unit: year, requests_per_unit: {exact}, algorithm: token_bucket, exact: true}}}}
"
        )
    }
}

async fn limited(cluster: &mut Cluster, plan: Plan) -> Result<Report> {
    cluster.api().apply_rules(DOMAIN, &plan.rules()).await?;
    let program = example("limited").await?;
    let begin_ms = wall_ms() + STARTS.as_millis() as u64;
    let mut processes = Vec::new();
    for nth in 0..plan.processes {
        processes.push(start(cluster, &program, plan, (nth, begin_ms)).await?);
    }
    let mut killed_ms = None;
    if plan.leader_dies {
        let at_ms = begin_ms + plan.seconds * 1_000 / 3;
        tokio::time::sleep(Duration::from_millis(at_ms.saturating_sub(wall_ms()))).await;
        let leader = cluster.leader_of(DOMAIN).await?;
        killed_ms = Some(wall_ms());
        cluster.process(leader)?.kill().await?;
        cluster.wait_served().await?;
        cluster.start_node(leader).await?;
    }
    let mut printed = Vec::new();
    let patience = Duration::from_secs(plan.seconds) + PATIENCE;
    for process in &mut processes {
        let status = process.ended(patience).await?;
        let text = process.printed()?;
        ensure!(status.success(), "{status}: {text}");
        let last = text.lines().rfind(|line| line.starts_with('{'));
        printed.push(serde_json::from_str(last.context("nothing is printed")?)?);
    }
    let report = report(plan, &printed, (begin_ms, killed_ms))?;
    is_within(plan, &report).with_context(|| format!("{report:?}"))?;
    Ok(report)
}

async fn start(
    cluster: &Cluster,
    program: &Path,
    plan: Plan,
    (nth, begin_ms): (u64, u64),
) -> Result<Process> {
    let mut args: Vec<OsString> = vec!["--nats".into(), cluster.nats_urls().into()];
    args.extend(["--domain".into(), DOMAIN.into()]);
    let numbers = [
        ("--begin-ms", begin_ms),
        ("--for-ms", plan.seconds * 1_000),
        ("--quota-per-s", plan.quota_per_s),
        ("--exact-per-s", plan.exact_per_s),
    ];
    for (flag, number) in numbers {
        args.extend([flag.into(), number.to_string().into()]);
    }
    let log = cluster.folder().join(format!("limited-{nth}.log"));
    Process::start(&format!("process {nth}"), program.as_os_str(), args, &log).await
}

fn report(
    plan: Plan,
    printed: &[Value],
    (begin_ms, killed_ms): (u64, Option<u64>),
) -> Result<Report> {
    let sum = |field: &str| {
        let counts = printed.iter().map(|it| number(it, field));
        counts.sum::<Result<u64>>()
    };
    let times = |field: &str| -> Vec<u64> {
        let lists = printed.iter().filter_map(|it| it[field].as_array());
        let mut times: Vec<u64> = lists.flatten().filter_map(Value::as_u64).collect();
        times.sort_unstable();
        times
    };
    let (rate, quota) = (times("rate"), times("quota"));
    let last_ms = rate.last().copied().unwrap_or(begin_ms);
    let end_ms = begin_ms + plan.seconds * 1_000;
    let ends = rate.iter().skip(1).copied().chain([end_ms]);
    let gaps = rate.iter().zip(ends);
    let gaps: Vec<u64> = gaps.map(|(from, to)| to.saturating_sub(*from)).collect();
    let stalls = gaps.iter().filter(|gap| **gap > FULL_AFTER_MS);
    // A hit that was decided before may have been answered a moment after.
    let may_be_forgotten = |at_ms: &&u64| {
        killed_ms.is_some_and(|killed_ms| {
            (killed_ms.saturating_sub(CHECKPOINT_MS)..killed_ms + CHECKPOINT_MS).contains(*at_ms)
        })
    };
    Ok(Report {
        processes: plan.processes,
        took_ms: last_ms.saturating_sub(begin_ms),
        rate_passed: rate.len() as u64,
        rate_gap_ms: gaps.iter().copied().max().unwrap_or(0),
        rate_stalled_ms: stalls.sum(),
        quota: plan.total(plan.quota_per_s),
        quota_passed: quota.len() as u64,
        quota_may_be_forgotten: quota.iter().filter(may_be_forgotten).count() as u64,
        quota_repeated: sum("quota_repeated")?,
        exact: plan.total(plan.exact_per_s),
        exact_passed: times("exact").len() as u64,
        exact_unknown: sum("exact_unknown")?,
        refused: sum("refused")?,
        failed: sum("failed")?,
    })
}

fn is_within(plan: Plan, report: &Report) -> Result<()> {
    // What the bucket holds at first, what flows in, and after the loss of the leader what it forgets.
    let in_all = |ms: u64| (RATE * ms).div_ceil(1_000);
    let run_ms = plan.seconds * 1_000;
    let (forgotten, away_ms, few) = match plan.leader_dies {
        true => (in_all(CHECKPOINT_MS), report.rate_gap_ms, 2 * RATE),
        false => (0, 0, RATE),
    };
    let away_ms = away_ms.max(report.rate_stalled_ms);
    let rate_max = RATE + in_all(report.took_ms.max(run_ms)) + forgotten;
    // Some of what flows in while a loaded machine asks for nothing is lost, but for a full bucket.
    let rate_min = in_all(run_ms.saturating_sub(away_ms)).saturating_sub(few);
    ensure!(
        (rate_min..=rate_max).contains(&report.rate_passed),
        "rate: {rate_min} to {rate_max}"
    );
    let quota_max = report.quota + report.quota_may_be_forgotten;
    ensure!(
        report.quota_passed <= quota_max,
        "quota: at most {quota_max}"
    );
    // Without failures nothing is counted for an answer that is lost, but for one that came too late.
    let all = plan.leader_dies || report.quota_passed + report.quota_repeated >= report.quota;
    ensure!(all, "quota: all of {}", report.quota);
    // More was asked for than there is: what nobody got was counted for an answer that was lost.
    let exact_min = report.exact.saturating_sub(report.exact_unknown);
    ensure!(
        (exact_min..=report.exact).contains(&report.exact_passed),
        "exact: {exact_min} to {}",
        report.exact
    );
    Ok(())
}

fn wall_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}
