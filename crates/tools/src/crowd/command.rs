//! `nowserving crowd`: a crowd in front of a cluster that runs already.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use nowserving_client::{Client, Delete};
use tokio::task::JoinSet;

use super::audit::audit;
use super::ledger::Ledger;
use super::plan::{Plan, Size};
use super::{Crowd, Outcome, create_line, shopper};
use nowserving_terminal::global::Global;
use nowserving_terminal::progress::Progress;
use nowserving_terminal::{duration, number};

/// Sends a crowd of shoppers to a running cluster and checks each answer.
///
/// The crowd takes numbers in a line of its own, waits, buys, leaves or vanishes, while you do to the cluster
/// whatever you like. In the end every number that was given is asked about once more. Ends with a table, or
/// with --json with one line of JSON. Exit code 1 if a seat was oversold, a token overtaken, a number
/// issued twice, a token lost, or a shopper could not go on.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nowserving crowd --shoppers 5000 --for 5m
  nowserving crowd --for 2m --seed 7 --json")]
pub struct CrowdArgs {
    /// How many shoppers come.
    // As many tokens that are gone are remembered with their reason.
    #[arg(long, default_value_t = 2000, value_parser = number::between::<u32>(1..=50_000))]
    shoppers: u32,
    /// How many can be in checkout at once.
    #[arg(long, default_value_t = 50, value_parser = number::between::<u32>(1..=10_000))]
    seats: u32,
    /// For how long they keep the line busy, 5s to 24h.
    #[arg(
        long = "for", value_name = "TIME", default_value = "1m",
        value_parser = duration::between(5_000..=86_400_000)
    )]
    lasts_ms: u64,
    /// Determines arrivals and behaviour; random if not given, and printed.
    #[arg(long, value_parser = number::between::<u64>(0..=u64::MAX))]
    seed: Option<u64>,
}

/// Runs the crowd until its last token has ended.
///
/// # Errors
/// The cluster cannot be reached, or refuses the line.
pub async fn run(args: CrowdArgs, global: &Global) -> anyhow::Result<ExitCode> {
    let seed = args.seed.unwrap_or_else(|| rand::random::<u32>().into());
    eprintln!("seed {seed}");
    let size = Size {
        shoppers: args.shoppers,
        seats: args.seats,
        lasts: Duration::from_millis(args.lasts_ms),
    };
    let Plan { parts, times } = Plan::draw(seed, size);
    let client = global.connect().await?;
    let nodes = client.admin().cluster_status().await?.nodes.len();
    // A call is repeated until the crowd must be through: a shopper does not go home because the shop is slow.
    let client = client.with_deadline(times.deadline);
    let name = format!("crowd-{seed}");
    let line = create_line(&client, &name, size, times).await?;
    let crowd = Arc::new(Crowd::new(line, times, Ledger::new(nodes, size)));
    let visits: JoinSet<()> = parts
        .into_iter()
        .map(|part| shopper::visit(Arc::clone(&crowd), part))
        .collect();
    attend(&crowd, visits, size).await;
    audit(Arc::clone(&crowd)).await;
    let outcome = Outcome::of(&crowd);
    if outcome.is_well() {
        delete_line(&client, &name).await;
    }
    outcome.tell(global.json)
}

/// Waits until the last shopper has gone.
async fn attend(crowd: &Crowd, mut visits: JoinSet<()>, size: Size) {
    let progress = Progress::new(
        Some(size.shoppers.into()),
        "{elapsed_precise} {bar:40} {pos} of {len} shoppers are through",
    );
    while let Some(visit) = visits.join_next().await {
        if let Err(error) = visit {
            crowd.trouble(format!("a shopper broke down: {error}"));
        }
        progress.bar.inc(1);
    }
}

/// The line has shown what it was for. Whoever needs it (see the exit code) finds it otherwise.
async fn delete_line(client: &Client, name: &str) {
    let Ok(line) = client.admin().line(name) else {
        return;
    };
    let everybody = Delete {
        force: true,
        ..Delete::default()
    };
    if let Err(error) = line.delete(&everybody).await {
        eprintln!("the line {name} could not be deleted: {error}");
    }
}
