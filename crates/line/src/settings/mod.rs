//! The settings of a line ([`SETTINGS`]), and the types of those settings that have
//! parts.

mod admission;
mod gate;
mod lanes;
mod opening;
mod patch;
mod phase;
mod positions;
mod quota;
mod schedule;
mod table;

use std::borrow::Cow;
use std::collections::BTreeMap;

pub use admission::Admission;
pub use gate::Gate;
pub(crate) use lanes::names as lane_names;
pub use lanes::{BOOST_MS_MAX, LaneSettings};
pub use opening::Opening;
pub use patch::Change;
pub use phase::Phase;
pub use positions::{POSITION_EVENT_MAX, POSITION_EVENTS_MAX};
pub use quota::{
    PER_VISIT_MAX, QUOTA_TOTAL_MAX, Quota, RENEW_MS_MAX, RENEW_MS_MIN, Renew, STANDBY_PERCENT_MAX,
    ZONE_BYTES_MAX, ZoneName,
};
pub use schedule::{SCHEDULE_BYTES_MAX, SCHEDULE_MAX, ScheduledChange, WALL_MS_MAX};
pub(crate) use table::is_text;
pub use table::{
    SETTING_NAMES, SETTINGS, Setting, SettingDefault, SettingKind, SettingValue, Settings,
    SettingsPatch,
};

use nowserving_codec::Codec;

use crate::LaneName;

/// The largest `seats`; the smallest is 1.
pub const SEATS_MAX: u32 = 1_000_000;
/// The largest `queue_limit`, of a line and of a lane; the smallest is 0.
pub const QUEUE_LIMIT_MAX: u32 = 10_000_000;
/// The largest `call_ahead`; the smallest is 0.
pub const CALL_AHEAD_MAX: u32 = 10_000_000;
/// The largest `position_cap`; the smallest is 1.
pub const POSITION_CAP_MAX: u32 = 10_000_000;
/// The shortest of any timeout, in milliseconds.
pub const TIMEOUT_MS_MIN: u64 = 100;
/// The longest of any timeout, in milliseconds: seven days.
pub const TIMEOUT_MS_MAX: u64 = 7 * 24 * 60 * 60 * 1_000;
/// The shortest `max_wait_ms`, in milliseconds.
pub const MAX_WAIT_MS_MIN: u64 = 1_000;
/// The longest `max_wait_ms`, in milliseconds: thirty days.
pub const MAX_WAIT_MS_MAX: u64 = 30 * 24 * 60 * 60 * 1_000;
/// The largest `jumps_max`; the smallest is 0. A jump is a move, and more moves are refused.
pub const JUMPS_MAX_MAX: u32 = crate::MOVES_MAX as u32;
/// How many labels a line can have.
pub const LABELS_MAX: usize = 16;
/// The longest name, and the longest value, of a label, in bytes.
pub const LABEL_BYTES_MAX: usize = 64;

pub type Lanes = Vec<LaneSettings>;
/// Positions in a lane, the largest first.
pub type Positions = Vec<u32>;
/// In the order of their times.
pub type Schedule = Vec<ScheduledChange>;
pub type Labels = BTreeMap<String, String>;

/// A field out of its range.
#[derive(Codec, Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {limit}")]
pub struct BadField {
    /// The field, as the contract names it.
    pub field: Cow<'static, str>,
    /// The allowed range, or the fault, in words.
    pub limit: String,
}

impl BadField {
    pub fn new(field: impl Into<Cow<'static, str>>, limit: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            limit: limit.into(),
        }
    }
}

impl Settings {
    /// The settings of a new line: the defaults with `patch` on top.
    ///
    /// # Errors
    /// A required setting is missing, or a value is out of range.
    pub fn create(patch: &SettingsPatch) -> Result<Self, BadField> {
        for setting in SETTINGS {
            let is_required = setting.default == SettingDefault::Required;
            if is_required && setting.change(patch).is_none() {
                return Err(BadField::new(setting.name, "required"));
            }
        }
        Self::new(1, 0).with(patch)
    }

    /// The lane of entrants that name none. `None` only if there are no lanes, which
    /// [`Settings::validate`] refuses.
    pub fn effective_default_lane(&self) -> Option<&LaneName> {
        let first = self.lanes.first().map(|lane| &lane.name);
        self.default_lane.as_ref().or(first)
    }

    /// Checks every setting's range, and that `default_lane` is one of `lanes`.
    pub fn validate(&self) -> Result<(), BadField> {
        self.validate_ranges()?;
        self.validate_default_lane()
    }

    fn validate_ranges(&self) -> Result<(), BadField> {
        for setting in SETTINGS {
            if let Some(value) = setting.value(self) {
                setting.validate(&value)?;
            }
        }
        Ok(())
    }

    fn validate_default_lane(&self) -> Result<(), BadField> {
        let Some(name) = &self.default_lane else {
            return Ok(());
        };
        if self.lanes.iter().any(|lane| lane.name == *name) {
            return Ok(());
        }
        let lanes = lane_names(&self.lanes);
        let limit = format!("no lane \"{name}\"; one of {lanes}, or null for the first");
        Err(BadField::new("default_lane", limit))
    }
}

#[cfg(test)]
mod tests;
