//! A cluster that has grown from one node; its nodes die while they join, and lose their disks.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{Api, Cli, Cluster, HOUR_MS, Process, candidate, eventually, line_in};
use serde_json::{Value, json};

use crate::members::{PATIENCE, change, change_soon, joining, voters};

/// The cluster with its two added nodes.
struct Grown {
    api: Api,
    cli: Cli,
    line: String,
    added: [Process; 2],
}

impl Grown {
    async fn from_one(cluster: &Cluster) -> Result<Grown> {
        let (api, cli) = (cluster.api().clone(), Cli::new(cluster.nats.url()));
        let line = line_in(1, cluster.options().shards, "grown");
        let settings = json!({"seats": 1, "queue_limit": 10, "claim_timeout_ms": HOUR_MS});
        api.admin(&line, "create", settings).await?;
        added_while_dead(cluster, &cli).await?;
        let second = joining(cluster, "added-2").await?;
        change(&cli, &["status", "--wait"]).await?;
        let third = joining(cluster, "added-3").await?;
        candidate(&api).await?;
        change_soon(&cli, &["add-node"]).await?;
        ensure!(voters(&api).await? == BTreeSet::from([1, 2, 3]));
        Ok(Grown {
            api,
            cli,
            line,
            added: [second, third],
        })
    }

    /// The next number is this one.
    async fn enters(&self, number: u64) -> Result<()> {
        let body = json!({"key": format!("k{number}")});
        let token = self.api.ok(&self.line, "enter", body.clone()).await?;
        ensure!(token["token"] == number, "want {number}: {token}");
        Ok(())
    }

    /// The process of node 1 has lost its disk, and takes the place of node `lost`.
    async fn replace(&self, lost: u64) -> Result<Value> {
        let asks = candidate(&self.api).await?;
        // After the first time, number 1 is no member's.
        let number = (lost == 1).then_some(1);
        ensure!(asks["node"].as_u64() == number, "{asks}");
        change_soon(&self.cli, &["replace-node", &lost.to_string()]).await
    }
}

/// The operator adds node 2, which dies before it is told.
async fn added_while_dead(cluster: &Cluster, cli: &Cli) -> Result<()> {
    let reply = eventually("a dead node is added", PATIENCE, async || {
        let mut asking = joining(cluster, "added-2").await?;
        let asks = candidate(cluster.api()).await?;
        let disk = asks["disk"].as_str().context("disk")?;
        asking.kill().await?;
        let words = ["cluster", "add-node", disk, "--no-wait"];
        // On a slow machine it is forgotten by now, and asks again.
        Ok(cli.run(&words).await?.done().ok())
    });
    let reply = reply.await?;
    ensure!(reply["node"] == 2, "{reply}");
    Ok(())
}

fn lose_disk(cluster: &Cluster) -> Result<()> {
    Ok(std::fs::remove_dir_all(cluster.data_dir(1))?)
}

/// The founder's configuration names no other node, and it starts while no other one runs.
pub async fn founder_without_its_disk(cluster: &mut Cluster) -> Result<()> {
    let mut grown = Grown::from_one(cluster).await?;
    grown.enters(1).await?;
    cluster.process(1)?.kill().await?;
    for node in &mut grown.added {
        node.kill().await?;
    }
    lose_disk(cluster)?;
    cluster.start_node(1).await?;
    // It cannot know better yet.
    cluster.wait_serving(1).await?;
    grown.added = [
        joining(cluster, "added-2").await?,
        joining(cluster, "added-3").await?,
    ];
    let reply = grown.replace(1).await?;
    ensure!(reply["node"] == 4, "{reply}");
    ensure!(voters(&grown.api).await? == BTreeSet::from([2, 3, 4]));
    grown.enters(2).await?;

    // It loses its disk once more.
    cluster.process(1)?.kill().await?;
    lose_disk(cluster)?;
    cluster.start_node(1).await?;
    let reply = grown.replace(4).await?;
    ensure!(reply["node"] == 5, "{reply}");
    ensure!(voters(&grown.api).await? == BTreeSet::from([2, 3, 5]));
    grown.enters(3).await
}
