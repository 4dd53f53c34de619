//! Leaking bucket, as a queue.
//!
//! The rule: hits go into a queue of `burst` and leave it one by one, `requests_per_unit` a unit at equal intervals; the
//! first one leaves at once if the queue was empty. If there is no room for all hits of a request, it is refused and
//! adds none. An allowed request is told how long it has to wait until its first hit leaves. (Turner, "New directions
//! in communications", 1986; as a queue in nginx's `limit_req`, whose `burst` does not count the hit that is leaving:
//! here it does.) What leaves is never faster than the rate, whatever comes in.
//!
//! The state is the queue told by when it will be empty, a [`Drain`]: a hit that is leaving takes room until its
//! interval is over.
//!
//! Idle: when the queue is empty.

use super::Drain;
use crate::{Answer, Limit};

pub fn decide(queue: &Drain, limit: &Limit, now_us: u64, hits: u32) -> Answer {
    let answer = queue.decide(limit, now_us, hits);
    let delay_us = match answer.allowed {
        true => queue.drained_in_us(limit, now_us),
        false => 0,
    };
    Answer { delay_us, ..answer }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Algorithm, LimitParts, Unit};

    #[test]
    fn the_first_goes_at_once_others_wait_their_turn_and_no_more_than_fit_do() {
        let limit = Limit::new(LimitParts {
            algorithm: Algorithm::LeakingBucket,
            unit: Unit::Second,
            requests_per_unit: 10,
            burst: Some(3),
            zone: None,
        });
        let limit = limit.unwrap();
        let mut queue = Drain::default();
        let now_us = 5_000_000;
        for delay_us in [0, 100_000, 200_000] {
            let answer = decide(&queue, &limit, now_us, 1);
            assert_eq!((answer.allowed, answer.delay_us), (true, delay_us));
            queue.record(&limit, now_us, 1);
        }
        let refused = decide(&queue, &limit, now_us, 1);
        assert_eq!((refused.allowed, refused.delay_us), (false, 0));
        assert_eq!(refused.retry_after_us, Some(100_000));
        // The one that comes then waits for the two before it.
        let later = decide(&queue, &limit, now_us + 100_000, 1);
        assert_eq!((later.allowed, later.delay_us), (true, 200_000));
        assert_eq!(queue.idle_at_us(), now_us + 300_000);
    }
}
