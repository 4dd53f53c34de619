//! The lines of one shard as a pure state machine: `apply(stamp, op) -> reply, events`.
//!
//! No I/O, no clock, no randomness and no hash-order iteration: every replica that applies the same
//! log holds the same state, down to the byte of its [`Dump`]. Time comes in with each [`Stamp`]:
//! the service clock, which decides, and the leader's wall clock, which is only kept to be shown.
//! The rules are those of `docs/protocol.md`, sections 1 to 5.
//!
//! * [`Lines`] is the shard: all its lines and the service clock; [`Lines::apply`] is the only way
//!   in for changes, and never panics whatever it is given.
//! * [`Line`] answers questions ([`Line::status`], [`Line::board`], …) without changing anything.
//! * Inside a line, four things happen in one place each, so that a later rule has one place to go
//!   to: a number is issued, a waiting token is admitted (who is next: `order`; may anybody be:
//!   `room`), a token ends with a reason, and what a departure sets in motion (the hole rule).
//! * What needs no operation of its own (`jobs`) is done after each one within the work limit of the
//!   entry, and the rest when the leader proposes [`Op::RunBackground`]; [`Lines::background_work`] says for which lines.
//!
//! # Bounds
//!
//! | what | bound |
//! |---|---|
//! | a status, a position | O(log waiting), no scan; in a line of several lanes O(log² waiting) a lane |
//! | tokens that jobs and recycling touch in one log entry | [`WORK_MAX`] |
//! | gone tokens remembered per line | [`GONE_KEPT`] |
//! | journal entries per line | [`JOURNAL_KEPT`] |
//! | what settings were, in the journal of a line | [`JOURNAL_CHANGES_BYTES`] |
//! | admissions in any stretch of time | `burst` + the rate × the time |
//! | who overtakes whom | see [`LaneSettings::boost_ms`] |
//! | memory | live tokens + remembered gone ones, however many numbers were issued |
//!
//! # Test-only feature
//!
//! `break-hole-rule` makes a waiter's departure admit somebody, as the article the project comes
//! from has it. It exists so that the model test can be shown to fail; never build a node with it.

mod background;
mod dump;
mod event;
mod explain;
mod forecast;
mod foresee;
mod gone;
mod held_back;
mod journal;
mod lane;
mod line;
mod lines;
mod moved;
mod name;
mod op;
mod ops;
mod order;
mod pace;
mod rate;
mod restore;
mod room;
mod settings;
mod status;
mod token;
mod transition;
mod waiting;

#[cfg(test)]
mod memory_tests;
#[cfg(test)]
mod poll_tests;

pub use dump::{Dump, GoneDump, Head, LaneDump, LineDump, LiveDump};
pub use event::{Event, LineChange, TokenChange};
pub use explain::{Explanation, Overtaker, OvertookBy};
pub use forecast::{
    Arrivals, FORECAST_WINDOWS, Forecast, ForecastRecord, OFF_BY_PERCENT, Told, Window,
};
pub use held_back::HeldBackBy;
pub use journal::{JournalEntry, Journaled, JournaledToken, SettingsChange};
pub use line::Line;
pub use lines::{Limits, Lines};
pub use name::{BadName, LaneName, LineName, NAME_BYTES_MAX};
pub use op::{Op, RecycleItem, Refused, Reply, Stamp, Timestamp};
pub use rate::{AdmissionRate, Bucket, RATE_BURST_MAX, RATE_MICRO_MAX, RATE_MICRO_MIN};
pub use restore::BadDump;
pub use settings::{
    BOOST_MS_MAX, BadField, CALL_AHEAD_MAX, Change, LABEL_BYTES_MAX, LABELS_MAX, Labels,
    LaneSettings, Lanes, POSITION_CAP_MAX, Phase, QUEUE_LIMIT_MAX, QUOTA_TOTAL_MAX, Quota,
    SEATS_MAX, SETTING_NAMES, SETTINGS, STANDBY_PERCENT_MAX, Setting, SettingDefault, SettingKind,
    SettingValue, Settings, SettingsPatch, TIMEOUT_MS_MAX, TIMEOUT_MS_MIN,
};
pub use status::{Board, Counts, LaneBoard, Poll, Status, Totals};
pub use token::{Live, Reason, Stage, State, Token, TokenRef};

/// The most lanes a line can have.
pub const LANES_MAX: usize = 8;
/// The most names that the lanes of a line can have over its life: removed ones are remembered.
pub const LANE_TABLE_MAX: usize = 64;
/// The name of the lane that a line has by default.
pub const LANE_DEFAULT: &str = "normal";
/// The longest key, in bytes; the shortest has one.
pub const KEY_BYTES_MAX: usize = 128;
/// How many of a line's newest gone tokens keep their reason and epoch.
pub const GONE_KEPT: usize = 65_536;
/// How many of a line's newest journal entries are kept.
pub const JOURNAL_KEPT: usize = 4_096;
/// About how many bytes of memory the values in a line's journal take, of the settings that changed:
/// those of the newest changes are kept. One changed number counts as 512 bytes.
pub const JOURNAL_CHANGES_BYTES: usize = 96 * 1_024;
/// How often a token can be moved.
pub const MOVES_MAX: usize = 16;
/// How many of those who overtook a token an [`Explanation`] names.
pub const OVERTAKERS_MAX: usize = 256;
/// How many tokens the jobs and recycles of one log entry touch at most.
pub const WORK_MAX: u32 = 4_096;
/// How many items of an [`Op::Recycle`] are looked at; more are ignored.
pub const RECYCLE_MAX: usize = 1_024;
/// How many items of an [`Op::Touch`] are looked at; more are ignored.
pub const TOUCH_MAX: usize = 4_096;
/// How many operations a log entry can have: what makes incarnations unique.
pub const OPS_PER_ENTRY_MAX: u64 = 4_096;
/// The largest number that is ever shown to anybody: what a JSON reader keeps exactly.
pub const NUMBER_MAX: u64 = (1 << 53) - 1;
