//! Many streams of one line: how long a move takes to each, what a watcher costs a gateway, and what watchers notice when a
//! gateway or the leader is killed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use nowserving_client::{Change, Line, SettingsPatch};
use serde::Serialize;
use serde_json::Value;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};

use super::browser::Browser;
use super::shopper::{REFUSED_MS, pause};
use super::stage::{LINE, Stage};
use super::wire::EventReader;
use super::{CrowdHttpArgs, Found, Steps, quantile_ms};

/// So many enter, and so many streams begin, at once.
const AT_ONCE: usize = 64;
const HOUR_MS: u64 = 3_600_000;
/// Longer than it takes to enter, to open the streams and to kill a gateway; those at the front have no stream at all.
const IDLE_MS: u64 = 600_000;
const MOVE_EVERY_MS: u64 = 3_000;
const OPENS_WITHIN: Duration = Duration::from_secs(120);
/// After a gateway was killed; most browsers are back long before.
const BACK_WITHIN: Duration = Duration::from_secs(60);
const HEARD_WITHIN: Duration = Duration::from_secs(30);
/// Buffers of streams that begin are given back.
const SETTLES: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The goal of a move.
const SOON: Duration = Duration::from_secs(1);

#[derive(Debug, Serialize)]
pub struct Section {
    watchers: u64,
    /// Of these, with an open stream.
    open: u64,
    opened_within_ms: u64,
    /// Of both gateways, before the first stream and with all of them.
    memory_before_kib: u64,
    memory_kib: u64,
    kib_a_watcher: f64,
    moves: Heard,
    gateway_killed: Back,
    leader_killed: Led,
    /// Watchers whose number became another one, or whose place grew.
    changed: u64,
}

/// How long moves took to the watchers.
#[derive(Debug, Serialize)]
struct Heard {
    moves: u64,
    /// Of moves times watchers.
    heard: u64,
    within_1_s_percent: f64,
    median_ms: u64,
    p99_ms: u64,
    max_ms: u64,
}

/// What the death of a gateway did.
#[derive(Debug, Serialize)]
struct Back {
    /// Streams that broke.
    broke: u64,
    /// Watchers without a stream in the end.
    missing: u64,
    /// From the kill until all had a stream again.
    all_back_ms: u64,
    /// Streams asked for in the busiest second.
    most_connects_a_second: u64,
    /// Answers that were no stream.
    refused: u64,
}

/// What the death of the leader did.
#[derive(Debug, Serialize)]
struct Led {
    watchers: u64,
    broke: u64,
    /// Watchers who were told that the line does not answer.
    told_unavailable: u64,
    /// From the kill until so many had heard of a move that was asked for right after it.
    median_ms: u64,
    p99_ms: u64,
    max_ms: u64,
    heard: u64,
}

impl Found for Section {
    fn is_well(&self) -> bool {
        let all = self.moves.moves * self.open;
        self.open == self.watchers
            && self.changed == 0
            && self.moves.heard == all
            && self.gateway_killed.missing == 0
            && self.leader_killed.heard == self.leader_killed.watchers
            && self.leader_killed.broke == 0
            && self.leader_killed.told_unavailable == 0
    }

    fn text(&self) -> String {
        let Section {
            moves,
            gateway_killed: gateway,
            leader_killed: leader,
            ..
        } = self;
        let rows = [
            (
                "streams open",
                format!(
                    "{} of {}, after {:.1} s",
                    self.open,
                    self.watchers,
                    self.opened_within_ms as f64 / 1e3
                ),
                "all",
            ),
            (
                "memory of both gateways",
                format!(
                    "{} MiB without, {} MiB with: {:.1} KiB a watcher",
                    self.memory_before_kib / 1_024,
                    self.memory_kib / 1_024,
                    self.kib_a_watcher
                ),
                "at most 16 KiB",
            ),
            (
                "a move reaches within 1 s",
                format!(
                    "{:.2} % (median {} ms, 99 % {} ms, slowest {} ms; {} moves)",
                    moves.within_1_s_percent,
                    moves.median_ms,
                    moves.p99_ms,
                    moves.max_ms,
                    moves.moves
                ),
                "99 %",
            ),
            (
                "kill -9 of a gateway",
                format!(
                    "{} streams broke, all back after {:.1} s, {} missing",
                    gateway.broke,
                    gateway.all_back_ms as f64 / 1e3,
                    gateway.missing
                ),
                "15 s, none",
            ),
            (
                "streams asked for in the busiest second",
                format!(
                    "{} ({} refused)",
                    gateway.most_connects_a_second, gateway.refused
                ),
                "at most 2,000",
            ),
            (
                "kill -9 of the leader",
                format!(
                    "{} watch: {} streams broke, {} were told \"unavailable\"",
                    leader.watchers, leader.broke, leader.told_unavailable
                ),
                "none, none",
            ),
            (
                "places go on after",
                format!(
                    "median {} ms, 99 % {} ms, slowest {} ms",
                    leader.median_ms, leader.p99_ms, leader.max_ms
                ),
                "3 s",
            ),
            (
                "numbers that changed, places that grew",
                self.changed.to_string(),
                "0",
            ),
        ];
        let mut text = "\n## streams\n\n| | measured | wanted |\n|---|---|---|".to_owned();
        for (what, measured, wanted) in rows {
            text += &format!("\n| {what} | {measured} | {wanted} |");
        }
        text
    }
}

