//! One visit to the line, from entering to giving the seat back: a task of its own, so that the caller can go at any
//! moment and nothing is left behind.
//!
//! ```text
//! enter ─► wait ─► claim ─► hold (renew, renew, …) ─► complete
//!   └────────┴───────┴─ the caller is gone, or nothing comes of it ─► leave
//! ```
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

use super::away::{note_failed, noted};
use super::calls::{Calls, Place, Turn};
use super::counts::GuardEvent;
use super::lease::Lease;
use super::options::{OnUnavailable, Refused};
use super::slot::{Seat, Slot, Tenure};
use super::{Shared, at, is_away, is_unanswered, released_on_claim, too_late, up_to};
use crate::error::{Error, Kind, Result};

/// After an unanswered call the next one comes after this long, up to twice of it.
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// A seat or a place in line is given back for at least this long, if the cluster is there and does not take it.
const GIVE_BACK: Duration = Duration::from_secs(60);
/// The time of a claim counts for giving it back up to this.
const GIVE_BACK_MAX: Duration = Duration::from_secs(86_400);
/// An `enter` without an answer takes effect within its attempt's timeout (2 s) + 1 s + 5 s of tolerance for clocks after
/// it was sent, or never. A second is added for an attempt that was sent late.
const UNKNOWN_FOR: Duration = Duration::from_secs(9);

/// A caller that has asked.
pub(crate) struct Visit {
    pub(crate) key: Key,
    pub(crate) lane: Option<LaneName>,
    /// When it asked.
    pub(crate) begin: Instant,
    /// When the caller stops waiting. It is gone then.
    pub(crate) gives_up: Option<Instant>,
    pub(crate) caller: Caller,
    /// It had to wait in line.
    pub(crate) from_line: bool,
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
    lease: Lease,
    /// How long it would take the cluster to give the seat to another by itself.
    lasts: Duration,
}

