//! Waits while the disk is full. Nothing of a write that failed for want of room was synced or acknowledged,
//! so it can be repeated; a process that ended instead could not even start again.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

const RETRY_INTERVAL: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 50 });

/// Called each time that a write has found the disk full.
pub type OnFull = Box<dyn Fn() + Send + Sync>;

/// The room on the disk of a log.
#[derive(Default)]
pub(crate) struct Room {
    /// Without it, a write fails when the disk is full.
    on_full: RwLock<Option<OnFull>>,
    waiting: AtomicUsize,
}

impl Room {
    pub fn set_on_full(&self, on_full: Option<OnFull>) {
        *self.on_full.write().unwrap_or_else(PoisonError::into_inner) = on_full;
    }

    /// Whether a write waits.
    pub fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Repeats `attempt` while the disk is full. It must do the same each time.
    pub fn wait<T>(&self, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let mut result = attempt();
        if !found_none(&result) {
            return result;
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        while found_none(&result) && self.tell() {
            std::thread::sleep(RETRY_INTERVAL);
            result = attempt();
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        result
    }

    /// Whether it is wanted to wait.
    fn tell(&self) -> bool {
        let on_full = self.on_full.read().unwrap_or_else(PoisonError::into_inner);
        on_full.as_ref().map(|on_full| on_full()).is_some()
    }
}

fn found_none<T>(result: &io::Result<T>) -> bool {
    result.as_ref().is_err_and(is_full)
}

/// Whether an operation failed for want of room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
