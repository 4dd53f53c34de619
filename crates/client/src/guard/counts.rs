//! What a guard has decided: counts, and an event for each step of a count.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The decisions of one guard since it was made. Counts only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GuardCounts {
    /// Slots given, at once or after waiting, by the cluster or without it.
    pub allowed: u64,
    /// Callers that had to wait in line.
    pub enqueued: u64,
    /// Callers that stopped waiting, for any reason: `enqueued - dequeued` wait now.
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
    /// Seats or places in line whose release the cluster did not take: they time out.
    pub abandoned: u64,
    /// How often the line's seats were told, with [`GuardOptions::auto_seats`](crate::GuardOptions::auto_seats).
    pub seats_told: u64,
    /// How often they could not be told.
    pub tell_failed: u64,
}

/// One step of the count of the same name in [`GuardCounts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum GuardEvent {
    Allowed,
    Enqueued,
    Dequeued,
    Blocked,
    Full,
    Late,
    Left,
    Unavailable,
    Lost,
    Abandoned,
    /// With the seats that the line has now.
    SeatsTold(u32),
    TellFailed,
}

const KINDS: usize = 12;

impl GuardEvent {
    fn index(self) -> usize {
        match self {
            GuardEvent::Allowed => 0,
            GuardEvent::Enqueued => 1,
            GuardEvent::Dequeued => 2,
            GuardEvent::Blocked => 3,
            GuardEvent::Full => 4,
            GuardEvent::Late => 5,
            GuardEvent::Left => 6,
            GuardEvent::Unavailable => 7,
            GuardEvent::Lost => 8,
            GuardEvent::Abandoned => 9,
            GuardEvent::SeatsTold(_) => 10,
            GuardEvent::TellFailed => KINDS - 1,
        }
    }
}

type Observer = Box<dyn Fn(GuardEvent) + Send + Sync>;

/// [`GuardCounts`] in the making.
#[derive(Default)]
pub(crate) struct Counters {
    counts: [AtomicU64; KINDS],
    observer: OnceLock<Observer>,
}

impl Counters {
    pub(crate) fn add(&self, event: GuardEvent) {
        self.counts[event.index()].fetch_add(1, Ordering::Relaxed);
        if let Some(observer) = self.observer.get() {
            observer(event);
        }
    }

    /// The first observer stays. Returns whether it is this one.
    pub(crate) fn observe(&self, observer: Observer) -> bool {
        self.observer.set(observer).is_ok()
    }

    pub(crate) fn snapshot(&self) -> GuardCounts {
        let count = |event: GuardEvent| self.counts[event.index()].load(Ordering::Relaxed);
        GuardCounts {
            allowed: count(GuardEvent::Allowed),
            // Read before `enqueued`, so that it is never the larger one.
            dequeued: count(GuardEvent::Dequeued),
            enqueued: count(GuardEvent::Enqueued),
            blocked: count(GuardEvent::Blocked),
            full: count(GuardEvent::Full),
            late: count(GuardEvent::Late),
            left: count(GuardEvent::Left),
            unavailable: count(GuardEvent::Unavailable),
            lost: count(GuardEvent::Lost),
            abandoned: count(GuardEvent::Abandoned),
            seats_told: count(GuardEvent::SeatsTold(0)),
            tell_failed: count(GuardEvent::TellFailed),
        }
    }
}
