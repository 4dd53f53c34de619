//! Measures how long the leader of a large line keeps others waiting: for each kind of work on very many
//! tokens or lines, the turns of its loop (by the node's own metrics, as time and as CPU time) and the `status` of
//! another line, from outside, by a thread and a connection of their own.
//!
//! Three nodes, nats-server and all clients share the machine. So the same thread also asks a client that answers at
//! once: what that takes, any answer through NATS takes on this machine at that moment.
//!
//! All lines are in one shard: then one loop has all of the work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use futures::StreamExt as _;
use nowserving_e2e::{Api, Cluster, HOUR_MS, Metrics, Options, number};
use serde_json::{Value, json};

/// Tokens in the large lines, unless the command line says otherwise.
const TOKENS: u64 = 1_000_000;
/// Lines of a shard that is taken over.
const LINES: u64 = 100_000;
/// Past this size the leader's log keeps nothing for a node that is away.
const LOG_BYTES_MAX: u64 = 32 << 20;
/// So many enter at a time until they have taken more of the log: large batches are compressed, so how many it takes
/// depends on the machine.
const MISSED: u64 = 250_000;
/// Requests under way while lines are made and filled.
const IN_FLIGHT: usize = 1_024;
/// The line that others ask about.
const OTHER: &str = "other";
/// The subject of the client that answers at once.
const ECHO: &str = "turns.echo";
/// Between two requests about it.
const INTERVAL: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(600);
/// The longest that a request may ask for.
const KICK_TIMEOUT_MS: u64 = 60_000;
/// A turn should not be longer: the metric's bucket.
const TURN_MAX: &str = "0.02";
const BUCKETS: [&str; 11] = [
    "0.001", "0.002", "0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1", "+Inf",
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut sizes = std::env::args().skip(1).map(|arg| {
        arg.parse()
            .with_context(|| format!("{arg}: expected [TOKENS] [LINES]"))
    });
    let tokens = sizes.next().transpose()?.unwrap_or(TOKENS);
    let lines = sizes.next().transpose()?.unwrap_or(LINES);
    let options = Options {
        shards: 1,
        log_bytes_max: LOG_BYTES_MAX,
        ..Options::default()
    };
    let mut cluster = Cluster::start(options).await?;
    let bench = Bench::prepare(&cluster).await?;
    println!(
        "{:<20} {:>7} {:>7} {:>10} {:>12} {:>7} {:>12}  {:^22}  {:^22}",
        "",
        "",
        "",
        "turns over",
        "longest",
        "by CPU",
        "longest",
        "status of another, ms",
        "echo, ms"
    );
    println!(
        "{:<20} {:>7} {:>7} {:>10} {:>12} {:>7} {:>12}  {:>6} {:>7} {:>7}  {:>6} {:>7} {:>7}",
        "",
        "seconds",
        "turns",
        "20 ms",
        "turn, ms",
        "time",
        "by that, ms",
        "median",
        "99 %",
        "longest",
        "median",
        "99 %",
        "longest"
    );
    bench
        .phase(&cluster, "enter", fill(bench.api.clone(), "large", tokens))
        .await?;
    bench
        .phase(
            &cluster,
            "close its phase",
            close(&bench.api, "large", tokens),
        )
        .await?;
    fill(bench.api.clone(), "idle", tokens).await?;
    send_snapshot(&mut cluster, &bench).await?;
    bench
        .phase(&cluster, "make a snapshot", snapshot(&bench.api))
        .await?;
    bench
        .phase(&cluster, "expire", expire(&bench.api, "idle", tokens))
        .await?;
    fill(bench.api.clone(), "kicked", tokens).await?;
    bench
        .phase(&cluster, "count for a kick", kick(&bench.api, tokens, true))
        .await?;
    bench
        .phase(&cluster, "kick", kick(&bench.api, tokens, false))
        .await?;
    fill(bench.api.clone(), "deleted", tokens).await?;
    bench
        .phase(&cluster, "delete", delete(&bench.api, "deleted"))
        .await?;
    bench
        .phase(&cluster, "create lines", create(&bench.api, lines))
        .await?;
    take_over(&mut cluster, &bench).await
}

