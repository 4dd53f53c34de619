//! The units of time that a limit can be per.

use nowserving_calendar::Span;

/// What `requests_per_unit` is per. The names are those of Lyft's ratelimit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    pub const ALL: [Self; 7] = [
        Self::Second,
        Self::Minute,
        Self::Hour,
        Self::Day,
        Self::Week,
        Self::Month,
        Self::Year,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Reads a name in any case.
    pub fn parse(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// How long the unit is in µs where no calendar decides: a day of 24 hours, a week of 7, a month of 30 and a year
    /// of 365 such days, as in Lyft's `UnitToDivider`.
    pub fn period_us(self) -> u64 {
        const SECOND_US: u64 = 1_000_000;
        match self {
            Self::Second => SECOND_US,
            Self::Minute => 60 * SECOND_US,
            Self::Hour => 3_600 * SECOND_US,
            Self::Day | Self::Week | Self::Month | Self::Year => {
                self.span().map_or(0, Span::usual_us)
            }
        }
    }

    /// What the calendar calls it; `None` if it is too short for calendars.
    pub fn span(self) -> Option<Span> {
        match self {
            Self::Second | Self::Minute | Self::Hour => None,
            Self::Day => Some(Span::Day),
            Self::Week => Some(Span::Week),
            Self::Month => Some(Span::Month),
            Self::Year => Some(Span::Year),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_in_any_case() {
        for unit in Unit::ALL {
            assert_eq!(Unit::parse(unit.name()), Some(unit));
            assert_eq!(Unit::parse(&unit.name().to_uppercase()), Some(unit));
        }
        for bad in ["", "unknown", "seconds", "day "] {
            assert_eq!(Unit::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn longer_units_have_longer_periods() {
        assert_eq!(Unit::Second.period_us(), 1_000_000);
        assert_eq!(Unit::Year.period_us(), 365 * 86_400 * 1_000_000);
        let periods = Unit::ALL.map(Unit::period_us);
        assert!(periods.is_sorted() && periods[0] > 0);
    }
}
