//! Seats that follow a service which slows down beyond eight handlers at once: `GuardOptions::auto_seats`, and the program
//! `slowing` (`src/bin/slowing.rs`).

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{Cluster, Process, eventually, example, number};
use serde_json::{Value, json};

const MIN: u64 = 2;
const MAX: u64 = 64;
/// Each step takes a second or two, and some twenty are needed.
const PATIENCE: Duration = Duration::from_secs(180);
/// Looks at the seats once they are where they belong.
const LOOKS: usize = 60;

pub async fn follow_the_service(cluster: &mut Cluster) -> Result<()> {
    let cluster = &*cluster;
    // 70 % of eight are 5.6: from far above. It does not depend on how fast the machine is.
    let load = follow(cluster, "load", "--load", "0.7", 40, 4..=10);
    // Twice what a handler takes alone, so up to 16, from below; fewer on a machine that is slow itself.
    let latency = follow(cluster, "latency", "--latency-ms", "400", 1, 5..=24);
    tokio::try_join!(load, latency)?;
    Ok(())
}

async fn follow(
    cluster: &Cluster,
    line: &str,
    flag: &str,
    target: &str,
    seats: u64,
    near: std::ops::RangeInclusive<u64>,
) -> Result<()> {
    let settings = json!({"seats": seats, "queue_limit": 1_000, "seats_when_silent": MIN});
    cluster.api().admin(line, "create", settings).await?;
    let program = example("slowing").await?;
    let log = cluster.folder().join(format!("slowing-{line}.log"));
    let (min, max) = (MIN.to_string(), MAX.to_string());
    let urls = cluster.nats_urls();
    let args = [
        "--nats", &urls, "--line", line, "--min", &min, "--max", &max, flag, target,
    ];
    let name = format!("slowing {line}");
    let mut service = Process::start(&name, program.as_os_str(), args, &log).await?;
    let what = format!("{line}: the seats come to {near:?}");
    eventually(&what, PATIENCE, async || {
        let now = shown(cluster, line, seats).await?;
        Ok(near.contains(&now).then_some(()))
    })
    .await?;
    // And stay near, as far as whole seats and chance let them.
    for _ in 0..LOOKS {
        let now = shown(cluster, line, seats).await?;
        ensure!((MIN..=near.end() * 3 / 2).contains(&now), "{line}: {now}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let ended = service.stop(PATIENCE).await?;
    let printed = service.printed()?;
    ensure!(ended.success(), "{ended}: {}", service.tail(20));
    let report = printed.lines().last().context("nothing printed")?;
    let report: Value = serde_json::from_str(report)?;
    ensure!(number(&report, "most")? <= MAX, "{report}");
    ensure!(number(&report, "done")? > 100, "{report}");
    ensure!(number(&report, "seats_told")? > 5, "{report}");
    ensure!(number(&report, "unavailable")? == 0, "{report}");
    // The processes are gone, and the line knows when it will count as silent.
    let told = &cluster.api().admin(line, "show", json!({})).await?["capacity_told"];
    ensure!(number(told, "expires_in_ms")? <= 35_000, "{told}");
    Ok(())
}

/// The seats in force: the setting, or within the bounds.
async fn shown(cluster: &Cluster, line: &str, setting: u64) -> Result<u64> {
    let shown = cluster.api().admin(line, "show", json!({})).await?;
    let seats = number(&shown["board"], "seats")?;
    let told = &shown["capacity_told"];
    // Until the first word the setting is in force.
    let is_right = match told.is_null() {
        true => seats == setting,
        false => (MIN..=MAX).contains(&seats),
    };
    ensure!(is_right, "{shown}");
    Ok(seats)
}
