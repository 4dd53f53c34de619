//! The counter of one key, whatever its algorithm.

use nowserving_codec::Codec;

use crate::algorithm::{
    Drain, FixedWindow, SlidingWindowCounter, SlidingWindowLog, leaking_bucket, token_bucket,
};
use crate::{Algorithm, Answer, Limit, Moment};

/// What is remembered of a key: 32 bytes, and for a log what it remembers besides.
///
/// The `requests_per_unit` and the `burst` of its limit may change at any time: what was counted goes on to count as
/// far as it fits. Another algorithm or unit is another counter; [`crate::key`] has both.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub enum Counter {
    FixedWindow(FixedWindow),
    SlidingWindowLog(Box<SlidingWindowLog>),
    SlidingWindowCounter(SlidingWindowCounter),
    /// A token bucket (what is missing) or a leaking bucket (what is in it).
    Bucket(Drain),
}

const _: () = assert!(size_of::<Counter>() <= 32);

impl Counter {
    /// A counter that nobody has hit. It costs no allocation, but for a log.
    pub fn fresh(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::FixedWindow => Self::FixedWindow(FixedWindow::default()),
            Algorithm::SlidingWindowLog => Self::SlidingWindowLog(Box::default()),
            Algorithm::SlidingWindowCounter => {
                Self::SlidingWindowCounter(SlidingWindowCounter::default())
            }
            Algorithm::TokenBucket | Algorithm::LeakingBucket => Self::Bucket(Drain::default()),
        }
    }

    /// Whether it is of the kind that this algorithm needs.
    pub fn fits(&self, algorithm: Algorithm) -> bool {
        match self {
            Self::FixedWindow(_) => algorithm == Algorithm::FixedWindow,
            Self::SlidingWindowLog(_) => algorithm == Algorithm::SlidingWindowLog,
            Self::SlidingWindowCounter(_) => algorithm == Algorithm::SlidingWindowCounter,
            Self::Bucket(_) => algorithm.is_bucket(),
        }
    }

    /// Answers a request of so many hits and counts them if it is allowed.
    pub fn take(&mut self, limit: &Limit, at: &Moment, hits: u64) -> Answer {
        let answer = self.peek(limit, at, hits);
        if answer.allowed && hits > 0 {
            self.record(limit, at, hits, true);
        }
        answer
    }

    /// Answers as [`Counter::take`] and counts nothing.
    pub fn peek(&mut self, limit: &Limit, at: &Moment, hits: u64) -> Answer {
        self.settle(limit, at);
        let too_many = hits > u64::from(limit.capacity());
        let hits = u32::try_from(hits).unwrap_or(u32::MAX);
        let answer = match limit.capacity() {
            0 => nothing_allowed(hits),
            _ if too_many => self.decide(limit, at, 0),
            _ => self.decide(limit, at, hits),
        };
        match (too_many, hits) {
            (true, _) => Answer {
                allowed: false,
                retry_after_us: None,
                delay_us: 0,
                ..answer
            },
            // Also by a limit that was lowered below what is counted.
            (false, 0) => Answer {
                allowed: true,
                retry_after_us: None,
                ..answer
            },
            (false, _) => answer,
        }
    }

    fn settle(&mut self, limit: &Limit, at: &Moment) {
        if !self.fits(limit.algorithm()) {
            *self = Self::fresh(limit.algorithm());
        }
        match self {
            Self::FixedWindow(counter) => counter.settle(&at.window),
            Self::SlidingWindowLog(counter) => counter.settle(limit, at.now_us),
            Self::SlidingWindowCounter(counter) => counter.settle(&at.window),
            Self::Bucket(counter) => counter.settle(limit, at.now_us),
        }
    }

    fn decide(&self, limit: &Limit, at: &Moment, hits: u32) -> Answer {
        match self {
            Self::FixedWindow(counter) => counter.decide(limit, at, hits),
            Self::SlidingWindowLog(counter) => counter.decide(limit, at.now_us, hits),
            Self::SlidingWindowCounter(counter) => counter.decide(limit, at, hits),
            Self::Bucket(counter) if limit.algorithm() == Algorithm::TokenBucket => {
                token_bucket::decide(counter, limit, at.now_us, hits)
            }
            Self::Bucket(counter) => leaking_bucket::decide(counter, limit, at.now_us, hits),
        }
    }

    /// Counts the hits of a request that [`Counter::peek`] allowed at the same moment. `log_has_room`: whether a
    /// sliding window log may remember one more time.
    pub fn record(&mut self, limit: &Limit, at: &Moment, hits: u64, log_has_room: bool) {
        self.settle(limit, at);
        let hits = u32::try_from(hits).unwrap_or(u32::MAX);
        match self {
            Self::FixedWindow(counter) => counter.record(hits),
            Self::SlidingWindowLog(counter) => counter.record(at.now_us, hits, log_has_room),
            Self::SlidingWindowCounter(counter) => counter.record(hits),
            Self::Bucket(counter) => counter.record(limit, at.now_us, hits),
        }
    }

    /// What the hits that it has just counted are known by when they are given back: `empty_us` is the end of their window,
    /// their time in a log, or when a bucket is empty if nobody comes after them.
    pub fn mark(&self) -> Drain {
        let at = |empty_us| Drain { empty_us, part: 0 };
        match self {
            Self::FixedWindow(counter) => at(counter.end_us),
            Self::SlidingWindowLog(log) => at(log.newest_us()),
            Self::SlidingWindowCounter(counter) => at(counter.end_us),
            Self::Bucket(bucket) => *bucket,
        }
    }

    /// Gives hits back that were counted, unless they are over: `mark` is what [`Counter::mark`] was after them, and `limit`
    /// the one by which they were counted. It never makes room that they did not take, and is not settled first: by then its
    /// limit may be another one.
    pub fn give_back(&mut self, limit: &Limit, now_us: u64, hits: u64, mark: &Drain) {
        match self {
            Self::SlidingWindowLog(log) => log.give_back(now_us, hits, mark.empty_us),
            Self::Bucket(bucket) => bucket.give_back(limit, now_us, hits, mark),
            _ if mark.empty_us <= now_us => {}
            Self::FixedWindow(counter) => counter.give_back(hits, mark.empty_us),
            Self::SlidingWindowCounter(counter) => counter.give_back(hits, mark.empty_us),
        }
    }

    /// From when on it answers as a fresh one, by the clock of its limit, in µs. The files of `algorithm` say when that
    /// is. Hits move it to later, unless a clock leapt, and only [`Counter::give_back`] to earlier.
    pub fn idle_at_us(&self) -> u64 {
        match self {
            Self::FixedWindow(counter) => counter.idle_at_us(),
            Self::SlidingWindowLog(counter) => counter.idle_at_us(),
            Self::SlidingWindowCounter(counter) => counter.idle_at_us(),
            Self::Bucket(counter) => counter.idle_at_us(),
        }
    }

    /// How many times it remembers one by one.
    pub fn log_len(&self) -> usize {
        match self {
            Self::SlidingWindowLog(log) => log.hits().len(),
            _ => 0,
        }
    }
}

