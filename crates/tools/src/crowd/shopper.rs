//! One shopper: arrives, takes a number, waits, buys; or gives up, or vanishes.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use nowserving_client::{Code, Result as Answer, State, StatusReply};
use tokio::time::{Instant, sleep, timeout_at};

use super::ledger::{At, Number};
use super::plan::{Mood, Part};
use super::{Crowd, Verdict, number};

/// A watcher also asks by itself this often: only an answer to a question of its own can prove that
/// it was overtaken.
const WATCHER_ASKS: Duration = Duration::from_secs(2);

/// Plays one part from arrival to end. What happened stands in the crowd's book.
pub async fn visit(crowd: Arc<Crowd>, part: Part) {
    sleep(part.arrives.saturating_sub(crowd.now())).await;
    let came = crowd.now();
    let entered = match enter(&crowd, &part).await {
        Ok(Some(status)) => status,
        Ok(None) => return crowd.note(|book, _| book.refused()),
        Err(text) => return crowd.trouble(format!("enter: {text}")),
    };
    if part.double_clicks
        && let Err(text) = enter(&crowd, &part).await
    {
        crowd.trouble(format!("enter again: {text}"));
    }
    let mut shopper = Shopper {
        number: number(&entered),
        ticket: entered.ticket.as_deref().unwrap_or_default(),
        heard: came,
        seated: false,
        crowd: &crowd,
        part: &part,
    };
    let Err(verdict) = shopper.play(&entered).await else {
        return;
    };
    crowd.broke_off(&shopper.number, verdict, |reason| {
        shopper.may_have_expired(reason)
    });
}

/// Takes a number; `None` if turned away.
async fn enter(crowd: &Crowd, part: &Part) -> Result<Option<StatusReply>, String> {
    let key = format!("shopper-{}", part.shopper);
    let sent = crowd.now();
    match crowd.line.enter(key.as_bytes()).await {
        Ok(status) => {
            acknowledge(crowd, part, sent, &status);
            Ok(Some(status))
        }
        Err(error) => match error.code() {
            Some(Code::LineFull | Code::LineClosed | Code::SoldOut) => Ok(None),
            _ => Err(error.to_string()),
        },
    }
}

fn acknowledge(crowd: &Crowd, part: &Part, sent: At, status: &StatusReply) {
    let number = number(status);
    let is_new = crowd.note(|book, at| {
        book.wrote(sent, at);
        let is_new = book.entered(at, part.shopper, &number);
        if status.state == State::Admitted {
            book.admitted(at, &number);
        }
        is_new
    });
    if is_new {
        crowd.remember(number, status.ticket.clone().unwrap_or_default());
    }
}

struct Shopper<'a> {
    crowd: &'a Crowd,
    part: &'a Part,
    number: Number,
    ticket: &'a str,
    /// When the request was sent that the token's present deadline surely began after. What says that it is admitted
    /// is no such one: it may have been for a while.
    heard: At,
    /// A claim was answered.
    seated: bool,
}

/// An answer, and the crowd's knowledge when it was asked for.
struct Received {
    status: StatusReply,
    sent: At,
    /// The highest number of the lane seen admitted when the request was sent.
    highest: u64,
}

