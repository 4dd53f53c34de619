//! Settings as operators see them. A reply can be sent back as a request: each field is written as
//! it is read, and null means unset.

use std::collections::BTreeMap;
use std::fmt;

use nowserving_line::{
    Admission, AdmissionRate, Gate, Labels, LaneName, LaneSettings, Lanes, Opening, Phase,
    Positions, Quota, RATE_MICRO_MAX, RATE_MICRO_MIN, Renew, Schedule, ScheduledChange, Settings,
};
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::named_values;
use crate::{time, wire};

/// The type of a field of [`SettingsReply`], by how its default is given and its type in
/// [`Settings`].
macro_rules! field_type {
    (unset $type:ident) => { Option<field_type!(value $type)> };
    ($default:ident AdmissionRate) => { AdmissionRateReply };
    ($default:ident Quota) => { QuotaReply };
    ($default:ident Lanes) => { Vec<LaneSettingsReply> };
    ($default:ident Positions) => { Vec<u32> };
    ($default:ident Schedule) => { Vec<ScheduledChangeReply> };
    ($default:ident LaneName) => { String };
    ($default:ident Phase) => { String };
    ($default:ident Admission) => { String };
    ($default:ident Gate) => { String };
    ($default:ident Opening) => { String };
    ($default:ident $plain:ident) => { $plain };
}

macro_rules! define {
    ($(
        #[doc = $text:literal] $(#[doc = $more:literal])*
        $number:literal $name:ident: $type:ident = $default:ident $(($argument:expr))?,
        $kind:ident $({ $($range:tt)* })?;
    )*) => {
        /// All settings of a line; `None`: it is not set. Words for which there is an enum are
        /// texts here: later releases may have more of them.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub struct SettingsReply {
            $(#[doc = $text] #[serde(default)] pub $name: field_type!($default $type),)*
        }

        impl From<&Settings> for SettingsReply {
            fn from(settings: &Settings) -> SettingsReply {
                SettingsReply { $($name: settings.$name.as_reply(),)* }
            }
        }
    };
}

nowserving_line::for_each_setting!(define);

/// A field of [`Settings`] as a reply has it.
trait AsReply<R> {
    fn as_reply(&self) -> R;
}

impl<T: AsReply<R>, R> AsReply<Option<R>> for Option<T> {
    fn as_reply(&self) -> Option<R> {
        self.as_ref().map(AsReply::as_reply)
    }
}

macro_rules! as_reply {
    ($($type:ty as $reply:ty: $value:ident => $shown:expr;)*) => {$(
        impl AsReply<$reply> for $type {
            fn as_reply(&self) -> $reply {
                let $value = self;
                $shown
            }
        }
    )*};
}

as_reply! {
    u32 as u32: number => *number;
    u64 as u64: number => *number;
    bool as bool: flag => *flag;
    Phase as String: phase => phase.as_str().to_owned();
    Admission as String: admission => admission.as_str().to_owned();
    Gate as String: gate => gate.as_str().to_owned();
    Opening as String: opening => opening.as_str().to_owned();
    String as String: text => text.clone();
    LaneName as String: name => name.as_str().to_owned();
    AdmissionRate as AdmissionRateReply: rate => (*rate).into();
    Quota as QuotaReply: quota => (*quota).into();
    Lanes as Vec<LaneSettingsReply>: lanes => lanes.iter().map(Into::into).collect();
    Positions as Vec<u32>: positions => positions.clone();
    Schedule as Vec<ScheduledChangeReply>: schedule => schedule.iter().map(Into::into).collect();
    Labels as Labels: labels => labels.clone();
}

/// How fast seats are given.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AdmissionRateReply {
    /// Admissions per second.
    pub per_second: PerSecond,
    /// How many admissions can be saved up.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LaneSettingsReply {
    /// The lane's name.
    #[serde(with = "wire::Name")]
    pub name: LaneName,
    /// Its tokens count as having entered this much earlier.
    #[serde(default)]
    pub boost_ms: u64,
    /// While a token waits in it, lanes that are not absolute get no seat.
    #[serde(default)]
    pub absolute: bool,
    /// At most this many tokens wait in it; null: only the line's limit counts.
    #[serde(default)]
    pub queue_limit: Option<u32>,
    /// Whether waiting tokens may jump into it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub jump: bool,
}

