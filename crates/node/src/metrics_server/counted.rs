//! The counters of lines, lanes and labels.
//!
//! Leaders count by line, since their term began. Series are bounded in number, so a line changes its series: it becomes
//! one of the busiest, or gets another label. Sums of what the leaders have counted would fall then, or contain what
//! another series has shown. So each series has a count of its own here, to which a scrape adds what was counted
//! since the last one. It goes on when this node leads the line again: what another node has counted meanwhile is not
//! in it, and `increase` over both is right.

use std::collections::BTreeMap;
use std::sync::Arc;

use nowserving_engine::facts::{LaneFacts, LineDetails, LineFacts, ShardFacts};
use nowserving_line::{LineName, Reason, RefusedCode};
use nowserving_shard::tallies::Tally;

use super::facts::{OTHERS, Shards};
use super::shown::Shown;
use super::text::Text;

/// So many series that are not shown now keep their counts, those that were shown last: a line that is one of the busiest
/// now and then goes on where it was. For Prometheus one that is forgotten begins anew.
const KEPT: usize = 200;

/// What this process has counted.
#[derive(Debug, Default)]
pub struct Counted {
    /// What the last scrape has seen.
    seen: Shards,
    scrapes: u64,
    /// By the values of their labels; of a line the second is empty.
    lines: Series,
    lanes: Series,
    labels: Series,
}

type Key = (String, String);

#[derive(Debug, Default)]
struct Series(BTreeMap<Key, Kept>);

#[derive(Debug, Default)]
struct Kept {
    tally: Tally,
    /// The newest scrape that shows it.
    shown_at: u64,
}

/// What a scrape shows.
pub struct Counts {
    lines: Vec<(Key, Tally)>,
    lanes: Vec<(Key, Tally)>,
    labels: Vec<(Key, Tally)>,
}

fn key(first: &str, second: &str) -> Key {
    (first.to_owned(), second.to_owned())
}

impl Series {
    fn add(&mut self, key: Key, more: &Tally) {
        let kept = self.0.entry(key).or_default();
        kept.tally = kept.tally.plus(more);
    }

    fn show(&mut self, keys: impl Iterator<Item = Key>, scrape: u64) -> Vec<(Key, Tally)> {
        let mut shown = Vec::new();
        for key in keys {
            let kept = self.0.entry(key.clone()).or_default();
            kept.shown_at = scrape;
            shown.push((key, kept.tally));
        }
        let hidden = self.0.iter().filter(|(_, kept)| kept.shown_at < scrape);
        let mut hidden: Vec<_> = hidden.map(|(key, kept)| (kept.shown_at, key)).collect();
        hidden.sort_unstable();
        hidden.truncate(hidden.len().saturating_sub(KEPT));
        let forgotten: Vec<Key> = hidden.into_iter().map(|(_, key)| key.clone()).collect();
        for key in forgotten {
            self.0.remove(&key);
        }
        shown
    }
}

impl Counted {
    /// How many series of lines are kept.
    #[cfg(test)]
    pub fn line_series(&self) -> usize {
        self.lines.0.len()
    }

    /// Adds what has been counted since the last scrape.
    pub fn count(&mut self, shards: &Shards, shown: &Shown<'_>) -> Counts {
        self.scrapes += 1;
        for (id, facts) in shards {
            let before = self.seen.get(id).cloned();
            if before.as_ref().is_some_and(|it| Arc::ptr_eq(it, facts)) {
                continue;
            }
            let before = before.filter(|it| it.term == facts.term);
            self.count_shard(before.as_deref(), facts, shown);
        }
        self.seen.clone_from(shards);
        let others = shown.others.as_ref().map(|_| key(OTHERS, ""));
        let lines = shown.lines.keys().map(|line| key(line.as_str(), ""));
        let lanes = shown.counted_lanes.iter().flat_map(|(line, lanes)| {
            let lanes = lanes.iter().map(|lane| lane.lane.as_str());
            lanes.map(|lane| key(line.as_str(), lane))
        });
        // All lines whose lanes have no counters.
        let has_lanes = !shown.counted_lanes.is_empty() || others.is_some();
        let other_lanes = has_lanes.then(|| key(OTHERS, OTHERS));
        let labels = shown.labels.keys().map(|(label, value)| key(label, value));
        Counts {
            lines: self.lines.show(lines.chain(others), self.scrapes),
            lanes: self.lanes.show(lanes.chain(other_lanes), self.scrapes),
            labels: self.labels.show(labels, self.scrapes),
        }
    }

