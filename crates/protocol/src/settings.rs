//! A line's settings in operators' requests: any subset of them, `null` to unset
//! one. Each is read with its limits at hand, so that a refusal can name them.

use std::fmt;

use nowserving_line::{
    Change, NUMBER_MAX, QUEUE_LIMIT_MAX, SEATS_MAX, SettingsPatch, TIMEOUT_MS_MAX, TIMEOUT_MS_MIN,
};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::wire::{BoolVisitor, LabelsVisitor, WholeVisitor};

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
const VERSION: WholeVisitor<u64> = WholeVisitor {
    min: 0,
    max: NUMBER_MAX,
};

/// What this release can set.
const FIELDS: &[&str] = &[
    "seats",
    "queue_limit",
    "waiting_idle_timeout_ms",
    "claim_timeout_ms",
    "checkout_timeout_ms",
    "checkout_max_ms",
    "token_events",
    "labels",
];

/// What the contract has and this release has not. Said in so many words: taken for
/// a misspelling, it would send an operator looking for one.
const LATER: &[&str] = &[
    "admission_rate",
    "lanes",
    "call_ahead",
    "quota",
    "phase",
    "position_cap",
    "release_on_claim",
];

/// The settings in a request, and the condition beside them.
#[derive(Default)]
pub(crate) struct Body {
    pub(crate) patch: SettingsPatch,
    pub(crate) if_version: Option<Change<u64>>,
}

/// Reads a [`Body`]; `if_version` is a field of `configure` only.
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
            if field == "if_version" && self.conditional {
                set(&mut map, "if_version", VERSION, &mut body.if_version)?;
            } else {
                read_setting(&mut map, &field, &mut body.patch)?;
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
    match field {
        "seats" => set(map, "seats", SEATS, &mut patch.seats),
        "queue_limit" => set(map, "queue_limit", QUEUE_LIMIT, &mut patch.queue_limit),
        "waiting_idle_timeout_ms" => set(
            map,
            "waiting_idle_timeout_ms",
            TIMEOUT_MS,
            &mut patch.waiting_idle_timeout_ms,
        ),
        "claim_timeout_ms" => set(
            map,
            "claim_timeout_ms",
            TIMEOUT_MS,
            &mut patch.claim_timeout_ms,
        ),
        "checkout_timeout_ms" => set(
            map,
            "checkout_timeout_ms",
            TIMEOUT_MS,
            &mut patch.checkout_timeout_ms,
        ),
        "checkout_max_ms" => set(
            map,
            "checkout_max_ms",
            TIMEOUT_MS,
            &mut patch.checkout_max_ms,
        ),
        "token_events" => set(map, "token_events", BoolVisitor, &mut patch.token_events),
        "labels" => set(map, "labels", LabelsVisitor, &mut patch.labels),
        later if LATER.contains(&later) => Err(A::Error::custom(format_args!(
            "{later}: this setting comes in a later release, this one cannot set it"
        ))),
        unknown => Err(A::Error::unknown_field(unknown, FIELDS)),
    }
}

/// Reads one value into its place, where nothing may stand yet.
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
    if place.is_some() {
        return Err(A::Error::duplicate_field(field));
    }
    *place = Some(map.next_value_seed(OrNull(visitor))?);
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

/// Writes what a patch names, and `if_version` if there is one.
pub(crate) fn serialize<S: Serializer>(
    patch: &SettingsPatch,
    if_version: Option<u64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let SettingsPatch {
        seats,
        queue_limit,
        waiting_idle_timeout_ms,
        claim_timeout_ms,
        checkout_timeout_ms,
        checkout_max_ms,
        token_events,
        labels,
    } = patch;
    let mut map = serializer.serialize_map(None)?;
    if let Some(version) = if_version {
        map.serialize_entry("if_version", &version)?;
    }
    put(&mut map, "seats", seats)?;
    put(&mut map, "queue_limit", queue_limit)?;
    put(&mut map, "waiting_idle_timeout_ms", waiting_idle_timeout_ms)?;
    put(&mut map, "claim_timeout_ms", claim_timeout_ms)?;
    put(&mut map, "checkout_timeout_ms", checkout_timeout_ms)?;
    put(&mut map, "checkout_max_ms", checkout_max_ms)?;
    put(&mut map, "token_events", token_events)?;
    put(&mut map, "labels", labels)?;
    map.end()
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
