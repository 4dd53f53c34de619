//! Hits taken of a limit in advance, and spent by this process without asking.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nowserving_line::LineName;
use nowserving_protocol::limits::{Check, CheckReply, Descriptor};
use tokio::time::Instant;

use super::calls::{Calls, Remote};
use super::counts::Counted;
use super::finish::Finish;
use super::keys::{Keyed, key_of};
use super::options::LimitFallback;
use super::slot::{Slot, Taking};
use super::{Asked, Core, well_formed};
use crate::error::{Error, Result};

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

#[derive(Clone)]
pub(super) struct Sliced<C> {
    core: Core<C>,
    hits: u32,
    /// Descriptors for which there is no room are checked one hit at a time.
    slots: Arc<Mutex<Keyed<Arc<Slot>>>>,
}

/// What came of asking for a slice.
enum Taken {
    /// The answer to the caller's own hits.
    Out(CheckReply),
    /// There is no whole slice.
    Without,
    Unanswered(Option<Error>),
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
        if check.dry_run || hits == 0 || hits >= self.hits || well_formed(check).is_err() {
            return self.core.check(check, None).await;
        }
        let Some(slot) = self.slot(check) else {
            return self.core.check(check, None).await;
        };
        let came = Instant::now();
        if let Some(reply) = self.spend(&slot, hits) {
            return Ok(reply);
        }
        if slot.slice().is_without() {
            return self.core.check(check, None).await;
        }
        let taking = match slot.try_taking() {
            Some(taking) => taking,
            // Nobody queues for a cluster that is away.
            None if self.is_away() => return self.decided(check, Ok(Asked::Unanswered(None))),
            None => slot.taking().await,
        };
        // Of what the one before has come back with.
        if let Some(reply) = self.spend(&slot, hits) {
            return Ok(reply);
        }
        if slot.slice().is_without() {
            drop(taking);
            return self.core.check(check, None).await;
        }
        if let Some(error) = slot.slice().unanswered_since(came) {
            return self.decided(check, Ok(Asked::Unanswered(error)));
        }
        match Finish::new(self.clone().take(slot, taking, check.clone())).await {
            Ok(Taken::Out(reply)) => self.decided(check, Ok(Asked::Answered(reply))),
            Ok(Taken::Unanswered(error)) => self.decided(check, Ok(Asked::Unanswered(error))),
            Ok(Taken::Without) => self.core.check(check, None).await,
            Err(error) => self.decided(check, Err(error)),
        }
    }

    /// If its caller goes away, the slice is there for the others.
    async fn take(self, slot: Arc<Slot>, taking: Taking, check: Check) -> Result<Taken> {
        let sent = Instant::now();
        let whole = Check {
            hits: Some(self.hits),
            ..check.clone()
        };
        let asked = self.core.ask(&whole, None).await;
        let mut slice = slot.slice();
        let taken = match asked {
            Ok(Asked::Answered(reply)) if reply.allowed => {
                self.core.shared.counts.add(Counted::Slices);
                slice.taken(self.hits, reply, sent);
                // It has more than that.
                Ok(Taken::Out(slice.take_out(check.hits())))
            }
            Ok(Asked::Answered(reply)) => {
                let pause = reply.retry_after_ms.map(Duration::from_millis);
                let pause = pause.unwrap_or(WITHOUT_MAX).min(WITHOUT_MAX);
                slice.without_until(sent + pause);
                Ok(Taken::Without)
            }
            Ok(Asked::Unanswered(error)) => {
                slice.unanswered(error.clone());
                Ok(Taken::Unanswered(error))
            }
            Err(error) => {
                // Those that have waited get an error of their own, all at the same time.
                slice.without_until(sent + WITHOUT_MAX);
                Err(error)
            }
        };
        drop(slice);
        // Not earlier: the next one looks at the slice first.
        drop(taking);
        taken
    }

    fn decided(&self, check: &Check, asked: Result<Asked>) -> Result<CheckReply> {
        self.core.decided(check, asked)
    }

    fn spend(&self, slot: &Slot, hits: u32) -> Option<CheckReply> {
        let reply = slot.slice().spend(hits)?;
        let counts = &self.core.shared.counts;
        counts.add(Counted::Allowed);
        counts.add(Counted::Sliced);
        Some(reply)
    }

    fn is_away(&self) -> bool {
        let shared = &self.core.shared;
        shared.options.on_unavailable != LimitFallback::Fail && shared.health.is_away()
    }

    /// `None`: there are too many already.
    fn slot(&self, check: &Check) -> Option<Arc<Slot>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let key = key_of(&check.descriptors);
        if let Some(slot) = slots.get(&key) {
            return Some(slot.clone());
        }
        // A slot that somebody else holds is about to have a slice.
        let is_in_use = |slot: &Arc<Slot>| Arc::strong_count(slot) > 1 || slot.slice().is_in_use();
        if !slots.has_room(&key, Instant::now(), is_in_use) {
            return None;
        }
        let slot = Arc::new(Slot::default());
        slots.insert(key, slot.clone());
        Some(slot)
    }

    #[cfg(test)]
    pub(super) fn slots(&self) -> usize {
        self.slots.lock().map_or(0, |slots| slots.len())
    }
}
