//! The windows that a clock is divided into: of equal length, or by the calendar of a time zone.

use jiff::civil::{Date, Time};
use jiff::{Timestamp, ToSpan};

use crate::Zone;

/// A window of time and where the next one ends, in µs since 1970. It includes its start and excludes its end.
///
/// Windows of one kind follow each other without gaps, and are never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    pub start_us: u64,
    pub end_us: u64,
    pub next_end_us: u64,
}

/// What a calendar divides time into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    Day,
    /// From Monday, as ISO 8601 has it.
    Week,
    Month,
    Year,
}

/// The year 9990, µs since 1970: the last times that the calendars of the time zones know are not far from there.
pub const CALENDAR_UNTIL_US: u64 = 253_086_768_000_000_000;

impl Window {
    /// The window of this length, at least 1 µs, that a time lies in; windows begin at multiples of their length.
    /// The very last ones before 2⁶⁴ µs are shorter.
    pub fn of_length(length_us: u64, now_us: u64) -> Self {
        let length_us = length_us.max(1);
        let start_us = now_us - now_us % length_us;
        let end_us = start_us.saturating_add(length_us);
        Self {
            start_us,
            end_us,
            next_end_us: end_us.saturating_add(length_us),
        }
    }

    pub fn length_us(&self) -> u64 {
        self.end_us.saturating_sub(self.start_us)
    }

    pub fn next_length_us(&self) -> u64 {
        self.next_end_us.saturating_sub(self.end_us)
    }

    pub fn contains(&self, now_us: u64) -> bool {
        (self.start_us..self.end_us).contains(&now_us)
    }
}

impl Zone {
    /// The day, week, month or year of this zone that a time of the wall clock lies in (µs since 1970).
    ///
    /// A day lasts as long as the zone's clocks say: 23 hours when they are put forward. One that is left out
    /// altogether, as Samoa's 30 December 2011, is part of no window. From [`CALENDAR_UNTIL_US`] on windows have the
    /// lengths of [`Span::usual_us`]; there one ends.
    pub fn window(&self, span: Span, wall_us: u64) -> Window {
        if wall_us >= CALENDAR_UNTIL_US {
            return span.beyond(wall_us);
        }
        let usual = || Window::of_length(span.usual_us(), wall_us);
        let window = self.by_calendar(span, wall_us).unwrap_or_else(usual);
        let next_end_us = match window.end_us < CALENDAR_UNTIL_US {
            true => window.next_end_us.min(CALENDAR_UNTIL_US),
            false => span.beyond(CALENDAR_UNTIL_US).end_us,
        };
        Window {
            end_us: window.end_us.min(CALENDAR_UNTIL_US),
            next_end_us,
            ..window
        }
    }

    fn by_calendar(&self, span: Span, wall_us: u64) -> Option<Window> {
        let now = Timestamp::from_microsecond(i64::try_from(wall_us).ok()?).ok()?;
        let this = span.begin(now.to_zoned(self.zone.clone()).date())?;
        // Where clocks were put back over midnight, a day's date comes again after the next one began: so the one
        // after it may be it. Dates that are left out make equal beginnings.
        let mut before = None;
        let mut later = Vec::with_capacity(4);
        for nth in -1..=4 {
            let begins_us = self.begins_us(span.after(this, nth)?)?;
            if begins_us <= i128::from(wall_us) {
                before = Some(begins_us);
            } else if later.last() != Some(&begins_us) {
                later.push(begins_us);
            }
        }
        let mut later = later.into_iter().map(|us| u64::try_from(us).ok());
        Some(Window {
            start_us: u64::try_from(before?).unwrap_or(0),
            end_us: later.next()??,
            next_end_us: later.next()??,
        })
    }

    /// When a day begins: at midnight, or when clocks are put forward over it.
    fn begins_us(&self, date: Date) -> Option<i128> {
        let midnight = date.to_datetime(Time::midnight());
        let begins = midnight.to_zoned(self.zone.clone()).ok()?;
        Some(i128::from(begins.timestamp().as_microsecond()))
    }
}

impl Span {
    /// A day of 24 hours, a week of 7, a month of 30 and a year of 365 such days.
    pub fn usual_us(self) -> u64 {
        const DAY_US: u64 = 24 * 60 * 60 * 1_000_000;
        match self {
            Span::Day => DAY_US,
            Span::Week => 7 * DAY_US,
            Span::Month => 30 * DAY_US,
            Span::Year => 365 * DAY_US,
        }
    }

    /// The window of a time after the end of the calendars.
    fn beyond(self, wall_us: u64) -> Window {
        let window = Window::of_length(self.usual_us(), wall_us);
        Window {
            start_us: window.start_us.max(CALENDAR_UNTIL_US),
            ..window
        }
    }

    fn begin(self, date: Date) -> Option<Date> {
        match self {
            Span::Day => Some(date),
            Span::Week => {
                let since_monday = i64::from(date.weekday().to_monday_zero_offset());
                date.checked_sub(since_monday.days()).ok()
            }
            Span::Month => Some(date.first_of_month()),
            Span::Year => Some(date.first_of_year()),
        }
    }

