//! A line's settings in operators' requests: any subset of them, `null` to unset
//! one. Each is read with its limits at hand, so that a refusal can name them.

mod parts;
mod reply;

use std::fmt;

use nowserving_line::{
    CALL_AHEAD_MAX, Change, NUMBER_MAX, POSITION_CAP_MAX, QUEUE_LIMIT_MAX, SEATS_MAX,
    SettingsPatch, TIMEOUT_MS_MAX, TIMEOUT_MS_MIN,
};
pub use reply::{AdmissionRateReply, LaneSettingsReply, PerSecond, QuotaReply, SettingsReply};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use self::parts::{LanesVisitor, PhaseVisitor, QuotaVisitor, RateVisitor};
use crate::wire::{BoolVisitor, LabelsVisitor, NameVisitor, WholeVisitor};

const SEATS: WholeVisitor<u32> = WholeVisitor {
    min: 1,
    max: SEATS_MAX,
};
const QUEUE_LIMIT: WholeVisitor<u32> = WholeVisitor {
    min: 0,
    max: QUEUE_LIMIT_MAX,
};
const TIMEOUT_MS: WholeVisitor<u64> = WholeVisitor {
    min: TIMEOUT_MS_MIN,
    max: TIMEOUT_MS_MAX,
};
const CALL_AHEAD: WholeVisitor<u32> = WholeVisitor {
    min: 0,
    max: CALL_AHEAD_MAX,
};
const POSITION_CAP: WholeVisitor<u32> = WholeVisitor {
    min: 1,
    max: POSITION_CAP_MAX,
};
const VERSION: WholeVisitor<u64> = WholeVisitor {
    min: 0,
    max: NUMBER_MAX,
};

/// What can be set.
const FIELDS: &[&str] = &[
    "seats",
    "queue_limit",
    "waiting_idle_timeout_ms",
    "claim_timeout_ms",
    "checkout_timeout_ms",
    "checkout_max_ms",
    "admission_rate",
    "lanes",
    "default_lane",
    "call_ahead",
    "quota",
    "phase",
    "position_cap",
    "release_on_claim",
    "token_events",
    "labels",
];

/// The settings in a request, and the conditions of the change.
#[derive(Default)]
pub(crate) struct Body {
    pub(crate) patch: SettingsPatch,
    pub(crate) if_version: Option<Change<u64>>,
    pub(crate) incarnation: Option<Change<u64>>,
}

/// Reads a [`Body`]; only `configure` has conditions.
pub(crate) struct BodyVisitor {
    pub(crate) conditional: bool,
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
                    set(&mut map, "if_version", VERSION, &mut body.if_version)?;
                }
                "incarnation" if self.conditional => {
                    set(&mut map, "incarnation", VERSION, &mut body.incarnation)?;
                }
                setting => read_setting(&mut map, setting, &mut body.patch)?,
            }
        }
        // What is left to find: `null` for a setting that has no default.
        body.patch.validate().map_err(A::Error::custom)?;
        Ok(body)
    }
}

fn read_setting<'de, A: MapAccess<'de>>(
    map: &mut A,
    field: &str,
    patch: &mut SettingsPatch,
) -> Result<(), A::Error> {
    /// Each setting: its name, which is that of its place, and who reads it.
    macro_rules! settings {
        ($($name:ident: $visitor:expr,)*) => {
            match field {
                $(stringify!($name) => set(map, stringify!($name), $visitor, &mut patch.$name),)*
                unknown => Err(A::Error::unknown_field(unknown, FIELDS)),
            }
        };
    }
    settings! {
        seats: SEATS,
        queue_limit: QUEUE_LIMIT,
        waiting_idle_timeout_ms: TIMEOUT_MS,
        claim_timeout_ms: TIMEOUT_MS,
        checkout_timeout_ms: TIMEOUT_MS,
        checkout_max_ms: TIMEOUT_MS,
        admission_rate: RateVisitor,
        lanes: LanesVisitor,
        default_lane: NameVisitor::default(),
        call_ahead: CALL_AHEAD,
        quota: QuotaVisitor,
        phase: PhaseVisitor,
        position_cap: POSITION_CAP,
        release_on_claim: BoolVisitor,
        token_events: BoolVisitor,
        labels: LabelsVisitor,
    }
}

/// Reads one value, or null, into its place.
fn set<'de, A, V>(
    map: &mut A,
    field: &'static str,
    visitor: V,
    place: &mut Option<Change<V::Value>>,
) -> Result<(), A::Error>
where
    A: MapAccess<'de>,
    V: Visitor<'de>,
{
    fill(map, field, OrNull(visitor), place)
}

