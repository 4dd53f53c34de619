//! The measurements behind the ETAs, and the record of how good the ETAs were.
//!
//! All of it is integers, replicated and in the dump; `eta` computes times from it. The time to wait is not
//! position × checkout time (off by the number of seats) but position ÷ rate of departure. The rate comes from
//! the operational law: the time that seats were held, divided by the seats given back, is the mean time T that
//! a seat is held, and `seats` seats give back `seats / T`. So a change of `seats` is in the ETA at once, and
//! times with empty seats do not spoil it. (A count of departures per second would do neither.)

use nowserving_codec::{Codec, Malformed, Reader, Writer};

use crate::{NUMBER_MAX, Reason};

/// How many full windows are kept. Older ones are dropped, so that the measurements follow the line.
pub const FORECAST_WINDOWS: usize = 16;
/// A window ends after a quarter as many releases as there are seats, within these bounds. The windows
/// together cover four releases of every seat: enough for a mean, and recent enough.
const WINDOW_RELEASES_MIN: u64 = 8;
const WINDOW_RELEASES_MAX: u64 = 4_096;
/// ETAs are given after so many windows: the first releases say little about the rest.
const WINDOWS_WARM: usize = 3;
/// The assumed time that a seat is held while nothing was measured: see [`Forecast::for_pauses`]. Chosen
/// for quick checkouts, as a seat stands empty until its next holder polls.
const HOLD_MS_GUESSED: u64 = 4_000;
/// Up to so many windows all of them count, and an operator's guess of the hold counts as one more. Of more windows
/// the fastest and the slowest one are left out, and so is the guess.
const WINDOWS_FEW: usize = WINDOWS_WARM + 2;
/// A window that is slow to end counts at most like so many others. So ETAs rise when departures slow
/// down, but one stuck seat does not dominate them.
const SLOW_WINDOWS_MAX: u64 = 3;
/// A shorter time without departures is no stall, however quick the seats: machines pause, too.
const STALLED_MS_MIN: u64 = 10_000;
/// Older attrition counts half once so many have left.
const LEAVES_KEPT: u64 = 512;
/// Older arrivals count half after so long. After a pause of this length counting restarts.
const ARRIVALS_KEPT_MS: u64 = 240_000;
/// The initial spread: the 90 % point of a normal distribution.
const SPREAD_START_MICRO: u64 = 1_281_552;
/// The bounds of the spread.
const SPREAD_MICRO: std::ops::RangeInclusive<u64> = 300_000..=8_000_000;
/// How far one outcome moves the spread: this divided by the number of waiting tokens, within bounds.
const SPREAD_STEP_MICRO: u64 = 6_000_000;
const SPREAD_STEP_MICRO_MIN: u64 = 2_000;
const SPREAD_STEP_MICRO_MAX: u64 = 100_000;

/// Some releases of seats, and the time that seats were held meanwhile.
#[derive(Codec, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Window {
    pub releases: u64,
    /// The time that seats were held, summed over the seats.
    pub seat_ms: u64,
}

impl Window {
    /// The mean time that a seat is held.
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

/// The newest [`FORECAST_WINDOWS`] full windows, oldest first; empty ones come first. A line without a full one keeps
/// nothing for them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Windows(Vec<Window>);

impl Windows {
    fn push(&mut self, window: Window) {
        if self.0.is_empty() {
            self.0 = vec![Window::default(); FORECAST_WINDOWS];
        }
        self.0.rotate_left(1);
        if let Some(newest) = self.0.last_mut() {
            *newest = window;
        }
    }

    /// Those that may not be empty.
    pub fn iter(&self) -> std::slice::Iter<'_, Window> {
        self.0.iter()
    }
}

impl From<[Window; FORECAST_WINDOWS]> for Windows {
    fn from(windows: [Window; FORECAST_WINDOWS]) -> Self {
        match windows.iter().all(|window| *window == Window::default()) {
            true => Self::default(),
            false => Self(windows.to_vec()),
        }
    }
}

/// As the array that it stands for.
impl Codec for Windows {
    fn encode(&self, to: &mut Writer) {
        let mut windows = [Window::default(); FORECAST_WINDOWS];
        for (to, from) in windows.iter_mut().zip(&self.0) {
            *to = *from;
        }
        windows.encode(to);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(<[Window; FORECAST_WINDOWS]>::decode(from)?.into())
    }
}

