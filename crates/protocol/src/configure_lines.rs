//! `admin.cluster.configure_lines`: one change of settings for all lines with some labels. docs/protocol/operators.md.

use std::collections::BTreeMap;

use nowserving_line::{LineName, SettingsPatch};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::admin::{LIST_LINES_DEFAULT, LIST_LINES_MAX};
use crate::error::ApiError;
use crate::journal::SettingChangeReply;
use crate::page::PAGE_BYTES_MAX;
use crate::settings::{self, Beside, Body, BodyVisitor};
use crate::wire;

/// What a line takes in an answer beside its changes, in JSON: its name and an error.
const LINE_BYTES_MAX: usize = 400;

/// `configure_lines`: changes the same settings of many lines, a page of those that have all these labels, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigureLines {
    /// At least one.
    #[serde(default, with = "wire::LabelMap")]
    pub labels: BTreeMap<String, String>,
    /// The changes of each line's settings, as in a [`crate::admin::Configure`].
    pub set: SettingsChanges,
    /// Only shows what would change.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "wire::flag"
    )]
    pub dry_run: bool,
    /// The page begins after this name; by default at the start.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NameOption"
    )]
    pub after: Option<LineName>,
    /// How many lines at most, 1 to [`LIST_LINES_MAX`], which is the default; [fewer](ConfigureLines::limit) where many
    /// settings are changed.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::WithinOption::<1, LIST_LINES_MAX>"
    )]
    pub limit: Option<u64>,
}

impl ConfigureLines {
    /// Checks what the types do not say; `bad_request` names the field.
    pub fn check(&self) -> Result<(), ApiError> {
        if self.labels.is_empty() {
            return Err(ApiError::bad_request("labels: at least one is needed"));
        }
        if self.set == SettingsChanges::default() {
            return Err(ApiError::bad_request("set: at least one setting is needed"));
        }
        Ok(())
    }

    /// How many lines this page has at most: what became of them fits an answer, and a line that was changed cannot be
    /// left out of it.
    pub fn limit(&self) -> u64 {
        let settings = settings::named_values(&self.set.0).count();
        let line = LINE_BYTES_MAX + settings * SettingChangeReply::SHORT_BYTES_MAX;
        let fit = (PAGE_BYTES_MAX / line).max(1) as u64;
        self.limit.unwrap_or(LIST_LINES_DEFAULT).min(fit)
    }
}

/// Any subset of the settings, `null` for the default. Their ranges are checked if it was decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(with = "settings::described::SettingsBody")
)]
pub struct SettingsChanges(pub SettingsPatch);

impl Serialize for SettingsChanges {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        settings::serialize(&self.0, &Beside::default(), serializer)
    }
}

impl<'de> Deserialize<'de> for SettingsChanges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Body { patch, .. } = BodyVisitor { conditional: false }.read(deserializer)?;
        Ok(SettingsChanges(patch))
    }
}

/// The answer to `configure_lines`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigureLinesReply {
    /// The lines of the page, by name.
    pub lines: Vec<ConfiguredLine>,
    /// The `after` of the next page; null at the end.
    #[serde(default, with = "wire::NameOption")]
    pub next: Option<LineName>,
    /// Nothing was changed.
    #[serde(default)]
    pub dry_run: bool,
}

impl ConfigureLinesReply {
    /// What became of these lines. Long values are shortened where not all fit.
    pub fn new(
        mut lines: Vec<ConfiguredLine>,
        next: Option<LineName>,
        dry_run: bool,
    ) -> ConfigureLinesReply {
        let each = PAGE_BYTES_MAX / lines.len().max(1);
        for line in &mut lines {
            SettingChangeReply::shorten(&mut line.changes, each.saturating_sub(LINE_BYTES_MAX));
        }
        ConfigureLinesReply {
            lines,
            next,
            dry_run,
        }
    }
}

/// What became of one line: it was changed whole, or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfiguredLine {
    /// The line's name.
    #[serde(with = "wire::Name")]
    pub line: LineName,
    /// The version at which its settings last changed; missing with an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings_version: Option<u64>,
    /// The settings that differ from those before; none if it had these already.
    #[serde(default)]
    pub changes: Vec<SettingChangeReply>,
    /// Why it was not changed, or may not have been (`outcome_unknown`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ApiError>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::codec::decode;

    fn read(json: &str) -> Result<ConfigureLines, ApiError> {
        let ask: ConfigureLines = decode(json.as_bytes())?;
        ask.check().map(|()| ask)
    }

    #[test]
    fn what_is_written_is_read() {
        let json = r#"{"labels": {"city": "Taipei"}, "set": {"seats": 3, "quota": null}, "dry_run": true, "limit": 9}"#;
        let ask = read(json).unwrap();
        assert_eq!(read(&serde_json::to_string(&ask).unwrap()).unwrap(), ask);
    }

    #[test]
    fn refusals_name_the_field() {
        for (bad, says) in [
            (r#"{"set": {"seats": 3}}"#, "labels"),
            (r#"{"labels": {"a": "b"}}"#, "set"),
            (r#"{"labels": {"a": "b"}, "set": {}}"#, "set"),
            (
                r#"{"labels": {"a": "b"}, "set": {"seats": 0}}"#,
                "set.seats",
            ),
            (
                r#"{"labels": {"a": "b"}, "set": {"if_version": 1}}"#,
                "if_version",
            ),
            (
                r#"{"labels": {"a": "b"}, "set": {"seats": 3}, "limit": 0}"#,
                "limit",
            ),
        ] {
            let message = read(bad).unwrap_err().message;
            assert!(message.contains(says), "{bad}: {message}");
        }
    }
}
