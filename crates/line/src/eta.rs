//! The ETA of a waiting token and the pause until its client should poll again, both from the measurements
//! in `forecast`.
//!
//! Nothing here changes the line. The ETA uses only floating-point operations that are deterministic across
//! platforms (+ - × ÷, square root, and a logarithm and an exponential in plain Rust), because the ETA that an
//! entrant is given is replicated state.
//!
//! # Pauses
//!
//! A client polls as seldom as its turn allows, whatever holds the line back. Its pause follows from the
//! earliest likely moment of its turn. Unlike the ETA it never counts on others giving up: so pauses grow in
//! proportion to the places in front, and that bounds the polls of the whole line. With `m` admissions a
//! second at most, `w` waiting, `cap` the longest pause and `step` the shortest one for want of a seat (all in
//! seconds), there are at most
//!
//! ```text
//! 2.5 × m × (1 + ln(cap / step)) + 4 / step + 2 × w / cap
//! ```
//!
//! polls a second: a token with `p` places in front of it pauses for half of its wait, `p / 2m`, but at least
//! for `step` and at most for `cap`. Summed over the line that is `2m` for tokens within `step`,
//! `2m × ln(cap / step)` up to those at the cap, and `w / cap` there. The first two poll every `step` whatever
//! `m` is. The spread of the pauses makes 2 into 2.5, 3 into 4, and 1 into 2.

use crate::first_turn::Basis;
use crate::forecast::FullWindows;
use crate::line::{Lane, Line, order_key};
use crate::{EtaFrom, EtaGiven, ForecastRecord, Settings, State, TIMEOUT_MS_MAX, Token};

/// The relative error that remains however much was measured: behaviour changes.
const DOUBT: f64 = 0.03;
/// Rounds of the fixed-point iteration that counts tokens still to overtake into the wait.
const ROUNDS: u32 = 6;
/// A longer ETA is not given.
const ETA_MS_MAX: f64 = TIMEOUT_MS_MAX as f64;
/// The longest pause, however far back a token is.
pub(crate) const POLL_MS_MAX: u64 = 30_000;
/// The shortest pause, unless the timeouts demand a shorter one or operators set a longer one.
pub(crate) const POLL_MS_MIN: u64 = 100;
/// A client that waits for seats need not poll until so many standard deviations before its turn …
const EARLY_SIGMAS: f64 = 1.5;
/// … and at most this often in the time that a seat is held. On average a seat then stands empty for half
/// a pause, which is all that polling more often could win.
const POLLS_PER_HOLD: f64 = 20.0;
/// A pause is at most this part of the wait: ETAs err, operators change settings.
const PART_OF_WAIT: f64 = 0.5;

/// Times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Eta {
    /// The median.
    eta_ms: f64,
    /// 90th percentile.
    eta_p90_ms: f64,
    pub(crate) pause: Pause,
    /// The times are good enough to be given: enough was measured or guessed, and departures go on.
    known: bool,
    /// What they rest on.
    pub(crate) from: EtaFrom,
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    ms: f64,
    bottleneck: Bottleneck,
}

/// The constraint that delays a token the longest.
#[derive(Debug, Clone, Copy)]
enum Bottleneck {
    /// Seats: so many must be given back first.
    Seats { departures: f64 },
    /// The admission rate, or nothing.
    Rate,
}

impl Eta {
    const AT_ONCE: Eta = Eta {
        eta_ms: 0.0,
        eta_p90_ms: 0.0,
        pause: Pause {
            wish_ms: 0.0,
            least_ms: 0,
        },
        known: true,
        from: EtaFrom::Measured,
    };

    /// The times for the client, if they are good enough. Too large ones saturate.
    pub(crate) fn given(&self) -> Option<EtaGiven> {
        self.known.then_some(EtaGiven {
            eta_ms: self.eta_ms as u32,
            eta_p90_ms: self.eta_p90_ms as u32,
        })
    }
}

/// The share of another lane in a wait.
struct Rival {
    /// Tokens that wait there and go first.
    first: u64,
    /// Rate of arrivals.
    per_ms: f64,
    /// Arrivals within this time go first, too. Later ones go after, or cannot be predicted.
    until_ms: f64,
}

/// The time until a waiting client should poll again, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pause {
    /// By the likely time of its turn.
    wish_ms: f64,
    /// For the next token in line: until the admission rate lets it pass.
    least_ms: u64,
}

