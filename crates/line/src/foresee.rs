//! How long it will take: what the line has measured of itself, made into times.
//!
//! Reading only. The arithmetic is of the kind that is the same on every platform (+ - × ÷, square
//! root, and a logarithm in plain Rust), as what entrants are told is kept in the state.

use crate::lane::Lane;
use crate::line::Line;
use crate::order::order_key;
use crate::pace::Pause;
use crate::{TIMEOUT_MS_MAX, Told, Window};

/// What is never known better than this, as a part of the whole: people change.
const DOUBT: f64 = 0.03;
/// The rounds in which those who will still overtake are counted into the wait.
const ROUNDS: u32 = 6;
/// A forecast beyond this says nothing.
const FORESEE_MS_MAX: f64 = TIMEOUT_MS_MAX as f64;

/// A forecast, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Foreseen {
    /// As likely longer as shorter.
    pub(crate) eta_ms: f64,
    /// Nine in ten are no longer.
    pub(crate) eta_p90_ms: f64,
    /// When to ask again.
    pub(crate) pause: Pause,
    /// The times are good enough to be told: enough has been measured, and departures go on.
    pub(crate) known: bool,
}

/// How long it takes, and why.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait {
    /// Milliseconds.
    pub(crate) ms: f64,
    pub(crate) brake: Brake,
}

/// What holds a token back the longest.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Brake {
    /// So many seats must be given back first.
    Seats { departures: f64 },
    /// The admission rate; also if nothing does.
    Rate,
}

impl Foreseen {
    /// What is told: the median and the 90 % point. What is too large saturates.
    pub(crate) fn told(&self) -> Option<Told> {
        self.known.then_some(Told {
            eta_ms: self.eta_ms as u32,
            eta_p90_ms: self.eta_p90_ms as u32,
        })
    }
}

/// Another lane's share in a wait: those in it who go first, and those still to come.
struct Rival {
    first: u64,
    per_ms: f64,
    /// Who comes later than this goes after, or can't be foreseen.
    until_ms: f64,
}

impl Line {
    /// The `eta_ms` of a token that enters the default lane now; `None` while nothing is known. O(1)
    /// for one lane, O(log² waiting) for each other one.
    pub fn newcomer_eta_ms(&self, now_ms: u64) -> Option<u64> {
        let lane = self.lane_id(self.settings.effective_default_lane()?)?;
        let last = self.lanes.get(usize::from(lane))?.waiting.len();
        let foreseen = self.foresee(lane, last + 1, now_ms, now_ms)?;
        Some(foreseen.told()?.eta_ms.into())
    }

    /// How good the line's forecasts have been so far.
    pub fn forecast_record(&self) -> crate::ForecastRecord {
        self.forecast.record
    }

    /// The forecast for a position in a lane, 1 the first.
    pub(crate) fn foresee(
        &self,
        lane_id: u8,
        in_lane: u64,
        entered_at_ms: u64,
        now_ms: u64,
    ) -> Option<Foreseen> {
        if !self.phase().admits() {
            return None;
        }
        let rivals = self.rivals(lane_id, entered_at_ms, now_ms);
        let first: u64 = rivals.iter().map(|rival| rival.first).sum();
        let position = in_lane + first;
        if position > self.units_left() {
            return None;
        }
        let turns = self.forecast.turns();
        let for_pauses = self.forecast.for_pauses(turns, self.held(), now_ms);
        let measured = turns.map_or(for_pauses, |turns| self.forecast.with_current(turns));
        let wait = |places| {
            self.wait(places, measured, now_ms, |count, per_ms| {
                self.thinned_ms(count, per_ms)
            })
        };
        let mut places = position as f64;
        for _ in 0..ROUNDS {
            let wait_ms = wait(places).ms;
            let to_come = |rival: &Rival| rival.per_ms * wait_ms.min(rival.until_ms);
            let overtaken = rivals.iter().map(to_come).sum::<f64>();
            if overtaken <= 0.0 {
                break;
            }
            places = position as f64 + overtaken;
        }
        let wait = wait(places);
        let eta_p90_ms = self.p90_ms(places, wait, measured);
        let needs_seats = places > self.free() as f64;
        let is_stalled =
            self.free() == 0 && self.forecast.is_stalled(measured, self.held(), now_ms);
        let mut pause = self.pause(places, for_pauses, now_ms);
        if is_stalled {
            pause.stretch(self.forecast.quiet_ms(self.held(), now_ms));
        }
        let foreseen = Foreseen {
            eta_ms: wait.ms,
            eta_p90_ms,
            pause,
            known: (turns.is_some() || !needs_seats) && !is_stalled,
        };
        (eta_p90_ms <= FORESEE_MS_MAX).then_some(foreseen)
    }