    /// `before` is of the same term.
    fn count_shard(&mut self, before: Option<&ShardFacts>, facts: &ShardFacts, shown: &Shown<'_>) {
        let pairs = facts.labels.pairs().into_iter();
        let series = pairs.map(|(label, value)| shown.series_of_label(label, value));
        let mut labels: Vec<_> = series.map(|series| (series, Tally::default())).collect();
        let mut of_lines = facts.labels.of_lines().iter().peekable();
        let mut before_lines = before.map_or(&[][..], |it| &it.lines).iter().peekable();
        let before_lanes = before.map_or(&[][..], |it| &it.busiest).iter();
        let before_lanes = before_lanes.map(|it: &LineDetails| (&it.line, &it.lanes[..]));
        let before_lanes: BTreeMap<&LineName, &[LaneFacts]> = before_lanes.collect();
        let (mut other_lines, mut other_lanes) = (Tally::default(), Tally::default());
        for (place, line) in facts.lines.iter().enumerate() {
            while before_lines.next_if(|it| it.line < line.line).is_some() {}
            let same = before_lines
                .next_if(|it| it.line == line.line)
                .filter(|it| it.incarnation == line.incarnation);
            let more = match same {
                Some(same) if same.tally == line.tally => Tally::default(),
                Some(same) => line.tally.since(&same.tally),
                None => *line.tally,
            };
            let is_more = more != Tally::default();
            while let Some((_, pair)) = of_lines.next_if(|(of, _)| *of == place) {
                if is_more {
                    let (_, sum) = &mut labels[*pair];
                    *sum = sum.plus(&more);
                }
            }
            if !is_more {
                continue;
            }
            if shown.lines.contains_key(&line.line) {
                self.lines.add(key(line.line.as_str(), ""), &more);
            } else {
                other_lines = other_lines.plus(&more);
            }
            let lanes = shown.counted_lanes.get(&line.line).copied();
            let before_lanes = before_lanes.get(&line.line).copied();
            let before_lanes = same.map(|_| before_lanes.unwrap_or_default());
            let of_lanes = self.count_lanes(line, lanes.unwrap_or_default(), before_lanes);
            other_lanes = other_lanes.plus(&more.since(&of_lanes));
        }
        self.lines.add(key(OTHERS, ""), &other_lines);
        self.lanes.add(key(OTHERS, OTHERS), &other_lanes);
        for ((label, value), more) in labels {
            if more != Tally::default() {
                self.labels.add(key(label, value), &more);
            }
        }
    }

    /// Adds to the counts of these lanes, and returns the sum. `before`: what the last scrape has seen of them; `None` if it
    /// has not seen the line. A lane that it has not seen, of a line that it has, counts from now on.
    fn count_lanes(
        &mut self,
        line: &LineFacts,
        lanes: &[LaneFacts],
        before: Option<&[LaneFacts]>,
    ) -> Tally {
        let mut sum = Tally::default();
        for lane in lanes {
            let Some(tally) = lane.tally else {
                continue;
            };
            let base = match before {
                None => Some(Tally::default()),
                Some(before) => {
                    let mut before = before.iter();
                    let same = before.find(|it| it.lane == lane.lane);
                    same.and_then(|it| it.tally)
                }
            };
            if let Some(base) = base {
                let more = tally.since(&base);
                sum = sum.plus(&more);
                let key = key(line.line.as_str(), lane.lane.as_str());
                self.lanes.add(key, &more);
            }
        }
        sum
    }
}