impl Pause {
    /// To be called when departures stopped so long ago that the measurements are void. An event that has
    /// not happened for so long is unlikely to happen within a small part of that time.
    fn stretch(&mut self, quiet_ms: u64) {
        self.wish_ms = self.wish_ms.max(quiet_ms as f64 * PART_OF_WAIT);
    }
}

impl Line {
    /// The `eta_ms` of a token that enters the default lane now, and what it rests on; `None` while it is unknown. O(1)
    /// for one lane, O(log² waiting) for each other one.
    pub fn newcomer_eta(&self, now_ms: u64) -> Option<(u64, EtaFrom)> {
        let lane = self.lane_id(self.settings.effective_default_lane()?)?;
        let last = self.lanes.get(usize::from(lane))?.waiting.len();
        let eta = self.eta(lane, last + 1, now_ms, now_ms)?;
        Some((eta.given()?.eta_ms.into(), eta.from))
    }

    pub fn forecast_record(&self) -> ForecastRecord {
        self.forecast.record
    }

    /// The ETA for a position in a lane, 1 being the first. `None` if the token will not be admitted as
    /// things are, or only after [`ETA_MS_MAX`].
    pub(crate) fn eta(
        &self,
        lane_id: u8,
        in_lane: u64,
        entered_at_ms: u64,
        now_ms: u64,
    ) -> Option<Eta> {
        if !self.phase().admits() || self.is_undrawn() {
            return None;
        }
        if !self.holds_back() {
            return Some(Eta::AT_ONCE);
        }
        if !self.admits_by_itself() || self.seats() == 0 {
            return None;
        }
        let rivals = self.rivals(lane_id, entered_at_ms, now_ms);
        let first: u64 = rivals.iter().map(|rival| rival.first).sum();
        let position = in_lane + first;
        if position > self.quota_visits() {
            return None;
        }
        let full = self.forecast.full_windows();
        // Pauses do not go by a guess: if it is wrong, no seat stands empty for that.
        let for_pauses = Basis::measured(self.forecast.for_pauses(full, self.held(), now_ms));
        let guess = self.settings.checkout_expected_ms;
        let guess = guess.and_then(|ms| self.forecast.with_guess(ms, self.seats()));
        let basis = match guess.or(full) {
            Some(windows) => self.basis(windows, now_ms),
            None => for_pauses,
        };
        let wait = |places| {
            self.wait(places, basis, now_ms, |count, per_ms| {
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
        let eta_p90_ms = self.p90_ms(places, wait, basis);
        let needs_seats = places > self.admissible() as f64;
        let is_stalled_by = |window| {
            self.admissible() == 0 && self.forecast.is_stalled(window, self.held(), now_ms)
        };
        let is_stalled = is_stalled_by(basis.window);
        let by_seats = matches!(wait.bottleneck, Bottleneck::Seats { .. });
        let is_guess = by_seats && guess.is_some_and(|guess| guess.is_mostly_guessed());
        let mut pause = self.pause(places, for_pauses, now_ms);
        let measured = full.map_or(for_pauses.window, |full| {
            self.forecast.with_current(full, self.held(), now_ms)
        });
        if is_stalled_by(measured) {
            pause.stretch(self.forecast.quiet_ms(self.held(), now_ms));
        }
        let eta = Eta {
            eta_ms: wait.ms,
            eta_p90_ms,
            pause,
            known: (guess.or(full).is_some() || !needs_seats)
                && !is_stalled
                && eta_p90_ms <= ETA_MS_MAX,
            from: match is_guess {
                true => EtaFrom::Expected,
                false => EtaFrom::Measured,
            },
        };
        // A guess that is too long says nothing of when to ask again.
        (eta_p90_ms <= ETA_MS_MAX || guess.is_some()).then_some(eta)
    }

    fn basis(&self, windows: FullWindows, now_ms: u64) -> Basis {
        let measured = self.forecast.with_current(windows, self.held(), now_ms);
        match windows.guessed() {
            0 => Basis::measured(measured),
            guessed => {
                let held_ms = self.forecast.all(self.held(), now_ms).seat_ms;
                Basis::guessed(guessed, measured, held_ms, self.seats())
            }
        }
    }

    fn p90_ms(&self, places: f64, wait: Wait, basis: Basis) -> f64 {
        let chance = match wait.bottleneck {
            // Departures from many seats are a Poisson process: the time of `n` of them spreads by the
            // root of `n`. And the rate itself is not known exactly.
            Bottleneck::Seats { .. } => 1.0 / places + basis.variance(),
            Bottleneck::Rate => 0.0,
        };
        let sigma_ms = wait.ms * (chance + DOUBT * DOUBT).sqrt();
        let spread = self.forecast.spread_micro as f64 / 1e6;
        wait.ms + spread * sigma_ms
    }

    /// The time until so many places have been admitted: seats must become free, and the admission rate
    /// must allow it. `passing(n, r)` is the time until `n` tokens have gone ahead at `r` a millisecond.
    fn wait(
        &self,
        places: f64,
        basis: Basis,
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
        let from_free = places - self.admissible() as f64;
        let held = self.held() as f64;
        let seats = f64::from(self.seats());
        let seat_per_ms = 1.0 / basis.window.hold_ms().max(1.0);
        // After `seats` was lowered, seats that are given back admit nobody until so few are held.
        let over = (held - seats).max(0.0);
        let over_ms = over / (seat_per_ms * held.max(1.0));
        let needed = from_free.max(0.0);
        let late = basis.late_places(needed, seats);
        let seats_ms = over_ms + passing(needed + late, seat_per_ms * seats);
        let departures = over + from_free;
        if from_free > 0.0 && seats_ms >= paced_ms {
            Wait {
                ms: seats_ms,
                bottleneck: Bottleneck::Seats { departures },
            }
        } else {
            Wait {
                ms: paced_ms,
                bottleneck: Bottleneck::Rate,
            }
        }
    }

    /// The time until so many tokens have gone ahead at this rate if waiting tokens also give up. The more
    /// wait, the more give up, so the time grows as a logarithm.
    fn thinned_ms(&self, places: f64, per_ms: f64) -> f64 {
        let straight_ms = places / per_ms;
        let waiter_ms = (self.forecast.waiter_ms as f64).max(1.0);
        let hazard = self.forecast.leaves as f64 / waiter_ms;
        let thinning = hazard * straight_ms;
        // Here the logarithm is linear within the precision.
        if thinning < 1e-6 {
            straight_ms
        } else {
            libm::log1p(thinning) / hazard
        }
    }

    /// The other lanes' shares in the wait of a token that entered this lane then.
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
                    // Of equal keys the lane listed first goes first.
                    let last_key = own_key - i128::from(!earlier);
                    let last_ms = last_key + i128::from(set.boost_ms);
                    let until_ms = last_ms - i128::from(now_ms);
                    (entered_by(lane, last_ms), until_ms.max(0) as f64)
                }
            };
            rivals.push(Rival {
                first,
                per_ms: lane.arrivals.per_ms(now_ms),
                until_ms: until_ms.min(lane.arrivals.horizon_ms(now_ms) as f64),
            });
        }
        rivals
    }

    /// The pause of a token with so many places to go until it is admitted.
    fn pause(&self, places: f64, basis: Basis, now_ms: u64) -> Pause {
        let wait = self.wait(places, basis, now_ms, |count, per_ms| count / per_ms);
        let part = match wait.bottleneck {
            // The time of `n` departures spreads by the root of `n`.
            Bottleneck::Seats { departures } => 1.0 - EARLY_SIGMAS / departures.sqrt(),
            Bottleneck::Rate => PART_OF_WAIT,
        };
        let step_ms = basis.window.hold_ms() / POLLS_PER_HOLD;
        let wish_ms = (wait.ms * part.min(PART_OF_WAIT)).max(step_ms);
        // Only for the next token: if it held for all, all would poll at that moment.
        let ready_ms = match (&self.settings.admission_rate, &self.bucket) {
            (Some(rate), Some(bucket)) if places <= 1.0 => bucket.ready_at_ms(rate),
            _ => 0,
        };
        Pause {
            wish_ms,
            least_ms: ready_ms.saturating_sub(now_ms),
        }
    }
}

