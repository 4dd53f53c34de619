//! One request of a node to the leader of a shard, repeated until it is answered.

use std::time::Duration;

use bytes::Bytes;
use nowserving_engine::LimitRequest;
use nowserving_engine::refusals::{outcome_unknown, unavailable};
use nowserving_front::parse::hits_id;
use nowserving_limit::Matched;
use nowserving_line::{LineName, OperatorNote};
use nowserving_protocol::codec::{Format, encode};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::header::RequestId;
use nowserving_protocol::limits::{Check, PartReply};
use nowserving_protocol::operation::Operation;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::super::node_request::{Failed, NodeRequest};
use super::own::OwnPart;
use super::{Call, Home, Limits, Part, asks_of, part_of};

/// Between two tries while no node leads the shard: at first, and at most. It doubles, as a storm of them would delay the
/// election that they wait for.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(320);

/// The descriptors of one part, by their places in the request.
pub(super) struct Asked<'a> {
    pub part: &'a Part,
    pub places: &'a [usize],
    pub matched: &'a [Matched<'a>],
    pub ask: &'a Check,
    /// Another part may refuse what this one counts.
    pub hold: bool,
}

impl Limits {
    /// Asks for the verdicts on the descriptors that one shard has.
    ///
    /// A node that leads the shard asks itself: a check costs it one round trip by NATS then, not two.
    ///
    /// Hits that go through the log are a write as any other, on the shard's own subject. Others are counted in the
    /// leader's memory, without an id: they go to the subject on which the leader alone takes what nodes forward. On the
    /// shard's own subject two nodes listen while leadership changes: one of them would ask the leader again.
    pub(super) async fn ask_part(
        &self,
        asked: Asked<'_>,
        domain: &LineName,
        call: &Call,
    ) -> Result<PartReply, ApiError> {
        let part = asked.part;
        let Home { shard, exact, .. } = part.0;
        let id = call.id_of_hits(part, asked.ask.hits());
        let hold = Some(&id).filter(|_| asked.hold);
        if !exact && self.own.leads(shard) {
            let dry_run = asked.ask.dry_run;
            let own = OwnPart {
                shard,
                domain: domain.clone(),
                request: LimitRequest::Check {
                    asks: asks_of(asked.matched, asked.places, asked.ask),
                    dry_run,
                    hold: hold.map(|id| hits_id(id, domain).key),
                },
            };
            match self.own.ask(own, call.until()).await {
                // Another node leads now.
                Some(Err(error)) if error.code == Code::NotLeader => {}
                Some(Err(error)) if error.code == Code::Unavailable => {}
                Some(answer) => return answer,
                None => return Err(unanswered(!dry_run)),
            }
        }
        let check = part_of(asked.ask, asked.places);
        let subject = match exact {
            true => self.subjects.leader(Operation::LimitExact, shard, domain),
            false => self.forward.leader(Operation::LimitPart, shard, domain),
        };
        let (effect, until) = match exact {
            _ if check.dry_run => (Effect::None, call.until()),
            true => (Effect::Once(id), call.times.for_writes()?),
            false => (Effect::Counts(hold.cloned()), call.until()),
        };
        self.ask(subject, &check, (effect, None), until).await
    }

    /// Asks until a leader answers or the time is over.
    pub(super) async fn ask<R: DeserializeOwned>(
        &self,
        subject: String,
        body: &impl Serialize,
        (effect, note): (Effect, Option<&OperatorNote>),
        until: Instant,
    ) -> Result<R, ApiError> {
        let payload: Bytes = encode(body, Format::MsgPack).into();
        let (mut in_doubt, mut pause) = (false, PAUSE);
        loop {
            let request = NodeRequest {
                subject: subject.clone(),
                payload: payload.clone(),
                id: effect.id(),
                note,
                until,
            };
            match request.send(&self.client).await {
                Ok(answer) => return Ok(answer),
                Err(Failed::Unheard) => {}
                Err(Failed::Refused(error)) => match error.code {
                    // Nothing happened.
                    Code::Unavailable | Code::NotLeader => {}
                    Code::OutcomeUnknown if matches!(effect, Effect::Once(_)) => in_doubt = true,
                    _ => return Err(error),
                },
                // Sent again, hits in memory would count twice. The time is over in most cases.
                Err(Failed::Unanswered) => {
                    return Err(unanswered(in_doubt || effect != Effect::None));
                }
            }
            if Instant::now() >= until {
                return Err(unanswered(in_doubt));
            }
            tokio::time::sleep(pause + spread(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// Up to half as long again.
fn spread(pause: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or_default();
    pause / 2 * (random % 256) / 256
}

/// What a request does at the leader that takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing.
    None,
    /// It counts hits in the leader's memory, each time that it is taken, under a name if they may be given back.
    Counts(Option<RequestId>),
    /// It is written, once for this id however often it is sent.
    Once(RequestId),
}

impl Effect {
    fn id(&self) -> Option<&RequestId> {
        match self {
            Effect::Once(id) => Some(id),
            Effect::Counts(name) => name.as_ref(),
            Effect::None => None,
        }
    }
}

fn unanswered(in_doubt: bool) -> ApiError {
    match in_doubt {
        true => outcome_unknown(),
        false => unavailable(),
    }
}