impl Visit {
    pub(crate) async fn run<C: Calls>(mut self, calls: C, shared: Arc<Shared>) {
        let enter = calls.enter(self.key.clone(), self.lane.take());
        let entered = noted(&calls, &shared, enter).await;
        let (mut place, state) = match entered.and_then(placed) {
            Ok(placed) => placed,
            Err(error) => {
                let may_be_in_line = may_be_in_line(&error);
                let _ = self.caller.send(Err(stop(error)));
                if may_be_in_line {
                    leave_by_key(&calls, &shared, self.key).await;
                }
                return;
            }
        };
        match self.seat(&calls, &shared, &mut place, state).await {
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
        place: &mut Place,
        state: State,
    ) -> Result<(StatusReply, Claim), Stop> {
        if state == State::Waiting {
            self.turn(calls, shared, place).await?;
        }
        loop {
            let sent = Instant::now();
            let claimed = noted(calls, shared, calls.claim(&place.ticket)).await;
            match claimed {
                Ok(claimed) => return claim(shared, place, claimed, sent),
                // An earlier leader said that it is admitted, and was not to be trusted: it waits on.
                Err(error) if error.code() == Some(Code::NotAdmitted) => {
                    pause().await;
                    self.turn(calls, shared, place).await?;
                }
                Err(error) => return Err(stop(error)),
            }
        }
    }

    async fn turn<C: Calls>(
        &mut self,
        calls: &C,
        shared: &Arc<Shared>,
        place: &mut Place,
    ) -> Result<(), Stop> {
        self.from_line = true;
        shared.counts.add(GuardEvent::Enqueued);
        debug!(line = shared.line, token = place.token, "enqueued");
        let turn = tokio::select! {
            () = self.caller.closed() => {
                // A caller that has waited too long is counted by its refusal.
                if self.gives_up.is_none_or(|time| Instant::now() < time) {
                    shared.counts.add(GuardEvent::Left);
                }
                Err(Stop::CallerGone)
            }
            turn = admitted(calls, shared, place) => match turn {
                Ok(Turn::Admitted) => Ok(()),
                Ok(Turn::Gone(reason)) if reason == "wait_expired" => {
                    Err(Stop::Refused(too_late(self.begin)))
                }
                Ok(Turn::Gone(reason)) => Err(Stop::Refused(Refused::Removed { reason })),
                Err(error) => Err(stop(error)),
            },
        };
        shared.counts.add(GuardEvent::Dequeued);
        debug!(line = shared.line, token = place.token, ?turn, "dequeued");
        turn
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
        let (tenures, tenure) = watch::channel(Tenure::Held);
        let seat = Seat {
            lane: claimed.lane.clone(),
            token: claimed.token,
            epoch: claim.epoch,
            from_line: self.from_line,
            end,
            tenure,
        };
        // A caller that is gone drops the slot here: `ended` follows at once.
        drop(self.caller.send(Ok(Slot::seat(seat, self.begin.elapsed()))));
        let (ends, watched) = watch::channel(own_end(shared, &claim.lease));
        let lose = |why: String| {
            warn!(
                line = shared.line,
                epoch = claim.epoch,
                why,
                "a seat is lost"
            );
            shared.counts.add(GuardEvent::Lost);
            tenures.send_replace(Tenure::Lost);
        };
        let ack = tokio::select! {
            biased;
            ack = &mut ended => {
                tenures.send_replace(Tenure::GivenBack);
                ack
            }
            why = renew(calls, shared, &claim, &ends) => {
                lose(why.to_string());
                ended.await
            }
            () = expired(watched) => {
                lose("its time is up".to_owned());
                ended.await
            }
        };
        let least = GIVE_BACK.max(claim.lasts.min(GIVE_BACK_MAX));
        let complete = || noted(calls, shared, calls.complete(&claim.ticket, claim.epoch));
        give_back(shared, least, complete).await;
        debug!(line = shared.line, token = claimed.token, "given back");
        if let Ok(ack) = ack {
            // Fails only if nobody waits for it any more.
            let _ = ack.send(());
        }
    }
}

/// What the answer to `enter` says.
fn placed(entered: StatusReply) -> Result<(Place, State)> {
    let Some(ticket) = entered.ticket else {
        let what = "the answer to enter has no ticket";
        return Err(Error::new(Kind::BadReply, what));
    };
    let place = Place {
        lane: entered.lane,
        token: entered.token,
        ticket,
    };
    Ok((place, entered.state))
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
    let lasts = Duration::from_millis(expires_in_ms);
    let ticket = claimed.ticket.as_ref().unwrap_or(&place.ticket).clone();
    let claim = Claim {
        ticket,
        epoch,
        lease: Lease::new(sent, lasts),
        lasts,
    };
    Ok((claimed, claim))
}

/// Waits until the token waits no longer. A poll without an answer is repeated as long as the cluster answers others.
async fn admitted<C: Calls>(calls: &C, shared: &Arc<Shared>, place: &mut Place) -> Result<Turn> {
    loop {
        let error = match calls.turn(place).await {
            Ok(turn) => return Ok(turn),
            Err(error) => error,
        };
        if !is_unanswered(&error) {
            return Err(error);
        }
        if shared.is_away() || !calls.answers().await {
            // The poll took as long as a call may.
            let now = Instant::now();
            let sent = now.checked_sub(shared.options.patience).unwrap_or(now);
            note_failed(calls, shared, sent, &error);
            return Err(error);
        }
        pause().await;
    }
}

/// When the seat is lost by this process's clock, `None` for never.
///
/// With `Deny` no handler runs without a seat, so it ends with its claim. Else only an answer that named the end for good
/// counts: an outage must not cost a service its handlers.
fn own_end(shared: &Shared, lease: &Lease) -> Option<Instant> {
    let by_clock = shared.options.on_unavailable == OnUnavailable::Deny || lease.is_last();
    lease.expires().filter(|_| by_clock)
}

/// Renews until the cluster refuses it. `ends`: see [`own_end`].
async fn renew<C: Calls>(
    calls: &C,
    shared: &Arc<Shared>,
    claim: &Claim,
    ends: &watch::Sender<Option<Instant>>,
) -> Error {
    let mut lease = claim.lease;
    let mut next = lease.renew();
    loop {
        at(next).await;
        let sent = Instant::now();
        let renewal = calls.renew(&claim.ticket, claim.epoch);
        let renewed = noted(calls, shared, renewal).await;
        match renewed.map(|renewed| renewed.expires_in_ms) {
            Ok(Some(left_ms)) => {
                lease = lease.renewed(sent, Duration::from_millis(left_ms));
                ends.send_replace(own_end(shared, &lease));
                next = lease.renew();
            }
            Err(error) if matches!(error.kind(), Kind::Refused(_)) => return error,
            Ok(None) | Err(_) => {
                next = Some(Instant::now() + RETRY_DELAY + up_to(RETRY_DELAY));
            }
        }
    }
}

/// Completes when the time is up, which can be put off meanwhile.
async fn expired(mut ends: watch::Receiver<Option<Instant>>) {
    loop {
        let time = *ends.borrow_and_update();
        tokio::select! {
            () = at(time) => return,
            changed = ends.changed() => if changed.is_err() {
                // Not while `renew` runs, which has the other end.
                return at(time).await;
            },
        }
    }
}

fn stop(error: Error) -> Stop {
    match is_away(&error) {
        true => Stop::Away,
        false => Stop::Refused(Refused::from_error(error)),
    }
}

/// Whether the caller of a failed `enter` may be in line, or come into it later.
fn may_be_in_line(error: &Error) -> bool {
    match error.kind() {
        Kind::Refused(_) | Kind::Unavailable => error.may_have_happened(),
        Kind::BadArgument => false,
        Kind::OutcomeUnknown | Kind::Forbidden | Kind::Connection | Kind::BadReply => true,
    }
}

pub(super) async fn leave<C: Calls>(calls: &C, shared: &Arc<Shared>, ticket: &str) {
    let leave = || noted(calls, shared, calls.leave(ticket));
    give_back(shared, GIVE_BACK, leave).await;
}

/// It may have entered, or may still enter.
pub(super) async fn leave_by_key<C: Calls>(calls: &C, shared: &Arc<Shared>, key: Key) {
    tokio::time::sleep(UNKNOWN_FOR).await;
    let found = give_back(shared, GIVE_BACK, || calls.find(key.clone())).await;
    if let Some(ticket) = found.and_then(|status| status.ticket) {
        leave(calls, shared, &ticket).await;
    }
}

/// Repeats the call until the cluster answers: while it is away, and then for `least`. After that the line's own timeouts
/// must do.
async fn give_back<F>(
    shared: &Shared,
    least: Duration,
    mut call: impl FnMut() -> F,
) -> Option<StatusReply>
where
    F: Future<Output = Result<StatusReply>>,
{
    let mut gives_up = Instant::now() + least;
    loop {
        let error = match call().await {
            Ok(status) => return Some(status),
            Err(error) => error,
        };
        if error.code().is_some_and(is_free_already) {
            return None;
        }
        if !is_unanswered(&error) || (!shared.is_away() && Instant::now() >= gives_up) {
            warn!(line = shared.line, %error, "given up: a seat or a place in line has to time out");
            shared.counts.add(GuardEvent::Abandoned);
            return None;
        }
        if shared.is_away() {
            shared.health.back().await;
            gives_up = Instant::now() + least;
        }
        pause().await;
    }
}

/// Refusals that say that there is nothing to give back.
fn is_free_already(code: Code) -> bool {
    matches!(
        code,
        Code::TokenGone
            | Code::EpochStale
            | Code::TicketInvalid
            | Code::TokenNotFound
            | Code::LineNotFound
            | Code::LineClosed
    )
}

/// Before a call is repeated.
async fn pause() {
    tokio::time::sleep(RETRY_DELAY + up_to(RETRY_DELAY)).await;
}
