//! Counters of requests: for Prometheus, for service discovery, and the bound on how many are
//! under way at once.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Requests in the shard loop or on their way back at most; more are refused as overloaded.
pub const UNDER_WAY_MAX: usize = 16_384;

/// The counters of one node.
#[derive(Debug, Default)]
pub struct Stats {
    under_way: AtomicUsize,
    requests: AtomicU64,
    errors: AtomicU64,
    turned_away: AtomicU64,
}

impl Stats {
    /// Counts a request in; `false`: there is no room.
    pub fn admit(&self) -> bool {
        let before = self.under_way.fetch_add(1, Ordering::Relaxed);
        if before >= UNDER_WAY_MAX {
            self.under_way.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// A request was not even looked at, for want of room.
    pub fn turn_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    /// How many were not looked at so far.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// A request that was counted in is answered (or passed on).
    pub fn done(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts an answer.
    pub fn count(&self, op: &'static str, code: &'static str) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if code != "ok" {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        metrics::counter!("nowserving_requests_total", "op" => op, "code" => code).increment(1);
    }

    /// Counts an answer that another node gave.
    pub fn count_forwarded(&self, op: &'static str, code: &'static str) {
        metrics::counter!("nowserving_requests_forwarded_total", "op" => op, "code" => code)
            .increment(1);
    }

    /// Answers so far, and how many of them were errors.
    pub fn totals(&self) -> (u64, u64) {
        (
            self.requests.load(Ordering::Relaxed),
            self.errors.load(Ordering::Relaxed),
        )
    }
}
