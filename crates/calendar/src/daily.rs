//! A minute of the day that comes once a day.

use jiff::civil::Time;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

/// When it is first this minute of a day in a time zone, after a time in ms since 1970. A minute that a day does not
/// have, as clocks are put forward, comes as much later as they are put. In a zone that this build does not know it is
/// that of UTC.
pub fn next_daily(minute: u16, zone: &str, after_ms: u64) -> u64 {
    const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
    let next = daily_after(minute, zone, after_ms);
    // Only beyond the year 9999.
    next.unwrap_or_else(|| after_ms.saturating_add(DAY_MS))
}

fn daily_after(minute: u16, zone: &str, after_ms: u64) -> Option<u64> {
    let zone = TimeZone::get(zone).unwrap_or(TimeZone::UTC);
    let after = Timestamp::from_millisecond(i64::try_from(after_ms).ok()?).ok()?;
    let today = after.to_zoned(zone.clone()).date();
    let (hour, minute) = (
        i8::try_from(minute / 60).ok()?,
        i8::try_from(minute % 60).ok()?,
    );
    let time = Time::new(hour, minute, 0, 0).ok()?;
    let mut days = 0..=2;
    days.find_map(|days| {
        let date = today.checked_add(days.days()).ok()?;
        let at = date.to_datetime(time).to_zoned(zone.clone()).ok()?;
        let ms = u64::try_from(at.timestamp().as_millisecond()).ok()?;
        (ms > after_ms).then_some(ms)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_minute_of_the_day_comes_once_a_day_in_its_zone() {
        let at = |text: &str| {
            let time: Timestamp = text.parse().unwrap();
            u64::try_from(time.as_millisecond()).unwrap()
        };
        for (minute, zone, after, next) in [
            (
                360,
                "Asia/Taipei",
                "2026-11-22T05:59:59+08:00",
                "2026-11-22T06:00:00+08:00",
            ),
            (
                360,
                "Asia/Taipei",
                "2026-11-22T06:00:00+08:00",
                "2026-11-23T06:00:00+08:00",
            ),
            (0, "UTC", "2026-12-31T12:00:00Z", "2027-01-01T00:00:00Z"),
            // Clocks are put forward at 2:00, and back at 3:00.
            (
                150,
                "Europe/Berlin",
                "2026-03-28T12:00:00Z",
                "2026-03-29T03:30:00+02:00",
            ),
            (
                150,
                "Europe/Berlin",
                "2026-10-24T12:00:00Z",
                "2026-10-25T02:30:00+02:00",
            ),
            (
                150,
                "Europe/Berlin",
                "2026-10-25T02:30:00+02:00",
                "2026-10-26T02:30:00+01:00",
            ),
            (
                360,
                "Nowhere/Else",
                "2026-11-22T05:00:00Z",
                "2026-11-22T06:00:00Z",
            ),
        ] {
            assert_eq!(
                next_daily(minute, zone, at(after)),
                at(next),
                "{zone} after {after}"
            );
        }
    }
}
