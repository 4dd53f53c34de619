//! When a claim is renewed, and when it ends. No I/O.

use std::time::Duration;

use tokio::time::Instant;

/// Renewals are at least this far apart, however little of the claim is left.
const RENEW_MIN: Duration = Duration::from_millis(50);

/// The time of a claim, as its newest answer says. Counted from before the request, so no later than by the cluster's
/// clock. A time of `None` never comes: it is out of the clock's range.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    /// The line's `checkout_timeout_ms`, as far as it is known.
    full: Duration,
    expires: Option<Instant>,
    /// The next renewal comes a third of what is left later: two more attempts fit in before the end.
    renew: Option<Instant>,
}

impl Lease {
    pub(super) fn new(sent: Instant, left: Duration) -> Lease {
        Lease {
            full: left,
            expires: sent.checked_add(left),
            renew: sent.checked_add((left / 3).max(RENEW_MIN)),
        }
    }

    /// The answer to a renewal.
    pub(super) fn renewed(self, sent: Instant, left: Duration) -> Lease {
        let next = Lease::new(sent, left);
        let ends = next.expires.zip(self.expires);
        // `checkout_max_ms` keeps the end where it is. A shorter `checkout_timeout_ms` brings it nearer. Replies that took
        // longer than others move it by as much.
        let nearer = ends.map(|(end, before)| before.saturating_duration_since(end));
        let is_shortened = nearer.is_some_and(|nearer| nearer > self.full / 10);
        let full = match is_shortened {
            true => left,
            false => self.full.max(left),
        };
        // Near `checkout_max_ms` each renewal brings less: the last ones would crowd.
        let is_last = left <= full / 10;
        Lease {
            full,
            renew: next.renew.filter(|_| !is_last),
            ..next
        }
    }

    pub(super) fn expires(&self) -> Option<Instant> {
        self.expires
    }

    pub(super) fn renew(&self) -> Option<Instant> {
        self.renew
    }

    /// No renewal puts the end off any more: `checkout_max_ms`.
    pub(super) fn is_last(&self) -> bool {
        self.renew.is_none()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const FULL: Duration = Duration::from_secs(30);

    /// Renews as the cluster would with this `checkout_max_ms`, until it is the last time; returns the times.
    fn renewals(max: Duration) -> (Vec<Duration>, Lease) {
        let begin = Instant::now();
        let mut lease = Lease::new(begin, FULL.min(max));
        let mut times = Vec::new();
        while let Some(at) = lease.renew() {
            let held = at - begin;
            times.push(held);
            lease = lease.renewed(at, FULL.min(max - held));
        }
        (times, lease)
    }

    #[test]
    fn it_is_renewed_at_a_third_and_seldom_near_the_end() {
        let max = Duration::from_secs(300);
        let (times, lease) = renewals(max);
        assert_eq!(times[0], FULL / 3);
        assert_eq!(times[1], FULL / 3 * 2);
        let last = times.iter().filter(|at| **at > max - FULL).count();
        assert!(last <= 7, "{times:?}");
        let left = lease.expires().unwrap() - Instant::now();
        assert!(lease.is_last() && left <= max, "{left:?}");
    }

    #[test]
    fn a_shorter_timeout_is_no_end() {
        let begin = Instant::now();
        let lease = Lease::new(begin, FULL);
        let sent = lease.renew().unwrap();
        let short = Duration::from_secs(2);
        let lease = lease.renewed(sent, short);
        assert_eq!(lease.renew(), Some(sent + short / 3));
        assert!(!lease.is_last());
    }

    #[test]
    fn times_out_of_range_never_come() {
        let lease = Lease::new(Instant::now(), Duration::MAX);
        assert_eq!(lease.expires(), None);
    }
}
