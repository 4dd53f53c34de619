//! `cargo xtask crowd-http`: a crowd of browsers before two gateways, with the books that `nowserving crowd` keeps, but as
//! browsers saw it. Also how long a move takes to thousands of streams, and how many checks of admitted visitors a gateway
//! answers.
//!
//! Each part has a cluster of its own: nats-server, three nodes and two gateways, all of them processes.

mod browser;
mod checks;
mod crowd;
mod shopper;
mod stage;
mod streams;
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use nowserving_e2e::{allow_open_files, use_program};
use nowserving_terminal::duration;
use nowserving_terminal::progress::Progress;
use serde::Serialize;

use crate::bench::Machine;

/// Open files beside streams.
const OTHER_FILES: u64 = 500;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Visitors come, wait on the page, are let in, buy, leave or vanish; meanwhile the leader is killed, and a gateway
    Crowd,
    /// Thousands watch their places by streams; then a gateway is killed, and the leader
    Streams,
    /// Admitted visitors ask for pages of the shop, at several loads
    Checks,
    /// All of these, one after the other
    All,
}

/// Puts a crowd of browsers before two gateways, and kills a leader and a gateway
///
/// Everything runs on this machine, in processes of its own. Exit code 1 if a book does not balance: somebody was
/// overtaken, a seat was sold twice, a number was lost, a watcher did not come back or with another number, or an admitted
/// visitor was not let in.
#[derive(Debug, clap::Args)]
pub struct CrowdHttpArgs {
    #[arg(value_enum, default_value = "all")]
    what: What,
    /// One line of JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Of the crowd
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    visitors: u32,
    /// Seats that the crowd shares
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seats: u32,
    /// How long the crowd takes if all goes well, 10s to 1h
    #[arg(
        long = "for", value_name = "TIME", default_value = "60s",
        value_parser = duration::between(10_000..=3_600_000)
    )]
    lasts_ms: u64,
    /// Of the crowd's dice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many watch by streams. A process may have some thousand open files: 18,000 need 20,000
    #[arg(long, default_value_t = 18_000, value_parser = clap::value_parser!(u32).range(10..=18_000))]
    watchers: u32,
    /// How many of them watch while the leader is killed
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=18_000))]
    leader_watchers: u32,
    /// Moves of the line while they watch, 3 s apart
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    moves: u32,
    /// Visitors in the shop whose requests are checked
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    holders: u32,
    /// How long each load of checks lasts, 1s to 1m
    #[arg(
        long = "measure", value_name = "TIME", default_value = "5s",
        value_parser = duration::between(1_000..=60_000)
    )]
    measure_ms: u64,
    /// The `nowserving` that is measured [default: built from these sources]
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// The line of JSON.
#[derive(Debug, Serialize)]
struct Report {
    build: String,
    machine: Machine,
    #[serde(skip_serializing_if = "Option::is_none")]
    crowd: Option<crowd::Section>,
    #[serde(skip_serializing_if = "Option::is_none")]
    streams: Option<streams::Section>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checks: Option<checks::Section>,
    is_well: bool,
}

/// What a part has found: whether it is as it should be, and its table.
trait Found {
    fn is_well(&self) -> bool;
    fn text(&self) -> String;
}

impl Report {
    fn told<F: Found>(&mut self, steps: &Steps, args: &CrowdHttpArgs, found: F) -> Option<F> {
        steps.print(args, &found.text());
        self.is_well &= found.is_well();
        Some(found)
    }
}

/// What a person who waits is shown on stderr.
pub struct Steps(Progress);

impl Steps {
    fn new() -> Steps {
        let progress = Progress::new(None, "{spinner} {msg}  {elapsed}");
        progress.bar.enable_steady_tick(Duration::from_millis(200));
        Steps(progress)
    }

    /// Something begins that takes a while.
    fn begin(&self, what: &str) {
        self.0.bar.set_message(what.to_owned());
        self.0.bar.tick();
        if self.0.bar.is_hidden() {
            self.0.say(what);
        }
    }

    /// What is under way.
    fn now(&self) -> String {
        self.0.bar.message()
    }

    /// A line that stays.
    fn say(&self, text: &str) {
        self.0.say(text);
    }

    /// A table, unless stdout has nothing but JSON.
    fn print(&self, args: &CrowdHttpArgs, text: &str) {
        if !args.json {
            self.0.bar.suspend(|| println!("{text}"));
        }
    }
}

/// Does all that was asked for, and tells.
///
/// # Errors
/// A process cannot be started, or the cluster does not come up.
pub async fn run(args: CrowdHttpArgs) -> Result<ExitCode> {
    if let Some(binary) = &args.binary {
        use_program(binary.canonicalize().context("--binary")?)?;
    }
    // The gateways do the same. Streams that cannot be opened are counted.
    allow_open_files(u64::from(args.watchers) + OTHER_FILES)?;
    let steps = Steps::new();
    let report = all_parts(&steps, &args)
        .await
        .with_context(|| steps.now())?;
    if args.json {
        drop(steps);
        println!("{}", serde_json::to_string(&report)?);
    }
    Ok(ExitCode::from(u8::from(!report.is_well)))
}

async fn all_parts(steps: &Steps, args: &CrowdHttpArgs) -> Result<Report> {
    steps.begin("building nowserving");
    let mut report = Report {
        build: nowserving_e2e::build().await?,
        machine: Machine::look(&std::env::temp_dir())?,
        crowd: None,
        streams: None,
        checks: None,
        is_well: true,
    };
    let head = format!("{}; {}", report.build, report.machine.text());
    steps.print(args, &head);
    let does = |what| args.what == what || args.what == What::All;
    if does(What::Crowd) {
        report.crowd = report.told(steps, args, crowd::run(steps, args).await?);
    }
    if does(What::Streams) {
        report.streams = report.told(steps, args, streams::run(steps, args).await?);
    }
    if does(What::Checks) {
        report.checks = report.told(steps, args, checks::run(steps, args).await?);
    }
    Ok(report)
}

/// Milliseconds below which this share of all times is; `times` are sorted.
fn quantile_ms(times: &[Duration], share: f64) -> u64 {
    let nth = (times.len() as f64 * share).ceil() as usize;
    let time = times.get(nth.max(1) - 1);
    time.map_or(0, |time| time.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_a_time_that_was_measured() {
        let times: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        let at = |share| quantile_ms(&times, share);
        assert_eq!([at(0.0), at(0.5), at(0.99), at(1.0)], [1, 100, 198, 200]);
        assert_eq!(quantile_ms(&[], 0.5), 0);
    }
}
