//! One request of a node to the leader of a shard, repeated until it is answered.

use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::{HeaderMap, Request};
use nowserving_engine::refusals::{outcome_unknown, unavailable};
use nowserving_limit::Matched;
use nowserving_line::LineName;
use nowserving_protocol::codec::{Format, encode};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::header::{REQUEST_ID_HEADER, RequestId, SENT_MS_HEADER, TIMEOUT_HEADER};
use nowserving_protocol::limits::{Check, PartReply};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::super::many_lines::read_answer;
use super::own::OwnPart;
use super::{Call, Home, Limits, Part, asks_of, part_of};
use crate::clock::wall_ms;

/// Between two tries while no node leads the shard: at first, and at most. It doubles, as a storm of them would delay the
/// election that they wait for.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(320);
/// A leader answers so when its rules say that a counter is not its own.
pub(in super::super) const OTHER_RULES: Code = Code::VersionConflict;

/// The descriptors of one part, by their places in the request.
pub(super) struct Asked<'a> {
    pub part: &'a Part,
    pub places: &'a [usize],
    pub matched: &'a [Matched<'a>],
    pub ask: &'a Check,
}

impl Limits {
    /// Asks for the verdicts on the descriptors that one shard has.
    ///
    /// A node that leads the shard asks itself: a check costs it one round trip by NATS then, not two.
    ///
    /// Hits that go through the log are a write as any other, on the shard's own subject. Others are counted in the
    /// leader's memory, without an id: they go to the subject on which the leader alone takes what nodes forward. While
    /// leadership changes two nodes listen on the shard's own one; the other would forward its copy, and the leader
    /// count both.
    pub(super) async fn ask_part(
        &self,
        asked: Asked<'_>,
        domain: &LineName,
        call: &Call,
    ) -> Result<PartReply, ApiError> {
        let part = asked.part;
        let Home { shard, exact, .. } = part.0;
        if !exact && self.own.leads(shard) {
            let dry_run = asked.ask.dry_run;
            let own = OwnPart {
                shard,
                domain: domain.clone(),
                asks: asks_of(asked.matched, asked.places, asked.ask.hits()),
                dry_run,
            };
            match self.own.ask(own, call.until).await {
                // Another node leads now.
                Some(Err(error)) if error.code == Code::NotLeader => {}
                Some(Err(error)) if error.code == Code::Unavailable => {}
                Some(answer) => return answer,
                None => return Err(unanswered(!dry_run)),
            }
        }
        let check = part_of(asked.ask, asked.places);
        let (subject, effect) = if exact {
            let op = "limit_exact";
            let effect = match check.dry_run {
                true => Effect::None,
                false => Effect::Once(call.id_of_hits(part, check.hits())),
            };
            (self.subjects.shard(shard, domain, op), effect)
        } else {
            let effect = match check.dry_run {
                true => Effect::None,
                false => Effect::Counts,
            };
            (self.forward.shard(shard, domain, "limit_check"), effect)
        };
        self.ask(subject, &check, effect, call.until).await
    }

    /// Asks until a leader answers or the time is over.
    pub(super) async fn ask<R: DeserializeOwned>(
        &self,
        subject: String,
        body: &impl Serialize,
        effect: Effect,
        until: Instant,
    ) -> Result<R, ApiError> {
        let payload = encode(body, Format::MsgPack);
        let (mut in_doubt, mut pause) = (false, PAUSE);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(unanswered(in_doubt));
            }
            let request = Request::new()
                .payload(payload.clone().into())
                .headers(headers(left, effect.id()))
                .timeout(Some(left));
            match self.client.send_request(subject.clone(), request).await {
                Ok(message) => match read_answer(&message) {
                    Ok(answer) => return Ok(answer),
                    Err(error) => match error.code {
                        // Nothing happened.
                        Code::Unavailable | Code::NotLeader => {}
                        Code::OutcomeUnknown if effect.id().is_some() => in_doubt = true,
                        _ => return Err(error),
                    },
                },
                Err(error) if error.kind() == RequestErrorKind::NoResponders => {}
                // Sent again, hits in memory would count twice. The time is over in most cases.
                Err(_) => return Err(unanswered(in_doubt || effect != Effect::None)),
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
    /// It counts hits in the leader's memory, each time that it is taken.
    Counts,
    /// It is written, once for this id however often it is sent.
    Once(RequestId),
}

impl Effect {
    fn id(&self) -> Option<&RequestId> {
        match self {
            Effect::Once(id) => Some(id),
            Effect::None | Effect::Counts => None,
        }
    }
}

fn unanswered(in_doubt: bool) -> ApiError {
    match in_doubt {
        true => outcome_unknown(),
        false => unavailable(),
    }
}

fn headers(left: Duration, id: Option<&RequestId>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(TIMEOUT_HEADER, left.as_millis().max(1).to_string().as_str());
    headers.insert(SENT_MS_HEADER, wall_ms().to_string().as_str());
    if let Some(id) = id {
        headers.insert(REQUEST_ID_HEADER, id.as_str());
    }
    headers
}
