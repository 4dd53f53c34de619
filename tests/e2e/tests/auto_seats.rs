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
/// Some five steps: a rule that goes in one direction only is far off by then.
const GOES_ON: Duration = Duration::from_secs(6);
/// Looks at the seats after that, one every 100 ms.
const LOOKS: usize = 20;

/// 70 % of eight are 5.6: from far above. It does not depend on how fast the machine is.
pub async fn follow_the_service(cluster: &mut Cluster) -> Result<()> {
    let line = "load";
    let service = follow(cluster, line, 40, 4..=8).await?;
    ends(cluster, line, service).await
}

async fn follow(
    cluster: &Cluster,
    line: &str,
    seats: u64,
    near: std::ops::RangeInclusive<u64>,
) -> Result<Process> {
    let settings = json!({"seats": seats, "queue_limit": 1_000, "seats_when_silent": MIN});
    cluster.api().admin(line, "create", settings).await?;
    let program = example("slowing").await?;
    let log = cluster.folder().join(format!("slowing-{line}.log"));
    let (min, max) = (MIN.to_string(), MAX.to_string());
    let urls = cluster.nats_urls();
    let args = [
        "--nats", &urls, "--line", line, "--min", &min, "--max", &max,
    ];
    let name = format!("slowing {line}");
    let service = Process::start(&name, program.as_os_str(), args, &log).await?;
    let what = format!("{line}: the seats come to {near:?}");
    eventually(&what, PATIENCE, async || {
        let now = shown(cluster, line, seats).await?;
        Ok(near.contains(&now).then_some(()))
    })
    .await?;
    // And stay near, as far as whole seats and chance let them.
    let around = (near.start() * 2).div_ceil(3)..=near.end() * 3 / 2;
    ensure!(*around.start() > MIN && *around.end() < MAX, "{around:?}");
    tokio::time::sleep(GOES_ON).await;
    for _ in 0..LOOKS {
        let now = shown(cluster, line, seats).await?;
        ensure!(around.contains(&now), "{line}: {now}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(service)
}

/// The process ends in order, and says how it went.
async fn ends(cluster: &Cluster, line: &str, mut service: Process) -> Result<()> {
    let ended = service.stop(PATIENCE).await?;
    let printed = service.printed()?;
    ensure!(ended.success(), "{ended}: {}", service.tail(20));
    let report = printed.lines().last().context("nothing printed")?;
    let report: Value = serde_json::from_str(report)?;
    ensure!(number(&report, "most")? <= MAX, "{report}");
    ensure!(number(&report, "done")? > 100, "{report}");
    ensure!(number(&report, "seats_told")? > 5, "{report}");
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
