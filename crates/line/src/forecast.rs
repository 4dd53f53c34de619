//! What a line measures of itself to tell how long the wait is, and how good what it told was.
//!
//! All of it is integers, replicated and in the dump; `foresee` makes times of it. Time to wait is
//! not position × checkout time (off by the number of seats) but position ÷ rate of departure, and
//! the rate is measured by the operational law: the seats' time held, divided by the seats given
//! back, is the mean time T that a seat is held, and `seats` seats give back `seats / T`. So a
//! change of `seats` is in the forecast at once, and times with empty seats don't spoil it. (A
//! count of departures per second would do neither.)

use crate::{NUMBER_MAX, Reason};

/// How many full windows are remembered: old ones go, so that the measure follows the line.
pub const FORECAST_WINDOWS: usize = 16;
/// A window ends after a quarter as many releases as there are seats, within these bounds: the
/// windows together are four turns of all seats, enough for a mean and recent enough.
const WINDOW_RELEASES_MIN: u64 = 8;
const WINDOW_RELEASES_MAX: u64 = 4_096;
/// Forecasts begin after so many windows: before, the first to leave say little about the rest.
const WINDOWS_WARM: usize = 3;
/// How long a seat is taken to be held while none has been: see [`Forecast::for_pauses`]. Set for
/// quick checkouts, as a seat stands empty until its next holder asks.
const HOLD_MS_GUESSED: u64 = 4_000;
/// A window that is slow to end counts at most like so many others: should the departures get slow,
/// forecasts rise, but one stuck seat does not take them away with it.
const SLOW_WINDOWS_MAX: u64 = 3;
/// No shorter pause is taken for an end of departures, however quick the seats: machines pause too.
const STALLED_MS_MIN: u64 = 10_000;
/// Older attrition counts half when so many have left meanwhile.
const LEAVES_KEPT: u64 = 512;
/// Older arrivals count half after so long; after a pause of this they begin anew.
const ARRIVALS_KEPT_MS: u64 = 240_000;
/// Where the spread starts: the 90 % point of a normal distribution.
const SPREAD_START_MICRO: u64 = 1_281_552;
/// Where it stays within.
const SPREAD_MICRO: std::ops::RangeInclusive<u64> = 300_000..=8_000_000;
/// How far one answer moves the spread: this, shared among those who wait, within bounds.
const SPREAD_STEP_MICRO: u64 = 6_000_000;
const SPREAD_STEP_MICRO_MIN: u64 = 2_000;
const SPREAD_STEP_MICRO_MAX: u64 = 100_000;

/// Some releases of seats, and how long seats were held between them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Window {
    /// Seats given back.
    pub releases: u64,
    /// The time that seats were held, summed over the seats.
    pub seat_ms: u64,
}

impl Window {
    /// How long a seat is held, on average.
    pub(crate) fn hold_ms(&self) -> f64 {
        self.seat_ms as f64 / (self.releases as f64).max(1.0)
    }

    fn plus(self, other: &Self) -> Self {
        Self {
            releases: self.releases + other.releases,
            seat_ms: self.seat_ms.saturating_add(other.seat_ms),
        }
    }
}

/// What the full windows say together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turns {
    all: Window,
    /// The mean `seat_ms` of a window.
    usual_ms: u64,
}

/// How good forecasts have been: what those who waited were told on entering against how long it
/// took until they were admitted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForecastRecord {
    /// Entrants who had to wait and were told a forecast.
    pub told: u64,
    /// Entrants who had to wait when none could be told.
    pub untold: u64,
    /// Those told who were admitted since; of them:
    pub judged: u64,
    /// waited no longer than `eta_p90_ms` said;
    pub covered: u64,
    /// were told a time that was off by at most 5, 15, 30, 50, 100 percent of the true one, or
    /// more: each is in one of the six.
    pub off_by: [u64; 6],
}

/// The upper ends of [`ForecastRecord::off_by`], in percent.
pub const OFF_BY_PERCENT: [u64; 5] = [5, 15, 30, 50, 100];

