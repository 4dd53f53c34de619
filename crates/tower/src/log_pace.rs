//! Log lines that clients can cause.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(1);

/// One line a second. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct LogPace {
    made: Instant,
    /// In ms since it was made.
    next_ms: Arc<AtomicU64>,
}

impl Default for LogPace {
    fn default() -> LogPace {
        LogPace {
            made: Instant::now(),
            next_ms: Arc::default(),
        }
    }
}

impl LogPace {
    pub(crate) fn may_log(&self) -> bool {
        self.may_log_at(self.made.elapsed())
    }

    fn may_log_at(&self, elapsed: Duration) -> bool {
        let now_ms = elapsed.as_millis() as u64;
        let then_ms = now_ms + EVERY.as_millis() as u64;
        let is_due = |next_ms| (next_ms <= now_ms).then_some(then_ms);
        let ordering = Ordering::Relaxed;
        let next_ms = &self.next_ms;
        next_ms.fetch_update(ordering, ordering, is_due).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second() {
        let pace = LogPace::default();
        let at = |ms| pace.clone().may_log_at(Duration::from_millis(ms));
        assert!(at(5));
        assert!(!at(5) && !at(1_004));
        assert!(at(1_005));
        assert!(!at(2_000));
    }
}
