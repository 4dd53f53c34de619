//! The metrics of lines, lanes and labels: written at each scrape from the newest facts that the engine has gathered.
//!
//! The loop's thread only puts a shard's facts in their place. A scrape sorts and sums, which takes some milliseconds for
//! 10,000 lines, on a thread of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nowserving_engine::facts::{
    Gathered, LINES_SHOWN, LabelFacts, LineCounts, LineDetails, LineFacts, ShardFacts,
};
use nowserving_line::{LineName, Reason, RefusedCode};

use super::text::Text;

/// Pairs of a label's name and value that have metrics of their own.
const LABELS_SHOWN: usize = 50;
/// What has no metrics of its own. No line or lane has this name.
const OTHERS: &str = "(others)";

/// Written by the shard loop, read by the HTTP server.
#[derive(Debug, Default)]
pub struct Facts {
    wanted: AtomicBool,
    /// The newest, of the shards that this node leads.
    shards: Mutex<Shards>,
    peer_lag: Mutex<BTreeMap<u64, u64>>,
    others: Mutex<Others>,
}

type Shards = BTreeMap<u32, Arc<ShardFacts>>;

/// What the lines without metrics of their own have counted. The sum of their counts would not do: it falls when a line
/// leaves them, which Prometheus takes for a new beginning.
#[derive(Debug, Default)]
struct Others {
    counts: LineCounts,
    /// What the last scrape has seen.
    seen: Shards,
}

