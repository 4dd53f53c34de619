//! One visit to the line, from entering to giving the seat back: a task of its own, so that the caller can go at any
//! moment and nothing is left behind.
//!
//!     enter ─► wait ─► claim ─► hold (renew, renew, …) ─► complete
//!       └────────┴───────┴─ the caller is gone, or nothing comes of it ─► leave
//!
//! `enter` and `claim` are not broken off when the caller goes: their outcome decides what is to be undone.

use std::sync::Arc;
use std::time::Duration;

use nowserving_line::{LaneName, State};
use nowserving_protocol::error::Code;
use nowserving_protocol::user::{Key, StatusReply};
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::calls::{Calls, Place, Turn};
use super::options::{OnUnavailable, Refused};
use super::slot::{Seat, Slot};
use super::{Shared, at, is_away, note_away, released_on_claim, up_to};
use crate::error::{Error, Kind, Result};

/// Renewals are at least this far apart, however little of the claim is left.
const RENEW_MIN: Duration = Duration::from_millis(50);
/// After an unanswered call the next one comes after this long, up to twice of it.
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// For so long the cluster is told again and again that a seat or a place in line is free.
const GIVE_BACK: Duration = Duration::from_secs(60);
/// An `enter` without an answer takes effect within its attempt's timeout of 2 s and another second, or never.
const UNKNOWN_FOR: Duration = Duration::from_millis(3_500);

/// A caller that has asked.
pub(crate) struct Visit {
    pub(crate) key: Key,
    pub(crate) lane: Option<LaneName>,
    /// When it asked.
    pub(crate) begin: Instant,
    /// When it waits no longer.
    pub(crate) gives_up: Option<Instant>,
    pub(crate) caller: Caller,
    /// Until the visit is over, and what it held is given back.
    pub(crate) _in_flight: OwnedSemaphorePermit,
}

type Caller = oneshot::Sender<Result<Slot, Stop>>;

/// Why a visit ends without a slot.
#[derive(Debug)]
pub(crate) enum Stop {
    CallerGone,
    Refused(Refused),
    /// The cluster does not answer.
    Away,
}

/// A claimed seat.
struct Claim {
    ticket: String,
    epoch: u64,
    /// No later than the cluster takes it away. Counted from before the request.
    expires: Instant,
    renew: Instant,
}

impl Visit {
    pub(crate) async fn run<C: Calls>(mut self, calls: C, shared: Arc<Shared>) {
        let entered = calls.enter(self.key.clone(), self.lane.take()).await;
        let stop = |error: Error| stop(&calls, &shared, error);
        let entered = match entered {
            Ok(entered) => entered,
            Err(error) => {
                let may_be_in_line = error.may_have_happened();
                let _ = self.caller.send(Err(stop(error)));
                if may_be_in_line {
                    leave_by_key(&calls, &shared, self.key).await;
                }
                return;
            }
        };
        let Some(ticket) = entered.ticket.clone() else {
            let error = Error::new(Kind::BadReply, "the answer to enter has no ticket");
            let _ = self.caller.send(Err(stop(error)));
            return;
        };
        let place = Place {
            lane: entered.lane.clone(),
            token: entered.token,
            ticket,
        };
        match self.seat(&calls, &shared, &place, entered.state).await {
            Ok((claimed, claim)) => {
                self.hold(&calls, &shared, &claimed, claim).await;
            }
            Err(stop) => {
                let is_gone = matches!(&stop, Stop::Refused(Refused::Removed { .. }));
                let _ = self.caller.send(Err(stop));
                if !is_gone {
                    leave(&calls, &shared, &place.ticket).await;
                }
            }
        }
    }

    /// Waits for the turn, and claims.
    async fn seat<C: Calls>(
        &mut self,
        calls: &C,
        shared: &Arc<Shared>,
        place: &Place,
        mut state: State,
    ) -> Result<(StatusReply, Claim), Stop> {
        loop {
            if state == State::Waiting {
                shared.counts.enqueued.add();
                debug!(line = shared.line, token = place.token, "enqueued");
                let turn = self.turn(calls, shared, place).await;
                shared.counts.dequeued.add();
                debug!(line = shared.line, token = place.token, ?turn, "dequeued");
                turn?;
            }
            let sent = Instant::now();
            match calls.claim(&place.ticket).await {
                Ok(claimed) => return claim(shared, place, claimed, sent),
                // An event of an earlier leader's that was not to be trusted: it waits on.
                Err(error) if error.code() == Some(Code::NotAdmitted) => state = State::Waiting,
                Err(error) => return Err(stop(calls, shared, error)),
            }
        }
    }

    async fn turn<C: Calls>(
        &mut self,
        calls: &C,
        shared: &Arc<Shared>,
        place: &Place,
    ) -> Result<(), Stop> {
        let too_late = |begin: Instant| {
            Stop::Refused(Refused::WaitedTooLong {
                waited: begin.elapsed(),
            })
        };
        tokio::select! {
            () = self.caller.closed() => {
                shared.counts.left.add();
                Err(Stop::CallerGone)
            }
            turn = calls.turn(place) => match turn {
                Ok(Turn::Admitted) => Ok(()),
                Ok(Turn::Gone(reason)) if reason == "wait_expired" => Err(too_late(self.begin)),
                Ok(Turn::Gone(reason)) => Err(Stop::Refused(Refused::Removed { reason })),
                Err(error) => Err(stop(calls, shared, error)),
            },
            () = at(self.gives_up) => Err(too_late(self.begin)),
        }
    }

