//! When a check happens, as its limit sees it.

use nowserving_calendar::{Window, Zone};

use crate::{Limit, Now, Unit};

/// The time of a check by the clock of its limit, and the window that it lies in.
///
/// It can be replicated: of a window by the calendar only the leader's reading counts, as nodes of different releases
/// may know time zones differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moment {
    /// µs since 1970. Times up to 2⁶³ are exact (292,000 years); beyond them sums are cut off at 2⁶⁴ − 1.
    pub now_us: u64,
    /// Empty for algorithms without windows.
    pub window: Window,
}

/// Finds the window of a check. It remembers the current one of each unit and zone, so that a check does not ask the
/// calendar.
#[derive(Debug, Default)]
pub struct Windows {
    known: Vec<(Unit, Zone, Window)>,
}

/// More units and zones than that are forgotten, and asked for again.
const KNOWN_MAX: usize = 64;

impl Windows {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn moment(&mut self, limit: &Limit, now: Now) -> Moment {
        let now_us = now.by(limit.clock());
        let window = match limit.algorithm().has_windows() {
            true => self.window(limit, now_us),
            false => Window::default(),
        };
        Moment { now_us, window }
    }

    fn window(&mut self, limit: &Limit, now_us: u64) -> Window {
        let Some(span) = limit.unit().span() else {
            return Window::of_length(limit.period_us(), now_us);
        };
        let utc = Zone::utc;
        let zone = limit.parts().zone.clone().unwrap_or_else(utc);
        let mut known = self.known.iter_mut();
        let known = known.find(|(unit, of, _)| *unit == limit.unit() && *of == zone);
        if let Some((_, _, window)) = known {
            if !window.contains(now_us) {
                *window = zone.window(span, now_us);
            }
            return *window;
        }
        let window = zone.window(span, now_us);
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.push((limit.unit(), zone, window));
        window
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Algorithm, LimitParts};

    #[test]
    fn windows_go_by_the_wall_clock_and_all_else_by_the_service_clock() {
        const DAY_US: u64 = 86_400_000_000;
        let now = Now {
            service_us: 61_000_000,
            wall_us: 3 * DAY_US + 5,
        };
        let mut windows = Windows::new();
        for unit in [Unit::Second, Unit::Minute, Unit::Hour] {
            let moment = windows.moment(&Limit::fixed_window(1, unit), now);
            assert_eq!(moment.now_us, 3 * DAY_US + 5);
            assert_eq!(moment.window.start_us, 3 * DAY_US, "{unit:?}");
        }
        let day = Limit::fixed_window(1, Unit::Day);
        // Also a second time, when it is known.
        for _ in 0..2 {
            let moment = windows.moment(&day, now);
            assert_eq!(moment.now_us, 3 * DAY_US + 5);
            assert_eq!(moment.window.end_us, 4 * DAY_US);
        }
        let later = Now {
            wall_us: 4 * DAY_US,
            ..now
        };
        assert_eq!(windows.moment(&day, later).window.start_us, 4 * DAY_US);
        let bucket = LimitParts {
            algorithm: Algorithm::TokenBucket,
            ..day.parts().clone()
        };
        let moment = windows.moment(&Limit::new(bucket).unwrap(), now);
        assert_eq!(
            (moment.now_us, moment.window),
            (61_000_000, Window::default())
        );
    }

    #[test]
    fn few_windows_are_remembered() {
        let mut windows = Windows::new();
        let zones = (0..2 * KNOWN_MAX).map(|nth| Zone::get(&format!("Etc/GMT{:+}", nth % 12 + 1)));
        for (nth, zone) in zones.enumerate() {
            let unit = [Unit::Day, Unit::Week, Unit::Month, Unit::Year][nth % 4];
            let zone = Some(zone.unwrap());
            let parts = LimitParts {
                unit,
                zone,
                ..Limit::fixed_window(1, unit).parts().clone()
            };
            windows.moment(&Limit::new(parts).unwrap(), Now::default());
            assert!(windows.known.len() <= KNOWN_MAX);
        }
    }
}