impl Facts {
    /// Somebody shows them.
    pub fn want(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    pub fn are_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Takes what the engine has found.
    pub fn take(&self, gathered: Gathered) {
        // What they replace is dropped after the lock.
        match gathered {
            Gathered::Shard(shard, Some(facts)) => {
                let facts = Arc::new(facts);
                let old = lock(&self.shards).insert(shard, facts);
                drop(old);
            }
            Gathered::Shard(shard, None) => {
                let old = lock(&self.shards).remove(&shard);
                drop(old);
            }
            Gathered::PeerLag(lag) => *lock(&self.peer_lag) = lag,
        }
    }

    pub fn write(&self, text: &mut Text) {
        let mut family = text.family("nowserving_peer_lag_entries");
        for (peer, lag) in &*lock(&self.peer_lag) {
            family.sample(&[("peer", peer.to_string().as_str())], lag);
        }
        let shards = lock(&self.shards).clone();
        let shown = Shown::of(&shards);
        let others = {
            let mut others = lock(&self.others);
            others.count(&shards, &shown);
            others.counts
        };
        shown.write(&others, text);
        write_labels(&shards, text);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Others {
    /// Adds what has been counted since the last scrape. What a line counted before this node led it, another node has
    /// shown.
    fn count(&mut self, shards: &Shards, shown: &Shown<'_>) {
        for (id, facts) in shards {
            let before = self.seen.get(id).filter(|it| it.term == facts.term);
            let Some(before) = before.filter(|before| !Arc::ptr_eq(before, facts)) else {
                continue;
            };
            let mut before = before.lines.iter().peekable();
            for line in &facts.lines {
                while before.next_if(|it| it.line < line.line).is_some() {}
                let same = before
                    .next_if(|it| it.line == line.line)
                    .filter(|it| it.incarnation == line.incarnation);
                if !shown.lines.contains_key(&line.line) {
                    let base = same.map_or_else(LineCounts::default, |it| it.counts);
                    self.counts = self.counts.plus(&line.counts.since(&base));
                }
            }
        }
        self.seen.clone_from(shards);
    }
}

/// The lines that have metrics of their own, and sums over the others.
struct Shown<'a> {
    lines: BTreeMap<&'a LineName, &'a LineFacts>,
    details: Vec<&'a LineDetails>,
    /// Without details of them: `None` if there are no others.
    others: Option<Sums>,
}

#[derive(Default)]
struct Sums {
    waiting: u64,
    admitted: u64,
    in_checkout: u64,
    seats: u64,
}

impl<'a> Shown<'a> {
    fn of(shards: &'a Shards) -> Self {
        let mut lines: Vec<_> = shards.values().flat_map(|it| &it.lines).collect();
        let mut others = None;
        if lines.len() > LINES_SHOWN {
            lines.select_nth_unstable_by(LINES_SHOWN, |a, b| a.busier(b));
            let mut sums = Sums::default();
            for line in lines.drain(LINES_SHOWN..) {
                sums.waiting += line.waiting;
                sums.admitted += line.admitted;
                sums.in_checkout += line.in_checkout;
                sums.seats += line.seats;
            }
            others = Some(sums);
        }
        let lines: BTreeMap<_, _> = lines.into_iter().map(|it| (&it.line, it)).collect();
        // Whichever of all lines comes among the first does so in its shard, too.
        let details = shards.values().flat_map(|it| &it.busiest);
        let details = details.filter(|it| lines.contains_key(&it.line)).collect();
        Shown {
            lines,
            details,
            others,
        }
    }

    fn write(&self, others: &LineCounts, text: &mut Text) {
        self.write_gauges(text);
        self.write_details(text);
        let counts = self.lines.iter();
        let counts = counts.map(|(name, line)| (name.as_str(), &line.counts));
        let others = self.others.as_ref().map(|_| (OTHERS, others));
        // Others that are no more have no samples, and go on where they ended when they are back.
        let counts: Vec<_> = counts.chain(others).collect();
        write_counts(&counts, text);
    }

    fn write_gauges(&self, text: &mut Text) {
        type Of = (&'static str, fn(&LineFacts) -> u64, fn(&Sums) -> u64);
        let gauges: [Of; 4] = [
            ("nowserving_line_waiting", |it| it.waiting, |it| it.waiting),
            (
                "nowserving_line_admitted",
                |it| it.admitted,
                |it| it.admitted,
            ),
            (
                "nowserving_line_in_checkout",
                |it| it.in_checkout,
                |it| it.in_checkout,
            ),
            ("nowserving_line_seats", |it| it.seats, |it| it.seats),
        ];
        for (name, of_line, of_others) in gauges {
            let mut family = text.family(name);
            for (line, facts) in &self.lines {
                family.sample(&[("line", line.as_str())], of_line(facts));
            }
            if let Some(others) = &self.others {
                family.sample(&[("line", OTHERS)], of_others(others));
            }
        }
    }

    fn write_details(&self, text: &mut Text) {
        let mut family = text.family("nowserving_line_queue_limit");
        for it in &self.details {
            family.sample(&[("line", it.line.as_str())], it.queue_limit);
        }
        let mut family = text.family("nowserving_line_newcomer_eta_seconds");
        for it in &self.details {
            if let Some(eta_ms) = it.newcomer_eta_ms {
                family.sample(&[("line", it.line.as_str())], seconds(eta_ms));
            }
        }
        let mut family = text.family("nowserving_line_phase");
        for it in &self.details {
            let phase = ("phase", it.phase.as_str());
            family.sample(&[("line", it.line.as_str()), phase], 1);
        }
        let mut family = text.family("nowserving_line_held_back");
        for it in &self.details {
            let by = ("by", it.held_back_by.as_str());
            family.sample(&[("line", it.line.as_str()), by], 1);
        }
        let mut family = text.family("nowserving_line_gate");
        for it in &self.details {
            let gate = ("gate", it.gate.as_str());
            family.sample(&[("line", it.line.as_str()), gate], 1);
        }
        let mut family = text.family("nowserving_lane_waiting");
        for it in &self.details {
            for (lane, waiting) in &it.lanes {
                let lane = ("lane", lane.as_str());
                family.sample(&[("line", it.line.as_str()), lane], waiting);
            }
        }
        if let Some(others) = &self.others {
            family.sample(&[("line", OTHERS), ("lane", OTHERS)], others.waiting);
        }
    }
}

fn write_counts(lines: &[(&str, &LineCounts)], text: &mut Text) {
    let mut family = text.family("nowserving_line_entered_total");
    for &(line, counts) in lines {
        family.sample(&[("line", line)], counts.entered);
    }
    let mut family = text.family("nowserving_line_gone_total");
    for &(line, counts) in lines {
        for (reason, count) in Reason::ALL.iter().zip(counts.gone) {
            family.sample(&[("line", line), ("reason", reason.as_str())], count);
        }
    }
    let mut family = text.family("nowserving_line_refused_total");
    for &(line, counts) in lines {
        for (code, count) in RefusedCode::ALL.iter().zip(counts.refused) {
            family.sample(&[("line", line), ("reason", code.as_str())], count);
        }
    }
    let mut family = text.family("nowserving_line_shadow_total");
    for &(line, counts) in lines {
        for (outcome, count) in ["admitted", "held_back", "refused"]
            .iter()
            .zip(counts.shadow)
        {
            family.sample(&[("line", line), ("outcome", outcome)], count);
        }
    }
    let mut family = text.family("nowserving_line_forecasts_total");
    for &(line, counts) in lines {
        let outcomes = [("judged", counts.judged), ("p90_covered", counts.covered)];
        for (outcome, count) in outcomes {
            family.sample(&[("line", line), ("outcome", outcome)], count);
        }
    }
    let mut family = text.family("nowserving_wait_seconds");
    for &(line, LineCounts { waits, .. }) in lines {
        let sum = seconds(waits.sum_ms);
        family.histogram(&[("line", line)], &waits.classes, Some(sum));
    }
    let mut family = text.family("nowserving_forecast_off_ratio");
    for &(line, counts) in lines {
        family.histogram(&[("line", line)], &counts.off_by, None);
    }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

/// By name and value.
type LabelSums<'a> = BTreeMap<(&'a str, &'a str), LabelFacts>;

fn write_labels(shards: &Shards, text: &mut Text) {
    type Of = (&'static str, fn(&LabelFacts) -> u64);
    let sums = shown_labels(&labels(shards));
    let gauges: [Of; 5] = [
        ("nowserving_label_lines", |it| it.lines),
        ("nowserving_label_waiting", |it| it.waiting),
        ("nowserving_label_seats", |it| it.seats),
        ("nowserving_label_seats_held", |it| it.seats_held),
        ("nowserving_label_over_seats", |it| it.over_seats),
    ];
    for (name, of) in gauges {
        let mut family = text.family(name);
        for (&(label, value), sums) in &sums {
            family.sample(&[("label", label), ("value", value)], of(sums));
        }
    }
}

fn labels(shards: &Shards) -> LabelSums<'_> {
    let mut all = LabelSums::new();
    for (label, values) in shards.values().flat_map(|it| &it.labels) {
        for (value, sums) in values {
            let pair = (label.as_str(), value.as_str());
            all.entry(pair).or_default().add(sums);
        }
    }
    all
}

/// The pairs with the most tokens, and the others together.
fn shown_labels<'a>(all: &LabelSums<'a>) -> LabelSums<'a> {
    let mut pairs: Vec<_> = all.iter().collect();
    // A stable sort: of equals the first by name.
    pairs.sort_by_key(|(_, sums)| std::cmp::Reverse(sums.waiting + sums.seats_held));
    let (first, rest) = pairs.split_at(pairs.len().min(LABELS_SHOWN));
    let mut shown: LabelSums<'a> = first.iter().map(|(pair, sums)| (**pair, **sums)).collect();
    for ((label, _), sums) in rest {
        let is_shown = first.iter().any(|((it, _), _)| it == label);
        let label = if is_shown { *label } else { OTHERS };
        shown.entry((label, OTHERS)).or_default().add(sums);
    }
    shown
}

#[cfg(test)]
#[path = "facts_tests.rs"]
mod tests;
