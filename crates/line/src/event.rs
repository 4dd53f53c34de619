//! What happened, for leaders to publish.

use crate::{LaneName, LineName, Phase, Reason, Token, TokenRef};

/// One change that somebody may want to hear of. Every event has a `version` of its own: each
/// transition moves the line's version by one (and some changes move it without an event).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Something happened to a token.
    Token {
        /// The line.
        line: LineName,
        /// Which creation of it.
        incarnation: u64,
        /// The line's version right after this.
        version: u64,
        /// The wall clock of the leader whose log entry did it.
        at_ms: u64,
        /// The lane.
        lane: LaneName,
        /// The lane's place in the line's table.
        lane_id: u8,
        /// The number.
        token: Token,
        /// What happened.
        what: TokenChange,
    },
    /// Something happened to a line.
    Line {
        /// The line.
        line: LineName,
        /// Which creation of it.
        incarnation: u64,
        /// The line's version right after this.
        version: u64,
        /// The wall clock of the leader whose log entry did it.
        at_ms: u64,
        /// What happened.
        what: LineChange,
    },
}

/// What happened to a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenChange {
    /// It was given a seat.
    Admitted,
    /// It claimed its seat.
    Claimed,
    /// It is gone.
    Gone {
        /// Why.
        reason: Reason,
        /// It was waiting until then, and so left a hole among those who wait.
        was_waiting: bool,
    },
    /// It waited and was moved: it is gone, left a hole, and goes on as another.
    Moved {
        /// The lane it is in now.
        to_lane: LaneName,
        /// The token it is now.
        to: TokenRef,
    },
    /// It waits among the first `call_ahead` of its lane: its holder should prepare. Once a number, so
    /// again after a move.
    CallAhead,
}

/// What happened to a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineChange {
    /// It was made.
    Created,
    /// Its settings changed, other than the phase.
    Configured,
    /// Its phase changed.
    Phase {
        /// To this one.
        phase: Phase,
    },
    /// It is no more.
    Deleted,
}

impl Event {
    /// The line it is about.
    pub fn line(&self) -> &LineName {
        match self {
            Event::Token { line, .. } | Event::Line { line, .. } => line,
        }
    }

    /// The line's version right after it.
    pub fn version(&self) -> u64 {
        match self {
            Event::Token { version, .. } | Event::Line { version, .. } => *version,
        }
    }
}
