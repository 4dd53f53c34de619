//! Whether the cluster serves writes, as far as the calls of one guard tell.
//!
//! One call without an answer does not make the cluster away: its reply may have been lost with a leader. It is away
//!
//! - when a call has failed, and then a short read is not answered either;
//! - when a call that began after such a doubt fails too, and no write was answered since it began. So a cluster that
//!   answers reads and can write nothing (full disks, clocks that differ too much) is away as well.
//!
//! It is back when a write is answered: a read proves too little.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

#[derive(Debug)]
pub(super) struct Health {
    away: watch::Sender<bool>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The last write that the cluster answered.
    answered: Option<Instant>,
    /// A call has failed, and no write was answered since.
    doubted: Option<Instant>,
}

/// What follows from a call without an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Others get through, or the doubt is known already.
    Nothing,
    /// A short read decides.
    Ask,
    Away,
}

impl Health {
    pub(super) fn new() -> Health {
        Health {
            away: watch::Sender::new(false),
            seen: Mutex::default(),
        }
    }

    pub(super) fn is_away(&self) -> bool {
        *self.away.borrow()
    }

    /// A write was answered. Returns whether the cluster was away.
    pub(super) fn answered(&self) -> bool {
        let mut seen = self.lock();
        seen.answered = Some(Instant::now());
        seen.doubted = None;
        self.away.send_if_modified(std::mem::take)
    }

    /// A call was not answered. `sent`: when it began.
    pub(super) fn failed(&self, sent: Instant) -> Verdict {
        let mut seen = self.lock();
        if seen.answered.is_some_and(|at| at >= sent) {
            return Verdict::Nothing;
        }
        match seen.doubted {
            None => {
                seen.doubted = Some(Instant::now());
                Verdict::Ask
            }
            Some(since) if sent >= since => Verdict::Away,
            // It failed for the same reason as the first one, perhaps the same lost leader.
            Some(_) => Verdict::Nothing,
        }
    }

    /// The cluster is away, unless a write was answered meanwhile. Returns whether that is new.
    pub(super) fn set_away(&self) -> bool {
        let seen = self.lock();
        let is_away = seen.doubted.is_some();
        self.away
            .send_if_modified(|away| is_away && !std::mem::replace(away, is_away))
    }

    /// Nobody asks any more whether the cluster is back: the next call finds out.
    pub(super) fn forget(&self) {
        self.away.send_if_modified(std::mem::take);
    }

    /// Completes when the cluster is not away.
    pub(super) async fn back(&self) {
        let mut away = self.away.subscribe();
        // Fails only without a sender, which is `self`.
        let _ = away.wait_for(|away| !*away).await;
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_first_failure_is_a_doubt_and_a_later_call_confirms_it() {
        let health = Health::new();
        let first = Instant::now();
        tokio::time::advance(SECOND).await;
        assert_eq!(health.failed(first), Verdict::Ask);
        // Sent before the doubt.
        assert_eq!(health.failed(first), Verdict::Nothing);
        assert!(!health.is_away());
        let second = Instant::now();
        tokio::time::advance(SECOND).await;
        assert_eq!(health.failed(second), Verdict::Away);
        assert!(health.set_away());
        assert!(!health.set_away(), "it is known");
        assert!(health.is_away());
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_is_answered_ends_the_doubt() {
        let health = Health::new();
        let sent = Instant::now();
        tokio::time::advance(SECOND).await;
        assert_eq!(health.failed(sent), Verdict::Ask);
        assert!(!health.answered());
        assert!(!health.set_away(), "a doubt that is settled");
        assert!(!health.is_away());
        // Others got through since it began.
        assert_eq!(health.failed(sent), Verdict::Nothing);
        let sent = Instant::now() + SECOND;
        tokio::time::advance(SECOND * 2).await;
        assert_eq!(health.failed(sent), Verdict::Ask);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_when_the_cluster_is_back() {
        let health = Health::new();
        health.back().await;
        assert_eq!(health.failed(Instant::now()), Verdict::Ask);
        assert!(health.set_away());
        assert!(health.back().now_or_never().is_none());
        assert!(health.answered());
        health.back().await;
        // A probe that ends with its runtime.
        assert_eq!(health.failed(Instant::now() + SECOND), Verdict::Ask);
        assert!(health.set_away());
        health.forget();
        health.back().await;
    }
}
