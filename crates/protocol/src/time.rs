//! Times of day in payloads: RFC 3339 texts, milliseconds since 1970 in the state.

use jiff::Timestamp;
pub use nowserving_calendar::{is_zone, next_daily};
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

#[cfg(test)]
mod tests {
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
