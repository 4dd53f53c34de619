//! `cargo xtask bench`: nowserving beside what people would use instead, on this machine, in one run.
//!
//! Numbers of one machine at one moment mean little. So all systems of a row run in turns, round by round, and a goal
//! is a ratio of two systems in the same round, wherever there is something to compare with.

mod asked;
pub mod check;
mod crowd;
mod docs;
mod echo;
mod enter;
pub mod lines;
mod load;
mod machine;
mod memory;
mod ours;
mod picture;
mod profile;
mod race;
mod report;
mod spread;
mod status;
mod tools;
mod variants;
mod visit;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use nowserving_e2e::{Options, use_program};
use nowserving_rehearse::count;
use nowserving_terminal::progress::Progress;
use nowserving_terminal::{duration, number};
use serde::Serialize;

use ours::Ours;
use report::{Report, Section};

pub use echo::{EchoArgs, run as echo};
pub use machine::Machine;
pub use profile::{ProfileArgs, run as profile};

/// What can be measured, in the order of a whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// `enter` on one line, beside JetStream, Redis and etcd
    Enter,
    /// `status` of 10,000 waiting tokens, beside a bare NATS echo
    Status,
    /// `check` of a million counters, beside the echo and Redis
    Check,
    /// `enter` on 1,000 lines, beside one line
    Lines,
    /// Nodes with two loops, beside nodes with one
    Loops,
    /// `enter` with direct links between the nodes, beside frames over NATS
    Links,
    /// Whole visits: enter, five polls, claim, complete
    Visit,
    /// `enter` with 512 in flight for 36 s
    Burst,
    /// 10,000 shoppers who poll once a second
    Shoppers,
    /// 10,000 watchers of one board
    Watchers,
    /// Processor time of three nodes without a line
    Idle,
    /// Memory, processor time and restart of 100,000 lines in which ten wait
    ManyLines,
    /// Memory and restart of one line in which a million wait, and the time to enter it
    LargeLine,
    /// Memory of a million counters of rate limits
    Counters,
    /// Redis and etcd by their own tools, beside our requester
    Tools,
}

/// Measures nowserving beside a bare NATS echo, JetStream, Redis and etcd
///
/// In rounds, so that all of them meet the same noise. Exit code 1 if any request failed; goals that are not met do not
/// count.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// Measures only these [default: all]
    #[arg(value_name = "NAME", value_enum)]
    names: Vec<Name>,
    /// How often everything is measured
    #[arg(long, default_value_t = 5, value_parser = number::between::<u32>(1..=20))]
    rounds: u32,
    /// How long each cell is measured in each round, after half a second of warming up, 1s to 1m
    #[arg(
        long = "measure", value_name = "TIME", default_value = "3s",
        value_parser = duration::between(1_000..=60_000)
    )]
    measure_ms: u64,
    /// Writes everything as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes tables and pictures to this folder: `docs/benchmarks`
    #[arg(long, value_name = "DIR")]
    write_docs: Option<PathBuf>,
    /// The `nowserving` that is measured [default: built from these sources]
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// A hundredth of all sizes: shows that it works, not how fast
    #[arg(long)]
    quick: bool,
}

/// What all rows need.
pub struct Bench {
    rounds: u32,
    measured: Duration,
    quick: bool,
    progress: Progress,
    /// The row under way.
    row: String,
    versions: Vec<String>,
    missing: Vec<String>,
}

impl Bench {
    /// A size, or a hundredth of it.
    fn size(&self, size: u64) -> u64 {
        match self.quick {
            true => size.div_ceil(100),
            false => size,
        }
    }

    /// Says what goes on.
    fn step(&self, what: &str) {
        let text = format!("{}: {what}", self.row);
        self.progress.bar.set_message(text);
        self.progress.bar.tick();
    }

    /// Prints a line that stays.
    fn say(&self, text: &str) {
        self.progress.say(&format!("{}: {text}", self.row));
    }

    /// [`Bench::step`] for what takes long and has no other line.
    fn begin(&self, what: &str) {
        self.step(what);
        if self.progress.bar.is_hidden() {
            self.say(what);
        }
    }

    /// Waits for `done`, and tells meanwhile how far the counter is.
    async fn counting(
        &self,
        what: &str,
        counter: &AtomicU64,
        of: u64,
        done: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        self.begin(&format!("{what}: {} in all", count(of)));
        let mut looks = tokio::time::interval(Duration::from_secs(1));
        let mut done = std::pin::pin!(done);
        loop {
            tokio::select! {
                done = &mut done => return done,
                _ = looks.tick() => {
                    let now = counter.load(Ordering::Relaxed).min(of);
                    self.step(&format!("{what}: {} of {}", count(now), count(of)));
                }
            }
        }
    }

    /// Three nodes of ours.
    async fn cluster(&mut self) -> Result<Ours> {
        self.cluster_with(Options::default()).await
    }

