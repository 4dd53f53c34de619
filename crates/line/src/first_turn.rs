//! The first turn of seats, while an operator's guess (`checkout_expected_ms`) stands in for measurements.
//!
//! As a line opens, all its seats are taken at about the same moment. They do not come back at a constant rate: few
//! checkouts are very short, so the first seats come late, and the rate settles only as the seats get out of step. In
//! units of the mean time that a seat is held, `x` after the opening each seat has come back `x − late(x)` times:
//!
//! ```text
//! late(x) = LATE × (1 − e^(−x / LATE))
//! ```
//!
//! By renewal theory `LATE` is `(1 − v) / 2`, where `v` is the variance of these times divided by the square of their
//! mean: 0 if they are exponential, 1/3 if anything up to a longest is equally likely, 1/5 for people in a checkout.
//! Later turns need no correction: there `late` no longer changes.

use crate::Window;

const LATE: f64 = 0.2;
/// Rounds of the fixed-point iterations.
const ROUNDS: u32 = 6;
/// The relative standard deviation of a guess: one off by a factor of 1.5 is nothing unusual.
const GUESS_DOUBT: f64 = 0.4;

/// What a wait is computed from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Basis {
    /// Releases, and the time that seats were held for them.
    pub(crate) window: Window,
    /// So much of them is the operator's guess: 0 to 1.
    guessed: f64,
    /// With a guess: for how long each seat was held so far, in multiples of the mean hold.
    turns: Option<f64>,
}

impl Basis {
    pub(crate) fn measured(window: Window) -> Self {
        Self {
            window,
            guessed: 0.0,
            turns: None,
        }
    }

    /// Measurements of which so many releases are a guess. `held_ms` is for how long seats were held since the line
    /// began, summed over its `seats`.
    pub(crate) fn guessed(guessed: u64, measured: Window, held_ms: u64, seats: u32) -> Self {
        let seats = f64::from(seats).max(1.0);
        let each_ms = held_ms as f64 / seats;
        let (seat_ms, releases) = (measured.seat_ms as f64, measured.releases as f64);
        // Seats that come late count as given back, or the first ones would seem to be slow.
        let mut hold_ms = measured.hold_ms().max(1.0);
        for _ in 0..ROUNDS {
            hold_ms = seat_ms / (releases + seats * late(each_ms / hold_ms));
            hold_ms = hold_ms.max(1.0);
        }
        let turns = each_ms / hold_ms;
        let window = Window {
            releases: measured.releases + (seats * late(turns)) as u64,
            ..measured
        };
        Self {
            window,
            guessed: guessed as f64 / window.releases as f64,
            turns: Some(turns),
        }
    }

    /// So many places more a wait for `places` seats lasts, as the first seats come late.
    pub(crate) fn late_places(&self, places: f64, seats: f64) -> f64 {
        let Some(now) = self.turns else {
            return 0.0;
        };
        let mut more = 0.0;
        for _ in 0..ROUNDS {
            more = late(now + places / seats + more) - late(now);
        }
        more * seats
    }

    /// The relative variance of the mean hold: it was measured on a finite number of releases, or guessed.
    pub(crate) fn variance(&self) -> f64 {
        let guess = self.guessed * GUESS_DOUBT;
        1.0 / (self.window.releases as f64).max(1.0) + guess * guess
    }
}

fn late(turns: f64) -> f64 {
    LATE * (1.0 - libm::exp(-turns / LATE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEATS: u32 = 100;

    /// So many times a seat has come back after so many multiples of the mean hold, in small steps: the rate grows
    /// to 1 as the seats get out of step.
    fn returns(turns: f64) -> f64 {
        let steps = 10_000;
        let step = turns / f64::from(steps);
        let rate = |no: i32| 1.0 - libm::exp(-(f64::from(no) + 0.5) * step / LATE);
        (0..steps).map(rate).sum::<f64>() * step
    }

    fn basis(guessed: u64, releases: u64, held_ms: u64) -> Basis {
        let measured = Window {
            releases: guessed + releases,
            seat_ms: guessed * 10_000 + held_ms,
        };
        Basis::guessed(guessed, measured, held_ms, SEATS)
    }

    #[test]
    fn the_first_seats_come_late() {
        let seats = f64::from(SEATS);
        for elapsed_ms in [0, 2_000, 10_000, 60_000] {
            let held_ms = elapsed_ms * u64::from(SEATS);
            let turns = elapsed_ms as f64 / 10_000.0;
            let releases = (returns(turns) * seats) as u64;
            let basis = basis(25, releases, held_ms);
            let hold_ms = basis.window.hold_ms();
            assert!((hold_ms - 10_000.0).abs() < 300.0, "{elapsed_ms} {hold_ms}");
            for places in [20.0, 100.0, 500.0] {
                let all = places + basis.late_places(places, seats);
                let came = (returns(turns + all / seats) - returns(turns)) * seats;
                assert!((came - places).abs() < 3.0, "{elapsed_ms} {places} {came}");
            }
        }
        assert_eq!(
            Basis::measured(Window::default()).late_places(9.0, 2.0),
            0.0
        );
    }

    #[test]
    fn doubt_is_that_of_the_guess_until_seats_are_given_back() {
        let doubt = |releases| basis(25, releases, releases * 10_000).variance().sqrt();
        assert!((0.4..0.5).contains(&doubt(0)), "{}", doubt(0));
        assert!(doubt(25) < 0.3 && doubt(125) < 0.12);
    }

    /// Nothing that a dump may hold makes them absurd.
    #[test]
    fn extreme_measurements_are_harmless() {
        let most = crate::NUMBER_MAX;
        for (releases, seat_ms, held_ms, seats) in [
            (8, 0, 0, 1),
            (8, most, most, 1),
            (most, 0, most, 1_000_000),
            (4_096, u64::MAX, u64::MAX, 1),
        ] {
            let measured = Window { releases, seat_ms };
            let basis = Basis::guessed(8, measured, held_ms, seats);
            let late = basis.late_places(1e7, f64::from(seats));
            assert!((0.0..=f64::from(seats) * LATE).contains(&late), "{late}");
            assert!(basis.variance().is_finite() && basis.window.hold_ms() >= 0.0);
        }
    }
}
