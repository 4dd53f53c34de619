//! Requests on plain subjects that reach a node which does not lead: passed on to the leader, and
//! answered by the deadline whatever happens.
//!
//! The reply subject is not passed on: nats-server says "no responders" only to the publisher of
//! the request itself, so the leader's answer comes here and goes back from here.

use std::sync::Arc;
use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::{Client, HeaderMap, Message, Request};
use nowserving_protocol::codec::decode;
use nowserving_protocol::error::{ApiError, Code, ErrorReply};
use nowserving_protocol::subject::{ERROR_CODE_HEADER, TIMEOUT_HEADER};
use tokio::sync::Semaphore;

use super::parse::with_key;
use super::respond::Responder;
use crate::clock::monotonic_us;
use crate::identity::random_u64;
use crate::request::{Plain, ReplyTo};
use nowserving_engine::refusals::{outcome_unknown, overloaded, unavailable};
use nowserving_shard::clock::Micros;

/// Requests under way to leaders at most; more are refused as overloaded.
const UNDER_WAY_MAX: usize = 4_096;
/// Between two tries while nobody leads.
const PAUSE: Duration = Duration::from_millis(40);
/// A try that lasts longer is made anew: the leader may have died with it. Everything that is
/// passed on may be repeated (an `enter` has a key by then).
const TRY_MAX: Duration = Duration::from_millis(700);

/// Passes requests on.
#[derive(Debug, Clone)]
pub struct Forwarder {
    client: Client,
    responder: Responder,
    room: Arc<Semaphore>,
}

/// How one try ended.
enum Try {
    Answered(Message),
    /// For sure nothing happened.
    NotTaken,
    /// It was sent, and no answer came.
    Unknown,
}

impl Forwarder {
    /// Over the service connection.
    #[must_use]
    pub fn new(client: Client, responder: Responder) -> Self {
        Forwarder {
            client,
            responder,
            room: Arc::new(Semaphore::new(UNDER_WAY_MAX)),
        }
    }

    /// Answers a request that another node may have taken, and that can't be repeated, when its
    /// deadline comes: earlier would be before whoever knows better.
    pub fn give_up_in_time(&self, reply: ReplyTo, deadline: Micros) {
        let forwarder = self.clone();
        tokio::spawn(async move {
            if let Ok(_room) = forwarder.room.try_acquire() {
                let left = deadline.saturating_sub(monotonic_us());
                tokio::time::sleep(Duration::from_micros(left)).await;
            }
            forwarder.responder.refuse(&reply, outcome_unknown()).await;
        });
    }

    /// Waits until nothing is under way.
    pub async fn idle(&self) {
        // Fails only on a closed semaphore; this one never is.
        let _ = self.room.acquire_many(UNDER_WAY_MAX as u32).await;
    }

    /// Passes a request on in a task of its own.
    pub fn start(&self, reply: ReplyTo, deadline: Micros) {
        let forwarder = self.clone();
        tokio::spawn(async move {
            let result = match forwarder.room.try_acquire() {
                Ok(_room) => forwarder.run(&reply, deadline).await,
                Err(_) if reply.doubtful && writes(reply.op) => Err(outcome_unknown()),
                Err(_) => Err(overloaded()),
            };
            match result {
                Ok(answer) => {
                    let code = if answer.headers.is_some() {
                        "error"
                    } else {
                        "ok"
                    };
                    forwarder.responder.stats.count_forwarded(reply.op, code);
                    forwarder
                        .responder
                        .send(reply.subject.as_ref(), answer.headers, answer.payload)
                        .await;
                }
                Err(error) => forwarder.responder.refuse(&reply, error).await,
            }
        });
    }

    async fn run(&self, reply: &ReplyTo, deadline: Micros) -> Result<Message, ApiError> {
        let Some(plain) = &reply.plain else {
            return Err(ApiError::not_leader(None));
        };
        let mut plain = Plain::clone(plain);
        // One that another may have taken has a key: else it would not be passed on.
        if reply.op == "enter" && !reply.doubtful {
            let random = random_u64().map_err(|_| unavailable())?;
            plain.payload = with_key(&plain.payload, &format!("auto-{random:016x}"))?;
        }
        let writes = writes(reply.op);
        let repeatable = is_repeatable(reply.op);
        let mut maybe_done = false;
        loop {
            let left = Duration::from_micros(deadline.saturating_sub(monotonic_us()));
            if left.is_zero() || (maybe_done && !repeatable) {
                return Err(if (maybe_done || reply.doubtful) && writes {
                    outcome_unknown()
                } else {
                    unavailable()
                });
            }
            match self
                .try_once(&plain, if repeatable { left.min(TRY_MAX) } else { left })
                .await
            {
                // That is the truth about the last try only: an earlier one may sit in the log.
                Try::Answered(message) if maybe_done && writes && says_no_room(&message) => {
                    tokio::time::sleep(PAUSE.min(left)).await;
                }
                // The one that another may have taken is not ours to try again; it may have got in.
                Try::Answered(message) if reply.doubtful && writes && says_no_room(&message) => {
                    tokio::time::sleep(left).await;
                }
                Try::Answered(message) => return Ok(message),
                Try::Unknown => maybe_done = true,
                Try::NotTaken => tokio::time::sleep(PAUSE.min(left)).await,
            }
        }
    }

    async fn try_once(&self, plain: &Plain, timeout: Duration) -> Try {
        // The leader takes its deadline from this header, and so speaks before we give up.
        let mut headers = HeaderMap::new();
        headers.insert(
            TIMEOUT_HEADER,
            timeout.as_millis().max(1).to_string().as_str(),
        );
        let request = Request::new()
            .payload(plain.payload.clone())
            .headers(headers)
            .timeout(Some(timeout));
        let sent = self
            .client
            .send_request(plain.leader_subject.clone(), request)
            .await;
        match sent {
            Ok(message) => match error_code(&message) {
                Some(Code::NotLeader | Code::Unavailable) => Try::NotTaken,
                // The leader could not tell by the deadline of this try; ours may be later.
                Some(Code::OutcomeUnknown) => Try::Unknown,
                _ => Try::Answered(message),
            },
            Err(error) if error.kind() == RequestErrorKind::NoResponders => Try::NotTaken,
            Err(error) if error.kind() == RequestErrorKind::TimedOut => Try::Unknown,
            Err(_) => {
                tokio::time::sleep(PAUSE.min(timeout)).await;
                Try::Unknown
            }
        }
    }
}

/// Whether a request may reach the leader twice. An operator's change could refuse its own
/// repetition (`line_exists`).
pub fn is_repeatable(op: &str) -> bool {
    !matches!(op, "create" | "configure" | "delete")
}

/// Whether a request changes anything.
fn writes(op: &str) -> bool {
    !matches!(op, "status" | "find" | "info" | "show" | "journal")
}

/// Whether an answer refuses for want of room, without looking at the log.
fn says_no_room(message: &Message) -> bool {
    matches!(
        error_code(message),
        Some(Code::Overloaded | Code::LineFull | Code::SoldOut)
    )
}

/// The code of an answer that is an error.
fn error_code(message: &Message) -> Option<Code> {
    message.headers.as_ref()?.get(ERROR_CODE_HEADER)?;
    let reply: ErrorReply = decode(&message.payload).ok()?;
    Some(reply.error.code)
}
