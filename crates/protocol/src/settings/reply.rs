//! Settings as operators see them. A reply can be sent back as a request: each field is written as
//! it is read, and null stands for what is not set.

use std::collections::BTreeMap;
use std::fmt;

use nowserving_line::{
    AdmissionRate, LaneName, LaneSettings, Quota, RATE_MICRO_MAX, RATE_MICRO_MIN, Settings,
};
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::wire;

/// All settings of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingsReply {
    /// How many may be in checkout at once.
    pub seats: u32,
    /// How many more than `seats` may be in the line.
    pub queue_limit: u32,
    /// A waiting token not heard from for longer is recycled.
    pub waiting_idle_timeout_ms: u64,
    /// How long an admitted token has to claim.
    pub claim_timeout_ms: u64,
    /// How long a claimed seat lasts without `renew`.
    pub checkout_timeout_ms: u64,
    /// Where renewing ends, counted from the claim.
    pub checkout_max_ms: u64,
    /// How fast seats are given; null: as fast as they become free.
    #[serde(default)]
    pub admission_rate: Option<AdmissionRateReply>,
    /// The lanes.
    #[serde(default)]
    pub lanes: Vec<LaneSettingsReply>,
    /// The lane of those who enter without naming one; null: the first.
    #[serde(default, with = "wire::name_option")]
    pub default_lane: Option<LaneName>,
    /// How many of each lane are called to prepare.
    #[serde(default)]
    pub call_ahead: u32,
    /// How much there is to be had; null: no end to it.
    #[serde(default)]
    pub quota: Option<QuotaReply>,
    /// `pre_open`, `open`, `paused`, `draining` or `closed`; others may come.
    #[serde(default)]
    pub phase: String,
    /// Positions past it are not shown; null: all are.
    #[serde(default)]
    pub position_cap: Option<u32>,
    /// Whether a claim also completes.
    #[serde(default)]
    pub release_on_claim: bool,
    /// Whether an event is published per token.
    pub token_events: bool,
    /// Free words by which lines are listed.
    pub labels: BTreeMap<String, String>,
}

impl From<&Settings> for SettingsReply {
    fn from(settings: &Settings) -> SettingsReply {
        SettingsReply {
            seats: settings.seats,
            queue_limit: settings.queue_limit,
            waiting_idle_timeout_ms: settings.waiting_idle_timeout_ms,
            claim_timeout_ms: settings.claim_timeout_ms,
            checkout_timeout_ms: settings.checkout_timeout_ms,
            checkout_max_ms: settings.checkout_max_ms,
            admission_rate: settings.admission_rate.map(Into::into),
            lanes: settings.lanes.iter().map(Into::into).collect(),
            default_lane: settings.default_lane.clone(),
            call_ahead: settings.call_ahead,
            quota: settings.quota.map(Into::into),
            phase: settings.phase.as_str().to_owned(),
            position_cap: settings.position_cap,
            release_on_claim: settings.release_on_claim,
            token_events: settings.token_events,
            labels: settings.labels.clone(),
        }
    }
}

/// How fast seats are given.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionRateReply {
    /// Admissions a second.
    pub per_second: PerSecond,
    /// How many can be saved up.
    pub burst: u32,
}

impl From<AdmissionRate> for AdmissionRateReply {
    fn from(rate: AdmissionRate) -> AdmissionRateReply {
        AdmissionRateReply {
            per_second: PerSecond::from_micro(rate.per_second_micro),
            burst: rate.burst,
        }
    }
}

/// One lane of the settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneSettingsReply {
    /// Its name.
    #[serde(with = "wire::name")]
    pub name: LaneName,
    /// Its tokens count as having entered so much earlier.
    #[serde(default)]
    pub boost_ms: u64,
    /// As long as somebody waits in it, lanes that are not absolute get no seat.
    #[serde(default)]
    pub absolute: bool,
    /// At most so many wait in it; null: only the line's limit counts.
    #[serde(default)]
    pub queue_limit: Option<u32>,
}

impl From<&LaneSettings> for LaneSettingsReply {
    fn from(lane: &LaneSettings) -> LaneSettingsReply {
        LaneSettingsReply {
            name: lane.name.clone(),
            boost_ms: lane.boost_ms,
            absolute: lane.absolute,
            queue_limit: lane.queue_limit,
        }
    }
}

/// How much there is to be had.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaReply {
    /// How many can complete.
    pub total: u64,
    /// By how much more than `total` may hope, in percent of it.
    #[serde(default)]
    pub standby_percent: u32,
}

impl From<Quota> for QuotaReply {
    fn from(quota: Quota) -> QuotaReply {
        QuotaReply {
            total: quota.total,
            standby_percent: quota.standby_percent,
        }
    }
}

/// Admissions a second, in millionths: a decimal number outside, whole numbers inside, as replicas
/// must not depend on how a machine rounds.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PerSecond(u64);

const MICRO: u64 = 1_000_000;

impl PerSecond {
    /// So many millionths.
    pub fn from_micro(micro: u64) -> PerSecond {
        PerSecond(micro)
    }

    /// In millionths.
    pub fn micro(self) -> u64 {
        self.0
    }

    /// The number as one that computers round.
    pub fn as_f64(self) -> f64 {
        // Exact up to the division: there are less than 2^53 millionths.
        self.0 as f64 / MICRO as f64
    }

    /// A number from 0.001 to 1,000,000, cut down to millionths; `None` if it is not one.
    pub fn from_f64(number: f64) -> Option<PerSecond> {
        let least = PerSecond(RATE_MICRO_MIN).as_f64();
        let most = PerSecond(RATE_MICRO_MAX).as_f64();
        if !(least..=most).contains(&number) {
            return None;
        }
        // 1.000003 × 10^6 is computed as 1000002.9999999999. Who wrote millionths gets them, and
        // what lies between two of them is cut.
        let nearest = PerSecond((number * MICRO as f64).round() as u64);
        if nearest.as_f64() <= number {
            Some(nearest)
        } else {
            Some(PerSecond(nearest.0.saturating_sub(1)))
        }
    }
}

impl fmt::Display for PerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_f64().fmt(f)
    }
}

impl Serialize for PerSecond {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(MICRO) {
            serializer.serialize_u64(self.0 / MICRO)
        } else {
            serializer.serialize_f64(self.as_f64())
        }
    }
}

impl<'de> Deserialize<'de> for PerSecond {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PerSecond, D::Error> {
        deserializer.deserialize_any(PerSecondVisitor)
    }
}

/// Reads a rate within its limits.
pub(super) struct PerSecondVisitor;

impl Visitor<'_> for PerSecondVisitor {
    type Value = PerSecond;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number from 0.001 to 1000000")
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<PerSecond, E> {
        PerSecond::from_f64(number).ok_or_else(|| {
            // With an exponent: 10^300 has 300 digits else.
            let found = format!("the number {number:e}");
            E::invalid_value(Unexpected::Other(&found), &self)
        })
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<PerSecond, E> {
        let micro = number
            .checked_mul(MICRO)
            .filter(|micro| (RATE_MICRO_MIN..=RATE_MICRO_MAX).contains(micro));
        micro
            .map(PerSecond)
            .ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<PerSecond, E> {
        match u64::try_from(number) {
            Ok(number) => self.visit_u64(number),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
        }
    }
}
