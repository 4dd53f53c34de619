//! What a guard has decided, as counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// The decisions of one guard since it was made. Counts only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GuardCounts {
    /// Slots given, at once or after waiting, by the cluster or without it.
    pub allowed: u64,
    /// Callers that had to wait in line.
    pub enqueued: u64,
    /// Callers that wait no longer, for whatever reason: `enqueued - dequeued` wait now.
    pub dequeued: u64,
    /// Callers refused; `full` and `late` are among them.
    pub blocked: u64,
    /// Refused because the line was full.
    pub full: u64,
    /// Refused because they had waited too long.
    pub late: u64,
    /// Callers that went away while they waited.
    pub left: u64,
    /// Decided by `on_unavailable`, because the cluster did not answer.
    pub unavailable: u64,
    /// Seats lost while their slot was held: not renewed in time, held for `checkout_max_ms`, or kicked.
    pub lost: u64,
    /// Seats or places that the cluster could not be told to be free: they time out.
    pub abandoned: u64,
}

/// [`GuardCounts`] in the making.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) allowed: Counter,
    pub(crate) enqueued: Counter,
    pub(crate) dequeued: Counter,
    pub(crate) blocked: Counter,
    pub(crate) full: Counter,
    pub(crate) late: Counter,
    pub(crate) left: Counter,
    pub(crate) unavailable: Counter,
    pub(crate) lost: Counter,
    pub(crate) abandoned: Counter,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub(crate) fn snapshot(&self) -> GuardCounts {
        GuardCounts {
            allowed: self.allowed.get(),
            // First: so never fewer have been enqueued than dequeued.
            dequeued: self.dequeued.get(),
            enqueued: self.enqueued.get(),
            blocked: self.blocked.get(),
            full: self.full.get(),
            late: self.late.get(),
            left: self.left.get(),
            unavailable: self.unavailable.get(),
            lost: self.lost.get(),
            abandoned: self.abandoned.get(),
        }
    }
}
