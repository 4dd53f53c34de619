//! Many processes behind one guard: how many handlers run at once, who is overtaken, which seats come back.
//!
//! The processes are the program `guarded` (`src/bin/guarded.rs`), whose handlers return, fail, panic, hang and are
//! cancelled. One process is killed (-9) while it holds a seat, and so is the line's leader, if wanted.

mod observer;

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt as _;
use serde::Serialize;
use serde_json::{Value, json};

use crate::api::{HOUR_MS, number};
use crate::cluster::Cluster;
use crate::options::Options;
use crate::process::Process;
use crate::program::example;
use crate::scenario;
use crate::wait::eventually;

pub use observer::{Handler, Observer};

const LINE: &str = "guarded";
/// Renewed after a third of it. A seat of a killed process is free after it.
const CHECKOUT: Duration = Duration::from_secs(5);
/// A handler that hangs loses its seat after this long.
const CHECKOUT_MAX: Duration = Duration::from_secs(8);
/// A killed process's seat is free after `CHECKOUT`, on a slow machine, and with the loss of the leader meanwhile.
const FREED_MAX: Duration = Duration::from_secs(4 * CHECKOUT.as_secs());
/// Nothing takes longer, with as many handlers as a plan can have.
const PATIENCE: Duration = Duration::from_secs(300);

/// How many of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub processes: usize,
    /// In all processes together.
    pub handlers: usize,
    pub seats: usize,
    pub leader_dies: bool,
    /// Those of the guard: callers are allowed while the cluster is away. No handler hangs then.
    pub default_options: bool,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    pub processes: usize,
    pub seats: usize,
    /// Handlers that began to run, as the observer saw.
    pub started: u64,
    /// The most that ran at once, as the observer saw.
    pub at_once: usize,
    /// Tokens that the line admitted after a later one.
    pub overtaken: usize,
    /// How the processes' requests ended, by kind; without those of the killed process.
    pub ended: Value,
    /// From the kill until the seat of the killed process was free.
    pub freed_ms: u64,
    pub took_ms: u64,
}

/// Runs one, with a cluster of its own.
///
/// # Errors
/// More handlers ran than there are seats, or one without a seat; a token was overtaken; a seat did not come back.
pub async fn run(plan: Plan) -> Result<Report> {
    let mut report = None;
    scenario::run(Options::default(), async |cluster| {
        report = Some(guarded(cluster, plan).await?);
        Ok(())
    })
    .await?;
    report.context("no outcome")
}

async fn guarded(cluster: &mut Cluster, plan: Plan) -> Result<Report> {
    let settings = json!({
        "seats": plan.seats, "queue_limit": 64, "waiting_idle_timeout_ms": 5_000,
        "claim_timeout_ms": 3_000, "checkout_timeout_ms": CHECKOUT.as_millis() as u64,
        "checkout_max_ms": CHECKOUT_MAX.as_millis() as u64,
    });
    cluster.api().admin(LINE, "create", settings).await?;
    let events = Events::follow(cluster).await?;
    let socket = cluster.folder().join("observer");
    let observer = Observer::listen(&socket)?;
    let begin = Instant::now();
    let program = example("guarded").await?;
    let mut processes = Vec::new();
    for nth in 1..plan.processes {
        processes.push(start(cluster, &program, plan, nth).await?);
    }
    // The one that is killed comes last: it holds its slot for `CHECKOUT_MAX` at most.
    processes.insert(0, start(cluster, &program, plan, 0).await?);
    let (victim, killed_at) = kill_holder(&observer, &mut processes).await?;
    if plan.leader_dies {
        restart_leader(cluster).await?;
    }
    let mut ended = json!({});
    for process in processes.iter_mut().skip(1) {
        let status = process.ended(PATIENCE).await?;
        let printed = process.printed()?;
        ensure!(status.success(), "{status}: {printed}");
        add(&mut ended, &printed)?;
    }
    nothing_is_held(cluster).await?;
    let took = begin.elapsed();
    let (gone_at, reason) = eventually("the event of its end", CHECKOUT, async || {
        events.gone(victim.token).map(Some)
    })
    .await?;
    ensure!(reason == "checkout_expired", "{victim:?}: {reason}");
    let freed = gone_at.duration_since(killed_at);
    let report = Report {
        processes: plan.processes,
        seats: plan.seats,
        started: *observer.started().borrow(),
        at_once: observer.most(),
        overtaken: events.overtaken()?,
        ended,
        freed_ms: u64::try_from(freed.as_millis())?,
        took_ms: u64::try_from(took.as_millis())?,
    };
    ensure!(report.at_once <= plan.seats, "{report:?}");
    ensure!(report.overtaken == 0, "{report:?}");
    ensure!(freed <= FREED_MAX, "{report:?}");
    each_has_a_seat_of_its_own(observer.tokens())?;
    all_seats_are_there(cluster, plan).await?;
    Ok(report)
}

