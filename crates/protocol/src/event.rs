//! Events as they are published: section 6 of the contract.
//!
//! They are at most once from one leader and may come again from the next: drop
//! what is not newer. `prev_version` is the version last published on that kind
//! of event, so that a gap shows.

use nowserving_line::{Event, LaneName, LineChange, LineName, TokenChange};
use serde::{Deserialize, Serialize};

use crate::user::BoardReply;
use crate::wire;

/// A board, when it changed. Each lane lists the waiting tokens gone since
/// `prev_version` in [`crate::user::LaneReply::holes`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoardEvent {
    /// The board; its fields stand beside `prev_version`.
    #[serde(flatten)]
    pub board: BoardReply,
    /// The version of the board published before this one; 0: none that this leader knows of.
    pub prev_version: u64,
}

/// Something happened to a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenEvent {
    /// The line.
    #[serde(with = "wire::name")]
    pub line: LineName,
    /// Which creation of it.
    pub incarnation: u64,
    /// The line's version right after this.
    pub version: u64,
    /// The version of the token event of the line published before this one.
    pub prev_version: u64,
    /// The service clock of the line.
    pub at_ms: u64,
    /// `admitted`, `claimed` or `gone`; others may come.
    pub event: String,
    /// The lane.
    #[serde(with = "wire::name")]
    pub lane: LaneName,
    /// The number.
    pub token: u64,
    /// With `gone`: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Something happened to a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineEvent {
    /// The line.
    #[serde(with = "wire::name")]
    pub line: LineName,
    /// Which creation of it.
    pub incarnation: u64,
    /// The line's version right after this.
    pub version: u64,
    /// The version of the line event of the line published before this one.
    pub prev_version: u64,
    /// The service clock of the line.
    pub at_ms: u64,
    /// `created`, `configured` or `deleted`; others may come.
    pub event: String,
}

impl TokenEvent {
    /// What is published of a change; `None` if it is not one of a token.
    pub fn new(event: &Event, prev_version: u64) -> Option<TokenEvent> {
        let Event::Token {
            line,
            incarnation,
            version,
            at_ms,
            lane,
            token,
            what,
            ..
        } = event
        else {
            return None;
        };
        let (word, reason) = match what {
            TokenChange::Admitted => ("admitted", None),
            TokenChange::Claimed => ("claimed", None),
            TokenChange::Gone { reason, .. } => ("gone", Some(reason.as_str().to_owned())),
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
            reason,
        })
    }
}

impl LineEvent {
    /// What is published of a change; `None` if it is not one of a line.
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
        let word = match what {
            LineChange::Created => "created",
            LineChange::Configured => "configured",
            LineChange::Deleted => "deleted",
        };
        Some(LineEvent {
            line: line.clone(),
            incarnation: *incarnation,
            version: *version,
            prev_version,
            at_ms: *at_ms,
            event: word.to_owned(),
        })
    }
}
