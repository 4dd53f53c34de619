//! The rules as one would write them down without a thought for memory or time.

use std::collections::BTreeMap;

use nowserving_limit::{Algorithm, Limit, Moment};

/// What a model answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expected {
    pub allowed: bool,
    pub remaining: u32,
    pub reset_us: u64,
    pub delay_us: u64,
}

pub trait Naive {
    /// How many hits have room now; then of these so many are taken.
    fn room(&self, limit: &Limit, at: &Moment) -> u64;
    fn take(&mut self, limit: &Limit, at: &Moment, hits: u64);
    fn reset_us(&self, limit: &Limit, at: &Moment) -> u64;
    fn delay_us(&self, _: &Limit, _: &Moment) -> u64 {
        0
    }
    fn copy(&self) -> Box<dyn Naive>;

    fn check(&mut self, limit: &Limit, at: &Moment, hits: u64, dry_run: bool) -> Expected {
        if limit.capacity() == 0 {
            return Expected {
                allowed: hits == 0,
                ..Expected::default()
            };
        }
        let room = self.room(limit, at);
        let allowed = hits <= room;
        let delay_us = if allowed { self.delay_us(limit, at) } else { 0 };
        let mut after = self.copy();
        if allowed {
            after.take(limit, at, hits);
        }
        if allowed && !dry_run {
            self.take(limit, at, hits);
        }
        Expected {
            allowed,
            remaining: u32::try_from(after.room(limit, at)).unwrap_or(u32::MAX),
            reset_us: after.reset_us(limit, at),
            delay_us,
        }
    }
}

/// Tokens as a fraction of `period_us`, refilled at each look.
#[derive(Clone, Default)]
pub struct NaiveTokens {
    /// None: full.
    at: Option<(u64, u128)>,
}

impl NaiveTokens {
    fn full(limit: &Limit) -> u128 {
        u128::from(limit.capacity()) * u128::from(limit.period_us())
    }

    fn tokens(&self, limit: &Limit, now_us: u64) -> u128 {
        let full = Self::full(limit);
        self.at.map_or(full, |(at_us, tokens)| {
            let refilled = u128::from(now_us - at_us) * u128::from(limit.requests_per_unit());
            full.min(tokens + refilled)
        })
    }
}

impl Naive for NaiveTokens {
    fn room(&self, limit: &Limit, at: &Moment) -> u64 {
        (self.tokens(limit, at.now_us) / u128::from(limit.period_us())) as u64
    }

    fn take(&mut self, limit: &Limit, at: &Moment, hits: u64) {
        let tokens =
            self.tokens(limit, at.now_us) - u128::from(hits) * u128::from(limit.period_us());
        self.at = Some((at.now_us, tokens));
    }

    fn reset_us(&self, limit: &Limit, at: &Moment) -> u64 {
        let missing = Self::full(limit) - self.tokens(limit, at.now_us);
        missing.div_ceil(u128::from(limit.requests_per_unit())) as u64
    }

    fn copy(&self) -> Box<dyn Naive> {
        Box::new(self.clone())
    }
}

/// Each hit in the queue with the time at which it has left, in parts of a µs of which there are `requests_per_unit`.
#[derive(Clone, Default)]
pub struct NaiveQueue {
    leave: Vec<u128>,
}

impl NaiveQueue {
    fn parts(limit: &Limit, now_us: u64) -> u128 {
        u128::from(now_us) * u128::from(limit.requests_per_unit())
    }

    fn last_in_us(&self, limit: &Limit, at: &Moment) -> u64 {
        let now = Self::parts(limit, at.now_us);
        let last = self.leave.last().map_or(0, |last| last.saturating_sub(now));
        last.div_ceil(u128::from(limit.requests_per_unit())) as u64
    }
}

impl Naive for NaiveQueue {
    fn room(&self, limit: &Limit, at: &Moment) -> u64 {
        assert_eq!(limit.algorithm(), Algorithm::LeakingBucket);
        let now = Self::parts(limit, at.now_us);
        let waiting = self.leave.iter().filter(|leaves| **leaves > now).count();
        u64::from(limit.capacity()) - waiting as u64
    }

