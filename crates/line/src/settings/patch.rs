//! Changes to settings: whole or not at all.

use super::{BadField, Settings, SettingsPatch};

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
