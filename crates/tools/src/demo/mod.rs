//! `nowserving demo`: a cluster on this machine, a crowd in front of it, and a leader that dies.

mod director;
mod drama;
mod limits;
mod scene;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use nowserving_client::Client;
use nowserving_protocol::subject::shard_of;

use crate::crowd::ledger::Ledger;
use crate::crowd::plan::{Plan, Size};
use crate::crowd::{Crowd, Outcome, create_line};
use crate::embedded::{Cluster, INTERRUPTED, NODES, temporary_dir, with_cluster};
use director::Director;
use drama::Drama;
use nowserving_terminal::number;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::web::{self, Web};
use scene::{Scene, Screen};

const LINE: &str = "demo";
/// What to do after the show.
const NEXT: &str = "\
Next, a line of your own (`nowserving` is target/release/nowserving if you have built it here):
  nowserving dev --data-dir ./dev-data                 a cluster that stays
  nowserving line create shop-1 --seats 1 --queue-limit 100
  nowserving enter shop-1 --key order-1001
  nowserving watch shop-1                              the board, live";
/// From the first arrival until the last shopper is through, if all goes well.
const SHOW: Duration = Duration::from_secs(60);

/// Runs a three-node cluster and a crowd of shoppers for about a minute, and kills the leader half
/// way; with --limits, clients of rate limits instead of shoppers; with --web, a shop in your browser as well.
///
/// Ends with a table (with --json: one line of JSON instead), counted by the crowd from the answers
/// that it received. Exit code 1 if a seat was oversold, a token overtaken, a number issued twice, or
/// a token lost; with --limits, if more went on in any second, or any five, than a limit allows, if the
/// next leader forgot more than the hits of a second, or if a request was not answered.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// How many shoppers come.
    // The newest 65,536 tokens that are gone are remembered with their reason: all of these.
    #[arg(long, default_value_t = 2000, value_parser = number::between::<u32>(1..=50_000))]
    shoppers: u32,
    /// How many can be in checkout at once.
    #[arg(long, default_value_t = 50, value_parser = number::between::<u32>(1..=10_000))]
    seats: u32,
    /// Determines arrivals and behaviour; random if not given, and printed.
    #[arg(long, value_parser = number::between::<u64>(0..=u64::MAX))]
    seed: Option<u64>,
    /// Keeps the cluster's data and logs in this new or empty directory.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Shows rate limits instead: clients that share limits of each algorithm, and a leader that dies.
    #[arg(long, conflicts_with_all = ["shoppers", "seats", "seed"])]
    limits: bool,
    /// Also opens a shop in front of the same line for your browser, at this port of 127.0.0.1, until Ctrl-C.
    #[arg(
        long,
        value_name = "PORT",
        num_args = 0..=1,
        default_missing_value = "8080",
        conflicts_with = "limits",
        value_parser = number::between::<u16>(1..=65_535)
    )]
    web: Option<u16>,
}

/// Runs the demo. `json`: nothing on stdout but the one line.
///
/// # Errors
/// The port of --web is taken, or the cluster cannot be started or fails in a way that is not part of the show.
pub async fn run(args: DemoArgs, json: bool) -> anyhow::Result<ExitCode> {
    let listener = web::listen(args.web).await?;
    // Declared before the cluster: removed after its processes are gone.
    let temporary;
    let dir = match &args.keep {
        Some(dir) => {
            check_free(dir)?;
            dir
        }
        None => {
            temporary = temporary_dir("nowserving-demo-")?;
            temporary.path()
        }
    };
    // Gone with the show, so that what is printed after it is not drawn over.
    let screen = Screen::new(json);
    if args.limits {
        let show = async |cluster: &mut Cluster| limits::perform(cluster, screen).await;
        return match with_cluster(dir, "demo", show).await? {
            Some(report) => report.tell(json),
            None => Ok(ExitCode::from(INTERRUPTED)),
        };
    }
    let seed = args.seed.unwrap_or_else(|| rand::random::<u32>().into());
    eprintln!("seed {seed}");
    let show = async |cluster: &mut Cluster| {
        let (outcome, web) = perform(cluster, &args, listener, seed, screen).await?;
        let code = outcome.tell(json)?;
        if let Some((url, open)) = web {
            eprintln!("the crowd has gone; the shop stays open until Ctrl-C: {url}");
            let _ = open.await;
        } else if !json {
            eprintln!("{NEXT}");
        }
        Ok(code)
    };
    let ended = with_cluster(dir, "demo", show).await?;
    Ok(ended.unwrap_or(ExitCode::from(INTERRUPTED)))
}

/// Where shop and dashboard are, and the task that runs both.
type Opened = (String, JoinHandle<()>);

/// The demo begins with a new cluster.
fn check_free(dir: &Path) -> anyhow::Result<()> {
    let is_free = std::fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none());
    let shown = dir.display();
    ensure!(
        is_free,
        "{shown} is not empty: the demo begins with a new cluster"
    );
    Ok(())
}

async fn perform(
    cluster: &mut Cluster,
    args: &DemoArgs,
    listener: Option<TcpListener>,
    seed: u64,
    mut screen: Screen,
) -> anyhow::Result<(Outcome, Option<Opened>)> {
    let size = Size {
        shoppers: args.shoppers,
        seats: args.seats,
        lasts: SHOW,
    };
    screen.say("starting nats-server and three nodes");
    cluster
        .wait_ready(&mut |waiting_for| screen.say(&waiting_for))
        .await?;
    let Plan { parts, times } = Plan::draw(seed, size);
    let client = Client::connect(cluster.url()).await?;
    // A call is repeated until the show must be over: a shopper does not go home because the shop is
    // slow.
    let client = client.with_deadline(times.deadline);
    let line = create_line(&client, LINE, size, times).await?;
    let web = match listener {
        Some(listener) => {
            let web = Web::open(listener, client.clone(), line.name()).await?;
            let url = web.urls();
            screen.say(&format!("wait in line with the crowd, in a browser: {url}"));
            Some((url, tokio::spawn(web.run())))
        }
        None => None,
    };
    let shard = shard_of(LINE, drama::shards(&client).await?);
    let drama = Drama::new(&client, shard, times.kill, times.restart);
    let crowd = Arc::new(Crowd::new(line, times, Ledger::new(NODES.len(), size)));
    let scene = Scene {
        seed,
        ..Scene::default()
    };
    Director::new(cluster, Arc::clone(&crowd), &mut screen, scene, drama)
        .run(parts)
        .await?;
    Ok((Outcome::of(&crowd), web))
}
