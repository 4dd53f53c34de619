//! Changes to settings: whole or not at all.

use nowserving_codec::Codec;

use super::{BadField, Settings, SettingsPatch, schedule};

/// Memory of a patch, of a lane in it and of a label in it, without their texts, rounded up.
const PATCH_BYTES: usize = 256;
const LANE_BYTES: usize = 64;
const LABEL_BYTES: usize = 64;

/// The change of one setting that a patch names.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub enum Change<T> {
    Set(T),
    /// Restores the default; refused for a required setting.
    Unset,
}

impl SettingsPatch {
    /// Approximate size in memory. Deterministic across machines, because the journal's bound
    /// depends on it.
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
        if let Some(Change::Set(beacon)) = &self.draw_beacon {
            bytes += beacon.len();
        }
        if let Some(Change::Set(schedule)) = &self.schedule {
            bytes += schedule::bytes(schedule);
        }
        bytes
    }

    /// Checks the range of every field that is set, so that the leader proposes no patch that
    /// the state machine would refuse for its form. A `default_lane` without `lanes` depends on
    /// the lanes of the line: it is checked when the patch is applied.
    pub fn validate(&self) -> Result<(), BadField> {
        // On top of valid settings, a patch fails exactly if one of its own fields is bad.
        let new = Settings::new(1, 0).with_unchecked(self)?;
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
        let new = self.with_unchecked(patch)?;
        new.validate()?;
        Ok(new)
    }
}