/// What the watchers have seen.
#[derive(Default)]
struct Seen {
    /// Streams that have told a place, by gateway.
    open: [AtomicU64; 2],
    breaks: AtomicU64,
    refused: AtomicU64,
    unavailable: AtomicU64,
    changed: AtomicU64,
    /// When streams were asked for.
    asked: Mutex<Vec<Instant>>,
    /// By how many have left: how long it took to hear of that.
    heard: Mutex<BTreeMap<u64, Vec<Duration>>>,
    /// When so many had left.
    moved: Mutex<BTreeMap<u64, Instant>>,
}

impl Seen {
    fn open(&self) -> u64 {
        self.open.iter().map(|it| it.load(Ordering::Relaxed)).sum()
    }

    fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Relaxed)
    }

    fn heard(&self, gone: u64) -> u64 {
        lock(&self.heard).get(&gone).map_or(0, Vec::len) as u64
    }

    /// How long these moves took, sorted.
    fn times(&self, moves: impl Iterator<Item = u64>) -> Vec<Duration> {
        let heard = lock(&self.heard);
        let times = moves.filter_map(|gone| heard.get(&gone)).flatten();
        let mut times: Vec<Duration> = times.copied().collect();
        times.sort_unstable();
        times
    }
}

pub async fn run(steps: &Steps, args: &CrowdHttpArgs) -> Result<Section> {
    steps.begin("streams: starting nats-server, three nodes and two gateways");
    let mut stage = Stage::start().await?;
    let moves = u64::from(args.moves);
    let settings = SettingsPatch {
        seats: Some(Change::Set(1)),
        queue_limit: Some(Change::Set(args.watchers + args.moves + 10)),
        waiting_idle_timeout_ms: Some(Change::Set(IDLE_MS + moves * MOVE_EVERY_MS)),
        claim_timeout_ms: Some(Change::Set(HOUR_MS)),
        checkout_timeout_ms: Some(Change::Set(HOUR_MS)),
        ..SettingsPatch::default()
    };
    let line = stage.line(settings).await?;
    // They hold the seat, one after the other, and leave.
    let mut leaving = Vec::new();
    for nth in 0..moves + 2 {
        let entered = line.enter(format!("first-{nth}")).await?;
        leaving.push(entered.ticket.context("no ticket")?);
    }
    let mut leaving = leaving.into_iter();
    let memory_before_kib = stage.memory_kib()?;
    steps.begin(&format!("streams: {} visitors enter", args.watchers));
    let tickets = enter(&line, args.watchers).await?;
    let seen = Arc::new(Seen::default());
    steps.begin("streams: they open their streams");
    let began = Instant::now();
    let mut watchers = JoinSet::new();
    let mut handles = Vec::new();
    for (nth, ticket) in (0..).zip(tickets) {
        let mut browser = Browser::new(Arc::clone(&stage.doors), LINE, nth);
        browser.take_ticket(&ticket);
        handles.push(watchers.spawn(watch(browser, Arc::clone(&seen))));
        if handles.len() % AT_ONCE == 0 {
            sleep(Duration::from_millis(20)).await;
        }
    }
    let all = u64::from(args.watchers);
    let opened = until(OPENS_WITHIN, || seen.open() >= all).await;
    let open = seen.open();
    ensure!(open > 0, "no stream");
    sleep(SETTLES).await;
    let memory_kib = stage.memory_kib()?;
    for (gone, ticket) in (1..=moves).zip(&mut leaving) {
        steps.begin(&format!("streams: move {gone} of {moves}"));
        lock(&seen.moved).insert(gone, Instant::now());
        line.leave(&ticket).await?;
        sleep(Duration::from_millis(MOVE_EVERY_MS)).await;
    }
    let heard = heard(&seen, moves, open);
    let gateway_killed = kill_gateway(steps, &mut stage, &seen).await?;
    let last = leaving.next().context("nobody holds the seat")?;
    let watching = kept(&handles, args.leader_watchers, &seen).await;
    let leader_killed = kill_leader(steps, &mut stage, &seen, moves + 1, &last, watching).await?;
    watchers.abort_all();
    Ok(Section {
        watchers: all,
        open,
        opened_within_ms: (opened - began).as_millis() as u64,
        memory_before_kib,
        memory_kib,
        kib_a_watcher: memory_kib.saturating_sub(memory_before_kib) as f64 / open as f64,
        moves: heard,
        gateway_killed,
        leader_killed,
        changed: seen.changed.load(Ordering::Relaxed),
    })
}

