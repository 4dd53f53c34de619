//! Whether a limit held, by what its clients saw: the most that went on in any second, and in any five.
//!
//! A client knows when it asked and when it was answered; the leader decided somewhere between. A request counts for a
//! stretch of time only if both lie in it, so a slow answer makes no limit look broken. What the next leader forgot is
//! allowed once more in the stretches around the kill, and only there.

use std::time::Duration;

use nowserving_limit::Algorithm;
use serde::Serialize;

use super::book::Forgotten;
use super::plan::{BURST_OF_BUCKETS, PER_SECOND};

/// The lengths that are checked, in seconds. Around an edge of windows twice the limit goes on in one second, so a window
/// that is too wide shows in five only.
pub const SECONDS: [u32; 2] = [1, 5];
/// Stretches are shorter by this: a leader reads its clock once in a turn, so it can be behind by the length of a turn.
const CLOCK_STEP: Duration = Duration::from_millis(50);
/// The hits that two limits forget begin at different times, as their requests do.
const APART: Duration = Duration::from_millis(100);
/// So long after the kill a request can go on that was delayed before it, and a window can end that began before it.
const AFTER_KILL: Duration = Duration::from_secs(1);
/// A checkpoint is written every 200 ms; the rest is for its commit on a busy machine.
pub const FORGOTTEN_MAX: Duration = Duration::from_secs(1);

/// A request that was allowed.
#[derive(Debug, Clone, Copy)]
pub struct Hit {
    pub asked_at: Duration,
    pub answered_at: Duration,
    /// It goes on so much later.
    pub delay: Duration,
}

/// The kill, and what it cost.
#[derive(Debug, Clone, Copy)]
pub struct Kill {
    pub at: Duration,
    pub forgotten: Option<Forgotten>,
}

/// The stretch of one length that is nearest to its bound, or furthest over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Peak {
    pub seconds: u32,
    /// How many went on.
    pub most: u64,
    /// How many may, with those that a leader forgot.
    pub at_most: u64,
}

impl Peak {
    /// One for each of [`SECONDS`].
    pub fn of(algorithm: Algorithm, hits: &[Hit], kill: Option<Kill>) -> Vec<Peak> {
        let mut hits = hits.to_vec();
        hits.sort_unstable_by_key(|hit| hit.earliest());
        let peak = |seconds| {
            let starts = 0..hits.len();
            let peaks =
                starts.map(|first| Peak::beginning_with(algorithm, seconds, &hits, first, kill));
            peaks.max_by_key(Peak::excess)
        };
        SECONDS.into_iter().filter_map(peak).collect()
    }

    /// Of the stretch that begins with this hit.
    fn beginning_with(
        algorithm: Algorithm,
        seconds: u32,
        hits: &[Hit],
        first: usize,
        kill: Option<Kill>,
    ) -> Peak {
        let from = hits[first].earliest();
        let to = from + Duration::from_secs(seconds.into()) - CLOCK_STEP;
        let inside = hits[first..].iter().take_while(|hit| hit.earliest() < to);
        let most = inside.filter(|hit| hit.latest() < to).count() as u64;
        let forgotten = kill.map_or(0, |kill| kill.forgotten_in(from, to, hits));
        Peak {
            seconds,
            most,
            at_most: at_most(algorithm, seconds) + forgotten,
        }
    }

    pub fn holds(&self) -> bool {
        self.most <= self.at_most
    }

    /// By how much the bound is exceeded; below 0 if it holds.
    fn excess(&self) -> i64 {
        self.most as i64 - self.at_most as i64
    }
}

/// How many an algorithm lets go on in any stretch of so many seconds.
fn at_most(algorithm: Algorithm, seconds: u32) -> u64 {
    let most = match algorithm {
        // So many seconds touch one window more. The counter's estimate is nothing better than that if all hits of a
        // window came at its end.
        Algorithm::FixedWindow | Algorithm::SlidingWindowCounter => PER_SECOND * (seconds + 1),
        Algorithm::SlidingWindowLog => PER_SECOND * seconds,
        Algorithm::TokenBucket => PER_SECOND * seconds + BURST_OF_BUCKETS,
        // Both ends of a stretch can have one.
        Algorithm::LeakingBucket => PER_SECOND * seconds + 1,
    };
    most.into()
}

impl Hit {
    /// It went on between this and [`Hit::latest`].
    fn earliest(&self) -> Duration {
        self.asked_at + self.delay
    }

    fn latest(&self) -> Duration {
        self.answered_at + self.delay
    }
}

impl Kill {
    /// Since when hits were forgotten.
    fn since(self) -> Duration {
        let within = self.forgotten.map_or(Duration::ZERO, |it| it.within);
        self.at.saturating_sub(within + APART)
    }