/// The sum of the full windows without the fastest and the slowest one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FullWindows {
    sum: Window,
    /// The mean `seat_ms` of a window.
    mean_ms: u64,
    /// So many releases of `sum` are the operator's guess.
    guessed: u64,
}

impl FullWindows {
    /// The guess weighs more than all that was measured.
    pub(crate) fn is_mostly_guessed(&self) -> bool {
        self.guessed > self.sum.releases / 2
    }

    /// So many releases of the measurements are the operator's guess.
    pub(crate) fn guessed(&self) -> u64 {
        self.guessed
    }
}

/// How good the ETAs were: those given on entering against the true waits.
#[derive(Codec, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForecastRecord {
    /// Entrants who had to wait and were given an ETA by measurements.
    pub eta_given: u64,
    /// Entrants who had to wait and were given an ETA that was mostly the operator's guess. They are not judged: neither
    /// the record of the measurements nor the spread is to depend on that.
    pub eta_expected: u64,
    /// Entrants who had to wait while the ETA was unknown.
    pub eta_unknown: u64,
    /// Entrants who were given an ETA without a guess in it, and have been admitted since. Of these …
    pub judged: u64,
    /// … so many waited no longer than `eta_p90_ms`, …
    pub covered: u64,
    /// … and so many were given an `eta_ms` that was off by at most 5, 15, 30, 50, 100 percent of the true
    /// wait, or by more: each is counted once.
    pub off_by: [u64; 6],
}

/// How one ETA compares with the true wait: what an admission adds to a [`ForecastRecord`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EtaOutcome {
    /// The place in [`ForecastRecord::off_by`].
    pub off_by: u8,
    /// The token waited no longer than `eta_p90_ms`.
    pub covered: bool,
}

/// The upper ends of [`ForecastRecord::off_by`], in percent.
pub const OFF_BY_PERCENT: [u64; 5] = [5, 15, 30, 50, 100];

/// The measurements of a line.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub struct Forecast {
    /// All measurements include the time up to this one (service clock).
    pub measured_ms: u64,
    /// The newest full windows, oldest first; empty ones come first.
    pub windows: Windows,
    /// The window in progress.
    pub current: Window,
    /// The time that seats were held since one was last taken or given back, summed over the seats.
    pub quiet_seat_ms: u64,
    /// Waiting tokens that left or expired …
    pub leaves: u64,
    /// … in this waiting time, summed over the waiting tokens. Both are halved from time to time.
    pub waiter_ms: u64,
    /// How many millionths of a standard deviation `eta_p90_ms` is above `eta_ms`. Each outcome moves it,
    /// so that nine in ten are covered.
    pub spread_micro: u64,
    /// How good the ETAs were.
    pub record: ForecastRecord,
}

/// What an ETA rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EtaFrom {
    /// Mostly the operator's guess, `checkout_expected_ms`.
    Expected,
    /// What the line measured.
    Measured,
}

impl EtaFrom {
    /// As clients see it.
    pub fn as_str(self) -> &'static str {
        match self {
            EtaFrom::Expected => "expected",
            EtaFrom::Measured => "measured",
        }
    }
}

/// The ETA that an entrant was given.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub struct EtaGiven {
    /// Median, in milliseconds; larger ones count as [`u32::MAX`].
    pub eta_ms: u32,
    /// 90th percentile.
    pub eta_p90_ms: u32,
}

/// The recent arrivals in a lane. Older ones are forgotten by halving the count.
#[derive(Codec, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// So many arrived …
    pub count: u64,
    /// … since then (service clock).
    pub since_ms: u64,
    /// When the first one after a pause arrived (service clock).
    pub began_ms: u64,
    /// When the last one arrived (service clock).
    pub last_ms: u64,
}

impl Forecast {
    pub(crate) fn new(now_ms: u64) -> Self {
        Self {
            measured_ms: now_ms,
            windows: Windows::default(),
            current: Window::default(),
            quiet_seat_ms: 0,
            leaves: 0,
            waiter_ms: 0,
            spread_micro: SPREAD_START_MICRO,
            record: ForecastRecord::default(),
        }
    }