impl Shopper<'_> {
    async fn play(&mut self, entered: &StatusReply) -> Result<(), Verdict> {
        let called = match entered.state {
            State::Waiting if self.part.watches => self.watch().await?,
            State::Waiting => self.poll_as_answered(entered.poll_after_ms).await?,
            _ => true,
        };
        if !called && self.part.mood == Mood::LeavesWaiting {
            return self.leave().await;
        }
        if !called || self.part.mood == Mood::NeverClaims {
            self.vanish();
            return Ok(());
        }
        let epoch = self.claim().await?;
        match self.part.mood {
            Mood::VanishesCheckout => self.vanish(),
            Mood::LeavesCheckout => {
                self.sit(self.part.service / 2, epoch).await?;
                self.leave().await?;
            }
            _ => {
                self.sit(self.part.service, epoch).await?;
                self.complete(epoch).await?;
            }
        }
        Ok(())
    }

    /// When patience ends; never for those who have enough of it.
    fn patience(&self) -> Option<At> {
        matches!(self.part.mood, Mood::LeavesWaiting | Mood::VanishesWaiting)
            .then(|| self.crowd.now() + self.part.patience)
    }

    /// Asks every `poll_after_ms`. True once admitted, false when patience ends.
    async fn poll_as_answered(&mut self, mut poll_after_ms: u64) -> Result<bool, Verdict> {
        let patience = self.patience();
        loop {
            let pause = Duration::from_millis(poll_after_ms);
            match patience {
                Some(end) if self.crowd.now() + pause >= end => {
                    sleep(end.saturating_sub(self.crowd.now())).await;
                    return Ok(false);
                }
                _ => sleep(pause).await,
            }
            let status = self.status().await?;
            if self.is_called(&status)? {
                return Ok(true);
            }
            poll_after_ms = status.poll_after_ms;
        }
    }

    /// Asks where it stands; notes it if somebody was let in before it.
    async fn status(&mut self) -> Result<StatusReply, Verdict> {
        let Received {
            status,
            sent,
            highest,
        } = self.ask(self.crowd.line.status(self.ticket)).await?;
        if status.state == State::Waiting {
            self.crowd
                .note(|book, _| book.still_waiting(&self.number, highest));
            self.heard = sent;
        }
        Ok(status)
    }

    /// Follows the board. True once admitted, false when patience ends.
    async fn watch(&mut self) -> Result<bool, Verdict> {
        let patience = self.patience();
        let end = patience.unwrap_or(self.crowd.times.deadline);
        let mut places = self.crowd.line.track(self.ticket);
        let mut asks = self.crowd.now() + WATCHER_ASKS;
        loop {
            let until = Instant::now() + end.min(asks).saturating_sub(self.crowd.now());
            match timeout_at(until, places.next()).await {
                Err(_) if self.crowd.now() < end => {
                    let status = self.status().await?;
                    if self.is_called(&status)? {
                        break;
                    }
                    asks = self.crowd.now() + WATCHER_ASKS;
                }
                Err(_) if patience.is_some() => return Ok(false),
                Err(_) => return Err(Verdict::Trouble("still waits at the end".to_owned())),
                Ok(Some(Ok(status))) if self.is_called(&status)? => break,
                Ok(Some(Ok(_))) => {}
                Ok(Some(Err(error))) if error.is_transient() => {}
                Ok(Some(Err(error))) => return Err((&error).into()),
                Ok(None) => {
                    return Err(Verdict::Trouble("the tracker ended by itself".to_owned()));
                }
            }
        }
        Ok(true)
    }

    /// Whether an answer says admitted.
    fn is_called(&self, status: &StatusReply) -> Result<bool, Verdict> {
        match status.state {
            State::Waiting => Ok(false),
            State::Gone => Err(Verdict::Gone(reason(status))),
            State::Admitted | State::InCheckout => {
                self.crowd.note(|book, at| book.admitted(at, &self.number));
                Ok(true)
            }
        }
    }

    /// Takes the seat: the fencing epoch.
    async fn claim(&mut self) -> Result<u64, Verdict> {
        let crowd = self.crowd;
        let Received { status, sent, .. } = self.write(crowd.line.claim(self.ticket)).await?;
        let (State::InCheckout, Some(epoch)) = (status.state, status.epoch) else {
            return Err(Verdict::Trouble(format!(
                "claim answered {:?}",
                status.state
            )));
        };
        let until = deadline(sent, &status)?;
        crowd.note(|book, at| book.seated(at, &self.number, epoch, until));
        (self.heard, self.seated) = (sent, true);
        Ok(epoch)
    }

    /// Stays in the checkout, renewing in time.
    async fn sit(&mut self, service: Duration, epoch: u64) -> Result<(), Verdict> {
        let crowd = self.crowd;
        let mut left = service;
        while left > crowd.times.renew {
            sleep(crowd.times.renew).await;
            left -= crowd.times.renew;
            let renewed = crowd.line.renew(self.ticket, epoch);
            let Received { status, sent, .. } = self.write(renewed).await?;
            let until = deadline(sent, &status)?;
            crowd.note(|book, at| book.renewed(at, &self.number, until));
            self.heard = sent;
        }
        sleep(left).await;
        Ok(())
    }

    async fn complete(&mut self, epoch: u64) -> Result<(), Verdict> {
        let crowd = self.crowd;
        crowd.note(|book, at| book.leaving(at, &self.number));
        let complete = crowd.line.complete(self.ticket, Some(epoch), None);
        let received = self.write(complete).await?;
        self.ended(&received.status, "completed")
    }

    async fn leave(&mut self) -> Result<(), Verdict> {
        let crowd = self.crowd;
        crowd.note(|book, at| book.leaving(at, &self.number));
        let received = self.write(crowd.line.leave(self.ticket)).await?;
        self.ended(&received.status, "left")
    }

    fn ended(&self, status: &StatusReply, expected: &str) -> Result<(), Verdict> {
        let reason = reason(status);
        if status.state != State::Gone || reason != expected {
            let state = status.state.as_str();
            return Err(Verdict::Trouble(format!(
                "{expected}, but told {state} {reason}"
            )));
        }
        self.crowd.note(|book, _| book.gone(&self.number, &reason));
        Ok(())
    }

    fn vanish(&self) {
        self.crowd.note(|book, at| book.vanished(at, &self.number));
    }

    /// Whether the token, of which an answer says that it is gone, may have expired: requests that reach the cluster
    /// late, or learn late that the token is admitted, are a slow machine's fault and none of the cluster's.
    fn may_have_expired(&self, reason: &str) -> bool {
        let passed = self.crowd.now().saturating_sub(self.heard);
        self.crowd.times.may_expire_in(passed, reason, self.seated)
    }

    async fn write(
        &self,
        call: impl Future<Output = Answer<StatusReply>>,
    ) -> Result<Received, Verdict> {
        let received = self.ask(call).await?;
        self.crowd.note(|book, at| book.wrote(received.sent, at));
        Ok(received)
    }

    /// Sends the request of `call`; notes what the crowd knew by then.
    async fn ask(
        &self,
        call: impl Future<Output = Answer<StatusReply>>,
    ) -> Result<Received, Verdict> {
        let lane = &self.number.lane;
        let (sent, highest) = self
            .crowd
            .note(|book, at| (at, book.highest_admitted(lane)));
        let answer = call.await;
        Ok(Received {
            status: answer.map_err(|error| Verdict::from(&error))?,
            sent,
            highest,
        })
    }
}

/// Until when a claimed seat is surely held. The answer says how long it is still held;
/// counted from when the request was sent, it ends no later than the real deadline.
fn deadline(sent: At, status: &StatusReply) -> Result<At, Verdict> {
    let left_ms = status.expires_in_ms;
    let left_ms = left_ms.ok_or_else(|| Verdict::Trouble("a seat without an end".to_owned()))?;
    Ok(sent + Duration::from_millis(left_ms))
}

fn reason(status: &StatusReply) -> String {
    status
        .reason
        .clone()
        .unwrap_or_else(|| "unknown".to_owned())
}
