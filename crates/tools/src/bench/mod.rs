//! `nowserving bench`: the requests a second of the cluster, beside those of bare NATS on this machine.
//!
//! Numbers of one machine at one moment mean little, so everything is measured in one run, in turns,
//! and what counts is the ratio of `status` to an echo that carries the same bytes.

pub mod echo;
mod lines;
pub mod load;
pub mod machine;
mod plan;
pub mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use nowserving_client::Client;
use nowserving_rehearse::count;

use crate::embedded::{Cluster, INTERRUPTED, NODES, temporary_dir, with_cluster};
use echo::Echo;
pub use lines::settle;
use lines::{Lines, Polled};
use load::{Load, Requests, Source};
use machine::Machine;
use nowserving_terminal::duration;
use nowserving_terminal::number;
use nowserving_terminal::output::Output;
use nowserving_terminal::progress::Progress;
use plan::{Plan, What};
use report::{Failures, Report, Rounds};

/// Before each cell, not measured: connections, caches and the scheduler come to rest.
pub const WARM_UP: Duration = Duration::from_millis(500);

/// Measures a three-node cluster on this machine beside a bare NATS echo.
///
/// In rounds, so that all of them meet the same noise: an echo of our own that answers with as many
/// bytes as `status` does, `status` of waiting tokens, `enter` on one line and on many. Exit code 1 if any request failed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
How to read it: requests/s and times are medians over the rounds, with the smallest and largest in
brackets; `of echo` compares status with the echo of the same round.

Examples:
  nowserving bench
  nowserving bench --measure 10s --rounds 5 --json
  nowserving bench --only echo,status --in-flight 64")]
pub struct BenchArgs {
    #[command(flatten)]
    pub pace: Pace,
    /// Measures only these.
    #[arg(long, value_name = "WHAT,…", value_delimiter = ',', value_enum, default_values_t = What::ALL)]
    only: Vec<What>,
    /// The cluster's temporary data is made in this directory: `enter` is as fast as its disk
    /// syncs [default: the system's directory for temporary files].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// How often and how long each cell is measured, and how many requests are under way.
#[derive(Debug, Clone, clap::Args)]
pub struct Pace {
    /// How long each cell is measured in each round, after half a second of warming up, 1s to 1m.
    // A minute of entering is over a million tokens in a line, which holds ten million.
    #[arg(
        long = "measure", value_name = "TIME", default_value = "3s",
        value_parser = duration::between(1_000..=60_000)
    )]
    pub measure_ms: u64,
    /// How often everything is measured.
    #[arg(long, default_value_t = 3, value_parser = number::between::<u32>(1..=20))]
    pub rounds: u32,
    /// How many requests are under way at once.
    #[arg(
        long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 64, 256],
        value_parser = number::between::<u32>(1..=4_096)
    )]
    in_flight: Vec<u32>,
}

impl Pace {
    /// How long a cell is measured in a round.
    pub fn measured(&self) -> Duration {
        Duration::from_millis(self.measure_ms)
    }

    /// The numbers of requests under way, each once, in order.
    pub fn in_flight(&self) -> Vec<u32> {
        let mut in_flight = self.in_flight.clone();
        in_flight.sort_unstable();
        in_flight.dedup();
        in_flight
    }
}

/// Runs the benchmark.
///
/// # Errors
/// The cluster cannot be started or prepared.
pub async fn run(args: BenchArgs, output: &Output) -> anyhow::Result<ExitCode> {
    // Declared before the cluster: removed after its processes are gone.
    let dir = temporary_dir("nowserving-bench-", args.data_dir.as_deref())?;
    let work = async |cluster: &mut Cluster| measure(cluster, &args).await;
    let Some(report) = with_cluster(dir.path(), "bench", work).await? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    output.answer(&report, Report::text)?;
    Ok(report::told(&report.failures))
}

