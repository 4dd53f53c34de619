//! From a message to a checked request: everything that can be refused for its form is refused
//! here, so that nothing malformed ever reaches the shard loop or the log.

use nowserving_engine::{Ask, Delivery, Inbox, Input, Now, ReplyTo, Request, Via};
use nowserving_line::{LineName, Op, TokenBy};
use nowserving_protocol::codec::{Format, decode_request};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::header::{
    self, REQUEST_ID_HEADER, SENT_MS_HEADER, TIMEOUT_DEFAULT_MS, TIMEOUT_HEADER, TraceContext,
    parse_sent_ms,
};
use nowserving_protocol::subject::{Subjects, Target, shard_of, unknown_op};
use nowserving_protocol::user;

use nowserving_shard::clock::Micros;
use nowserving_shard::requests::{Origin, RequestId};

use crate::Message;
use crate::forward;
use crate::keys::InUse;
use crate::limits::KnownRules;
use crate::parse_admin::{admin_ask, cluster_question, members_ask};
use crate::parse_kv::{kv_ask, kv_question};
use crate::parse_limit::{Asked, limit_op};
use crate::who::{self, TrustRequestInfo};

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
        let (via, wall_ms) = (reading.via, reading.now.wall_ms);
        let subjects = match via {
            Via::Forwarded => &self.forward,
            Via::Plain | Via::Shard(_) => &self.subjects,
        };
        let target = subjects.parse(message.subject)?;
        let deadline = deadline(message, reply.taken)?;
        let sent_ms = header(message, SENT_MS_HEADER, parse_sent_ms)?;
        let named = header(message, REQUEST_ID_HEADER, header::RequestId::new)?;
        let mut note = None;
        let (home, line, mut ask) = match target {
            Target::Cluster { op } => {
                reply.admin = true;
                match members_ask(op, message.payload, (self.shards, wall_ms), reply)? {
                    // For the leader of shard 0, as if it were about a line there.
                    Some(ask) => (0, no_line()?, ask),
                    None => {
                        let question = cluster_question(op, message.payload, reply)?;
                        let reply = take(reply);
                        return Ok(Input::Cluster { question, reply });
                    }
                }
            }
            Target::Kv {
                admin,
                shard,
                bucket,
                op,
            } => {
                reply.admin = admin;
                if let Some(question) = kv_question(op, &bucket, message.payload, reply)? {
                    let reply = take(reply);
                    return Ok(Input::Cluster { question, reply });
                }
                let (home, ask) = kv_ask(op, &bucket, message.payload, self.shards, reply)?;
                let home = is_home(shard, home, "the key", self.shards)?;
                (home, bucket, ask)
            }
            Target::Line {
                admin,
                shard,
                line,
                op,
            } => {
                reply.admin = admin;
                if let Some(op) = limit_op(op, admin, via) {
                    let shard = self.known_shard(shard)?;
                    let asked = Asked {
                        op,
                        domain: &line,
                        shard,
                        shards: self.shards,
                        rules: reading.rules,
                        named: named.as_ref(),
                    };
                    let ask = asked.read(message.payload, reply)?;
                    (shard, line, ask)
                } else {
                    let members = match admin && via == Via::Forwarded {
                        true => members_ask(op, message.payload, (self.shards, wall_ms), reply)?,
                        false => None,
                    };
                    match members {
                        Some(ask) => (0, line, ask),
                        None => {
                            let home = self.home(&line, shard)?;
                            let ask = match admin {
                                true => admin_ask(op, &line, message.payload, (reply, &mut note))?,
                                false => user_ask(op, &line, message.payload, reading.keys, reply)?,
                            };
                            (home, line, ask)
                        }
                    }
                }
            }
            // Those are answered before.
            Target::Limit { op, .. } | Target::AdminLimit { op } => return Err(unknown_op(op)),
        };
        let user = match reply.admin {
            true => self.trust.user(message, via)?,
            false => None,
        };
        if let Some(user) = &user {
            who::name_user(&mut ask, &mut note, user);
        }
        // Only nodes send these, and only there.
        let (passed_on_as, forwarded_at, shared) = match via {
            Via::Forwarded => (
                header(message, forward::REQUEST_KEY_HEADER, forward::request_id)?,
                header(message, forward::SENT_AT_HEADER, forward::sent_at)?,
                header(message, forward::SHARED_HEADER, forward::shared)?,
            ),
            Via::Plain | Via::Shard(_) => (None, None, None),
        };
        let id = match (named, via) {
            _ if !ask.effect().is_write() => None,
            // Nodes send these.
            (Some(named), _) if reply.op == "limit_exact" => Some(hits_id(&named, &line)),
            (Some(named), _) => {
                let body: &[u8] = message.payload;
                Some(client_id(&named, reply, line.as_str(), body))
            }
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
            user,
            payload: message.payload.clone(),
        };
        Ok(Input::Request {
            request: Box::new(request),
            delivery: Delivery {
                via,
                routed_after: reading.routed_after,
                forwarded_at,
                shared: shared.is_some(),
            },
        })
    }

    /// The shard of a line, which must be the one in the subject.
    fn home(&self, line: &LineName, shard: Option<u32>) -> Result<u32, ApiError> {
        let home = shard_of(line.as_str(), self.shards);
        is_home(shard, home, &format!("line {}", line.as_str()), self.shards)
    }

    /// The shard of a request that is about no line.
    fn known_shard(&self, shard: Option<u32>) -> Result<u32, ApiError> {
        let known = shard.filter(|shard| *shard < self.shards);
        known.ok_or_else(|| {
            ApiError::bad_request(format!("subject: a shard from 0 to {}", self.shards - 1))
        })
    }
}

