//! From a message to a checked request: everything that can be refused for its form is refused
//! here, so that nothing malformed ever reaches the shard loop or the log.

use nowserving_engine::{Delivery, Inbox, Input, Now, ReplyTo, Request, Via};
use nowserving_line::LineName;
use nowserving_protocol::codec::Format;
use nowserving_protocol::error::ApiError;
use nowserving_protocol::header::{
    self, REQUEST_ID_HEADER, SENT_MS_HEADER, TIMEOUT_DEFAULT_MS, TIMEOUT_HEADER, TraceContext,
    parse_sent_ms,
};
use nowserving_protocol::operation::{On, Operation};
use nowserving_protocol::subject::{Subjects, unknown_op};

use nowserving_shard::clock::Micros;
use nowserving_shard::requests::{Origin, RequestId};

use crate::body::{Asked, Body};
use crate::keys::InUse;
use crate::limits::KnownRules;
use crate::who::{TrustRequestInfo, takes_note};
use crate::{Message, forward};

/// Longest deadline that a request may ask for.
pub const TIMEOUT_MAX_MS: u64 = 60_000;

#[derive(Debug)]
pub struct Parser {
    /// The subjects of users and operators.
    pub subjects: Subjects,
    /// For requests that a node forwards to the leader.
    pub forward: Subjects,
    shards: u32,
    trust: TrustRequestInfo,
}

/// How a message came, and what this node knows as it reads it.
#[derive(Debug)]
pub struct Reading<'a> {
    /// The subscription.
    pub via: Via,
    /// The message was routed after this moment.
    pub routed_after: Micros,
    pub now: Now,
    pub trace: Option<Box<TraceContext>>,
    pub keys: &'a InUse,
    /// Of rate limits; `None` until this node has caught up with shard 0.
    pub rules: Option<&'a KnownRules>,
}

/// A request that was refused.
#[derive(Debug)]
pub struct Refused {
    /// To whom to say so.
    pub reply: ReplyTo,
    pub error: ApiError,
}

impl Parser {
    /// For a cluster of `shards` shards.
    ///
    /// # Errors
    /// The prefix is too long.
    pub fn new(subjects: Subjects, shards: u32, trust: TrustRequestInfo) -> Result<Self, ApiError> {
        Ok(Parser {
            forward: forward::subjects(&subjects)?,
            subjects,
            shards,
            trust,
        })
    }

    /// Reads a message.
    ///
    /// # Errors
    /// The message names the wrong part.
    pub fn parse(
        &self,
        message: &Message<'_>,
        mut reading: Reading<'_>,
    ) -> Result<Input, Box<Refused>> {
        let mut reply = reply_to(message, reading.now.us, reading.trace.take());
        self.read(message, &reading, &mut reply)
            .map_err(|error| Box::new(Refused { reply, error }))
    }

    /// Takes the inbox out of `reply` once nothing can be refused any more.
    fn read(
        &self,
        message: &Message<'_>,
        reading: &Reading<'_>,
        reply: &mut ReplyTo,
    ) -> Result<Input, ApiError> {
        let via = reading.via;
        let subjects = match via {
            Via::Forwarded => &self.forward,
            Via::Plain | Via::Shard(_) => &self.subjects,
        };
        let target = subjects.parse(message.subject)?;
        let op = target.op;
        reply.op = op;
        let of_nodes =
            op.on() == On::LimitLeader || op.on() == On::Members && target.shard.is_some();
        if of_nodes && via != Via::Forwarded {
            return Err(unknown_op(op.name()));
        }
        let deadline = deadline(message, reply.taken)?;
        let sent_ms = header(message, SENT_MS_HEADER, parse_sent_ms)?;
        let named = header(message, REQUEST_ID_HEADER, header::RequestId::new)?;
        let note = match takes_note(op) {
            true => self.trust.note(message, via, op)?,
            false => None,
        };
        let line = target.name.map_or_else(no_line, Ok)?;
        let body = Body {
            op,
            name: &line,
            shard: target.shard,
            shards: self.shards,
            payload: message.payload,
            reading,
            named: named.as_ref(),
            note: note.as_deref(),
        };
        let (home, ask) = match body.read(reply)? {
            Asked::Shard(home, ask) => (home, ask),
            Asked::Node(question) => {
                let reply = take(reply);
                return Ok(Input::Cluster { question, reply });
            }
        };
        // Only nodes send these, and only there.
        let (passed_on_as, forwarded_at, shared, term) = match via {
            Via::Forwarded => (
                header(message, forward::REQUEST_KEY_HEADER, forward::request_id)?,
                header(message, forward::SENT_AT_HEADER, forward::sent_at)?,
                header(message, forward::SHARED_HEADER, forward::shared)?,
                header(message, forward::TERM_HEADER, forward::term)?,
            ),
            Via::Plain | Via::Shard(_) => (None, None, None, None),
        };
        let id = match (named, via) {
            _ if !ask.effect().is_write() => None,
            // Nodes send these.
            (Some(named), _) if op == Operation::LimitExact => Some(hits_id(&named, &line)),
            (Some(named), _) => Some(client_id(&named, op, line.as_str(), message.payload)),
            (None, Via::Forwarded) => passed_on_as,
            (None, Via::Shard(_)) => Some(message_id(message)),
            // No other node has it.
            (None, Via::Plain) => None,
        };
        let request = Request {
            shard: home,
            line,
            ask,
            reply: take(reply),
            deadline,
            id,
            sent_ms,
            note,
            payload: message.payload.clone(),
        };
        Ok(Input::Request {
            request: Box::new(request),
            delivery: Delivery {
                via,
                routed_after: reading.routed_after,
                forwarded_at,
                shared: shared.is_some(),
                term,
            },
        })
    }
}

