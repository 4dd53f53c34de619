//! A line's settings in operators' requests: any subset of them, `null` to unset
//! one. Readers and writers follow `nowserving_line::SETTINGS`, the table in which
//! each setting is defined; here is how a value of each kind looks. Values are read
//! with their ranges at hand, so that a refusal can name them.

#[cfg(feature = "schema")]
pub(crate) mod described;
mod parts;
mod reply;

use std::fmt;
use std::marker::PhantomData;
use std::sync::LazyLock;

use nowserving_line::{
    Change, NUMBER_MAX, SETTING_NAMES, SETTINGS, Setting, SettingKind, SettingValue, SettingsPatch,
};
pub use reply::{
    AdmissionRateReply, LaneSettingsReply, PerSecond, QuotaReply, RenewReply, ScheduledChangeReply,
    SettingsReply,
};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use self::parts::{
    AdmissionVisitor, GateVisitor, LanesVisitor, OpeningVisitor, PhaseVisitor, PositionsVisitor,
    QuotaParts, RateParts, ScheduleVisitor, TextVisitor,
};
use crate::wire::{BoolVisitor, Flag, LabelsVisitor, NameVisitor, WholeVisitor, fill};

const VERSION: WholeVisitor<u64> = WholeVisitor {
    min: 0,
    max: NUMBER_MAX,
};

/// The settings in a request, and the conditions of the change.
#[derive(Default)]
pub(crate) struct Body {
    pub(crate) patch: SettingsPatch,
    pub(crate) if_version: Option<Change<u64>>,
    pub(crate) incarnation: Option<Change<u64>>,
    pub(crate) dry_run: Option<Flag>,
}

/// What a body has beside settings: of `configure`, whose change can be tried and have conditions.
static CONFIGURE_FIELDS: LazyLock<Vec<&str>> =
    LazyLock::new(|| [&["if_version", "incarnation", "dry_run"], SETTING_NAMES].concat());

/// Reads a [`Body`]; only `configure` has conditions, and can be tried.
pub(crate) struct BodyVisitor {
    pub(crate) conditional: bool,
}

impl BodyVisitor {
    /// Reads the body.
    pub(crate) fn read<'de, D: Deserializer<'de>>(self, deserializer: D) -> Result<Body, D::Error> {
        let fields = match self.conditional {
            true => CONFIGURE_FIELDS.as_slice(),
            false => SETTING_NAMES,
        };
        deserializer.deserialize_struct("Settings", fields, self)
    }
}

impl<'de> Visitor<'de> for BodyVisitor {
    type Value = Body;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of settings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Body, A::Error> {
        let mut body = Body::default();
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                "if_version" if self.conditional => {
                    fill(
                        &mut map,
                        "if_version",
                        OrNull(Any(VERSION)),
                        &mut body.if_version,
                    )?;
                }
                "incarnation" if self.conditional => {
                    fill(
                        &mut map,
                        "incarnation",
                        OrNull(Any(VERSION)),
                        &mut body.incarnation,
                    )?;
                }
                "dry_run" if self.conditional => {
                    let flag = PhantomData::<Flag>;
                    fill(&mut map, "dry_run", flag, &mut body.dry_run)?;
                }
                setting => read_setting(&mut map, setting, &mut body.patch)?,
            }
        }
        // Left to refuse: `null` for a setting without default, and a `default_lane` without its lane.
        body.patch.validate().map_err(A::Error::custom)?;
        Ok(body)
    }
}

fn read_setting<'de, A: MapAccess<'de>>(
    map: &mut A,
    field: &str,
    patch: &mut SettingsPatch,
) -> Result<(), A::Error> {
    let Some(setting) = Setting::named(field) else {
        return Err(A::Error::unknown_field(field, SETTING_NAMES));
    };
    if setting.change(patch).is_some() {
        return Err(A::Error::duplicate_field(setting.name));
    }
    let change = read_value(map, setting.kind)?;
    let set = setting.set_change(patch, change);
    set.map_err(A::Error::custom)
}

