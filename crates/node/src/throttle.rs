//! Warnings that could come thousands of times a second are said once a second, with their number.

use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_secs(1);

/// Decides which of many like events are said.
#[derive(Debug, Default)]
pub struct Throttle {
    said: Option<Instant>,
    unsaid: u64,
}

impl Throttle {
    /// Counts one more; if it is to be said, how many there were since the last that was.
    pub fn count(&mut self) -> Option<u64> {
        self.unsaid += 1;
        if self.said.is_some_and(|said| said.elapsed() < PERIOD) {
            return None;
        }
        self.said = Some(Instant::now());
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_said_and_the_rest_of_the_period_is_counted() {
        let mut throttle = Throttle::default();
        assert_eq!(throttle.count(), Some(1));
        let start = Instant::now();
        let more = (0..10).filter_map(|_| throttle.count()).count();
        // On a machine that stands still for a second in between, another one is right.
        assert!(more == 0 || start.elapsed() >= PERIOD);
    }
}