/// Their tickets, in the order of their numbers.
async fn enter(line: &Line, visitors: u32) -> Result<Vec<String>> {
    let entered = futures::stream::iter(0..visitors).map(|nth| async move {
        let entered = line.enter(format!("watcher-{nth}")).await?;
        anyhow::Ok((entered.token, entered.ticket.context("no ticket")?))
    });
    let mut tickets: Vec<(u64, String)> = entered.buffer_unordered(AT_ONCE).try_collect().await?;
    tickets.sort_unstable();
    Ok(tickets.into_iter().map(|(_, ticket)| ticket).collect())
}

fn heard(seen: &Seen, moves: u64, open: u64) -> Heard {
    let times = seen.times(1..=moves);
    let soon = times.iter().filter(|time| **time <= SOON).count();
    let all = (moves * open).max(1);
    Heard {
        moves,
        heard: times.len() as u64,
        within_1_s_percent: soon as f64 * 100.0 / all as f64,
        median_ms: quantile_ms(&times, 0.5),
        p99_ms: quantile_ms(&times, 0.99),
        max_ms: quantile_ms(&times, 1.0),
    }
}

/// Kill -9 of the second gateway. It stays away until all are back at the other one.
async fn kill_gateway(steps: &Steps, stage: &mut Stage, seen: &Seen) -> Result<Back> {
    steps.begin("streams: kill -9 of a gateway");
    let (open, breaks) = (seen.open(), seen.breaks());
    let its = seen.open[1].load(Ordering::Relaxed);
    let refused = seen.refused.load(Ordering::Relaxed);
    lock(&seen.asked).clear();
    let killed = Instant::now();
    stage.gateways[1].kill().await?;
    let is_back = || seen.breaks() - breaks >= its && seen.open() >= open;
    let back = until(BACK_WITHIN, is_back).await;
    let asked = std::mem::take(&mut *lock(&seen.asked));
    stage.gateways[1].start_again().await?;
    stage.ready().await?;
    Ok(Back {
        broke: seen.breaks() - breaks,
        missing: open.saturating_sub(seen.open()),
        all_back_ms: (back - killed).as_millis() as u64,
        most_connects_a_second: busiest_second(asked),
        refused: seen.refused.load(Ordering::Relaxed) - refused,
    })
}

/// Only the first so many go on watching: how many that are. Nobody behind them moves their places.
async fn kept(handles: &[AbortHandle], keep: u32, seen: &Seen) -> u64 {
    let keep = handles.len().min(keep as usize);
    handles[keep..].iter().for_each(AbortHandle::abort);
    until(HEARD_WITHIN, || seen.open() <= keep as u64).await;
    sleep(SETTLES).await;
    seen.open()
}

/// Kill -9 of the leader, and a move right after it.
async fn kill_leader(
    steps: &Steps,
    stage: &mut Stage,
    seen: &Seen,
    gone: u64,
    leaves: &str,
    watchers: u64,
) -> Result<Led> {
    steps.begin(&format!(
        "streams: kill -9 of the leader while {watchers} watch"
    ));
    let breaks = seen.breaks();
    let unavailable = seen.unavailable.load(Ordering::Relaxed);
    let line = stage.client.line(LINE)?;
    let killed = || {
        lock(&seen.moved).insert(gone, Instant::now());
    };
    let leader = stage.kill_leader(killed).await?;
    line.leave(leaves).await?;
    until(HEARD_WITHIN, || seen.heard(gone) >= watchers).await;
    let times = seen.times(std::iter::once(gone));
    let led = Led {
        watchers,
        broke: seen.breaks() - breaks,
        told_unavailable: seen.unavailable.load(Ordering::Relaxed) - unavailable,
        median_ms: quantile_ms(&times, 0.5),
        p99_ms: quantile_ms(&times, 0.99),
        max_ms: quantile_ms(&times, 1.0),
        heard: times.len() as u64,
    };
    stage.cluster.start_node(leader).await?;
    Ok(led)
}

