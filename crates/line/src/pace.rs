//! How often a client asks again: as seldom as its turn allows, whatever holds the line back.
//!
//! A pause follows from the earliest likely moment of the turn. It never counts on others giving up,
//! though the forecast does: pauses then grow in proportion to the places in front, which is what
//! bounds the polls of the whole line. With `m` admissions a second at most, `w` waiting, `cap` the
//! longest pause and `step` the shortest one for want of a seat (all in seconds), there are at most
//!
//! ```text
//! 2.5 × m × (1 + ln(cap / step)) + 4 / step + 2 × w / cap
//! ```
//!
//! polls a second: a token with `p` places in front of it pauses for half of its wait, `p / 2m`, but
//! at least for `step` and at most for `cap`. Summed over the line that is `2m` for those within
//! `step`, `2m × ln(cap / step)` up to those at the cap, and `w / cap` there. The first two ask every
//! `step` whatever `m` is. The spread of the pauses makes 2 into 2.5, 3 into 4, and 1 into 2.

use crate::foresee::Brake;
use crate::line::Line;
use crate::{Settings, State, Token, Window};

/// No client is told to stay away for longer, however far back.
const POLL_MS_MAX: u64 = 30_000;
/// No client is told to come sooner, unless the timeouts leave no choice.
const POLL_MS_MIN: u64 = 100;
/// A client waiting for seats need not ask until so many standard deviations before its turn …
const EARLY_SIGMAS: f64 = 1.5;
/// … and at most this often in the time that a seat is held: on average a seat then stands empty
/// for half of that part, which is all that asking more often could win.
const POLLS_PER_HOLD: f64 = 20.0;
/// A pause is at most this part of the wait: forecasts err, operators change settings.
const PART_OF_WAIT: f64 = 0.5;

/// How long a waiting client pauses, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pause {
    /// By what is likely.
    pub(crate) wish_ms: f64,
    /// It is the next one, and the admission rate has no unit before.
    pub(crate) least_ms: u64,
}

impl Pause {
    /// Departures have stopped, so long ago that what was measured says nothing any more. What has
    /// not happened for so long is not likely to happen in a small part of that.
    pub(crate) fn stretch(&mut self, quiet_ms: u64) {
        self.wish_ms = self.wish_ms.max(quiet_ms as f64 * PART_OF_WAIT);
    }
}

impl Line {
    /// The pause of a token with so many places to go until it is admitted.
    pub(crate) fn pause(&self, places: f64, measured: Window, now_ms: u64) -> Pause {
        let wait = self.wait(places, measured, now_ms, |count, per_ms| count / per_ms);
        let part = match wait.brake {
            // Departures come like rain: the time of `n` of them spreads by the root of `n`.
            Brake::Seats { departures } => 1.0 - EARLY_SIGMAS / departures.sqrt(),
            Brake::Rate => PART_OF_WAIT,
        };
        let step_ms = measured.hold_ms() / POLLS_PER_HOLD;
        let wish_ms = (wait.ms * part.min(PART_OF_WAIT)).max(step_ms);
        // Only the next one: if it held for all, all would ask at that moment.
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

/// When a well-behaved client asks again. At most a third of the idle timeout and half of the
/// claim timeout, so that one lost poll or a late look at being admitted costs nobody the place.
/// Without a pause there is no telling when, or whether, its turn comes.
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
        // It has what it wanted and should act on it, not ask.
        (State::Admitted, _) => (cap, 0),
        // In time to renew, and to miss it once.
        (State::InCheckout, _) => (settings.checkout_timeout_ms / 3, 0),
        (State::Gone, _) => (POLL_MS_MAX, 0),
    };
    let base = wish_ms.max(POLL_MS_MIN).min(cap);
    // Somewhat earlier by the token (never later: the cap is a promise), so that a crowd that came
    // at once does not keep asking at once. Pauses below the cap differ by position already.
    let spread = if base == cap { cap / 2 } else { base / 5 };
    let earlier = spread * (mix(token) % 1_024) / 1_024;
    let least = least_ms.max(POLL_MS_MIN);
    (base - earlier).max(least).min(cap).max(1)
}

/// SplitMix64's finaliser: neighbours get unrelated values.
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
