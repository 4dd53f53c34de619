//! Sliding window counter.
//!
//! The rule: hits are counted in fixed windows, this one and the last. As if those of the last window had come evenly,
//! as much of them counts as a window that ends now overlaps it: `this + ⌊last × overlap⌋` hits at most may be
//! `requests_per_unit`, those of the request included. (Cloudflare, "How we built rate limiting capable of scaling to
//! millions of domains", 2017, which found 0.003 % of 400 million requests decided wrongly. Rounded down as in the
//! example that is always given: of 7 a minute, with 3 this minute and 5 the last at 30 % of the minute, 6.5 count
//! as 6, and one more is allowed.)
//!
//! By the calendar windows differ in length: the overlap is the part of this window that is still to come.
//!
//! Idle: when the window after the one that was hit last has ended, as its hits count until then.

use nowserving_calendar::Window;
use nowserving_codec::Codec;

use super::fixed_window::is_ahead;
use crate::{Answer, Limit, Moment};

#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlidingWindowCounter {
    /// The end of this window, in µs; 0 if nothing was ever counted.
    pub end_us: u64,
    /// The end of the window after it.
    pub next_end_us: u64,
    /// The hits of the window before.
    pub last: u32,
    /// The hits of this window.
    pub this: u32,
}

impl SlidingWindowCounter {
    /// Moves on to the present window, as `FixedWindow::settle`.
    pub fn settle(&mut self, window: &Window) {
        let is_empty = self.last == 0 && self.this == 0;
        if self.end_us == window.end_us || (is_ahead(self.end_us, window) && !is_empty) {
            return;
        }
        if self.end_us < window.end_us {
            let follows = self.end_us == window.start_us;
            self.last = if follows { self.this } else { 0 };
            self.this = 0;
        }
        self.end_us = window.end_us;
        self.next_end_us = window.next_end_us;
    }

    pub fn decide(&self, limit: &Limit, at: &Moment, hits: u32) -> Answer {
        let used = u64::from(self.this) + self.last_counts(at);
        let left = u64::from(limit.capacity()).saturating_sub(used);
        let allowed = used + u64::from(hits) <= u64::from(limit.capacity());
        let left = if allowed {
            left - u64::from(hits)
        } else {
            left
        };
        let idle_at_us = match (allowed, hits) {
            (true, 1..) => self.next_end_us,
            _ => self.idle_at_us(),
        };
        Answer {
            allowed,
            limit: limit.requests_per_unit(),
            remaining: u32::try_from(left).unwrap_or(u32::MAX),
            reset_us: idle_at_us.saturating_sub(at.now_us),
            retry_after_us: (!allowed).then(|| self.retry_after_us(limit, at, hits)),
            delay_us: 0,
        }
    }

    pub fn record(&mut self, hits: u32) {
        self.this = self.this.saturating_add(hits);
    }

    /// Gives back hits of the window that ends then.
    pub fn give_back(&mut self, hits: u64, end_us: u64) {
        if self.end_us == end_us {
            let hits = u32::try_from(hits).unwrap_or(u32::MAX);
            self.this = self.this.saturating_sub(hits);
        }
    }

    pub fn idle_at_us(&self) -> u64 {
        match (self.last, self.this) {
            (0, 0) => 0,
            (_, 0) => self.end_us,
            _ => self.next_end_us,
        }
    }

    /// How many hits of the last window count now.
    fn last_counts(&self, at: &Moment) -> u64 {
        let length_us = self.length_us(&at.window);
        let to_come_us = self.end_us.saturating_sub(at.now_us).min(length_us);
        u64::from(portion(self.last, to_come_us, length_us))
    }

    /// The length of the window that is counted. After a clock slipped that is the next one, or one of the next, of
    /// equal lengths.
    fn length_us(&self, window: &Window) -> u64 {
        match self.end_us == window.end_us {
            true => window.length_us(),
            false => window.next_length_us(),
        }
    }

