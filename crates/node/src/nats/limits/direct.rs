//! The short way of a check: this node leads the shard of all its counters, so its engine answers it, and no task is needed
//! that waits. It is the way of nearly all checks of the SDK, which sends each to its shard's leader.

use std::sync::Arc;

use async_nats::Message;
use nowserving_engine::refusals::{outcome_unknown, unavailable};
use nowserving_engine::{LimitRequest, Outcome, ReplyTo};
use nowserving_front::limits::{KnownDomain, entries, resolve};
use nowserving_front::parse::{deadline, header};
use nowserving_line::LineName;
use nowserving_protocol::codec::{decode_request, encode};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::header::{REQUEST_ID_HEADER, RequestId, SENT_MS_HEADER, parse_sent_ms};
use nowserving_protocol::limits::{Check, PartReply};
use nowserving_protocol::operation::Operation;
use nowserving_shard::clock::Micros;
use nowserving_shard::limits::LimitAsk;
use tokio::sync::OwnedSemaphorePermit;

use crate::clock::monotonic_us;

use super::super::message::viewed;
use super::super::tasks::Finished;
use super::own::OwnPart;
use super::{Limits, asks_of, parts_of, place, reply};

/// A check of counters that this node leads, all of which are asked at once.
pub(super) struct Direct {
    domain: LineName,
    known: Arc<KnownDomain>,
    ask: Check,
    shard: u32,
    /// Of the descriptors that are limited.
    places: Vec<usize>,
    /// The questions to their counters.
    asks: Vec<LimitAsk>,
    deadline: Micros,
}

impl Limits {
    /// `None`: it must go the long way, which also tells what is wrong with it.
    pub(super) fn direct(&self, message: &Message, taken: Micros) -> Option<Direct> {
        let target = self.subjects.parse(&message.subject).ok()?;
        let domain = target.name.filter(|_| target.op == Operation::LimitCheck)?;
        let deadline = viewed(message, |message| {
            header(message, REQUEST_ID_HEADER, RequestId::new).ok()?;
            header(message, SENT_MS_HEADER, parse_sent_ms).ok()?;
            deadline(message, taken).ok()
        })?;
        let ask: Check = decode_request(&message.payload).ok()?;
        ask.check().ok()?;
        let known = self.known.borrow().as_ref()?.domains.get(&domain)?.clone();
        let entries = entries(&ask.descriptors);
        let matched = resolve(&known, &domain, &entries).ok()?;
        let mut parts = parts_of(&matched, self.shards).into_iter();
        let ((home, places), None) = (parts.next()?, parts.next()) else {
            return None;
        };
        if home.exact || !self.own.leads(home.shard) {
            return None;
        }
        let asks = asks_of(&matched, &places, &ask);
        drop((matched, entries));
        Some(Direct {
            domain,
            known,
            ask,
            shard: home.shard,
            places,
            asks,
            deadline,
        })
    }

    /// Gives it to the engine, which answers it. If this node leads no longer, it goes the long way.
    pub(super) async fn answer_direct(
        self: &Arc<Self>,
        mut direct: Direct,
        message: Message,
        mut to: ReplyTo,
        permit: OwnedSemaphorePermit,
    ) {
        to.op = Operation::LimitCheck;
        let requester = to.clone();
        let (this, deadline) = (self.clone(), direct.deadline);
        let part = OwnPart {
            shard: direct.shard,
            domain: direct.domain.clone(),
            request: LimitRequest::Check {
                asks: std::mem::take(&mut direct.asks),
                dry_run: direct.ask.dry_run,
                hold: None,
            },
        };
        let finish = move |answer: Result<Outcome, ApiError>| {
            let encoded = match answer {
                Ok(Outcome::LimitPart(part)) => this.encode_direct(&direct, &part, &to),
                Ok(_) => Err(outcome_unknown()),
                Err(error) if matches!(error.code, Code::NotLeader | Code::Unavailable) => {
                    // The engine says so, too, of a check whose time is over.
                    if monotonic_us() >= direct.deadline {
                        return Some(Finished {
                            to,
                            encoded: Err(unavailable()),
                        });
                    }
                    this.spawn(message, to, permit);
                    return None;
                }
                Err(error) => Err(error),
            };
            Some(Finished { to, encoded })
        };
        if let Err(error) = self.own.give(part, deadline, Box::new(finish)) {
            self.responder.refuse(&requester, error).await;
        }
    }

    fn encode_direct(
        &self,
        direct: &Direct,
        part: &PartReply,
        to: &ReplyTo,
    ) -> Result<Vec<u8>, ApiError> {
        let Direct {
            domain, known, ask, ..
        } = direct;
        let entries = entries(&ask.descriptors);
        let matched = resolve(known, domain, &entries)?;
        let mut verdicts = vec![None; matched.len()];
        place(&mut verdicts, &direct.places, part)?;
        self.count(ask, (domain, &known.rules), &entries, (&matched, &verdicts));
        Ok(encode(&reply(&matched, &verdicts), to.format))
    }
}

#[cfg(test)]
#[path = "direct_tests.rs"]
mod tests;
