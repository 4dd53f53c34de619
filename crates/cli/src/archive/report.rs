//! What a report says: totals by line and lane, waits, gaps, and one row a token.

use std::collections::BTreeMap;

use nowserving_client::{Key, LineName};
use serde::Serialize;

use super::events::{Archive, Id, LineEvents};
use super::gaps::{self, Differing, Gap, MissingNumbers};
use super::visits::{self, Visit};

/// The answer of `archive report`.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The day, if one was asked for; the visits are those that began on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
    /// The time zone of the day.
    pub zone: String,
    /// Of all lines together.
    pub total: Totals,
    /// In order of name and incarnation; without those that nobody visited.
    pub lines: Vec<LineReport>,
    /// Where events are missing, of any day.
    pub gaps: Vec<Gap>,
    pub missing_numbers: Vec<MissingNumbers>,
    /// Events that came again with another content; the first one counts.
    pub differing: Vec<Differing>,
    /// When lines were put back from a backup: what was undone by that, no event says.
    pub restored: Vec<Restored>,
    /// Events that came more than once, and were dropped.
    pub duplicates: u64,
    /// Rows that are no events.
    pub unreadable: u64,
    /// The first of those: which row, from 1, of which file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_unreadable: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_unreadable_in: Option<String>,
    /// All rows that were read.
    pub rows: u64,
}

/// One creation of a line.
#[derive(Debug, PartialEq, Serialize)]
pub struct LineReport {
    pub line: String,
    pub incarnation: u64,
    #[serde(flatten)]
    pub totals: Totals,
    /// In order of their first events.
    pub lanes: Vec<LaneReport>,
    /// In the order of entering; only if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<TokenRow>>,
}

/// A lane: those who entered in it, and those who were in it last.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct LaneReport {
    pub lane: String,
    #[serde(flatten)]
    pub totals: Totals,
    /// Tokens that came from other lanes to stay, and that went from here for good.
    pub moved_in: u64,
    pub moved_out: u64,
}

/// `entered + without_entered (+ moved_in - moved_out) = the sum of gone + the sum of live`
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    pub entered: u64,
    /// Tokens whose event `entered` is missing.
    pub without_entered: u64,
    /// Of all these.
    pub admitted: u64,
    /// Of the admitted: out of order, by an operator.
    pub taken: u64,
    pub claimed: u64,
    /// By reason.
    pub gone: BTreeMap<String, u64>,
    /// Those whose end is not in the archive, by the state that they were last in.
    pub live: BTreeMap<String, u64>,
    /// From entering until the admission.
    pub waits: Waits,
}

/// Exact, by rank: so many percent waited no longer.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Waits {
    pub count: u64,
    pub median_ms: Option<u64>,
    pub p90_ms: Option<u64>,
    pub p99_ms: Option<u64>,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct Restored {
    pub line: String,
    pub incarnation: u64,
    pub version: u64,
    pub at_ms: u64,
}

/// One token, with its present number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenRow {
    pub lane: String,
    pub token: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
    /// Its former numbers, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<Number>,
    pub state: &'static str,
    pub entered_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admitted_at_ms: Option<u64>,
    /// An operator took it out of order.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub taken: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gone_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Box<str>>,
    /// The state that it left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
}

/// A number that a token has had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Number {
    pub lane: String,
    pub token: u64,
}

/// What is asked for.
#[derive(Debug, Default)]
pub struct Scope {
    /// The visits that began from the first of these times on, and before the second.
    pub within_ms: Option<(u64, u64)>,
    /// These lines only; none: all.
    pub lines: Vec<LineName>,
    /// A row for each token.
    pub tokens: bool,
}

impl Scope {
    fn has(&self, visit: &Visit) -> bool {
        let at_ms = visit.entered_at_ms.unwrap_or(visit.first_at_ms);
        self.within_ms
            .is_none_or(|(from, until)| (from..until).contains(&at_ms))
    }
}

impl Report {
    pub fn new(archive: &Archive, scope: &Scope) -> Report {
        let mut report = Report {
            duplicates: archive.duplicates,
            unreadable: archive.unreadable,
            first_unreadable: archive.first_unreadable.as_ref().map(|first| first.row),
            first_unreadable_in: (archive.first_unreadable.as_ref())
                .map(|first| first.source.clone()),
            rows: archive.rows,
            ..Report::default()
        };
        let mut waits = Vec::new();
        for ((name, incarnation), events) in &archive.lines {
            if !scope.lines.is_empty() && !scope.lines.contains(name) {
                continue;
            }
            report
                .gaps
                .extend(gaps::of_line(name, *incarnation, events));
            let missing = gaps::missing_numbers(name, *incarnation, events);
            report.missing_numbers.extend(missing);
            let differing = events.differing.iter().map(|version| Differing {
                line: name.to_string(),
                incarnation: *incarnation,
                version: *version,
            });
            report.differing.extend(differing);
            report.restored.extend(restored(name, *incarnation, events));
            let mut visits = visits::of_line(events);
            visits.retain(|visit| scope.has(visit));
            if visits.is_empty() {
                continue;
            }
            waits.extend(visits.iter().filter_map(Visit::waited_ms));
            let mut line = LineReport::new(name, *incarnation, events, &visits);
            if scope.tokens {
                let rows = visits.into_iter().map(|visit| TokenRow::new(visit, events));
                line.tokens = Some(rows.collect());
            }
            report.total.add(&line.totals);
            report.lines.push(line);
        }
        report.total.waits = Waits::of(waits);
        report
    }
}