/// The names of the metrics that lines, lanes and labels have.
struct Names {
    labels: &'static [&'static str],
    entered: &'static str,
    gone: &'static str,
    refused: &'static str,
    waits: &'static str,
    off_ratio: &'static str,
}

const LINES: Names = Names {
    labels: &["line"],
    entered: "nowserving_line_entered_total",
    gone: "nowserving_line_gone_total",
    refused: "nowserving_line_refused_total",
    waits: "nowserving_wait_seconds",
    off_ratio: "nowserving_forecast_off_ratio",
};
const LANES: Names = Names {
    labels: &["line", "lane"],
    entered: "nowserving_lane_entered_total",
    gone: "nowserving_lane_gone_total",
    refused: "nowserving_lane_refused_total",
    waits: "nowserving_lane_wait_seconds",
    off_ratio: "nowserving_lane_forecast_off_ratio",
};
const LABELS: Names = Names {
    labels: &["label", "value"],
    entered: "nowserving_label_entered_total",
    gone: "nowserving_label_gone_total",
    refused: "nowserving_label_refused_total",
    waits: "nowserving_label_wait_seconds",
    off_ratio: "nowserving_label_forecast_off_ratio",
};

impl Counts {
    pub fn write(&self, text: &mut Text) {
        for (names, series) in [
            (&LINES, &self.lines),
            (&LANES, &self.lanes),
            (&LABELS, &self.labels),
        ] {
            names.write(series, text);
        }
        let mut family = text.family("nowserving_line_shadow_total");
        for ((line, _), tally) in &self.lines {
            let outcomes = ["admitted", "held_back", "refused"];
            for (outcome, count) in outcomes.iter().zip(tally.shadow) {
                family.sample(&[("line", line), ("outcome", outcome)], count);
            }
        }
        let mut family = text.family("nowserving_line_forecasts_total");
        for ((line, _), tally) in &self.lines {
            let outcomes = [("judged", tally.judged()), ("p90_covered", tally.covered)];
            for (outcome, count) in outcomes {
                family.sample(&[("line", line), ("outcome", outcome)], count);
            }
        }
    }
}

impl Names {
    fn write(&self, series: &[(Key, Tally)], text: &mut Text) {
        let series = series.iter().map(|((first, second), tally)| {
            let values = [first.as_str(), second.as_str()];
            let labels: Vec<_> = self.labels.iter().copied().zip(values).collect();
            (labels, tally)
        });
        let series: Vec<_> = series.collect();
        let mut family = text.family(self.entered);
        for (labels, tally) in &series {
            family.sample(labels, tally.entered);
        }
        let mut family = text.family(self.gone);
        for (labels, tally) in &series {
            for (reason, count) in Reason::ALL.iter().zip(tally.gone) {
                family.sample(&with_reason(labels, reason.as_str()), count);
            }
        }
        let mut family = text.family(self.refused);
        for (labels, tally) in &series {
            for (code, count) in RefusedCode::ALL.iter().zip(tally.refused) {
                family.sample(&with_reason(labels, code.as_str()), count);
            }
        }
        let mut family = text.family(self.waits);
        for (labels, Tally { waits, .. }) in &series {
            family.histogram(labels, &waits.classes, Some(seconds(waits.sum_ms)));
        }
        let mut family = text.family(self.off_ratio);
        for (labels, tally) in &series {
            family.histogram(labels, &tally.off_by, None);
        }
    }
}

fn with_reason<'a>(labels: &[(&'a str, &'a str)], reason: &'a str) -> Vec<(&'a str, &'a str)> {
    [labels, &[("reason", reason)]].concat()
}

pub fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}
