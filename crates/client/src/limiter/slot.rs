//! The hits of one list of descriptors that this process has taken.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nowserving_protocol::limits::CheckReply;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::error::Error;

/// How long a slice without a limit lasts: rules may change.
const UNLIMITED: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Never held over a request, so that hits are spent while one is under way.
    slice: Mutex<Slice>,
    taking: Arc<tokio::sync::Mutex<()>>,
}

/// Held by the one caller that takes a slice. The others wait for that slice, and do not each take one.
pub(super) type Taking = OwnedMutexGuard<()>;

#[derive(Debug, Default)]
pub(super) struct Slice {
    left: u32,
    taken_at: Option<Instant>,
    until: Option<Instant>,
    /// The answer to its request.
    reply: CheckReply,
    /// Until then there is no whole slice to be had.
    without_until: Option<Instant>,
    /// When the last request got no answer, and its error.
    unanswered: Option<(Instant, Option<Error>)>,
}

impl Slot {
    pub(super) fn slice(&self) -> MutexGuard<'_, Slice> {
        self.slice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: somebody else is taking one.
    pub(super) fn try_taking(&self) -> Option<Taking> {
        self.taking.clone().try_lock_owned().ok()
    }

    pub(super) async fn taking(&self) -> Taking {
        self.taking.clone().lock_owned().await
    }
}

impl Slice {
    /// Those of an earlier one that are left are lost.
    pub(super) fn taken(&mut self, hits: u32, reply: CheckReply, sent: Instant) {
        let limited = reply.descriptors.iter().filter(|it| it.limit.is_some());
        let life_ms = limited.filter_map(|it| it.reset_ms).min();
        let life = life_ms.map_or(UNLIMITED, Duration::from_millis);
        *self = Slice {
            left: hits,
            taken_at: Some(sent),
            // Counted from before the cluster did, so it ends before the window does.
            until: sent.checked_add(life),
            reply,
            without_until: None,
            unanswered: None,
        };
    }

    pub(super) fn without_until(&mut self, until: Instant) {
        self.without_until = Some(until);
    }

    pub(super) fn unanswered(&mut self, error: Option<Error>) {
        self.unanswered = Some((Instant::now(), error));
    }

    /// The outcome of a request that ended without an answer since then, which is that of all who have waited for it.
    pub(super) fn unanswered_since(&self, came: Instant) -> Option<Option<Error>> {
        let (at, error) = self.unanswered.as_ref()?;
        (*at > came).then(|| error.clone())
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.left > 0 && self.until.is_some_and(|until| until > Instant::now())
    }

    pub(super) fn is_without(&self) -> bool {
        self.without_until
            .is_some_and(|until| until > Instant::now())
    }

    pub(super) fn spend(&mut self, hits: u32) -> Option<CheckReply> {
        (self.is_in_use() && self.left >= hits).then(|| self.take_out(hits))
    }

    /// The answer to so many hits of it.
    pub(super) fn take_out(&mut self, hits: u32) -> CheckReply {
        self.left = self.left.saturating_sub(hits);
        let passed = self
            .taken_at
            .map_or(0, |at| at.elapsed().as_millis() as u64);
        let left = self.left;
        let remaining = |it: Option<u32>| it.map(|it| it.saturating_add(left));
        let reset_ms = |it: Option<u64>| it.map(|it| it.saturating_sub(passed));
        let mut reply = self.reply.clone();
        reply.remaining = remaining(reply.remaining);
        reply.reset_ms = reset_ms(reply.reset_ms);
        for descriptor in &mut reply.descriptors {
            descriptor.remaining = remaining(descriptor.remaining);
            descriptor.reset_ms = reset_ms(descriptor.reset_ms);
        }
        reply
    }
}