    /// How many of these hits are allowed once more in a stretch, because the next leader did not know them.
    fn forgotten_in(self, from: Duration, to: Duration, hits: &[Hit]) -> u64 {
        if to < self.since() || from > self.at + AFTER_KILL {
            return 0;
        }
        let is_forgotten = |hit: &&Hit| hit.answered_at >= self.since() && hit.asked_at < self.at;
        hits.iter().filter(is_forgotten).count() as u64
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::demo::limits::plan::{CLIENTS, KILL, SHOW, Shown};
    use nowserving_limit::{Counter, Limit, LimitParts, Now, Unit, Windows};

    const ALGORITHMS: [Algorithm; 5] = [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog,
        Algorithm::TokenBucket,
        Algorithm::LeakingBucket,
    ];
    /// What an answer takes.
    const TRIP: Duration = Duration::from_millis(4);

    /// What the show's clients get from a limit of so many a second, by a leader whose windows begin so much before the
    /// show does.
    fn hits(algorithm: Algorithm, per_second: u32, phase: Duration) -> Vec<Hit> {
        let limit = Limit::new(LimitParts {
            algorithm,
            unit: Unit::Second,
            requests_per_unit: per_second,
            burst: algorithm.is_bucket().then_some(BURST_OF_BUCKETS),
            zone: None,
        })
        .unwrap();
        let (mut counter, mut windows) = (Counter::fresh(algorithm), Windows::new());
        let mut hits = Vec::new();
        let mut asked_at = Duration::ZERO;
        while asked_at < SHOW {
            let at_us = 1_000_000_000 + (asked_at + TRIP / 2 + phase).as_micros() as u64;
            let now = Now {
                service_us: at_us,
                wall_us: at_us,
            };
            let answer = counter.take(&limit, &windows.moment(&limit, now), 1);
            if answer.allowed {
                hits.push(Hit {
                    asked_at,
                    answered_at: asked_at + TRIP,
                    delay: Duration::from_micros(answer.delay_us),
                });
            }
            let all = Shown::Of(algorithm).demand(asked_at) * f64::from(CLIENTS);
            asked_at += Duration::from_secs_f64(1.0 / all);
        }
        hits
    }

    fn phases() -> impl Iterator<Item = Duration> {
        [0, 130, 500, 870].into_iter().map(Duration::from_millis)
    }

    #[test]
    fn the_algorithms_keep_their_bounds() {
        for algorithm in ALGORITHMS {
            for phase in phases() {
                let peaks = Peak::of(algorithm, &hits(algorithm, PER_SECOND, phase), None);
                assert_eq!(peaks.len(), SECONDS.len());
                assert!(
                    peaks.iter().all(Peak::holds),
                    "{algorithm:?} {phase:?}: {peaks:?}"
                );
            }
        }
    }

    #[test]
    fn a_limit_that_lets_130_a_second_through_is_a_fault() {
        for algorithm in ALGORITHMS {
            for phase in phases() {
                let peaks = Peak::of(algorithm, &hits(algorithm, 130, phase), None);
                assert!(
                    !peaks.iter().all(Peak::holds),
                    "{algorithm:?} {phase:?}: {peaks:?}"
                );
            }
        }
    }

    #[test]
    fn forgotten_hits_are_allowed_once_more_around_the_kill_only() {
        let log = Algorithm::SlidingWindowLog;
        let kill = Kill {
            at: KILL,
            forgotten: Some(Forgotten {
                hits: 40,
                within: Duration::from_millis(200),
            }),
        };
        let at = |ms: u64, count: u32| {
            let at = Duration::from_millis(ms);
            let hit = Hit {
                asked_at: at,
                answered_at: at,
                delay: Duration::ZERO,
            };
            vec![hit; count as usize]
        };
        // The second leader did not know the 40 before the kill.
        let mut hits = [at(19_500, 60), at(19_900, 40), at(20_300, 40)].concat();
        let peaks = |hits: &[Hit], kill| Peak::of(log, hits, kill);
        assert!(peaks(&hits, Some(kill)).iter().all(Peak::holds));
        assert!(!peaks(&hits, None)[0].holds());
        hits.extend(at(20_300, 1));
        let second = Peak {
            seconds: 1,
            most: 141,
            at_most: 140,
        };
        assert_eq!(peaks(&hits, Some(kill))[0], second);
        let later = [at(30_000, 100), at(30_500, 1)].concat();
        assert!(!peaks(&later, Some(kill))[0].holds());
    }

    #[test]
    fn a_slow_answer_breaks_no_limit() {
        let log = Algorithm::SlidingWindowLog;
        let hit = |nth: u64| Hit {
            asked_at: Duration::from_millis(10 * nth),
            // All answers come at once: the network stood still.
            answered_at: Duration::from_secs(3),
            delay: Duration::ZERO,
        };
        let hits: Vec<Hit> = (0..250).map(hit).collect();
        assert!(Peak::of(log, &hits, None).iter().all(Peak::holds));
    }
}
