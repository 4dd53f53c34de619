//! Times as people read and type them, the same in tables, on pages and in commands.

/// The two largest units that matter: `1 h 30 min`, `6 min 41 s`, `12.5 s`, `40 ms`. What is
/// below them is cut off.
pub fn duration(ms: u64) -> String {
    let (seconds, minutes, hours) = (ms / 1_000, ms / 60_000, ms / 3_600_000);
    let two = |large: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large} {unit}"),
        _ => format!("{large} {unit} {small} {small_unit}"),
    };
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 if ms % 1_000 < 100 => format!("{seconds} s"),
        1_000..60_000 => format!("{seconds}.{} s", ms % 1_000 / 100),
        60_000..3_600_000 => two(minutes, "min", seconds % 60, "s"),
        3_600_000..86_400_000 => two(hours, "h", minutes % 60, "min"),
        _ => two(hours / 24, "d", hours % 24, "h"),
    }
}

/// A duration in the form that the command line reads: `1h30m`. Days are the largest unit: months and years have no round
/// number of milliseconds.
pub fn typed(ms: u64) -> String {
    const UNITS: [(u64, &str); 5] = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1_000, "s"),
        (1, "ms"),
    ];
    let (mut text, mut rest) = (String::new(), ms);
    for (unit_ms, unit) in UNITS {
        if rest >= unit_ms {
            text.push_str(&format!("{}{unit}", rest / unit_ms));
            rest %= unit_ms;
        }
    }
    if text.is_empty() {
        text.push_str("0s");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1 s"),
            (12_570, "12.5 s"),
            (60_000, "1 min"),
            (401_900, "6 min 41 s"),
            (3_600_000, "1 h"),
            (4_711_000, "1 h 18 min"),
            (86_400_000 * 7, "7 d"),
            (u64::MAX, "213503982334 d 14 h"),
        ] {
            assert_eq!(duration(ms), text);
        }
    }
}
