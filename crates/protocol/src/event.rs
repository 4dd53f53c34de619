//! Events as they are published: docs/protocol/events.md.
//!
//! One leader publishes an event at most once; the next leader may publish it again,
//! so watchers drop what is not newer. `prev_version` is the version of the previous
//! event of that kind, so that a watcher sees gaps.

use data_encoding::HEXLOWER;
use nowserving_line::{AdmittedBy, Event, LaneName, LineChange, LineName, MovedBy, TokenChange};
use serde::{Deserialize, Serialize};

use crate::error::ApiError;
use crate::key::{self, Key};
use crate::user::BoardReply;
use crate::wire;

/// A board that has changed. Each lane lists the waiting tokens gone since
/// `prev_version` in [`crate::user::LaneReply::holes`]; with `whole` all numbers that do not wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BoardEvent {
    /// The board; its fields are beside `prev_version`.
    #[serde(flatten)]
    pub board: BoardReply,
    /// The version of the board published before this one; 0: this leader knows of none.
    pub prev_version: u64,
    /// The holes are all that there are between `admitted_through` and `next_token`: no earlier board is needed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
}

/// A change of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenEvent {
    /// The line's name.
    #[serde(with = "wire::Name")]
    pub line: LineName,
    /// Which creation of it.
    pub incarnation: u64,
    /// The line's version right after this.
    pub version: u64,
    /// The version of the token event of the line published before this one.
    pub prev_version: u64,
    /// When, on the leader's wall clock.
    pub at_ms: u64,
    /// `entered`, `admitted`, `claimed`, `gone`, `moved`, `call_ahead` or `position`; later releases may have more.
    pub event: String,
    /// The token's lane; with `moved`, the lane that it left.
    #[serde(with = "wire::Name")]
    pub lane: LaneName,
    /// The token's number in `lane`.
    pub token: u64,
    /// The token's key, if it has one and the line's `event_key` is set.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "key::ShownOption"
    )]
    pub key: Option<Key>,
    /// With `entered` and `position`: 1 + the number of tokens that waited before it in its lane. Missing with `entered` while
    /// a draw is awaited or goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// With `claimed`: the fencing number of the claim. Missing in events of older releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// With `gone`: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// With `gone` and the reason `completed`: how many units of the quota it used. Missing in
    /// events of older releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<u32>,
    /// With `moved`: the lane it is in now.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NameOption"
    )]
    pub to_lane: Option<LaneName>,
    /// With `moved`: the number it has there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_token: Option<u64>,
    /// With `moved`: `jump`, if its holder moved it; `draw`, if the draw at the opening did. With `admitted`: `call`, if an operator called its lane alone;
    /// `take`, if an operator took it out of order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// A change of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LineEvent {
    /// The line's name.
    #[serde(with = "wire::Name")]
    pub line: LineName,
    /// Which creation of it.
    pub incarnation: u64,
    /// The line's version right after this.
    pub version: u64,
    /// The version of the line event of the line published before this one.
    pub prev_version: u64,
    /// When, on the leader's wall clock.
    pub at_ms: u64,
    /// `created`, `configured` (settings other than the phase), `phase`, `schedule_failed`, `room`, `seats`, `quota_renewed`,
    /// `draw_sealed`, `draw_begun`, `drawn` or `deleted`; later releases may have more.
    pub event: String,
    /// With `phase`: the phase it has now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// With `room`: the lane that has room.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NameOption"
    )]
    pub lane: Option<LaneName>,
    /// With `room`: the keys that asked to be told so, in the order in which they asked.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "key::from_event"
    )]
    pub keys: Option<Vec<Key>>,
    /// With `seats`: how many tokens may hold seats now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seats: Option<u32>,
    /// With `seats`: the backend that told its capacity has been silent for too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent: Option<bool>,
    /// With `draw_sealed`: the SHA-256 of the seed, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commitment: Option<String>,
    /// With `draw_begun`: the seed, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
    /// With `draw_begun`: the setting `draw_beacon`, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beacon: Option<String>,
    /// With `draw_begun`: how many waited then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_part: Option<u64>,
    /// With `drawn`: the digest of all who took part, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// With `schedule_failed`: the time of the change, which was not applied and is dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_at_ms: Option<u64>,
    /// With `schedule_failed`: the code with which `configure` would have been refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// With `schedule_failed`: why, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl TokenEvent {
    /// The event for a change; `None` if the change is not one of a token.
    pub fn new(event: &Event, prev_version: u64) -> Option<TokenEvent> {
        let Event::Token {
            line,
            incarnation,
            version,
            at_ms,
            lane,
            token,
            key,
            what,
            ..
        } = event
        else {
            return None;
        };
        let (word, reason, to) = match what {
            TokenChange::Entered { .. } => ("entered", None, None),
            TokenChange::Admitted { .. } => ("admitted", None, None),
            TokenChange::Claimed { .. } => ("claimed", None, None),
            TokenChange::Gone { reason, .. } => ("gone", Some(*reason), None),
            TokenChange::Moved { to_lane, to, .. } => ("moved", None, Some((to_lane, to.token))),
            TokenChange::CallAhead => ("call_ahead", None, None),
            TokenChange::Position { .. } => ("position", None, None),
        };
        let position = match what {
            TokenChange::Entered { position } => *position,
            TokenChange::Position { position } => Some(*position),
            _ => None,
        };
        Some(TokenEvent {
            line: line.clone(),
            incarnation: *incarnation,
            version: *version,
            prev_version,
            at_ms: *at_ms,
            event: word.to_owned(),
            lane: lane.clone(),
            token: *token,
            // Never refused: the line has checked its length.
            key: key.as_deref().and_then(|key| Key::new(key).ok()),
            position,
            epoch: match what {
                TokenChange::Claimed { epoch } => Some(*epoch),
                _ => None,
            },
            reason: reason.map(|reason| reason.as_str().to_owned()),
            units: match what {
                TokenChange::Gone { units, .. } => *units,
                _ => None,
            },
            to_lane: to.map(|(lane, _)| lane.clone()),
            to_token: to.map(|(_, token)| token),
            by: match what {
                TokenChange::Moved { by, .. } => moved_by(*by),
                TokenChange::Admitted { by, .. } => admitted_by(*by),
                _ => None,
            },
        })
    }
}

