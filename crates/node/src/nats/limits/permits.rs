//! How many requests about rate limits a node works on at the same time.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Checks; others are refused.
const CHECKS_AT_ONCE: usize = 8_192;
/// Requests of operators. They have permits of their own: an operator who looks for the cause of too many checks is not
/// refused because of them.
const OPERATORS_AT_ONCE: usize = 256;

/// Those that are free.
#[derive(Debug)]
pub(super) struct Permits {
    checks: Arc<Semaphore>,
    operators: Arc<Semaphore>,
}

impl Default for Permits {
    fn default() -> Self {
        Permits {
            checks: Arc::new(Semaphore::new(CHECKS_AT_ONCE)),
            operators: Arc::new(Semaphore::new(OPERATORS_AT_ONCE)),
        }
    }
}

impl Permits {
    /// Ends once no request is worked on. None gets a permit meanwhile.
    pub async fn all_free(&self) {
        let checks = self.checks.acquire_many(CHECKS_AT_ONCE as u32);
        let operators = self.operators.acquire_many(OPERATORS_AT_ONCE as u32);
        // Nobody closes them.
        let _ = tokio::join!(checks, operators);
    }

    /// A permit for one request, of an operator or a check, until it is dropped. `None`: there are too many.
    pub fn of(&self, is_admin: bool) -> Option<OwnedSemaphorePermit> {
        let permits = match is_admin {
            true => &self.operators,
            false => &self.checks,
        };
        permits.clone().try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_node_that_stops_waits_for_each() {
        let permits = Permits::default();
        for is_admin in [false, true] {
            let held = permits.of(is_admin).unwrap();
            assert!(permits.all_free().now_or_never().is_none());
            drop(held);
            assert!(permits.all_free().now_or_never().is_some());
        }
    }

    #[test]
    fn checks_leave_operators_their_permits() {
        let permits = Permits::default();
        let mut held: Vec<_> = std::iter::from_fn(|| permits.of(false)).collect();
        assert_eq!(held.len(), CHECKS_AT_ONCE);
        let operators: Vec<_> = std::iter::from_fn(|| permits.of(true)).collect();
        assert_eq!(operators.len(), OPERATORS_AT_ONCE);
        held.pop();
        assert!(
            permits.of(false).is_some(),
            "a permit that was dropped is free"
        );
    }
}
