//! The operations of the state machine, and its replies and refusals.

use nowserving_codec::Codec;

use crate::{
    BadField, ImportRow, KickItem, KickNote, LaneName, LineName, Reason, RefusedCounts, Secret,
    Settings, SettingsPatch, State, TakeBy,
};
use crate::{Token, TokenBy, TokenRef};

/// A time on both clocks. Everything that clients wait for is decided by the service clock.
#[derive(Codec, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timestamp {
    /// The shard's service clock, in milliseconds.
    pub service_ms: u64,
    /// A leader's wall clock, in milliseconds since 1970. It may be wrong and may jump, back too.
    pub wall_ms: u64,
}

impl Timestamp {
    /// The time from here until a time of the service clock; 0 if that has passed.
    #[must_use]
    pub fn until_ms(self, service_ms: u64) -> u64 {
        service_ms.saturating_sub(self.service_ms)
    }

    /// The wall clock at a time of the service clock, if neither clock stands still or jumps.
    #[must_use]
    pub fn wall_at_ms(self, service_ms: u64) -> u64 {
        self.wall_ms.saturating_add(self.until_ms(service_ms))
    }
}

/// The place of an operation in the log, and the leader's reading of the clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The index of the log entry.
    pub index: u64,
    /// The operation's place in its entry, below [`crate::OPS_PER_ENTRY_MAX`].
    pub op_no: u32,
    /// The service clock. A reading below an earlier one counts as that one.
    pub now_ms: u64,
    /// The leader's wall clock, in milliseconds since 1970: it is shown, and operators' schedules go by it. More
    /// than [`crate::NUMBER_MAX`] counts as that.
    pub wall_ms: u64,
}

