//! Measures from outside how long a shard is without service when its leader fails: from the fault to the
//! first acknowledged write that was sent after it. Of other systems too, where they are named.
//!
//! A client sends an `enter` every ten milliseconds and waits for each, so what is measured is neither a
//! client's pause between repetitions nor its patience.

mod load;
mod plan;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nowserving_e2e::{
    Cluster, HOUR_MS, Link, Options, build, first_acknowledged, first_written, line_in,
};
use rustix::process::Signal;
use serde::Serialize;
use serde_json::json;

use crate::peers::{Etcd, JetStream, Peer};
use load::Clients;
pub use plan::Plan;
use plan::{Fault, Load, System, name};

/// A failover that takes longer is an error.
const PATIENCE: Duration = Duration::from_secs(20);
/// The cluster rests for this long before each fault: hand-overs end, nodes that came back may vote.
const REST: Duration = Duration::from_millis(2_500);

/// Measures, and prints a table.
///
/// # Errors
/// A cluster does not start, or acknowledges nothing within [`PATIENCE`].
pub async fn run(plan: Plan) -> Result<()> {
    // What a node sends goes through the proxies of the others.
    let cuts = plan.faults.contains(&Fault::CutOff);
    ensure!(
        !(plan.direct_links && cuts),
        "--direct-links cannot be cut off: add --fault death,stop"
    );
    let build = build().await?;
    if !plan.json {
        println!("{build}\n");
        println!("| system | fault | load | runs | median | 90 % | at most |");
        println!("|---|---|---|---|---|---|---|");
    }
    let mut rows = Vec::new();
    for &system in &plan.systems {
        for &fault in &plan.faults {
            rows.extend(match system {
                System::Nowserving => measure_ours(fault, &plan).await?,
                System::Etcd => measure_peer::<Etcd>(system, fault, &plan).await?,
                System::JetStream => measure_peer::<JetStream>(system, fault, &plan).await?,
            });
        }
    }
    if plan.json {
        println!(
            "{}",
            json!({"build": build, "loops": plan.loops, "direct_links": plan.direct_links, "rows": rows})
        );
    }
    Ok(())
}

async fn measure_ours(fault: Fault, plan: &Plan) -> Result<Vec<Row>> {
    let mut cluster = Cluster::start(Options {
        proxied: fault == Fault::CutOff,
        loops: vec![plan.loops; Options::default().nodes as usize].leak(),
        direct_links: plan.direct_links,
        ..Options::default()
    })
    .await?;
    let mut rows = Vec::new();
    for &load in &plan.loads {
        let clients = (load == Load::Loaded).then(|| Clients::start(cluster.nats.url()));
        let times = measure(&mut cluster, fault, plan.runs).await?;
        drop(clients);
        rows.push(Row::new(System::Nowserving, fault, load, times).shown(plan));
    }
    Ok(rows)
}

/// Idle, whatever the plan says: a load that is the same for all does not exist.
async fn measure_peer<P: Peer>(system: System, fault: Fault, plan: &Plan) -> Result<Vec<Row>> {
    if fault == Fault::CutOff {
        return Ok(Vec::new());
    }
    let folder = tempfile::tempdir()?;
    let mut peer = P::start(folder.path()).await?;
    let mut times = Vec::new();
    for _ in 0..plan.runs {
        tokio::time::sleep(REST).await;
        let leader = peer.leader().await?;
        let began = Instant::now();
        match fault {
            Fault::Death => drop(peer.process(leader).kill().await?),
            _ => peer.process(leader).signal(Signal::STOP)?,
        }
        let time = first_written(began, PATIENCE, async || peer.write(leader).await).await;
        match fault {
            Fault::Death => peer.start_again(leader).await?,
            _ => peer.process(leader).signal(Signal::CONT)?,
        }
        times.push(time?);
    }
    Ok(vec![Row::new(system, fault, Load::Idle, times).shown(plan)])
}

/// The times of one fault under one load.
#[derive(Debug, Serialize)]
struct Row {
    system: System,
    fault: Fault,
    load: Load,
    runs: usize,
    median_ms: u64,
    p90_ms: u64,
    max_ms: u64,
}

impl Row {
    fn new(system: System, fault: Fault, load: Load, mut times: Vec<Duration>) -> Row {
        times.sort_unstable();
        let at = |percent: usize| {
            let nth = (times.len() * percent).div_ceil(100).max(1) - 1;
            times.get(nth).map_or(0, |time| time.as_millis() as u64)
        };
        Row {
            system,
            fault,
            load,
            runs: times.len(),
            median_ms: at(50),
            p90_ms: at(90),
            max_ms: at(100),
        }
    }

    /// Prints it, if there is a table.
    fn shown(self, plan: &Plan) -> Row {
        if !plan.json {
            println!(
                "| {} | {} | {} | {} | {} ms | {} ms | {} ms |",
                name(self.system),
                name(self.fault),
                name(self.load),
                self.runs,
                self.median_ms,
                self.p90_ms,
                self.max_ms
            );
        }
        self
    }
}

async fn measure(cluster: &mut Cluster, fault: Fault, runs: u32) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    let shards = cluster.options().shards;
    for shard in (0..shards).cycle().take(runs as usize) {
        let line = line_in(shard, shards, "failover");
        let api = cluster.api().clone();
        let settings = json!({
            "seats": 1_000_000, "queue_limit": 1_000, "claim_timeout_ms": HOUR_MS
        });
        if api.admin(&line, "show", json!({})).await.is_err() {
            api.admin(&line, "create", settings).await?;
        }
        tokio::time::sleep(REST).await;
        let leader = cluster.leader_of(&line).await?;
        let began = begin(cluster, fault, leader).await?;
        let time = first_acknowledged(&api, &line, began, PATIENCE).await;
        end(cluster, fault, leader).await?;
        let time = time?;
        eprintln!("{} of node {leader}: {} ms", name(fault), time.as_millis());
        times.push(time);
        cluster.wait_served().await?;
    }
    Ok(times)
}

async fn begin(cluster: &mut Cluster, fault: Fault, node: u64) -> Result<Instant> {
    let began = Instant::now();
    match fault {
        Fault::Death => {
            cluster.process(node)?.kill().await?;
        }
        Fault::Stop => cluster.process(node)?.signal(Signal::STOP)?,
        Fault::CutOff => {
            cluster.set_link(node, Link::Silent)?;
            cluster.set_peer_link(node, Link::Silent)?;
        }
    }
    Ok(began)
}

async fn end(cluster: &mut Cluster, fault: Fault, node: u64) -> Result<()> {
    match fault {
        Fault::Death => cluster.start_node(node).await,
        Fault::Stop => cluster.process(node)?.signal(Signal::CONT),
        Fault::CutOff => {
            cluster.set_link(node, Link::Up)?;
            cluster.set_peer_link(node, Link::Up)
        }
    }
}