fn read_value<'de, A: MapAccess<'de>>(
    map: &mut A,
    kind: SettingKind,
) -> Result<Change<SettingValue>, A::Error> {
    match kind {
        SettingKind::Number { least, most } | SettingKind::TimeMs { least, most } => {
            let visitor = WholeVisitor {
                min: least,
                max: most,
            };
            read(map, Any(visitor), SettingValue::Number)
        }
        SettingKind::Flag => read(map, Any(BoolVisitor), SettingValue::Flag),
        SettingKind::Phase => read(map, Any(PhaseVisitor), SettingValue::Phase),
        SettingKind::Admission => read(map, Any(AdmissionVisitor), SettingValue::Admission),
        SettingKind::Gate => read(map, Any(GateVisitor), SettingValue::Gate),
        SettingKind::Opening => read(map, Any(OpeningVisitor), SettingValue::Opening),
        SettingKind::Text { .. } => read(map, Any(TextVisitor), SettingValue::Text),
        SettingKind::LaneName => read(map, Any(NameVisitor::default()), SettingValue::LaneName),
        SettingKind::AdmissionRate => read(map, PhantomData, |parts: RateParts| {
            SettingValue::AdmissionRate(parts.into())
        }),
        SettingKind::Quota => read(map, PhantomData, |parts: QuotaParts| {
            SettingValue::Quota(parts.into())
        }),
        SettingKind::Lanes => read(map, Any(LanesVisitor), SettingValue::Lanes),
        SettingKind::Positions => read(map, Any(PositionsVisitor), SettingValue::Positions),
        SettingKind::Schedule => read(map, Any(ScheduleVisitor), SettingValue::Schedule),
        SettingKind::Labels => read(map, Any(LabelsVisitor), SettingValue::Labels),
    }
}

fn read<'de, A: MapAccess<'de>, S: DeserializeSeed<'de>>(
    map: &mut A,
    seed: S,
    wrap: impl FnOnce(S::Value) -> SettingValue,
) -> Result<Change<SettingValue>, A::Error> {
    Ok(match map.next_value_seed(OrNull(seed))? {
        Change::Set(value) => Change::Set(wrap(value)),
        Change::Unset => Change::Unset,
    })
}

/// Reads what its visitor reads. Both formats are self-describing, so it asks for no type.
struct Any<V>(V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for Any<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        deserializer.deserialize_any(self.0)
    }
}

/// Reads `null` as [`Change::Unset`], anything else as `S` does.
struct OrNull<S>(S);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for OrNull<S> {
    type Value = Change<S::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, S: DeserializeSeed<'de>> Visitor<'de> for OrNull<S> {
    type Value = Change<S::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, or null")
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Change::Unset)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        self.0.deserialize(deserializer).map(Change::Set)
    }
}

/// The settings that a patch names, in the order of the contract, as a reply shows them.
pub(crate) fn named_values(patch: &SettingsPatch) -> impl Iterator<Item = (&'static str, Value)> {
    SETTINGS.iter().filter_map(|setting| {
        let shown = match setting.change(patch)? {
            // A name, a number or a text is always JSON.
            Change::Set(value) => serde_json::to_value(Shown(&value)).unwrap_or_default(),
            Change::Unset => Value::Null,
        };
        Some((setting.name, shown))
    })
}

/// What a request has beside its settings.
#[derive(Default)]
pub(crate) struct Beside<'a> {
    pub(crate) dry_run: bool,
    pub(crate) conditions: &'a [(&'static str, Option<u64>)],
}

/// Writes the settings that a patch names, after what is `beside` them and has a value.
pub(crate) fn serialize<S: Serializer>(
    patch: &SettingsPatch,
    beside: &Beside<'_>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    if beside.dry_run {
        map.serialize_entry("dry_run", &true)?;
    }
    for (name, value) in beside.conditions {
        if let Some(value) = value {
            map.serialize_entry(name, value)?;
        }
    }
    for setting in SETTINGS {
        match setting.change(patch) {
            None => {}
            Some(Change::Set(value)) => map.serialize_entry(setting.name, &Shown(&value))?,
            Some(Change::Unset) => map.serialize_entry(setting.name, &())?,
        }
    }
    map.end()
}

/// A setting's value as payloads have it.
struct Shown<'a>(&'a SettingValue);

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            SettingValue::Number(number) => number.serialize(serializer),
            SettingValue::Flag(flag) => flag.serialize(serializer),
            SettingValue::Phase(phase) => phase.as_str().serialize(serializer),
            SettingValue::Admission(admission) => admission.as_str().serialize(serializer),
            SettingValue::Gate(gate) => gate.as_str().serialize(serializer),
            SettingValue::Opening(opening) => opening.as_str().serialize(serializer),
            SettingValue::Text(text) => text.serialize(serializer),
            SettingValue::LaneName(name) => name.as_str().serialize(serializer),
            SettingValue::AdmissionRate(rate) => {
                AdmissionRateReply::from(*rate).serialize(serializer)
            }
            SettingValue::Quota(quota) => QuotaReply::from(*quota).serialize(serializer),
            SettingValue::Lanes(lanes) => {
                serializer.collect_seq(lanes.iter().map(LaneSettingsReply::from))
            }
            SettingValue::Positions(positions) => positions.serialize(serializer),
            SettingValue::Schedule(schedule) => {
                serializer.collect_seq(schedule.iter().map(ScheduledChangeReply::from))
            }
            SettingValue::Labels(labels) => labels.serialize(serializer),
        }
    }
}