fn restored(name: &LineName, incarnation: u64, events: &LineEvents) -> Vec<Restored> {
    let of_line = events.line.iter();
    let restored = of_line.filter(|(_, it)| &*it.event == "restored");
    let restored = restored.map(|(version, it)| Restored {
        line: name.to_string(),
        incarnation,
        version: *version,
        at_ms: it.at_ms,
    });
    restored.collect()
}

impl LineReport {
    fn new(line: &LineName, incarnation: u64, events: &LineEvents, visits: &[Visit]) -> LineReport {
        let mut lanes: Vec<LaneReport> = Vec::new();
        lanes.resize_with(events.lanes.len(), LaneReport::default);
        let mut waits = vec![Vec::new(); lanes.len()];
        for visit in visits {
            let (first, last) = (visit.entered_in(), visit.id.0);
            let entered = &mut lanes[first].totals;
            match visit.entered_at_ms {
                Some(_) => entered.entered += 1,
                None => entered.without_entered += 1,
            }
            if first != last {
                lanes[first].moved_out += 1;
                lanes[last].moved_in += 1;
            }
            lanes[last].totals.ended_as(visit);
            waits[last].extend(visit.waited_ms());
        }
        let mut totals = Totals::default();
        for ((lane, name), waits) in lanes.iter_mut().zip(&events.lanes).zip(&waits) {
            lane.lane = name.to_string();
            totals.add(&lane.totals);
            lane.totals.waits = Waits::of(waits.clone());
        }
        totals.waits = Waits::of(waits.concat());
        LineReport {
            line: line.to_string(),
            incarnation,
            totals,
            lanes,
            tokens: None,
        }
    }
}

impl Totals {
    /// How a token fared whose last lane this is.
    fn ended_as(&mut self, visit: &Visit) {
        self.admitted += u64::from(visit.admitted_at_ms.is_some());
        self.taken += u64::from(visit.taken);
        self.claimed += u64::from(visit.claimed_at_ms.is_some());
        let (counts, word) = match &visit.reason {
            Some(reason) => (&mut self.gone, &**reason),
            None => (&mut self.live, visit.state()),
        };
        *counts.entry(word.to_owned()).or_default() += 1;
    }

    /// All but the waits, which do not add up.
    fn add(&mut self, more: &Totals) {
        self.entered += more.entered;
        self.without_entered += more.without_entered;
        self.admitted += more.admitted;
        self.taken += more.taken;
        self.claimed += more.claimed;
        for (reason, count) in &more.gone {
            *self.gone.entry(reason.clone()).or_default() += count;
        }
        for (state, count) in &more.live {
            *self.live.entry(state.clone()).or_default() += count;
        }
    }
}

impl Waits {
    fn of(mut waits: Vec<u64>) -> Waits {
        waits.sort_unstable();
        let percentile = |percent: usize| {
            let rank = (waits.len() * percent).div_ceil(100);
            waits.get(rank.saturating_sub(1)).copied()
        };
        Waits {
            count: waits.len() as u64,
            median_ms: percentile(50),
            p90_ms: percentile(90),
            p99_ms: percentile(99),
        }
    }
}

impl TokenRow {
    fn new(visit: Visit, events: &LineEvents) -> TokenRow {
        let named = |(lane, token): Id| Number {
            lane: events.lanes[lane].to_string(),
            token,
        };
        let Number { lane, token } = named(visit.id);
        TokenRow {
            lane,
            token,
            state: visit.state(),
            left: visit.left(),
            waited_ms: visit.waited_ms(),
            former: visit.former.into_iter().map(named).collect(),
            key: visit.key,
            entered_at_ms: visit.entered_at_ms,
            position: visit.position,
            admitted_at_ms: visit.admitted_at_ms,
            taken: visit.taken,
            claimed_at_ms: visit.claimed_at_ms,
            gone_at_ms: visit.gone_at_ms,
            reason: visit.reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_waits_that_somebody_had() {
        assert_eq!(Waits::of(Vec::new()), Waits::default());
        let waits = Waits::of((1..=200).rev().collect());
        let expected = (200, Some(100), Some(180), Some(198));
        let found = (waits.count, waits.median_ms, waits.p90_ms, waits.p99_ms);
        assert_eq!(found, expected);
        let one = Waits::of(vec![7]);
        assert_eq!((one.median_ms, one.p99_ms), (Some(7), Some(7)));
    }
}
