//! Readers of the settings that have parts.

use std::fmt;
use std::marker::PhantomData;

use nowserving_line::{
    AdmissionRate, BOOST_MS_MAX, LANES_MAX, LaneName, LaneSettings, Phase, QUEUE_LIMIT_MAX,
    QUOTA_TOTAL_MAX, Quota, RATE_BURST_MAX, STANDBY_PERCENT_MAX,
};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Unexpected, Visitor};

use super::PerSecond;
use crate::codec::MapVisitor;
use crate::wire;

/// An admission rate in a request; both parts are required.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateParts {
    per_second: PerSecond,
    #[serde(deserialize_with = "wire::whole::<u32, 1, { RATE_BURST_MAX as u64 }, _>")]
    burst: u32,
}

pub(super) const RATE: MapVisitor<RateParts> =
    MapVisitor("a map of `per_second` and `burst`", PhantomData);

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
#[serde(deny_unknown_fields)]
pub(super) struct QuotaParts {
    #[serde(deserialize_with = "wire::whole::<u64, 1, QUOTA_TOTAL_MAX, _>")]
    total: u64,
    #[serde(
        default,
        deserialize_with = "wire::whole_option::<u32, 0, { STANDBY_PERCENT_MAX as u64 }, _>"
    )]
    standby_percent: Option<u32>,
}

pub(super) const QUOTA: MapVisitor<QuotaParts> =
    MapVisitor("a map of `total` and `standby_percent`", PhantomData);

impl From<QuotaParts> for Quota {
    fn from(parts: QuotaParts) -> Quota {
        Quota {
            total: parts.total,
            standby_percent: parts.standby_percent.unwrap_or(0),
        }
    }
}

/// A lane in a request; all parts but the name can be left out or null.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LaneParts {
    #[serde(with = "wire::name")]
    name: LaneName,
    #[serde(
        default,
        deserialize_with = "wire::whole_option::<u64, 0, BOOST_MS_MAX, _>"
    )]
    boost_ms: Option<u64>,
    #[serde(default)]
    absolute: Option<wire::Flag>,
    #[serde(
        default,
        deserialize_with = "wire::whole_option::<u32, 0, { QUEUE_LIMIT_MAX as u64 }, _>"
    )]
    queue_limit: Option<u32>,
    #[serde(default)]
    jump: Option<wire::Flag>,
}

const LANE: MapVisitor<LaneParts> = MapVisitor(
    "a map of `name`, `boost_ms`, `absolute`, `queue_limit` and `jump`",
    PhantomData,
);

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
        let parts = deserializer.deserialize_any(LANE)?;
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
