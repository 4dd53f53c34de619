//! Fixed window.
//!
//! The rule: time is divided into windows of one unit that begin at fixed times, and in each at most
//! `requests_per_unit` hits are allowed. Lyft's ratelimit counts so, by one Redis key a window
//! (`src/limiter/cache_key.go`); but it also counts what it refuses. Around the edge of a window twice the limit can
//! pass in one unit of time.
//!
//! Windows follow the wall clock: seconds, minutes and hours begin at multiples of their length; days, weeks, months and
//! years by the calendar of a time zone.
//!
//! Idle: when the window has ended.

use nowserving_calendar::Window;
use nowserving_codec::Codec;

use super::SLIP_US;
use crate::{Answer, Limit, Moment};

/// Whether a window that ends then is later than the present one, by so little that the clock only slipped. It is the
/// next one, or one of the next if these are short.
pub(super) fn is_ahead(end_us: u64, window: &Window) -> bool {
    let slipped_us = window.end_us.saturating_add(SLIP_US);
    end_us > window.end_us && end_us <= window.next_end_us.max(slipped_us)
}

#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FixedWindow {
    /// The end of the window that is counted, in µs; 0 if there is none.
    pub end_us: u64,
    pub count: u32,
}

impl FixedWindow {
    /// Begins a new window if the one that was counted is over. After a clock slipped back over an edge, hits go on to
    /// count behind it.
    pub fn settle(&mut self, window: &Window) {
        if self.count > 0 && is_ahead(self.end_us, window) {
            return;
        }
        if self.end_us < window.end_us {
            self.count = 0;
        }
        self.end_us = window.end_us;
    }

    pub fn decide(&self, limit: &Limit, at: &Moment, hits: u32) -> Answer {
        let left = limit.capacity().saturating_sub(self.count);
        let allowed = hits <= left;
        let reset_us = self.end_us.saturating_sub(at.now_us);
        Answer {
            allowed,
            limit: limit.requests_per_unit(),
            remaining: if allowed { left - hits } else { left },
            reset_us,
            retry_after_us: (!allowed).then_some(reset_us),
            delay_us: 0,
        }
    }

    pub fn record(&mut self, hits: u32) {
        self.count = self.count.saturating_add(hits);
    }

    /// Gives back hits of the window that ends then.
    pub fn give_back(&mut self, hits: u64, end_us: u64) {
        if self.end_us == end_us {
            let hits = u32::try_from(hits).unwrap_or(u32::MAX);
            self.count = self.count.saturating_sub(hits);
        }
    }

    pub fn idle_at_us(&self) -> u64 {
        match self.count {
            0 => 0,
            _ => self.end_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Unit;

    fn at(now_us: u64) -> Moment {
        Moment {
            now_us,
            window: Window::of_length(1_000_000, now_us),
        }
    }

    fn takes(counter: &mut FixedWindow, limit: &Limit, now_us: u64) -> bool {
        let at = at(now_us);
        counter.settle(&at.window);
        let answer = counter.decide(limit, &at, 1);
        if answer.allowed {
            counter.record(1);
        }
        answer.allowed
    }

    /// The article's example: 3 a second.
    #[test]
    fn three_a_second_and_then_none_until_the_next_second() {
        let limit = Limit::fixed_window(3, Unit::Second);
        let mut counter = FixedWindow::default();
        for now_us in [7_000_000, 7_500_000, 7_900_000] {
            assert!(takes(&mut counter, &limit, now_us));
        }
        assert!(!takes(&mut counter, &limit, 7_999_999));
        let refused = counter.decide(&limit, &at(7_999_990), 1);
        assert_eq!(refused.retry_after_us, Some(10));
        assert!(takes(&mut counter, &limit, 8_000_000));
        assert_eq!((counter.count, counter.idle_at_us()), (1, 9_000_000));
    }

    /// Sums beyond a `u32` count in full.
    #[test]
    fn the_largest_limit_is_a_limit() {
        let limit = Limit::fixed_window(u32::MAX, Unit::Second);
        let mut counter = FixedWindow::default();
        counter.settle(&at(7).window);
        counter.record(u32::MAX - 5);
        let refused = counter.decide(&limit, &at(7), 10);
        assert_eq!((refused.allowed, refused.remaining), (false, 5));
        let last = counter.decide(&limit, &at(7), 5);
        assert_eq!((last.allowed, last.remaining), (true, 0));
    }

    #[test]
    fn a_clock_that_goes_back_and_forth_over_an_edge_gains_nothing() {
        let limit = Limit::fixed_window(3, Unit::Second);
        let mut counter = FixedWindow::default();
        assert!(takes(&mut counter, &limit, 7_999_999));
        let back_and_forth = [8_000_000, 7_999_999].into_iter().cycle();
        let passed = back_and_forth.take(100);
        let passed = passed.filter(|now_us| takes(&mut counter, &limit, *now_us));
        assert_eq!(passed.count(), 3);
        assert!(takes(&mut counter, &limit, 9_000_000));
    }

    #[test]
    fn a_leap_into_the_future_does_not_block() {
        let limit = Limit::fixed_window(1, Unit::Second);
        let mut counter = FixedWindow::default();
        assert!(takes(&mut counter, &limit, 900_000_000));
        assert!(!takes(&mut counter, &limit, 7_000_000));
        assert!(takes(&mut counter, &limit, 8_000_000));
    }
}
