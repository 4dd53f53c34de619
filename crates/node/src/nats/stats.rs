//! Counters of a loop's requests: for Prometheus, for service discovery, and the bound on how many are
//! under way at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::{Counter, Histogram};
use nowserving_engine::ReplyTo;
use nowserving_protocol::operation::{On, Operation};

use crate::clock::monotonic_us;
use crate::traces::{self, Answered};

/// Requests in a loop or on their way back at most; more are refused as overloaded.
pub const UNDER_WAY_MAX: usize = 16_384;

/// The counters of one loop.
#[derive(Debug, Default)]
pub struct Stats {
    under_way: AtomicUsize,
    turned_away: AtomicU64,
    /// Tasks that have given way to others with messages left to read.
    unread: AtomicUsize,
    counted: Mutex<Counted>,
}

#[derive(Default)]
struct Counted {
    /// Of users about lines, of operators, and of users about key-values and rate limits.
    totals: [Totals; 4],
    /// By operation and code: to look a metric up by its name and labels for each answer takes longer than to find the
    /// answer.
    here: HashMap<(Operation, &'static str), Metrics>,
    forwarded: HashMap<(Operation, &'static str), Metrics>,
}

/// Of the answers with one code to one operation.
struct Metrics {
    answers: Counter,
    took: Histogram,
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

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, more: Totals) {
        self.requests += more.requests;
        self.errors += more.errors;
        self.processing_us += more.processing_us;
    }
}

/// Of all loops: answers so far to users about lines, to operators, and to users about key-values and rate limits.
pub fn totals(loops: &[Arc<Stats>]) -> [Totals; 4] {
    let mut all = [Totals::default(); 4];
    for stats in loops {
        let of_loop = stats.lock().totals;
        all.iter_mut().zip(of_loop).for_each(|(all, it)| *all += it);
    }
    all
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

    /// While this is held, messages lie unread in this process.
    pub fn unread(&self) -> Unread<'_> {
        self.unread.fetch_add(1, Ordering::Relaxed);
        Unread(self)
    }

    /// Whether all messages that have come are read.
    pub fn all_read(&self) -> bool {
        self.unread.load(Ordering::Relaxed) == 0
    }

    /// A counted request is answered.
    pub fn answered(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts an answer.
    pub fn count(&self, reply: &ReplyTo, code: &'static str) {
        traces::ended(reply, code, Answered::Here);
        let took_us = monotonic_us().saturating_sub(reply.taken);
        let mut counted = self.lock();
        let [lines, operators, keys, limits] = &mut counted.totals;
        let of = match reply.op.on() {
            on if on.is_admin() => operators,
            On::Kv => keys,
            On::Limit | On::LimitShard | On::LimitLeader => limits,
            _ => lines,
        };
        of.requests += 1;
        of.processing_us += took_us;
        of.errors += u64::from(code != "ok");
        let of = counted.here.entry((reply.op, code));
        let of = of.or_insert_with(|| Metrics::new("nowserving_requests_total", reply.op, code));
        of.count(took_us);
    }

    /// Counts an answer that another node gave.
    pub fn count_forwarded(&self, reply: &ReplyTo, code: &'static str) {
        traces::ended(reply, code, Answered::ByLeader);
        let took_us = monotonic_us().saturating_sub(reply.taken);
        let mut counted = self.lock();
        let of = counted.forwarded.entry((reply.op, code));
        let name = "nowserving_requests_forwarded_total";
        let of = of.or_insert_with(|| Metrics::new(name, reply.op, code));
        of.count(took_us);
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.totals.fmt(f)
    }
}

impl Metrics {
    fn new(name: &'static str, op: Operation, code: &'static str) -> Metrics {
        Metrics {
            answers: metrics::counter!(name, "op" => op.name(), "code" => code),
            took: metrics::histogram!("nowserving_request_seconds", "op" => op.name()),
        }
    }

    fn count(&self, took_us: u64) {
        self.answers.increment(1);
        self.took.record(Duration::from_micros(took_us));
    }
}

/// Messages lie unread.
pub struct Unread<'a>(&'a Stats);

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        self.0.unread.fetch_sub(1, Ordering::Relaxed);
    }
}
