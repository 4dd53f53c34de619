//! The results of a rehearsal: the summary, the table of the run, the visits.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use nowserving_line::State;
use serde::Serialize;

use crate::config::Config;
use crate::queue::Pointers;

/// There is a row of the table for each so many milliseconds of virtual time.
pub const SAMPLE_EVERY_MS: u64 = 300;

/// A run in numbers. Shares are in percent, rounded to two digits, and none of nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Of the seats: how many were held, over the time in which anybody waited.
    pub seat_held_percent: Option<f64>,
    /// Of the seats: how many were in checkout, over the time in which anybody waited.
    pub seat_busy_percent: Option<f64>,
    /// The most seats ever held at once.
    pub seats_held_max: u64,
    /// The seats that there were, on average over the time in which anybody waited.
    pub seats_mean: Option<f64>,
    /// The fewest and the most that there were.
    pub seats_least: u64,
    pub seats_most: u64,
    /// How often the backend told other seats.
    pub seats_told: u64,
    /// How long a checkout took, the median; `None` unless the service gets slower by its load.
    pub service_p50_ms: Option<u64>,
    /// The 99th percentile of these times.
    pub service_p99_ms: Option<u64>,
    /// Admissions against the rules: past an earlier shopper of the same lane, or past the
    /// first of another lane that, with both lanes' boosts, goes first. Must be 0.
    pub overtakes: u64,
    /// The most seats ever held beyond `seats`. Must be 0.
    pub over_limit_max: u64,
    /// Impossible observations: admitted twice, without a number or without a call where that is needed, an answer with a seat that was never given, a
    /// number given again, gone twice. Must be 0.
    pub contradictions: u64,
    /// The median wait of admitted shoppers; a shopper admitted at once counts as 0.
    pub wait_p50_ms: Option<u64>,
    /// The 99th percentile of the waits of admitted shoppers.
    pub wait_p99_ms: Option<u64>,
    /// Of the shoppers that had to wait: how many got an `eta_ms` on entering.
    pub eta_told_percent: Option<f64>,
    /// Of the shoppers that got an `eta_ms` on entering and were admitted: for how many it was at most
    /// 15 % of the true wait off.
    pub eta_within_15_percent: Option<f64>,
    /// The same for forecasts that know the mean pace of admissions after the first turn of seats, who
    /// gives up and who goes first: an upper bound, but for luck.
    pub eta_within_15_bound_percent: Option<f64>,
    /// Of each shopper one forecast, drawn from all that it got after the first turn of seats (as
    /// many were given back as there are), on entering and at polls: for how many it was at most 15 %
    /// of the remaining wait off.
    pub later_eta_within_15_percent: Option<f64>,
    /// The same for forecasts that know as much as those of `eta_within_15_bound_percent`.
    pub later_eta_within_15_bound_percent: Option<f64>,
    /// How many forecasts `later_eta_within_15_percent` is of.
    pub later_eta_known: u64,
    /// Of the shoppers that entered in the first turn of seats (before as many were given back as there are), had to wait
    /// and were admitted: how many got an `eta_ms` on entering …
    pub first_turn_eta_told_percent: Option<f64>,
    /// … that was at most 35 % of the true wait off. (Not: of those that got one.)
    pub first_turn_eta_within_35_percent: Option<f64>,
    /// How many shoppers both are of.
    pub first_turn_known: u64,
    /// Of the shoppers that got an `eta_ms` on entering: how many waited no longer than `eta_p90_ms`. A shopper
    /// not admitted by then is a miss, even if it gave up later; one that gave up
    /// before is left out.
    pub eta_p90_coverage_percent: Option<f64>,
    /// How many got an `eta_ms` on entering.
    pub eta_told: u64,
    /// How many of them were admitted in the end: `eta_within_15_percent` is of these.
    pub eta_known: u64,
    /// Of how many of them it is known whether they had to wait longer than `eta_p90_ms`:
    /// `eta_p90_coverage_percent` is of these.
    pub eta_p90_known: u64,
    pub completed: u64,
    /// How many units of the quota they used; as many as completed without a quota.
    pub units_used: u64,
    /// When the last of them was used; `None` if none was.
    pub last_unit_at_ms: Option<u64>,
    /// Shoppers that entered and did not complete, by reason.
    pub gone: BTreeMap<String, u64>,
    /// The same by the stage that they left from.
    pub gone_from: BTreeMap<String, Stages>,
    /// Shoppers that got no number.
    pub turned_away: u64,
    /// The same by the code of the refusal.
    pub refused: BTreeMap<String, u64>,
    /// Changes of the schedule that could not be applied when their time came, in order.
    pub schedule_failed: Vec<FailedChange>,
    /// Shoppers that got a number.
    pub entered: u64,
    /// Still in the line when the rehearsal ended.
    pub still_live: u64,
    /// By the lane asked for, in the order of the line's lanes.
    pub lanes: Vec<LaneSummary>,
    /// Time since the line was opened during which at least one shopper waited.
    pub contended_ms: u64,
    /// Duration of the run, in virtual time.
    pub virtual_ms: u64,
    /// How often the dispatcher called, in a line whose tokens are called.
    pub calls: u64,
    /// How many were admitted by that.
    pub called: u64,
    /// The most checkouts that queued for their transaction at once.
    pub transactions_queued_max: u64,
    /// The median time that a checkout queued for its transaction; `None` without a limiter.
    pub transaction_wait_p50_ms: Option<u64>,
    /// The 99th percentile of these times.
    pub transaction_wait_p99_ms: Option<u64>,
    /// Requests for a status.
    pub polls: u64,
    /// Mean polls per second.
    pub polls_per_second: f64,
    /// Polls in the busiest second.
    pub polls_per_second_max: u64,
}

