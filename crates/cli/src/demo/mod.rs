//! `nowserving demo`: a cluster on this machine, a crowd in front of it, and a leader that dies.

mod audit;
mod crowd;
mod director;
mod ledger;
mod plan;
mod report;
mod scene;
mod shopper;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nowserving_client::{Change, Client, Create, Line, SettingsPatch};
use tempfile::TempDir;

use crate::embedded::{Cluster, DataDir, Interrupts, NODES};
use crowd::{Crowd, Troubles};
use director::Director;
use plan::{Plan, Times};
use report::Report;
use scene::{Scene, Screen};

const LINE: &str = "demo";
/// The exit code of a program ended by SIGINT, as shells report it.
const INTERRUPTED: u8 = 130;

/// Runs a three-node cluster and a crowd of shoppers for about a minute, and kills the leader half
/// way.
///
/// Ends with a table and one line of JSON (with --json only that), counted by the crowd from the answers
/// that it received. Exit code 1 if a seat was oversold, a token overtaken, a number issued twice, or
/// a token lost.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// How many shoppers come.
    // The newest 65,536 tokens that are gone are remembered with their reason: all of these.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    shoppers: u32,
    /// How many can be in checkout at once.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seats: u32,
    /// Determines arrivals and behaviour; random if not given, and printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Keeps the cluster's data and logs in this new or empty directory.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// Runs the demo. `json`: nothing on stdout but the one line.
///
/// # Errors
/// The cluster cannot be started, or fails in a way that is not part of the show.
pub async fn run(args: DemoArgs, json: bool) -> anyhow::Result<ExitCode> {
    let mut interrupts = Interrupts::listen()?;
    let seed = args.seed.unwrap_or_else(|| rand::random::<u32>().into());
    // Declared before the cluster: removed after its processes are gone.
    let place = Place::choose(args.keep.as_deref())?;
    let mut screen = Screen::new(json)?;
    eprintln!("seed {seed}");
    let start = Cluster::start(DataDir::open(place.path())?, "demo", None);
    let mut cluster = tokio::select! {
        cluster = start => cluster?,
        _ = interrupts.next() => return Ok(ExitCode::from(INTERRUPTED)),
    };
    let outcome = tokio::select! {
        outcome = perform(&mut cluster, &args, seed, &mut screen) => outcome.map(Some),
        _ = interrupts.next() => Ok(None),
    };
    screen.clear();
    tokio::select! {
        _ = cluster.stop() => {}
        // Interrupted a second time: dropping the cluster kills the remaining processes.
        _ = interrupts.next() => {}
    }
    match outcome? {
        Some(outcome) => outcome.tell(json),
        None => Ok(ExitCode::from(INTERRUPTED)),
    }
}

async fn perform(
    cluster: &mut Cluster,
    args: &DemoArgs,
    seed: u64,
    screen: &mut Screen,
) -> anyhow::Result<Outcome> {
    let &DemoArgs {
        shoppers, seats, ..
    } = args;
    screen.say("starting nats-server and three nodes");
    cluster
        .wait_ready(&mut |waiting_for| screen.say(&waiting_for))
        .await?;
    let Plan { parts, times } = Plan::draw(seed, shoppers, seats);
    let client = Client::connect(cluster.url()).await?;
    let line = create_line(&client, shoppers, seats, times).await?;
    let crowd = Arc::new(Crowd::new(line, times));
    let scene = Scene {
        seed,
        shoppers,
        seats,
        ..Scene::default()
    };
    Director::new(cluster, Arc::clone(&crowd), screen, scene)
        .run(parts)
        .await?;
    let (tally, took) = crowd.note(|book, at| (book.tally(at, seats), at));
    Ok(Outcome {
        report: Report::new(&tally, NODES.len(), shoppers, seats, took),
        faults: tally.faults(seats),
        troubles: crowd.troubles(),
    })
}

async fn create_line(
    client: &Client,
    shoppers: u32,
    seats: u32,
    times: Times,
) -> anyhow::Result<Line> {
    let settings = SettingsPatch {
        seats: Some(Change::Set(seats)),
        // Room for all of them: a refused shopper would show nothing.
        queue_limit: Some(Change::Set(shoppers)),
        waiting_idle_timeout_ms: set_ms(times.waiting_idle),
        claim_timeout_ms: set_ms(times.claim),
        checkout_timeout_ms: set_ms(times.checkout),
        ..SettingsPatch::default()
    };
    let created = client
        .admin()
        .line(LINE)?
        .create(&Create { settings })
        .await;
    created.context("cannot create the line")?;
    Ok(client.line(LINE)?)
}

fn set_ms(duration: Duration) -> Option<Change<u64>> {
    u64::try_from(duration.as_millis()).ok().map(Change::Set)
}

/// How it went.
struct Outcome {
    report: Report,
    faults: Vec<String>,
    troubles: Troubles,
}

impl Outcome {
    fn tell(&self, json: bool) -> anyhow::Result<ExitCode> {
        let Outcome {
            report,
            faults,
            troubles,
        } = self;
        let mut out = std::io::stdout().lock();
        if !json {
            writeln!(out, "{}", report.table())?;
        }
        writeln!(out, "{}", serde_json::to_string(report)?)?;
        for fault in faults {
            eprintln!("FAULT: {fault}");
        }
        if troubles.count > 0 {
            eprintln!("{} shoppers could not go on, among them:", troubles.count);
            for text in &troubles.first {
                eprintln!("  {text}");
            }
        }
        let well = faults.is_empty() && troubles.count == 0;
        Ok(if well {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

/// Where the cluster keeps its data.
enum Place {
    /// Removed in the end.
    Temporary(TempDir),
    Kept(PathBuf),
}

impl Place {
    fn choose(keep: Option<&Path>) -> anyhow::Result<Place> {
        let Some(path) = keep else {
            let dir = tempfile::Builder::new()
                .prefix("nowserving-demo-")
                .tempdir();
            return Ok(Place::Temporary(
                dir.context("cannot make a temporary directory")?,
            ));
        };
        let is_free = std::fs::read_dir(path).map_or(true, |mut entries| entries.next().is_none());
        ensure!(
            is_free,
            "{} is not empty: the demo begins with a new cluster",
            path.display()
        );
        Ok(Place::Kept(path.to_owned()))
    }

    fn path(&self) -> &Path {
        match self {
            Place::Temporary(dir) => dir.path(),
            Place::Kept(path) => path,
        }
    }
}