async fn start(cluster: &Cluster, program: &Path, plan: Plan, nth: usize) -> Result<Process> {
    let share = plan.handlers.div_ceil(plan.processes);
    let socket = cluster.folder().join("observer");
    let mut args: Vec<OsString> = vec!["--nats".into(), cluster.nats_urls().into()];
    args.extend(["--line".into(), LINE.into()]);
    args.extend(["--observer".into(), socket.into()]);
    args.extend(["--process".into(), nth.to_string().into()]);
    args.extend(["--handlers".into(), share.to_string().into()]);
    // Until it is killed, in the midst of its handlers.
    if nth == 0 {
        args.push("--holds".into());
    }
    if plan.default_options {
        args.push("--default-options".into());
    }
    let log = cluster.folder().join(format!("guarded-{nth}.log"));
    Process::start(&format!("process {nth}"), program.as_os_str(), args, &log).await
}

/// Kills the first process when it holds its slot.
async fn kill_holder(observer: &Observer, processes: &mut [Process]) -> Result<(Handler, Instant)> {
    let is_it = |handler: &Handler| handler.process == 0 && handler.hangs;
    let victim = eventually("a slot is held", Duration::from_secs(30), async || {
        Ok(observer.running().into_iter().find(is_it))
    })
    .await?;
    let at = Instant::now();
    processes.first_mut().context("no process")?.kill().await?;
    Ok((victim, at))
}

async fn restart_leader(cluster: &mut Cluster) -> Result<()> {
    let leader = cluster.leader_of(LINE).await?;
    cluster.process(leader)?.kill().await?;
    cluster.wait_served().await?;
    cluster.start_node(leader).await
}

/// No token is left, also of the killed process: their timeouts are over.
async fn nothing_is_held(cluster: &Cluster) -> Result<()> {
    let api = cluster.api();
    eventually("all seats are free", CHECKOUT * 3, async || {
        let shown = api.admin(LINE, "show", json!({})).await?;
        let counts = &shown["counts"];
        let live = ["waiting", "admitted", "in_checkout"].map(|state| number(counts, state));
        let live = live.into_iter().sum::<Result<u64>>()?;
        Ok((live == 0).then_some(()))
    })
    .await
}

/// No handler ran without a token, or by another's.
fn each_has_a_seat_of_its_own(mut tokens: Vec<u64>) -> Result<()> {
    tokens.sort_unstable();
    ensure!(!tokens.contains(&0), "a handler ran without a seat");
    let twice = tokens.windows(2).find(|pair| pair[0] == pair[1]);
    ensure!(twice.is_none(), "two handlers ran by one token: {twice:?}");
    Ok(())
}

/// As many are admitted at once as there are seats, and no more.
async fn all_seats_are_there(cluster: &Cluster, plan: Plan) -> Result<()> {
    let api = cluster.api();
    // No seat expires meanwhile.
    let stay = json!({"claim_timeout_ms": HOUR_MS});
    api.admin(LINE, "configure", stay).await?;
    for nth in 0..=plan.seats {
        let status = api.enter(LINE, &format!("last-{nth}")).await?;
        let state = if nth < plan.seats {
            "admitted"
        } else {
            "waiting"
        };
        ensure!(status["state"] == state, "{nth}: {status}");
    }
    Ok(())
}

/// Adds the counts of the report that a process printed last.
fn add(sum: &mut Value, printed: &str) -> Result<()> {
    let last = printed.lines().rfind(|line| line.starts_with('{'));
    let report: Value = serde_json::from_str(last.with_context(|| printed.to_owned())?)?;
    for (kind, count) in report.as_object().context("no map")? {
        let before = sum[kind].as_u64().unwrap_or_default();
        sum[kind] = json!(before + count.as_u64().context("no number")?);
    }
    Ok(())
}

/// The line's token events, as they come.
struct Events(std::sync::Arc<std::sync::Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    version: u64,
    admitted: Vec<u64>,
    /// When, and why.
    gone: std::collections::BTreeMap<u64, (Instant, String)>,
}

impl Events {
    async fn follow(cluster: &Cluster) -> Result<Events> {
        let subject = format!("nowserving.event.{LINE}.token.>");
        let mut events = cluster.api().subscribe(subject).await?;
        let seen = std::sync::Arc::new(std::sync::Mutex::new(Seen::default()));
        let books = seen.clone();
        tokio::spawn(async move {
            while let Some(message) = events.next().await {
                let event = serde_json::from_slice::<Value>(&message.payload);
                if let (Ok(event), Ok(mut books)) = (event, books.lock()) {
                    books.take(&event);
                }
            }
        });
        Ok(Events(seen))
    }

    fn overtaken(&self) -> Result<usize> {
        let seen = self.0.lock().ok().context("the reader has failed")?;
        let pairs = seen.admitted.windows(2);
        Ok(pairs.filter(|pair| pair[0] >= pair[1]).count())
    }

    fn gone(&self, token: u64) -> Result<(Instant, String)> {
        let seen = self.0.lock().ok().context("the reader has failed")?;
        let gone = seen.gone.get(&token).cloned();
        gone.with_context(|| format!("no event that token {token} is gone"))
    }
}

impl Seen {
    fn take(&mut self, event: &Value) {
        let (Some(version), Some(token)) = (event["version"].as_u64(), event["token"].as_u64())
        else {
            return;
        };
        // A new leader may publish again what its predecessor has published.
        if version <= self.version {
            return;
        }
        self.version = version;
        match event["event"].as_str() {
            Some("admitted") => self.admitted.push(token),
            Some("gone") => {
                let reason = event["reason"].as_str().unwrap_or_default();
                self.gone.insert(token, (Instant::now(), reason.to_owned()));
            }
            _ => {}
        }
    }
}
