//! The books of a run: what is summed up, and the two checks that must never find anything.

use std::collections::BTreeMap;

use nowserving_line::{Reason, Token};

use crate::queue::{Answer, Place, Pointers, Queue, Standing, View};
use crate::report::{Row, Run, Summary, Visit};

/// What is counted while it happens.
#[derive(Debug)]
pub(crate) struct Tally {
    visits: Vec<Option<Visit>>,
    /// Who waits in each lane: number and when it entered. Kept from what is answered and
    /// published alone, to check the order without asking the line.
    waiting: BTreeMap<u8, BTreeMap<Token, u64>>,
    at_ms: u64,
    contended_ms: u64,
    seat_ms: f64,
    held_seat_ms: f64,
    busy_seat_ms: f64,
    overtakes: u64,
    over_limit_max: u64,
    turned_away: u64,
    polls: u64,
    /// The second that is being counted, and how many polls it had.
    polls_second: (u64, u64),
    polls_per_second_max: u64,
    gone_waiting: BTreeMap<&'static str, u64>,
    gone_seated: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub(crate) fn new(shoppers: usize) -> Self {
        Self {
            visits: vec![None; shoppers],
            waiting: BTreeMap::new(),
            at_ms: 0,
            contended_ms: 0,
            seat_ms: 0.0,
            held_seat_ms: 0.0,
            busy_seat_ms: 0.0,
            overtakes: 0,
            over_limit_max: 0,
            turned_away: 0,
            polls: 0,
            polls_second: (0, 0),
            polls_per_second_max: 0,
            gone_waiting: BTreeMap::new(),
            gone_seated: BTreeMap::new(),
        }
    }

    /// Time goes on to `now_ms`, with the queue as it was until then.
    pub(crate) fn advance(&mut self, now_ms: u64, view: &View) {
        let passed_ms = now_ms - self.at_ms;
        self.at_ms = now_ms;
        if view.waiting == 0 || passed_ms == 0 {
            return;
        }
        let passed = passed_ms as f64;
        self.contended_ms += passed_ms;
        self.seat_ms += passed * view.seats as f64;
        self.held_seat_ms += passed * view.held().min(view.seats) as f64;
        self.busy_seat_ms += passed * view.in_checkout.min(view.seats) as f64;
    }

    pub(crate) fn entered(&mut self, who: u32, answer: &Answer, now_ms: u64) {
        let (lane, token) = answer.place;
        self.waiting.entry(lane).or_default().insert(token, now_ms);
        self.visits[who as usize] = Some(Visit {
            lane,
            entered_ms: now_ms,
            had_to_wait: answer.standing == Standing::Waiting,
            eta_ms: answer.eta_ms,
            eta_p90_ms: answer.eta_p90_ms,
            admitted_ms: None,
        });
    }

    pub(crate) fn turned_away(&mut self) {
        self.turned_away += 1;
    }

    pub(crate) fn polled(&mut self, now_ms: u64) {
        self.polls += 1;
        let second = now_ms / 1_000;
        if self.polls_second.0 != second {
            self.polls_second = (second, 0);
        }
        self.polls_second.1 += 1;
        self.polls_per_second_max = self.polls_per_second_max.max(self.polls_second.1);
    }

    pub(crate) fn admitted(&mut self, who: u32, place: Place, now_ms: u64, queue: &impl Queue) {
        let (lane, token) = place;
        let lanes = &mut self.waiting;
        let entered_ms = lanes.get_mut(&lane).and_then(|lane| lane.remove(&token));
        let own = queue.order_key(lane, entered_ms.unwrap_or(0));
        // Nobody of its lane may be before it, and nobody at the head of another lane who by the
        // published rule goes first.
        let overtaken = lanes.iter().any(|(other, waiting)| {
            waiting.first_key_value().is_some_and(|(first, entered)| {
                if *other == lane {
                    *first < token
                } else {
                    queue.order_key(*other, *entered) < own
                }
            })
        });
        self.overtakes += u64::from(overtaken);
        if let Some(visit) = &mut self.visits[who as usize] {
            visit.admitted_ms = Some(now_ms);
        }
    }

    pub(crate) fn gone(&mut self, place: Place, reason: Reason, was_waiting: bool) {
        if let Some(waiting) = self.waiting.get_mut(&place.0) {
            waiting.remove(&place.1);
        }
        let gone = if was_waiting {
            &mut self.gone_waiting
        } else {
            &mut self.gone_seated
        };
        *gone.entry(reason.as_str()).or_default() += 1;
    }

    pub(crate) fn check(&mut self, view: &View) {
        let over = view.held().saturating_sub(view.seats);
        self.over_limit_max = self.over_limit_max.max(over);
    }

    fn completed(&self) -> u64 {
        let completed = self.gone_seated.get(Reason::Completed.as_str());
        completed.copied().unwrap_or(0)
    }

    pub(crate) fn row(
        &self,
        now_ms: u64,
        lanes: &[Pointers],
        view: &View,
        present: u64,
        eta_ms: Option<u64>,
    ) -> Row {
        Row {
            at_ms: now_ms,
            first: lanes.first().copied().unwrap_or_default(),
            waiting: view.waiting,
            in_checkout: view.in_checkout,
            admitted: view.admitted,
            seats: view.seats,
            completed: self.completed(),
            gone_seated: self.gone_seated.values().sum::<u64>() - self.completed(),
            gone_waiting: self.gone_waiting.values().sum(),
            turned_away: self.turned_away,
            present,
            polls: self.polls,
            overtakes: self.overtakes,
            over_limit: view.held().saturating_sub(view.seats),
            eta_ms,
            lane_waiting: lanes.iter().map(|lane| lane.waiting).collect(),
        }
    }

