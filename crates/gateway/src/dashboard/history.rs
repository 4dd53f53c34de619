//! The last hour of lines, in memory: a sample each [`STEP`].

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use nowserving_client::{LineName, LineReply, LineSummary};
use nowserving_insight::pace;
use serde_json::{Value, json};

/// Between two samples.
pub const STEP: Duration = Duration::from_secs(10);
/// An hour of them.
const SAMPLES_MAX: usize = 360;
/// So many samples are a minute.
const SAMPLES_A_MINUTE: usize = 6;
/// So many lines have a history, each of at most 20 KiB; one more drops the one that was seen longest ago.
const LINES_MAX: usize = 500;
/// What was seen longer ago is not how it is now.
const OLD: Duration = Duration::from_secs(15);

/// How a line was when it was looked at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    pub at: Instant,
    pub incarnation: u64,
    pub waiting: u64,
    pub held: u64,
    pub seats: u32,
    /// `None` if it was not asked for.
    pub totals: Option<Totals>,
    pub newcomer_eta_ms: Option<u64>,
}

/// Since the line was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    pub entered: u64,
    pub admitted: u64,
    pub completed: u64,
}

impl Seen {
    /// As a list of lines has it.
    pub fn of_list(line: &LineSummary, at: Instant) -> Seen {
        Seen {
            at,
            incarnation: line.incarnation,
            waiting: line.waiting,
            held: line.admitted + line.in_checkout,
            seats: line.seats,
            totals: None,
            newcomer_eta_ms: None,
        }
    }

