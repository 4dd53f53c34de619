//! What the loops tell the HTTP server: the node's health for `/healthz` (does each loop run?) and `/readyz` (does the
//! node serve?), and facts for `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nowserving_engine::LOOPS_MAX;
use nowserving_shard::clock::Micros;

use crate::metrics_server::facts::Facts;

/// A loop that has not come round for longer hangs. It turns some fifty times a second; a slow disk
/// or a machine with too much to do must not look like the end of it.
const HANGS_AFTER: Duration = Duration::from_secs(10);

/// Written by the loops, read by the HTTP server.
#[derive(Debug)]
pub struct Health {
    /// The time of each loop's last turn; 0: none yet.
    turned_at: [AtomicU64; LOOPS_MAX as usize],
    serves: Mutex<Result<(), String>>,
    /// About lines.
    pub facts: Facts,
}

impl Default for Health {
    fn default() -> Self {
        Health {
            turned_at: Default::default(),
            serves: Mutex::new(Err("starting: reading the log".to_owned())),
            facts: Facts::default(),
        }
    }
}

impl Health {
    /// The loop with this index has come round.
    pub fn turned(&self, index: u32, now: Micros) {
        if let Some(turned_at) = self.turned_at.get(index as usize) {
            turned_at.store(now, Ordering::Relaxed);
        }
    }

    pub fn set_serves(&self, serves: Result<(), String>) {
        *self.serves.lock().unwrap_or_else(PoisonError::into_inner) = serves;
    }

    /// Whether the process is alive, as it also is while it reads a long log at its start.
    ///
    /// # Errors
    /// Why not.
    pub fn lives(&self, now: Micros) -> Result<(), String> {
        for (index, turned_at) in self.turned_at.iter().enumerate() {
            let turned_at = turned_at.load(Ordering::Relaxed);
            let still = Duration::from_micros(now.saturating_sub(turned_at));
            if turned_at != 0 && still >= HANGS_AFTER {
                return Err(format!("loop {index} hangs for {} s", still.as_secs()));
            }
        }
        Ok(())
    }

    /// Whether the node can be sent requests.
    ///
    /// # Errors
    /// Why not.
    pub fn serves(&self, now: Micros) -> Result<(), String> {
        self.lives(now)?;
        let serves = self.serves.lock().unwrap_or_else(PoisonError::into_inner);
        serves.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_starting_node_lives_a_turning_one_serves_and_a_hanging_one_does_neither() {
        let health = Health::default();
        let now = 100_000_000;
        assert_eq!(health.lives(now), Ok(()));
        assert!(
            health
                .serves(now)
                .is_err_and(|why| why.contains("starting"))
        );
        health.turned(0, now);
        health.turned(2, now);
        health.set_serves(Ok(()));
        assert_eq!(health.serves(now), Ok(()));
        let later = now + HANGS_AFTER.as_micros() as Micros;
        health.turned(0, later);
        let hangs = |why: String| why.contains("loop 2 hangs");
        assert!(health.lives(later).is_err_and(hangs));
        assert!(health.serves(later).is_err());
        health.turned(2, later);
        health.set_serves(Err("refused".to_owned()));
        assert_eq!(health.lives(later), Ok(()));
        assert_eq!(health.serves(later), Err("refused".to_owned()));
    }
}
