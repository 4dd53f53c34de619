//! The steps, each with the metric that shows its effect.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::people::{People, SLEEPERS, lost};
use super::{LINE, Plan, RAISED, Row, SEATS};
use crate::api::{Api, number};
use crate::cli::Cli;
use crate::cluster::{Cluster, Options};
use crate::metrics::Metrics;
use crate::soak::disks;
use crate::wait::eventually;

const STEPS: u32 = 10;
/// Between two scrapes.
const PAUSE: Duration = Duration::from_millis(50);
/// An effect that is late is waited for so many times as long as it may take.
const LATE: u32 = 4;
/// Things that are no step's effect happen within this time.
const PATIENCE: Duration = Duration::from_secs(60);
/// People that were not heard of for longer are kicked; visitors poll far more often.
const IDLE: Duration = Duration::from_secs(5);
const DRAINED: u64 = 1;
const REPLACED: u64 = 3;
const THIS_LINE: &str = "line=\"hour\"";

/// What came of all steps.
pub struct Done {
    pub rows: Vec<Row>,
    pub lost_by_restore: u64,
}

struct Hour<'a> {
    cluster: &'a mut Cluster,
    people: &'a People,
    plan: Plan,
    begin: Instant,
    turns: u32,
    rows: Vec<Row>,
}

/// Makes them all.
///
/// # Errors
/// One fails, or has no effect.
pub async fn all(cluster: &mut Cluster, people: &People, plan: Plan) -> Result<Done> {
    let mut hour = Hour {
        cluster,
        people,
        plan,
        begin: Instant::now(),
        turns: 0,
        rows: Vec::new(),
    };
    hour.seats().await?;
    hour.phases().await?;
    hour.kick().await?;
    hour.drain().await?;
    hour.replace().await?;
    hour.rotate().await?;
    let lost_by_restore = hour.back_up_and_restore().await?;
    Ok(Done {
        rows: hour.rows,
        lost_by_restore,
    })
}

