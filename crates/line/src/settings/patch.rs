//! Changes to settings: whole or not at all.

use std::collections::BTreeMap;

use super::{BadField, LaneSettings, Phase, Quota, Settings};
use crate::{AdmissionRate, LaneName};

/// What a patch, a lane in it and a label in it take, but for their texts, rounded up.
const PATCH_BYTES: usize = 256;
const LANE_BYTES: usize = 64;
const LABEL_BYTES: usize = 64;

/// What a patch does to one setting that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<T> {
    /// Gives it this value.
    Set(T),
    /// Puts it back to its default; refused for a required setting.
    Unset,
}

/// Any subset of the settings; `None` leaves one as it is (at creation: at its default).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SettingsPatch {
    /// See [`Settings::seats`]. Required at creation.
    pub seats: Option<Change<u32>>,
    /// See [`Settings::queue_limit`]. Required at creation.
    pub queue_limit: Option<Change<u32>>,
    /// See [`Settings::waiting_idle_timeout_ms`].
    pub waiting_idle_timeout_ms: Option<Change<u64>>,
    /// See [`Settings::claim_timeout_ms`].
    pub claim_timeout_ms: Option<Change<u64>>,
    /// See [`Settings::checkout_timeout_ms`].
    pub checkout_timeout_ms: Option<Change<u64>>,
    /// See [`Settings::checkout_max_ms`].
    pub checkout_max_ms: Option<Change<u64>>,
    /// See [`Settings::admission_rate`].
    pub admission_rate: Option<Change<AdmissionRate>>,
    /// See [`Settings::lanes`]. The whole list is replaced.
    pub lanes: Option<Change<Vec<LaneSettings>>>,
    /// See [`Settings::default_lane`].
    pub default_lane: Option<Change<LaneName>>,
    /// See [`Settings::call_ahead`].
    pub call_ahead: Option<Change<u32>>,
    /// See [`Settings::quota`].
    pub quota: Option<Change<Quota>>,
    /// See [`Settings::phase`].
    pub phase: Option<Change<Phase>>,
    /// See [`Settings::position_cap`].
    pub position_cap: Option<Change<u32>>,
    /// See [`Settings::release_on_claim`].
    pub release_on_claim: Option<Change<bool>>,
    /// See [`Settings::token_events`].
    pub token_events: Option<Change<bool>>,
    /// See [`Settings::labels`]. The whole map is replaced.
    pub labels: Option<Change<BTreeMap<String, String>>>,
}

impl SettingsPatch {
    /// About how many bytes it takes in memory: the same on every machine, as what is kept hangs
    /// on it.
    pub(crate) fn bytes(&self) -> usize {
        let mut bytes = PATCH_BYTES;
        if let Some(Change::Set(lanes)) = &self.lanes {
            let names = lanes.iter().map(|lane| lane.name.as_str().len());
            bytes += names.map(|name| LANE_BYTES + name).sum::<usize>();
        }
        if let Some(Change::Set(labels)) = &self.labels {
            let texts = labels.iter().map(|(name, value)| name.len() + value.len());
            bytes += texts.map(|text| LABEL_BYTES + text).sum::<usize>();
        }
        bytes
    }

    /// Whether every field that is set is within its range, so that nothing is proposed that
    /// applying would refuse for its form. A `default_lane` without `lanes` beside it depends on
    /// the lanes of the line: that is checked when it is applied.
    pub fn validate(&self) -> Result<(), BadField> {
        // Applied to anything valid, a patch fails exactly if one of its own fields is bad.
        let new = Settings::new(1, 0).patched(self)?;
        new.validate_ranges()?;
        match self.lanes {
            Some(_) => new.validate_default_lane(),
            None => Ok(()),
        }
    }
}

impl Settings {
    /// These settings with `patch` on top; whole or not at all.
    pub fn with(&self, patch: &SettingsPatch) -> Result<Self, BadField> {
        let new = self.patched(patch)?;
        new.validate()?;
        Ok(new)
    }

    /// With `patch` on top, whatever values it has.
    fn patched(&self, patch: &SettingsPatch) -> Result<Self, BadField> {
        let mut new = self.clone();
        let default = Self::new(1, 0);
        require("seats", &patch.seats)?;
        require("queue_limit", &patch.queue_limit)?;
        macro_rules! change {
            ($($field:ident)*) => {
                $(change(&mut new.$field, &patch.$field, default.$field);)*
            };
        }
        change! {
            seats queue_limit waiting_idle_timeout_ms claim_timeout_ms checkout_timeout_ms
            checkout_max_ms lanes call_ahead phase release_on_claim token_events labels
        }
        change_option(&mut new.admission_rate, &patch.admission_rate);
        change_option(&mut new.default_lane, &patch.default_lane);
        change_option(&mut new.quota, &patch.quota);
        change_option(&mut new.position_cap, &patch.position_cap);
        Ok(new)
    }
}

pub(super) fn required(field: &'static str) -> BadField {
    BadField::new(field, "required")
}

fn require<T>(field: &'static str, change: &Option<Change<T>>) -> Result<(), BadField> {
    match change {
        Some(Change::Unset) => Err(required(field)),
        _ => Ok(()),
    }
}

fn change<T: Clone>(value: &mut T, change: &Option<Change<T>>, default: T) {
    match change {
        None => {}
        Some(Change::Set(new)) => *value = new.clone(),
        Some(Change::Unset) => *value = default,
    }
}

/// What sets the settings in which `this` differs from `other` to what they are in `this`.
pub(crate) fn difference(this: &Settings, other: &Settings) -> SettingsPatch {
    macro_rules! patch {
        ($($field:ident)*; $($optional:ident)*) => {
            SettingsPatch {
                $($field: (this.$field != other.$field)
                    .then(|| Change::Set(this.$field.clone())),)*
                $($optional: (this.$optional != other.$optional)
                    .then(|| this.$optional.clone().map_or(Change::Unset, Change::Set)),)*
            }
        };
    }
    patch! {
        seats queue_limit waiting_idle_timeout_ms claim_timeout_ms checkout_timeout_ms
        checkout_max_ms lanes call_ahead phase release_on_claim token_events labels;
        admission_rate default_lane quota position_cap
    }
}

fn change_option<T: Clone>(value: &mut Option<T>, change: &Option<Change<T>>) {
    match change {
        None => {}
        Some(Change::Set(new)) => *value = Some(new.clone()),
        Some(Change::Unset) => *value = None,
    }
}
