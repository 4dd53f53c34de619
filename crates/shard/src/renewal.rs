//! When a leader renews a quota next. Only its result is in the log: nodes of different releases may know time zones
//! differently.

use nowserving_line::Renew;
use nowserving_protocol::time;

/// The first renewal after this time of the wall clock.
pub(crate) fn next_ms(renew: Renew, wall_ms: u64) -> u64 {
    match renew {
        Renew::Every { ms } => (wall_ms / ms.max(1)).saturating_add(1).saturating_mul(ms),
        Renew::Daily { minute, zone } => time::next_daily(minute, zone.as_str(), wall_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_begin_at_multiples() {
        for (wall_ms, next) in [
            (0, 5_000),
            (4_999, 5_000),
            (5_000, 10_000),
            (12_345, 15_000),
        ] {
            assert_eq!(next_ms(Renew::Every { ms: 5_000 }, wall_ms), next);
        }
    }
}
