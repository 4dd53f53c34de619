//! A crowd of browsers before gateways that run already: with the books that `nowserving crowd` keeps, but as browsers saw
//! it. Also how long a move takes to thousands of streams, and how many checks of admitted visitors a gateway answers.

mod browser;
mod checks;
mod shopper;
mod streams;
mod wire;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nowserving_client::{Client, ClientOptions, Create, Delete, Line, SettingsPatch};
use nowserving_tools::crowd::audit::audit;
use nowserving_tools::crowd::ledger::Ledger;
use nowserving_tools::crowd::plan::{Plan, Size};
use nowserving_tools::crowd::{Crowd, Outcome, create_line};
use tokio::task::JoinSet;

use self::browser::Gateways;

/// How long the gateways may take to know the line.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// A crowd of browsers before gateways
#[derive(clap::Args)]
pub struct WebArgs {
    /// The gateways, as 127.0.0.1:8090,127.0.0.1:8091. Each believes the forwarded headers of this machine
    #[arg(long, value_delimiter = ',', required = true)]
    gateways: Vec<SocketAddr>,
    /// The cluster's NATS server
    #[arg(long, default_value = "nats://127.0.0.1:4222")]
    nats: String,
    /// The line that the gateways have before /checkout. It is made, and deleted in the end
    #[arg(long, default_value = "crowd-http")]
    line: String,
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Visitors come, wait on the page, are let in, buy, leave or vanish; do to gateways and cluster whatever you like
    Crowd {
        #[arg(long, default_value_t = 1_000)]
        visitors: u32,
        #[arg(long, default_value_t = 50)]
        seats: u32,
        /// Seconds
        #[arg(long = "for", default_value_t = 60)]
        lasts_s: u64,
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Opens streams of visitors who wait, and measures when each hears of a move
    Streams(streams::StreamsArgs),
    /// Admitted visitors ask for pages of the shop, as fast as the gateways answer
    Checks(checks::ChecksArgs),
}

pub async fn run(args: WebArgs) -> Result<ExitCode> {
    let mut options = ClientOptions::default();
    options.deadline = Duration::from_secs(30);
    let client = Client::connect_with(&args.nats, options).await?;
    let gateways = Arc::new(Gateways::new(args.gateways.clone()));
    let stage = Stage {
        client,
        gateways,
        addresses: args.gateways,
        name: args.line,
    };
    match args.what {
        What::Crowd {
            visitors,
            seats,
            lasts_s,
            seed,
        } => {
            let size = Size {
                shoppers: visitors,
                seats,
                lasts: Duration::from_secs(lasts_s),
            };
            crowd(&stage, seed, size).await
        }
        What::Streams(args) => streams::run(&stage, args).await,
        What::Checks(args) => checks::run(&stage, args).await,
    }
}

/// A cluster, and gateways before it.
struct Stage {
    client: Client,
    gateways: Arc<Gateways>,
    addresses: Vec<SocketAddr>,
    name: String,
}

impl Stage {
    /// A new line with these settings, known to the gateways.
    async fn line(&self, settings: SettingsPatch) -> Result<Line> {
        self.delete().await;
        let create = Create { settings };
        self.client
            .admin()
            .line(&self.name)?
            .create(&create)
            .await?;
        self.ready().await?;
        Ok(self.client.line(&self.name)?)
    }

    async fn ready(&self) -> Result<()> {
        let ready = async {
            for address in &self.addresses {
                loop {
                    let wish = wire::Wish::get("/readyz").with("Host", "gateway");
                    if let Ok(mut wire) = wire::Wire::open(*address).await
                        && let Ok(head) = wire.ask(&wish).await
                        && head.status == 200
                    {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        };
        let ready = tokio::time::timeout(READY_WITHIN, ready).await;
        ready.context("a gateway is not ready: GET /readyz says why")
    }

    async fn delete(&self) {
        let everybody = Delete {
            force: true,
            ..Delete::default()
        };
        if let Ok(line) = self.client.admin().line(&self.name) {
            // There may be none.
            let _ = line.delete(&everybody).await;
        }
    }
}

async fn crowd(stage: &Stage, seed: u64, size: Size) -> Result<ExitCode> {
    let Plan { parts, mut times } = Plan::draw(seed, size);
    // A gateway may die: its visitors come back after up to ten seconds, and none of them is to be taken for gone.
    times.waiting_idle = Duration::from_secs(40);
    times.claim = Duration::from_secs(12);
    times.checkout = Duration::from_secs(15);
    times.deadline = size.lasts * 4 + Duration::from_secs(60);
    stage.delete().await;
    let line = create_line(&stage.client, &stage.name, size, times).await?;
    stage.ready().await?;
    let nodes = stage.client.admin().cluster_status().await?.nodes.len();
    let crowd = Arc::new(Crowd::new(line, times, Ledger::new(nodes, size)));
    let mut visits: JoinSet<()> = parts
        .into_iter()
        .map(|part| shopper::visit(Arc::clone(&crowd), Arc::clone(&stage.gateways), part))
        .collect();
    while let Some(visit) = visits.join_next().await {
        if let Err(error) = visit {
            crowd.trouble(format!("a visitor broke down: {error}"));
        }
    }
    audit(Arc::clone(&crowd)).await;
    let outcome = Outcome::of(&crowd);
    if outcome.is_well() {
        stage.delete().await;
    }
    outcome.tell(false)
}