    fn after(self, begin: Date, nth: i64) -> Option<Date> {
        let later = match self {
            Span::Day => begin.checked_add(nth.days()),
            Span::Week => begin.checked_add(nth.weeks()),
            Span::Month => begin.checked_add(nth.months()),
            Span::Year => begin.checked_add(nth.years()),
        };
        later.ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    const SPANS: [Span; 4] = [Span::Day, Span::Week, Span::Month, Span::Year];

    fn us(text: &str) -> u64 {
        let time: Timestamp = text.parse().unwrap();
        u64::try_from(time.as_microsecond()).unwrap()
    }

    fn assert_window(zone: &str, span: Span, now: &str, [start, end, next]: [&str; 3]) {
        let window = Zone::get(zone).unwrap().window(span, us(now));
        let expected = Window {
            start_us: us(start),
            end_us: us(end),
            next_end_us: us(next),
        };
        assert_eq!(window, expected, "{span:?} in {zone} at {now}");
    }

    #[test]
    fn days_weeks_months_and_years_begin_at_midnight_of_their_zone() {
        let now = "2026-11-22T23:30:00Z";
        assert_window(
            "UTC",
            Span::Day,
            now,
            [
                "2026-11-22T00:00:00Z",
                "2026-11-23T00:00:00Z",
                "2026-11-24T00:00:00Z",
            ],
        );
        assert_window(
            "Asia/Taipei",
            Span::Day,
            now,
            [
                "2026-11-23T00:00:00+08:00",
                "2026-11-24T00:00:00+08:00",
                "2026-11-25T00:00:00+08:00",
            ],
        );
        // A Sunday in London, a Monday in Taipei.
        assert_window(
            "Europe/London",
            Span::Week,
            now,
            [
                "2026-11-16T00:00:00Z",
                "2026-11-23T00:00:00Z",
                "2026-11-30T00:00:00Z",
            ],
        );
        assert_window(
            "Asia/Taipei",
            Span::Week,
            now,
            [
                "2026-11-23T00:00:00+08:00",
                "2026-11-30T00:00:00+08:00",
                "2026-12-07T00:00:00+08:00",
            ],
        );
        assert_window(
            "UTC",
            Span::Month,
            "2028-01-31T23:59:59Z",
            [
                "2028-01-01T00:00:00Z",
                "2028-02-01T00:00:00Z",
                "2028-03-01T00:00:00Z",
            ],
        );
        assert_window(
            "UTC",
            Span::Year,
            "2027-12-31T23:59:59Z",
            [
                "2027-01-01T00:00:00Z",
                "2028-01-01T00:00:00Z",
                "2029-01-01T00:00:00Z",
            ],
        );
    }

    #[test]
    fn days_are_as_long_as_clocks_make_them() {
        assert_window(
            "Europe/Berlin",
            Span::Day,
            "2026-03-28T23:00:00Z",
            [
                "2026-03-29T00:00:00+01:00",
                "2026-03-30T00:00:00+02:00",
                "2026-03-31T00:00:00+02:00",
            ],
        );
        // Put forward at midnight: that day begins at one o'clock.
        assert_window(
            "America/Sao_Paulo",
            Span::Day,
            "2018-11-04T12:00:00Z",
            [
                "2018-11-04T01:00:00-02:00",
                "2018-11-05T00:00:00-02:00",
                "2018-11-06T00:00:00-02:00",
            ],
        );
        // Put back to 23:00 at midnight: eleven o'clock comes twice that day.
        assert_window(
            "America/Sao_Paulo",
            Span::Day,
            "2018-02-18T02:30:00Z",
            [
                "2018-02-17T00:00:00-02:00",
                "2018-02-18T00:00:00-03:00",
                "2018-02-19T00:00:00-03:00",
            ],
        );
        // A day that was left out.
        assert_window(
            "Pacific/Apia",
            Span::Day,
            "2011-12-29T12:00:00-10:00",
            [
                "2011-12-29T00:00:00-10:00",
                "2011-12-31T00:00:00+14:00",
                "2012-01-01T00:00:00+14:00",
            ],
        );
    }

    #[test]
    fn the_first_and_the_last_times_have_windows() {
        let taipei = Zone::get("Asia/Taipei").unwrap();
        for span in SPANS {
            let first = taipei.window(span, 0);
            assert!(first.contains(0) && first.start_us == 0, "{span:?}");
            let last = taipei.window(span, u64::MAX);
            assert_eq!(last.end_us, u64::MAX, "{span:?}");
        }
        assert!(Window::of_length(0, 7).contains(7), "never empty");
    }

    proptest! {
        #[test]
        fn windows_follow_each_other(
            zone in prop::sample::select(vec![
                "UTC", "Asia/Taipei", "Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia", "Australia/Lord_Howe",
                "America/St_Johns", "Africa/Monrovia",
            ]),
            span in prop::sample::select(SPANS.to_vec()),
            now_us in prop_oneof![
                0_u64..4_000_000_000_000_000,
                CALENDAR_UNTIL_US - 100_000_000_000_000..CALENDAR_UNTIL_US + 100_000_000_000_000,
            ],
        ) {
            let zone = Zone::get(zone).unwrap();
            let window = zone.window(span, now_us);
            prop_assert!(window.contains(now_us), "{window:?}");
            prop_assert!(window.next_end_us > window.end_us);
            prop_assert_eq!(zone.window(span, window.start_us), window);
            prop_assert_eq!(zone.window(span, window.end_us - 1), window);
            let next = zone.window(span, window.end_us);
            prop_assert_eq!((next.start_us, next.end_us), (window.end_us, window.next_end_us));
        }
    }
}
