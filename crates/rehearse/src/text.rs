//! Numbers as people read them, in the terminal's tables and on the page.

pub use nowserving_words::duration;

/// A round duration that is longer than `ms`, in milliseconds, for "under 12 min".
pub(crate) fn round_above(ms: u64) -> u64 {
    let step_ms = match ms {
        0..60_000 => 1_000,
        60_000..600_000 => 10_000,
        600_000..3_600_000 => 60_000,
        _ => 600_000,
    };
    (ms / step_ms + 1) * step_ms
}

/// `12,345`
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (no, digit) in digits.chars().enumerate() {
        if no > 0 && (digits.len() - no).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 seat`, `2,000 seats`
pub(crate) fn many(number: u64, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{} {what}{s}", count(number))
}

/// `97 %`, without digits after the point.
pub(crate) fn whole_percent(value: f64) -> String {
    format!("{value:.0} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounded_durations_are_longer_than_the_exact_ones() {
        for (ms, text) in [
            (0, "1 s"),
            (999, "1 s"),
            (1_000, "2 s"),
            (59_999, "1 min"),
            (401_900, "6 min 50 s"),
            (703_000, "12 min"),
            (720_000, "13 min"),
            (4_711_000, "1 h 20 min"),
        ] {
            assert!(round_above(ms) > ms);
            assert_eq!(duration(round_above(ms)), text);
        }
    }

    #[test]
    fn counts_are_grouped() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(count(number), text);
        }
        assert_eq!(
            (many(1, "seat"), many(0, "seat")),
            ("1 seat".into(), "0 seats".into())
        );
    }
}