/// What a line measures of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forecast {
    /// Until when all of it is measured (service clock).
    pub measured_ms: u64,
    /// The newest full windows, oldest first, the empty ones before them.
    pub windows: [Window; FORECAST_WINDOWS],
    /// The window that is being filled.
    pub current: Window,
    /// The time that seats were held since one was last given or given back, summed over the seats.
    pub quiet_seat_ms: u64,
    /// Waiting tokens that left or were idle …
    pub leaves: u64,
    /// … in so much time of waiting, summed over those who wait. Both are halved now and then.
    pub waiter_ms: u64,
    /// How many millionths of a standard deviation `eta_p90_ms` is above `eta_ms`: moved by each
    /// answer so that nine in ten are covered.
    pub spread_micro: u64,
    /// How good it was.
    pub record: ForecastRecord,
}

/// What an entrant was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// The median, in milliseconds; [`u32::MAX`] if it is no less.
    pub eta_ms: u32,
    /// What nine in ten don't exceed.
    pub eta_p90_ms: u32,
}

/// How many came, since when: what is forgotten is forgotten by halves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// Arrivals.
    pub count: u64,
    /// Counted from here (service clock).
    pub since_ms: u64,
    /// When the first of them came after a pause (service clock).
    pub began_ms: u64,
    /// When the last one did.
    pub last_ms: u64,
}

impl Forecast {
    pub(crate) fn new(now_ms: u64) -> Self {
        Self {
            measured_ms: now_ms,
            windows: [Window::default(); FORECAST_WINDOWS],
            current: Window::default(),
            quiet_seat_ms: 0,
            leaves: 0,
            waiter_ms: 0,
            spread_micro: SPREAD_START_MICRO,
            record: ForecastRecord::default(),
        }
    }

    /// Whether a line can have measured this.
    pub(crate) fn is_sane(&self) -> bool {
        let windows = self.windows.iter().chain([&self.current]);
        let sane = |window: &Window| window.releases.max(window.seat_ms) <= NUMBER_MAX;
        let sums = self.quiet_seat_ms.max(self.waiter_ms);
        let largest = self.measured_ms.max(self.leaves).max(sums);
        let record = &self.record;
        let judged: Option<u64> =
            (record.off_by.iter()).try_fold(0u64, |sum, count| sum.checked_add(*count));
        windows.into_iter().all(sane)
            && largest <= NUMBER_MAX
            && SPREAD_MICRO.contains(&self.spread_micro)
            && judged == Some(record.judged)
            && record.covered <= record.judged
            && record.judged <= record.told
            && record.told.max(record.untold) <= NUMBER_MAX
    }

    /// Time goes on, with as many held seats and waiting as until now. To be called before either
    /// changes.
    pub(crate) fn advance(&mut self, now_ms: u64, held: u64, waiting: u64) {
        let passed_ms = now_ms.saturating_sub(self.measured_ms);
        self.measured_ms = self.measured_ms.max(now_ms);
        let gain = |sum: &mut u64, many: u64| {
            let more = many.saturating_mul(passed_ms);
            *sum = sum.saturating_add(more).min(NUMBER_MAX);
        };
        gain(&mut self.current.seat_ms, held);
        gain(&mut self.quiet_seat_ms, held);
        gain(&mut self.waiter_ms, waiting);
    }

    /// A seat was given back. Who is thrown out by an operator says nothing of how long seats are
    /// held.
    pub(crate) fn released(&mut self, reason: Reason, seats: u32) {
        self.quiet_seat_ms = 0;
        if matches!(reason, Reason::Closed | Reason::Kicked) {
            self.current = Window::default();
            return;
        }
        self.current.releases += 1;
        let full = u64::from(seats) / 4;
        if self.current.releases >= full.clamp(WINDOW_RELEASES_MIN, WINDOW_RELEASES_MAX) {
            self.windows.rotate_left(1);
            self.windows[FORECAST_WINDOWS - 1] = self.current;
            self.current = Window::default();
        }
    }

