//! Time in a node: the machine's clock that includes suspended time, and the service clock of a
//! shard, which counts only the time in which clients could reach the node.

use std::time::Duration;

/// Microseconds of a clock that only goes forward and counts suspended time too
/// (`CLOCK_BOOTTIME` on Linux): a lease must lapse while the machine sleeps.
pub type Micros = u64;

/// How far the service clock may run ahead of the last proof that requests reach us.
///
/// Short, because it is the time that a cut-off or stalled leader can wrongly count against a client;
/// long enough that a probe's round trip on a busy machine does not slow the clock.
const UNPROVEN_MAX: Duration = Duration::from_millis(250);

/// Sums up the time in which clients could reach this node.
///
/// A probe goes out on the service connection every 100 ms and comes back the
/// way requests do. Time later than the newest echo's sending (plus a little slack) does not count,
/// whatever the reason: connection cut, server slow, this process stopped. Leaving it out of the
/// service clock adds it to every deadline without touching one.
#[derive(Debug)]
pub struct ClientReachability {
    reachable_us: u64,
    counted_to: Micros,
    proven_to: Micros,
}

impl ClientReachability {
    /// Starts counting at `now`, unreachable until the first echo.
    #[must_use]
    pub fn new(now: Micros) -> Self {
        ClientReachability {
            reachable_us: 0,
            counted_to: now,
            proven_to: 0,
        }
    }

    /// A probe sent at `sent_at` came back.
    pub fn echo(&mut self, sent_at: Micros) {
        self.proven_to = self.proven_to.max(sent_at);
    }

    /// Counts the reachable time up to `now`; the rest is left out for good.
    pub fn advance(&mut self, now: Micros) {
        self.reachable_us = self.reachable_us_by(now);
        self.counted_to = self.counted_to.max(now);
    }

    /// The value of [`ClientReachability::reachable_us`] if time were counted up to `now`.
    fn reachable_us_by(&self, now: Micros) -> u64 {
        let unproven_us = UNPROVEN_MAX.as_micros() as u64;
        // A longer turn was a stall of the loop itself: echoes came in meanwhile, and polls were
        // refused as overloaded.
        let end = now
            .min(self.proven_to + unproven_us)
            .min(self.counted_to + unproven_us);
        self.reachable_us + end.saturating_sub(self.counted_to)
    }

    /// Leaves out the time up to `now`: requests were turned away unread.
    pub fn skip(&mut self, now: Micros) {
        self.counted_to = self.counted_to.max(now);
    }

    /// The reachable time so far, in microseconds.
    #[must_use]
    pub fn reachable_us(&self) -> u64 {
        self.reachable_us
    }

    /// When the reachable time will be this, if the node stays reachable; `None` while no echo proves
    /// that it is until then.
    #[must_use]
    pub fn when(&self, reachable_us: u64) -> Option<Micros> {
        let left_us = reachable_us.saturating_sub(self.reachable_us);
        let at = self.counted_to.saturating_add(left_us);
        (at <= self.proven_to + UNPROVEN_MAX.as_micros() as u64).then_some(at)
    }

    /// For how long no echo has proved that requests reach the node.
    #[must_use]
    pub fn unreachable_for(&self, now: Micros) -> Duration {
        Duration::from_micros(now.saturating_sub(self.proven_to))
    }
}

/// The service clock of one shard while this node leads it: it goes on from the last stamped
/// value, by reachable time.
#[derive(Debug, Clone, Copy)]
pub struct ServiceClock {
    base_ms: u64,
    reachable_at_base_us: u64,
    /// It stands still when it reads this.
    until_ms: u64,
}

impl ServiceClock {
    /// Takes over at `last_stamp_ms` (0: a newborn shard, which starts at wall time so that
    /// it reads like a date).
    #[must_use]
    pub fn take_over(last_stamp_ms: u64, wall_ms: u64, reachability: &ClientReachability) -> Self {
        let base_ms = if last_stamp_ms == 0 {
            wall_ms
        } else {
            last_stamp_ms
        };
        ServiceClock {
            base_ms,
            reachable_at_base_us: reachability.reachable_us(),
            until_ms: u64::MAX,
        }
    }

    /// Lets the clock run until it reads this. Time that was counted beyond is left out for good.
    pub fn run_until(&mut self, until_ms: u64, reachability: &ClientReachability) {
        self.until_ms = until_ms.max(self.base_ms);
        let counted_ms = self.counted_ms(reachability.reachable_us());
        let beyond_ms = counted_ms.saturating_sub(self.until_ms);
        self.reachable_at_base_us += beyond_ms * 1_000;
    }

