//! Readers of the settings that have parts. By hand, because derived readers also take arrays for
//! maps and numbers for the names of fields.

use std::fmt;

use nowserving_line::{
    AdmissionRate, BOOST_MS_MAX, Change, LANES_MAX, LaneName, LaneSettings, Phase, QUEUE_LIMIT_MAX,
    QUOTA_TOTAL_MAX, Quota, RATE_BURST_MAX, STANDBY_PERCENT_MAX,
};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};

use super::reply::PerSecondVisitor;
use super::{fill, set};
use crate::wire::{BoolVisitor, NameVisitor, WholeVisitor};

const BURST: WholeVisitor<u32> = WholeVisitor {
    min: 1,
    max: RATE_BURST_MAX,
};
const BOOST_MS: WholeVisitor<u64> = WholeVisitor {
    min: 0,
    max: BOOST_MS_MAX,
};
const QUEUE_LIMIT: WholeVisitor<u32> = WholeVisitor {
    min: 0,
    max: QUEUE_LIMIT_MAX,
};
const TOTAL: WholeVisitor<u64> = WholeVisitor {
    min: 1,
    max: QUOTA_TOTAL_MAX,
};
const STANDBY_PERCENT: WholeVisitor<u32> = WholeVisitor {
    min: 0,
    max: STANDBY_PERCENT_MAX,
};

/// Reads `{per_second, burst}`; both are required.
pub(super) struct RateVisitor;

impl<'de> Visitor<'de> for RateVisitor {
    type Value = AdmissionRate;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of `per_second` and `burst`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<AdmissionRate, A::Error> {
        let (mut per_second, mut burst) = (None, None);
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                "per_second" => need(&mut map, "per_second", PerSecondVisitor, &mut per_second)?,
                "burst" => need(&mut map, "burst", BURST, &mut burst)?,
                other => return Err(A::Error::unknown_field(other, &["per_second", "burst"])),
            }
        }
        let per_second = per_second.ok_or_else(|| A::Error::missing_field("per_second"))?;
        Ok(AdmissionRate {
            per_second_micro: per_second.micro(),
            burst: burst.ok_or_else(|| A::Error::missing_field("burst"))?,
        })
    }
}

/// Reads `{total, standby_percent}`; the second is 0 by default.
pub(super) struct QuotaVisitor;

impl<'de> Visitor<'de> for QuotaVisitor {
    type Value = Quota;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of `total` and `standby_percent`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Quota, A::Error> {
        let (mut total, mut standby) = (None, None);
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                "total" => need(&mut map, "total", TOTAL, &mut total)?,
                "standby_percent" => {
                    set(&mut map, "standby_percent", STANDBY_PERCENT, &mut standby)?;
                }
                other => {
                    return Err(A::Error::unknown_field(
                        other,
                        &["total", "standby_percent"],
                    ));
                }
            }
        }
        Ok(Quota {
            total: total.ok_or_else(|| A::Error::missing_field("total"))?,
            standby_percent: value_of(standby).unwrap_or(0),
        })
    }
}

/// Reads the list of lanes. It stops at one too many, so that a refusal costs no more than a valid
/// list.
pub(super) struct LanesVisitor;

impl<'de> Visitor<'de> for LanesVisitor {
    type Value = Vec<LaneSettings>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of 1 to {LANES_MAX} lanes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut lanes: Vec<LaneSettings> = Vec::new();
        while let Some(lane) = seq.next_element_seed(Lane(&lanes))? {
            lanes.push(lane);
        }
        if lanes.is_empty() {
            return Err(A::Error::invalid_length(0, &self));
        }
        Ok(lanes)
    }
}

/// Reads one lane, whose name must differ from those before it.
struct Lane<'a>(&'a [LaneSettings]);

impl<'de> DeserializeSeed<'de> for Lane<'_> {
    type Value = LaneSettings;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<LaneSettings, D::Error> {
        if self.0.len() == LANES_MAX {
            return Err(D::Error::custom(format_args!(
                "a list of 1 to {LANES_MAX} lanes"
            )));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Lane<'_> {
    type Value = LaneSettings;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of `name`, `boost_ms`, `absolute` and `queue_limit`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LaneSettings, A::Error> {
        let mut name: Option<LaneName> = None;
        let (mut boost_ms, mut absolute, mut queue_limit) = (None, None, None);
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                "name" => need(&mut map, "name", FreshName(self.0), &mut name)?,
                "boost_ms" => set(&mut map, "boost_ms", BOOST_MS, &mut boost_ms)?,
                "absolute" => set(&mut map, "absolute", BoolVisitor, &mut absolute)?,
                "queue_limit" => set(&mut map, "queue_limit", QUEUE_LIMIT, &mut queue_limit)?,
                other => {
                    let fields = &["name", "boost_ms", "absolute", "queue_limit"];
                    return Err(A::Error::unknown_field(other, fields));
                }
            }
        }
        Ok(LaneSettings {
            name: name.ok_or_else(|| A::Error::missing_field("name"))?,
            boost_ms: value_of(boost_ms).unwrap_or(0),
            absolute: value_of(absolute).unwrap_or(false),
            queue_limit: value_of(queue_limit),
        })
    }
}

/// Reads a name that none of these lanes has.
struct FreshName<'a>(&'a [LaneSettings]);

impl Visitor<'_> for FreshName<'_> {
    type Value = LaneName;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Visitor::expecting(&NameVisitor::<LaneName>::default(), f)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<LaneName, E> {
        let name: LaneName = NameVisitor::default().visit_str(text)?;
        if self.0.iter().any(|lane| lane.name == name) {
            return Err(E::custom(format_args!("another lane has the name {name}")));
        }
        Ok(name)
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

/// Reads a part that cannot be null into its place.
fn need<'de, A, V>(
    map: &mut A,
    field: &'static str,
    visitor: V,
    place: &mut Option<V::Value>,
) -> Result<(), A::Error>
where
    A: MapAccess<'de>,
    V: Visitor<'de>,
{
    fill(map, field, Needed(visitor), place)
}

struct Needed<V>(V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for Needed<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self.0)
    }
}

/// A missing part and one that is null are the same: it has its default.
fn value_of<T>(change: Option<Change<T>>) -> Option<T> {
    match change {
        Some(Change::Set(value)) => Some(value),
        Some(Change::Unset) | None => None,
    }
}