    /// A seat was given. In a busy line it was given back a moment ago; in an idle one, who has
    /// forgotten a seat there must not be taken for a stop of what begins now.
    pub(crate) fn seated(&mut self) {
        self.quiet_seat_ms = 0;
    }

    /// Departures have stopped: none for so long that it can't be chance. Of `held` seats one
    /// comes free in each `hold_ms` ÷ `held`; if they were all taken at once, none for one
    /// `hold_ms`. More than two of these, and ten if there is but one seat, and the measure is of
    /// another time. (Raising it instead, slowly, would still tell the first in line that it is
    /// about to be admitted.)
    pub(crate) fn is_stalled(&self, measured: Window, held: u64, now_ms: u64) -> bool {
        let hold_ms = measured.hold_ms() as u64;
        let longest_ms = hold_ms.saturating_mul(held.saturating_mul(2).saturating_add(8));
        let longest_ms = longest_ms.max(STALLED_MS_MIN.saturating_mul(held));
        self.quiet_seat_ms_at(held, now_ms) > longest_ms
    }

    fn quiet_seat_ms_at(&self, held: u64, now_ms: u64) -> u64 {
        let since_ms = now_ms.saturating_sub(self.measured_ms);
        let more = since_ms.saturating_mul(held);
        self.quiet_seat_ms.saturating_add(more)
    }

    /// For how long no seat has been given or given back, while `held` were held.
    pub(crate) fn quiet_ms(&self, held: u64, now_ms: u64) -> u64 {
        self.quiet_seat_ms_at(held, now_ms) / held.max(1)
    }

    /// A waiting token is gone. Only those who gave up say how many more will: what operators do
    /// happens once.
    pub(crate) fn left(&mut self, reason: Reason) {
        if !matches!(reason, Reason::Left | Reason::Idle) {
            return;
        }
        self.leaves += 1;
        if self.leaves >= LEAVES_KEPT {
            self.leaves /= 2;
            self.waiter_ms /= 2;
        }
    }

    /// Somebody had to wait, and was told this.
    pub(crate) fn told(&mut self, told: Option<Told>) {
        match told {
            Some(_) => self.record.told += 1,
            None => self.record.untold += 1,
        }
    }

    /// The truth of what an entrant was told: it waited so long, and so many wait now.
    pub(crate) fn judge(&mut self, told: Told, wait_ms: u64, waiting: u64) {
        let record = &mut self.record;
        let off_ms = u64::from(told.eta_ms).abs_diff(wait_ms).saturating_mul(100);
        let within = |percent: &u64| off_ms <= percent.saturating_mul(wait_ms);
        let class = OFF_BY_PERCENT.iter().position(within);
        record.off_by[class.unwrap_or(OFF_BY_PERCENT.len())] += 1;
        record.judged += 1;
        let covered = wait_ms <= u64::from(told.eta_p90_ms);
        record.covered += u64::from(covered);
        // Robbins and Monro's rule for a quantile: nine small steps down weigh one up. As all who
        // wait now were told by the old value, a step is shared among them, or it would overshoot
        // before the first answer to it came; and as it is the same for every miss, one outlier
        // moves little however far out it is.
        let step = SPREAD_STEP_MICRO / waiting.max(1);
        let step = step.clamp(SPREAD_STEP_MICRO_MIN, SPREAD_STEP_MICRO_MAX);
        let moved = if covered {
            self.spread_micro.saturating_sub(step / 10)
        } else {
            self.spread_micro + step / 10 * 9
        };
        self.spread_micro = moved.clamp(*SPREAD_MICRO.start(), *SPREAD_MICRO.end());
    }

