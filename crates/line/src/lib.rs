//! The lines of one shard as a pure state machine: `apply(stamp, op) -> reply, events`.
//!
//! No I/O, no clock, no randomness and no iteration in hash order: all replicas that apply the same log hold the
//! same state, down to the byte of its [`LineDump`]. Time comes in with each [`Stamp`]: the service clock, by which
//! everything is decided that clients wait for, and the leader's wall clock, which is shown, and by which operators'
//! schedules go. The rules are those of
//! `docs/protocol/`: overview.md, settings.md, lanes.md.
//!
//! # How an operation flows
//!
//! 1. [`Lines::apply`] (`lines`) finds the line and calls the function of the operation in `operations`: `enter`,
//!    `claim`, `leave`, `recycle`, …
//! 2. That function checks (`capacity`: is the line full?) and composes the transitions of `transitions`: issue a
//!    number, admit a waiting token, end a token, fill the seats that became free.
//! 3. Transitions change [`Line`] and its indexes (`waiting`: the waiting tokens of a lane; `gone`: the newest gone
//!    ones; `rate`: the admission rate), measure for ETAs (`forecast`), write the `journal`, and make an [`Event`]
//!    if the caller wants events.
//! 4. Work that is too much for one log entry, or comes due by time, stays in `background`. The leader proposes
//!    [`Op::RunBackground`] for the lines of [`Lines::background_work`].
//! 5. The [`Reply`] names the token. A leader that has somebody to answer asks [`Line::status`], whose ETA and pause
//!    come from `eta`. Questions change nothing.
//!
//! # Bounds
//!
//! | what | bound |
//! |---|---|
//! | a poll, a position | O(log waiting), no scan; in a line of several lanes O(log² waiting) a lane |
//! | tokens that background work and recycling end or admit in one log entry | [`WORK_MAX`] |
//! | gone tokens remembered per line | [`GONE_KEPT`] |
//! | numbers from before the draw | 4 bytes each, as long as the line lives |
//! | journal entries per line about tokens, and about the line | [`JOURNAL_KEPT`] each |
//! | changes of settings in the journal of a line, and notes of kicks | [`JOURNAL_CHANGES_BYTES`] each |
//! | admissions in a period | `burst` + the rate × the period, while the gate is `on` |
//! | overtaking | see [`LaneSettings::boost_ms`] |
//! | memory | live tokens + remembered gone ones, however many numbers were issued |

mod background;
mod bits;
mod callback;
mod calls;
mod capacity;
mod draw;
mod draw_pages;
mod dump;
mod dump_lists;
mod eta;
mod event;
mod first_turn;
mod forecast;
mod gate;
mod gone;
mod gone_from;
mod import;
mod journal;
mod journal_details;
mod journal_entries;
mod jump;
mod key_index;
mod kick;
mod line;
mod lines;
mod list;
mod lot;
mod max_tree;
mod name;
mod note;
mod notices;
mod op;
mod operations;
mod rate;
mod records;
mod refused_counts;
mod renew;
mod restore;
mod schedule;
mod seated;
mod seldom;
mod settings;
mod shared;
mod status;
mod sums;
mod times;
mod token;
mod told;
mod transitions;
mod turn;
mod waiting;

#[cfg(test)]
mod cost_tests;

