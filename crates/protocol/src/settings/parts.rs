//! Readers of the settings that have parts.

use std::fmt;

use nowserving_line::{
    Admission, AdmissionRate, BOOST_MS_MAX, Gate, LANES_MAX, LaneName, LaneSettings, Opening,
    PER_VISIT_MAX, POSITION_EVENT_MAX, POSITION_EVENTS_MAX, Phase, QUEUE_LIMIT_MAX,
    QUOTA_TOTAL_MAX, Quota, RATE_BURST_MAX, RENEW_MS_MAX, RENEW_MS_MIN, Renew, SCHEDULE_MAX,
    SETTING_NAMES, STANDBY_PERCENT_MAX, ScheduledChange, SettingsPatch, ZoneName,
};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};

use super::{Any, PerSecond, read_setting};
use crate::wire::WholeVisitor;
use crate::{time, wire};

/// An admission rate in a request; both parts are required.
#[derive(Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "AdmissionRate")
)]
pub(super) struct RateParts {
    per_second: PerSecond,
    #[serde(with = "wire::Within::<1, { RATE_BURST_MAX as u64 }>")]
    burst: u32,
}

impl From<RateParts> for AdmissionRate {
    fn from(parts: RateParts) -> AdmissionRate {
        AdmissionRate {
            per_second_micro: parts.per_second.micro(),
            burst: parts.burst,
        }
    }
}

/// A quota in a request.
#[derive(Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Quota")
)]
pub(super) struct QuotaParts {
    #[serde(with = "wire::Within::<1, QUOTA_TOTAL_MAX>")]
    total: u64,
    #[serde(
        default,
        with = "wire::WithinOption::<0, { STANDBY_PERCENT_MAX as u64 }>"
    )]
    standby_percent: Option<u32>,
    #[serde(default)]
    renew: Option<RenewParts>,
    #[serde(default, with = "wire::WithinOption::<1, { PER_VISIT_MAX as u64 }>")]
    per_visit: Option<u32>,
}

/// When a quota is renewed, in a request.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "RenewFields")]
#[cfg_attr(
    feature = "schema",
    schemars(rename = "QuotaRenewal", with = "RenewFields")
)]
struct RenewParts(Renew);

#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::schema::time_or_interval))]
struct RenewFields {
    #[serde(default)]
    at: Option<String>,
    #[serde(default)]
    zone: Option<String>,
    #[serde(default, with = "wire::WithinOption::<RENEW_MS_MIN, RENEW_MS_MAX>")]
    every_ms: Option<u64>,
}

impl TryFrom<RenewFields> for RenewParts {
    type Error = String;

    fn try_from(fields: RenewFields) -> Result<RenewParts, String> {
        let RenewFields { at, zone, every_ms } = fields;
        let (at, zone) = match (at, zone, every_ms) {
            (None, None, Some(ms)) => return Ok(RenewParts(Renew::Every { ms })),
            (Some(at), Some(zone), None) => (at, zone),
            _ => return Err("either `at` and `zone`, or `every_ms`".to_owned()),
        };
        let minute = time::parse_minute(&at);
        let minute = minute.ok_or_else(|| format!("at: a time of day as \"06:00\", not {at:?}"))?;
        let known = ZoneName::new(&zone).filter(|zone| time::is_zone(zone.as_str()));
        let zone =
            known.ok_or_else(|| format!("zone: a time zone as \"Asia/Taipei\", not {zone:?}"))?;
        Ok(RenewParts(Renew::Daily { minute, zone }))
    }
}

impl From<QuotaParts> for Quota {
    fn from(parts: QuotaParts) -> Quota {
        Quota {
            total: parts.total,
            standby_percent: parts.standby_percent.unwrap_or(0),
            renew: parts.renew.map(|RenewParts(renew)| renew),
            per_visit: parts.per_visit.unwrap_or(1),
        }
    }
}

/// A lane in a request; all parts but the name can be left out or null.
#[derive(Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Lane")
)]
pub(super) struct LaneParts {
    #[serde(with = "wire::Name")]
    name: LaneName,
    #[serde(default, with = "wire::WithinOption::<0, BOOST_MS_MAX>")]
    boost_ms: Option<u64>,
    #[serde(default)]
    absolute: Option<wire::Flag>,
    #[serde(default, with = "wire::WithinOption::<0, { QUEUE_LIMIT_MAX as u64 }>")]
    queue_limit: Option<u32>,
    #[serde(default)]
    jump: Option<wire::Flag>,
}

/// Reads the list of lanes. It stops at one too many.
pub(super) struct LanesVisitor;

impl<'de> Visitor<'de> for LanesVisitor {
    type Value = Vec<LaneSettings>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of 1 to {LANES_MAX} lanes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut lanes: Vec<LaneSettings> = Vec::new();
        while let Some(lane) = seq.next_element_seed(NextLane(&lanes))? {
            lanes.push(lane);
        }
        if lanes.is_empty() {
            return Err(A::Error::invalid_length(0, &self));
        }
        Ok(lanes)
    }
}

/// Reads one lane, whose name must differ from those before it.
struct NextLane<'a>(&'a [LaneSettings]);