fn user_ask(
    op: &str,
    line: &LineName,
    payload: &[u8],
    keys: &InUse,
    reply: &mut ReplyTo,
) -> Result<Ask, ApiError> {
    let at = |ticket: &str| keys.tickets.verify_for(ticket, line);
    let token_by = |token| {
        Ok::<_, ApiError>(match token {
            user::TokenBy::Ticket(ticket) => TokenBy::At(at(&ticket)?),
            user::TokenBy::Key(key) => TokenBy::Key(key.into_bytes()),
        })
    };
    let line = line.clone();
    Ok(match op {
        "status" => {
            reply.op = "status";
            let ask: user::StatusRequest = decode_request(payload)?;
            reply.pass = ask.pass;
            Ask::Status {
                token: token_by(ask.token)?,
                consistency: ask.consistency.unwrap_or_default(),
                holes: ask.holes,
            }
        }
        "enter" => {
            reply.op = "enter";
            let ask: user::Enter = decode_request(payload)?;
            Ask::Write(Op::Enter {
                line,
                key: ask.key.map(|key| key.as_bytes().into()),
                lane: ask.lane,
            })
        }
        "callback" => {
            reply.op = "callback";
            let ask: user::Callback = decode_request(payload)?;
            Ask::Write(Op::Callback {
                line,
                key: ask.key.into_bytes(),
                lane: ask.lane,
            })
        }
        "find" => {
            reply.op = "find";
            let ask: user::Find = decode_request(payload)?;
            Ask::Find(ask.key.as_bytes().into())
        }
        "claim" => {
            reply.op = "claim";
            let ask: user::Claim = decode_request(payload)?;
            reply.pass = ask.pass;
            let at = at(&ask.ticket)?;
            Ask::Write(Op::Claim { line, at })
        }
        "renew" => {
            reply.op = "renew";
            let ask: user::Renew = decode_request(payload)?;
            let at = at(&ask.ticket)?;
            let epoch = ask.epoch;
            Ask::Write(Op::Renew { line, at, epoch })
        }
        "complete" => {
            reply.op = "complete";
            let ask: user::Complete = decode_request(payload)?;
            let at = at(&ask.ticket)?;
            let epoch = ask.epoch;
            Ask::Write(Op::Complete { line, at, epoch })
        }
        "leave" => {
            reply.op = "leave";
            let ask: user::Leave = decode_request(payload)?;
            let at = at(&ask.ticket)?;
            Ask::Write(Op::Leave { line, at })
        }
        "jump" => {
            reply.op = "jump";
            let ask: user::Jump = decode_request(payload)?;
            let by = token_by(ask.token)?;
            let to = ask.to;
            Ask::Write(Op::Jump { line, by, to })
        }
        "info" => {
            reply.op = "info";
            let ask: user::Info = decode_request(payload)?;
            Ask::Info(ask.consistency.unwrap_or_default())
        }
        _ => return Err(unknown_op(op)),
    })
}

/// The shard that holds it, which must be the one in the subject.
fn is_home(asked: Option<u32>, home: u32, what: &str, shards: u32) -> Result<u32, ApiError> {
    match asked.is_some_and(|shard| shard != home) {
        true => Err(ApiError::bad_request(format!(
            "subject: {what} is in shard {home} of {shards}"
        ))),
        false => Ok(home),
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
        op: "unknown",
        admin: false,
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
pub fn client_id(
    named: &header::RequestId,
    reply: &ReplyTo,
    about: &str,
    body: &[u8],
) -> RequestId {
    let of: &[u8] = match reply.admin {
        true => b"admin",
        false => b"user",
    };
    RequestId {
        key: hash([
            b"client",
            named.as_str().as_bytes(),
            of,
            reply.op.as_bytes(),
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