/// Reads one value into its place, where nothing may stand yet.
fn fill<'de, A, S>(
    map: &mut A,
    field: &'static str,
    seed: S,
    place: &mut Option<S::Value>,
) -> Result<(), A::Error>
where
    A: MapAccess<'de>,
    S: DeserializeSeed<'de>,
{
    if place.is_some() {
        return Err(A::Error::duplicate_field(field));
    }
    *place = Some(map.next_value_seed(seed)?);
    Ok(())
}

/// Reads `null` as [`Change::Unset`], anything else as `V` does.
struct OrNull<V>(V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for OrNull<V> {
    type Value = Change<V::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for OrNull<V> {
    type Value = Change<V::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)?;
        f.write_str(", or null")
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Change::Unset)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        // Both formats say what stands there, so the visitor need not ask for a type.
        deserializer.deserialize_any(self.0).map(Change::Set)
    }
}

/// What a patch names, in the order of the contract, as a reply shows it.
pub(crate) fn named_values(patch: &SettingsPatch) -> impl Iterator<Item = (&'static str, Value)> {
    let mut map = match serialize(patch, &[], serde_json::value::Serializer) {
        Ok(Value::Object(map)) => map,
        // Nothing else comes of a map of names, numbers and texts.
        _ => serde_json::Map::new(),
    };
    let named = move |name: &&'static str| Some((*name, map.remove(*name)?));
    FIELDS.iter().filter_map(named)
}

/// Writes what a patch names, after those of `conditions` that have a value.
pub(crate) fn serialize<S: Serializer>(
    patch: &SettingsPatch,
    conditions: &[(&'static str, Option<u64>)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let SettingsPatch {
        seats,
        queue_limit,
        waiting_idle_timeout_ms,
        claim_timeout_ms,
        checkout_timeout_ms,
        checkout_max_ms,
        admission_rate,
        lanes,
        default_lane,
        call_ahead,
        quota,
        phase,
        position_cap,
        release_on_claim,
        token_events,
        labels,
    } = patch;
    let mut map = serializer.serialize_map(None)?;
    for (name, value) in conditions {
        if let Some(value) = value {
            map.serialize_entry(name, value)?;
        }
    }
    put(&mut map, "seats", seats)?;
    put(&mut map, "queue_limit", queue_limit)?;
    put(&mut map, "waiting_idle_timeout_ms", waiting_idle_timeout_ms)?;
    put(&mut map, "claim_timeout_ms", claim_timeout_ms)?;
    put(&mut map, "checkout_timeout_ms", checkout_timeout_ms)?;
    put(&mut map, "checkout_max_ms", checkout_max_ms)?;
    let rate = written(admission_rate, |rate| AdmissionRateReply::from(*rate));
    put(&mut map, "admission_rate", &rate)?;
    let lanes = written(lanes, |lanes| {
        let lanes = lanes.iter().map(LaneSettingsReply::from);
        lanes.collect::<Vec<_>>()
    });
    put(&mut map, "lanes", &lanes)?;
    let default_lane = written(default_lane, |name| name.as_str().to_owned());
    put(&mut map, "default_lane", &default_lane)?;
    put(&mut map, "call_ahead", call_ahead)?;
    let quota = written(quota, |quota| QuotaReply::from(*quota));
    put(&mut map, "quota", &quota)?;
    put(&mut map, "phase", &written(phase, |phase| phase.as_str()))?;
    put(&mut map, "position_cap", position_cap)?;
    put(&mut map, "release_on_claim", release_on_claim)?;
    put(&mut map, "token_events", token_events)?;
    put(&mut map, "labels", labels)?;
    map.end()
}

/// A change of what knows no serde as one of what does.
fn written<T, U>(change: &Option<Change<T>>, write: impl FnOnce(&T) -> U) -> Option<Change<U>> {
    change.as_ref().map(|change| match change {
        Change::Set(value) => Change::Set(write(value)),
        Change::Unset => Change::Unset,
    })
}

fn put<M: SerializeMap, T: Serialize>(
    map: &mut M,
    field: &'static str,
    change: &Option<Change<T>>,
) -> Result<(), M::Error> {
    match change {
        None => Ok(()),
        Some(Change::Set(value)) => map.serialize_entry(field, value),
        Some(Change::Unset) => map.serialize_entry(field, &()),
    }
}
