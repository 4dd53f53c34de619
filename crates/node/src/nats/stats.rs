//! Counters of requests: for Prometheus, for service discovery, and the bound on how many are
//! under way at once.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::monotonic_us;
use crate::traces::{self, Answered};
use nowserving_engine::ReplyTo;
use nowserving_protocol::operation::On;

/// Requests in the shard loop or on their way back at most; more are refused as overloaded.
pub const UNDER_WAY_MAX: usize = 16_384;

/// The counters of one node.
#[derive(Debug, Default)]
pub struct Stats {
    under_way: AtomicUsize,
    turned_away: AtomicU64,
    /// Of users about lines, of operators, and of users about key-values and rate limits.
    totals: Mutex<[Totals; 4]>,
}

/// The answers so far on one kind of subject.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Answers.
    pub requests: u64,
    pub errors: u64,
    /// From reading the requests to answering them, in all.
    pub processing_us: u64,
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

    /// The number of requests refused unread.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// A counted request is answered.
    pub fn answered(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts an answer.
    pub fn count(&self, reply: &ReplyTo, code: &'static str) {
        traces::ended(reply, code, Answered::Here);
        let took_us = monotonic_us().saturating_sub(reply.taken);
        let mut totals = self.lock();
        let [lines, operators, keys, limits] = &mut *totals;
        let of = match reply.op.on() {
            on if on.is_admin() => operators,
            On::Kv => keys,
            On::Limit | On::LimitShard | On::LimitLeader => limits,
            _ => lines,
        };
        of.requests += 1;
        of.processing_us += took_us;
        of.errors += u64::from(code != "ok");
        drop(totals);
        record(reply.op.name(), took_us);
        metrics::counter!("nowserving_requests_total", "op" => reply.op.name(), "code" => code)
            .increment(1);
    }

    /// Counts an answer that another node gave.
    pub fn count_forwarded(&self, reply: &ReplyTo, code: &'static str) {
        traces::ended(reply, code, Answered::ByLeader);
        record(reply.op.name(), monotonic_us().saturating_sub(reply.taken));
        metrics::counter!("nowserving_requests_forwarded_total", "op" => reply.op.name(), "code" => code)
            .increment(1);
    }

    /// Answers so far to users about lines, to operators, and to users about key-values and rate limits.
    pub fn totals(&self) -> [Totals; 4] {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, [Totals; 4]> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn record(op: &'static str, took_us: u64) {
    let took = Duration::from_micros(took_us);
    metrics::histogram!("nowserving_request_seconds", "op" => op).record(took);
}
