//! What can be asked of the state machine, and what it answers.

use crate::{BadField, LaneName, LineName, Reason, Settings, SettingsPatch, State};
use crate::{Token, TokenRef};

/// A moment on both clocks. What is decided goes by the service clock alone; the wall clock is kept to be shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timestamp {
    /// The shard's service clock, in milliseconds.
    pub service_ms: u64,
    /// A leader's wall clock, in milliseconds since 1970. It may be wrong and may jump, back too.
    pub wall_ms: u64,
}

impl Timestamp {
    /// How long it is from here until a time of the service clock: 0 if that has come.
    #[must_use]
    pub fn until_ms(self, service_ms: u64) -> u64 {
        service_ms.saturating_sub(self.service_ms)
    }

    /// What the wall clock shows then, if neither clock stands still or jumps.
    #[must_use]
    pub fn wall_at_ms(self, service_ms: u64) -> u64 {
        self.wall_ms.saturating_add(self.until_ms(service_ms))
    }
}

/// Where in the log an operation stands, and the leader's reading of the clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The index of the log entry.
    pub index: u64,
    /// The operation's place in its entry, below [`crate::OPS_PER_ENTRY_MAX`].
    pub op_no: u32,
    /// The service clock. A reading below an earlier one counts as that one.
    pub now_ms: u64,
    /// The leader's wall clock, in milliseconds since 1970: kept to be shown, nothing is decided by
    /// it. More than [`crate::NUMBER_MAX`] counts as that.
    pub wall_ms: u64,
}

/// One operation, as it stands in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Makes a line. Its incarnation is `index * 4096 + op_no`.
    Create {
        /// The line.
        line: LineName,
        /// All its settings.
        settings: Settings,
    },
    /// Changes settings; who can be admitted under the new ones is, at once (or by a job). Phase
    /// `closed` ends everybody; until that is done this answers [`Refused::LineClosed`], too, and
    /// then can open the line again. A lane with live tokens can't be removed.
    Configure {
        /// The line.
        line: LineName,
        /// What changes.
        patch: Box<SettingsPatch>,
        /// Only if the settings have not changed since the line had this version. Other changes
        /// (somebody entered) don't count: on a busy line no condition would ever hold.
        if_version: Option<u64>,
        /// Only if the line has this incarnation.
        incarnation: Option<u64>,
    },
    /// Takes the line away. With live tokens it needs `force`, or phase `closed`; they go with
    /// [`Reason::Closed`].
    Delete {
        /// The line.
        line: LineName,
        /// Also if somebody is in it.
        force: bool,
        /// Only if the line has this incarnation.
        incarnation: Option<u64>,
    },
    /// Takes a number, or answers the live token that the key has already.
    Enter {
        /// The line.
        line: LineName,
        /// Who it is: 1 to [`crate::KEY_BYTES_MAX`] bytes.
        key: Option<Box<[u8]>>,
        /// Which lane; by default [`Settings::effective_default_lane`].
        lane: Option<LaneName>,
    },
    /// Claims the seat that an admitted token holds.
    Claim {
        /// The line.
        line: LineName,
        /// The token.
        at: TokenRef,
    },
    /// Keeps a claimed seat for longer.
    Renew {
        /// The line.
        line: LineName,
        /// The token.
        at: TokenRef,
        /// What the claim was answered.
        epoch: u64,
    },
    /// The holder of a claimed seat is done.
    Complete {
        /// The line.
        line: LineName,
        /// The token.
        at: TokenRef,
        /// If given: what the claim was answered.
        epoch: Option<u64>,
    },
    /// The holder gives up, whatever it has.
    Leave {
        /// The line.
        line: LineName,
        /// The token.
        at: TokenRef,
    },
    /// Puts a waiting token into another lane: there it gets the next number, and goes on as that.
    /// Asked again, however late, it moves nothing and answers what the token is. At most [`crate::MOVES_MAX`] times for a token.
    Move {
        /// The line.
        line: LineName,
        /// The lane it is in, also one that the line has no more.
        lane: LaneName,
        /// The number.
        token: Token,
        /// The lane it shall be in.
        to: LaneName,
    },
    /// Ends tokens whose clock ran out. Each is checked against what the proposer saw and against
    /// the service clock, and skipped if it moved on. At most [`crate::RECYCLE_MAX`], and no more
    /// than is left of the entry's [`crate::WORK_MAX`]; the rest is skipped.
    Recycle {
        /// The line.
        line: LineName,
        /// Its incarnation; another one: nothing happens.
        incarnation: u64,
        /// Whom.
        tokens: Vec<RecycleItem>,
    },
    /// Notes when waiting tokens `(lane, token, seen_ms)` were last heard from: the larger of this
    /// and what is there. At most [`crate::TOUCH_MAX`].
    Touch {
        /// The line.
        line: LineName,
        /// Its incarnation; another one: nothing happens.
        incarnation: u64,
        /// Who was heard when.
        tokens: Vec<(u8, Token, u64)>,
    },
    /// Goes on with what is to be done on the line now, see [`crate::Lines::jobs`].
    RunBackground {
        /// The line.
        line: LineName,
        /// Its incarnation; another one: nothing happens.
        incarnation: u64,
    },
}

