//! Times of day in payloads: RFC 3339 texts, milliseconds since 1970 in the state.

use jiff::civil::Time;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use nowserving_line::WALL_MS_MAX;

/// Reads a time with any offset, as `2026-11-22T12:00:00+08:00`, from 1970 to 9999. Fractions below a
/// millisecond are dropped.
pub fn parse(text: &str) -> Option<u64> {
    let time: Timestamp = text.parse().ok()?;
    let ms = u64::try_from(time.as_millisecond()).ok()?;
    (ms <= WALL_MS_MAX).then_some(ms)
}

/// The time in UTC. [`parse`] reads it.
pub fn text(ms: u64) -> String {
    // No time beyond the last one that `parse` reads is ever set.
    let ms = i64::try_from(ms.min(WALL_MS_MAX)).unwrap_or_default();
    Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |time| time.to_string())
}

/// The minute of the day of a text as `06:00`.
pub fn parse_minute(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let digits = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(hour) || !digits(minute) {
        return None;
    }
    let (hour, minute): (u16, u16) = (hour.parse().ok()?, minute.parse().ok()?);
    (hour < 24 && minute < 60).then_some(hour * 60 + minute)
}

/// [`parse_minute`] reads it.
pub fn minute_text(minute: u16) -> String {
    format!("{:02}:{:02}", minute / 60, minute % 60)
}

/// Whether there is a time zone of this name in the database that this build brings along.
pub fn is_zone(name: &str) -> bool {
    TimeZone::get(name).is_ok()
}

/// When it is first this minute of a day in a time zone, after a time. A minute that a day does not have, as clocks are
/// put forward, comes as much later as they are put. In a zone that this build does not know it is that of UTC.
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
    fn times_are_read_with_any_offset_and_shown_in_utc() {
        for (given, shown) in [
            ("2026-11-22T12:00:00+08:00", "2026-11-22T04:00:00Z"),
            ("2026-11-22T04:00:00.25Z", "2026-11-22T04:00:00.25Z"),
            ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
            ("9999-12-30T21:59:59Z", "9999-12-30T21:59:59Z"),
        ] {
            let ms = parse(given);
            assert_eq!(ms.map(text).as_deref(), Some(shown), "{given}");
            assert_eq!(parse(shown), ms);
        }
    }

    #[test]
    fn other_texts_are_no_times() {
        for bad in [
            "",
            "noon",
            "2026-11-22",
            "2026-11-22T12:00:00",
            "1969-12-31T23:59:59Z",
            "2026-02-30T12:00:00Z",
            "2026-11-22T25:00:00Z",
            "1795348800000",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_minute_of_the_day_comes_once_a_day_in_its_zone() {
        let at = |text: &str| parse(text).unwrap();
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
        assert!(is_zone("Asia/Taipei") && !is_zone("Nowhere/Else"));
    }

    #[test]
    fn minutes_of_the_day_have_four_digits() {
        for (text, minute) in [("00:00", 0), ("06:05", 365), ("23:59", 1_439)] {
            assert_eq!(parse_minute(text), Some(minute));
            assert_eq!(minute_text(minute), text);
        }
        for bad in [
            "", "6:00", "24:00", "06:60", "0600", "06:00:00", "-1:00", "+6:00",
        ] {
            assert_eq!(parse_minute(bad), None, "{bad}");
        }
    }
}
