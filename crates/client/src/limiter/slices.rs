//! Hits taken of a limit in advance, and spent by this process without asking.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nowserving_line::LineName;
use nowserving_protocol::limits::{Check, CheckReply, Descriptor};
use tokio::time::Instant;

use super::calls::{Calls, Remote};
use super::counts::Counted;
use super::{Asked, Core, key_of};
use crate::error::Result;

/// Descriptors beyond this are checked one hit at a time.
const KEYS_MAX: usize = 16_384;
/// A slice of what nothing limits lives so long, as rules may change.
const UNLIMITED: Duration = Duration::from_secs(1);
/// A limit that has no whole slice left is asked hit by hit for no longer than this.
const WITHOUT_MAX: Duration = Duration::from_secs(1);

/// Checks that ask the cluster for several hits at once: one request for that many checks, and most answers without a way
/// over the network. [`crate::Limiter::slices`] makes them; clones share the slices.
///
/// Hits that are taken are counted, so no more passes than the limit allows. They are not given back: what a process
/// does not spend is lost until the window ends, and so are its hits when the process ends. A slice ends with its
/// window ([`CheckReply::reset_ms`] of the nearest limit). In a window that slides, or a bucket, what was
/// taken earlier may be spent later within that time: so up to a slice more for each process may pass in one unit of time.
/// When less than a slice is left, hits are asked for one check at a time, so that the limit is used up.
///
/// Not for leaking buckets: their delays are for each hit apart. A slice is small against the limit divided by the number of
/// processes.
#[derive(Clone)]
pub struct Slices {
    inner: Sliced<Remote>,
}

impl Slices {
    pub(super) fn new(core: Core<Remote>, hits: u32) -> Slices {
        let inner = Sliced::new(core, hits);
        Slices { inner }
    }

    /// The domain.
    #[must_use]
    pub fn domain(&self) -> &LineName {
        &self.inner.core.shared.domain
    }

    /// As [`crate::Limiter::check`].
    ///
    /// # Errors
    /// As its.
    pub async fn check(&self, descriptors: Vec<Descriptor>) -> Result<CheckReply> {
        self.inner.check(&Check::new(descriptors)).await
    }

    /// As [`crate::Limiter::check_with`]. A dry run asks the cluster, which counts the slices of all processes as used.
    ///
    /// # Errors
    /// As its.
    pub async fn check_with(&self, check: &Check) -> Result<CheckReply> {
        self.inner.check(check).await
    }
}

type Slot = Arc<tokio::sync::Mutex<Slice>>;

#[derive(Clone)]
pub(super) struct Sliced<C> {
    core: Core<C>,
    hits: u32,
    /// By descriptors.
    slots: Arc<Mutex<HashMap<Box<[u8]>, Slot>>>,
}

#[derive(Debug, Default)]
struct Slice {
    left: u32,
    taken_at: Option<Instant>,
    until: Option<Instant>,
    /// The answer to its request.
    reply: CheckReply,
    /// Until then there is no whole slice to be had.
    without_until: Option<Instant>,
}

impl<C: Calls> Sliced<C> {
    pub(super) fn new(core: Core<C>, hits: u32) -> Sliced<C> {
        Sliced {
            core,
            hits,
            slots: Arc::default(),
        }
    }

    pub(super) async fn check(&self, check: &Check) -> Result<CheckReply> {
        let hits = check.hits();
        if check.dry_run || hits == 0 || hits >= self.hits {
            return self.core.check(check, None).await;
        }
        let Some(slot) = self.slot(check) else {
            return self.core.check(check, None).await;
        };
        // Held while a slice is taken: others wait for it, and do not each take one.
        let mut slice = slot.lock().await;
        if let Some(reply) = slice.spend(hits) {
            let counts = &self.core.shared.counts;
            counts.add(Counted::Allowed);
            counts.add(Counted::Sliced);
            return Ok(reply);
        }
        if slice.is_without() {
            drop(slice);
            return self.core.check(check, None).await;
        }
        self.take(&mut slice, check).await
    }

    async fn take(&self, slice: &mut Slice, check: &Check) -> Result<CheckReply> {
        let sent = Instant::now();
        let whole = Check {
            hits: Some(self.hits),
            ..check.clone()
        };
        let counts = &self.core.shared.counts;
        let decided = match self.core.ask(&whole, None).await {
            Ok(Asked::Answered(reply)) if reply.allowed => {
                counts.add(Counted::Slices);
                *slice = Slice::taken(self.hits, reply, sent);
                // It has more than that.
                Ok(slice.take_out(check.hits()))
            }
            Ok(Asked::Answered(reply)) => {
                let pause = reply.retry_after_ms.map(Duration::from_millis);
                let pause = pause.unwrap_or(WITHOUT_MAX).min(WITHOUT_MAX);
                slice.without_until = Some(sent + pause);
                return self.core.check(check, None).await;
            }
            Ok(Asked::Unanswered(error)) => self.core.without_cluster(check, error),
            Err(error) => Err(error),
        };
        counts.decided(&decided);
        decided
    }

    /// `None`: there are too many already.
    fn slot(&self, check: &Check) -> Option<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let key = key_of(&check.descriptors);
        if slots.len() >= KEYS_MAX && !slots.contains_key(&key) {
            slots.retain(|_, slot| slot.try_lock().map_or(true, |slice| slice.is_in_use()));
            if slots.len() >= KEYS_MAX {
                return None;
            }
        }
        Some(slots.entry(key).or_default().clone())
    }
}

impl Slice {
    fn taken(hits: u32, reply: CheckReply, sent: Instant) -> Slice {
        let limited = reply.descriptors.iter().filter(|it| it.limit.is_some());
        let life_ms = limited.filter_map(|it| it.reset_ms).min();
        let life = life_ms.map_or(UNLIMITED, Duration::from_millis);
        Slice {
            left: hits,
            taken_at: Some(sent),
            // Counted from before the cluster did, so it ends before the window does.
            until: sent.checked_add(life),
            reply,
            without_until: None,
        }
    }

    fn is_in_use(&self) -> bool {
        self.left > 0 && self.until.is_some_and(|until| until > Instant::now())
    }

    fn is_without(&self) -> bool {
        self.without_until
            .is_some_and(|until| until > Instant::now())
    }

    fn spend(&mut self, hits: u32) -> Option<CheckReply> {
        (self.is_in_use() && self.left >= hits).then(|| self.take_out(hits))
    }

    /// The answer to so many hits of it.
    fn take_out(&mut self, hits: u32) -> CheckReply {
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