impl Summary {
    /// Whether the run broke no rule.
    pub fn is_sound(&self) -> bool {
        self.overtakes + self.over_limit_max + self.contradictions == 0
    }
}

/// A change of the line's schedule that was dropped, with all its settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailedChange {
    /// The time for which it was meant, in RFC 3339.
    pub at: String,
    /// The setting, and what is wrong with it.
    pub error: String,
}

impl fmt::Display for FailedChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FailedChange { at, error } = self;
        write!(
            f,
            "the change of the schedule for {at} could not be applied: {error}"
        )
    }
}

/// Shoppers by the stage of their visit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Stages {
    #[serde(skip_serializing_if = "is_zero")]
    pub waiting: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub admitted: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub in_checkout: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde wants it
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Stages {
    pub(crate) fn add(&mut self, state: State) {
        match state {
            State::Waiting => self.waiting += 1,
            State::Admitted => self.admitted += 1,
            State::InCheckout => self.in_checkout += 1,
            State::Gone => {}
        }
    }

    pub(crate) fn plus(self, other: &Self) -> Self {
        Self {
            waiting: self.waiting + other.waiting,
            admitted: self.admitted + other.admitted,
            in_checkout: self.in_checkout + other.in_checkout,
        }
    }

    /// Gone from a seat.
    pub(crate) fn seated(self) -> u64 {
        self.admitted + self.in_checkout
    }

    pub(crate) fn sum(self) -> u64 {
        self.waiting + self.seated()
    }
}

/// The shoppers that asked for one lane. A queue without lanes serves them all alike.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LaneSummary {
    pub lane: String,
    pub completed: u64,
    /// The median wait of admitted shoppers.
    pub wait_p50_ms: Option<u64>,
    /// The 99th percentile of the waits of admitted shoppers.
    pub wait_p99_ms: Option<u64>,
}

/// A lane of the queue at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct LaneRow {
    pub(crate) pointers: Pointers,
    pub(crate) waiting: u64,
}

/// The line at a moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) at_ms: u64,
    pub(crate) lanes: Vec<LaneRow>,
    pub(crate) waiting: u64,
    pub(crate) in_checkout: u64,
    pub(crate) admitted: u64,
    pub(crate) seats: u64,
    pub(crate) completed: u64,
    /// Gone without being served.
    pub(crate) gone: Stages,
    pub(crate) turned_away: u64,
    pub(crate) present: u64,
    /// Checkouts that queue for their transaction.
    pub(crate) transacting: u64,
    pub(crate) polls: u64,
    pub(crate) overtakes: u64,
    pub(crate) over_limit: u64,
    /// The `eta_ms` that an entrant would get.
    pub(crate) eta_ms: Option<u64>,
}

impl Row {
    /// The row of a lane, by its place in the table.
    pub(crate) fn lane(&self, no: usize) -> LaneRow {
        self.lanes.get(no).copied().unwrap_or_default()
    }
}

/// A shopper that got a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Visit {
    /// The lane that it asked for.
    pub(crate) lane: u8,
    pub(crate) entered_ms: u64,
    pub(crate) had_to_wait: bool,
    /// It entered before as many seats were given back as there are.
    pub(crate) in_first_turn: bool,
    /// It waited for the opening, and its place was drawn.
    pub(crate) is_drawn: bool,
    /// From the answer to `enter`.
    pub(crate) eta_ms: Option<u64>,
    pub(crate) eta_p90_ms: Option<u64>,
    /// One of those after the first turn of seats, and how many there were so far.
    pub(crate) later: Option<Told>,
    pub(crate) later_count: u64,
    pub(crate) admitted_ms: Option<u64>,
    /// How many were admitted in the whole run before it entered, and up to its own admission.
    pub(crate) admitted_before: u64,
    pub(crate) admitted_with: u64,
    /// When its wait ended without a seat. A shopper that vanishes stays until it is recycled: for so
    /// long it was not its turn.
    pub(crate) left_ms: Option<u64>,
    pub(crate) completed: bool,
}

/// A forecast that a shopper got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) at_ms: u64,
    pub(crate) eta_ms: u64,
    /// How many were admitted in the whole run before.
    pub(crate) admitted_before: u64,
}

impl Visit {
    pub(crate) fn wait_ms(&self) -> Option<u64> {
        Some(self.admitted_ms? - self.entered_ms)
    }
}