impl Hour<'_> {
    async fn seats(&mut self) -> Result<()> {
        self.turn().await;
        self.people.allow(RAISED);
        self.set_seats("raise seats", RAISED).await?;
        self.turn().await;
        self.set_seats("lower seats", SEATS).await?;
        // Nobody is thrown out.
        let cluster = &*self.cluster;
        eventually("seats too many are given back", PATIENCE, async || {
            let nodes = cluster.all_metrics().await?;
            let held = line(&nodes, "nowserving_line_admitted", &[])
                + line(&nodes, "nowserving_line_in_checkout", &[]);
            Ok((held > 0.0 && held <= SEATS as f64).then_some(()))
        })
        .await?;
        self.people.allow(SEATS);
        Ok(())
    }

    async fn set_seats(&mut self, step: &'static str, seats: u64) -> Result<()> {
        let metric = "nowserving_line_seats";
        let wanted = seats.to_string();
        let words = ["line", "set", LINE, "--seats", &wanted];
        self.step(step, &words, metric, |nodes| {
            line(nodes, metric, &[]) == seats as f64
        })
        .await?;
        Ok(())
    }

    async fn phases(&mut self) -> Result<()> {
        let metric = "nowserving_line_phase";
        for (verb, phase) in [("pause", "paused"), ("open", "open")] {
            self.turn().await;
            let words = ["line", verb, LINE, "--reason", "the hour"];
            let label = format!("phase=\"{phase}\"");
            self.step(verb, &words, metric, |nodes| {
                line(nodes, metric, &[label.as_str()]) == 1.0
            })
            .await?;
        }
        Ok(())
    }

    async fn kick(&mut self) -> Result<()> {
        self.turn().await;
        self.people.fall_asleep().await?;
        tokio::time::sleep(IDLE + Duration::from_secs(1)).await;
        let metric = "nowserving_line_gone_total";
        let of = &["reason=\"kicked\""];
        let before = line(&self.cluster.all_metrics().await?, metric, of);
        let idle = format!("{}s", IDLE.as_secs());
        let words = ["line", "kick", LINE, "--idle-over", &idle, "--yes"];
        let kicked = self
            .step("kick by idle time", &words, metric, |nodes| {
                line(nodes, metric, of) >= before + SLEEPERS as f64
            })
            .await?;
        ensure!(number(&kicked, "kicked")? >= SLEEPERS as u64, "{kicked}");
        Ok(())
    }

    async fn drain(&mut self) -> Result<()> {
        self.turn().await;
        let metric = "nowserving_shards_led";
        let shards = f64::from(self.cluster.options().shards);
        let node = DRAINED.to_string();
        let words = ["cluster", "drain", &node, "--reason", "the hour"];
        self.step("drain a node", &words, metric, |nodes| {
            sum(nodes, metric) == shards && of_node(nodes, DRAINED, metric) == 0.0
        })
        .await?;
        let words = ["cluster", "drain", &node, "--undo"];
        self.cli().run(&words).await?.done()?;
        self.cluster.wait_ready().await
    }

    /// Its process is killed, its disk is gone, and it comes back as another one.
    async fn replace(&mut self) -> Result<()> {
        self.turn().await;
        let number = self.cluster.number_of(REPLACED).await?;
        let begin = Instant::now();
        self.cluster.process(REPLACED)?.kill().await?;
        disks::replace(self.cluster, REPLACED, number).await?;
        let metric = "nowserving_in_touch";
        self.seen("replace a node", begin.elapsed(), metric, |nodes| {
            of_node(nodes, REPLACED, metric) == 1.0
                && sum(nodes, metric) == nodes.len() as f64
                && sum(nodes, "nowserving_shards_without_leader") == 0.0
        })
        .await?;
        self.cluster.wait_served().await
    }

    async fn rotate(&mut self) -> Result<()> {
        self.turn().await;
        let file = self.cluster.key_file();
        let file = file.to_str().context("a path")?;
        let words = ["cluster", "new-key", file];
        let id = number(&self.cli().run(&words).await?.done()?, "id")?;
        loaded(self.cluster.api(), id).await?;
        let metric = "nowserving_key_in_force";
        let words = ["cluster", "rotate-key", "--reason", "the hour"];
        self.step("rotate the key", &words, metric, |nodes| {
            let has = |node: &Metrics| node.sum(metric, &[]) == id as f64;
            nodes.iter().all(has)
        })
        .await?;
        Ok(())
    }

    /// Returns how many tokens of the backup are not in the new cluster.
    async fn back_up_and_restore(&mut self) -> Result<u64> {
        self.turn().await;
        let file = self.cluster.folder().join("hour.nsb");
        let file = file.to_str().context("a path")?.to_owned();
        let (metric, of) = (
            "nowserving_requests_total",
            ["op=\"backup\"", "code=\"ok\""],
        );
        let answered =
            move |nodes: &[Metrics]| nodes.iter().map(|node| node.sum(metric, &of)).sum::<f64>();
        let before = answered(&self.cluster.all_metrics().await?);
        let shards = f64::from(self.cluster.options().shards);
        let saved = self.people.visits();
        let words = ["cluster", "backup", &file];
        self.step("back up", &words, metric, |nodes| {
            answered(nodes) >= before + shards
        })
        .await?;

        self.turn().await;
        let mut other = Cluster::start(Options::default()).await?;
        let restored = self.restore(&other, &file).await;
        let lost = match restored {
            Ok(()) => lost(other.api(), &saved, false).await,
            Err(error) => Err(error),
        };
        if lost.is_err() {
            other.show_logs();
            other.keep();
        }
        lost
    }

    async fn restore(&mut self, other: &Cluster, file: &str) -> Result<()> {
        // Until then it has the first of these keys. Its nodes look at the file every few seconds.
        std::fs::copy(self.cluster.key_file(), other.key_file())?;
        let status = self.cluster.api().cluster("status", json!({})).await?;
        loaded(other.api(), number(&status["key"], "in_force")?).await?;
        let begin = Instant::now();
        let words = ["cluster", "restore", file];
        Cli::new(other.nats_urls()).run(&words).await?.done()?;
        let metric = "nowserving_line_seats";
        let took = begin.elapsed();
        let seen = |nodes: &[Metrics]| line(nodes, metric, &[]) == SEATS as f64;
        let after = visible(other, self.plan, seen).await?;
        self.note("restore into a new cluster", took, metric, after);
        Ok(())
    }

    /// Waits for the time of the next step: they are spread evenly, and the last one comes as the crowd ends.
    async fn turn(&mut self) {
        self.turns += 1;
        let time = self.plan.lasts * self.turns / STEPS;
        tokio::time::sleep(time.saturating_sub(self.begin.elapsed())).await;
    }

    fn cli(&self) -> Cli {
        Cli::new(self.cluster.nats_urls())
    }

    /// Runs a command, waits for its effect, and returns its answer.
    async fn step(
        &mut self,
        step: &'static str,
        words: &[&str],
        metric: &'static str,
        effect: impl Fn(&[Metrics]) -> bool,
    ) -> Result<Value> {
        let begin = Instant::now();
        let done = self.cli().run(words).await?.done();
        let done = done.with_context(|| step.to_owned())?;
        self.seen(step, begin.elapsed(), metric, effect).await?;
        Ok(done)
    }

    async fn seen(
        &mut self,
        step: &'static str,
        command: Duration,
        metric: &'static str,
        effect: impl Fn(&[Metrics]) -> bool,
    ) -> Result<()> {
        let after = visible(self.cluster, self.plan, effect).await;
        let after = after.with_context(|| format!("{step}: {metric}"))?;
        self.note(step, command, metric, after);
        Ok(())
    }

    fn note(
        &mut self,
        step: &'static str,
        command: Duration,
        metric: &'static str,
        after: Duration,
    ) {
        eprintln!("{step}: {metric} shows it after {} ms", after.as_millis());
        self.rows.push(Row {
            step,
            command_ms: command.as_millis() as u64,
            metric,
            seen_after_ms: after.as_millis() as u64,
            in_time: after <= self.plan.deadline,
        });
    }
}