    pub(crate) fn finish(self, rows: Vec<Row>, view: &View) -> Run {
        let visits: Vec<Visit> = self.visits.iter().flatten().copied().collect();
        let mut gone = BTreeMap::new();
        for (reason, count) in self.gone_waiting.iter().chain(&self.gone_seated) {
            *gone.entry((*reason).to_owned()).or_default() += count;
        }
        gone.remove(Reason::Completed.as_str());
        let mut waits: Vec<u64> = visits.iter().filter_map(Visit::wait_ms).collect();
        waits.sort_unstable();
        let forecasts = Forecasts::of(&visits);
        let seconds = (self.at_ms as f64 / 1_000.0).max(1.0);
        let summary = Summary {
            seat_held_percent: part(self.held_seat_ms, self.seat_ms),
            seat_busy_percent: part(self.busy_seat_ms, self.seat_ms),
            overtakes: self.overtakes,
            over_limit_max: self.over_limit_max,
            wait_p50_ms: rank(&waits, 50),
            wait_p99_ms: rank(&waits, 99),
            eta_told_percent: part(forecasts.told, forecasts.waited),
            eta_within_15_percent: part(forecasts.within, forecasts.known),
            eta_p90_coverage_percent: part(forecasts.covered, forecasts.known),
            eta_told: forecasts.told as u64,
            eta_known: forecasts.known as u64,
            completed: self.completed(),
            gone,
            turned_away: self.turned_away,
            entered: visits.len() as u64,
            still_live: view.waiting + view.held(),
            contended_ms: self.contended_ms,
            virtual_ms: self.at_ms,
            polls: self.polls,
            polls_per_second: round(self.polls as f64 / seconds),
            polls_per_second_max: self.polls_per_second_max,
        };
        Run {
            summary,
            rows,
            visits,
        }
    }
}

#[derive(Default)]
struct Forecasts {
    waited: f64,
    told: f64,
    /// Told, and admitted in the end: only of these the truth is known.
    known: f64,
    within: f64,
    covered: f64,
}

impl Forecasts {
    fn of(visits: &[Visit]) -> Self {
        let mut sums = Self::default();
        for visit in visits.iter().filter(|visit| visit.had_to_wait) {
            sums.waited += 1.0;
            let Some(eta_ms) = visit.eta_ms else {
                continue;
            };
            sums.told += 1.0;
            let Some(wait_ms) = visit.wait_ms() else {
                continue;
            };
            sums.known += 1.0;
            // Of the true wait, not of the forecast: else the long forecasts look better.
            let off_ms = eta_ms.abs_diff(wait_ms);
            sums.within += f64::from(u8::from(off_ms * 100 <= wait_ms * 15));
            let covered = visit.eta_p90_ms.is_some_and(|p90_ms| wait_ms <= p90_ms);
            sums.covered += f64::from(u8::from(covered));
        }
        sums
    }
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

    #[test]
    fn forecasts_are_judged_over_all_who_were_told() {
        let visit = |eta_ms, eta_p90_ms, admitted_ms| Visit {
            lane: 0,
            entered_ms: 1_000,
            had_to_wait: true,
            eta_ms,
            eta_p90_ms,
            admitted_ms,
        };
        let sums = Forecasts::of(&[
            visit(None, None, Some(2_000)),
            visit(Some(1_150), Some(1_200), Some(2_000)),
            visit(Some(1_151), Some(900), Some(2_000)),
            visit(Some(5), Some(6), None),
        ]);
        let got = [
            sums.waited,
            sums.told,
            sums.known,
            sums.within,
            sums.covered,
        ];
        assert_eq!(got, [4.0, 3.0, 2.0, 1.0, 1.0]);
    }

    #[test]
    fn who_overtakes_is_counted() {
        let queue = crate::naive::Naive::new(&nowserving_line::Settings::new(1, 9));
        let mut tally = Tally::new(4);
        for who in 0..4 {
            let answer = answer_at((who as u8 / 2, u64::from(who) % 2 + 1));
            tally.entered(who, &answer, u64::from(who) * 10);
        }
        tally.admitted(0, (0, 1), 50, &queue);
        assert_eq!(tally.overtakes, 0);
        tally.admitted(2, (1, 1), 50, &queue);
        assert_eq!(tally.overtakes, 1, "past the other lane's, who came before");
        tally.admitted(1, (0, 2), 50, &queue);
        tally.admitted(3, (1, 2), 50, &queue);
        assert_eq!(tally.overtakes, 1);
        tally.entered(0, &answer_at((0, 3)), 60);
        tally.entered(1, &answer_at((0, 4)), 70);
        tally.admitted(1, (0, 4), 80, &queue);
        assert_eq!(tally.overtakes, 2, "past its own lane's first");
    }

    fn answer_at(place: Place) -> Answer {
        Answer {
            place,
            standing: Standing::Waiting,
            eta_ms: None,
            eta_p90_ms: None,
            poll_after_ms: None,
            epoch: None,
        }
    }
}
