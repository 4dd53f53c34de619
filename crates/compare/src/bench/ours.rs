//! Three nodes, their nats-server, and what the system tells of their processes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nowserving_client::Client;
use nowserving_e2e::{Cluster, Options};
use rustix::process::Signal;

use super::lines::{Lines, settle};
use crate::cpu;

const END: Duration = Duration::from_secs(60);
/// Memory is looked at once what was allocated for a moment is given back, and snapshots are made.
const REST: Duration = Duration::from_secs(30);

/// A running cluster. It ends when this is dropped.
pub struct Ours {
    pub cluster: Cluster,
    pub client: Client,
    /// The requester's connection; what prepares lines has the client's.
    pub nats: async_nats::Client,
    pub lines: Lines,
}

impl Ours {
    /// Starts it, and waits until its leaders stay where they are.
    ///
    /// # Errors
    /// It does not come up.
    pub async fn start(options: Options) -> Result<Ours> {
        let cluster = Cluster::start(options).await?;
        let url = cluster.nats.url();
        let client = Client::connect(&url).await?;
        settle(&client).await?;
        Ok(Ours {
            lines: Lines::new(client.clone()).await?,
            nats: async_nats::connect(&url).await?,
            cluster,
            client,
        })
    }

    /// Where the processor time of the nodes stands.
    ///
    /// # Errors
    /// One has ended.
    pub fn nodes(&mut self) -> Result<Vec<PathBuf>> {
        let ids = self.cluster.ids();
        ids.map(|id| cpu::of(self.cluster.process(id)?)).collect()
    }

    /// The same of nats-server.
    ///
    /// # Errors
    /// It has ended.
    pub fn nats_server(&self) -> Result<PathBuf> {
        cpu::of(&self.cluster.nats.process)
    }

    /// The memory of the largest node after a rest, in MiB.
    ///
    /// # Errors
    /// One has ended.
    pub async fn memory_mib(&mut self) -> Result<f64> {
        tokio::time::sleep(REST).await;
        let mut largest = 0.0_f64;
        for id in self.cluster.ids() {
            let kib = self.cluster.process(id)?.memory_kib()?;
            largest = largest.max(kib as f64 / 1_024.0);
        }
        Ok(largest)
    }

    /// What the nodes together take of a core while nothing is asked, in percent.
    ///
    /// # Errors
    /// One has ended.
    pub async fn idle_percent(&mut self, watched: Duration) -> Result<f64> {
        let nodes = self.nodes()?;
        let (before, began) = (cpu::spent(&nodes), Instant::now());
        tokio::time::sleep(watched).await;
        let spent = before.zip(cpu::spent(&nodes)).map(|(a, b)| b - a);
        let spent = spent.context("the system does not tell processor time")?;
        Ok(spent.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0)
    }

    /// Kills all nodes, starts them again and waits until every shard is served; returns how long that took from
    /// the start on, in seconds.
    ///
    /// # Errors
    /// They do not come back.
    pub async fn restart_s(&mut self) -> Result<f64> {
        let ids: Vec<u64> = self.cluster.ids().collect();
        for id in &ids {
            self.cluster.process(*id)?.signal(Signal::KILL)?;
        }
        for id in &ids {
            self.cluster.process(*id)?.ended(END).await?;
        }
        let began = Instant::now();
        for id in &ids {
            self.cluster.start_node(*id).await?;
        }
        self.cluster.wait_served().await?;
        let took = began.elapsed();
        settle(&self.client).await?;
        Ok(took.as_secs_f64())
    }
}
