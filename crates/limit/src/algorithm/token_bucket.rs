//! Token bucket.
//!
//! The rule: a bucket holds `burst` tokens and is full at first. `requests_per_unit` tokens a unit are put in, evenly
//! over the unit, until it is full. A request takes one token for each of its hits; if there are not enough, it is
//! refused and takes none. (RFC 2697 and RFC 4115 describe it for networks; Stripe, "Scaling your API with rate
//! limiters", 2017, for requests.) In any time t at most `burst + requests_per_unit × t ÷ unit` hits are allowed.
//!
//! Tokens that are missing are hits that drain, so the state is a [`Drain`]: with the time at which the bucket is
//! full again there is nothing to refill, and no time of the last refill to keep.
//!
//! Idle: when the bucket is full again.

use super::Drain;
use crate::{Answer, Limit};

pub fn decide(missing: &Drain, limit: &Limit, now_us: u64, hits: u32) -> Answer {
    missing.decide(limit, now_us, hits)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Algorithm, LimitParts, Unit};

    fn limit(requests_per_unit: u32, unit: Unit, burst: Option<u32>) -> Limit {
        Limit::new(LimitParts {
            algorithm: Algorithm::TokenBucket,
            unit,
            requests_per_unit,
            burst,
            zone: None,
        })
        .unwrap()
    }

    /// The article's example: a bucket of 4, refilled with 4 a minute.
    #[test]
    fn four_at_once_and_then_one_each_fifteen_seconds() {
        let limit = limit(4, Unit::Minute, None);
        let mut missing = Drain::default();
        let now_us = 1_000_000;
        for remaining in [3, 2, 1, 0] {
            let answer = decide(&missing, &limit, now_us, 1);
            assert_eq!((answer.allowed, answer.remaining), (true, remaining));
            missing.record(&limit, now_us, 1);
        }
        let refused = decide(&missing, &limit, now_us, 1);
        assert!(!refused.allowed);
        assert_eq!(refused.retry_after_us, Some(15_000_000));
        assert_eq!(refused.reset_us, 60_000_000);
        assert!(!decide(&missing, &limit, now_us + 14_999_999, 1).allowed);
        assert!(decide(&missing, &limit, now_us + 15_000_000, 1).allowed);
        assert_eq!(missing.idle_at_us(), 61_000_000);
    }

    #[test]
    fn thirds_of_a_second_do_not_add_up_to_less() {
        let limit = limit(3, Unit::Second, Some(2));
        let mut missing = Drain::default();
        let mut now_us = 0;
        for _ in 0..3_000 {
            let answer = decide(&missing, &limit, now_us, 1);
            now_us += answer.retry_after_us.unwrap_or(0);
            missing.record(&limit, now_us, 1);
        }
        // Two at 0 and then three a second, so the last one at 999 1/3 s: whole µs are late by one at most.
        assert_eq!(now_us, 999_333_334);
    }
}
