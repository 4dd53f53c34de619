//! What stands before browsers: a cluster of the end-to-end tests, and two gateways of it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nowserving_client::{Client, ClientOptions, Create, Line, SettingsPatch};
use nowserving_e2e::{Cluster, Gateway, Options, free_port};
use rustix::process::Signal;

use super::browser::Gateways;
use crate::cpu;

/// The line before the shop.
pub const LINE: &str = "crowd-http";
/// Where visitors want to go.
pub const SHOP: &str = "/checkout";
/// One gateway can have all watchers, while the other one is dead.
const CONFIGURATION: &str = r#"streams_max = 18500
connections_max = 19500

[[line]]
line = "crowd-http"
hosts = ["shop.example"]
paths = ["/checkout"]
"#;
/// A request to the cluster goes on while a leader is dead.
const DEADLINE: Duration = Duration::from_secs(30);

/// Nats-server, three nodes, two gateways.
pub struct Stage {
    pub cluster: Cluster,
    pub gateways: Vec<Gateway>,
    pub client: Client,
    /// The gateways as browsers find them.
    pub doors: Arc<Gateways>,
}

impl Stage {
    /// Starts all of it. There is no line yet.
    pub async fn start() -> Result<Stage> {
        let cluster = Cluster::start(Options::default()).await?;
        let mut gateways = Vec::new();
        for name in ["gateway-1", "gateway-2"] {
            let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
            gateways.push(Gateway::start(&cluster, name, addr, CONFIGURATION).await?);
        }
        let mut options = ClientOptions::default();
        options.deadline = DEADLINE;
        let client = Client::connect_with(&cluster.nats_urls(), options).await?;
        let addresses = gateways.iter().map(Gateway::addr).collect();
        Ok(Stage {
            cluster,
            gateways,
            client,
            doors: Arc::new(Gateways::new(addresses)),
        })
    }

    /// Makes the line, and waits until the gateways know it.
    pub async fn line(&self, settings: SettingsPatch) -> Result<Line> {
        let line = self.client.admin().line(LINE)?;
        line.create(&Create { settings }).await?;
        self.ready().await?;
        Ok(self.client.line(LINE)?)
    }

    /// Until all gateways know the line.
    pub async fn ready(&self) -> Result<()> {
        for gateway in &self.gateways {
            gateway.ready().await?;
        }
        Ok(())
    }

    /// Kill -9 of the node that leads the line's shard; `at_once` runs at that moment. Which node it was.
    pub async fn kill_leader(&mut self, at_once: impl FnOnce()) -> Result<u64> {
        let leader = self.cluster.leader_of(LINE).await?;
        let process = self.cluster.process(leader)?;
        process.signal(Signal::KILL)?;
        at_once();
        process.ended(DEADLINE).await?;
        Ok(leader)
    }

    /// The processes of the gateways.
    pub fn pids(&self) -> Result<Vec<u32>> {
        let pids = self.gateways.iter().map(|gateway| gateway.process.pid());
        pids.collect::<Option<_>>().context("a gateway has ended")
    }

    /// Where their processor time stands.
    pub fn cpu(&self) -> Result<Vec<PathBuf>> {
        Ok(self.pids()?.into_iter().map(cpu::of_pid).collect())
    }

    /// Their resident memory together.
    pub fn memory_kib(&self) -> Result<u64> {
        let gateways = self.gateways.iter();
        gateways.map(|it| it.process.memory_kib()).sum()
    }
}
