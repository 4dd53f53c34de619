//! Measures from outside how long a shard is without service when its leader fails: from the fault to the
//! first acknowledged `enter` that was sent after it.
//!
//! A client sends an `enter` every ten milliseconds and waits for each, so what is measured is neither a
//! client's pause between repetitions nor its patience.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nowserving_e2e::{Api, Cluster, HOUR_MS, Link, Options, first_acknowledged, line_in};
use rustix::process::Signal;
use serde_json::json;

/// A failover that takes longer is an error.
const PATIENCE: Duration = Duration::from_secs(20);
/// The cluster rests for this long before each fault: hand-overs end, nodes that came back may vote.
const REST: Duration = Duration::from_millis(2_500);
/// The clients of a loaded cluster, each with one request under way.
const LOAD_CLIENTS: usize = 16;
/// Each of them enters once and then asks for its place so often.
const POLLS: usize = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// kill -9.
    Death,
    /// SIGSTOP.
    Stop,
    /// The node's connections pass nothing on and stay open.
    CutOff,
}

impl Fault {
    const ALL: [Fault; 3] = [Fault::Death, Fault::Stop, Fault::CutOff];

    fn name(self) -> &'static str {
        match self {
            Fault::Death => "death",
            Fault::Stop => "stop",
            Fault::CutOff => "cut-off",
        }
    }
}

/// The command line: `[RUNS] [death|stop|cut-off …] [idle|loaded …]`.
struct Plan {
    runs: usize,
    faults: Vec<Fault>,
    loads: Vec<bool>,
}

impl Plan {
    fn parse(args: impl Iterator<Item = String>) -> Result<Plan> {
        let (mut runs, mut faults, mut loads) = (30, Vec::new(), Vec::new());
        for arg in args {
            let fault = Fault::ALL.into_iter().find(|fault| fault.name() == arg);
            match (fault, arg.as_str()) {
                (Some(fault), _) => faults.push(fault),
                (None, "idle") => loads.push(false),
                (None, "loaded") => loads.push(true),
                (None, number) => {
                    runs = number.parse().with_context(|| {
                        format!("{number}: expected [RUNS] [death|stop|cut-off …] [idle|loaded …]")
                    })?;
                }
            }
        }
        if faults.is_empty() {
            faults.extend(Fault::ALL);
        }
        if loads.is_empty() {
            loads.extend([false, true]);
        }
        Ok(Plan {
            runs,
            faults,
            loads,
        })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let plan = Plan::parse(std::env::args().skip(1))?;
    println!("fault    load     runs  median ms  90 % ms  max ms");
    for fault in plan.faults {
        let mut cluster = Cluster::start(Options {
            proxied: fault == Fault::CutOff,
            ..Options::default()
        })
        .await?;
        for &loaded in &plan.loads {
            let load = loaded.then(|| Load::start(cluster.nats.url()));
            let times = measure(&mut cluster, fault, plan.runs).await?;
            drop(load);
            report(fault, loaded, times);
        }
    }
    Ok(())
}

fn report(fault: Fault, loaded: bool, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| {
        let nth = (times.len() * percent).div_ceil(100).max(1) - 1;
        times.get(nth).map_or(0, Duration::as_millis)
    };
    let load = if loaded { "loaded" } else { "idle" };
    println!(
        "{:<8} {load:<8} {:>4}  {:>9}  {:>7}  {:>6}",
        fault.name(),
        times.len(),
        at(50),
        at(90),
        at(100)
    );
}

async fn measure(cluster: &mut Cluster, fault: Fault, runs: usize) -> Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(runs);
    let shards = cluster.options().shards;
    for shard in (0..shards).cycle().take(runs) {
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
        eprintln!("{} of node {leader}: {} ms", fault.name(), time.as_millis());
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

/// Clients on a thread of their own, until it is dropped.
struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(url: String) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let until = stop.clone();
        let thread = std::thread::spawn(move || {
            if let Err(error) = run_load(&url, &until) {
                eprintln!("the load ended: {error:#}");
            }
        });
        Load {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run_load(url: &str, stop: &AtomicBool) -> Result<()> {
    let api = Api::new(async_nats::connect(url).await?).within(2_000);
    let clients = (0..LOAD_CLIENTS).map(|client| visit_for_ever(&api, client, stop));
    futures::future::join_all(clients).await;
    Ok(())
}

/// Errors are part of a failover.
async fn visit_for_ever(api: &Api, client: usize, stop: &AtomicBool) {
    let line = format!("load-{client}");
    let settings = json!({"seats": 1_000_000, "queue_limit": 1_000, "claim_timeout_ms": 10_000});
    let _ = api.admin(&line, "create", settings).await;
    for visit in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let body = json!({"key": format!("{client}-{visit}")});
        let Ok(entered) = api.ask(&line, "enter", &body).await else {
            continue;
        };
        let body = json!({"ticket": entered.body["ticket"]});
        for _ in 0..POLLS {
            let _ = api.ask(&line, "status", &body).await;
        }
    }
}