impl Op {
    /// The line it is about.
    pub fn line(&self) -> &LineName {
        match self {
            Op::Create { line, .. }
            | Op::Configure { line, .. }
            | Op::Delete { line, .. }
            | Op::Enter { line, .. }
            | Op::Claim { line, .. }
            | Op::Renew { line, .. }
            | Op::Complete { line, .. }
            | Op::Leave { line, .. }
            | Op::Move { line, .. }
            | Op::Recycle { line, .. }
            | Op::Touch { line, .. }
            | Op::RunBackground { line, .. } => line,
        }
    }
}

/// A token to be recycled, as the proposer saw it in the applied state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecycleItem {
    /// The lane's place in the line's table.
    pub lane: u8,
    /// The number.
    pub token: Token,
    /// The state it was in.
    pub state: State,
    /// [`crate::Live::clock_ms`]: `seen_ms` if waiting, else `deadline_ms`.
    pub clock_ms: u64,
}

/// The answer to an operation. It names what the operation was about and leaves the details to
/// [`crate::Line::status`]: every replica applies an operation, and only the leader has somebody to
/// answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Of `Enter`, `Claim`, `Renew`, `Complete`, `Leave`, `Move`: the token as it is called now. That
    /// is another one than the operation named if it was moved: its holder needs a new ticket then.
    Token(TokenRef),
    /// Of `Create` and `Configure`: look the line up for the rest.
    Line {
        /// Which creation of the line.
        incarnation: u64,
        /// Its version now.
        version: u64,
    },
    /// Of `Delete`: how many live tokens are still to be ended; 0: the line is no more.
    Deleted {
        /// Live tokens left.
        remaining: u64,
    },
    /// Of `Recycle`: how many it ended.
    Recycled {
        /// Tokens ended.
        count: u64,
    },
    /// Of the rest.
    Nothing,
}

/// Why an operation did nothing. The state is as it was, but for the service clock.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such line.
    #[error("there is no such line")]
    LineNotFound,
    /// There is such a line already.
    #[error("there is such a line already")]
    LineExists,
    /// Somebody is in the line; deleting it needs `force`.
    #[error("the line has live tokens: close it (phase closed) or delete it with force")]
    LineNotEmpty,
    /// The line is closed, or being deleted.
    #[error("the line is closed")]
    LineClosed,
    /// Of `Enter`: the line is in phase [`crate::Phase::Draining`].
    #[error("the line takes no new numbers (draining)")]
    LineDraining,
    /// No number can be had now.
    #[error("the line is full")]
    LineFull,
    /// No number can be had in this lane now, as so many wait in it; in others maybe.
    #[error("the lane {lane} is full: its queue_limit is {limit}")]
    LaneFull {
        /// The lane.
        lane: LaneName,
        /// How many it may have waiting.
        limit: u32,
    },
    /// No number can be had: as many have entered as the quota and its standby share allow.
    #[error("the line is sold out")]
    SoldOut,
    /// Of lookups by key: no live token has it. Of `Move`: the number was never issued.
    #[error("there is no such token")]
    TokenNotFound,
    /// Another incarnation, an unknown lane, or a number that was never issued.
    #[error("the ticket is not of this line")]
    TicketInvalid,
    /// It waits: it has no seat to claim, renew or complete.
    #[error("the token is not admitted")]
    NotAdmitted,
    /// It has not claimed its seat.
    #[error("the token has not claimed its seat")]
    NotClaimed,
    /// It does not wait any more.
    #[error("the token is not waiting")]
    NotWaiting,
    /// The epoch is not that of the token's claim.
    #[error("the epoch is not that of the claim")]
    EpochStale,
    /// The settings changed since `if_version`, or the line has not had that version yet.
    #[error(
        "the settings have changed since that version, or the line has not come to it yet: \
         `show` has `settings_version` and `version`"
    )]
    VersionConflict,
    /// The line was deleted and created again: it is not the one that was meant.
    #[error("the line has another incarnation: it was deleted and created again")]
    AnotherIncarnation,
    /// It is gone; `None`: so long that the reason is forgotten.
    #[error("the token is gone: {}", .0.map_or("forgotten", Reason::as_str))]
    TokenGone(Option<Reason>),
    /// A field is out of its range.
    #[error(transparent)]
    BadField(#[from] BadField),
}