/// What all phases share.
struct Bench {
    api: Api,
    nats_url: String,
    ticket: Value,
}

/// How long answers took.
#[derive(Default)]
struct Times {
    status: Vec<Duration>,
    echo: Vec<Duration>,
}

/// Clients of another line, on a thread of their own: they shall not wait for the clients that do the work.
struct Others {
    done: Arc<AtomicBool>,
    thread: JoinHandle<Result<Times>>,
}

impl Others {
    fn ask(bench: &Bench) -> Result<Others> {
        let done = Arc::new(AtomicBool::new(false));
        let until = done.clone();
        let (url, ticket) = (bench.nats_url.clone(), bench.ticket.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let client = async_nats::connect(url).await?;
                let api = Api::new(client.clone());
                let mut times = Times::default();
                let mut ticks = tokio::time::interval(INTERVAL);
                ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                while !until.load(Ordering::Relaxed) {
                    ticks.tick().await;
                    let asked = Instant::now();
                    api.status(OTHER, &ticket).await?;
                    times.status.push(asked.elapsed());
                    let asked = Instant::now();
                    client.request(ECHO, Bytes::new()).await?;
                    times.echo.push(asked.elapsed());
                }
                Ok(times)
            })
        });
        Ok(Others { done, thread })
    }

    async fn end(self) -> Result<Times> {
        self.done.store(true, Ordering::Relaxed);
        let joined = tokio::task::spawn_blocking(|| self.thread.join()).await?;
        joined.map_err(|_| anyhow!("the other clients panicked"))?
    }
}

/// A node's turns, by bucket: of their time, and of their CPU time.
struct Turns {
    time: Vec<f64>,
    cpu: Vec<f64>,
}

impl Turns {
    /// So far.
    fn of(metrics: &Metrics) -> Turns {
        let buckets = |name: &str| {
            let count = |bucket: &&str| metrics.sum(name, &[&format!("le=\"{bucket}\"")]);
            BUCKETS.iter().map(count).collect()
        };
        Turns {
            time: buckets("nowserving_turn_seconds_bucket"),
            cpu: buckets("nowserving_turn_cpu_seconds_bucket"),
        }
    }

    fn since(&self, before: &Turns) -> Turns {
        let new = |now: &[f64], before: &[f64]| {
            let pairs = now.iter().zip(before);
            pairs.map(|(now, before)| now - before).collect()
        };
        Turns {
            time: new(&self.time, &before.time),
            cpu: new(&self.cpu, &before.cpu),
        }
    }
}

/// How many turns took more than [`TURN_MAX`], and the bound of the longest's bucket in milliseconds.
fn longest(buckets: &[f64]) -> (f64, f64) {
    let all = buckets.last().copied().unwrap_or_default();
    let named = || BUCKETS.iter().zip(buckets);
    let short = named().find(|(bucket, _)| **bucket == TURN_MAX);
    let longest = named().find(|(_, count)| **count >= all);
    let bound = longest.and_then(|(bucket, _)| bucket.parse().ok());
    let bound = bound.map_or(f64::INFINITY, |seconds: f64| seconds * 1e3);
    (all - short.map_or(0.0, |(_, count)| *count), bound)
}

impl Bench {
    async fn prepare(cluster: &Cluster) -> Result<Bench> {
        let api = cluster.api().clone();
        api.admin(OTHER, "create", settings()).await?;
        api.enter(OTHER, "holder").await?;
        let ticket = api.enter(OTHER, "waiting").await?["ticket"].clone();
        let nats_url = cluster.nats_urls();
        answer_echoes(nats_url.clone())?;
        Ok(Bench {
            api,
            nats_url,
            ticket,
        })
    }