    /// What the full windows say; `None` while cold. The two furthest out don't count: neither does
    /// one odd seat.
    pub(crate) fn turns(&self) -> Option<Turns> {
        let mut full = self.windows.iter().filter(|window| window.releases > 0);
        let count = full.clone().count();
        if count < WINDOWS_WARM {
            return None;
        }
        let mut all = full.clone().fold(Window::default(), Window::plus);
        let usual_ms = all.seat_ms / count as u64;
        if count > WINDOWS_WARM + 2 {
            let slower = |a: &&Window, b: &&Window| {
                let (a_ms, b_ms) = (u128::from(a.seat_ms), u128::from(b.seat_ms));
                (a_ms * u128::from(b.releases)).cmp(&(b_ms * u128::from(a.releases)))
            };
            let ends = (full.clone().min_by(slower), full.by_ref().max_by(slower));
            for out in [ends.0, ends.1].into_iter().flatten() {
                all.releases -= out.releases;
                all.seat_ms = all.seat_ms.saturating_sub(out.seat_ms);
            }
        }
        Some(Turns { all, usual_ms })
    }

    /// What forecasts go by: should departures get slow they rise, but not without end.
    pub(crate) fn with_current(&self, turns: Turns) -> Window {
        if self.current.seat_ms <= turns.usual_ms {
            return turns.all;
        }
        let most_ms = turns.usual_ms.saturating_mul(SLOW_WINDOWS_MAX);
        let current = Window {
            seat_ms: self.current.seat_ms.min(most_ms),
            ..self.current
        };
        turns.all.plus(&current)
    }

    /// What pauses between polls go by: should departures get slow they grow as long as that lasts.
    /// While cold, it is as if each held seat were given back once more, 4 s from now. So seats are
    /// taken to be held for as long as they have been so far: clients ask often while it may be
    /// quick, and ever more seldom as it shows to take long.
    pub(crate) fn for_pauses(&self, turns: Option<Turns>, held: u64, now_ms: u64) -> Window {
        let held = held.max(1);
        let since_ms = now_ms.saturating_sub(self.measured_ms);
        let since = Window {
            releases: 0,
            seat_ms: held.saturating_mul(since_ms),
        };
        let current = self.current.plus(&since);
        match turns {
            Some(turns) => turns.all.plus(&current),
            None => {
                let guess = Window {
                    releases: held,
                    seat_ms: held.saturating_mul(HOLD_MS_GUESSED),
                };
                self.windows.iter().fold(current, Window::plus).plus(&guess)
            }
        }
    }
}

impl Arrivals {
    pub(crate) fn one_more(&mut self, now_ms: u64) {
        let pause_ms = now_ms.saturating_sub(self.last_ms);
        if self.count == 0 || pause_ms > ARRIVALS_KEPT_MS {
            *self = Self {
                count: 0,
                since_ms: now_ms,
                began_ms: now_ms,
                last_ms: now_ms,
            };
        }
        self.last_ms = self.last_ms.max(now_ms);
        self.count += 1;
        let counted_ms = now_ms.saturating_sub(self.since_ms);
        if counted_ms > ARRIVALS_KEPT_MS {
            self.count = self.count.div_ceil(2);
            self.since_ms = now_ms - counted_ms / 2;
        }
    }

    /// Whether a lane can have counted this.
    pub(crate) fn is_sane(&self) -> bool {
        let in_order = self.began_ms <= self.since_ms && self.since_ms <= self.last_ms;
        in_order && self.count.max(self.last_ms) <= NUMBER_MAX
    }

    /// For how long ahead the rate means anything: as long as they have been coming. What rushed
    /// in within ten seconds of opening does not go on for an hour.
    pub(crate) fn foreseen_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.began_ms)
    }

    /// A millisecond. Nobody has come for long: it falls.
    pub(crate) fn per_ms(&self, now_ms: u64) -> f64 {
        // The first one only starts the count, which then must last to mean something.
        let counted_ms = now_ms.saturating_sub(self.since_ms).max(10_000);
        self.count.saturating_sub(1) as f64 / counted_ms as f64
    }
}

#[cfg(test)]
#[path = "forecast_tests.rs"]
mod tests;
