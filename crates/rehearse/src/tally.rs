//! The counts of a run, and the summary made of them.

use std::collections::BTreeMap;

use nowserving_line::{Admission, LaneSettings, Reason, State};
use nowserving_protocol::error::Code;

use crate::books::{Books, Ended};
use crate::config::Config;
use crate::dice::Dice;
use crate::dispatcher::Dispatcher;
use crate::follow::Follow;
use crate::forecasts::Forecasts;
use crate::queue::{Answer, Place, Pointers, Queue};
use crate::report::{FailedChange, LaneRow, LaneSummary, Row, Run, Stages, Summary, Told, Visit};
use crate::slowed::Slowed;
use crate::transactions::Transactions;

/// What stood beside the line in a run.
pub(crate) struct Helpers {
    pub(crate) transactions: Option<Transactions>,
    pub(crate) dispatcher: Option<Dispatcher>,
    pub(crate) slowed: Option<Slowed>,
    pub(crate) follow: Option<Follow>,
}

/// Counts while the run goes on.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) books: Books,
    visits: Vec<Option<Visit>>,
    at_ms: u64,
    /// Before, nobody can be given a seat.
    is_open: bool,
    /// Now somebody can be given a seat …
    admits: bool,
    /// … but only by a call, and the one under way can give so many more.
    is_called: bool,
    callable: u32,
    called: u64,
    /// The seats that there were, while anybody waited.
    seat_ms: f64,
    held_seat_ms: f64,
    busy_seat_ms: f64,
    /// The second that is being counted, and how many polls it had.
    polls_second: (u64, u64),
    /// Those of its fields that are plain counts; the others are made at the end.
    summary: Summary,
    admitted: u64,
    given_back: u64,
    /// After the first turn of seats: for how long anybody waited, and how many of those who had
    /// waited were admitted.
    later_ms: u64,
    later_admitted: u64,
    /// By reason, without those who completed.
    gone: BTreeMap<&'static str, Stages>,
    refused: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            books: Books::new(config.settings.seats.into()),
            visits: vec![None; config.crowd.shoppers as usize],
            is_open: config.open_at_ms.is_none()
                && (config.settings.phase.admits() || !config.is_opened_by_schedule()),
            admits: config.settings.phase.admits(),
            summary: Summary {
                seats_least: config.settings.seats.into(),
                seats_most: config.settings.seats.into(),
                ..Summary::default()
            },
            is_called: config.settings.admission == Admission::Called,
            ..Self::default()
        }
    }

    /// Time goes on to `now_ms`, with everybody where they were until then.
    pub(crate) fn advance(&mut self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.at_ms);
        self.at_ms = now_ms;
        let books = &self.books;
        if passed_ms == 0 || !self.is_open || books.waiting() == 0 {
            return;
        }
        let passed = passed_ms as f64;
        self.summary.contended_ms += passed_ms;
        if self.is_second_turn() {
            self.later_ms += passed_ms;
        }
        self.seat_ms += passed * books.seats() as f64;
        self.held_seat_ms += passed * books.held().min(books.seats()) as f64;
        self.busy_seat_ms += passed * books.in_checkout().min(books.seats()) as f64;
    }

    /// The sale begins.
    pub(crate) fn open(&mut self) {
        self.is_open = true;
    }

    /// The settings have changed.
    pub(crate) fn configured(&mut self, seats: u64, admits: bool, called: bool) {
        self.seats_told(seats);
        self.is_open |= admits;
        (self.admits, self.is_called) = (admits, called);
    }

    /// So many seats are in force.
    pub(crate) fn seats_told(&mut self, seats: u64) {
        self.books.set_seats(seats);
        let summary = &mut self.summary;
        summary.seats_least = summary.seats_least.min(seats);
        summary.seats_most = summary.seats_most.max(seats);
    }

    /// Whether no seat was free when it came.
    pub(crate) fn had_to_wait(&self, shopper: u32) -> bool {
        let visit = self.visits[shopper as usize];
        visit.is_some_and(|visit| visit.had_to_wait)
    }

    /// A change of the schedule could not be applied.
    pub(crate) fn schedule_failed(&mut self, change: FailedChange) {
        self.summary.schedule_failed.push(change);
    }

    /// How many seats are free for somebody who waits to be called.
    pub(crate) fn wanted(&self) -> u64 {
        let books = &self.books;
        match self.admits && self.is_called {
            true => books
                .seats()
                .saturating_sub(books.held())
                .min(books.waiting()),
            false => 0,
        }
    }

    /// From now on up to `n` may be admitted.
    pub(crate) fn begin_call(&mut self, n: u32) {
        (self.callable, self.called) = (n, 0);
    }

    /// How many were.
    pub(crate) fn end_call(&mut self) -> u64 {
        self.callable = 0;
        self.called
    }

    /// `lane` is the one that was asked for, whether the queue has it or not.
    pub(crate) fn entered(&mut self, shopper: u32, lane: u8, answer: &Answer, now_ms: u64) {
        self.books.entered(shopper, answer.place, now_ms);
        self.visits[shopper as usize] = Some(Visit {
            lane,
            entered_ms: now_ms,
            had_to_wait: answer.state == State::Waiting,
            in_first_turn: !self.is_second_turn(),
            is_drawn: false,
            eta_ms: answer.eta_ms,
            eta_p90_ms: answer.eta_p90_ms,
            later: None,
            later_count: 0,
            admitted_ms: None,
            admitted_before: self.admitted,
            admitted_with: 0,
            left_ms: None,
            completed: false,
        });
    }

    /// A shopper got an answer, to whatever it asked.
    pub(crate) fn told(&mut self, shopper: u32, answer: &Answer, now_ms: u64) {
        let Some(eta_ms) = answer.eta_ms.filter(|_| self.is_second_turn()) else {
            return;
        };
        if let Some(visit) = &mut self.visits[shopper as usize] {
            visit.later_count += 1;
            // Every one so far is equally likely to be kept. The shoppers' own dice stay as they are.
            let mut dice = Dice::new(u64::from(shopper), visit.later_count);
            if dice.below(visit.later_count) == 0 {
                visit.later = Some(Told {
                    at_ms: now_ms,
                    eta_ms,
                    admitted_before: self.admitted,
                });
            }
        }
    }

    /// Whether every seat has been given back once, on average.
    fn is_second_turn(&self) -> bool {
        self.given_back >= self.books.seats()
    }

    pub(crate) fn turned_away(&mut self, code: Code) {
        self.summary.turned_away += 1;
        *self.refused.entry(code.as_str()).or_default() += 1;
    }

    pub(crate) fn polled(&mut self, now_ms: u64) {
        self.summary.polls += 1;
        let second = now_ms / 1_000;
        if self.polls_second.0 != second {
            self.polls_second = (second, 0);
        }
        self.polls_second.1 += 1;
        let most = &mut self.summary.polls_per_second_max;
        *most = self.polls_second.1.max(*most);
    }

    /// The draw at the opening has given a shopper another place.
    pub(crate) fn drawn(&mut self, from: Place, to: Place) {
        let shopper = self.books.drawn(from, to);
        let visit = shopper.and_then(|shopper| self.visits[shopper as usize].as_mut());
        if let Some(visit) = visit {
            visit.is_drawn = true;
        }
    }

    /// The admitted shopper, if one waited there.
    pub(crate) fn admitted(
        &mut self,
        place: Place,
        now_ms: u64,
        queue: &impl Queue,
    ) -> Option<u32> {
        let shopper = self.books.admitted(place, queue)?;
        self.admitted += 1;
        if self.is_called && self.callable == 0 {
            // Nobody has called it.
            self.books.contradictions += 1;
        }
        self.callable = self.callable.saturating_sub(1);
        self.called += 1;
        let is_second_turn = self.is_second_turn();
        if let Some(visit) = &mut self.visits[shopper as usize] {
            visit.admitted_ms = Some(now_ms);
            visit.admitted_with = self.admitted;
            self.later_admitted += u64::from(is_second_turn && visit.had_to_wait);
        }
        Some(shopper)
    }

    pub(crate) fn gone(&mut self, place: Place, reason: Reason, units: u32, now_ms: u64) {
        let Some(Ended { shopper, from }) = self.books.gone(place) else {
            return;
        };
        self.given_back += u64::from(from != State::Waiting);
        let completed = reason == Reason::Completed;
        if completed {
            self.summary.completed += 1;
            self.summary.units_used += u64::from(units);
            self.summary.last_unit_at_ms = (units > 0)
                .then_some(now_ms)
                .or(self.summary.last_unit_at_ms);
        } else {
            self.gone.entry(reason.as_str()).or_default().add(from);
        }
        if let Some(visit) = &mut self.visits[shopper as usize] {
            visit.left_ms = (from == State::Waiting).then_some(now_ms);
            visit.completed = completed;
        }
    }

    pub(crate) fn row(&self, pointers: &[Pointers], present: u64, eta_ms: Option<u64>) -> Row {
        let books = &self.books;
        let lanes = (0..).zip(pointers).map(|(lane, pointers)| LaneRow {
            pointers: *pointers,
            waiting: books.waiting_in(lane),
        });
        Row {
            at_ms: self.at_ms,
            lanes: lanes.collect(),
            waiting: books.waiting(),
            in_checkout: books.in_checkout(),
            admitted: books.held() - books.in_checkout(),
            seats: books.seats(),
            completed: self.summary.completed,
            gone: self.gone.values().fold(Stages::default(), Stages::plus),
            turned_away: self.summary.turned_away,
            present,
            transacting: 0,
            polls: self.summary.polls,
            overtakes: books.overtakes,
            over_limit: books.over_limit(),
            eta_ms,
        }
    }

    pub(crate) fn finish(self, rows: Vec<Row>, lanes: &[LaneSettings], helpers: Helpers) -> Run {
        let Helpers {
            transactions,
            dispatcher,
            slowed,
            follow,
        } = helpers;
        let visits: Vec<Visit> = self.visits.iter().flatten().copied().collect();
        let gone = self.gone.iter();
        let gone = gone.map(|(reason, stages)| ((*reason).to_owned(), stages.sum()));
        let gone_from = self.gone.iter();
        let gone_from = gone_from.map(|(reason, stages)| ((*reason).to_owned(), *stages));
        let refused = self.refused.iter();
        let refused = refused.map(|(code, count)| ((*code).to_owned(), *count));
        let transactions_queued_max = transactions.as_ref().map_or(0, |them| them.queued_max);
        let mut transaction_waits = transactions.map_or(Vec::new(), |them| them.waits_ms);
        transaction_waits.sort_unstable();
        let took = slowed.map_or(Vec::new(), |slowed| slowed.took);
        let mut services: Vec<u64> = took.iter().map(|(_, took_ms)| *took_ms).collect();
        services.sort_unstable();
        let waits = sorted_waits(visits.iter());
        let each_ms = self.later_ms as f64 / (self.later_admitted as f64).max(1.0);
        let forecasts = Forecasts::of(&visits, self.at_ms, each_ms);
        let seconds = (self.at_ms as f64 / 1_000.0).max(1.0);
        let summary = Summary {
            seat_held_percent: part(self.held_seat_ms, self.seat_ms),
            seat_busy_percent: part(self.busy_seat_ms, self.seat_ms),
            seats_held_max: self.books.held_max,
            seats_mean: (self.summary.contended_ms > 0)
                .then(|| round(self.seat_ms / self.summary.contended_ms as f64)),
            seats_told: follow.map_or(0, |follow| follow.told),
            service_p50_ms: rank(&services, 50),
            service_p99_ms: rank(&services, 99),
            overtakes: self.books.overtakes,
            over_limit_max: self.books.over_limit_max,
            contradictions: self.books.contradictions,
            wait_p50_ms: rank(&waits, 50),
            wait_p99_ms: rank(&waits, 99),
            eta_told_percent: part(forecasts.given, forecasts.waited),
            eta_within_15_percent: part(forecasts.within, forecasts.known),
            eta_within_15_bound_percent: part(forecasts.bound, forecasts.known),
            later_eta_within_15_percent: part(forecasts.later_within, forecasts.later_known),
            later_eta_within_15_bound_percent: part(forecasts.later_bound, forecasts.later_known),
            later_eta_known: forecasts.later_known as u64,
            first_turn_eta_told_percent: part(forecasts.first_told, forecasts.first_known),
            first_turn_eta_within_35_percent: part(forecasts.first_within, forecasts.first_known),
            first_turn_known: forecasts.first_known as u64,
            eta_p90_coverage_percent: part(forecasts.covered, forecasts.p90_known),
            eta_told: forecasts.given as u64,
            eta_known: forecasts.known as u64,
            eta_p90_known: forecasts.p90_known as u64,
            gone: gone.collect(),
            gone_from: gone_from.collect(),
            refused: refused.collect(),
            calls: dispatcher.as_ref().map_or(0, |it| it.made),
            called: dispatcher.map_or(0, |it| it.admitted),
            transactions_queued_max,
            transaction_wait_p50_ms: rank(&transaction_waits, 50),
            transaction_wait_p99_ms: rank(&transaction_waits, 99),
            entered: visits.len() as u64,
            still_live: self.books.live(),
            lanes: (0..)
                .zip(lanes)
                .map(|(no, lane)| lane_summary(no, lane, &visits))
                .collect(),
            virtual_ms: self.at_ms,
            polls_per_second: round(self.summary.polls as f64 / seconds),
            ..self.summary
        };
        Run {
            summary,
            rows,
            visits,
            took,
        }
    }
}

fn lane_summary(no: u8, lane: &LaneSettings, visits: &[Visit]) -> LaneSummary {
    let of_lane = || visits.iter().filter(|visit| visit.lane == no);
    let waits = sorted_waits(of_lane());
    LaneSummary {
        lane: lane.name.to_string(),
        completed: of_lane().filter(|visit| visit.completed).count() as u64,
        wait_p50_ms: rank(&waits, 50),
        wait_p99_ms: rank(&waits, 99),
    }
}

fn sorted_waits<'a>(visits: impl Iterator<Item = &'a Visit>) -> Vec<u64> {
    let mut waits: Vec<u64> = visits.filter_map(Visit::wait_ms).collect();
    waits.sort_unstable();
    waits
}

/// The nearest rank; `None` of nothing.
fn rank(sorted: &[u64], percent: usize) -> Option<u64> {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied()
}

/// `part` of `whole` in percent, with two digits; `None` of nothing.
fn part(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| round(part / whole * 100.0))
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_the_nearest() {
        let waits: Vec<u64> = (1..=200).collect();
        assert_eq!((rank(&waits, 50), rank(&waits, 99)), (Some(100), Some(198)));
        assert_eq!((rank(&[7], 99), rank(&[], 50)), (Some(7), None));
    }
}