/// The contract's word for it; none if it was the token's turn.
pub(crate) fn admitted_by(by: AdmittedBy) -> Option<String> {
    let word = match by {
        AdmittedBy::Turn => return None,
        AdmittedBy::Call => "call",
        AdmittedBy::Take => "take",
    };
    Some(word.to_owned())
}

/// The contract's word for it; none for an operator.
pub(crate) fn moved_by(by: MovedBy) -> Option<String> {
    let word = match by {
        MovedBy::Operator => return None,
        MovedBy::Jump => "jump",
        MovedBy::Draw => "draw",
    };
    Some(word.to_owned())
}

impl LineEvent {
    /// The event for a change; `None` if the change is not one of a line.
    pub fn new(event: &Event, prev_version: u64) -> Option<LineEvent> {
        let Event::Line {
            line,
            incarnation,
            version,
            at_ms,
            what,
        } = event
        else {
            return None;
        };
        let mut made = LineEvent {
            line: line.clone(),
            incarnation: *incarnation,
            version: *version,
            prev_version,
            at_ms: *at_ms,
            event: String::new(),
            phase: None,
            lane: None,
            keys: None,
            seats: None,
            silent: None,
            commitment: None,
            seed: None,
            beacon: None,
            took_part: None,
            digest: None,
            scheduled_at_ms: None,
            code: None,
            message: None,
        };
        let word = match what {
            LineChange::Created => "created",
            LineChange::Configured => "configured",
            LineChange::Phase { phase } => {
                made.phase = Some(phase.as_str().to_owned());
                "phase"
            }
            LineChange::ScheduleFailed {
                scheduled_at_ms,
                wrong,
            } => {
                let refusal = ApiError::from(wrong.clone());
                made.scheduled_at_ms = Some(*scheduled_at_ms);
                made.code = Some(refusal.code.as_str().to_owned());
                made.message = Some(refusal.message);
                "schedule_failed"
            }
            LineChange::Room { lane, keys } => {
                // They were checked when they asked.
                let keys = keys.iter().filter_map(|key| Key::new(&**key).ok());
                made.lane = Some(lane.clone());
                made.keys = Some(keys.collect());
                "room"
            }
            LineChange::Seats { seats, silent } => {
                made.seats = Some(*seats);
                made.silent = Some(*silent);
                "seats"
            }
            LineChange::QuotaRenewed => "quota_renewed",
            LineChange::DrawSealed { commitment } => {
                made.commitment = Some(HEXLOWER.encode(commitment));
                "draw_sealed"
            }
            LineChange::DrawBegun {
                seed,
                beacon,
                took_part,
            } => {
                made.seed = Some(HEXLOWER.encode(seed));
                made.beacon = Some(beacon.clone()).filter(|it| !it.is_empty());
                made.took_part = Some(*took_part);
                "draw_begun"
            }
            LineChange::Drawn { digest } => {
                made.digest = Some(HEXLOWER.encode(digest));
                "drawn"
            }
            LineChange::Deleted => "deleted",
            LineChange::Restored => "restored",
        };
        made.event = word.to_owned();
        Some(made)
    }
}