    /// As `show` has it.
    pub fn of_detail(line: &LineReply, newcomer_eta_ms: Option<u64>, at: Instant) -> Seen {
        let counts = &line.counts;
        Seen {
            at,
            incarnation: line.incarnation,
            waiting: counts.waiting,
            held: line.board.admitted + line.board.in_checkout,
            seats: line.board.seats,
            totals: Some(Totals {
                entered: pace::entered(counts),
                admitted: pace::admitted(counts),
                completed: pace::completed(counts),
            }),
            newcomer_eta_ms,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sample {
    waiting: Option<u32>,
    held: Option<u32>,
    seats: Option<u32>,
    newcomer_eta_ms: Option<u32>,
    entered_per_minute: Option<f32>,
    admitted_per_minute: Option<f32>,
    completed_per_minute: Option<f32>,
}

#[derive(Debug)]
struct History {
    incarnation: u64,
    samples: VecDeque<Sample>,
    newest: Seen,
    /// The totals of the last sample, and when they were such.
    before: Option<(Instant, Totals)>,
}

/// Of all lines that somebody looks at, and of the gateway's own.
#[derive(Debug, Default)]
pub struct Histories {
    lines: BTreeMap<LineName, History>,
    sampled: Option<(Instant, u64)>,
}

impl Histories {
    /// Notes how a line is. A new incarnation begins a new history.
    pub fn note(&mut self, name: &LineName, seen: Seen) {
        match self.lines.get_mut(name) {
            Some(history) if history.incarnation == seen.incarnation => {
                // Of two that came at the same time the one that knows more counts.
                let is_less = seen.totals.is_none() && history.newest.totals.is_some();
                if !(is_less && seen.at.saturating_duration_since(history.newest.at) < STEP) {
                    history.newest = seen;
                }
            }
            _ => {
                if self.lines.len() >= LINES_MAX && !self.lines.contains_key(name) {
                    let oldest = self.lines.iter().min_by_key(|(_, it)| it.newest.at);
                    if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                        self.lines.remove(&oldest);
                    }
                }
                let history = History {
                    incarnation: seen.incarnation,
                    samples: VecDeque::new(),
                    newest: seen,
                    before: seen.totals.map(|totals| (seen.at, totals)),
                };
                self.lines.insert(name.clone(), history);
            }
        }
    }

    /// Takes a sample of each line, [`STEP`] after the last one. Samples that were missed meanwhile (a process that stood
    /// still) are not known.
    pub fn sample(&mut self, now: Instant, at_ms: u64) {
        let since = self
            .sampled
            .map(|(before, _)| now.saturating_duration_since(before));
        let steps = since.map_or(1, |since| {
            (since.as_secs_f64() / STEP.as_secs_f64()).round() as usize
        });
        self.sampled = Some((now, at_ms));
        for history in self.lines.values_mut() {
            for _ in 1..steps.min(SAMPLES_MAX) {
                history.push(Sample::default());
            }
            let sample = history.take(now);
            history.push(sample);
        }
        // Nothing of the last hour.
        self.lines.retain(|_, it| {
            now.saturating_duration_since(it.newest.at) < STEP * SAMPLES_MAX as u32
        });
    }

    /// How many waited at each minute, the newest last.
    pub fn recent(&self, name: &LineName, incarnation: u64) -> Vec<Option<u32>> {
        let history = self
            .lines
            .get(name)
            .filter(|it| it.incarnation == incarnation);
        let samples = history.into_iter().flat_map(|it| it.samples.iter().rev());
        let waiting = samples.step_by(SAMPLES_A_MINUTE).map(|it| it.waiting);
        let mut waiting: Vec<Option<u32>> = waiting.collect();
        waiting.reverse();
        waiting
    }

    /// All of a line, as columns, with the time of the newest sample.
    pub fn columns(&self, name: &LineName) -> (u64, Value) {
        let empty = VecDeque::new();
        let samples = self.lines.get(name).map_or(&empty, |it| &it.samples);
        let column = |of: fn(&Sample) -> Option<u32>| samples.iter().map(of).collect::<Vec<_>>();
        let rate = |of: fn(&Sample) -> Option<f32>| {
            let rates = samples
                .iter()
                .map(|it| of(it).map(|rate| (f64::from(rate) * 10.0).round() / 10.0));
            rates.collect::<Vec<_>>()
        };
        let columns = json!({
            "waiting": column(|it| it.waiting),
            "held": column(|it| it.held),
            "seats": column(|it| it.seats),
            "newcomer_eta_ms": column(|it| it.newcomer_eta_ms),
            "entered_per_minute": rate(|it| it.entered_per_minute),
            "admitted_per_minute": rate(|it| it.admitted_per_minute),
            "completed_per_minute": rate(|it| it.completed_per_minute),
        });
        (self.sampled.map_or(0, |(_, at_ms)| at_ms), columns)
    }
}

impl History {
    fn push(&mut self, sample: Sample) {
        if self.samples.len() >= SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    fn take(&mut self, now: Instant) -> Sample {
        let seen = self.newest;
        if now.saturating_duration_since(seen.at) > OLD {
            self.before = None;
            return Sample::default();
        }
        let before = self.before.take();
        self.before = seen.totals.map(|totals| (seen.at, totals));
        let rate = |of: fn(&Totals) -> u64| {
            let ((at, before), totals) = before.zip(seen.totals)?;
            let minutes = seen.at.saturating_duration_since(at).as_secs_f32() / 60.0;
            (minutes > 0.0).then(|| of(&totals).saturating_sub(of(&before)) as f32 / minutes)
        };
        let few = |number: u64| u32::try_from(number).ok();
        Sample {
            waiting: few(seen.waiting),
            held: few(seen.held),
            seats: Some(seen.seats),
            newcomer_eta_ms: seen.newcomer_eta_ms.and_then(few),
            entered_per_minute: rate(|it| it.entered),
            admitted_per_minute: rate(|it| it.admitted),
            completed_per_minute: rate(|it| it.completed),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn seen(at: Instant, waiting: u64, entered: u64) -> Seen {
        Seen {
            at,
            incarnation: 1,
            waiting,
            held: 2,
            seats: 3,
            totals: Some(Totals {
                entered,
                admitted: 0,
                completed: 0,
            }),
            newcomer_eta_ms: Some(5_000),
        }
    }

    #[test]
    fn samples_are_columns_of_an_hour_at_most() {
        let (mut all, name, start) = (
            Histories::default(),
            "sale".parse().unwrap(),
            Instant::now(),
        );
        for nth in 0..400_u32 {
            let now = start + STEP * nth;
            all.note(&name, seen(now, u64::from(nth), u64::from(nth) * 4));
            all.sample(now, 1_000);
        }
        let (at_ms, columns) = all.columns(&name);
        assert_eq!(at_ms, 1_000);
        for column in columns.as_object().unwrap().values() {
            assert_eq!(column.as_array().unwrap().len(), SAMPLES_MAX);
        }
        assert_eq!(columns["waiting"][359], 399);
        assert_eq!(columns["entered_per_minute"][359], 24.0);
        let recent = all.recent(&name, 1);
        assert_eq!((recent.len(), recent[59]), (60, Some(399)));
        assert_eq!(recent[58], Some(393));
        assert!(all.recent(&name, 2).is_empty());
    }

    #[test]
    fn what_is_not_known_is_null() {
        let (mut all, name, start) = (
            Histories::default(),
            "sale".parse().unwrap(),
            Instant::now(),
        );
        all.note(&name, seen(start, 1, 0));
        all.sample(start, 1);
        // The process stood still for three steps; the line has not been seen since.
        all.sample(start + STEP * 3, 2);
        let (_, columns) = all.columns(&name);
        assert_eq!(columns["waiting"], json!([1, null, null, null]));
        assert_eq!(
            columns["entered_per_minute"],
            json!([null, null, null, null])
        );
    }

    #[test]
    fn another_incarnation_begins_anew_and_lines_are_bounded() {
        let (mut all, start) = (Histories::default(), Instant::now());
        let name: LineName = "sale".parse().unwrap();
        all.note(&name, seen(start, 1, 0));
        all.sample(start, 1);
        let again = Seen {
            incarnation: 2,
            ..seen(start, 7, 0)
        };
        all.note(&name, again);
        assert_eq!(all.columns(&name).1["waiting"], json!([]));
        for nth in 0..1_000_u64 {
            let name = format!("line-{nth}").parse().unwrap();
            all.note(&name, seen(start + Duration::from_millis(nth), 1, 0));
        }
        assert_eq!(all.lines.len(), LINES_MAX);
        assert!(!all.lines.contains_key(&name));
    }
}