/// The answer of a limit of 0.
fn nothing_allowed(hits: u32) -> Answer {
    Answer {
        allowed: hits == 0,
        limit: 0,
        remaining: 0,
        reset_us: 0,
        retry_after_us: None,
        delay_us: 0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{LimitParts, Now, Unit, Windows};

    fn limit(algorithm: Algorithm, requests_per_unit: u32) -> Limit {
        let unit = Unit::Second;
        Limit::new(LimitParts {
            algorithm,
            ..Limit::fixed_window(requests_per_unit, unit).parts().clone()
        })
        .unwrap()
    }

    fn at(limit: &Limit, service_us: u64) -> Moment {
        let now = Now {
            service_us,
            wall_us: service_us,
        };
        Windows::new().moment(limit, now)
    }

    #[test]
    fn a_limit_of_nothing_refuses_everything_for_ever() {
        for algorithm in Algorithm::ALL {
            let limit = limit(algorithm, 0);
            let mut counter = Counter::fresh(algorithm);
            let answer = counter.take(&limit, &at(&limit, 5), 1);
            assert_eq!((answer.allowed, answer.retry_after_us), (false, None));
            assert!(counter.take(&limit, &at(&limit, 5), 0).allowed);
        }
    }

    #[test]
    fn more_hits_than_ever_fit_are_refused_for_good_and_cost_nothing() {
        for algorithm in Algorithm::ALL {
            let limit = limit(algorithm, 3);
            let mut counter = Counter::fresh(algorithm);
            for hits in [4, u64::from(u32::MAX) + 1, u64::MAX] {
                let answer = counter.take(&limit, &at(&limit, 5), hits);
                assert_eq!((answer.allowed, answer.retry_after_us), (false, None));
                assert_eq!(answer.remaining, 3);
            }
            assert!(counter.take(&limit, &at(&limit, 5), 3).allowed);
        }
    }

    #[test]
    fn a_changed_limit_counts_what_was_counted() {
        for algorithm in Algorithm::ALL {
            let (small, large) = (limit(algorithm, 4), limit(algorithm, 10));
            let mut counter = Counter::fresh(algorithm);
            assert!(counter.take(&large, &at(&large, 5), 10).allowed);
            let none = counter.take(&small, &at(&small, 5), 0);
            assert_eq!((none.allowed, none.retry_after_us), (true, None));
            let refused = counter.take(&small, &at(&small, 5), 1);
            assert!(!refused.allowed, "{algorithm:?}");
            let later_us = 5 + refused.retry_after_us.unwrap();
            assert!(
                counter.take(&small, &at(&small, later_us), 1).allowed,
                "{algorithm:?}"
            );
            assert!(later_us <= 2_000_005, "{algorithm:?}: {later_us}");
        }
    }

    #[test]
    fn the_counter_of_another_algorithm_is_not_counted() {
        let mut counter = Counter::fresh(Algorithm::FixedWindow);
        let fixed = limit(Algorithm::FixedWindow, 1);
        assert!(counter.take(&fixed, &at(&fixed, 5), 1).allowed);
        let bucket = limit(Algorithm::TokenBucket, 1);
        assert!(counter.take(&bucket, &at(&bucket, 5), 1).allowed);
        assert!(counter.fits(Algorithm::TokenBucket));
    }
}
