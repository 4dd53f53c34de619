//! Durations on the command line, with their unit: `250ms`, `90s`, `1h30m`.

use std::ops::RangeInclusive;

pub use nowserving_words::typed;

/// Reads a duration of whole milliseconds.
///
/// # Errors
/// It has no unit, an unknown one, or is not whole milliseconds; the message has an example.
pub fn parse_ms(text: &str) -> Result<u64, String> {
    let example = "a duration with its unit, such as 250ms, 90s, 5m or 1h30m";
    let time = humantime::parse_duration(text).map_err(|_| example.to_owned())?;
    if time.subsec_nanos() % 1_000_000 != 0 {
        return Err(format!("whole milliseconds: {example}"));
    }
    u64::try_from(time.as_millis()).map_err(|_| example.to_owned())
}

/// A value parser for clap: [`parse_ms`] with limits, in milliseconds.
pub fn between(
    limits: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let ms = parse_ms(text)?;
        if limits.contains(&ms) {
            return Ok(ms);
        }
        let (least, most) = (typed(*limits.start()), typed(*limits.end()));
        Err(format!("must be {least} to {most}, such as 90s or 5m"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        for (text, ms) in [
            ("250ms", 250),
            ("90s", 90_000),
            ("2m", 120_000),
            ("1h30m", 5_400_000),
            ("7d", 604_800_000),
            ("0s", 0),
        ] {
            assert_eq!(parse_ms(text), Ok(ms), "{text}");
        }
        for bad in ["", "120000", "m", "-5s", "5 parsecs", "10us", "1s1ns"] {
            let error = parse_ms(bad).unwrap_err();
            assert!(error.contains("1h30m"), "{bad}: {error}");
        }
    }

    #[test]
    fn limits_are_shown_in_words() {
        let timeout = between(100..=604_800_000);
        assert_eq!(timeout("100ms"), Ok(100));
        assert_eq!(
            timeout("99ms").unwrap_err(),
            "must be 100ms to 7d, such as 90s or 5m"
        );
        assert!(timeout("8d").is_err());
    }

    #[test]
    fn shown_durations_parse() {
        for (ms, text) in [
            (0, "0s"),
            (1, "1ms"),
            (90_000, "1m30s"),
            (5_400_000, "1h30m"),
            (90_000_000, "1d1h"),
            (604_800_000, "7d"),
            (31_536_000_000, "365d"),
            (31_536_061_001, "365d1m1s1ms"),
        ] {
            assert_eq!(typed(ms), text);
            assert_eq!(parse_ms(text), Ok(ms), "{text}");
        }
    }

    #[test]
    fn fuzz_a_duration() {
        let seeds = ["1h30m", "250ms", "7d"].map(|text| text.as_bytes().to_vec());
        nowserving_testkit::target!(seeds.into(), |bytes| {
            if let Ok(ms) = parse_ms(&String::from_utf8_lossy(bytes)) {
                assert_eq!(parse_ms(&typed(ms)), Ok(ms));
            }
        });
    }
}
