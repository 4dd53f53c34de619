//! What lines, tokens and counters take while nobody asks: memory, processor time, and the time of a restart.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nowserving_line::LineName;
use nowserving_rehearse::count;

use super::Bench;
use super::asked::Asked;
use super::check::{COUNTERS, Checks};
use super::lines::names;
use super::load::{Load, Requests};
use super::ours::Ours;
use super::report::{Goal, Section};
use super::spread::Spread;

const LINES: u64 = 100_000;
/// In each of these lines.
const WAITING: u64 = 10;
const TOKENS: u64 = 1_000_000;
/// Requests under way while lines are filled.
const AT_ONCE: u32 = 256;
/// How long idle nodes are watched in each round, in seconds: some things are done once a minute.
const WATCHED_S: u64 = 60;
const MIB: f64 = (1 << 20) as f64;

fn one(value: f64) -> Option<Spread> {
    Spread::of([value].into_iter(), 2)
}

fn all(values: &[f64]) -> Option<Spread> {
    Spread::of(values.iter().copied(), 2)
}

/// What an empty cluster takes.
struct Empty {
    memory_mib: f64,
    restart: Option<Spread>,
}

impl Empty {
    async fn of(bench: &Bench, cluster: &mut Ours) -> Result<Empty> {
        bench.begin("restarting the empty cluster");
        let restart = restarts(bench, cluster).await?;
        Ok(Empty {
            memory_mib: cluster.memory_mib().await?,
            restart,
        })
    }

    /// Shows it beside what a full one takes: its memory in MiB, and its restart, in seconds.
    fn show_beside(&self, section: &mut Section, memory_mib: f64, restart: Option<Spread>) {
        section.value("memory after the restarts", "MiB", one(memory_mib));
        let empty = one(self.memory_mib);
        section.value("memory of an empty cluster's node", "MiB", empty);
        section.value("restart until all shards serve", "s", restart);
        section.value("restart of an empty cluster", "s", self.restart);
    }

    /// What a restart takes beyond an empty one's.
    fn beyond(&self, restart: Option<Spread>) -> Option<Spread> {
        let (empty, restart) = (self.restart?, restart?);
        let beyond = |time: f64| (time - empty.median).max(0.0);
        Spread::of(
            [restart.min, restart.median, restart.max]
                .map(beyond)
                .into_iter(),
            2,
        )
    }
}

async fn restarts(bench: &Bench, cluster: &mut Ours) -> Result<Option<Spread>> {
    let mut times = Vec::new();
    for round in 1..=bench.rounds {
        let took = cluster.restart_s().await?;
        bench.say(&format!("restart {round} of {}: {took:.2} s", bench.rounds));
        times.push(took);
    }
    Ok(all(&times))
}

async fn idle(bench: &Bench, cluster: &mut Ours) -> Result<Option<Spread>> {
    let mut percents = Vec::new();
    for round in 1..=bench.rounds {
        bench.begin(&format!("watching idle nodes, {round} of {}", bench.rounds));
        let watched = Duration::from_secs(bench.size(WATCHED_S).max(2));
        percents.push(cluster.idle_percent(watched).await?);
    }
    Ok(all(&percents))
}

/// Lets so many enter these lines in turn; returns how many seconds that took.
async fn fill(bench: &Bench, cluster: &Ours, lines: &[LineName], tokens: u64) -> Result<f64> {
    let counter = Arc::new(AtomicU64::new(0));
    let load = Load {
        asked: Asked::Nats(Requests {
            nats: cluster.nats.clone(),
            source: cluster.lines.enter_source(lines),
        }),
        counter: counter.clone(),
    };
    let began = Instant::now();
    let filled = load.each_up_to(AT_ONCE, tokens);
    bench.counting("entered", &counter, tokens, filled).await?;
    Ok(began.elapsed().as_secs_f64())
}

