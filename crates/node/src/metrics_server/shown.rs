//! Which lines, lanes and labels have metrics of their own, and their gauges.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_engine::facts::{LINES_SHOWN, LaneFacts, LineDetails, LineFacts};
use nowserving_line::{HeldBackBy, LineName};

use super::counted::seconds;
use super::facts::{OTHERS, Shards};
use super::text::Text;

/// Pairs of a label's name and value that have metrics of their own.
const LABELS_SHOWN: usize = 50;
/// So many lanes have counters of their own: those of the busiest lines that have several.
const LANES_COUNTED: usize = 100;

/// What has metrics of its own, and sums over the others.
pub struct Shown<'a> {
    pub lines: BTreeMap<&'a LineName, &'a LineFacts>,
    /// The busiest come first.
    details: Vec<&'a LineDetails>,
    /// The lines whose lanes have counters of their own.
    pub counted_lanes: BTreeMap<&'a LineName, &'a [LaneFacts]>,
    /// Without details of them: `None` if there are no others.
    pub others: Option<Sums>,
    pub labels: LabelSums<'a>,
    full: u64,
    held_back: BTreeMap<&'static str, u64>,
}

/// Over several lines.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sums {
    lines: u64,
    waiting: u64,
    admitted: u64,
    in_checkout: u64,
    seats: u64,
    over_seats: u64,
}

/// By name and value.
pub type LabelSums<'a> = BTreeMap<(&'a str, &'a str), Sums>;

impl Sums {
    fn of(line: &LineFacts) -> Self {
        Self {
            lines: 1,
            waiting: line.waiting,
            admitted: line.admitted,
            in_checkout: line.in_checkout,
            seats: line.seats,
            over_seats: line.over_seats,
        }
    }

    fn add(&mut self, other: &Self) {
        self.lines += other.lines;
        self.waiting += other.waiting;
        self.admitted += other.admitted;
        self.in_checkout += other.in_checkout;
        self.seats += other.seats;
        self.over_seats += other.over_seats;
    }

    fn tokens(&self) -> u64 {
        self.waiting + self.admitted + self.in_checkout
    }
}

impl<'a> Shown<'a> {
    pub fn of(shards: &'a Shards) -> Self {
        let mut lines: Vec<_> = shards.values().flat_map(|it| &it.lines).collect();
        let mut others = None;
        if lines.len() > LINES_SHOWN {
            lines.select_nth_unstable_by(LINES_SHOWN, |a, b| a.busier(b));
            let mut sums = Sums::default();
            for line in lines.drain(LINES_SHOWN..) {
                sums.add(&Sums::of(line));
            }
            others = Some(sums);
        }
        let lines: BTreeMap<_, _> = lines.into_iter().map(|it| (&it.line, it)).collect();
        // Whichever of all lines comes among the first does so in its shard, too.
        let details = shards.values().flat_map(|it| &it.busiest);
        let details = details.filter_map(|it| Some((*lines.get(&it.line)?, it)));
        let mut details: Vec<_> = details.collect();
        details.sort_unstable_by(|(a, _), (b, _)| a.busier(b));
        let details: Vec<_> = details.into_iter().map(|(_, it)| it).collect();
        let mut held_back: BTreeMap<_, _> = HeldBackBy::WORDS.map(|by| (by, 0)).into();
        for (by, lines) in shards.values().flat_map(|it| &it.held_back) {
            *held_back.entry(*by).or_default() += lines;
        }
        Shown {
            lines,
            counted_lanes: counted_lanes(&details),
            details,
            others,
            labels: shown_labels(&labels(shards)),
            full: shards.values().map(|it| it.full).sum(),
            held_back,
        }
    }

    /// The series in which a label counts: the values of its labels.
    pub fn series_of_label(&self, label: &'a str, value: &'a str) -> (&'a str, &'a str) {
        [(label, value), (label, OTHERS)]
            .into_iter()
            .find(|series| self.labels.contains_key(series))
            .unwrap_or((OTHERS, OTHERS))
    }

    pub fn write(&self, text: &mut Text) {
        self.write_lines(text);
        self.write_details(text);
        self.write_lanes(text);
        self.write_labels(text);
        text.family("nowserving_lines_full").sample(&[], self.full);
        let mut family = text.family("nowserving_lines_held_back");
        for (by, lines) in &self.held_back {
            family.sample(&[("by", by)], lines);
        }
    }

