//! Requests and replies of users (through backends): docs/protocol/users.md.
//!
//! Requests with unknown fields are refused by `codec::decode`. Readers of replies ignore unknown fields.

use std::borrow::Cow;
use std::fmt;

use nowserving_line::{self as line, LaneName, LineName, PER_VISIT_MAX, State, Timestamp};
use serde::{Deserialize, Serialize};

pub use crate::board::{
    BoardReply, HeldBackReply, Home, InfoReply, LaneReply, UserQuota, UserSettings,
};
pub use crate::draw::DrawReply;
pub use crate::enter::Enter;
use crate::error::{ApiError, reason_word};
pub use crate::key::Key;
use crate::pass::Pass;
use crate::wire;

/// A reply lists at most this many ranges of holes; more would not fit a NATS message.
pub const HOLES_MAX: usize = 16_384;

/// `find`: the live token of a key, without entering.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Find {
    /// The backend's key of the user.
    pub key: Key,
}

/// How a request names a token: exactly one of the fields `ticket` and `key`.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenBy {
    /// From the answer to `enter`.
    Ticket(String),
    /// The key of a live token.
    Key(Key),
}

impl TokenBy {
    /// # Errors
    /// `bad_request` without exactly one of them.
    fn new(ticket: Option<String>, key: Option<Key>) -> Result<TokenBy, &'static str> {
        match (ticket, key) {
            (Some(ticket), None) => Ok(TokenBy::Ticket(ticket)),
            (None, Some(key)) => Ok(TokenBy::Key(key)),
            (None, None) => Err("ticket: required, or `key` instead of it"),
            (Some(_), Some(_)) => Err("key: not together with a `ticket`"),
        }
    }

    fn fields(self) -> (Option<String>, Option<Key>) {
        match self {
            TokenBy::Ticket(ticket) => (Some(ticket), None),
            TokenBy::Key(key) => (None, Some(key)),
        }
    }
}

/// `status`: where a token stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "StatusFields", into = "StatusFields")]
pub struct StatusRequest {
    /// Which token.
    pub token: TokenBy,
    /// The consistency of the answer; by default [`Consistency::Leader`].
    pub consistency: Option<Consistency>,
    /// Whether the reply lists [`StatusReply::holes`].
    pub holes: bool,
    /// Whether the reply has a [`StatusReply::pass`] if the token holds a seat. Only by a ticket, as a pass lets its
    /// holder in; and not with [`Consistency::Local`], as that state may be of before the token lost its seat.
    pub pass: bool,
}

impl StatusRequest {
    /// With the default consistency, without holes and pass.
    #[must_use]
    pub fn new(token: TokenBy) -> StatusRequest {
        StatusRequest {
            token,
            consistency: None,
            holes: false,
            pass: false,
        }
    }
}

/// The fields of a [`StatusRequest`].
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::schema::ticket_or_key))]
struct StatusFields {
    /// From the answer to `enter`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ticket: Option<String>,
    /// The key of a live token, instead of the ticket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<Key>,
    /// By default `leader`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    consistency: Option<Consistency>,
    /// Whether the reply lists `holes`.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "wire::flag"
    )]
    holes: bool,
    /// Whether the reply has a `pass` if the token holds a seat. Only by a ticket, and not with the consistency `local`.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "wire::flag"
    )]
    pass: bool,
}

impl TryFrom<StatusFields> for StatusRequest {
    type Error = &'static str;

    fn try_from(fields: StatusFields) -> Result<StatusRequest, &'static str> {
        let token = TokenBy::new(fields.ticket, fields.key)?;
        if fields.pass && matches!(token, TokenBy::Key(_)) {
            return Err("pass: only with a `ticket`");
        }
        if fields.pass && fields.consistency == Some(Consistency::Local) {
            return Err("pass: not with the consistency `local`");
        }
        Ok(StatusRequest {
            token,
            consistency: fields.consistency,
            holes: fields.holes,
            pass: fields.pass,
        })
    }
}

impl From<StatusRequest> for StatusFields {
    fn from(request: StatusRequest) -> StatusFields {
        let (ticket, key) = request.token.fields();
        StatusFields {
            ticket,
            key,
            consistency: request.consistency,
            holes: request.holes,
            pass: request.pass,
        }
    }
}

/// `claim`: goes into checkout with the seat that the token was given.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Claim {
    /// From the answer to `enter`.
    pub ticket: String,
    /// Whether the reply has a [`StatusReply::pass`].
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "wire::flag"
    )]
    pub pass: bool,
}

/// `renew`: keeps a claimed seat for longer.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Renew {
    /// From the answer to `enter`.
    pub ticket: String,
    /// From the answer to `claim`.
    #[serde(with = "wire::Number")]
    pub epoch: u64,
}

/// `complete`: done; the seat is free.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Complete {
    /// From the answer to `enter`.
    pub ticket: String,
    /// From the answer to `claim`; if given, it must be the current one.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NumberOption"
    )]
    pub epoch: Option<u64>,
    /// How many units of the line's quota its holder used, at most as many as its seat reserves; by default that many.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::WithinOption::<0, { PER_VISIT_MAX as u64 }>"
    )]
    pub units: Option<u32>,
}