    /// What nine in ten don't exceed.
    fn p90_ms(&self, places: f64, wait: Wait, measured: Window) -> f64 {
        let chance = match wait.brake {
            // Departures of many seats come like rain, so that many of them spread by the root of
            // their number; and the rate itself is known from so many releases only.
            Brake::Seats { .. } => 1.0 / places + 1.0 / (measured.releases as f64).max(1.0),
            Brake::Rate => 0.0,
        };
        let sigma_ms = wait.ms * (chance + DOUBT * DOUBT).sqrt();
        let spread = self.forecast.spread_micro as f64 / 1e6;
        wait.ms + spread * sigma_ms
    }

    /// Until so many have been admitted: seats must become free for it, and the rate allow it.
    /// `passing` is how long it takes until so many have gone ahead at so many a millisecond.
    pub(crate) fn wait(
        &self,
        places: f64,
        measured: Window,
        now_ms: u64,
        passing: impl Fn(f64, f64) -> f64,
    ) -> Wait {
        let paced_ms = match (&self.settings.admission_rate, &self.bucket) {
            (Some(rate), Some(bucket)) => {
                let per_ms = rate.per_second_micro as f64 / 1e9;
                let saved = bucket.saved(rate, now_ms);
                passing((places - saved).max(0.0), per_ms)
            }
            _ => 0.0,
        };
        let from_free = places - self.free() as f64;
        let held = self.held() as f64;
        let seats = f64::from(self.settings.seats);
        let seat_per_ms = 1.0 / measured.hold_ms().max(1.0);
        // After `seats` was lowered: nobody is admitted for those who leave until as many are left.
        let over = (held - seats).max(0.0);
        let over_ms = over / (seat_per_ms * held.max(1.0));
        let seats_ms = over_ms + passing(from_free.max(0.0), seat_per_ms * seats);
        let departures = over + from_free;
        if from_free > 0.0 && seats_ms >= paced_ms {
            Wait {
                ms: seats_ms,
                brake: Brake::Seats { departures },
            }
        } else {
            Wait {
                ms: paced_ms,
                brake: Brake::Rate,
            }
        }
    }

    /// Until so many have gone ahead at this rate, when of those who wait some give up: they leave
    /// the sooner the more are there, so the time grows as a logarithm.
    fn thinned_ms(&self, places: f64, per_ms: f64) -> f64 {
        let straight_ms = places / per_ms;
        let waiter_ms = (self.forecast.waiter_ms as f64).max(1.0);
        let hazard = self.forecast.leaves as f64 / waiter_ms;
        let thinning = hazard * straight_ms;
        // Below this the logarithm is a straight line.
        if thinning < 1e-6 {
            straight_ms
        } else {
            libm::log1p(thinning) / hazard
        }
    }

    /// What the other lanes mean for somebody who entered a lane then.
    fn rivals(&self, lane_id: u8, entered_at_ms: u64, now_ms: u64) -> Vec<Rival> {
        let mut listed = self.listed();
        let Some((_, _, own)) = listed.find(|(id, _, _)| *id == lane_id) else {
            return Vec::new();
        };
        let own_key = order_key(entered_at_ms, own.boost_ms);
        let mut earlier = true;
        let mut rivals = Vec::new();
        for (id, lane, set) in self.listed() {
            if id == lane_id {
                earlier = false;
                continue;
            }
            let (first, until_ms) = match (set.absolute, own.absolute) {
                (true, false) => (lane.waiting.len(), f64::INFINITY),
                (false, true) => (0, 0.0),
                _ => {
                    // Of equals the lane listed first goes first.
                    let last_key = own_key - i128::from(!earlier);
                    let last_ms = last_key + i128::from(set.boost_ms);
                    let until_ms = last_ms - i128::from(now_ms);
                    (entered_by(lane, last_ms), until_ms.max(0) as f64)
                }
            };
            rivals.push(Rival {
                first,
                per_ms: lane.arrivals.per_ms(now_ms),
                until_ms: until_ms.min(lane.arrivals.foreseen_ms(now_ms) as f64),
            });
        }
        rivals
    }
}

/// How many wait in the lane who entered no later than this. (Who was moved into it may have
/// entered before those in front of it; it then counts as they do, more or less.)
fn entered_by(lane: &Lane, last_ms: i128) -> u64 {
    let (mut low, mut high) = (0, lane.waiting.len());
    while low < high {
        let middle = low + (high - low) / 2;
        match lane.waiting.entered_at_ms(middle) {
            Some(entered_at_ms) if i128::from(entered_at_ms) <= last_ms => low = middle + 1,
            _ => high = middle,
        }
    }
    low
}