    /// Whether a line can have measured this: for dumps.
    pub(crate) fn is_plausible(&self) -> bool {
        let windows = self.windows.iter().chain([&self.current]);
        let plausible = |window: &Window| window.releases.max(window.seat_ms) <= NUMBER_MAX;
        let sums = self.quiet_seat_ms.max(self.waiter_ms);
        let largest = self.measured_ms.max(self.leaves).max(sums);
        let record = &self.record;
        let judged: Option<u64> =
            (record.off_by.iter()).try_fold(0u64, |sum, count| sum.checked_add(*count));
        windows.into_iter().all(plausible)
            && largest <= NUMBER_MAX
            && SPREAD_MICRO.contains(&self.spread_micro)
            && judged == Some(record.judged)
            && record.covered <= record.judged
            && record.judged <= record.eta_given
            && record
                .eta_given
                .max(record.eta_unknown)
                .max(record.eta_expected)
                <= NUMBER_MAX
    }

    /// Measures the time since the last call, in which so many seats were held and so many tokens waited.
    /// To be called before either changes.
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

    /// A seat was given back. If an operator ended the token, that says nothing about how long seats are
    /// held.
    pub(crate) fn released(&mut self, reason: Reason, seats: u32) {
        self.quiet_seat_ms = 0;
        if matches!(reason, Reason::Closed | Reason::Kicked) {
            self.current = Window::default();
            return;
        }
        self.current.releases += 1;
        if self.current.releases >= window_releases(seats) {
            self.windows.push(self.current);
            self.current = Window::default();
        }
    }

    /// A seat was taken. In a busy line one was given back just before. In an idle line, a holder that has
    /// forgotten its seat must not make the line look stalled as it becomes busy.
    pub(crate) fn seated(&mut self) {
        self.quiet_seat_ms = 0;
    }

    /// Whether departures have stopped for longer than chance allows. Of `held` seats one comes free every
    /// `hold_ms` ÷ `held`; if all were taken at once, none for one `hold_ms`. After two `hold_ms`, or ten if
    /// there is one seat, the measurements no longer apply. (Raising the ETA slowly instead would still tell
    /// the first in line that it is about to be admitted.)
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

    /// For how long no seat has been taken or given back, while `held` were held.
    pub(crate) fn quiet_ms(&self, held: u64, now_ms: u64) -> u64 {
        self.quiet_seat_ms_at(held, now_ms) / held.max(1)
    }

    /// A waiting token ended. Only tokens that gave up predict how many more will; ends by an operator
    /// happen once.
    pub(crate) fn left(&mut self, reason: Reason) {
        if !matches!(reason, Reason::Left | Reason::Idle | Reason::WaitExpired) {
            return;
        }
        self.leaves += 1;
        if self.leaves >= LEAVES_KEPT {
            self.leaves /= 2;
            self.waiter_ms /= 2;
        }
    }

    /// An entrant has to wait, and is given an ETA from this.
    pub(crate) fn record_given(&mut self, from: Option<EtaFrom>) {
        match from {
            Some(EtaFrom::Measured) => self.record.eta_given += 1,
            Some(EtaFrom::Expected) => self.record.eta_expected += 1,
            None => self.record.eta_unknown += 1,
        }
    }

    /// Compares the ETA of an admitted token with its true wait. `waiting` is how many wait now.
    pub(crate) fn judge(&mut self, given: EtaGiven, wait_ms: u64, waiting: u64) -> EtaOutcome {
        let record = &mut self.record;
        let off_ms = u64::from(given.eta_ms)
            .abs_diff(wait_ms)
            .saturating_mul(100);
        let within = |percent: &u64| off_ms <= percent.saturating_mul(wait_ms);
        let class = OFF_BY_PERCENT.iter().position(within);
        let class = class.unwrap_or(OFF_BY_PERCENT.len());
        record.off_by[class] += 1;
        record.judged += 1;
        let covered = wait_ms <= u64::from(given.eta_p90_ms);
        record.covered += u64::from(covered);
        // The Robbins-Monro rule for a quantile: nine small steps down weigh one step up. The ETAs of all
        // waiting tokens were made with old values, so a step is divided by their number, or it would
        // overshoot before its first outcome. A step does not depend on the size of the miss, so an
        // outlier moves the spread little.
        let step = SPREAD_STEP_MICRO / waiting.max(1);
        let step = step.clamp(SPREAD_STEP_MICRO_MIN, SPREAD_STEP_MICRO_MAX);
        let moved = if covered {
            self.spread_micro.saturating_sub(step / 10)
        } else {
            self.spread_micro + step / 10 * 9
        };
        self.spread_micro = moved.clamp(*SPREAD_MICRO.start(), *SPREAD_MICRO.end());
        EtaOutcome {
            off_by: class as u8,
            covered,
        }
    }

