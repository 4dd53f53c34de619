//! What an operator can set on a line, and within which limits.

mod lanes;
mod patch;
mod phase;
mod quota;

use std::collections::BTreeMap;

pub(crate) use lanes::names as lane_names;
pub use lanes::{BOOST_MS_MAX, LaneSettings};
pub(crate) use patch::difference;
pub use patch::{Change, SettingsPatch};
pub use phase::Phase;
pub use quota::{QUOTA_TOTAL_MAX, Quota, STANDBY_PERCENT_MAX};

use crate::{AdmissionRate, LaneName};

/// The most seats a line can have; the fewest is 1.
pub const SEATS_MAX: u32 = 1_000_000;
/// The largest `queue_limit`; the smallest is 0. Also of a lane's own.
pub const QUEUE_LIMIT_MAX: u32 = 10_000_000;
/// The largest `call_ahead`; the smallest is 0.
pub const CALL_AHEAD_MAX: u32 = 10_000_000;
/// The largest `position_cap`; the smallest is 1.
pub const POSITION_CAP_MAX: u32 = 10_000_000;
/// The shortest of any timeout, in milliseconds.
pub const TIMEOUT_MS_MIN: u64 = 100;
/// The longest of any timeout, in milliseconds: seven days.
pub const TIMEOUT_MS_MAX: u64 = 7 * 24 * 60 * 60 * 1_000;
/// How many labels a line can have.
pub const LABELS_MAX: usize = 16;
/// The longest name, and the longest value, of a label, in bytes.
pub const LABEL_BYTES_MAX: usize = 64;

const WAITING_IDLE_TIMEOUT_MS: u64 = 300_000;
const CLAIM_TIMEOUT_MS: u64 = 120_000;
const CHECKOUT_TIMEOUT_MS: u64 = 600_000;
const CHECKOUT_MAX_MS: u64 = 3_600_000;

/// A field that is out of its range, and what the range is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {limit}")]
pub struct BadField {
    /// The field, as the contract names it.
    pub field: &'static str,
    /// What it must be, or what is wrong with it, in words.
    pub limit: String,
}

impl BadField {
    /// `field` is not within `limit`.
    pub fn new(field: &'static str, limit: impl Into<String>) -> Self {
        let limit = limit.into();
        Self { field, limit }
    }
}

/// The settings of a line, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How many may hold a seat at once: 1 to [`SEATS_MAX`].
    pub seats: u32,
    /// How many more than `seats` may be in the line: 0 to [`QUEUE_LIMIT_MAX`].
    pub queue_limit: u32,
    /// A waiting token not heard from for longer can be recycled.
    pub waiting_idle_timeout_ms: u64,
    /// How long an admitted token has to claim its seat.
    pub claim_timeout_ms: u64,
    /// How long a claimed seat lasts without `renew`.
    pub checkout_timeout_ms: u64,
    /// Where renewing ends, counted from the claim.
    pub checkout_max_ms: u64,
    /// How fast seats are given; `None`: as fast as they become free.
    pub admission_rate: Option<AdmissionRate>,
    /// 1 to [`crate::LANES_MAX`] lanes of different names. The order decides ties and is that of
    /// the board.
    pub lanes: Vec<LaneSettings>,
    /// The lane of those who enter without naming one: one of `lanes`; `None`: the first.
    pub default_lane: Option<LaneName>,
    /// The first so many waiting positions of a lane are called to prepare: 0 to
    /// [`CALL_AHEAD_MAX`].
    pub call_ahead: u32,
    /// How much there is to be had; `None`: no end to it.
    pub quota: Option<Quota>,
    /// Whether numbers and seats are given.
    pub phase: Phase,
    /// Positions past it are not shown exactly: 1 to [`POSITION_CAP_MAX`].
    pub position_cap: Option<u32>,
    /// A claim also completes: the seat goes on at once.
    pub release_on_claim: bool,
    /// Whether an event is published per token, not only boards.
    pub token_events: bool,
    /// Free words by which lines are listed: at most [`LABELS_MAX`] of [`LABEL_BYTES_MAX`] bytes.
    pub labels: BTreeMap<String, String>,
}

impl Settings {
    /// The defaults, with the two settings that have none.
    pub fn new(seats: u32, queue_limit: u32) -> Self {
        Self {
            seats,
            queue_limit,
            waiting_idle_timeout_ms: WAITING_IDLE_TIMEOUT_MS,
            claim_timeout_ms: CLAIM_TIMEOUT_MS,
            checkout_timeout_ms: CHECKOUT_TIMEOUT_MS,
            checkout_max_ms: CHECKOUT_MAX_MS,
            admission_rate: None,
            lanes: vec![LaneSettings::default()],
            default_lane: None,
            call_ahead: 0,
            quota: None,
            phase: Phase::Open,
            position_cap: None,
            release_on_claim: false,
            token_events: true,
            labels: BTreeMap::new(),
        }
    }

    /// The settings of a new line. `seats` and `queue_limit` must be set.
    pub fn create(patch: &SettingsPatch) -> Result<Self, BadField> {
        if patch.seats.is_none() {
            return Err(patch::required("seats"));
        }
        if patch.queue_limit.is_none() {
            return Err(patch::required("queue_limit"));
        }
        Self::new(1, 0).with(patch)
    }

    /// The lane of those who enter without naming one. `None` only if there are no lanes, which
    /// [`Settings::validate`] refuses.
    pub fn effective_default_lane(&self) -> Option<&LaneName> {
        let first = self.lanes.first().map(|lane| &lane.name);
        self.default_lane.as_ref().or(first)
    }

    /// Whether every setting is within its range, and fits the others.
    pub fn validate(&self) -> Result<(), BadField> {
        self.validate_ranges()?;
        self.validate_default_lane()
    }

    fn validate_ranges(&self) -> Result<(), BadField> {
        within("seats", self.seats, 1, SEATS_MAX)?;
        within("queue_limit", self.queue_limit, 0, QUEUE_LIMIT_MAX)?;
        within("call_ahead", self.call_ahead, 0, CALL_AHEAD_MAX)?;
        if let Some(cap) = self.position_cap {
            within("position_cap", cap, 1, POSITION_CAP_MAX)?;
        }
        for (field, timeout_ms) in [
            ("waiting_idle_timeout_ms", self.waiting_idle_timeout_ms),
            ("claim_timeout_ms", self.claim_timeout_ms),
            ("checkout_timeout_ms", self.checkout_timeout_ms),
            ("checkout_max_ms", self.checkout_max_ms),
        ] {
            if !(TIMEOUT_MS_MIN..=TIMEOUT_MS_MAX).contains(&timeout_ms) {
                return Err(BadField::new(field, "100 to 604800000 (7 days)"));
            }
        }
        if let Some(rate) = &self.admission_rate {
            rate.validate()?;
        }
        if let Some(quota) = &self.quota {
            quota.validate()?;
        }
        lanes::validate(&self.lanes)?;
        self.validate_labels()
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

    fn validate_labels(&self) -> Result<(), BadField> {
        if self.labels.len() > LABELS_MAX {
            return Err(BadField::new("labels", "at most 16"));
        }
        for (name, value) in &self.labels {
            if name.is_empty() || name.len() > LABEL_BYTES_MAX || value.len() > LABEL_BYTES_MAX {
                return Err(BadField::new(
                    "labels",
                    "names of 1 to 64 bytes, values of at most 64",
                ));
            }
        }
        Ok(())
    }
}

fn within(field: &'static str, value: u32, least: u32, most: u32) -> Result<(), BadField> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(BadField::new(field, format!("{least} to {most}")))
    }
}

#[cfg(test)]
mod tests;
