//! Hits that drain at a constant rate: what token bucket and leaking bucket have in common.

use nowserving_codec::Codec;

use super::SLIP_US;
use crate::{Answer, Limit};

/// How full a bucket of hits is, told by when it will be empty.
///
/// The rule is the virtual scheduling algorithm of the generic cell rate algorithm (ITU-T I.371, Annex A), which
/// equals a continuous-state leaky bucket: each hit moves the time of emptiness by `period ÷ requests_per_unit`, and a
/// hit fits as long as that time is at most the bucket's size ahead. That time is kept with its fraction of a µs, so
/// nothing is rounded away.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drain {
    /// When the bucket is empty, in µs, rounded down.
    pub empty_us: u64,
    /// The rest, in parts of a µs of which there are `requests_per_unit`.
    pub part: u32,
}

/// The rate and the size of a bucket. A hit is `period_us` units, and `per_period` units drain in a µs: so all is
/// whole.
#[derive(Clone, Copy)]
pub(super) struct Bucket {
    per_period: u128,
    period_us: u128,
    capacity: u128,
}

impl Bucket {
    pub fn of(limit: &Limit) -> Self {
        Self {
            per_period: limit.requests_per_unit().max(1).into(),
            period_us: limit.period_us().into(),
            capacity: limit.capacity().into(),
        }
    }

    fn full(&self) -> u128 {
        self.capacity * self.period_us
    }

    fn drained_in_us(&self, level: u128) -> u64 {
        saturated(level.div_ceil(self.per_period))
    }
}

fn saturated(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

impl Drain {
    /// A bucket that is fuller than full is full, but for what a clock that slipped has still to catch up with: its size
    /// or rate was changed, or the clock leapt.
    pub fn settle(&mut self, limit: &Limit, now_us: u64) {
        let bucket = Bucket::of(limit);
        // A fraction that the present rate cannot have is of an earlier one.
        self.part = self.part.min(limit.requests_per_unit().saturating_sub(1));
        let slipped = u128::from(SLIP_US) * bucket.per_period;
        if self.level(bucket, now_us) > bucket.full() + slipped {
            *self = Self::empty_in(bucket, now_us, bucket.full());
        }
    }

    /// Answers as a bucket that a hit fits in if there is room for it; without a delay.
    pub(super) fn decide(&self, limit: &Limit, now_us: u64, hits: u32) -> Answer {
        let bucket = Bucket::of(limit);
        let level = self.level(bucket, now_us);
        let with_hits = level + u128::from(hits) * bucket.period_us;
        let too_much = with_hits.saturating_sub(bucket.full());
        let allowed = too_much == 0;
        let level = if allowed { with_hits } else { level };
        let left = bucket.full().saturating_sub(level) / bucket.period_us;
        Answer {
            allowed,
            limit: limit.requests_per_unit(),
            remaining: u32::try_from(left).unwrap_or(u32::MAX),
            reset_us: bucket.drained_in_us(level),
            retry_after_us: (!allowed).then(|| bucket.drained_in_us(too_much)),
            delay_us: 0,
        }
    }

    /// In how many µs all that is in the bucket now has drained.
    pub(super) fn drained_in_us(&self, limit: &Limit, now_us: u64) -> u64 {
        let bucket = Bucket::of(limit);
        bucket.drained_in_us(self.level(bucket, now_us))
    }

    pub fn record(&mut self, limit: &Limit, now_us: u64, hits: u32) {
        let bucket = Bucket::of(limit);
        let level = self.level(bucket, now_us);
        let with_hits = level + u128::from(hits) * bucket.period_us;
        *self = Self::empty_in(bucket, now_us, with_hits);
    }

    /// Gives back hits after which, if nobody else came, the bucket would be as `mark` says: what of them has drained since is
    /// not given back.
    pub fn give_back(&mut self, limit: &Limit, now_us: u64, hits: u64, mark: &Self) {
        let bucket = Bucket::of(limit);
        let given = (u128::from(hits) * bucket.period_us).min(mark.level(bucket, now_us));
        let level = self.level(bucket, now_us).saturating_sub(given);
        *self = Self::empty_in(bucket, now_us, level);
    }

    /// When the bucket is empty: a token bucket has all its tokens, a leaking bucket nothing to let through.
    pub fn idle_at_us(&self) -> u64 {
        self.empty_us.saturating_add(u64::from(self.part > 0))
    }

    fn level(&self, bucket: Bucket, now_us: u64) -> u128 {
        match self.empty_us.checked_sub(now_us) {
            Some(left_us) => u128::from(left_us) * bucket.per_period + u128::from(self.part),
            None => 0,
        }
    }

    fn empty_in(bucket: Bucket, now_us: u64, level: u128) -> Self {
        let part = level % bucket.per_period;
        Self {
            empty_us: now_us.saturating_add(saturated(level / bucket.per_period)),
            part: u32::try_from(part).unwrap_or(0),
        }
    }
}