impl<'de> DeserializeSeed<'de> for NextLane<'_> {
    type Value = LaneSettings;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<LaneSettings, D::Error> {
        if self.0.len() == LANES_MAX {
            let limit = format_args!("a list of 1 to {LANES_MAX} lanes");
            return Err(D::Error::custom(limit));
        }
        let parts = LaneParts::deserialize(deserializer)?;
        if self.0.iter().any(|lane| lane.name == parts.name) {
            let taken = format_args!("name: another lane has the name {}", parts.name);
            return Err(D::Error::custom(taken));
        }
        Ok(LaneSettings {
            name: parts.name,
            boost_ms: parts.boost_ms.unwrap_or(0),
            absolute: parts.absolute.is_some_and(|wire::Flag(absolute)| absolute),
            queue_limit: parts.queue_limit,
            jump: parts.jump.is_some_and(|wire::Flag(jump)| jump),
        })
    }
}

/// Reads positions in any order, and puts the largest first. It stops at one too many, as [`LanesVisitor`] does.
pub(super) struct PositionsVisitor;

const POSITION: WholeVisitor<u32> = WholeVisitor {
    min: 1,
    max: POSITION_EVENT_MAX,
};

impl<'de> Visitor<'de> for PositionsVisitor {
    type Value = Vec<u32>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of up to {POSITION_EVENTS_MAX} positions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut positions = Vec::new();
        while let Some(position) = seq.next_element_seed(Any(POSITION))? {
            if positions.len() == POSITION_EVENTS_MAX {
                let limit = format_args!("at most {POSITION_EVENTS_MAX} positions");
                return Err(A::Error::custom(limit));
            }
            if positions.contains(&position) {
                let twice = format_args!("{position} is there twice");
                return Err(A::Error::custom(twice));
            }
            positions.push(position);
        }
        positions.sort_unstable_by(|a, b| b.cmp(a));
        Ok(positions)
    }
}

/// Reads a schedule. It stops at one too many, as [`LanesVisitor`] does.
pub(super) struct ScheduleVisitor;

impl<'de> Visitor<'de> for ScheduleVisitor {
    type Value = Vec<ScheduledChange>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of up to {SCHEDULE_MAX} changes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut schedule = Vec::new();
        while let Some(change) = seq.next_element_seed(NextChange)? {
            if schedule.len() == SCHEDULE_MAX {
                return Err(A::Error::custom(format_args!(
                    "at most {SCHEDULE_MAX} changes"
                )));
            }
            schedule.push(change);
        }
        Ok(schedule)
    }
}

/// Reads one change of a schedule.
struct NextChange;

impl<'de> DeserializeSeed<'de> for NextChange {
    type Value = ScheduledChange;

    fn deserialize<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<ScheduledChange, D::Error> {
        let parts = ChangeParts::deserialize(deserializer)?;
        Ok(ScheduledChange {
            at_ms: parts.at,
            set: parts.set,
        })
    }
}

/// A change of a schedule in a request.
#[derive(Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "ScheduledChange")
)]
pub(super) struct ChangeParts {
    #[serde(deserialize_with = "time_of")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::time"))]
    at: u64,
    #[serde(deserialize_with = "settings_of")]
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "super::described::scheduled")
    )]
    set: SettingsPatch,
}

fn time_of<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    deserializer.deserialize_any(TimeVisitor)
}

fn settings_of<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SettingsPatch, D::Error> {
    deserializer.deserialize_struct("Settings", SETTING_NAMES, SetVisitor)
}

/// Reads a time, into milliseconds since 1970.
struct TimeVisitor;

impl Visitor<'_> for TimeVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time from 1970 to 9999 as \"2026-11-22T12:00:00+08:00\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        time::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// Reads the settings of a scheduled change.
struct SetVisitor;

impl<'de> Visitor<'de> for SetVisitor {
    type Value = SettingsPatch;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of settings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SettingsPatch, A::Error> {
        let (mut patch, mut is_empty) = (SettingsPatch::default(), true);
        while let Some(field) = map.next_key::<String>()? {
            // Not read at all, so that requests cannot nest them.
            if field == "schedule" {
                let message = "schedule: no schedule within a schedule";
                return Err(A::Error::custom(message));
            }
            read_setting(&mut map, &field, &mut patch)?;
            is_empty = false;
        }
        if is_empty {
            return Err(A::Error::custom("at least one setting"));
        }
        Ok(patch)
    }
}

/// Reads the word for how tokens are admitted.
pub(super) struct AdmissionVisitor;

impl Visitor<'_> for AdmissionVisitor {
    type Value = Admission;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("auto or called")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Admission, E> {
        Admission::parse(word).ok_or_else(|| E::invalid_value(Unexpected::Str(word), &self))
    }
}

/// Reads the word for the gate.
pub(super) struct GateVisitor;

impl Visitor<'_> for GateVisitor {
    type Value = Gate;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("on, shadow or off")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Gate, E> {
        Gate::parse(word).ok_or_else(|| E::invalid_value(Unexpected::Str(word), &self))
    }
}

/// Reads the word for the order at the opening.
pub(super) struct OpeningVisitor;

impl Visitor<'_> for OpeningVisitor {
    type Value = Opening;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("order or draw")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Opening, E> {
        Opening::parse(word).ok_or_else(|| E::invalid_value(Unexpected::Str(word), &self))
    }
}

/// Reads a text.
pub(super) struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

/// Reads the word for a phase.
pub(super) struct PhaseVisitor;

impl Visitor<'_> for PhaseVisitor {
    type Value = Phase;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one of pre_open, open, paused, draining, closed")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Phase, E> {
        Phase::parse(word).ok_or_else(|| E::invalid_value(Unexpected::Str(word), &self))
    }
}