/// `leave`: gives up the token, waiting or with a seat.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Leave {
    /// From the answer to `enter`.
    pub ticket: String,
}

/// `jump`: moves a waiting token into a lane that allows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "JumpFields", into = "JumpFields")]
pub struct Jump {
    /// Which token.
    pub token: TokenBy,
    /// The lane to move it to.
    pub to: LaneName,
}

/// The fields of a [`Jump`].
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::schema::ticket_or_key))]
struct JumpFields {
    /// From the answer to `enter`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ticket: Option<String>,
    /// The key of a live token, instead of the ticket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<Key>,
    /// The lane to move it to.
    #[serde(with = "wire::Name")]
    to: LaneName,
}

impl From<Jump> for JumpFields {
    fn from(jump: Jump) -> JumpFields {
        let (ticket, key) = jump.token.fields();
        let to = jump.to;
        JumpFields { ticket, key, to }
    }
}

impl TryFrom<JumpFields> for Jump {
    type Error = &'static str;

    fn try_from(fields: JumpFields) -> Result<Jump, &'static str> {
        Ok(Jump {
            token: TokenBy::new(fields.ticket, fields.key)?,
            to: fields.to,
        })
    }
}

/// `callback`: asks to be told when the line has room for the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Callback {
    /// The user.
    pub key: Key,
    /// The lane that it would enter; by default the line's default lane.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NameOption"
    )]
    pub lane: Option<LaneName>,
}

/// The answer to `callback`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallbackReply {
    /// The line's name.
    #[serde(with = "wire::Name")]
    pub line: LineName,
    /// Which creation of it.
    pub incarnation: u64,
    /// The line's version. The event `room` that names the key has a larger one.
    pub version: u64,
    /// The answering node's wall clock.
    pub at_ms: u64,
    /// There is room: the key can enter at once, and is not on the list.
    pub room: bool,
    /// Without room: 1 + the number of keys that are told before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
}

/// The most tickets of a [`Seen`]: with the longest names of lines they are 36 KiB.
pub const SEEN_MAX: usize = 256;

/// `seen`: marks many tokens as seen by one message, as a `status` of each does.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Seen {
    /// From the answers to `enter`: 1 to [`SEEN_MAX`].
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = SEEN_MAX)))]
    pub tickets: Vec<String>,
}

impl Seen {
    /// # Errors
    /// `bad_request` without tickets, or with more than [`SEEN_MAX`].
    pub fn check(&self) -> Result<(), ApiError> {
        match self.tickets.len() {
            1..=SEEN_MAX => Ok(()),
            more => Err(ApiError::bad_request(format!(
                "tickets: 1 to {SEEN_MAX} of them, not {more}"
            ))),
        }
    }
}

/// Without the tickets, as it may end up in a log.
impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seen({} tickets)", self.tickets.len())
    }
}

/// The answer to `seen`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SeenReply {
    /// The line's name.
    #[serde(with = "wire::Name")]
    pub line: LineName,
    /// Which creation of it.
    pub incarnation: u64,
    /// The line's version.
    pub version: u64,
    /// The answering node's wall clock.
    pub at_ms: u64,
    /// How many of the tokens are live. Those that wait are marked as seen.
    pub seen: u32,
    /// The places in the request, from 0, of tickets whose tokens are gone.
    pub gone: Vec<u32>,
    /// The same of what is no ticket of this line: also of an earlier line of its name.
    pub invalid: Vec<u32>,
    /// After how long to call it again.
    pub poll_after_ms: u64,
}

impl SeenReply {
    /// `tokens`: those of the tickets, in their order.
    pub fn new(line: &line::Line, tokens: &[Option<line::TokenBy>], now: Timestamp) -> SeenReply {
        let mut reply = SeenReply {
            line: line.name().clone(),
            incarnation: line.incarnation(),
            version: line.version(),
            at_ms: now.wall_ms,
            seen: 0,
            gone: Vec::new(),
            invalid: Vec::new(),
            poll_after_ms: line.settings().waiting_idle_timeout_ms / 3,
        };
        for (nth, token) in (0..).zip(tokens) {
            let at = token.as_ref().and_then(|by| line.token_by(by).ok());
            let at = at.map(|at| line.resolve(at));
            // Its status would cost more, and most are live.
            let is_live =
                |at: line::TokenRef| line.live_at(at.lane, at.token).is_some_and(|it| it.0 == at);
            match at {
                Some(at) if is_live(at) => reply.seen += 1,
                Some(at) if line.status(at, now.service_ms).is_ok() => reply.gone.push(nth),
                _ => reply.invalid.push(nth),
            }
        }
        reply
    }
}

/// `info`: the board, and the settings that users may see.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Info {
    /// The consistency of the answer; by default [`Consistency::Leader`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Consistency>,
}

/// The consistency of an answer.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Consistency {
    /// The leader's applied state, within its lease.
    #[default]
    Leader,
    /// Confirmed by a quorum: includes everything that was answered before the request was sent.
    Linearizable,
    /// Any node's state, which may be behind. The token does not count as seen.
    Local,
}

