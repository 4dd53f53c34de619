//! Numbers over all rounds.

use nowserving_rehearse::count;
use serde::Serialize;

use super::load::Sample;

/// A number over all rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// `None` if there are no values.
    pub fn of(values: impl Iterator<Item = f64>, digits: i32) -> Option<Spread> {
        let scale = 10_f64.powi(digits);
        let mut values: Vec<f64> = values.map(|v| (v * scale).round() / scale).collect();
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            (values[middle - 1] + values[middle]) / 2.0
        };
        Some(Spread { median, min, max })
    }

    /// Of the rates of two cells, round by round.
    pub fn of_ratios(
        rates: impl Iterator<Item = f64>,
        to: impl Iterator<Item = f64>,
    ) -> Option<Spread> {
        let ratios = rates.zip(to).map(|(rate, to)| rate / to);
        Spread::of(ratios.filter(|ratio| ratio.is_finite()), 3)
    }

    /// The median, and the ends in brackets.
    pub fn text(&self) -> String {
        let Spread { median, min, max } = *self;
        if min == max {
            return shown(median);
        }
        format!("{} ({}–{})", shown(median), shown(min), shown(max))
    }

    /// As many times as large.
    #[must_use]
    pub fn times(self, factor: f64) -> Spread {
        Spread {
            median: self.median * factor,
            min: self.min * factor,
            max: self.max * factor,
        }
    }
}

/// What is measured of every operation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timed {
    /// Successful replies only.
    pub requests_per_s: Spread,
    /// Half of the answers came within this many microseconds.
    pub median_us: Spread,
    /// 99 of 100 did.
    pub p99_us: Spread,
    /// All did.
    pub max_us: Spread,
    pub failed: u64,
}

impl Timed {
    /// The samples of all rounds; `None` if there are none.
    pub fn of<'a>(samples: impl Iterator<Item = &'a Sample> + Clone) -> Option<Timed> {
        let quantile = |q: f64| Spread::of(samples.clone().map(|it| it.quantile_us(q)), 0);
        let failures = samples.clone().flat_map(|it| it.tally.failures.values());
        Some(Timed {
            requests_per_s: Spread::of(samples.clone().map(|it| it.per_second), 0)?,
            median_us: quantile(0.5)?,
            p99_us: quantile(0.99)?,
            max_us: quantile(1.0)?,
            failed: failures.sum(),
        })
    }
}

/// A number in three digits, or with its thousands apart.
pub fn shown(number: f64) -> String {
    match number.abs() {
        1_000.0.. => count(number.round_ties_even() as u64),
        100.0.. => format!("{number:.0}"),
        10.0.. => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_spread_is_the_middle_and_the_ends() {
        let of = |values: &[f64]| Spread::of(values.iter().copied(), 0);
        let spread = of(&[30.0, 10.0, 20.4]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (20.0, 10.0, 30.0));
        assert_eq!(of(&[1.0, 3.0]).unwrap().median, 2.0);
        assert!(of(&[]).is_none());
        assert_eq!(spread.text(), "20.0 (10.0–30.0)");
    }

    #[test]
    fn a_dead_echo_gives_no_ratio() {
        let of = |rates: &[f64], to: &[f64]| {
            Spread::of_ratios(rates.iter().copied(), to.iter().copied())
        };
        assert_eq!(of(&[50.0, 100.0], &[100.0, 200.0]).unwrap().max, 0.5);
        assert!(of(&[9.0], &[0.0]).is_none());
    }
}
