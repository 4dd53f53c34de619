//! One limit: so many requests a unit of time, by one of five algorithms.

use nowserving_calendar::Zone;

use crate::Unit;

/// How hits are counted against a limit. The files of `algorithm` have each rule and its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Algorithm {
    /// As Lyft's ratelimit counts.
    #[default]
    FixedWindow,
    SlidingWindowLog,
    SlidingWindowCounter,
    TokenBucket,
    LeakingBucket,
}

/// The most `requests_per_unit` of a sliding window log, which remembers each of them: 16 bytes each.
pub const LOG_REQUESTS_MAX: u32 = 10_000;
/// The longest time that an empty bucket may take to fill (`burst` ÷ `requests_per_unit` units), in µs: 100 years.
/// So times until a bucket is full fit a `u64`.
pub const REFILL_US_MAX: u64 = 100 * 365 * 86_400 * 1_000_000;

/// For so long at most no request comes to a bucket, though many are under way, in µs: on a busy machine answers, and so the next
/// requests, come in batches. Measured, see docs/rate-limits/measured.md.
pub const BUCKET_PAUSE_US: u64 = 16_000;
/// A bucket that gets a hit in such a time each loses little of its rate.
const SLOW_HIT_US: u64 = 40_000;

/// What makes a limit invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {limit}")]
pub struct BadLimit {
    pub field: &'static str,
    /// What the field may be.
    pub limit: &'static str,
}

/// The parts of a [`Limit`], not yet checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitParts {
    pub algorithm: Algorithm,
    pub unit: Unit,
    /// 0 refuses everything. At most [`LOG_REQUESTS_MAX`] for a sliding window log.
    pub requests_per_unit: u32,
    /// How many hits a bucket holds, from 1; `requests_per_unit` if `None`. For buckets only, and not with
    /// `requests_per_unit` 0; at most what refills within [`REFILL_US_MAX`].
    pub burst: Option<u32>,
    /// By whose calendar a day, week, month or year begins; UTC if `None`. For fixed windows and sliding window
    /// counters by such a unit only.
    pub zone: Option<Zone>,
}

/// A valid limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit(LimitParts);

/// Which clock a limit goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Clock {
    /// The shard's service clock: time in which the cluster could not answer does not pass.
    Service,
    /// The leader's wall clock: minutes, hours and days begin when clocks and calendars say so.
    Wall,
}

/// The readings of both clocks, in µs since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    pub service_us: u64,
    pub wall_us: u64,
}

impl Now {
    pub fn by(&self, clock: Clock) -> u64 {
        match clock {
            Clock::Service => self.service_us,
            Clock::Wall => self.wall_us,
        }
    }
}

impl Algorithm {
    pub const ALL: [Self; 5] = [
        Self::FixedWindow,
        Self::SlidingWindowLog,
        Self::SlidingWindowCounter,
        Self::TokenBucket,
        Self::LeakingBucket,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindowLog => "sliding_window_log",
            Self::SlidingWindowCounter => "sliding_window_counter",
            Self::TokenBucket => "token_bucket",
            Self::LeakingBucket => "leaking_bucket",
        }
    }

    /// Reads a name in any case.
    pub fn parse(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
    }

    /// Whether it counts by windows that begin at fixed times.
    pub fn has_windows(self) -> bool {
        matches!(self, Self::FixedWindow | Self::SlidingWindowCounter)
    }

    pub fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakingBucket)
    }

    /// Windows need the wall clock: by the service clock they would be late by all the time that it ever stood.
    pub fn clock(self) -> Clock {
        match self.has_windows() {
            true => Clock::Wall,
            false => Clock::Service,
        }
    }
}

impl Limit {
    /// # Errors
    ///
    /// The first part that does not fit, by the names of the rules' YAML.
    pub fn new(parts: LimitParts) -> Result<Self, BadLimit> {
        let bad = |field, limit| Err(BadLimit { field, limit });
        if parts.algorithm == Algorithm::SlidingWindowLog
            && parts.requests_per_unit > LOG_REQUESTS_MAX
        {
            return bad(
                "requests_per_unit",
                "at most 10000 with algorithm sliding_window_log, which remembers each request",
            );
        }
        if parts.burst.is_some() {
            check_burst(&parts)?;
        }
        let has_calendar = parts.algorithm.has_windows() && parts.unit.span().is_some();
        if parts.zone.is_some() && !has_calendar {
            return bad(
                "zone",
                "only with unit day, week, month or year and algorithm fixed_window or sliding_window_counter",
            );
        }
        Ok(Self(parts))
    }

    /// A fixed window without more, as in Lyft's rules.
    pub fn fixed_window(requests_per_unit: u32, unit: Unit) -> Self {
        Self(LimitParts {
            algorithm: Algorithm::FixedWindow,
            unit,
            requests_per_unit,
            burst: None,
            zone: None,
        })
    }

    pub fn parts(&self) -> &LimitParts {
        &self.0
    }

    pub fn algorithm(&self) -> Algorithm {
        self.0.algorithm
    }

    pub fn unit(&self) -> Unit {
        self.0.unit
    }

    pub fn requests_per_unit(&self) -> u32 {
        self.0.requests_per_unit
    }

    /// How many hits fit a fresh counter: a request of more is always refused.
    pub fn capacity(&self) -> u32 {
        match self.0.requests_per_unit {
            0 => 0,
            requests_per_unit => self.0.burst.unwrap_or(requests_per_unit),
        }
    }