/// Where the answer to a message goes, before more of it is known.
#[must_use]
pub fn reply_to(message: &Message<'_>, taken: Micros, trace: Option<Box<TraceContext>>) -> ReplyTo {
    ReplyTo {
        inbox: match message.reply {
            Some(inbox) => Inbox::Subject(inbox.into()),
            None => Inbox::None,
        },
        format: Format::of(message.payload),
        op: Operation::Unknown,
        pass: false,
        taken,
        trace,
    }
}

/// Stands for the line in requests that have none, so that they can be forwarded like others.
fn no_line() -> Result<LineName, ApiError> {
    LineName::try_from("-").map_err(|_| ApiError::bad_request("line: a name is needed"))
}

/// The id of a call that its client named. `about`: the line, bucket or domain.
///
/// With the name alone, a caller that uses the name of somebody else's call would get that call's answer, with its
/// ticket, and its own request would not be executed. The subject is left out: a copy may come on another one.
#[must_use]
pub fn client_id(named: &header::RequestId, op: Operation, about: &str, body: &[u8]) -> RequestId {
    let of: &[u8] = match op.is_admin() {
        true => b"admin",
        false => b"user",
    };
    RequestId {
        key: hash([
            b"client",
            named.as_str().as_bytes(),
            of,
            op.name().as_bytes(),
            about.as_bytes(),
            body,
        ]),
        origin: Origin::Client,
    }
}

/// The id of hits that a node named so. The name stands for the counters and the hits, and a copy of a check may have another
/// `max_delay_ms`: so the payload is no part of it.
#[must_use]
pub fn hits_id(named: &header::RequestId, domain: &LineName) -> RequestId {
    let (named, domain) = (named.as_str().as_bytes(), domain.as_str().as_bytes());
    RequestId {
        key: hash([b"hits", named, domain]),
        origin: Origin::Client,
    }
}

/// The id of a message without one: another node may have the same message, and forwards it with the same
/// id. Two messages of one client differ in their inboxes.
#[must_use]
pub fn message_id(message: &Message<'_>) -> RequestId {
    let inbox = message.reply.unwrap_or_default();
    RequestId {
        key: hash([
            b"message",
            inbox.as_bytes(),
            message.subject.as_bytes(),
            message.payload,
        ]),
        origin: Origin::Direct,
    }
}

#[must_use]
pub fn hash<const N: usize>(parts: [&[u8]; N]) -> u128 {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&part.len().to_le_bytes());
        hasher.update(part);
    }
    let mut key = [0; 16];
    hasher.finalize_xof().fill(&mut key);
    u128::from_be_bytes(key)
}

fn take(reply: &mut ReplyTo) -> ReplyTo {
    ReplyTo {
        inbox: std::mem::take(&mut reply.inbox),
        trace: reply.trace.take(),
        ..*reply
    }
}

/// Reads a header; `None` if the message does not have it.
///
/// # Errors
/// `bad_request`: it is there twice, or is not as it must be.
pub fn header<T>(
    message: &Message<'_>,
    name: &str,
    read: impl Fn(&str) -> Result<T, ApiError>,
) -> Result<Option<T>, ApiError> {
    message.header(name)?.map(read).transpose()
}

/// Those of the contract, and those that nodes put on what they forward.
fn check_headers(message: &Message<'_>) -> Result<(), ApiError> {
    let mut checked = Ok(());
    message.headers.visit(&mut |name, _| {
        if checked.is_ok() && !forward::HEADERS.contains(&name) {
            checked = header::check_name(name);
        }
    });
    checked
}

/// The answer to a request that was read then must leave by this time, a little before the requester stops waiting.
///
/// # Errors
/// `bad_request`: a header is misspelt, or the timeout is not as it must be.
pub fn deadline(message: &Message<'_>, taken: Micros) -> Result<Micros, ApiError> {
    check_headers(message)?;
    let timeout_ms = header(message, TIMEOUT_HEADER, |text| {
        let ms = text.parse().ok();
        ms.filter(|ms| (1..=TIMEOUT_MAX_MS).contains(ms))
            .ok_or_else(|| {
                ApiError::bad_request(format!(
                    "{TIMEOUT_HEADER}: must be 1 to {TIMEOUT_MAX_MS} milliseconds"
                ))
            })
    })?;
    let timeout_ms = timeout_ms.unwrap_or(TIMEOUT_DEFAULT_MS);
    // A tenth for the way back, but no more than 100 ms.
    let way_back_us = (timeout_ms * 100).min(100_000);
    Ok(taken + timeout_ms * 1_000 - way_back_us)
}

#[cfg(test)]
#[path = "parse_tests.rs"]
pub(crate) mod tests;