/// One algorithm's run.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub summary: Summary,
    pub(crate) rows: Vec<Row>,
    pub(crate) visits: Vec<Visit>,
    /// Of each checkout of a service that gets slower by its load: when it was done, and how long it took.
    pub(crate) took: Vec<(u64, u64)>,
}

impl Run {
    /// For how long more seats were held than there are, as far as the samples show.
    pub(crate) fn over_limit_ms(&self) -> u64 {
        let over = self.rows.iter().filter(|row| row.over_limit > 0);
        over.count() as u64 * SAMPLE_EVERY_MS
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub config: Config,
    /// The real line's run.
    pub real: Run,
    /// The seed article's algorithm on the same crowd, if that was asked for.
    pub naive: Option<Run>,
    /// The same crowd with the seats of the settings, if that was asked for.
    pub fixed: Option<Run>,
}

/// The seed article's columns, in its order, then those of our own.
const HEADER: &str = "SN,SEED,SINCE,UNTIL,LIMIT,ITEMS,CHECKIN,ORDER,ABORTCHECKIN,ABORTQUEUE,\
NOENTRY,THREAD,ADMITTED,SEATS,OVERLIMIT,OVERTAKES,POLLS,ETA_MS,ABORTADMITTED,TRANSACTING";

/// The columns of a run that is compared.
const OTHERS: [&str; 5] = ["ITEMS", "CHECKIN", "ADMITTED", "OVERLIMIT", "ORDER"];

impl Report {
    /// The summary of the real line's run; with a comparison, that one's under `naive` or `fixed`. One line
    /// of it is what `--json` prints.
    pub fn summary(&self) -> FullSummary<'_> {
        FullSummary {
            real: &self.real.summary,
            naive: self.naive.as_ref().map(|run| &run.summary),
            fixed: self.fixed.as_ref().map(|run| &run.summary),
        }
    }

    /// The real line's run as a table: the seed article's header and one row per 300 ms of
    /// virtual time, then further columns: one for the people waiting in each lane, and with a
    /// comparison the other run's as `NAIVE_…` or `FIXED_…`.
    pub fn csv(&self) -> String {
        let mut text = String::from(HEADER);
        let lanes = self.config.settings.lanes.len();
        for lane in 1..=lanes {
            let _ = write!(text, ",WAITING_LANE_{lane}");
        }
        let others: Vec<(&str, &Vec<Row>)> = self.others().collect();
        for (name, _) in &others {
            for column in OTHERS {
                let _ = write!(text, ",{name}_{column}");
            }
        }
        text.push('\n');
        let all = || {
            others
                .iter()
                .map(|(_, rows)| *rows)
                .chain([&self.real.rows])
        };
        let rows = all().map(Vec::len).max().unwrap_or(0);
        for no in 0..rows {
            // A run that ended before stays as it was.
            let real = row_at(&self.real.rows, no);
            let going_on = all().find_map(|rows| rows.get(no));
            let at_ms = match self.real.rows.get(no).or(going_on) {
                Some(row) => row.at_ms,
                None => real.at_ms,
            };
            write_row(&mut text, at_ms, real, lanes);
            for (_, rows) in &others {
                let other = row_at(rows, no);
                let _ = write!(
                    text,
                    ",{},{},{},{},{}",
                    other.waiting,
                    other.in_checkout,
                    other.admitted,
                    other.over_limit,
                    other.completed
                );
            }
            text.push('\n');
        }
        text
    }

    /// The runs that are compared, by the beginning of their columns.
    fn others(&self) -> impl Iterator<Item = (&'static str, &Vec<Row>)> {
        let naive = self.naive.iter().map(|run| ("NAIVE", &run.rows));
        naive.chain(self.fixed.iter().map(|run| ("FIXED", &run.rows)))
    }
}

/// See [`Report::summary`].
#[derive(Debug, Clone, Serialize)]
pub struct FullSummary<'a> {
    /// The real line's run.
    #[serde(flatten)]
    pub real: &'a Summary,
    /// The seed article's algorithm, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub naive: Option<&'a Summary>,
    /// The same crowd with the seats of the settings, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fixed: Option<&'a Summary>,
}

fn row_at(rows: &[Row], no: usize) -> &Row {
    // A run has a row for its end at least.
    &rows[no.min(rows.len() - 1)]
}

fn write_row(text: &mut String, at_ms: u64, row: &Row, lanes: usize) {
    let first = row.lane(0).pointers;
    let numbers = [
        at_ms,
        first.next_token,
        first.done_through,
        first.admitted_through,
        first.accepts_through,
        row.waiting,
        row.in_checkout,
        row.completed,
        row.gone.seated(),
        row.gone.waiting,
        row.turned_away,
        row.present,
        row.admitted,
        row.seats,
        row.over_limit,
        row.overtakes,
        row.polls,
    ];
    for number in numbers {
        let _ = write!(text, "{number},");
    }
    // Unknown is empty, not 0.
    if let Some(eta_ms) = row.eta_ms {
        let _ = write!(text, "{eta_ms}");
    }
    let _ = write!(text, ",{},{}", row.gone.admitted, row.transacting);
    for lane in 0..lanes {
        let _ = write!(text, ",{}", row.lane(lane).waiting);
    }
}
