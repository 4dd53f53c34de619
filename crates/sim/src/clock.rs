//! A node's clocks: set differently, of different speed, and (the wall clock) jumping.

use nowserving_engine::Now;

use crate::random::Random;
use crate::timeline::Time;

/// Wall clocks of nodes that are set right differ from the truth by this much.
pub const WALL_OFF_MS_MAX: i64 = 1_000;

/// The clocks of one machine.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// What the monotonic clock shows at the beginning.
    pub offset_us: u64,
    /// How much faster it runs than the simulation's time, in millionths.
    pub drift_ppm: i64,
    /// What the wall clock is ahead of the truth.
    pub wall_ahead_ms: i64,
}

/// The wall clock's truth at the beginning: any date will do.
const EPOCH_MS: i64 = 1_800_000_000_000;

impl Clock {
    /// Those of some machine, whose speed may differ from others'.
    pub fn draw(random: &mut Random, drifts: bool) -> Clock {
        // Two nodes may differ by a sixth in speed: a lease of 0.8 election timeouts bears that.
        let drift_ppm = match drifts {
            true => random.below(150_000) as i64 - 75_000,
            false => 0,
        };
        Clock {
            offset_us: random.between(1_000_000, 1 << 40),
            drift_ppm,
            wall_ahead_ms: random.off_by(WALL_OFF_MS_MAX),
        }
    }

    /// The monotonic clock at this time.
    #[must_use]
    pub fn monotonic(&self, time: Time) -> u64 {
        let drift = i128::from(time) * i128::from(self.drift_ppm) / 1_000_000;
        self.offset_us + (i128::from(time) + drift).max(0) as u64
    }

    /// The first time at which the monotonic clock shows at least this.
    #[must_use]
    pub fn when(&self, reading_us: u64) -> Time {
        let passed = i128::from(reading_us.saturating_sub(self.offset_us));
        let speed = 1_000_000 + i128::from(self.drift_ppm);
        let mut time = (passed * 1_000_000 / speed).max(0) as Time;
        while self.monotonic(time) < reading_us {
            time += 1;
        }
        time
    }

    /// What a node reads.
    #[must_use]
    pub fn read(&self, time: Time) -> Now {
        Now {
            us: self.monotonic(time),
            wall_ms: wall_ms(time, self.wall_ahead_ms),
        }
    }
}

/// What a wall clock shows that is ahead by so much.
#[must_use]
pub fn wall_ms(time: Time, ahead_ms: i64) -> u64 {
    let wall_ms = EPOCH_MS + (time / 1_000) as i64 + ahead_ms;
    wall_ms.max(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_is_the_inverse_of_the_reading() {
        for drift_ppm in [-80_000, -1, 0, 7, 80_000] {
            let clock = Clock {
                offset_us: 5_000_000,
                drift_ppm,
                wall_ahead_ms: 0,
            };
            for reading in [5_000_001, 6_234_567, 90_000_000] {
                let time = clock.when(reading);
                assert!(clock.monotonic(time) >= reading);
                assert!(time == 0 || clock.monotonic(time - 1) < reading);
            }
        }
    }
}
