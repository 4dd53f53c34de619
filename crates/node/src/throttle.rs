//! Warnings that could come thousands of times a second are logged once a second, with their number.

use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_secs(1);

/// Decides which of many like events are logged.
#[derive(Debug, Default)]
pub struct Throttle {
    logged: Option<Instant>,
    unlogged: u64,
}

impl Throttle {
    /// Counts one more. If it should be logged: the number since the last one that was.
    pub fn count(&mut self) -> Option<u64> {
        self.unlogged += 1;
        if self.logged.is_some_and(|logged| logged.elapsed() < PERIOD) {
            return None;
        }
        self.logged = Some(Instant::now());
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_logged_and_the_rest_of_the_period_is_counted() {
        let mut throttle = Throttle::default();
        assert_eq!(throttle.count(), Some(1));
        let start = Instant::now();
        let more = (0..10).filter_map(|_| throttle.count()).count();
        // On a machine that stands still for a second in between, another one is right.
        assert!(more == 0 || start.elapsed() >= PERIOD);
    }
}