    fn retry_after_us(&self, limit: &Limit, at: &Moment, hits: u32) -> u64 {
        let room = limit.capacity().saturating_sub(hits);
        let at_us = match room.checked_sub(self.this) {
            // In this window, when little enough of the last one counts.
            Some(room) => {
                let length_us = self.length_us(&at.window);
                self.end_us - longest(self.last, room, length_us)
            }
            // In the next one, when little enough of this one counts.
            None => {
                let length_us = self.next_end_us.saturating_sub(self.end_us);
                self.next_end_us - longest(self.this, room, length_us)
            }
        };
        at_us.saturating_sub(at.now_us)
    }
}

/// `⌊count × part ÷ whole⌋`, where the part is not more than the whole.
fn portion(count: u32, part_us: u64, whole_us: u64) -> u32 {
    let product = u128::from(count) * u128::from(part_us);
    u32::try_from(product / u128::from(whole_us.max(1))).unwrap_or(u32::MAX)
}

/// The largest part of the whole of which the [`portion`] is at most `room`.
fn longest(count: u32, room: u32, whole_us: u64) -> u64 {
    if count <= room {
        return whole_us;
    }
    let product = (u128::from(room) + 1) * u128::from(whole_us);
    let too_long = product.div_ceil(u128::from(count));
    u64::try_from(too_long).map_or(whole_us, |us| us.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Unit;

    const MINUTE_US: u64 = 60_000_000;

    fn at(now_us: u64) -> Moment {
        Moment {
            now_us,
            window: Window::of_length(MINUTE_US, now_us),
        }
    }

    fn hit(counter: &mut SlidingWindowCounter, now_us: u64, hits: u32) {
        counter.settle(&at(now_us).window);
        counter.record(hits);
    }

    /// The article's example.
    #[test]
    fn of_seven_a_minute_three_and_seventy_percent_of_five_leave_one() {
        let limit = Limit::fixed_window(7, Unit::Minute);
        let mut counter = SlidingWindowCounter::default();
        hit(&mut counter, 10 * MINUTE_US, 5);
        hit(&mut counter, 11 * MINUTE_US, 3);
        let now = at(11 * MINUTE_US + MINUTE_US * 3 / 10);
        let answer = counter.decide(&limit, &now, 1);
        assert_eq!((answer.allowed, answer.remaining), (true, 0));
        counter.record(1);
        let refused = counter.decide(&limit, &now, 1);
        assert!(!refused.allowed);
        // 4 and 3 count until less than three fifths of the last minute overlap.
        assert_eq!(refused.retry_after_us, Some(MINUTE_US / 10 + 1));
    }

    #[test]
    fn all_of_the_last_window_counts_at_first_and_nothing_at_last() {
        let limit = Limit::fixed_window(7, Unit::Minute);
        let mut counter = SlidingWindowCounter::default();
        hit(&mut counter, 0, 7);
        let refused = counter.decide(&limit, &at(0), 7);
        assert_eq!(
            refused.retry_after_us,
            Some(2 * MINUTE_US - MINUTE_US.div_ceil(7) + 1)
        );
        assert_eq!(refused.reset_us, 2 * MINUTE_US);
        let last = at(2 * MINUTE_US - 1);
        counter.settle(&last.window);
        assert_eq!(counter.decide(&limit, &last, 0).remaining, 7);
        assert_eq!(counter.idle_at_us(), 2 * MINUTE_US);
        counter.settle(&at(2 * MINUTE_US).window);
        assert_eq!((counter.last, counter.this), (0, 0));
    }

    #[test]
    fn a_clock_that_goes_back_over_an_edge_counts_on_behind_it() {
        let limit = Limit::fixed_window(7, Unit::Minute);
        let mut counter = SlidingWindowCounter::default();
        hit(&mut counter, MINUTE_US - 1, 5);
        hit(&mut counter, MINUTE_US, 2);
        let before = at(MINUTE_US - 1);
        counter.settle(&before.window);
        assert_eq!((counter.last, counter.this), (5, 2));
        let refused = counter.decide(&limit, &before, 1);
        assert_eq!(refused.retry_after_us, Some(2));
    }
}
