//! Events, for leaders to publish.

use std::sync::Arc;

use nowserving_codec::Codec;

use crate::{
    BadField, EtaOutcome, Hash, LaneName, LineName, Phase, Reason, ShadowOutcome, Token, TokenRef,
};

/// A change that subscribers may want to know. Every event has a `version` of its own: each transition increments
/// the line's version. (Some changes increment it without an event.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Token {
        line: LineName,
        incarnation: u64,
        /// The line's version right after this.
        version: u64,
        /// The wall clock of the leader that proposed the log entry.
        at_ms: u64,
        lane: LaneName,
        /// The lane's index in the line's table.
        lane_id: u8,
        token: Token,
        /// Its key, if the line's `event_key` is set.
        key: Option<Arc<[u8]>>,
        what: TokenChange,
    },
    Line {
        line: LineName,
        incarnation: u64,
        /// The line's version right after this.
        version: u64,
        /// The wall clock of the leader that proposed the log entry.
        at_ms: u64,
        what: LineChange,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenChange {
    /// It was issued to a newcomer, who may be admitted at once. Not for the new number of a moved token.
    Entered {
        /// 1 + the number of tokens that waited before it in its lane; `None` while a draw is awaited or goes on.
        position: Option<u64>,
    },
    Admitted {
        by: AdmittedBy,
        /// How good the ETA was that it was given on entering; `None` if there was none, or it was not its turn. For
        /// metrics.
        eta: Option<EtaOutcome>,
        /// While the gate is `shadow`. For metrics.
        shadow: Option<ShadowOutcome>,
    },
    Claimed {
        /// The fencing number that the claim was given.
        epoch: u64,
    },
    Gone {
        reason: Reason,
        /// It was waiting, so it leaves a hole.
        was_waiting: bool,
        /// If it completed: how many units of the quota it used.
        units: Option<u32>,
    },
    /// It waited and was moved: it leaves a hole and has become another token.
    Moved {
        to_lane: LaneName,
        to: TokenRef,
        by: MovedBy,
    },
    /// It has come among the first `call_ahead` waiting tokens of its lane, or its ETA within `call_ahead_ms`: its
    /// holder should prepare. Once for each number, so again after a move.
    CallAhead,
    /// Its place has come to one of the line's `position_events`, or past it. Not to those at or above which it
    /// entered.
    Position {
        /// 1 + the number of tokens that wait before it in its lane.
        position: u64,
    },
}

/// How a token came to be admitted.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmittedBy {
    /// It was its turn, of all lanes.
    Turn,
    /// It was the first of its lane, and an operator called that lane alone.
    Call,
    /// An operator took it out of order: it leaves a hole if others wait before it.
    Take,
}

#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub enum MovedBy {
    Operator,
    /// Its holder: [`crate::Op::Jump`].
    Jump,
    /// The draw at the opening of the line, within its lane.
    Draw,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineChange {
    Created,
    /// Settings other than the phase changed.
    Configured,
    Phase {
        phase: Phase,
    },
    /// A change of the schedule could not be applied when its time came, and was dropped.
    ScheduleFailed {
        scheduled_at_ms: u64,
        wrong: BadField,
    },
    /// There is room in this lane, and these keys asked to be told so. It is not kept for them.
    Room {
        lane: LaneName,
        /// At most [`crate::ROOM_KEYS_MAX`], in the order in which they asked.
        keys: Vec<Arc<[u8]>>,
    },
    /// A backend has told another capacity, took that back, or fell silent.
    Seats {
        /// How many tokens may hold seats now.
        seats: u32,
        /// It has been silent for too long.
        silent: bool,
    },
    /// What counts against the quota starts at 0 again.
    QuotaRenewed,
    /// The draw at the opening has its seed, which hashes to this.
    DrawSealed {
        commitment: Hash,
    },
    /// The line opens, and all who wait in it are numbered anew.
    DrawBegun {
        seed: Hash,
        /// Empty without one.
        beacon: String,
        took_part: u64,
    },
    /// All of them are numbered anew: the line admits.
    Drawn {
        /// Of all who took part.
        digest: Hash,
    },
    Deleted,
    /// It was put back from a backup. Pointers and positions may have fallen.
    Restored,
}

impl Event {
    pub fn line(&self) -> &LineName {
        match self {
            Event::Token { line, .. } | Event::Line { line, .. } => line,
        }
    }

    pub fn version(&self) -> u64 {
        match self {
            Event::Token { version, .. } | Event::Line { version, .. } => *version,
        }
    }
}