/// Many lines in which a few wait.
pub async fn many_lines(bench: &mut Bench) -> Result<Section> {
    let mut cluster = bench.cluster().await?;
    let empty = Empty::of(bench, &mut cluster).await?;
    let lines = names(bench.size(LINES));
    let shown = count(lines.len() as u64);
    bench.begin(&format!("making {shown} lines"));
    cluster.lines.create(&lines, 1).await?;
    // One of each has the seat.
    let tokens = lines.len() as u64 * (WAITING + 1);
    fill(bench, &cluster, &lines, tokens).await?;
    let memory = cluster.memory_mib().await?;
    let percent = idle(bench, &mut cluster).await?;
    bench.begin("restarting the cluster");
    let restart = restarts(bench, &mut cluster).await?;
    let again = cluster.memory_mib().await?;
    let mut section = Section {
        about: format!("{shown} lines with {WAITING} waiting and one seat each"),
        goals: vec![
            Goal::at_most("memory of the largest node", 300.0, "MiB", one(memory)),
            Goal::at_most("CPU of three idle nodes, of a core", 2.0, "%", percent),
            Goal::at_most(
                "restart until all shards serve, beyond an empty cluster's",
                2.5,
                "s",
                empty.beyond(restart),
            ),
        ],
        ..Section::default()
    };
    empty.show_beside(&mut section, again, restart);
    Ok(section)
}

/// One line in which very many wait.
pub async fn large_line(bench: &mut Bench) -> Result<Section> {
    let mut cluster = bench.cluster().await?;
    let empty = Empty::of(bench, &mut cluster).await?;
    let (line, tokens) = (names(1), bench.size(TOKENS));
    cluster.lines.create(&line, 1).await?;
    let mut times = vec![fill(bench, &cluster, &line, tokens).await?];
    let memory = cluster.memory_mib().await?;
    bench.begin("restarting the cluster");
    let restart = restarts(bench, &mut cluster).await?;
    let again = cluster.memory_mib().await?;
    for _ in 1..bench.rounds {
        bench.begin("deleting the line");
        cluster.lines.delete(&line).await?;
        cluster.lines.create(&line, 1).await?;
        times.push(fill(bench, &cluster, &line, tokens).await?);
    }
    let bytes = (memory - empty.memory_mib) * MIB / tokens as f64;
    let mut section = Section {
        about: format!(
            "one line in which {} wait, with keys of ten bytes",
            count(tokens)
        ),
        goals: vec![
            Goal::at_most("memory of the largest node", 150.0, "MiB", one(memory)),
            Goal::at_most(
                "memory beyond an empty node's, a token",
                120.0,
                "bytes",
                one(bytes),
            ),
            Goal::at_most(
                "restart until all shards serve, beyond an empty cluster's",
                1.5,
                "s",
                empty.beyond(restart),
            ),
            Goal::at_most(
                format!("to enter, {AT_ONCE} in flight"),
                15.0,
                "s",
                all(&times),
            ),
        ],
        ..Section::default()
    };
    empty.show_beside(&mut section, again, restart);
    Ok(section)
}

/// Nodes with nothing to do.
pub async fn nothing(bench: &mut Bench) -> Result<Section> {
    let mut cluster = bench.cluster().await?;
    let memory = cluster.memory_mib().await?;
    let percent = idle(bench, &mut cluster).await?;
    let mut section = Section {
        about: "three nodes without a line".to_owned(),
        goals: vec![Goal::at_most(
            "CPU of the nodes, of a core",
            1.0,
            "%",
            percent,
        )],
        ..Section::default()
    };
    section.value("memory of the largest node", "MiB", one(memory));
    Ok(section)
}

/// Counters of rate limits.
pub async fn counters(bench: &mut Bench) -> Result<Section> {
    let mut cluster = bench.cluster().await?;
    let checks = Checks::prepare(&cluster).await?;
    let (few, counters) = (bench.size(1_000), bench.size(COUNTERS));
    checks.fill(bench, &cluster, few).await?;
    let before = cluster.memory_mib().await?;
    checks.fill(bench, &cluster, counters).await?;
    let after = cluster.memory_mib().await?;
    let more = counters.checked_sub(few).filter(|more| *more > 0);
    let more = more.context("as many counters as before")?;
    let bytes = (after - before) * MIB / more as f64;
    let mut section = Section {
        about: format!(
            "{} counters of rate limits with keys of 30 bytes, in the memory of the largest node",
            count(counters)
        ),
        goals: vec![Goal::at_most(
            "memory of a counter",
            100.0,
            "bytes",
            one(bytes),
        )],
        ..Section::default()
    };
    section.value(
        format!("memory with {} counters", count(few)),
        "MiB",
        one(before),
    );
    section.value(
        format!("memory with {} counters", count(counters)),
        "MiB",
        one(after),
    );
    Ok(section)
}