    fn take(&mut self, limit: &Limit, at: &Moment, hits: u64) {
        let now = Self::parts(limit, at.now_us);
        for _ in 0..hits {
            let turn = self.leave.last().map_or(now, |last| now.max(*last));
            self.leave.push(turn + u128::from(limit.period_us()));
        }
    }

    fn reset_us(&self, limit: &Limit, at: &Moment) -> u64 {
        self.last_in_us(limit, at)
    }

    fn delay_us(&self, limit: &Limit, at: &Moment) -> u64 {
        self.last_in_us(limit, at)
    }

    fn copy(&self) -> Box<dyn Naive> {
        Box::new(self.clone())
    }
}

/// Hits by the begin of their window.
#[derive(Clone, Default)]
pub struct NaiveFixedWindow {
    hits: BTreeMap<u64, u64>,
}

impl Naive for NaiveFixedWindow {
    fn room(&self, limit: &Limit, at: &Moment) -> u64 {
        let hits = self.hits.get(&at.window.start_us).copied();
        u64::from(limit.capacity()) - hits.unwrap_or(0)
    }

    fn take(&mut self, _: &Limit, at: &Moment, hits: u64) {
        *self.hits.entry(at.window.start_us).or_default() += hits;
    }

    fn reset_us(&self, _: &Limit, at: &Moment) -> u64 {
        at.window.end_us - at.now_us
    }

    fn copy(&self) -> Box<dyn Naive> {
        Box::new(self.clone())
    }
}

/// All hits that were ever allowed.
#[derive(Clone, Default)]
pub struct NaiveLog {
    hits: Vec<(u64, u64)>,
}

impl Naive for NaiveLog {
    fn room(&self, limit: &Limit, at: &Moment) -> u64 {
        let counted = self
            .hits
            .iter()
            .filter(|(hit_us, _)| hit_us + limit.period_us() > at.now_us);
        let counted: u64 = counted.map(|(_, hits)| hits).sum();
        u64::from(limit.capacity()) - counted
    }

    fn take(&mut self, _: &Limit, at: &Moment, hits: u64) {
        if hits > 0 {
            self.hits.push((at.now_us, hits));
        }
    }

    fn reset_us(&self, limit: &Limit, at: &Moment) -> u64 {
        let last = self.hits.last();
        last.map_or(0, |(hit_us, _)| {
            (hit_us + limit.period_us()).saturating_sub(at.now_us)
        })
    }

    fn copy(&self) -> Box<dyn Naive> {
        Box::new(self.clone())
    }
}

/// Hits by the end of their window.
#[derive(Clone, Default)]
pub struct NaiveSlidingCounter {
    hits: BTreeMap<u64, u64>,
}

impl NaiveSlidingCounter {
    fn hits(&self, end_us: u64) -> u64 {
        self.hits.get(&end_us).copied().unwrap_or(0)
    }
}

impl Naive for NaiveSlidingCounter {
    fn room(&self, limit: &Limit, at: &Moment) -> u64 {
        let (this, last) = (self.hits(at.window.end_us), self.hits(at.window.start_us));
        let overlap = u128::from(at.window.end_us - at.now_us);
        let counted = u128::from(last) * overlap / u128::from(at.window.length_us());
        // Rounded down, the sum can be one too many only by what is rounded.
        u64::from(limit.capacity()).saturating_sub(this + counted as u64)
    }

    fn take(&mut self, _: &Limit, at: &Moment, hits: u64) {
        if hits > 0 {
            *self.hits.entry(at.window.end_us).or_default() += hits;
        }
    }

    fn reset_us(&self, _: &Limit, at: &Moment) -> u64 {
        let until = if self.hits(at.window.end_us) > 0 {
            at.window.next_end_us
        } else if self.hits(at.window.start_us) > 0 {
            at.window.end_us
        } else {
            at.now_us
        };
        until - at.now_us
    }

    fn copy(&self) -> Box<dyn Naive> {
        Box::new(self.clone())
    }
}