/// Waits until it is so, or for so long. Returns when that was.
async fn until(within: Duration, is_so: impl Fn() -> bool) -> Instant {
    let end = Instant::now() + within;
    while !is_so() && Instant::now() < end {
        sleep(LOOK_EVERY).await;
    }
    Instant::now()
}

/// The most of them within one second.
fn busiest_second(mut times: Vec<Instant>) -> u64 {
    times.sort_unstable();
    let mut first = 0;
    let mut most = 0;
    for (last, time) in times.iter().enumerate() {
        while *time - times[first] >= Duration::from_secs(1) {
            first += 1;
        }
        most = most.max(last + 1 - first);
    }
    most as u64
}

/// A stream that has told a place.
struct Open<'a>(&'a AtomicU64);

impl Open<'_> {
    fn of(count: &AtomicU64) -> Open<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        Open(count)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One visitor who waits, whatever happens to the stream.
async fn watch(mut browser: Browser, seen: Arc<Seen>) {
    let mut place = Place::default();
    loop {
        let mut reader = EventReader::default();
        lock(&seen.asked).push(Instant::now());
        match browser.stream().await {
            Ok(Ok((mut wire, gateway))) => {
                let mut open = None;
                while let Ok(Some(bytes)) = wire.more().await {
                    let now = Instant::now();
                    for event in reader.take(&bytes) {
                        let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
                        if data["page"] == "unavailable" {
                            seen.unavailable.fetch_add(1, Ordering::Relaxed);
                        }
                        if place.take(&data, now, &seen) && open.is_none() {
                            open = Some(Open::of(&seen.open[gateway.min(1)]));
                        }
                    }
                }
                drop(open);
                seen.breaks.fetch_add(1, Ordering::Relaxed);
            }
            // The page's script tries later.
            Ok(Err(_)) => {
                seen.refused.fetch_add(1, Ordering::Relaxed);
                pause(REFUSED_MS).await;
                continue;
            }
            Err(_) => {}
        }
        sleep(Duration::from_millis(reader.retry_ms.unwrap_or(3_000))).await;
    }
}

/// What a watcher knows of its place.
#[derive(Default)]
struct Place {
    token: Option<u64>,
    /// When it began: each move is one less.
    first: Option<u64>,
    gone: u64,
}

impl Place {
    /// Whether the event tells a place.
    fn take(&mut self, data: &Value, now: Instant, seen: &Seen) -> bool {
        if let Some(token) = data["token"].as_u64()
            && *self.token.get_or_insert(token) != token
        {
            seen.changed.fetch_add(1, Ordering::Relaxed);
        }
        let Some(position) = data["position"].as_u64() else {
            return false;
        };
        let first = *self.first.get_or_insert(position);
        let Some(gone) = first
            .checked_sub(position)
            .filter(|gone| *gone >= self.gone)
        else {
            seen.changed.fetch_add(1, Ordering::Relaxed);
            return true;
        };
        // One event may tell of several moves.
        for gone in self.gone + 1..=gone {
            if let Some(moved) = lock(&seen.moved).get(&gone) {
                let mut heard = lock(&seen.heard);
                heard.entry(gone).or_default().push(now - *moved);
            }
        }
        self.gone = gone;
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_busiest_second_may_begin_anywhere() {
        let now = Instant::now();
        let at = |ms: &[u64]| {
            let times = ms.iter().map(|ms| now + Duration::from_millis(*ms));
            busiest_second(times.collect())
        };
        assert_eq!(at(&[]), 0);
        assert_eq!(at(&[0, 999, 1_000, 1_500, 1_998, 2_500]), 4);
    }

    #[test]
    fn a_place_that_grows_and_another_number_are_noticed() {
        let (seen, now) = (Seen::default(), Instant::now());
        let mut place = Place::default();
        let changed = || seen.changed.load(Ordering::Relaxed);
        assert!(!place.take(&json!({"page": "unavailable"}), now, &seen));
        assert!(place.take(&json!({"token": 7, "position": 5}), now, &seen));
        lock(&seen.moved).insert(2, now);
        assert!(place.take(&json!({"token": 7, "position": 3}), now, &seen));
        assert_eq!((seen.heard(1), seen.heard(2), changed()), (0, 1, 0));
        place.take(&json!({"position": 4}), now, &seen);
        assert_eq!(changed(), 1);
        place.take(&json!({"token": 8}), now, &seen);
        assert_eq!(changed(), 2);
    }
}