/// By hand: a derived reader also takes numbers and maps for names.
impl<'de> Deserialize<'de> for Consistency {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Consistency, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "leader" => Ok(Consistency::Leader),
            "linearizable" => Ok(Consistency::Linearizable),
            "local" => Ok(Consistency::Local),
            other => {
                let expected = &["leader", "linearizable", "local"];
                Err(serde::de::Error::unknown_variant(other, expected))
            }
        }
    }
}

/// The answer to every operation on a token: its status.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StatusReply {
    /// The line's name.
    #[serde(with = "wire::Name")]
    pub line: LineName,
    /// Which creation of it.
    pub incarnation: u64,
    /// The lane's name.
    #[serde(with = "wire::Name")]
    pub lane: LaneName,
    /// The number in the lane.
    pub token: u64,
    /// The token's state.
    #[serde(with = "wire::StateWord")]
    pub state: State,
    /// While waiting: 1 + the number of tokens waiting before it in its lane, at most the line's
    /// `position_cap`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Whether `position` is the cap and the true position larger.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub position_capped: bool,
    /// While waiting: `position - 1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<u64>,
    /// While waiting: 1 + the number of tokens of all lanes that would be admitted before it, as things are. Missing if
    /// that is more than the line's `position_cap`, and in replies of older releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u64>,
    /// While waiting: the median of the time until it is admitted, in milliseconds;
    /// null while nothing is known.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "wire::null_or"
    )]
    pub eta_ms: Option<Option<u64>>,
    /// As `eta_ms`, for nine of ten cases.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "wire::null_or"
    )]
    pub eta_p90_ms: Option<Option<u64>>,
    /// With a known `eta_ms`: `expected` if that is mostly the operator's guess (`checkout_expected_ms`), or `measured`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_from: Option<Cow<'static, str>>,
    /// While waiting: the line's phase, as on a board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Cow<'static, str>>,
    /// While waiting: why the line does not admit its next token now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_back_by: Option<HeldBackReply>,
    /// Whether it waits among the first `call_ahead` of its lane, so that its holder should prepare.
    #[serde(default)]
    pub call_ahead: bool,
    /// The lane's pointer: no token up to this number waits.
    pub admitted_through: u64,
    /// The fencing number of the claim, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// While it holds a seat: when it loses the seat, on the clock of `at_ms`: the sum of `at_ms`
    /// and `expires_in_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
    /// While it holds a seat: in how many milliseconds it loses the seat; 0: at any moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
    /// While it holds a seat of a line with a quota: how many units of it the seat reserves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<u32>,
    /// Once gone: why, or `forgotten`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// While live: when it entered, on the wall clock of the leader at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entered_at_ms: Option<u64>,
    /// In how many milliseconds the client should ask again.
    pub poll_after_ms: u64,
    /// The line's version.
    pub version: u64,
    /// When this was answered, on the wall clock of the answering node, in milliseconds since 1970.
    pub at_ms: u64,
    /// The ticket: with `enter` and `find`, whose caller may have none, and if the token has another
    /// number than the one asked about, because it was moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<String>,
    /// If requested, while it holds a seat: a signed pass, which others can check without asking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<Pass>,
    /// With `pass`: in how many milliseconds it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass_expires_in_ms: Option<u64>,
    /// If requested, while waiting: the ranges of numbers after `admitted_through` and before
    /// `token` that no longer wait. Missing if there are more than [`HOLES_MAX`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holes: Option<Vec<[u64; 2]>>,
}

impl StatusReply {
    /// The status of a token now. Its deadline runs on the service clock; the reply has the time
    /// that remains, and the wall clock plus that time.
    pub fn new(status: &line::Status, now: Timestamp) -> StatusReply {
        // Null, not missing: it waits, and nothing is known.
        let waits = status.state == State::Waiting;
        StatusReply {
            line: status.line.clone(),
            incarnation: status.at.incarnation,
            lane: status.lane.clone(),
            token: status.at.token,
            state: status.state,
            position: status.position,
            position_capped: status.position_capped,
            ahead: status.ahead,
            turn: status.turn,
            eta_ms: waits.then_some(status.eta_ms),
            eta_p90_ms: waits.then_some(status.eta_p90_ms),
            eta_from: status.eta_from.map(|from| from.as_str().into()),
            phase: status.phase.map(|phase| phase.as_str().into()),
            held_back_by: status.held_back_by.map(|by| HeldBackReply::of(by, now)),
            call_ahead: status.call_ahead,
            admitted_through: status.admitted_through,
            epoch: status.epoch,
            expires_at_ms: status.deadline_ms.map(|ms| now.wall_at_ms(ms)),
            expires_in_ms: status.deadline_ms.map(|ms| now.until_ms(ms)),
            units: status.units,
            reason: status.reason.map(|reason| reason_word(reason).to_owned()),
            entered_at_ms: status.entered_at_ms,
            poll_after_ms: status.poll_after_ms,
            version: status.version,
            at_ms: now.wall_ms,
            ticket: None,
            pass: None,
            pass_expires_in_ms: None,
            holes: None,
        }
    }
}