    /// Does the work while another line is asked about, and prints what that came to.
    async fn phase(
        &self,
        cluster: &Cluster,
        name: &str,
        work: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let leader = cluster.leader_of(OTHER).await?;
        let before = Turns::of(&cluster.metrics(leader).await?);
        let (began, others) = (Instant::now(), Others::ask(self)?);
        work.await?;
        let seconds = began.elapsed().as_secs_f64();
        let times = others.end().await?;
        let turns = Turns::of(&cluster.metrics(leader).await?);
        report(name, seconds, &turns.since(&before), times);
        Ok(())
    }
}

/// Answers [`ECHO`] on a thread of its own until the process ends.
fn answer_echoes(nats_url: String) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (ready, subscribed) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        runtime.block_on(async {
            let client = async_nats::connect(nats_url).await?;
            let mut asked = client.subscribe(ECHO).await?;
            client.flush().await?;
            ready.send(())?;
            while let Some(message) = asked.next().await {
                if let Some(inbox) = message.reply {
                    client.publish(inbox, Bytes::new()).await?;
                }
            }
            anyhow::Ok(())
        })
    });
    subscribed.recv().context("no echo")
}

fn report(name: &str, seconds: f64, turns: &Turns, times: Times) {
    let all = turns.time.last().copied().unwrap_or_default();
    let ((long, longest_turn), (long_cpu, longest_cpu)) =
        (longest(&turns.time), longest(&turns.cpu));
    println!(
        "{name:<20} {seconds:>7.1} {all:>7} {long:>10} {longest_turn:>12} {long_cpu:>7} {longest_cpu:>12}  {}  {}",
        percentiles(times.status),
        percentiles(times.echo),
    );
}

/// Median, 99 % and longest, in milliseconds.
fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |per_mille: usize| {
        let nth = (times.len() * per_mille).div_ceil(1_000).max(1) - 1;
        times.get(nth).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    format!("{:>6.1} {:>7.1} {:>7.1}", at(500), at(990), at(1_000))
}

fn settings() -> Value {
    json!({
        "seats": 1, "queue_limit": 10_000_000, "claim_timeout_ms": HOUR_MS,
        "waiting_idle_timeout_ms": HOUR_MS,
    })
}

async fn fill(api: Api, line: &str, tokens: u64) -> Result<()> {
    api.admin(line, "create", settings()).await?;
    let enters = futures::stream::iter(0..tokens).map(|nth| {
        let api = api.clone();
        async move { api.enter(line, &nth.to_string()).await.map(drop) }
    });
    all(enters.buffer_unordered(IN_FLIGHT)).await
}

async fn create(api: &Api, lines: u64) -> Result<()> {
    let creates = futures::stream::iter(0..lines).map(|nth| async move {
        let line = format!("line-{nth}");
        api.admin(&line, "create", settings()).await?;
        api.enter(&line, "holder").await?;
        api.enter(&line, "waiting").await.map(drop)
    });
    all(creates.buffer_unordered(IN_FLIGHT)).await
}

async fn all(outcomes: impl futures::Stream<Item = Result<()>>) -> Result<()> {
    let mut outcomes = std::pin::pin!(outcomes);
    while let Some(outcome) = outcomes.next().await {
        outcome?;
    }
    Ok(())
}

async fn close(api: &Api, line: &str, tokens: u64) -> Result<()> {
    api.admin(line, "configure", json!({"phase": "closed"}))
        .await?;
    gone(api, line, "closed", tokens).await
}

/// All but the one with the seat expire.
async fn expire(api: &Api, line: &str, tokens: u64) -> Result<()> {
    api.admin(line, "configure", json!({"waiting_idle_timeout_ms": 100}))
        .await?;
    gone(api, line, "idle", tokens - 1).await
}