    /// With which `burst` a bucket lets its whole rate through, if its own is too small for that. While no request comes, it must
    /// take up what the rate brings, and may have had nearly a hit already: `1 + ⌈rate × pause⌉`.
    pub fn burst_for_whole_rate(&self) -> Option<u32> {
        let in_pause_us = u64::from(self.0.requests_per_unit) * BUCKET_PAUSE_US;
        let is_slow = u64::from(self.0.requests_per_unit) * SLOW_HIT_US <= self.period_us();
        if !self.0.algorithm.is_bucket() || is_slow {
            return None;
        }
        let whole = 1 + in_pause_us.div_ceil(self.period_us());
        let whole = u32::try_from(whole).unwrap_or(u32::MAX);
        (self.capacity() < whole).then_some(whole)
    }

    /// [`Unit::period_us`] of its unit.
    pub fn period_us(&self) -> u64 {
        self.0.unit.period_us()
    }

    pub fn clock(&self) -> Clock {
        self.0.algorithm.clock()
    }
}

fn check_burst(parts: &LimitParts) -> Result<(), BadLimit> {
    let burst = parts.burst.unwrap_or_default();
    let limit = if !parts.algorithm.is_bucket() {
        "only with algorithm token_bucket or leaking_bucket"
    } else if parts.requests_per_unit == 0 {
        "not with requests_per_unit 0, which refuses everything"
    } else if burst == 0 {
        "1 to 4294967295"
    } else if refill_us(parts, burst) > u128::from(REFILL_US_MAX) {
        "at most what requests_per_unit refills in 100 years"
    } else {
        return Ok(());
    };
    Err(BadLimit {
        field: "burst",
        limit,
    })
}

fn refill_us(parts: &LimitParts, burst: u32) -> u128 {
    let hits_us = u128::from(burst) * u128::from(parts.unit.period_us());
    hits_us / u128::from(parts.requests_per_unit.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(algorithm: Algorithm) -> LimitParts {
        LimitParts {
            algorithm,
            unit: Unit::Minute,
            requests_per_unit: 5,
            burst: None,
            zone: None,
        }
    }

    fn refused(parts: LimitParts) -> Option<&'static str> {
        Limit::new(parts).err().map(|bad| bad.field)
    }

    #[test]
    fn each_part_has_its_limits() {
        use Algorithm::*;
        for algorithm in Algorithm::ALL {
            assert_eq!(refused(parts(algorithm)), None);
            assert_eq!(
                Algorithm::parse(&algorithm.name().to_uppercase()),
                Some(algorithm)
            );
        }
        assert_eq!(Algorithm::parse("gcra"), None);
        for (wrong, field) in [
            (
                LimitParts {
                    requests_per_unit: LOG_REQUESTS_MAX + 1,
                    ..parts(SlidingWindowLog)
                },
                "requests_per_unit",
            ),
            (
                LimitParts {
                    burst: Some(5),
                    ..parts(FixedWindow)
                },
                "burst",
            ),
            (
                LimitParts {
                    burst: Some(0),
                    ..parts(TokenBucket)
                },
                "burst",
            ),
            (
                LimitParts {
                    burst: Some(1),
                    requests_per_unit: 0,
                    ..parts(TokenBucket)
                },
                "burst",
            ),
            (
                LimitParts {
                    burst: Some(501),
                    requests_per_unit: 5,
                    unit: Unit::Year,
                    ..parts(LeakingBucket)
                },
                "burst",
            ),
            (
                LimitParts {
                    zone: Some(Zone::utc()),
                    ..parts(FixedWindow)
                },
                "zone",
            ),
            (
                LimitParts {
                    zone: Some(Zone::utc()),
                    unit: Unit::Day,
                    ..parts(TokenBucket)
                },
                "zone",
            ),
        ] {
            assert_eq!(refused(wrong.clone()), Some(field), "{wrong:?}");
        }
        for right in [
            LimitParts {
                requests_per_unit: LOG_REQUESTS_MAX,
                ..parts(SlidingWindowLog)
            },
            LimitParts {
                requests_per_unit: u32::MAX,
                burst: Some(u32::MAX),
                ..parts(TokenBucket)
            },
            LimitParts {
                burst: Some(500),
                requests_per_unit: 5,
                unit: Unit::Year,
                ..parts(LeakingBucket)
            },
            LimitParts {
                zone: Some(Zone::utc()),
                unit: Unit::Week,
                ..parts(SlidingWindowCounter)
            },
        ] {
            assert_eq!(refused(right.clone()), None, "{right:?}");
        }
    }

    #[test]
    fn the_capacity_is_the_burst_of_a_bucket() {
        let capacity = |parts| Limit::new(parts).map(|limit| limit.capacity());
        assert_eq!(capacity(parts(Algorithm::FixedWindow)), Ok(5));
        assert_eq!(capacity(parts(Algorithm::TokenBucket)), Ok(5));
        let burst = LimitParts {
            burst: Some(20),
            ..parts(Algorithm::TokenBucket)
        };
        assert_eq!(capacity(burst), Ok(20));
        let nothing = LimitParts {
            requests_per_unit: 0,
            ..parts(Algorithm::LeakingBucket)
        };
        assert_eq!(capacity(nothing), Ok(0));
    }
}
