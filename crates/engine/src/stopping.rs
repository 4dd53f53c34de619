//! How a node ends: it hands its shards over, unsubscribes, and forwards what still arrives.

use nowserving_shard::clock::Micros;

use crate::io::ExitReason;

/// A stopping node waits this long for its shards to find other leaders.
const STOP_MAX_US: Micros = 5_000_000;
/// A stopping node forwards requests for this long after it has unsubscribed. Subscriptions drain in less
/// time.
const DRAIN_US: Micros = 500_000;

#[derive(Debug)]
pub(crate) struct Stopping {
    since: Option<Micros>,
    reason: ExitReason,
    /// When it had nothing left to hand over.
    drained_at: Option<Micros>,
    ended: bool,
}

impl Stopping {
    pub fn not_yet() -> Self {
        Stopping {
            since: None,
            reason: ExitReason::Stopped,
            drained_at: None,
            ended: false,
        }
    }

    pub fn begin(&mut self, now: Micros) {
        self.since.get_or_insert(now);
    }

    /// It was removed from the cluster.
    pub fn begin_removed(&mut self, now: Micros) {
        self.begin(now);
        self.reason = ExitReason::Removed;
    }

    pub fn has_begun(&self) -> bool {
        self.since.is_some()
    }

    /// Whether its shards had long enough to find other leaders.
    pub fn is_overdue(&self, now: Micros) -> bool {
        self.since
            .is_some_and(|since| now.saturating_sub(since) > STOP_MAX_US)
    }

    /// It has nothing left to hand over.
    pub fn drained(&mut self, now: Micros) {
        self.drained_at.get_or_insert(now);
    }

    pub fn is_drained(&self) -> bool {
        self.drained_at.is_some()
    }

    /// The reason to end now, if it is time. `forwards`: some requests are still under way to leaders.
    pub fn is_over(&self, forwards: bool, now: Micros) -> Result<(), ExitReason> {
        let patience_us = match forwards {
            true => 4 * DRAIN_US,
            false => DRAIN_US,
        };
        match self.drained_at {
            Some(at) if now >= at + patience_us => Err(self.reason.clone()),
            _ => Ok(()),
        }
    }

    pub fn end(&mut self, now: Micros) {
        self.drained(now);
        self.ended = true;
    }

    pub fn has_ended(&self) -> bool {
        self.ended
    }
}