    /// Hands the slot out, renews the claim until the slot is given back, and tells the cluster.
    async fn hold<C: Calls>(
        self,
        calls: &C,
        shared: &Arc<Shared>,
        claimed: &StatusReply,
        claim: Claim,
    ) {
        let (end, mut ended) = oneshot::channel();
        let (loses, lost) = watch::channel(false);
        let seat = Seat {
            lane: claimed.lane.clone(),
            token: claimed.token,
            epoch: claim.epoch,
            end,
            lost,
        };
        // A caller that is gone drops the slot here: `ended` follows at once.
        drop(self.caller.send(Ok(Slot::seat(seat, self.begin.elapsed()))));
        let (expires, watched) = watch::channel(Some(claim.expires));
        let lose = |why: String| {
            warn!(
                line = shared.line,
                epoch = claim.epoch,
                why,
                "a seat is lost"
            );
            shared.counts.lost.add();
            loses.send_replace(true);
        };
        let ack = tokio::select! {
            biased;
            ack = &mut ended => ack,
            why = renew(calls, shared, &claim, &expires) => {
                lose(why.to_string());
                ended.await
            }
            () = expired(watched) => {
                lose("it was not renewed in time".to_owned());
                ended.await
            }
        };
        give_back(shared, || calls.complete(&claim.ticket, claim.epoch)).await;
        debug!(line = shared.line, token = claimed.token, "given back");
        if let Ok(ack) = ack {
            // Fails only if nobody waits for it any more.
            let _ = ack.send(());
        }
    }
}

/// What the answer to `claim` says.
fn claim(
    shared: &Shared,
    place: &Place,
    claimed: StatusReply,
    sent: Instant,
) -> Result<(StatusReply, Claim), Stop> {
    let failed = |error| Stop::Refused(Refused::Failed(error));
    let Some(epoch) = claimed.epoch else {
        let what = "the answer to claim has no epoch";
        return Err(failed(Error::new(Kind::BadReply, what)));
    };
    let Some(expires_in_ms) = claimed.expires_in_ms else {
        return Err(failed(released_on_claim(&shared.line)));
    };
    let expires_in = Duration::from_millis(expires_in_ms);
    let ticket = claimed.ticket.as_ref().unwrap_or(&place.ticket).clone();
    let claim = Claim {
        ticket,
        epoch,
        expires: sent + expires_in,
        renew: sent + renew_after(expires_in),
    };
    Ok((claimed, claim))
}

/// A third of what is left: two more attempts fit in before the seat is lost.
fn renew_after(expires_in: Duration) -> Duration {
    (expires_in / 3).max(RENEW_MIN)
}

/// Renews until the cluster refuses it. `expires`: when the seat is lost by this process's clock, `None` for never.
async fn renew<C: Calls>(
    calls: &C,
    shared: &Arc<Shared>,
    claim: &Claim,
    expires: &watch::Sender<Option<Instant>>,
) -> Error {
    let mut next = claim.renew;
    loop {
        tokio::time::sleep_until(next).await;
        let sent = Instant::now();
        match calls.renew(&claim.ticket, claim.epoch).await {
            Ok(renewed) => {
                let left = Duration::from_millis(renewed.expires_in_ms.unwrap_or_default());
                expires.send_replace(Some(sent + left));
                next = sent + renew_after(left);
            }
            Err(error) if matches!(error.kind(), Kind::Refused(_)) => return error,
            Err(error) => {
                if is_away(&error) {
                    note_away(calls, shared, &error);
                    if shared.options.on_unavailable != OnUnavailable::Deny {
                        expires.send_replace(None);
                    }
                }
                next = Instant::now() + RETRY_DELAY + up_to(RETRY_DELAY);
            }
        }
    }
}

/// Completes when the time is up, which can be put off meanwhile.
async fn expired(mut expires: watch::Receiver<Option<Instant>>) {
    loop {
        let time = *expires.borrow_and_update();
        tokio::select! {
            () = at(time) => return,
            changed = expires.changed() => if changed.is_err() {
                // Not while `renew` runs, which has the other end.
                return at(time).await;
            },
        }
    }
}

fn stop<C: Calls>(calls: &C, shared: &Arc<Shared>, error: Error) -> Stop {
    if is_away(&error) {
        note_away(calls, shared, &error);
        return Stop::Away;
    }
    let api = error.api();
    if error.code() == Some(Code::TokenGone) {
        let reason = api.and_then(|api| api.reason.clone());
        let reason = reason.unwrap_or_else(|| "gone".to_owned());
        return Stop::Refused(Refused::Removed { reason });
    }
    Stop::Refused(Refused::from_error(error))
}

async fn leave<C: Calls>(calls: &C, shared: &Shared, ticket: &str) {
    give_back(shared, || calls.leave(ticket)).await;
}

/// It may have entered, or may still enter.
async fn leave_by_key<C: Calls>(calls: &C, shared: &Shared, key: Key) {
    tokio::time::sleep(UNKNOWN_FOR).await;
    let found = give_back(shared, || calls.find(key.clone())).await;
    if let Some(ticket) = found.and_then(|status| status.ticket) {
        leave(calls, shared, &ticket).await;
    }
}

/// Repeats the call until the cluster answers. Past [`GIVE_BACK`] the line's own timeouts must do.
async fn give_back<F>(shared: &Shared, mut call: impl FnMut() -> F) -> Option<StatusReply>
where
    F: Future<Output = Result<StatusReply>>,
{
    let gives_up = Instant::now() + GIVE_BACK;
    loop {
        match call().await {
            Ok(status) => return Some(status),
            Err(error) if !is_away(&error) => return None,
            Err(error) if Instant::now() >= gives_up => {
                warn!(line = shared.line, %error, "given up: a seat or a place in line has to time out");
                shared.counts.abandoned.add();
                return None;
            }
            Err(_) => tokio::time::sleep(RETRY_DELAY + up_to(RETRY_DELAY)).await,
        }
    }
}