/// One operation, as it stands in the log.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "operations live for a turn, and a box would cost every reader of `Create`"
)]
pub enum Op {
    /// Makes a line. Its incarnation is `index * 4096 + op_no`.
    Create { line: LineName, settings: Settings },
    /// Changes settings. Tokens that can be admitted under the new ones are, at once or by background work. Phase
    /// `closed` ends all tokens; until that is done `Configure` is refused with [`Refused::LineClosed`], and then
    /// it can open the line again. A lane with live tokens cannot be removed.
    Configure {
        line: LineName,
        patch: Box<SettingsPatch>,
        /// Only if the settings have not changed since the line had this version. Other changes, as a token
        /// that enters, do not count: on a busy line the condition would never hold.
        if_version: Option<u64>,
        /// Only if the line has this incarnation.
        incarnation: Option<u64>,
    },
    /// Deletes the line. With live tokens it needs `force` or phase `closed`; they end with [`Reason::Closed`].
    Delete {
        line: LineName,
        /// Even with live tokens.
        force: bool,
        /// Only if the line has this incarnation.
        incarnation: Option<u64>,
    },
    /// Issues a number, or replies with the live token that the key already has.
    Enter {
        line: LineName,
        /// The backend's name for the client: 1 to [`crate::KEY_BYTES_MAX`] bytes.
        key: Option<Box<[u8]>>,
        /// By default [`Settings::effective_default_lane`].
        lane: Option<LaneName>,
    },
    /// Lets the keys of another queue enter, in the order of its rows, up to one that is refused; those that have a live
    /// token are passed over. Rows that are done already are, too.
    Import {
        line: LineName,
        /// Names the import: 1 to [`crate::IMPORT_ID_BYTES_MAX`] visible ASCII characters. The line remembers how many
        /// rows of the newest one are done.
        import_id: Box<str>,
        /// How many rows of the import come before these: not more than are done.
        first_row: u64,
        /// 1 to [`crate::IMPORT_ROWS_MAX`].
        rows: Vec<ImportRow>,
    },
    /// Puts a key that cannot enter on the list of those that are told when there is room. A key that is on it keeps its
    /// place.
    Callback {
        line: LineName,
        /// As for [`Op::Enter`].
        key: Box<[u8]>,
        /// The lane that it would enter; by default [`Settings::effective_default_lane`].
        lane: Option<LaneName>,
    },
    /// Claims the seat that an admitted token holds.
    Claim { line: LineName, at: TokenRef },
    /// Extends the deadline of a claimed seat.
    Renew {
        line: LineName,
        at: TokenRef,
        /// The fencing number of the claim to renew.
        epoch: u64,
    },
    /// Gives a claimed seat back: the client is done.
    Complete {
        line: LineName,
        at: TokenRef,
        /// Of the claim; `None` matches any.
        epoch: Option<u64>,
        /// How many units of the quota its holder used, at most as many as its seat reserves; `None`: as many. The others
        /// are free again.
        units: Option<u32>,
    },
    /// Ends the token, whatever its state: the client gives up.
    Leave { line: LineName, at: TokenRef },
    /// Moves a waiting token into another lane, where it gets the next number. A repetition, however late, moves
    /// nothing and replies with the token as it is. A token can be moved [`crate::MOVES_MAX`] times.
    Move {
        line: LineName,
        /// Its current or a former lane, even if the settings no longer have that.
        lane: LaneName,
        token: Token,
        to: LaneName,
    },
    /// Moves a waiting token into a lane that allows it ([`crate::LaneSettings::jump`]), on behalf of its holder. A
    /// token that is in that lane already is only replied with.
    Jump {
        line: LineName,
        by: TokenBy,
        to: LaneName,
    },
    /// Admits the next waiting tokens in service order, while the line may admit.
    CallNext {
        line: LineName,
        /// At most so many, 1 to [`crate::CALL_MAX`].
        n: u32,
        /// Only tokens of this lane.
        lane: Option<LaneName>,
        /// Names the call: 1 to [`crate::CALL_ID_BYTES_MAX`] visible ASCII characters. One with the id of an earlier
        /// call has the answer of that one, as long as that is kept.
        call_id: Box<str>,
    },
    /// Admits a waiting token out of order, if the line may admit. A token that holds a seat is only replied with.
    Take {
        line: LineName,
        by: TakeBy,
        /// As in `CallNext`.
        call_id: Option<Box<str>>,
    },
    /// Ends expired tokens. A token that has not expired, or has changed since the proposer looked, is skipped.
    /// At most [`crate::RECYCLE_MAX`] tokens, and no more than the rest of the entry's [`crate::WORK_MAX`]; the
    /// others are skipped.
    Recycle {
        line: LineName,
        /// If the line has another one, nothing happens.
        incarnation: u64,
        tokens: Vec<RecycleItem>,
    },
    /// Records when the clients of waiting tokens `(lane, token, last_seen_ms)` were last seen, unless a later time
    /// is recorded. At most [`crate::TOUCH_MAX`].
    Touch {
        line: LineName,
        /// If the line has another one, nothing happens.
        incarnation: u64,
        tokens: Vec<(u8, Token, u64)>,
    },
    /// Ends tokens at an operator's word with [`Reason::Kicked`]; one that is not as its item says is skipped. At most
    /// [`crate::KICK_MAX`] tokens, and no more than the rest of the entry's [`crate::WORK_MAX`]: the reply says how far it
    /// came.
    Kick {
        line: LineName,
        /// If the line has another one, nothing happens.
        incarnation: u64,
        tokens: Vec<KickItem>,
        /// Journaled before the first token that ends. A kick of many tokens has it in its first operations only.
        note: Option<Box<KickNote>>,
    },
    /// So many entrants were refused: the leader writes down what it has counted since it last did.
    CountRefused {
        line: LineName,
        /// If the line has another one, nothing happens.
        incarnation: u64,
        refused: RefusedCounts,
    },
    /// A backend tells its capacity, which is in force instead of the setting `seats`.
    CapacityTold {
        line: LineName,
        /// The seats, 0 to [`crate::SEATS_MAX`], and after how many milliseconds without another such operation the backend
        /// counts as silent. `None`: the setting is in force again.
        told: Option<(u32, u64)>,
    },
    /// Renews the quota, if that is due by the entry's wall clock: see [`crate::Line::renewal_due`].
    RenewQuota {
        line: LineName,
        /// If the line has another one, nothing happens.
        incarnation: u64,
        /// When it is to be renewed after that, on the leader's wall clock.
        next_ms: u64,
    },
    /// Brings in the seed of the draw, if [`crate::Line::needs_seed`].
    SealDraw {
        line: LineName,
        /// If the line has another one, nothing happens.
        incarnation: u64,
        /// Random: nobody can guess it.
        seed: Secret,
    },
    /// Does the background work that is due on the line, see [`crate::Lines::background_work`].
    RunBackground {
        line: LineName,
        /// If the line has another one, nothing happens.
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
            | Op::Import { line, .. }
            | Op::Callback { line, .. }
            | Op::Claim { line, .. }
            | Op::Renew { line, .. }
            | Op::Complete { line, .. }
            | Op::Leave { line, .. }
            | Op::Move { line, .. }
            | Op::Jump { line, .. }
            | Op::CallNext { line, .. }
            | Op::Take { line, .. }
            | Op::Recycle { line, .. }
            | Op::Touch { line, .. }
            | Op::Kick { line, .. }
            | Op::CountRefused { line, .. }
            | Op::CapacityTold { line, .. }
            | Op::RenewQuota { line, .. }
            | Op::SealDraw { line, .. }
            | Op::RunBackground { line, .. } => line,
        }
    }
}

/// An expired token, as the proposer saw it in the applied state.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecycleItem {
    pub lane: u8,
    pub token: Token,
    pub state: State,
    /// [`crate::Live::clock_ms`]
    pub clock_ms: u64,
}