/// How many wait in the lane that entered no later than this. (A token that was moved into it may have
/// entered before the ones in front of it. The search then counts it roughly as it does those.)
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

/// When a well-behaved client polls again. At most a third of the idle timeout and half of the claim timeout,
/// so that one lost poll costs nobody the place or the seat. `pause` is `None` if nothing is known of when, or
/// whether, its turn comes.
pub(crate) fn poll_after_ms(
    settings: &Settings,
    state: State,
    pause: Option<Pause>,
    token: Token,
) -> u64 {
    let cap = POLL_MS_MAX
        .min(settings.waiting_idle_timeout_ms / 3)
        .min(settings.claim_timeout_ms / 2);
    let (wish_ms, least_ms) = match (state, pause) {
        (State::Waiting, Some(pause)) => (pause.wish_ms as u64, pause.least_ms),
        (State::Waiting, None) => (cap, 0),
        // It should claim, not poll.
        (State::Admitted, _) => (cap, 0),
        // In time to renew, even if one poll is missed.
        (State::InCheckout, _) => (settings.checkout_timeout_ms / 3, 0),
        (State::Gone, _) => (POLL_MS_MAX, 0),
    };
    // Who is in checkout asks in time to renew. A fifth is left, so that the shortest pause can be spread, too.
    let min_ms = match state {
        State::Waiting => settings.poll_min_ms,
        _ => POLL_MS_MIN,
    };
    let min_ms = min_ms.min(cap * 4 / 5);
    let base = wish_ms.max(min_ms * 5 / 4).min(cap);
    // Somewhat earlier, by the token's number, so that a crowd that entered at once does not poll at once
    // for ever. Never later: the cap is a promise. Pauses below the cap differ by position already.
    let spread = if base == cap {
        cap - min_ms.max(cap / 2)
    } else {
        base / 5
    };
    let earlier = spread * (mix(token) % 1_024) / 1_024;
    let least = least_ms.max(min_ms);
    (base - earlier).max(least).min(cap).max(1)
}

