//! What a limiter has decided.

use std::sync::atomic::{AtomicU64, Ordering};

use nowserving_protocol::limits::CheckReply;

use crate::error::Result;

/// The decisions of one limiter since it was made, dry runs left out. Counts only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimiterCounts {
    /// Requests allowed, by the cluster, out of a slice, or without the cluster.
    pub allowed: u64,
    /// Requests refused.
    pub refused: u64,
    /// Requests that failed with an error.
    pub failed: u64,
    /// Of `allowed` and `refused`: decided by `on_unavailable`, because the cluster did not answer.
    pub unavailable: u64,
    /// Of `allowed`: out of a slice, without asking.
    pub sliced: u64,
    /// Slices taken.
    pub slices: u64,
}

#[derive(Clone, Copy)]
pub(super) enum Counted {
    Allowed,
    Refused,
    Failed,
    Unavailable,
    Sliced,
    Slices,
}

const KINDS: usize = Counted::Slices as usize + 1;

#[derive(Default)]
pub(super) struct Counters([AtomicU64; KINDS]);

impl Counters {
    pub(super) fn add(&self, what: Counted) {
        self.0[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn decided(&self, decided: &Result<CheckReply>) {
        self.add(match decided {
            Ok(reply) if reply.allowed => Counted::Allowed,
            Ok(_) => Counted::Refused,
            Err(_) => Counted::Failed,
        });
    }

    pub(super) fn snapshot(&self) -> LimiterCounts {
        let count = |what: Counted| self.0[what as usize].load(Ordering::Relaxed);
        LimiterCounts {
            // Read before those that they are part of, so that they are never the larger ones.
            unavailable: count(Counted::Unavailable),
            sliced: count(Counted::Sliced),
            slices: count(Counted::Slices),
            allowed: count(Counted::Allowed),
            refused: count(Counted::Refused),
            failed: count(Counted::Failed),
        }
    }
}