    fn write_lines(&self, text: &mut Text) {
        type Of = (&'static str, fn(&Sums) -> u64);
        let gauges: [Of; 4] = [
            ("nowserving_line_waiting", |it| it.waiting),
            ("nowserving_line_admitted", |it| it.admitted),
            ("nowserving_line_in_checkout", |it| it.in_checkout),
            ("nowserving_line_seats", |it| it.seats),
        ];
        for (name, of) in gauges {
            let mut family = text.family(name);
            for (line, facts) in &self.lines {
                family.sample(&[("line", line.as_str())], of(&Sums::of(facts)));
            }
            if let Some(others) = &self.others {
                family.sample(&[("line", OTHERS)], of(others));
            }
        }
    }

    fn write_details(&self, text: &mut Text) {
        let mut family = text.family("nowserving_line_queue_limit");
        for it in &self.details {
            family.sample(&[("line", it.line.as_str())], it.queue_limit);
        }
        let mut family = text.family("nowserving_line_room");
        for it in &self.details {
            if let Some(room) = it.room {
                family.sample(&[("line", it.line.as_str())], room);
            }
        }
        let mut family = text.family("nowserving_line_full");
        for it in &self.details {
            family.sample(&[("line", it.line.as_str())], u8::from(it.is_full));
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
    }

    fn write_lanes(&self, text: &mut Text) {
        type Of = (
            &'static str,
            fn(&LaneFacts) -> Option<u64>,
            fn(&Sums) -> Option<u64>,
        );
        let gauges: [Of; 5] = [
            (
                "nowserving_lane_waiting",
                |it| Some(it.waiting),
                |it| Some(it.waiting),
            ),
            (
                "nowserving_lane_admitted",
                |it| Some(it.admitted),
                |it| Some(it.admitted),
            ),
            (
                "nowserving_lane_in_checkout",
                |it| Some(it.in_checkout),
                |it| Some(it.in_checkout),
            ),
            (
                "nowserving_lane_queue_limit",
                |it| Some(it.queue_limit?.0.into()),
                |_| None,
            ),
            ("nowserving_lane_room", |it| it.queue_limit?.1, |_| None),
        ];
        for (name, of_lane, of_others) in gauges {
            let mut family = text.family(name);
            for it in &self.details {
                for lane in &it.lanes {
                    if let Some(value) = of_lane(lane) {
                        let lane = ("lane", lane.lane.as_str());
                        family.sample(&[("line", it.line.as_str()), lane], value);
                    }
                }
            }
            if let Some(value) = self.others.as_ref().and_then(of_others) {
                family.sample(&[("line", OTHERS), ("lane", OTHERS)], value);
            }
        }
    }

    fn write_labels(&self, text: &mut Text) {
        type Of = (&'static str, fn(&Sums) -> u64);
        let gauges: [Of; 6] = [
            ("nowserving_label_lines", |it| it.lines),
            ("nowserving_label_waiting", |it| it.waiting),
            ("nowserving_label_admitted", |it| it.admitted),
            ("nowserving_label_in_checkout", |it| it.in_checkout),
            ("nowserving_label_seats", |it| it.seats),
            ("nowserving_label_over_seats", |it| it.over_seats),
        ];
        for (name, of) in gauges {
            let mut family = text.family(name);
            for (&(label, value), sums) in &self.labels {
                family.sample(&[("label", label), ("value", value)], of(sums));
            }
        }
    }
}

/// Those of the busiest lines with several lanes, as far as they are not too many.
fn counted_lanes<'a>(details: &[&'a LineDetails]) -> BTreeMap<&'a LineName, &'a [LaneFacts]> {
    let mut left = LANES_COUNTED;
    let several = details.iter().filter(|it| it.lanes.len() > 1);
    let counted = several.map_while(|it| {
        left = left.checked_sub(it.lanes.len())?;
        Some((&it.line, &it.lanes[..]))
    });
    counted.collect()
}

fn labels(shards: &Shards) -> LabelSums<'_> {
    let mut all = LabelSums::new();
    for facts in shards.values() {
        let pairs = facts.labels.pairs();
        let mut sums = vec![Sums::default(); pairs.len()];
        for (line, pair) in facts.labels.of_lines() {
            sums[*pair].add(&Sums::of(&facts.lines[*line]));
        }
        for (pair, sums) in pairs.into_iter().zip(sums) {
            all.entry(pair).or_default().add(&sums);
        }
    }
    all
}

/// The pairs with the most tokens, and the others together.
fn shown_labels<'a>(all: &LabelSums<'a>) -> LabelSums<'a> {
    let mut pairs: Vec<_> = all.iter().collect();
    // A stable sort: of equals the first by name.
    pairs.sort_by_key(|(_, sums)| std::cmp::Reverse(sums.tokens()));
    let (first, rest) = pairs.split_at(pairs.len().min(LABELS_SHOWN));
    let mut shown: LabelSums<'a> = first.iter().map(|(pair, sums)| (**pair, **sums)).collect();
    let names: BTreeSet<&str> = first.iter().map(|((label, _), _)| *label).collect();
    for ((label, _), sums) in rest {
        let label = if names.contains(label) {
            *label
        } else {
            OTHERS
        };
        shown.entry((label, OTHERS)).or_default().add(sums);
    }
    shown
}