    /// The same with these options.
    async fn cluster_with(&mut self, options: Options) -> Result<Ours> {
        self.begin("starting three nodes");
        let ours = Ours::start(options).await?;
        self.version(format!("nats-server {}", ours.nats.server_info().version));
        Ok(ours)
    }

    /// Notes the version of a system.
    fn version(&mut self, version: String) {
        if !self.versions.contains(&version) {
            self.versions.push(version);
        }
    }

    /// A system that cannot be had leaves a gap, and the rest is measured.
    fn optional<T>(&mut self, what: &str, started: Result<T>) -> Option<T> {
        let error = match started {
            Ok(started) => return Some(started),
            Err(error) => error,
        };
        self.without(&format!("{what}: {error:#}"));
        None
    }

    /// Notes what cannot be had.
    fn without(&mut self, missing: &str) {
        self.say(&format!("goes without {missing}"));
        if !self.missing.iter().any(|it| it == missing) {
            self.missing.push(missing.to_owned());
        }
    }

    async fn row(&mut self, name: Name) -> Result<Section> {
        let value = name.to_possible_value();
        self.row = value.map_or(String::new(), |it| it.get_name().to_owned());
        let section = match name {
            Name::Enter => enter::run(self).await,
            Name::Status => status::run(self).await,
            Name::Check => check::run(self).await,
            Name::Lines => enter::many_lines(self).await,
            Name::Loops => variants::loops(self).await,
            Name::Links => variants::links(self).await,
            Name::Visit => visit::run(self).await,
            Name::Burst => visit::burst(self).await,
            Name::Shoppers => crowd::shoppers(self).await,
            Name::Watchers => crowd::watchers(self).await,
            Name::Idle => memory::nothing(self).await,
            Name::ManyLines => memory::many_lines(self).await,
            Name::LargeLine => memory::large_line(self).await,
            Name::Counters => memory::counters(self).await,
            Name::Tools => tools::run(self).await,
        };
        let section = section.with_context(|| self.row.clone())?;
        Ok(Section {
            name: self.row.clone(),
            ..section
        })
    }
}

/// Measures, and tells.
///
/// # Errors
/// A cluster cannot be started or prepared.
pub async fn run(args: BenchArgs) -> Result<ExitCode> {
    let began = Instant::now();
    let other = args.binary.is_some();
    if let Some(binary) = args.binary {
        use_program(binary.canonicalize().context("--binary")?)?;
    }
    let mut names = args.names;
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        names = Name::value_variants().to_vec();
    }
    let progress = Progress::new(None, "{spinner} {msg}  {elapsed}");
    progress.bar.enable_steady_tick(Duration::from_millis(200));
    let build = build(other).await?;
    let mut bench = Bench {
        rounds: args.rounds,
        measured: Duration::from_millis(args.measure_ms),
        quick: args.quick,
        progress,
        row: String::new(),
        versions: vec![build],
        missing: Vec::new(),
    };
    let mut sections = Vec::new();
    for name in names {
        let section = bench.row(name).await?;
        bench
            .progress
            .bar
            .suspend(|| println!("{}", section.text()));
        sections.push(section);
    }
    let report = Report {
        date: said("date", &["-u", "+%Y-%m-%d"])?,
        machine: Machine::look(&std::env::temp_dir())?,
        versions: bench.versions,
        missing: bench.missing,
        rounds: bench.rounds,
        measured_ms: args.measure_ms,
        quick: bench.quick,
        sections,
        took_s: began.elapsed().as_secs(),
    };
    drop(bench.progress);
    println!("{}", report.circumstances().join("\n"));
    let (goals, met) = report.goals();
    println!("{met} of {goals} goals met");
    if let Some(file) = args.json {
        let json = serde_json::to_string_pretty(&report)?;
        std::fs::write(&file, json).with_context(|| file.display().to_string())?;
    }
    if let Some(folder) = args.write_docs {
        docs::write(&report, &folder)?;
    }
    Ok(ExitCode::from(u8::from(report.failed())))
}

/// What is measured: of these sources with their revision, where git tells it.
async fn build(other: bool) -> Result<String> {
    let build = nowserving_e2e::build().await?;
    if other {
        let version = build.split(',').next().unwrap_or(&build);
        return Ok(format!("{version} (another build)"));
    }
    let revision = said("git", &["describe", "--always", "--dirty"]);
    Ok(revision.map_or(build.clone(), |it| format!("{build} of {it}")))
}

/// What a program prints.
fn said(program: &str, args: &[&str]) -> Result<String> {
    let ran = Command::new(program).args(args).output();
    let ran = ran.with_context(|| format!("cannot start {program}"))?;
    ensure!(ran.status.success(), "{program}: {}", ran.status);
    Ok(String::from_utf8_lossy(&ran.stdout).trim().to_owned())
}
