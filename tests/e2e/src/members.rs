//! The members of a cluster, as operators see and change them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::api::{Api, number};
use crate::cli::Cli;
use crate::cluster::Cluster;
use crate::wait::eventually;

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a node asks to be added.
///
/// # Errors
/// None does.
pub async fn candidate(api: &Api) -> Result<Value> {
    eventually("a node asks to be added", PATIENCE, async || {
        let status = api.cluster("status", json!({})).await?;
        let candidates = status["members"]["candidates"].as_array();
        Ok(candidates.and_then(|it| it.first()).cloned())
    })
    .await
}

impl Cluster {
    /// What `cluster status` says of node `id`, which may have another number by now.
    ///
    /// # Errors
    /// It is not a member, or not alive.
    pub async fn status_of(&self, id: u64) -> Result<Value> {
        let address = self.metrics_addr(id)?.to_string();
        let status = self.api().cluster("status", json!({})).await?;
        let nodes = status["nodes"].as_array().context("nodes")?;
        let mut such = nodes
            .iter()
            .filter(|it| it["metrics_addr"] == address && it["alive"] == true);
        let found = such.next().cloned();
        found.with_context(|| format!("node {id} is not there: {status}"))
    }

    /// Waits until node `id` itself says that it serves: what others say of it may be of its last start.
    ///
    /// # Errors
    /// It does not.
    pub async fn wait_serving(&self, id: u64) -> Result<()> {
        eventually("the node serves", PATIENCE, async || {
            let (code, _) = self.http(id, "/readyz").await?;
            Ok((code == 200).then_some(()))
        })
        .await
    }

    /// The number that node `id` has now.
    ///
    /// # Errors
    /// It is not a member, or not alive.
    pub async fn number_of(&self, id: u64) -> Result<u64> {
        eventually("the node is a member", PATIENCE, async || {
            number(&self.status_of(id).await?, "id").map(Some)
        })
        .await
    }

    /// Runs `cluster replace-node`, which waits until the node that asks to be added votes in place of this one. It is
    /// refused as long as the leader has not heard of the node that another one lists.
    ///
    /// # Errors
    /// The command fails again and again.
    pub async fn replace(&self, number: u64) -> Result<()> {
        let words = [
            "cluster".to_owned(),
            "replace-node".to_owned(),
            number.to_string(),
        ];
        let cli = Cli::new(self.nats_urls());
        eventually("the node is replaced", PATIENCE, async || {
            cli.run(&words).await?.done().map(Some)
        })
        .await
        .map(drop)
    }
}
