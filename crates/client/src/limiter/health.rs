//! Whether the cluster answers checks, as far as the calls of one limiter tell.
//!
//! One call without an answer does not make the cluster away: its reply may have been lost with a leader. It is away when
//! one that began after that fails too, and none was answered since. Then one call at a time still asks, on behalf of its own
//! caller, each [`PROBE_EVERY`] after the one before it has failed. The first answer to any call ends it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::RngExt;
use tokio::time::Instant;

/// While the cluster is away, it is asked so long after a call has failed, and up to half as long later.
pub(super) const PROBE_EVERY: Duration = Duration::from_millis(500);

/// A longer patience does not keep others from asking.
const PATIENCE_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Health(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    answered: Option<Instant>,
    /// A call has failed, and none was answered since.
    doubted: Option<Instant>,
    /// The cluster is away; the first call from then on asks it.
    probe_at: Option<Instant>,
}

impl Health {
    pub(super) fn is_away(&self) -> bool {
        self.lock().probe_at.is_some()
    }

    /// Whether a call that begins now asks the cluster. `patience`: how long it takes at most.
    pub(super) fn may_ask(&self, patience: Duration) -> bool {
        let mut seen = self.lock();
        let now = Instant::now();
        match seen.probe_at {
            None => true,
            Some(at) if at > now => false,
            Some(_) => {
                // Not before this one has ended, whatever comes of it. If it fails, `failed` says when.
                seen.probe_at = Some(next_probe(now + patience.min(PATIENCE_MAX)));
                true
            }
        }
    }

    /// A call was answered. Returns whether the cluster was away.
    pub(super) fn answered(&self) -> bool {
        let mut seen = self.lock();
        seen.answered = Some(Instant::now());
        seen.doubted = None;
        seen.probe_at.take().is_some()
    }

    /// A call that began at `sent` was not answered. Returns whether the cluster is away since.
    pub(super) fn failed(&self, sent: Instant) -> bool {
        let mut seen = self.lock();
        if seen.answered.is_some_and(|at| at >= sent) {
            return false;
        }
        let now = Instant::now();
        match seen.doubted {
            None => {
                seen.doubted = Some(now);
                false
            }
            // It failed for the same reason as the first one, perhaps the same lost leader.
            Some(since) if sent < since => false,
            Some(_) => seen.probe_at.replace(next_probe(now)).is_none(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn next_probe(now: Instant) -> Instant {
    now + PROBE_EVERY + (PROBE_EVERY / 2).mul_f64(rand::rng().random::<f64>())
}
