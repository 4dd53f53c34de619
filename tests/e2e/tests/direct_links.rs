//! Direct links between nodes, each way through a proxy: they are cut while NATS lives, and the other way round.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use nowserving_e2e::{Cluster, HOUR_MS, Link, Options, eventually, line_in, run};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(45);
/// Longer than an election timeout, several times.
const CUT: Duration = Duration::from_secs(4);
const STRANGERS: usize = 100;
const PREFIX: &str = "direct-";

#[tokio::test]
async fn frames_go_by_direct_links_and_over_nats_when_those_break() -> Result<()> {
    let options = Options {
        shards: 4,
        proxied: true,
        direct_links: true,
        ..Options::default()
    };
    run(options, async |cluster| {
        every_shard(cluster, async |line| {
            let settings =
                json!({"seats": 1, "queue_limit": 100_000, "waiting_idle_timeout_ms": HOUR_MS});
            cluster
                .api()
                .admin(&line, "create", settings)
                .await
                .map(drop)
        })
        .await?;
        all_open(cluster).await?;
        ensure!(
            writes_are_direct(cluster, "first").await?,
            "frames went over NATS"
        );
        for link in [Link::Silent, Link::Closed, Link::Mute] {
            for id in cluster.ids() {
                cluster.set_direct_link(id, link)?;
            }
            let leaders = leaders(cluster).await?;
            writes_go_on(cluster, &format!("without-{link:?}")).await?;
            let open = open_links(cluster).await?;
            ensure!(open == 0.0, "{open} links while {link:?}");
            // Heartbeats took the other way in time.
            ensure!(
                leaders == self::leaders(cluster).await?,
                "new leaders: {link:?}"
            );
            for id in cluster.ids() {
                cluster.set_direct_link(id, Link::Up)?;
            }
            all_open(cluster).await?;
            ensure!(writes_are_direct(cluster, &format!("after-{link:?}")).await?);
        }
        strangers_are_turned_away(cluster).await?;
        without_nats_between_the_nodes(cluster).await?;
        one_that_stands_still_holds_up_nobody(cluster).await
    })
    .await
}

async fn every_shard(cluster: &Cluster, each: impl AsyncFn(String) -> Result<()>) -> Result<()> {
    let shards = cluster.options().shards;
    let lines = (0..shards).map(|shard| line_in(shard, shards, PREFIX));
    try_join_all(lines.map(|line| each(line))).await.map(drop)
}

async fn enter_everywhere(cluster: &Cluster, key: &str) -> Result<()> {
    every_shard(cluster, async |line| {
        cluster.api().enter(&line, key).await.map(drop)
    })
    .await
}

/// For longer than every timeout of a leader.
async fn writes_go_on(cluster: &Cluster, name: &str) -> Result<()> {
    let begin = Instant::now();
    let mut nth = 0;
    while begin.elapsed() < CUT {
        nth += 1;
        let key = format!("{name}-{nth}");
        let entered = enter_everywhere(cluster, &key).await;
        entered.with_context(|| format!("{key}, {:?} into the cut", begin.elapsed()))?;
    }
    Ok(())
}

async fn sum(cluster: &Cluster, name: &str) -> Result<f64> {
    let all = cluster.all_metrics().await?;
    Ok(all.iter().map(|it| it.sum(name, &[])).sum())
}

async fn open_links(cluster: &Cluster) -> Result<f64> {
    sum(cluster, "nowserving_direct_links").await
}

async fn all_open(cluster: &Cluster) -> Result<()> {
    eventually("all direct links are open", PATIENCE, async || {
        let open = open_links(cluster).await?;
        ensure!(open == 6.0, "{open} are");
        Ok(Some(()))
    })
    .await
}

/// Whether frames go by links while there are writes.
async fn writes_are_direct(cluster: &Cluster, name: &str) -> Result<bool> {
    let before = sum(cluster, "nowserving_peer_frames_direct_total").await?;
    for nth in 0..20 {
        enter_everywhere(cluster, &format!("{name}-{nth}")).await?;
    }
    Ok(sum(cluster, "nowserving_peer_frames_direct_total").await? >= before + 80.0)
}

async fn leaders(cluster: &Cluster) -> Result<Vec<u64>> {
    let shards = cluster.options().shards;
    let lines: Vec<String> = (0..shards).map(|it| line_in(it, shards, PREFIX)).collect();
    try_join_all(lines.iter().map(|line| cluster.leader_of(line))).await
}

/// Those who say nothing, garbage, or half a frame.
async fn strangers_are_turned_away(cluster: &Cluster) -> Result<()> {
    let addr = cluster.direct_addr(1)?;
    let mut open = Vec::new();
    for nth in 0..STRANGERS {
        let mut stranger = TcpStream::connect(addr).await?;
        let said = match nth % 4 {
            0 => Vec::new(),
            1 => b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            2 => vec![0xff; 10_000],
            _ => [&900_u32.to_le_bytes()[..], &[7; 500]].concat(),
        };
        // It may be closed already.
        let _ = stranger.write_all(&said).await;
        open.push(stranger);
    }
    ensure!(writes_are_direct(cluster, "strangers").await?);
    all_open(cluster).await
}

/// The nodes' connections to NATS for frames carry nothing, and those of clients do.
async fn without_nats_between_the_nodes(cluster: &mut Cluster) -> Result<()> {
    let leaders = leaders(cluster).await?;
    for id in cluster.ids() {
        cluster.set_peer_link(id, Link::Silent)?;
    }
    writes_go_on(cluster, "by-links-alone").await?;
    ensure!(leaders == self::leaders(cluster).await?, "new leaders");
    for id in cluster.ids() {
        cluster.set_peer_link(id, Link::Up)?;
    }
    cluster.wait_ready().await
}

/// A node's process stands still with its links open.
async fn one_that_stands_still_holds_up_nobody(cluster: &mut Cluster) -> Result<()> {
    use rustix::process::Signal;

    cluster.process(3)?.signal(Signal::STOP)?;
    eventually("the others serve every shard", PATIENCE, async || {
        enter_everywhere(cluster, "two-of-three").await.map(Some)
    })
    .await?;
    cluster.process(3)?.signal(Signal::CONT)?;
    cluster.wait_ready().await?;
    all_open(cluster).await?;
    ensure!(writes_are_direct(cluster, "last").await?);
    Ok(())
}