pub use bits::Bits;
pub use callback::{CALLBACK_LIMIT_MAX, Caller, Offers, ROOM_KEYS_MAX};
pub use calls::{CALL_ID_BYTES_MAX, CallItem, CalledToken};
pub use capacity::{HeldBackBy, LaneUse};
pub use draw::{DrawState, DrawView};
pub use draw_pages::{DrawBegun, DrawBlock, DrawHead, DrawPage};
pub use dump::{BadDump, Head, LaneDump, LineBuilder, LineDump, LineItem};
pub use dump_lists::{LiveBytes, LiveList};
pub use event::{AdmittedBy, Event, LineChange, MovedBy, TokenChange};
pub use forecast::{
    Arrivals, EtaFrom, EtaGiven, EtaOutcome, FORECAST_WINDOWS, Forecast, ForecastRecord,
    OFF_BY_PERCENT, Window, Windows,
};
pub use gate::{Shadow, ShadowOutcome};
pub use gone::Gone;
pub use gone_from::GoneFrom;
pub use import::{IMPORT_ID_BYTES_MAX, IMPORT_ROWS_MAX, ImportRow, Imported};
pub use journal::{
    Explanation, JournalEntry, Journaled, JournaledToken, Overtaker, OvertookBy, SettingsChange,
};
pub use kick::{KICK_TEXT_BYTES_MAX, KickItem, KickNote, KickSelector, Kicked};
pub use line::Line;
pub use lines::{Limits, Lines};
pub use list::{ListOrder, ListedThrough};
pub use lot::{BEACON_BYTES_MAX, Hash, Lots, Secret, commitment, digest_of, digest_with};
pub use name::{BadName, LaneName, LineName, NAME_BYTES_MAX};
pub use note::{Noted, OperatorNote};
pub use notices::PositionMark;
pub use op::{CannotAdmit, Forbidden, Op, RecycleItem, Refused, Reply, Stamp, Timestamp};
pub use rate::{AdmissionRate, Bucket, RATE_BURST_MAX, RATE_MICRO_MAX, RATE_MICRO_MIN};
pub use refused_counts::{RefusedCode, RefusedCounts};
pub use restore::{ClockShift, Restore, RestoreRefused};
pub use settings::{
    Admission, BOOST_MS_MAX, BadField, CALL_AHEAD_MAX, Change, Gate, LABEL_BYTES_MAX, LABELS_MAX,
    Labels, LaneSettings, Lanes, Opening, PER_VISIT_MAX, POSITION_CAP_MAX, POSITION_EVENT_MAX,
    POSITION_EVENTS_MAX, Phase, Positions, QUEUE_LIMIT_MAX, QUOTA_TOTAL_MAX, Quota, RENEW_MS_MAX,
    RENEW_MS_MIN, Renew, SCHEDULE_BYTES_MAX, SCHEDULE_MAX, SEATS_MAX, SETTING_NAMES, SETTINGS,
    STANDBY_PERCENT_MAX, Schedule, ScheduledChange, Setting, SettingDefault, SettingKind,
    SettingValue, Settings, SettingsPatch, TIMEOUT_MS_MAX, TIMEOUT_MS_MIN, WALL_MS_MAX,
    ZONE_BYTES_MAX, ZoneName,
};
pub use status::{Board, Counts, LaneBoard, Poll, Status, Totals};
pub use token::{
    Entered, Live, LiveRecord, Reason, Stage, State, TakeBy, Token, TokenBy, TokenRef,
};
pub use told::Told;

/// The most lanes of a line.
pub const LANES_MAX: usize = 8;
/// The most lane names of a line over its life: removed ones stay in its table.
pub const LANE_TABLE_MAX: usize = 64;
/// The lane of a line whose settings name none.
pub const LANE_DEFAULT: &str = "normal";
/// The longest key, in bytes; the shortest has one byte.
pub const KEY_BYTES_MAX: usize = 128;
/// How many of a line's newest gone tokens keep their reason and epoch.
pub const GONE_KEPT: usize = 65_536;
/// How many of a line's newest journal entries about tokens are kept, and how many of those about the line as a whole.
pub const JOURNAL_KEPT: usize = 4_096;
/// About how many bytes of memory the changed settings in a line's journal take: those of the newest changes are
/// kept. One changed number counts as 512 bytes. The notes of kicks have as many bytes of their own, and so have
/// the names and reasons of operators with entries about the line, and those with entries about tokens.
pub const JOURNAL_CHANGES_BYTES: usize = 96 * 1_024;
/// How often a token can be moved.
pub const MOVES_MAX: usize = 16;
/// The largest `n` of an [`Op::CallNext`]. A leader puts calls of as many tokens into one log entry at most.
pub const CALL_MAX: u32 = 1_024;
/// The answers of so many of a line's newest calls are kept …
pub const CALLS_KEPT: usize = 1_024;
/// … fewer, if these admitted more tokens than this.
pub const CALLED_KEPT: usize = 65_536;
/// How many overtakers an [`Explanation`] lists.
pub const OVERTAKERS_MAX: usize = 256;
/// How many tokens background work and recycling end or admit in one log entry at most. While an entry is applied,
/// a node serves nobody: this many take a few milliseconds.
pub const WORK_MAX: u32 = 1_024;
/// The most items of an [`Op::Recycle`]; more are ignored.
pub const RECYCLE_MAX: usize = 1_024;
/// The most items of an [`Op::Kick`]; more are left to another one.
pub const KICK_MAX: usize = 1_024;
/// The most items of an [`Op::Touch`]; more are ignored.
pub const TOUCH_MAX: usize = 4_096;
/// The most operations of a log entry. Incarnations are unique because of this limit.
pub const OPS_PER_ENTRY_MAX: u64 = 4_096;
/// The largest number that is ever shown: JSON readers keep it exact.
pub const NUMBER_MAX: u64 = (1 << 53) - 1;