/// Scrapes all nodes until their metrics show it; returns for how long that took.
async fn visible(
    cluster: &Cluster,
    plan: Plan,
    effect: impl Fn(&[Metrics]) -> bool,
) -> Result<Duration> {
    let begin = Instant::now();
    loop {
        // A node that was just started may not answer yet.
        let nodes = cluster.all_metrics().await;
        if nodes.as_ref().is_ok_and(|nodes| effect(nodes)) {
            return Ok(begin.elapsed());
        }
        if begin.elapsed() > plan.deadline * LATE {
            bail!("no effect after {:?}, {:?}", begin.elapsed(), nodes.err());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until all nodes have a key.
async fn loaded(api: &Api, id: u64) -> Result<()> {
    eventually("the key is loaded", PATIENCE, async || {
        let status = api.cluster("status", json!({})).await?;
        let nodes = status["nodes"].as_array().context("no nodes")?;
        let has = |node: &Value| {
            let mut keys = node["keys"].as_array().into_iter().flatten();
            keys.any(|key| key["id"] == id)
        };
        Ok(nodes.iter().all(has).then_some(()))
    })
    .await
}

fn sum(nodes: &[Metrics], metric: &str) -> f64 {
    nodes.iter().map(|node| node.sum(metric, &[])).sum()
}

/// Of the line, on whatever node leads it.
fn line(nodes: &[Metrics], metric: &str, labels: &[&str]) -> f64 {
    let labels = [&[THIS_LINE][..], labels].concat();
    nodes.iter().map(|node| node.sum(metric, &labels)).sum()
}

/// Of the node with this number among those that the cluster began with.
fn of_node(nodes: &[Metrics], id: u64, metric: &str) -> f64 {
    let nth = usize::try_from(id.saturating_sub(1)).unwrap_or(usize::MAX);
    nodes.get(nth).map_or(0.0, |node| node.sum(metric, &[]))
}
