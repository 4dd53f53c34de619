//! `cargo xtask flame`: has `perf` look at the nodes and nats-server while they are asked.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use nowserving_e2e::{Options, use_program};
use nowserving_terminal::{duration, number};
use tokio::process::Command;

use super::asked::Asked;
use super::check::Checks;
use super::enter::MANY;
use super::lines::names;
use super::load::{Load, Requests, Source};
use super::ours::Ours;
use super::status::POLLED;

/// Samples a second and core: not a multiple of anything that happens at regular times.
const SAMPLES_HZ: &str = "997";
const WARM_UP: Duration = Duration::from_secs(1);

/// What is asked.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    /// Entering one line
    Enter,
    /// Entering 1,000 lines in turn
    Lines,
    /// `status` of 10,000 waiting tokens
    Status,
    /// Checks of a rate limit, of a million counters in any order
    Check,
}

/// Records where nodes and nats-server spend their processor time
#[derive(Debug, clap::Args)]
pub struct ProfileArgs {
    #[arg(value_enum)]
    what: What,
    /// Requests in flight
    #[arg(long, default_value_t = 64, value_parser = number::between::<u32>(1..=1_024))]
    in_flight: u32,
    /// How long, 1s to 1m
    #[arg(
        long = "measure", value_name = "TIME", default_value = "10s",
        value_parser = duration::between(1_000..=60_000)
    )]
    measure_ms: u64,
    /// A `nowserving` with frame pointers
    #[arg(long, value_name = "PATH")]
    binary: PathBuf,
    /// Where the samples go, in perf's format
    #[arg(long, value_name = "FILE")]
    record: PathBuf,
}

/// Asks and records.
///
/// # Errors
/// The cluster does not come up, requests fail, or `perf` cannot be started.
pub async fn run(args: ProfileArgs) -> Result<ExitCode> {
    use_program(args.binary.canonicalize().context("--binary")?)?;
    let mut cluster = Ours::start(Options::default()).await?;
    let source = source(&cluster, args.what).await?;
    let asked = Asked::Nats(Requests {
        nats: cluster.nats.clone(),
        source,
    });
    let load = Load {
        asked,
        counter: Arc::new(AtomicU64::new(0)),
    };
    let measured = Duration::from_millis(args.measure_ms);
    let asking = tokio::spawn(load.run(args.in_flight, WARM_UP, measured));
    tokio::time::sleep(WARM_UP).await;
    record(&mut cluster, &args).await?;
    let sample = asking.await??;
    let failures = &sample.tally.failures;
    ensure!(failures.is_empty(), "requests failed: {failures:?}");
    println!("{:.0} answers a second", sample.per_second);
    Ok(ExitCode::SUCCESS)
}

async fn source(cluster: &Ours, what: What) -> Result<Source> {
    let count = match what {
        What::Lines => MANY,
        What::Enter => 1,
        What::Status => {
            let polled = cluster.lines.fill_polled(&names(1)[0], POLLED).await?;
            return Ok(polled.source(polled.subject.clone()));
        }
        What::Check => return Checks::prepare(cluster).await?.filled(cluster).await,
    };
    let names = names(count);
    cluster.lines.create(&names, 1).await?;
    Ok(cluster.lines.enter_source(&names))
}

async fn record(cluster: &mut Ours, args: &ProfileArgs) -> Result<()> {
    let mut pids = vec![cluster.cluster.nats.process.pid()];
    for id in cluster.cluster.ids() {
        pids.push(cluster.cluster.process(id)?.pid());
    }
    let pids = pids.into_iter().collect::<Option<Vec<u32>>>();
    let pids = pids.context("a server has ended")?;
    let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>();
    let mut perf = Command::new("perf");
    perf.args(["record", "--quiet", "--call-graph", "fp", "--freq"])
        .args([SAMPLES_HZ, "--pid", &pids.join(","), "--output"])
        .arg(&args.record)
        .args(["--", "sleep"])
        .arg((args.measure_ms as f64 / 1e3).to_string());
    let ended = perf.status().await.context("cannot start perf")?;
    ensure!(ended.success(), "perf record: {ended}");
    Ok(())
}
