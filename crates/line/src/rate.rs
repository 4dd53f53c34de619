//! The admission rate: a token bucket in integers, so that every replica counts the same.

use nowserving_codec::Codec;

use crate::BadField;

/// In any period at most `burst` tokens are admitted, plus the rate times the period.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionRate {
    /// Millionths of an admission a second: [`RATE_MICRO_MIN`] to [`RATE_MICRO_MAX`].
    pub per_second_micro: u64,
    /// The size of the bucket: 1 to [`RATE_BURST_MAX`].
    pub burst: u32,
}

/// The slowest rate, in millionths a second: one admission in 1,000 s.
pub const RATE_MICRO_MIN: u64 = 1_000;
/// The fastest rate, in millionths a second: a million admissions a second.
pub const RATE_MICRO_MAX: u64 = 1_000_000_000_000;
/// The largest burst; the smallest is 1.
pub const RATE_BURST_MAX: u32 = 1_000_000;

/// One admission in the units of [`Bucket::level_nano`]. A millionth a second is a billionth a millisecond, so
/// elapsed milliseconds times `per_second_micro` are exactly these units: nothing is ever rounded.
const UNIT_NANO: u64 = 1_000_000_000;

impl AdmissionRate {
    pub(crate) fn validate(&self) -> Result<(), BadField> {
        if !(RATE_MICRO_MIN..=RATE_MICRO_MAX).contains(&self.per_second_micro) {
            let limit = "per_second: 0.001 to 1000000";
            return Err(BadField::new("admission_rate", limit));
        }
        if !(1..=RATE_BURST_MAX).contains(&self.burst) {
            return Err(BadField::new("admission_rate", "burst: 1 to 1000000"));
        }
        Ok(())
    }

    fn full_nano(&self) -> u64 {
        u64::from(self.burst) * UNIT_NANO
    }
}

/// The token bucket of an [`AdmissionRate`].
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// Billionths of an admission, at `at_ms`: at most `burst` admissions.
    pub level_nano: u64,
    /// When the bucket had this level (service clock).
    pub at_ms: u64,
}

impl Bucket {
    pub(crate) fn full(rate: &AdmissionRate, now_ms: u64) -> Self {
        Self {
            level_nano: rate.full_nano(),
            at_ms: now_ms,
        }
    }

    /// For dumps: whether a line with this rate can have it.
    pub(crate) fn fits(&self, rate: &AdmissionRate) -> bool {
        self.level_nano <= rate.full_nano() && self.at_ms <= crate::NUMBER_MAX
    }

    fn level_nano_at(&self, rate: &AdmissionRate, now_ms: u64) -> u64 {
        let elapsed_ms = now_ms.saturating_sub(self.at_ms);
        let gained = u128::from(elapsed_ms) * u128::from(rate.per_second_micro);
        let level = u128::from(self.level_nano).saturating_add(gained);
        let full = rate.full_nano();
        u64::try_from(level).map_or(full, |level| level.min(full))
    }

    /// How many tokens can be admitted now.
    pub(crate) fn units(&self, rate: &AdmissionRate, now_ms: u64) -> u64 {
        self.level_nano_at(rate, now_ms) / UNIT_NANO
    }

    /// As [`Bucket::units`], with fractions.
    pub(crate) fn saved(&self, rate: &AdmissionRate, now_ms: u64) -> f64 {
        self.level_nano_at(rate, now_ms) as f64 / UNIT_NANO as f64
    }

    /// When the next token can be admitted.
    pub(crate) fn ready_at_ms(&self, rate: &AdmissionRate) -> u64 {
        let missing = UNIT_NANO.saturating_sub(self.level_nano);
        let wait_ms = missing.div_ceil(rate.per_second_micro.max(1));
        self.at_ms.saturating_add(wait_ms)
    }

    pub(crate) fn take(&mut self, rate: &AdmissionRate, now_ms: u64) {
        let level_nano = self.level_nano_at(rate, now_ms);
        self.level_nano = level_nano.saturating_sub(UNIT_NANO);
        self.at_ms = now_ms.max(self.at_ms);
    }

    /// The bucket after a change of the rate: it keeps its level, up to the new burst.
    pub(crate) fn change(
        old: Option<(Self, AdmissionRate)>,
        new: &AdmissionRate,
        now_ms: u64,
    ) -> Self {
        let Some((bucket, rate)) = old else {
            return Self::full(new, now_ms);
        };
        Self {
            level_nano: bucket.level_nano_at(&rate, now_ms).min(new.full_nano()),
            at_ms: now_ms.max(bucket.at_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: AdmissionRate = AdmissionRate {
        per_second_micro: 3_000_000,
        burst: 2,
    };

    #[test]
    fn a_third_of_a_second_each_and_nothing_is_rounded_away() {
        let mut bucket = Bucket::full(&RATE, 1_000);
        assert_eq!(bucket.units(&RATE, 1_000), 2);
        bucket.take(&RATE, 1_000);
        bucket.take(&RATE, 1_000);
        assert_eq!(bucket.units(&RATE, 1_333), 0);
        assert_eq!(bucket.ready_at_ms(&RATE), 1_334);
        assert_eq!(bucket.units(&RATE, 1_334), 1);
        // 3 a second, taken as soon as there is one: 3,000 in 1,000 s, the milliseconds' rounding
        // is not lost.
        let (mut now_ms, mut taken) = (1_000, 0);
        while bucket.ready_at_ms(&RATE) <= 1_001_000 {
            now_ms = bucket.ready_at_ms(&RATE).max(now_ms);
            bucket.take(&RATE, now_ms);
            taken += 1;
        }
        assert_eq!(taken, 3_000);
    }

    #[test]
    fn a_change_keeps_what_fits() {
        let more = AdmissionRate { burst: 5, ..RATE };
        let less = AdmissionRate { burst: 1, ..RATE };
        let full = Bucket::change(None, &RATE, 7);
        assert_eq!(full.units(&RATE, 7), 2);
        assert_eq!(
            Bucket::change(Some((full, RATE)), &more, 7).units(&more, 7),
            2
        );
        assert_eq!(
            Bucket::change(Some((full, RATE)), &less, 7).units(&less, 7),
            1
        );
    }

    #[test]
    fn absurd_times_are_harmless() {
        let mut bucket = Bucket::full(&RATE, u64::MAX);
        bucket.take(&RATE, 0);
        assert_eq!(bucket.units(&RATE, u64::MAX), 1);
        bucket.at_ms = 0;
        let fast = AdmissionRate {
            per_second_micro: RATE_MICRO_MAX,
            burst: RATE_BURST_MAX,
        };
        assert_eq!(bucket.units(&fast, u64::MAX), u64::from(RATE_BURST_MAX));
    }
}
