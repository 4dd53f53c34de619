//! The steps, each with the metric that shows its effect.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::in_line::InLine;
use super::people::{People, SLEEPERS, SLEEPERS_LANE, Visit, lost};
use super::{LINE, Plan, RAISED, Row, SEATS};
use crate::api::{Api, number};
use crate::cli::Cli;
use crate::cluster::Cluster;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::soak::disks;
use crate::wait::eventually;

const STEPS: u32 = 10;
/// Between two scrapes.
const PAUSE: Duration = Duration::from_millis(50);
/// An effect that is late is waited for so many times as long as it may take.
const LATE: u32 = 12;
/// Things that are no step's effect happen within this time.
const PATIENCE: Duration = Duration::from_secs(60);
/// People that were not heard of for longer are kicked; visitors poll far more often.
const IDLE: Duration = Duration::from_secs(8);
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
        // People wait for the new seats: more are held than there were.
        self.set_seats("raise seats", RAISED, |held| held > SEATS as f64)
            .await?;
        self.turn().await;
        // Nobody is thrown out, and nobody admitted until the seats too many are given back.
        self.set_seats("lower seats", SEATS, |held| {
            held > 0.0 && held <= SEATS as f64
        })
        .await?;
        self.people.allow(SEATS);
        Ok(())
    }

    async fn set_seats(
        &mut self,
        step: &'static str,
        seats: u64,
        held_are: impl Fn(f64) -> bool,
    ) -> Result<()> {
        let metric = "nowserving_line_seats";
        let wanted = seats.to_string();
        let words = ["line", "set", LINE, "--seats", &wanted];
        self.step(step, &words, metric, |nodes| {
            line(nodes, metric, &[]) == seats as f64 && held_are(held(nodes))
        })
        .await?;
        Ok(())
    }

    async fn phases(&mut self) -> Result<()> {
        let metric = "nowserving_line_phase";
        let is_in = |nodes: &[Metrics], label| line(nodes, metric, &[label]) == 1.0;
        self.turn().await;
        // Seats become free while people wait, and from the first look at the pause on nobody is admitted.
        let begin = Cell::new(None);
        let words = ["line", "pause", LINE, "--reason", "the hour"];
        self.step("pause", &words, metric, |nodes| {
            if !is_in(nodes, "phase=\"paused\"") {
                return false;
            }
            let so_far = admissions(nodes);
            let at_pause = begin.get().unwrap_or(so_far);
            begin.set(Some(at_pause));
            let waiting = line(nodes, "nowserving_line_waiting", &[]);
            so_far == at_pause && waiting > 0.0 && held(nodes) <= (SEATS / 2) as f64
        })
        .await?;
        self.turn().await;
        let at_pause = begin.get().context("never paused")?;
        let nodes = self.cluster.all_metrics().await?;
        ensure!(admissions(&nodes) == at_pause, "admitted while paused");
        let words = ["line", "open", LINE, "--reason", "the hour"];
        self.step("open", &words, metric, |nodes| {
            is_in(nodes, "phase=\"open\"") && admissions(nodes) > at_pause
        })
        .await?;
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
        // Visitors, who are heard of, stay: the audit looks at each of them, too.
        let counted = line(&self.cluster.all_metrics().await?, metric, of) - before;
        let all = number(&kicked, "kicked")? == SLEEPERS as u64 && counted == SLEEPERS as f64;
        ensure!(all, "{counted} were kicked: {kicked}");
        self.people.sleepers_are_kicked();
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
        self.step("undo the drain", &words, metric, |nodes| {
            sum(nodes, metric) == shards && of_node(nodes, DRAINED, metric) > 0.0
        })
        .await?;
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

    /// Returns how many tokens of the backup are not in the new cluster as they were.
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
        // They stay in line, however long the backup takes.
        self.people.fall_asleep().await?;
        let saved = self.people.visits();
        let in_line = InLine::now(self.cluster.api()).await?;
        let words = ["cluster", "backup", &file];
        self.step("back up", &words, metric, |nodes| {
            answered(nodes) >= before + shards
        })
        .await?;
        let in_line = in_line.unchanged(&InLine::now(self.cluster.api()).await?);
        ensure!(in_line.waiting() >= SLEEPERS, "{in_line:?}");

        self.turn().await;
        let mut other = Cluster::start(Options::default()).await?;
        let restored = self.restore(&other, &file).await;
        let lost = match restored {
            Ok(()) => lost_by_restore(other.api(), &saved, &in_line).await,
            Err(error) => Err(error),
        };
        if lost.is_err() {
            other.show_logs();
            other.keep();
        }
        let words = ["line", "kick", LINE, "--lane", SLEEPERS_LANE, "--yes"];
        self.cli().run(&words).await?.done()?;
        self.people.sleepers_are_kicked();
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

/// Waits until all nodes have a key, and each of them knows that: the leader refuses a rotation before.
async fn loaded(api: &Api, id: u64) -> Result<()> {
    let mut know = BTreeSet::new();
    eventually("the key is loaded", PATIENCE, async || {
        let status = api.cluster("status", json!({})).await?;
        let nodes = status["nodes"].as_array().context("no nodes")?;
        let has = |node: &Value| {
            let mut keys = node["keys"].as_array().into_iter().flatten();
            keys.any(|key| key["id"] == id)
        };
        if nodes.iter().all(has) {
            know.insert(number(&status, "answered_by")?);
        }
        Ok((know.len() >= nodes.len()).then_some(()))
    })
    .await
}

/// How many tokens are not there, or not as they were: gone for the same reason, in the same state, in the same order.
async fn lost_by_restore(api: &Api, saved: &[Visit], in_line: &InLine) -> Result<u64> {
    Ok(lost(api, saved, false).await? + in_line.lost_in(&InLine::now(api).await?))
}

/// Seats that are admitted or in checkout.
fn held(nodes: &[Metrics]) -> f64 {
    line(nodes, "nowserving_line_admitted", &[]) + line(nodes, "nowserving_line_in_checkout", &[])
}

/// Of the line, since its leader leads it.
fn admissions(nodes: &[Metrics]) -> f64 {
    line(nodes, "nowserving_wait_seconds_count", &[])
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