    /// `None` while there are too few. One odd seat falls into a window that is left out.
    pub(crate) fn full_windows(&self) -> Option<FullWindows> {
        let mut full = self.windows.iter().filter(|window| window.releases > 0);
        let count = full.clone().count();
        if count < WINDOWS_WARM {
            return None;
        }
        let mut all = full.clone().fold(Window::default(), Window::plus);
        let mean_ms = all.seat_ms / count as u64;
        if count > WINDOWS_FEW {
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
        Some(FullWindows {
            sum: all,
            mean_ms,
            guessed: 0,
        })
    }

    /// The full windows and, as one more, the operator's guess that a seat is held for `hold_ms`. `None` once there are
    /// enough without it.
    pub(crate) fn with_guess(&self, hold_ms: u64, seats: u32) -> Option<FullWindows> {
        let full = self.windows.iter().filter(|window| window.releases > 0);
        let count = full.clone().count();
        if count > WINDOWS_FEW {
            return None;
        }
        let guessed = window_releases(seats);
        let guess = Window {
            releases: guessed,
            seat_ms: guessed.saturating_mul(hold_ms),
        };
        let sum = full.fold(guess, Window::plus);
        Some(FullWindows {
            sum,
            mean_ms: sum.seat_ms / (count as u64 + 1),
            guessed,
        })
    }

    /// All windows, and the time since the last measurement, in which `held` seats were held.
    pub(crate) fn all(&self, held: u64, now_ms: u64) -> Window {
        let current = self.current_at(held, now_ms);
        self.windows.iter().fold(current, Window::plus)
    }

    fn current_at(&self, held: u64, now_ms: u64) -> Window {
        let since_ms = now_ms.saturating_sub(self.measured_ms);
        self.current.plus(&Window {
            releases: 0,
            seat_ms: held.saturating_mul(since_ms),
        })
    }

    /// The measurements for ETAs. They rise when departures slow down, within bounds. Beside a guess each release
    /// counts at once, and so does each moment without one.
    pub(crate) fn with_current(&self, full: FullWindows, held: u64, now_ms: u64) -> Window {
        let current = match full.guessed {
            0 if self.current.seat_ms <= full.mean_ms => return full.sum,
            0 => self.current,
            _ => self.current_at(held, now_ms),
        };
        let most_ms = full.mean_ms.saturating_mul(SLOW_WINDOWS_MAX);
        let current = Window {
            seat_ms: current.seat_ms.min(most_ms),
            ..current
        };
        full.sum.plus(&current)
    }

    /// The measurements for pauses between polls. They rise without bound while departures are slow. While
    /// there are too few windows, each held seat counts as one more release after 4 s. So clients poll often
    /// while checkouts may be quick, and ever more seldom as they turn out to be slow.
    pub(crate) fn for_pauses(&self, full: Option<FullWindows>, held: u64, now_ms: u64) -> Window {
        let held = held.max(1);
        match full {
            Some(full) => full.sum.plus(&self.current_at(held, now_ms)),
            None => {
                let guess = Window {
                    releases: held,
                    seat_ms: held.saturating_mul(HOLD_MS_GUESSED),
                };
                self.all(held, now_ms).plus(&guess)
            }
        }
    }
}

/// A window ends after so many releases.
fn window_releases(seats: u32) -> u64 {
    (u64::from(seats) / 4).clamp(WINDOW_RELEASES_MIN, WINDOW_RELEASES_MAX)
}

impl Arrivals {
    pub(crate) fn add(&mut self, now_ms: u64) {
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

    /// Whether a lane can have counted this: for dumps.
    pub(crate) fn is_plausible(&self) -> bool {
        let in_order = self.began_ms <= self.since_ms && self.since_ms <= self.last_ms;
        in_order && self.count.max(self.last_ms) <= NUMBER_MAX
    }

    /// How far ahead the rate says anything: as long as the arrivals have lasted. A rush in the ten seconds
    /// after an opening does not go on for an hour.
    pub(crate) fn horizon_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.began_ms)
    }

    /// The rate. It falls while nobody arrives.
    pub(crate) fn per_ms(&self, now_ms: u64) -> f64 {
        // The first arrival only starts the count, and a count over a short time means nothing.
        let counted_ms = now_ms.saturating_sub(self.since_ms).max(10_000);
        self.count.saturating_sub(1) as f64 / counted_ms as f64
    }
}

#[cfg(test)]
#[path = "forecast_tests.rs"]
mod tests;