/// The answer to an operation. It identifies the line or token and leaves the details to
/// [`crate::Line::status`]: every replica applies an operation, and only the leader has somebody to
/// answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Of `Enter`, `Claim`, `Renew`, `Complete`, `Leave`, `Move`, `Jump`, `Take`: the token as it is called now. That
    /// is another one than the operation named if it was moved: its holder needs a new ticket then.
    Token(TokenRef),
    /// Of `Create`, `Configure`, `CapacityTold` and `Import`: look the line up for the rest.
    Line { incarnation: u64, version: u64 },
    /// Of `Callback`.
    Callback {
        /// 1 + the number of keys that are told before it; `None`: there is room, it can enter.
        position: Option<u64>,
    },
    /// Of `Delete`.
    Deleted {
        /// Live tokens, and keys that wait to be told of room, that are still to be ended; 0 if the line is gone.
        remaining: u64,
    },
    /// Of `Recycle`: how many tokens it ended.
    Recycled { count: u64 },
    /// Of `CallNext`, and of `Take` with a `call_id`: [`crate::Line::called`] has the tokens.
    Called,
    /// Of `Kick`.
    Kicked {
        /// How many tokens it ended.
        ended: u64,
        /// How many items it got to.
        taken: u64,
    },
    /// Of all other operations.
    Nothing,
}

/// Why an operation did nothing. The state is unchanged, except for the service clock.
#[derive(Codec, Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("there is no such line")]
    LineNotFound,
    #[error("the line exists already")]
    LineExists,
    /// Of `Delete` without `force`.
    #[error("the line has live tokens: close it (phase closed) or delete it with force")]
    LineNotEmpty,
    /// The line is closed, or being deleted.
    #[error("the line is closed")]
    LineClosed,
    /// Of `Enter` and `Callback` in phase [`crate::Phase::Draining`].
    #[error("the line takes no new numbers (draining)")]
    LineDraining,
    /// Of `Enter`: no number can be issued now.
    #[error("the line is full")]
    LineFull,
    /// Of `Enter`, `Move` and `Jump`: this lane's own `queue_limit` is reached. Other lanes may have space.
    #[error("the lane {lane} is full: its queue_limit is {limit}")]
    LaneFull { lane: LaneName, limit: u32 },
    /// Of `Enter`, into an absolute lane: the line is full, and the limits of the other lanes do not keep room for it.
    #[error(
        "the line is full, and keeps no room for the absolute lane {lane}: it does if each other lane has a \
         queue_limit (`--lane NAME:limit=N`), all together less than the line's"
    )]
    NoRoomKept { lane: LaneName },
    /// Of `Callback`.
    #[error("as many wait to be told of room as `callback_limit` allows")]
    CallbacksFull,
    /// Of `Enter` and `Callback`: as many have entered as the quota and its standby share allow.
    #[error("the line is sold out")]
    SoldOut,
    /// Of lookups by key: no live token has it. Of `Move`: the number was never issued.
    #[error("there is no such token")]
    TokenNotFound,
    /// Another incarnation, an unknown lane, or a number that was never issued.
    #[error("the ticket is not of this line")]
    TicketInvalid,
    /// The token waits: it has no seat to claim, renew or complete.
    #[error("the token is not admitted")]
    NotAdmitted,
    #[error("the token has not claimed its seat")]
    NotClaimed,
    /// Of `Move` and `Jump`.
    #[error("the token is not waiting")]
    NotWaiting,
    #[error("the epoch is not that of the claim")]
    EpochStale,
    /// Of `Configure`: the settings changed since `if_version`, or the line has not reached that version.
    #[error(
        "the settings have changed since that version, or the line has not come to it yet: \
         `show` has `settings_version` and `version`"
    )]
    VersionConflict,
    /// The line was deleted and created again: it is not the one that was meant.
    #[error("the line has another incarnation: it was deleted and created again")]
    AnotherIncarnation,
    /// `None`: gone for so long that the reason is forgotten.
    #[error("the token is gone: {}", .0.map_or("forgotten", Reason::as_str))]
    TokenGone(Option<Reason>),
    /// Of `Take`.
    #[error(transparent)]
    CannotAdmit(#[from] CannotAdmit),
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    #[error(transparent)]
    BadField(#[from] BadField),
}

/// Why no token can be admitted now.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CannotAdmit {
    #[error("nobody is admitted in this phase of the line")]
    Phase,
    #[error("the draw at the opening is not done")]
    Draw,
    #[error("the quota has no unit left")]
    Quota,
    #[error("every seat is held")]
    Seats,
    #[error("the admission rate has no unit left")]
    AdmissionRate,
}

/// The setting that forbids what was asked.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    /// Of `Jump`.
    #[error("nobody may jump into this lane: its `jump` is not set")]
    Jump,
    /// Of `Jump`.
    #[error("the token has jumped as often as `jumps_max` allows")]
    JumpsMax,
    /// Of `Callback`.
    #[error("the line takes no callbacks: its `callback_limit` is 0")]
    Callback,
}