async fn measure(cluster: &mut Cluster, args: &BenchArgs) -> anyhow::Result<Report> {
    let plan = Plan::new(args);
    let cells = plan.cells().count() as u64 * u64::from(plan.rounds);
    let progress = Progress::new(Some(cells), "{wide_bar} {pos}/{len}  {msg}  {eta} left");
    progress.say("starting nats-server and three nodes");
    cluster
        .wait_ready(&mut |waiting_for| progress.say(&waiting_for))
        .await?;
    let dir = cluster.dir().path();
    let mut bench = Bench::prepare(cluster.url(), plan, progress).await?;
    let machine = Machine::look(dir, &bench.nats)?;
    bench.all_rounds().await?;
    let Bench {
        plan,
        polled,
        rounds,
        failures,
        ..
    } = bench;
    Ok(Report::new(
        machine, &plan, &polled, &rounds, failures, &NODES,
    ))
}

/// Everything that a cell needs.
struct Bench {
    plan: Plan,
    lines: Lines,
    polled: Polled,
    /// The requester's connection; what prepares the lines has another.
    nats: async_nats::Client,
    echo: Echo,
    /// Numbers every request of the run: keys made of it are unique.
    counter: Arc<AtomicU64>,
    progress: Progress,
    rounds: Rounds,
    failures: Failures,
}

impl Bench {
    async fn prepare(url: &str, plan: Plan, progress: Progress) -> anyhow::Result<Bench> {
        let client = Client::connect(url).await?;
        let lines = Lines::new(client.clone(), plan.idle_timeout()).await?;
        progress.say("waiting until the shards' leaders stay where they are");
        settle(&client).await?;
        progress.say(&format!("entering {} tokens to ask for", lines::POLLED));
        let polled = lines.fill_polled().await?;
        let echo = Echo::start(url, polled.subject.len(), polled.answer_bytes)?;
        let nats = async_nats::connect(url).await?;
        Ok(Bench {
            plan,
            lines,
            polled,
            nats,
            echo,
            counter: Arc::default(),
            progress,
            rounds: BTreeMap::new(),
            failures: BTreeMap::new(),
        })
    }

    /// Round by round, so that each round has the echo and the cells compared with it side by side.
    async fn all_rounds(&mut self) -> anyhow::Result<()> {
        for round in 1..=self.plan.rounds {
            for (in_flight, what) in self.plan.cells().collect::<Vec<_>>() {
                let cell = format!(
                    "round {round} of {}: {what}, {in_flight} in flight",
                    self.plan.rounds
                );
                self.progress.bar.set_message(cell.clone());
                self.progress.bar.tick();
                let source = self.source(what).await?;
                let load = Load {
                    asked: Requests {
                        nats: self.nats.clone(),
                        source,
                    },
                    counter: self.counter.clone(),
                };
                let sample = load.run(in_flight, WARM_UP, self.plan.measured).await?;
                self.progress.bar.inc(1);
                let per_second = count(sample.per_second.round_ties_even() as u64);
                self.progress.say(&format!("{cell}: {per_second}/s"));
                for (failure, count) in &sample.tally.failures {
                    let failure = format!("{what}: {failure}");
                    *self.failures.entry(failure).or_default() += count;
                }
                let samples = self.rounds.entry((in_flight, what)).or_default();
                samples.push(sample);
                self.clear(what).await?;
            }
        }
        Ok(())
    }

    /// Where a cell's requests come from. Lines to enter are made new for each cell: all of them
    /// measure the same, and memory stays bounded.
    async fn source(&self, what: What) -> anyhow::Result<Source> {
        Ok(match what {
            What::Echo => self.polled.source(self.echo.subject.clone()),
            What::Status => self.polled.source(self.polled.subject.clone()),
            What::EnterOne | What::EnterMany => {
                let names = what.entered_lines();
                self.lines.create(&names).await?;
                self.lines.enter_source(&names)
            }
        })
    }

    async fn clear(&self, what: What) -> anyhow::Result<()> {
        self.lines.delete(&what.entered_lines()).await
    }
}
