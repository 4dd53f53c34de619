//! Whether what is read now may have lain unread while this process stood still (stopped, starved,
//! its machine asleep).
//!
//! A request on a shard's subject may reach another node too, as a node that led listens on for a
//! while, and one that stood still was not asked. That other node may have told the requester that
//! nothing happened. So after a stall this node must not do writes that came before its end.

use std::sync::atomic::{AtomicU64, Ordering};

use nowserving_shard::clock::Micros;

/// Without a tick for this long, the process has stood still. Others listen in our place no sooner.
const STALL_US: Micros = 500_000;
/// From the first echo after a stall: what was read from the connection before it, and is on its way
/// from task to task, is handled by then.
const GRACE_US: Micros = 250_000;
/// Until an echo of what was sent since comes back.
const UNTIL_ECHO: Micros = Micros::MAX;

/// Told by the probe, asked by those who read requests.
#[derive(Debug)]
pub struct Stall {
    last_tick: AtomicU64,
    ended: AtomicU64,
    suspect_until: AtomicU64,
}

impl Stall {
    /// Of a process that has just started.
    #[must_use]
    pub fn new(now: Micros) -> Self {
        Stall {
            last_tick: AtomicU64::new(now),
            ended: AtomicU64::new(0),
            suspect_until: AtomicU64::new(0),
        }
    }

    /// The process runs. To be called every few milliseconds.
    pub fn tick(&self, now: Micros) {
        let before = self.last_tick.swap(now, Ordering::Relaxed);
        if now.saturating_sub(before) > STALL_US {
            self.ended.store(now, Ordering::Relaxed);
            self.suspect_until.store(UNTIL_ECHO, Ordering::Relaxed);
        }
    }

    /// What this process sent itself at `sent_at` has come back, after all that came before it.
    pub fn echo(&self, sent_at: Micros, now: Micros) {
        let waits = self.suspect_until.load(Ordering::Relaxed) == UNTIL_ECHO;
        if waits && sent_at >= self.ended.load(Ordering::Relaxed) {
            self.suspect_until
                .store(now.saturating_add(GRACE_US), Ordering::Relaxed);
        }
    }

    /// Whether a request that is read now may be older than the end of a stall.
    #[must_use]
    pub fn is_suspect(&self, now: Micros) -> bool {
        now.saturating_sub(self.last_tick.load(Ordering::Relaxed)) > STALL_US
            || now < self.suspect_until.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_after_a_stall_is_suspect_until_an_echo_sent_since_and_a_little_longer() {
        let stall = Stall::new(1_000_000);
        stall.tick(1_050_000);
        assert!(!stall.is_suspect(1_090_000));
        // Read before the probe's task runs again.
        assert!(stall.is_suspect(3_000_000));
        stall.tick(3_000_100);
        assert!(stall.is_suspect(3_000_200));
        // An echo of before proves nothing, and neither do ticks.
        stall.echo(1_050_000, 3_000_300);
        stall.tick(3_050_000);
        assert!(stall.is_suspect(3_100_000));
        stall.echo(3_050_000, 3_060_000);
        stall.tick(3_300_000);
        assert!(stall.is_suspect(3_060_000 + GRACE_US - 1));
        assert!(!stall.is_suspect(3_060_000 + GRACE_US));
    }

    #[test]
    fn a_second_stall_begins_anew() {
        let stall = Stall::new(0);
        stall.tick(1_000_000);
        stall.echo(1_000_000, 1_010_000);
        stall.tick(2_000_000);
        assert!(stall.is_suspect(2_900_000));
        stall.echo(1_900_000, 2_000_001);
        assert!(stall.is_suspect(2_900_000));
    }
}
