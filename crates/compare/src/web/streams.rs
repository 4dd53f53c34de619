//! Many streams of one line: how long a move takes to each, and what a watcher costs a gateway.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use hdrhistogram::Histogram;
use nowserving_client::{Change, SettingsPatch};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::Stage;
use super::browser::Browser;
use super::wire::EventReader;

/// So many enter, and so many streams begin, at once.
const AT_ONCE: usize = 64;
const HOUR_MS: u64 = 3_600_000;

#[derive(clap::Args)]
pub struct StreamsArgs {
    #[arg(long, default_value_t = 1_000)]
    watchers: u32,
    /// Moves, one after the other
    #[arg(long, default_value_t = 10)]
    moves: u32,
    /// Milliseconds between two moves
    #[arg(long, default_value_t = 3_000)]
    every_ms: u64,
    /// Processes of the gateways, whose memory is told
    #[arg(long, value_delimiter = ',')]
    pids: Vec<u32>,
}

/// What the watchers have seen.
#[derive(Default)]
struct Seen {
    /// Watchers whose place is known, and events of all.
    open: AtomicU64,
    events: AtomicU64,
    breaks: AtomicU64,
    /// By how many have left: how long it took to hear of that.
    heard: Mutex<BTreeMap<u64, Vec<Duration>>>,
    /// When so many had left.
    moved: Mutex<BTreeMap<u64, Instant>>,
}

pub async fn run(stage: &Stage, args: StreamsArgs) -> Result<ExitCode> {
    let settings = SettingsPatch {
        seats: Some(Change::Set(1)),
        queue_limit: Some(Change::Set(args.watchers + args.moves + 10)),
        waiting_idle_timeout_ms: Some(Change::Set(60_000)),
        claim_timeout_ms: Some(Change::Set(HOUR_MS)),
        checkout_timeout_ms: Some(Change::Set(HOUR_MS)),
        ..SettingsPatch::default()
    };
    let line = stage.line(settings).await?;
    // The first ones hold the seat, and leave one by one.
    let mut leaving = Vec::new();
    for nth in 0..=args.moves {
        let entered = line.enter(format!("first-{nth}")).await?;
        leaving.push(entered.ticket.context("no ticket")?);
    }
    let before = memory_kib(&args.pids);
    let tickets: Vec<(u32, String)> = futures::stream::iter(0..args.watchers)
        .map(|nth| {
            let line = line.clone();
            async move {
                let entered = line.enter(format!("watcher-{nth}")).await?;
                anyhow::Ok((nth, entered.ticket.context("no ticket")?))
            }
        })
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .collect::<Result<_>>()?;
    let seen = Arc::new(Seen::default());
    let began = Instant::now();
    let mut watchers = JoinSet::new();
    for (nth, ticket) in tickets {
        let mut browser = Browser::new(Arc::clone(&stage.gateways), &stage.name, nth);
        browser.take_ticket(&ticket);
        watchers.spawn(watch(browser, Arc::clone(&seen)));
        if nth as usize % AT_ONCE == AT_ONCE - 1 {
            sleep(Duration::from_millis(20)).await;
        }
    }
    let all = u64::from(args.watchers);
    while seen.open.load(Ordering::Relaxed) < all && began.elapsed() < Duration::from_secs(60) {
        sleep(Duration::from_millis(100)).await;
    }
    let open = seen.open.load(Ordering::Relaxed);
    println!(
        "{open} of {all} streams open after {:.1} s",
        began.elapsed().as_secs_f64()
    );
    ensure!(open > 0, "no stream");
    sleep(Duration::from_secs(2)).await;
    for (before, after) in before.iter().zip(memory_kib(&args.pids)) {
        let share = all / args.pids.len().max(1) as u64;
        let each = after.saturating_sub(*before) as f64 / share as f64;
        println!(
            "memory of a gateway: {before} KiB without streams, {after} KiB with; {each:.1} KiB a watcher"
        );
    }
    for (gone, ticket) in (1..).zip(leaving) {
        let now = Instant::now();
        lock(&seen.moved).insert(gone, now);
        line.leave(&ticket).await?;
        sleep(Duration::from_millis(args.every_ms)).await;
        if gone == u64::from(args.moves) {
            break;
        }
    }
    tell(&seen, open)?;
    watchers.abort_all();
    stage.delete().await;
    Ok(ExitCode::SUCCESS)
}

fn tell(seen: &Seen, open: u64) -> Result<()> {
    let mut all = Histogram::<u64>::new(3)?;
    for (gone, times) in &*lock(&seen.heard) {
        for time in times {
            all.record(time.as_millis() as u64)?;
        }
        let slowest = times.iter().max().copied().unwrap_or_default();
        println!(
            "move {gone}: {} of {open} heard of it, the last after {} ms",
            times.len(),
            slowest.as_millis()
        );
    }
    let at = |share| all.value_at_quantile(share);
    println!(
        "median {} ms, 99 % {} ms, slowest {} ms",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    let (events, breaks) = (
        seen.events.load(Ordering::Relaxed),
        seen.breaks.load(Ordering::Relaxed),
    );
    println!("{events} events; {breaks} streams broke");
    Ok(())
}

async fn watch(mut browser: Browser, seen: Arc<Seen>) {
    // The place when it began: each move is one less.
    let mut first = None;
    let mut last = 0;
    loop {
        let mut reader = EventReader::default();
        if let Ok(Ok(mut wire)) = browser.stream().await {
            while let Ok(Some(bytes)) = wire.more().await {
                let now = Instant::now();
                for event in reader.take(&bytes) {
                    seen.events.fetch_add(1, Ordering::Relaxed);
                    let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
                    let Some(position) = data["position"].as_u64() else {
                        continue;
                    };
                    let first = *first.get_or_insert_with(|| {
                        seen.open.fetch_add(1, Ordering::Relaxed);
                        position
                    });
                    let gone = first.saturating_sub(position);
                    // One event may tell of several moves.
                    for gone in last + 1..=gone {
                        if let Some(moved) = lock(&seen.moved).get(&gone) {
                            lock(&seen.heard)
                                .entry(gone)
                                .or_default()
                                .push(now - *moved);
                        }
                    }
                    last = last.max(gone);
                }
            }
        }
        seen.breaks.fetch_add(1, Ordering::Relaxed);
        sleep(Duration::from_millis(reader.retry_ms.unwrap_or(3_000))).await;
    }
}

/// Resident memory of processes.
fn memory_kib(pids: &[u32]) -> Vec<u64> {
    let of = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    pids.iter().map(|pid| of(pid).unwrap_or(0)).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
