//! Limits that a process counts by itself.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nowserving_protocol::limits::{Check, CheckReply};
use tokio::time::Instant;

use super::keys::{Key, Keyed, key_of};
use super::options::LocalLimit;
use super::without_limit;

/// Keys for which there is no room share this counter.
const SHARED: Key = [0, 0];

/// By key the moment from which on its bucket is full.
#[derive(Debug, Default)]
pub(super) struct LocalCounters(Mutex<Keyed<Instant>>);

impl LocalCounters {
    pub(super) fn check(&self, check: &Check, limit: LocalLimit) -> CheckReply {
        let now = Instant::now();
        let mut counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = key_of(&check.descriptors);
        if !counters.has_room(&key, now, |full_at| *full_at > now) {
            key = SHARED;
        }
        let full_at = counters.get(&key).map_or(now, |it| (*it).max(now));
        let (reply, then_full_in) = decide(check, limit, full_at - now);
        let counts = reply.allowed && !check.dry_run && check.hits() > 0;
        if let Some(full_at) = now.checked_add(then_full_in).filter(|_| counts) {
            counters.insert(key, full_at);
        }
        reply
    }
}

/// `full_in`: how long it takes until the bucket is full. Returns that also for after the check.
fn decide(check: &Check, limit: LocalLimit, full_in: Duration) -> (CheckReply, Duration) {
    let hits = check.hits();
    let ever = hits <= limit.hits && limit.hits > 0;
    let part = f64::from(hits) / f64::from(limit.hits.max(1));
    let fills = Duration::try_from_secs_f64(limit.per.as_secs_f64() * part);
    let then_full_in = full_in.saturating_add(fills.unwrap_or(Duration::MAX));
    let allowed = ever && then_full_in <= limit.per;
    let full_in = if allowed { then_full_in } else { full_in };
    let left = limit.per.saturating_sub(full_in).as_secs_f64() / limit.per.as_secs_f64();
    let retry_after = then_full_in.saturating_sub(limit.per);
    let reply = CheckReply {
        limit: Some(limit.hits),
        remaining: Some((left * f64::from(limit.hits) + 1e-6) as u32),
        reset_ms: Some(ceil_ms(full_in)),
        retry_after_ms: (!allowed && ever).then(|| ceil_ms(retry_after)),
        ..without_limit(check, allowed)
    };
    (reply, full_in)
}

fn ceil_ms(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
