//! Changes of settings that a line makes by itself, each when its time has come.

use nowserving_codec::Codec;

use super::{BadField, Change, SETTINGS, SettingValue, Settings, SettingsPatch};

/// How many changes a schedule can have.
pub const SCHEDULE_MAX: usize = 64;
/// How many stored bytes they take at most, rounded up: 256 for each of [`SCHEDULE_MAX`]. A journal entry has two
/// schedules, the old and the new one, and must fit one part of a line that is put back from a backup.
pub const SCHEDULE_BYTES_MAX: usize = 16 * 1_024;
/// The last time of a schedule: the end of the year 9999, less a day, so that it has four digits in every time zone.
pub const WALL_MS_MAX: u64 = 253_402_207_200_000;

/// Memory of a change without its patch, rounded up.
const CHANGE_BYTES: usize = 32;
/// Stored bytes of a change, of a setting in it, of an item of that, without texts; rounded up.
const STORED_CHANGE_BYTES: usize = 16;
const STORED_SETTING_BYTES: usize = 16;
const STORED_LANE_BYTES: usize = 24;
const STORED_LABEL_BYTES: usize = 8;
const STORED_POSITION_BYTES: usize = 5;
const STORED_RATE_BYTES: usize = 16;
const STORED_QUOTA_BYTES: usize = 32 + super::ZONE_BYTES_MAX;

/// A change of settings at a time of the leader's wall clock.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
#[codec(check = ScheduledChange::check)]
pub struct ScheduledChange {
    pub at_ms: u64,
    /// Not of the schedule itself.
    pub set: SettingsPatch,
}

impl ScheduledChange {
    fn check(&self) -> Result<(), &'static str> {
        let nests = self.set.schedule.is_some();
        (!nests).then_some(()).ok_or("a schedule within a schedule")
    }
}

pub(super) fn bytes(schedule: &[ScheduledChange]) -> usize {
    let bytes = schedule.iter().map(|it| CHANGE_BYTES + it.set.bytes());
    bytes.sum()
}

/// Checks the form of each change. Whether they can be applied is checked when the schedule is set
/// ([`Settings::check_schedule`]): later changes of the settings may prevent one.
pub(super) fn validate(schedule: &[ScheduledChange]) -> Result<(), BadField> {
    if schedule.len() > SCHEDULE_MAX {
        let limit = format!("at most {SCHEDULE_MAX} changes");
        return Err(BadField::new("schedule", limit));
    }
    if let Some(place) = schedule.windows(2).position(|it| it[0].at_ms > it[1].at_ms) {
        let field = format!("schedule[{}].at", place + 1);
        return Err(BadField::new(
            field,
            "changes stand in the order of their times",
        ));
    }
    for (place, change) in schedule.iter().enumerate() {
        if change.at_ms > WALL_MS_MAX {
            let field = format!("schedule[{place}].at");
            return Err(BadField::new(field, "a time from 1970 to 9999"));
        }
        if change.set.schedule.is_some() {
            let field = format!("schedule[{place}].set.schedule");
            return Err(BadField::new(field, "no schedule within a schedule"));
        }
        let set = change.set.validate();
        set.map_err(|bad| in_change(place, bad))?;
    }
    let stored = schedule
        .iter()
        .map(|it| STORED_CHANGE_BYTES + stored_bytes(&it.set));
    if stored.sum::<usize>() > SCHEDULE_BYTES_MAX {
        let limit = format!(
            "at most {SCHEDULE_BYTES_MAX} bytes: fewer changes, or fewer lanes and labels in them"
        );
        return Err(BadField::new("schedule", limit));
    }
    Ok(())
}

/// No less than a change of these settings takes in snapshots and backups.
fn stored_bytes(set: &SettingsPatch) -> usize {
    let changes = SETTINGS.iter().filter_map(|setting| setting.change(set));
    let bytes = changes.map(|change| match change {
        Change::Set(value) => STORED_SETTING_BYTES + stored_value_bytes(&value),
        Change::Unset => STORED_SETTING_BYTES,
    });
    bytes.sum()
}

fn stored_value_bytes(value: &SettingValue) -> usize {
    match value {
        SettingValue::LaneName(name) => name.as_str().len(),
        SettingValue::Text(text) => text.len(),
        SettingValue::AdmissionRate(_) => STORED_RATE_BYTES,
        SettingValue::Quota(_) => STORED_QUOTA_BYTES,
        SettingValue::Positions(positions) => positions.len() * STORED_POSITION_BYTES,
        SettingValue::Lanes(lanes) => {
            let names = lanes.iter().map(|lane| lane.name.as_str().len());
            names.map(|name| STORED_LANE_BYTES + name).sum()
        }
        SettingValue::Labels(labels) => {
            let texts = labels.iter().map(|(name, value)| name.len() + value.len());
            texts.map(|text| STORED_LABEL_BYTES + text).sum()
        }
        SettingValue::Number(_)
        | SettingValue::Flag(_)
        | SettingValue::Phase(_)
        | SettingValue::Admission(_)
        | SettingValue::Gate(_)
        | SettingValue::Opening(_)
        // Refused within a schedule.
        | SettingValue::Schedule(_) => 0,
    }
}

fn in_change(place: usize, bad: BadField) -> BadField {
    let field = format!("schedule[{place}].set.{}", bad.field);
    BadField::new(field, bad.limit)
}

impl Settings {
    /// Checks that the changes of the schedule can be applied to these settings one after the other, and that each
    /// result passes `fits`.
    pub(crate) fn check_schedule(
        &self,
        mut fits: impl FnMut(&Settings) -> Result<(), BadField>,
    ) -> Result<(), BadField> {
        let mut settings = Settings {
            schedule: Vec::new(),
            ..self.clone()
        };
        for (place, change) in self.schedule.iter().enumerate() {
            let next = settings.with(&change.set);
            let next = next.and_then(|next| fits(&next).map(|()| next));
            settings = next.map_err(|bad| in_change(place, bad))?;
        }
        Ok(())
    }

    /// What the settings that the patch names are now.
    pub(crate) fn named_by(&self, patch: &SettingsPatch) -> SettingsPatch {
        let mut named = SettingsPatch::default();
        for setting in SETTINGS {
            if setting.change(patch).is_some() {
                let value = setting.value(self).map_or(Change::Unset, Change::Set);
                // A value of its own type always fits.
                let _ = setting.set_change(&mut named, value);
            }
        }
        named
    }
}
