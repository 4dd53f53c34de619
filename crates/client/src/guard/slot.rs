//! The right to run, while it is held.

use std::fmt;
use std::time::Duration;

use nowserving_adapt::Outcome;
use nowserving_line::LaneName;
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

use super::Outside;
use super::auto::Timed;

/// Tells that the release is done.
pub(crate) type Ack = oneshot::Sender<()>;

/// The right to run one handler. Dropping it gives it back in the background; see also [`Slot::release`].
#[must_use = "dropping it gives the slot back"]
pub struct Slot {
    held: Held,
    waited: Duration,
    /// With `auto_seats`, from when its caller has it.
    timed: Option<Timed>,
}

enum Held {
    Seat(Seat),
    Local { _permits: [OwnedSemaphorePermit; 2] },
    Allowed { _outside: Outside },
}

/// The holder's end of a claimed seat; the visit's task has the other one.
pub(crate) struct Seat {
    pub(crate) lane: LaneName,
    pub(crate) token: u64,
    pub(crate) epoch: u64,
    /// It had to wait for its turn.
    pub(crate) from_line: bool,
    pub(crate) end: oneshot::Sender<Ack>,
    /// Closed while it is [`Tenure::Held`] if the visit's task ended with its runtime: nobody renews the claim any more.
    pub(crate) tenure: watch::Receiver<Tenure>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tenure {
    Held,
    Lost,
    GivenBack,
}

/// What a slot rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlotKind {
    /// One of the line's seats.
    Seat,
    /// This process's own limit, while the cluster is away: [`OnUnavailable::Local`](crate::OnUnavailable::Local).
    Local,
    /// No limit, while the cluster is away: [`OnUnavailable::Allow`](crate::OnUnavailable::Allow).
    Allowed,
}

/// The seat was lost while the slot was held: another handler may run in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost;

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the seat was lost while it was held")
    }
}

impl std::error::Error for Lost {}

impl Slot {
    pub(crate) fn seat(seat: Seat, waited: Duration) -> Slot {
        Slot::new(Held::Seat(seat), waited)
    }

    pub(crate) fn local(permits: [OwnedSemaphorePermit; 2], waited: Duration) -> Slot {
        Slot::new(Held::Local { _permits: permits }, waited)
    }

    pub(crate) fn allowed(outside: Outside, waited: Duration) -> Slot {
        Slot::new(Held::Allowed { _outside: outside }, waited)
    }

    fn new(held: Held, waited: Duration) -> Slot {
        Slot {
            held,
            waited,
            timed: None,
        }
    }

    /// Its caller has it: its time counts from now on.
    pub(crate) fn time(&mut self, begin: impl FnOnce(bool) -> Option<Timed>) {
        self.timed = self.as_seat().and_then(|seat| begin(seat.from_line));
    }

    /// A seat of the line, or a choice for the time without the cluster.
    #[must_use]
    pub fn kind(&self) -> SlotKind {
        match self.held {
            Held::Seat(_) => SlotKind::Seat,
            Held::Local { .. } => SlotKind::Local,
            Held::Allowed { .. } => SlotKind::Allowed,
        }
    }

    /// The fencing number of a seat: it grows with every slot that the line gives. `None` if the cluster was away.
    ///
    /// A store that refuses numbers smaller than the largest that it has seen keeps out a handler that lost its seat only
    /// where one handler at a time may write: with `seats` = 1, or where the store keeps a number for each object that
    /// one handler works on at a time. With more seats a smaller number can be that of a handler that holds its seat.
    #[must_use]
    pub fn epoch(&self) -> Option<u64> {
        self.as_seat().map(|seat| seat.epoch)
    }

    /// The number in the line's lane; `None` if the cluster was away.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        self.as_seat().map(|seat| seat.token)
    }

    /// The lane; `None` if the cluster was away.
    #[must_use]
    pub fn lane(&self) -> Option<&LaneName> {
        self.as_seat().map(|seat| &seat.lane)
    }

    /// From the call to the slot.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Completes when the seat is lost: an operator kicked it, `checkout_max_ms` is over, it could not be renewed in time,
    /// or the runtime that renews it ended. The handler should stop then. Never for a slot that is no seat, nor once it is
    /// given back.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + Sync + use<> {
        let tenure = self.as_seat().map(|seat| seat.tenure.clone());
        async move {
            if let Some(mut tenure) = tenure {
                let ended = tenure.wait_for(|tenure| *tenure != Tenure::Held).await;
                let ended = ended.map_or(Tenure::Lost, |tenure| *tenure);
                if ended == Tenure::Lost {
                    return;
                }
            }
            std::future::pending().await
        }
    }

    /// Runs `work` to its end, then gives the slot back; or drops `work` when the seat is lost.
    ///
    /// # Errors
    /// The seat was lost first.
    pub async fn run<T>(self, work: impl Future<Output = T>) -> Result<T, Lost> {
        self.run_measured(work, |_| true).await
    }

    /// As [`Slot::run`]. `is_measured` says of what `work` returned whether its time counts for
    /// [`GuardOptions::auto_seats`](crate::GuardOptions::auto_seats): if it failed, which may be quick, only a time longer
    /// than the target does.
    ///
    /// # Errors
    /// The seat was lost first.
    pub async fn run_measured<T>(
        mut self,
        work: impl Future<Output = T>,
        is_measured: impl FnOnce(&T) -> bool,
    ) -> Result<T, Lost> {
        self.set_outcome(Outcome::BrokenOff);
        tokio::select! {
            biased;
            () = self.lost() => Err(Lost),
            done = work => {
                self.set_outcome(match is_measured(&done) {
                    true => Outcome::Done,
                    false => Outcome::Failed,
                });
                Ok(done)
            }
        }
    }

    /// What the time of the slot, until it is given back, says to [`GuardOptions::auto_seats`](crate::GuardOptions::auto_seats).
    /// By default its work was done, unless its thread panics, also if a future that owns the slot is dropped half-way.
    /// [`Slot::run`] and [`Slot::run_measured`] set it by themselves.
    pub fn set_outcome(&mut self, outcome: Outcome) {
        if let Some(timed) = &mut self.timed {
            timed.outcome = outcome;
        }
    }

    /// Gives it back, and returns when the cluster knows, which can take as long as the cluster is away. The seat comes
    /// free also if this future is dropped.
    pub async fn release(self) {
        // The time until the cluster knows is not the handler's.
        drop(self.timed);
        if let Held::Seat(seat) = self.held {
            let (ack, done) = oneshot::channel();
            // Fails only if the visit's task was dropped with its runtime.
            if seat.end.send(ack).is_ok() {
                let _ = done.await;
            }
        }
    }

    fn as_seat(&self) -> Option<&Seat> {
        match &self.held {
            Held::Seat(seat) => Some(seat),
            Held::Local { .. } | Held::Allowed { .. } => None,
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut slot = f.debug_struct("Slot");
        slot.field("kind", &self.kind());
        slot.field("token", &self.token());
        slot.field("epoch", &self.epoch());
        slot.finish_non_exhaustive()
    }
}