impl From<&LaneSettings> for LaneSettingsReply {
    fn from(lane: &LaneSettings) -> LaneSettingsReply {
        LaneSettingsReply {
            name: lane.name.clone(),
            boost_ms: lane.boost_ms,
            absolute: lane.absolute,
            queue_limit: lane.queue_limit,
            jump: lane.jump,
        }
    }
}

/// A change of settings at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScheduledChangeReply {
    /// The time, RFC 3339 in UTC.
    pub at: String,
    /// The settings that it changes, as in [`SettingsReply`].
    pub set: BTreeMap<String, Value>,
}

impl From<&ScheduledChange> for ScheduledChangeReply {
    fn from(change: &ScheduledChange) -> ScheduledChangeReply {
        let set = named_values(&change.set);
        ScheduledChangeReply {
            at: time::text(change.at_ms),
            set: set.map(|(name, value)| (name.to_owned(), value)).collect(),
        }
    }
}

/// How many units of something can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QuotaReply {
    /// The number of units.
    pub total: u64,
    /// How many more than `total` may enter, in percent of it.
    #[serde(default)]
    pub standby_percent: u32,
    /// When what was used counts no longer; null: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew: Option<RenewReply>,
    /// How many units a seat reserves.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub per_visit: u32,
}

fn one() -> u32 {
    1
}

fn is_one(units: &u32) -> bool {
    *units == 1
}

/// When a quota is renewed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum RenewReply {
    /// Each day.
    Daily {
        /// The time of day, as `06:00`.
        at: String,
        /// The time zone, as `Asia/Taipei`.
        zone: String,
    },
    /// At each multiple of this time since 1970.
    Every {
        /// In milliseconds.
        every_ms: u64,
    },
}

impl From<Renew> for RenewReply {
    fn from(renew: Renew) -> RenewReply {
        match renew {
            Renew::Every { ms } => RenewReply::Every { every_ms: ms },
            Renew::Daily { minute, zone } => RenewReply::Daily {
                at: time::minute_text(minute),
                zone: zone.as_str().to_owned(),
            },
        }
    }
}

impl From<Quota> for QuotaReply {
    fn from(quota: Quota) -> QuotaReply {
        QuotaReply {
            total: quota.total,
            standby_percent: quota.standby_percent,
            renew: quota.renew.map(Into::into),
            per_visit: quota.per_visit,
        }
    }
}

/// Admissions a second, in millionths: a decimal number in payloads, whole numbers in the state,
/// because replicas must not depend on how a machine rounds.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PerSecond(u64);

const MICRO: u64 = 1_000_000;

impl PerSecond {
    /// From millionths per second.
    pub fn from_micro(micro: u64) -> PerSecond {
        PerSecond(micro)
    }

    /// In millionths per second.
    pub fn micro(self) -> u64 {
        self.0
    }

    /// The number, rounded to the nearest `f64`.
    pub fn as_f64(self) -> f64 {
        // Exact up to the division: there are less than 2^53 millionths.
        self.0 as f64 / MICRO as f64
    }

    /// A number from 0.001 to 1,000,000, truncated to millionths; `None` if it is not one.
    pub fn from_f64(number: f64) -> Option<PerSecond> {
        let least = PerSecond(RATE_MICRO_MIN).as_f64();
        let most = PerSecond(RATE_MICRO_MAX).as_f64();
        if !(least..=most).contains(&number) {
            return None;
        }
        // 1.000003 × 10^6 is computed as 1000002.9999999999. Numbers of whole millionths are kept,
        // and those between two of them are truncated.
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
struct PerSecondVisitor;

impl Visitor<'_> for PerSecondVisitor {
    type Value = PerSecond;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number from 0.001 to 1000000")
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<PerSecond, E> {
        PerSecond::from_f64(number)
            .ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
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