/// The leader makes a snapshot, as for a backup.
async fn snapshot(api: &Api) -> Result<()> {
    let began = Instant::now();
    let mut asked = json!({});
    while began.elapsed() < PATIENCE {
        let reply = api.admin(OTHER, "backup", asked).await?;
        if reply.get("id").is_some() {
            return Ok(());
        }
        asked = json!({ "index": reply["index"] });
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("no snapshot within {PATIENCE:?}")
}

/// A node is away while more is written than the others' logs keep for it. It comes back and gets a snapshot.
async fn send_snapshot(cluster: &mut Cluster, bench: &Bench) -> Result<()> {
    let leader = cluster.leader_of(OTHER).await?;
    let away = cluster.ids().find(|id| *id != leader).context("one node")?;
    cluster.process(away)?.kill().await?;
    let proposed = |metrics: &Metrics| metrics.sum("nowserving_proposals_total", &[]);
    let before = proposed(&cluster.metrics(leader).await?);
    let began = Instant::now();
    for nth in 0.. {
        fill(bench.api.clone(), &format!("missed-{nth}"), MISSED).await?;
        // Until the leader keeps fewer entries than it has made since then.
        let metrics = cluster.metrics(leader).await?;
        if metrics.sum("nowserving_log_entries", &[]) < proposed(&metrics) - before {
            break;
        }
        ensure!(began.elapsed() < PATIENCE, "the log is not compacted");
    }
    cluster.start_node(away).await?;
    let cluster = &*cluster;
    bench
        .phase(cluster, "send a snapshot", installed(cluster, away))
        .await?;
    let turns = Turns::of(&cluster.metrics(away).await?);
    report("its receiver", 0.0, &turns, Times::default());
    Ok(())
}

async fn installed(cluster: &Cluster, id: u64) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(50)).await;
        // Not there yet, at first.
        if let Ok(metrics) = cluster.metrics(id).await
            && metrics.sum(
                "nowserving_snapshots_received_total",
                &["outcome=\"installed\""],
            ) > 0.0
        {
            return Ok(());
        }
    }
    bail!("node {id} has no snapshot within {PATIENCE:?}")
}

async fn gone(api: &Api, line: &str, reason: &str, tokens: u64) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let shown = api.admin(line, "show", json!({})).await?;
        if number(&shown["counts"]["gone"], reason)? >= tokens {
            return Ok(());
        }
    }
    bail!("{line}: not all are gone within {PATIENCE:?}")
}

/// All tokens at once, by one request.
async fn kick(api: &Api, tokens: u64, dry_run: bool) -> Result<()> {
    let body = json!({"all": true, "dry_run": dry_run});
    let patient = api.within(KICK_TIMEOUT_MS);
    let kicked = patient.admin("kicked", "kick", body).await?;
    ensure!(number(&kicked, "kicked")? == tokens, "{kicked}");
    Ok(())
}

async fn delete(api: &Api, line: &str) -> Result<()> {
    api.admin(line, "delete", json!({"force": true})).await?;
    let began = Instant::now();
    let show = format!("nowserving.admin.line.{line}.show");
    while began.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let reply = api.call_subject(&show, "{}").await?;
        if reply.code.as_deref() == Some("line_not_found") {
            return Ok(());
        }
    }
    bail!("{line}: not deleted within {PATIENCE:?}")
}

/// The leader dies; another node leads all those lines. Its turns are counted from then on.
async fn take_over(cluster: &mut Cluster, bench: &Bench) -> Result<()> {
    let leader = cluster.leader_of(OTHER).await?;
    let mut before = Vec::new();
    for id in cluster.ids().filter(|id| *id != leader) {
        before.push((id, Turns::of(&cluster.metrics(id).await?)));
    }
    let began = Instant::now();
    cluster.process(leader)?.kill().await?;
    let served = bench.api.status(OTHER, &bench.ticket);
    served.await?;
    let seconds = began.elapsed().as_secs_f64();
    let others = Others::ask(bench)?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let times = others.end().await?;
    for (id, before) in before {
        if cluster.leader_of(OTHER).await? == id {
            let turns = Turns::of(&cluster.metrics(id).await?).since(&before);
            report("take-over", seconds, &turns, times);
            return Ok(());
        }
    }
    bail!("no other node leads")
}