/// The finaliser of SplitMix64: neighbouring numbers get unrelated values.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_ms(settings: &Settings, wish_ms: Option<f64>, token: Token) -> u64 {
        let pause = wish_ms.map(|wish_ms| Pause {
            wish_ms,
            least_ms: 0,
        });
        poll_after_ms(settings, State::Waiting, pause, token)
    }

    #[test]
    fn polls_keep_within_the_timeouts_and_spread() {
        let mut settings = Settings::new(1, 0);
        for timeout_ms in [100, 250, 1_000, 30_000, crate::TIMEOUT_MS_MAX] {
            settings.waiting_idle_timeout_ms = timeout_ms;
            settings.claim_timeout_ms = timeout_ms;
            for wish_ms in [None, Some(0.0), Some(100.0), Some(7e3), Some(f64::MAX)] {
                for token in 1..100 {
                    let ms = after_ms(&settings, wish_ms, token);
                    assert!(ms <= timeout_ms / 3 && ms <= timeout_ms / 2 && ms >= 1);
                    assert!(ms >= 100 || timeout_ms / 3 < 125, "{timeout_ms} {ms}");
                }
            }
        }
        settings = Settings::new(1, 0);
        for wish_ms in [Some(7e3), None] {
            let all = (1..1_000).map(|token| after_ms(&settings, wish_ms, token));
            let distinct: std::collections::BTreeSet<_> = all.collect();
            assert!(distinct.len() > 500, "a crowd does not ask in step");
        }
    }

    /// Even next to the head; but one lost poll still costs nobody the place.
    #[test]
    fn operators_can_have_clients_poll_less_often() {
        let mut settings = Settings::new(1, 0);
        settings.poll_min_ms = 4_000;
        let all = (1..1_000).map(|token| after_ms(&settings, Some(0.0), token));
        let all: std::collections::BTreeSet<_> = all.collect();
        assert!(all.len() > 500 && all.iter().all(|ms| (4_000..=5_000).contains(ms)));
        settings.waiting_idle_timeout_ms = 9_000;
        let all = (1..1_000).map(|token| after_ms(&settings, Some(0.0), token));
        let all: std::collections::BTreeSet<_> = all.collect();
        assert!(all.len() > 300 && all.iter().all(|ms| (2_400..=3_000).contains(ms)));
        settings.checkout_timeout_ms = 6_000;
        for token in 1..100 {
            assert!(poll_after_ms(&settings, State::InCheckout, None, token) <= 2_000);
        }
    }

    #[test]
    fn no_poll_comes_before_the_rate_has_a_unit() {
        let settings = Settings::new(1, 0);
        for token in 1..100 {
            let pause = Some(Pause {
                wish_ms: 500.0,
                least_ms: 990,
            });
            let ms = poll_after_ms(&settings, State::Waiting, pause, token);
            assert_eq!(ms, 990);
        }
    }
}