    /// Milliseconds on the service clock.
    #[must_use]
    pub fn now_ms(&self, reachability: &ClientReachability) -> u64 {
        self.reading_ms(reachability.reachable_us())
    }

    /// The same for display: with the time since it was last counted, which a full inbox may yet
    /// leave out. So what is shown does not depend on when in its turn the loop answers.
    #[must_use]
    pub fn shown_ms(&self, now: Micros, reachability: &ClientReachability) -> u64 {
        self.reading_ms(reachability.reachable_us_by(now))
    }

    fn reading_ms(&self, reachable_us: u64) -> u64 {
        self.counted_ms(reachable_us).min(self.until_ms)
    }

    fn counted_ms(&self, reachable_us: u64) -> u64 {
        self.base_ms + (reachable_us - self.reachable_at_base_us) / 1_000
    }

    /// When it will read `at_ms`, on the monotonic clock; see [`ClientReachability::when`].
    #[must_use]
    pub fn when(&self, at_ms: u64, reachability: &ClientReachability) -> Option<Micros> {
        if at_ms > self.until_ms {
            return None;
        }
        let ahead_us = at_ms.saturating_sub(self.base_ms).saturating_mul(1_000);
        reachability.when(self.reachable_at_base_us.saturating_add(ahead_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_an_echo_is_not_counted() {
        let mut reachability = ClientReachability::new(1_000_000);
        let clock = ServiceClock::take_over(5_000, 0, &reachability);
        reachability.echo(1_000_000);
        reachability.advance(1_100_000);
        assert_eq!(clock.now_ms(&reachability), 5_100);
        // Stopped for ten seconds: only the slack is counted.
        reachability.advance(11_100_000);
        assert_eq!(clock.now_ms(&reachability), 5_250);
        // Reachable again: the clock continues, and the unreachable time stays left out.
        reachability.echo(11_100_000);
        reachability.advance(11_200_000);
        assert_eq!(clock.now_ms(&reachability), 5_350);
    }

    #[test]
    fn a_stall_of_the_loop_is_not_counted_though_echoes_came_in() {
        let mut reachability = ClientReachability::new(1_000_000);
        reachability.echo(1_000_000);
        reachability.advance(1_000_000);
        reachability.echo(3_990_000);
        reachability.advance(4_000_000);
        assert_eq!(reachability.reachable_us(), 250_000);
        reachability.skip(4_020_000);
        reachability.echo(4_020_000);
        reachability.advance(4_040_000);
        assert_eq!(reachability.reachable_us(), 270_000);
    }

    #[test]
    fn when_it_will_read_a_time_is_known_as_far_as_it_is_sure_to_run() {
        let mut reachability = ClientReachability::new(1_000_000);
        reachability.echo(1_000_000);
        reachability.advance(1_000_700);
        let clock = ServiceClock::take_over(5_000, 0, &reachability);
        reachability.advance(1_003_200);
        let at = clock.when(5_010, &reachability).unwrap_or_default();
        assert_eq!(at, 1_010_700);
        reachability.advance(at - 1);
        assert_eq!(clock.now_ms(&reachability), 5_009);
        reachability.advance(at);
        assert_eq!(clock.now_ms(&reachability), 5_010);
        assert_eq!(
            clock.when(5_260, &reachability),
            None,
            "no echo proves so much"
        );
        // Unreachable, it stands still.
        reachability.advance(2_000_000);
        assert_eq!(clock.when(5_260, &reachability), None);
        assert_eq!(clock.when(u64::MAX, &reachability), None);
    }

    #[test]
    fn a_clock_that_was_stopped_goes_on_where_it_stood() {
        let mut reachability = ClientReachability::new(1_000_000);
        reachability.echo(1_000_000);
        let mut clock = ServiceClock::take_over(5_000, 0, &reachability);
        clock.run_until(5_100, &reachability);
        assert!(clock.when(5_100, &reachability).is_some());
        assert_eq!(clock.when(5_101, &reachability), None);
        reachability.advance(1_230_000);
        assert_eq!(clock.now_ms(&reachability), 5_100);
        clock.run_until(5_100, &reachability);
        clock.run_until(u64::MAX, &reachability);
        assert_eq!(clock.now_ms(&reachability), 5_100);
        reachability.advance(1_240_000);
        assert_eq!(clock.now_ms(&reachability), 5_110);
    }

    #[test]
    fn unreachable_until_the_first_echo() {
        let mut reachability = ClientReachability::new(60_000_000);
        reachability.advance(61_000_000);
        assert_eq!(reachability.reachable_us(), 0);
        assert!(reachability.unreachable_for(61_000_000) >= Duration::from_secs(60));
    }
}
