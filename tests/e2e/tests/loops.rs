//! Nodes with several loops, each with another number of them, which changes at restarts.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use nowserving_e2e::{Cluster, HOUR_MS, Options, eventually, line_in, number, run};
use serde_json::{Value, json};

use crate::crash;

const SHARDS: u32 = 8;
const PREFIX: &str = "loops-";
const PATIENCE: Duration = Duration::from_secs(30);
/// Who waits in each line.
const WAITING: usize = 12;

#[tokio::test]
async fn nodes_have_different_numbers_of_loops() -> Result<()> {
    let options = Options {
        shards: SHARDS,
        loops: &[1, 2, 3],
        direct_links: true,
        ..Options::default()
    };
    run(options, async |cluster| {
        have_parts(cluster, [1, 2, 3])?;
        let mut lines = Vec::new();
        for shard in 0..SHARDS {
            lines.push(Waiting::begin(cluster, line_in(shard, SHARDS, PREFIX)).await?);
        }
        all_are_listed(cluster, &lines).await?;
        counters_are_everywhere(cluster).await?;
        // Each loop of each node leads, and serves its shards.
        // The last turn is as nodes divide them by themselves.
        for turn in [1, 3, 2] {
            for id in cluster.ids() {
                let of_node = |shard: &u32| u64::from(*shard) % 3 == (id + turn) % 3;
                let shards: Vec<u32> = (0..SHARDS).filter(of_node).collect();
                cluster.transfer(&shards, id).await?;
            }
            unchanged(cluster, &lines).await?;
            let entered = lines.iter_mut().map(|it| it.enter(cluster));
            try_join_all(entered).await?;
        }
        cluster.wait_ready().await?;
        crash::of_a_leader_under_load(cluster).await?;
        crash::rolling_restart(cluster).await?;
        for loops in [[3, 1, 2], [2, 2, 2], [1, 8, 1]] {
            for (id, loops) in cluster.ids().zip(loops) {
                cluster.set_loops(id, loops)?;
            }
            cluster.restart_all().await?;
            have_parts(cluster, loops)?;
            unchanged(cluster, &lines).await?;
            let entered = lines.iter_mut().map(|it| it.enter(cluster));
            try_join_all(entered).await?;
        }
        all_are_listed(cluster, &lines).await
    })
    .await
}

/// Whether each node's log is in as many parts.
fn have_parts(cluster: &Cluster, loops: [u32; 3]) -> Result<()> {
    for (id, loops) in cluster.ids().zip(loops) {
        for parts in 2..=8 {
            let folder = cluster.data_dir(id).join(format!("log.parts-{parts}"));
            ensure!(
                folder.exists() == (parts == loops),
                "node {id} with {loops} loops, {}",
                folder.display()
            );
        }
    }
    Ok(())
}

/// A line in which everybody waits behind one who has the seat.
struct Waiting {
    line: String,
    tickets: Vec<Value>,
}

impl Waiting {
    async fn begin(cluster: &Cluster, line: String) -> Result<Waiting> {
        let settings = json!({
            "seats": 1, "queue_limit": 100_000, "claim_timeout_ms": HOUR_MS,
            "waiting_idle_timeout_ms": HOUR_MS,
        });
        cluster.api().admin(&line, "create", settings).await?;
        let mut this = Waiting {
            line,
            tickets: Vec::new(),
        };
        for _ in 0..=WAITING {
            this.enter(cluster).await?;
        }
        Ok(this)
    }

    async fn enter(&mut self, cluster: &Cluster) -> Result<()> {
        let key = format!("key-{}", self.tickets.len());
        let entered = cluster.api().enter(&self.line, &key).await?;
        let token = number(&entered, "token")?;
        ensure!(token == self.tickets.len() as u64 + 1, "{entered}");
        self.tickets.push(entered["ticket"].clone());
        Ok(())
    }
}

/// Everybody is where they were.
async fn unchanged(cluster: &Cluster, lines: &[Waiting]) -> Result<()> {
    for it in lines {
        for (place, ticket) in it.tickets.iter().enumerate().skip(1) {
            let status = cluster.api().status(&it.line, ticket).await?;
            ensure!(number(&status, "position")? == place as u64, "{status}");
        }
    }
    Ok(())
}

/// The list of lines is put together from the parts of all loops.
async fn all_are_listed(cluster: &Cluster, lines: &[Waiting]) -> Result<()> {
    eventually("all lines are listed", PATIENCE, async || {
        let listed = cluster.api().cluster("list_lines", json!({})).await?;
        let names = listed["lines"].as_array().context("no lines")?;
        let has = |it: &Waiting| names.iter().any(|name| name["line"] == it.line.as_str());
        Ok(lines.iter().all(has).then_some(()))
    })
    .await
}

/// A rule of limits, which the first loop has, counts in shards of all loops, asked on the plain subject and on that of each
/// shard's leader.
async fn counters_are_everywhere(cluster: &Cluster) -> Result<()> {
    let rules = "domain: loops\ndescriptors:\n  - {key: ip, rate_limit: {unit: hour, requests_per_unit: 2, algorithm: sliding_window_log}}\n";
    let api = cluster.api();
    api.apply_rules("loops", rules).await?;
    for ip in 0..4 * SHARDS {
        let subject = match ip % 2 {
            0 => "nowserving.limit.loops.check".to_owned(),
            _ => format!("nowserving.leader.{}.limit.loops.check", ip / 2 % SHARDS),
        };
        for allowed in [true, true, false] {
            let body = json!({"descriptors": [[{"key": "ip", "value": format!("10.0.0.{ip}")}]]});
            let reply = api.ask_at(&subject, &body).await?.accepted(api.format())?;
            ensure!(reply["allowed"] == allowed, "{subject}, {ip}: {reply}");
        }
    }
    let counted = u64::from(4 * SHARDS);
    eventually("all hits are told", PATIENCE, async || {
        let stats = api.limit("stats", json!({})).await?;
        let rules = stats["rules"].as_array().context("no rules")?;
        let sum = |field: &str| {
            rules
                .iter()
                .filter_map(|it| it[field].as_u64())
                .sum::<u64>()
        };
        let all = (sum("allowed"), sum("refused"));
        Ok((all == (2 * counted, counted)).then_some(()))
    })
    .await
}
