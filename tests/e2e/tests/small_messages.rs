//! A NATS server that takes little in one message (`max_payload`), and changes that while the cluster runs.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use nowserving_e2e::{Cli, Cluster, HOUR_MS, Options, eventually, line_in, run};
use nowserving_protocol::codec::{Format, MAX_PAYLOAD_MIN};
use serde_json::json;

use crate::kv::Kv;

const VALUE_BYTES: usize = 10_240;
const PUTS: usize = 200;
const ENTRANTS: usize = 6_000;
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_cluster_works_with_what_the_nats_server_takes_in_a_message() -> Result<()> {
    let options = Options {
        max_payload: Some(MAX_PAYLOAD_MIN),
        ..Options::default()
    };
    run(options, async |cluster| {
        many_large_values(cluster, "first").await?;
        crowd(cluster).await?;
        every_shard_takes_writes(cluster, "after").await?;
        a_backup_is_downloaded(cluster).await?;
        for bytes in [1 << 20, 262_144, MAX_PAYLOAD_MIN] {
            cluster.set_max_payload(bytes)?;
            many_large_values(cluster, &format!("reloaded-{bytes}")).await?;
            every_shard_takes_writes(cluster, &format!("reloaded-{bytes}-")).await?;
        }
        nobody_serves_below_the_minimum(cluster).await?;
        many_large_values(cluster, "last").await?;
        every_shard_takes_writes(cluster, "last").await
    })
    .await
}

/// All at once: they meet in log entries and frames.
async fn many_large_values(cluster: &Cluster, bucket: &str) -> Result<()> {
    let kv = Kv::new(cluster.api(), Format::MsgPack, None, bucket)?;
    let puts = (0..PUTS).map(|nth| {
        let kv = kv.clone();
        async move { kv.put(&format!("key-{nth}"), vec![7; VALUE_BYTES]).await }
    });
    try_join_all(puts).await.map(drop)
}

async fn crowd(cluster: &Cluster) -> Result<()> {
    let api = cluster.api();
    let settings =
        json!({"seats": 1, "queue_limit": 2 * ENTRANTS, "waiting_idle_timeout_ms": HOUR_MS});
    api.admin("crowd", "create", settings).await?;
    let enters =
        (0..ENTRANTS).map(|nth| async move { api.enter("crowd", &format!("k{nth}")).await });
    stream::iter(enters)
        .buffer_unordered(ENTRANTS)
        .try_for_each(|_| async { Ok(()) })
        .await
}

async fn every_shard_takes_writes(cluster: &Cluster, prefix: &str) -> Result<()> {
    let shards = cluster.options().shards;
    let lines = (0..shards).map(|shard| line_in(shard, shards, prefix));
    try_join_all(lines.map(|line| async move {
        cluster
            .api()
            .admin(&line, "create", json!({"seats": 1, "queue_limit": 10}))
            .await?;
        cluster.api().enter(&line, "one").await
    }))
    .await
    .map(drop)
}

/// Its chunks fit.
async fn a_backup_is_downloaded(cluster: &Cluster) -> Result<()> {
    let cli = Cli::new(cluster.nats_urls());
    let file = cluster.folder().join("small-messages.backup");
    let file = file.to_string_lossy();
    cli.run(&["cluster", "backup", &file]).await?.done()?;
    Ok(())
}

async fn nobody_serves_below_the_minimum(cluster: &mut Cluster) -> Result<()> {
    cluster.set_max_payload(MAX_PAYLOAD_MIN / 2)?;
    // Nodes find out when too much is published.
    let told = async {
        for id in cluster.ids() {
            eventually(
                "a node says that it serves nobody, and why",
                PATIENCE,
                async || {
                    let (status, text) = cluster.http(id, "/readyz").await?;
                    Ok((status == 503 && text.contains("max_payload")).then_some(()))
                },
            )
            .await?;
        }
        anyhow::Ok(())
    };
    let load = async {
        loop {
            // Refused from some time on.
            let _ = tokio::time::timeout(
                Duration::from_secs(2),
                many_large_values(cluster, "too-small"),
            )
            .await;
        }
    };
    tokio::select! {
        told = told => told?,
        () = load => {}
    }
    cluster.process(3)?.kill().await?;
    cluster.start_node(3).await?;
    let ended = cluster.process(3)?.ended(PATIENCE).await?;
    ensure!(!ended.success(), "it starts: {ended}");
    let log = cluster.process(3)?.tail(20);
    let limit = (MAX_PAYLOAD_MIN / 2).to_string();
    ensure!(log.contains("max_payload") && log.contains(&limit), "{log}");
    cluster.set_max_payload(1 << 20)?;
    cluster.start_node(3).await?;
    cluster.wait_ready().await
}
