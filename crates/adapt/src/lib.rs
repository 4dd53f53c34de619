//! How many seats a guarded line has, so that the service behind it keeps to a target: [`AutoSeats`].
//!
//! A [`Rule`] measures the handlers of one process and decides what that process adds to the line's seats, or takes away:
//!
//! ```text
//! began, ended ─► cohort ─► measured ─┐
//! load ───────────────────────────────┼─► step: the seats in force plus this process's part of the change
//! the line: its seats, those held ────┘
//! ```
//!
//! The line's seats are the only state that processes share. Each changes them by its part: the whole change, times the
//! share of the seats that its own handlers held. So the parts of all processes add up to one change, however many there
//! are, and a process that starts goes on from where the others are.
//!
//! With `m` measured and the target `t`, the whole change of the seats `s` is `s × 0.25 × (t / m − 1)`. The seats settle
//! near where `m` = `t`. (`m` counts the slowest tenth of the handlers with their age, so their true mean is a little more.)
//! A quarter of the way at a time is stable also where `m` grows much faster than the seats. An additive increase with a
//! multiplicative decrease moves more, and each change here is a write to the log.
//! A baseline in place of a target (the gradient of a short to a long mean) learns an overload that lasts.
//!
//! Pure: no clock, no I/O, no threads. Times come from the caller. Only operations on floating-point numbers that are
//! exact on every machine.

#![warn(missing_docs)]

mod cohort;
mod rule;

use std::time::Duration;

pub use cohort::{Began, Outcome};
pub use rule::{LineNow, Rule};

/// No line has more seats.
pub const SEATS_MAX: u32 = 1_000_000;
/// The range of a target for the time of handlers.
const LATENCY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(86_400));
/// The range of a target for the load.
const LOAD: (f64, f64) = (0.01, 100.0);

/// The seats of a line follow what its handlers measure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AutoSeats {
    min: u32,
    max: u32,
    target: Target,
}

/// What the seats are to bring about.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Target {
    /// The mean time of a handler, without its wait in line: 1 ms to a day. Above what a handler takes alone, or the seats
    /// fall to the minimum: twice that is a good start.
    Latency(Duration),
    /// The load that the process reports, 0.01 to 100, in any unit that grows with the number of handlers: 0.7 for 70 %
    /// of the CPU.
    ///
    /// A load that ends at 1, as a share of the CPU does, needs a target well below it: it never shows by how much the
    /// service is overloaded, so at 0.95 a step takes away 1 % of the seats. One that goes on growing (runnable tasks by
    /// cores) brings the seats down sooner.
    Load(f64),
}

/// What is wrong with [`AutoSeats`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {limit}")]
pub struct BadAutoSeats {
    /// `min`, `max` or `target`.
    pub field: &'static str,
    /// What it may be.
    pub limit: &'static str,
}

impl AutoSeats {
    /// Between these seats, to this target.
    ///
    /// # Errors
    /// `min` is 0, `max` is less than `min` or more than a million, or the target is out of its range.
    pub fn new(min: u32, max: u32, target: Target) -> Result<AutoSeats, BadAutoSeats> {
        let bad = |field, limit| Err(BadAutoSeats { field, limit });
        if min == 0 {
            return bad("min", "at least 1");
        }
        if !(min..=SEATS_MAX).contains(&max) {
            return bad("max", "min to 1,000,000");
        }
        match target {
            Target::Latency(mean) if !(LATENCY.0..=LATENCY.1).contains(&mean) => {
                bad("target", "1 ms to 1 day")
            }
            Target::Load(load) if !(LOAD.0..=LOAD.1).contains(&load) => {
                bad("target", "a load from 0.01 to 100")
            }
            Target::Latency(_) | Target::Load(_) => Ok(AutoSeats { min, max, target }),
        }
    }

    /// The fewest seats.
    #[must_use]
    pub fn min(&self) -> u32 {
        self.min
    }

    /// The most seats.
    #[must_use]
    pub fn max(&self) -> u32 {
        self.max
    }

    /// What the seats are to bring about.
    #[must_use]
    pub fn target(&self) -> Target {
        self.target
    }

    /// As many seats, but no fewer and no more than allowed.
    #[must_use]
    pub fn within(&self, seats: u32) -> u32 {
        seats.clamp(self.min, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused() {
        let second = Target::Latency(Duration::from_secs(1));
        let field = |min, max, target| AutoSeats::new(min, max, target).map_err(|bad| bad.field);
        assert!(field(1, 1, second).is_ok());
        assert!(field(1, SEATS_MAX, Target::Load(0.7)).is_ok());
        assert_eq!(field(0, 9, second), Err("min"));
        assert_eq!(field(9, 8, second), Err("max"));
        assert_eq!(field(1, SEATS_MAX + 1, second), Err("max"));
        for target in [
            Target::Latency(Duration::ZERO),
            Target::Latency(Duration::MAX),
            Target::Load(0.0),
            Target::Load(f64::NAN),
            Target::Load(f64::INFINITY),
        ] {
            assert_eq!(field(1, 9, target), Err("target"), "{target:?}");
        }
    }
}
