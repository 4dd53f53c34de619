//! Settings between the line crate's types and stored bytes.
//!
//! The two messages, settings and patches of them, are written and read here after
//! `nowserving_line::SETTINGS`, not by generated code: so a new setting needs no change in this
//! crate. proto/settings.proto says what the bytes are.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bytes::{Buf, Bytes};
use nowserving_line::{
    Admission, Change, Gate, LaneSettings, Phase, Quota, Renew, SETTINGS, ScheduledChange, Setting,
    SettingKind, SettingValue, Settings, SettingsPatch, ZoneName,
};
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message};

use crate::command::FORMAT_MIN;
use crate::pb;
use crate::pb::{Malformed, all, lane_name_from_pb};

/// The fields of the first format up to this number are left out if they are 0 or false, as
/// protobuf has it. Later ones are left out while they have their default.
const ZERO_LEFT_OUT: u32 = 7;
/// Labels have always been written, also if there are none.
const ALWAYS_WRITTEN: u32 = 8;

/// The first settings that entries have since format 7, and since format 8.
const SINCE_7: u32 = 17;
const SINCE_8: u32 = 80;

/// In the order in which protobuf writes fields: equal states must be equal bytes.
static BY_NUMBER: LazyLock<BTreeMap<u32, &Setting>> = LazyLock::new(|| {
    let numbered = SETTINGS.iter();
    numbered
        .map(|setting| (setting.field_number, setting))
        .collect()
});

pub(crate) fn settings_to_pb(settings: &Settings) -> Bytes {
    let mut bytes = Vec::new();
    for (&number, setting) in &*BY_NUMBER {
        if let Some(value) = setting.value(settings)
            && (number == ALWAYS_WRITTEN || Some(&value) != left_out(setting).as_ref())
        {
            write(number, &value, &mut bytes);
        }
    }
    bytes.into()
}

/// Ranges are not checked here: the state machine checks them.
pub(crate) fn settings_from_pb(bytes: Bytes) -> Result<Settings, Malformed> {
    let mut patch = SettingsPatch::default();
    for (setting, field) in fields(bytes)? {
        let value = field.read(setting.kind)?;
        set(setting, &mut patch, Change::Set(value))?;
    }
    for setting in SETTINGS {
        if setting.change(&patch).is_none()
            && let Some(value) = left_out(setting)
        {
            set(setting, &mut patch, Change::Set(value))?;
        }
    }
    let settings = Settings::new(1, 0).with_unchecked(&patch);
    settings.map_err(|_| "a required setting is unset")
}

/// The first format of entries that has these settings.
pub(crate) fn settings_format(settings: &Settings) -> u32 {
    newest(|setting| {
        let value = setting.value(settings);
        (value != left_out(setting)).then(|| format_of(setting, value.as_ref()))
    })
}

/// The first format of entries that has the settings which the patch names.
pub(crate) fn patch_format(patch: &SettingsPatch) -> u32 {
    newest(|setting| match setting.change(patch)? {
        Change::Set(value) => Some(format_of(setting, Some(&value))),
        Change::Unset => Some(format_of(setting, None)),
    })
}

fn newest(format: impl FnMut(&Setting) -> Option<u32>) -> u32 {
    SETTINGS
        .iter()
        .filter_map(format)
        .max()
        .unwrap_or(FORMAT_MIN)
}

/// The first format of entries that has this setting with all parts of its value.
fn format_of(setting: &Setting, value: Option<&SettingValue>) -> u32 {
    let of_parts = match value {
        Some(SettingValue::Lanes(lanes)) if lanes.iter().any(|lane| lane.jump) => 7,
        Some(SettingValue::Quota(quota)) if quota.renew.is_some() => 7,
        Some(SettingValue::Schedule(schedule)) => {
            let changes = schedule.iter().map(|change| patch_format(&change.set));
            changes.max().unwrap_or(FORMAT_MIN)
        }
        _ => FORMAT_MIN,
    };
    let own = match setting.field_number {
        SINCE_8.. => 8,
        SINCE_7.. => 7,
        _ => FORMAT_MIN,
    };
    own.max(of_parts)
}

pub(crate) fn patch_to_pb(patch: &SettingsPatch) -> Bytes {
    let mut bytes = Vec::new();
    for (&number, setting) in &*BY_NUMBER {
        let mut inner = Vec::new();
        match setting.change(patch) {
            None => continue,
            Some(Change::Set(value)) => write(1, &value, &mut inner),
            Some(Change::Unset) => {}
        }
        encoding::bytes::encode(number, &inner, &mut bytes);
    }
    bytes.into()
}

pub(crate) fn patch_from_pb(bytes: Bytes) -> Result<SettingsPatch, Malformed> {
    let mut patch = SettingsPatch::default();
    for (setting, field) in fields(bytes)? {
        let mut change = Change::Unset;
        for (number, field) in numbered(field.bytes()?)? {
            if number == 1 {
                change = Change::Set(field.read(setting.kind)?);
            }
        }
        set(setting, &mut patch, change)?;
    }
    Ok(patch)
}

fn set(
    setting: &Setting,
    patch: &mut SettingsPatch,
    change: Change<SettingValue>,
) -> Result<(), Malformed> {
    let set = setting.set_change(patch, change);
    set.map_err(|_| "a setting beyond 32 bits")
}

/// The value of a setting that is not there.
fn left_out(setting: &Setting) -> Option<SettingValue> {
    match setting.kind {
        _ if setting.field_number > ZERO_LEFT_OUT => setting.default_value(),
        SettingKind::Flag => Some(SettingValue::Flag(false)),
        _ => Some(SettingValue::Number(0)),
    }
}

fn write(number: u32, value: &SettingValue, bytes: &mut Vec<u8>) {
    match value {
        SettingValue::Number(value) => encoding::uint64::encode(number, value, bytes),
        SettingValue::Flag(flag) => encoding::bool::encode(number, flag, bytes),
        SettingValue::Phase(phase) => {
            encoding::uint32::encode(number, &phase.code().into(), bytes);
        }
        SettingValue::Admission(admission) => {
            encoding::uint32::encode(number, &admission.code().into(), bytes);
        }
        SettingValue::Gate(gate) => {
            encoding::uint32::encode(number, &gate.code().into(), bytes);
        }
        SettingValue::LaneName(name) => {
            encoding::string::encode(number, &name.as_str().to_owned(), bytes);
        }
        SettingValue::AdmissionRate(rate) => {
            encoding::message::encode(number, &pb::AdmissionRate::from(*rate), bytes);
        }
        SettingValue::Quota(quota) => {
            encoding::message::encode(number, &quota_to_pb(*quota), bytes);
        }
        SettingValue::Lanes(lanes) => {
            encoding::message::encode(number, &lanes_to_pb(lanes), bytes);
        }
        SettingValue::Positions(positions) => {
            let positions = positions.clone();
            encoding::message::encode(number, &pb::Positions { positions }, bytes);
        }
        SettingValue::Schedule(schedule) => {
            encoding::message::encode(number, &schedule_to_pb(schedule), bytes);
        }
        SettingValue::Labels(labels) => {
            encoding::message::encode(number, &labels_to_pb(labels), bytes);
        }
    }
}

/// The value of a field, as it is on the wire.
struct Field {
    wire: WireType,
    /// The bytes after the field's key, to the end of the message.
    from: Bytes,
}

impl Field {
    fn read(mut self, kind: SettingKind) -> Result<SettingValue, Malformed> {
        Ok(match kind {
            SettingKind::Number { .. } | SettingKind::TimeMs { .. } => {
                SettingValue::Number(self.merged(encoding::uint64::merge)?)
            }
            SettingKind::Flag => SettingValue::Flag(self.merged(encoding::bool::merge)?),
            SettingKind::Phase => {
                SettingValue::Phase(phase_from_pb(self.merged(encoding::uint32::merge)?)?)
            }
            SettingKind::Admission => {
                let code = self.merged(encoding::uint32::merge)?;
                SettingValue::Admission(admission_from_pb(code)?)
            }
            SettingKind::Gate => {
                let code = self.merged(encoding::uint32::merge)?;
                SettingValue::Gate(gate_from_pb(code)?)
            }
            SettingKind::LaneName => {
                let name: String = self.merged(encoding::string::merge)?;
                SettingValue::LaneName(lane_name_from_pb(&name)?)
            }
            SettingKind::AdmissionRate => {
                SettingValue::AdmissionRate(self.message::<pb::AdmissionRate>()?.into())
            }
            SettingKind::Quota => SettingValue::Quota(quota_from_pb(self.message()?)?),
            SettingKind::Lanes => SettingValue::Lanes(lanes_from_pb(self.message()?)?),
            SettingKind::Positions => {
                SettingValue::Positions(self.message::<pb::Positions>()?.positions)
            }
            SettingKind::Schedule => SettingValue::Schedule(schedule_from_pb(self.message()?)?),
            SettingKind::Labels => SettingValue::Labels(labels_from_pb(self.message()?)?),
        })
    }

    fn message<M: Message + Default>(&mut self) -> Result<M, Malformed> {
        self.merged(encoding::message::merge)
    }

    fn bytes(mut self) -> Result<Bytes, Malformed> {
        self.merged(encoding::bytes::merge)
    }

    fn merged<T: Default>(
        &mut self,
        merge: impl FnOnce(WireType, &mut T, &mut Bytes, DecodeContext) -> Result<(), DecodeError>,
    ) -> Result<T, Malformed> {
        let mut value = T::default();
        let merged = merge(
            self.wire,
            &mut value,
            &mut self.from,
            DecodeContext::default(),
        );
        merged.map_err(|_| UNREADABLE)?;
        Ok(value)
    }
}

const UNREADABLE: Malformed = "settings that are no protobuf message";

/// The fields of a message that are settings. Those that this build does not know are skipped, as
/// protobuf does.
fn fields(bytes: Bytes) -> Result<Vec<(&'static Setting, Field)>, Malformed> {
    let fields = numbered(bytes)?.into_iter();
    Ok(fields
        .filter_map(|(number, field)| Some((*BY_NUMBER.get(&number)?, field)))
        .collect())
}

fn numbered(mut bytes: Bytes) -> Result<Vec<(u32, Field)>, Malformed> {
    let mut fields = Vec::new();
    while bytes.has_remaining() {
        let (number, wire) = encoding::decode_key(&mut bytes).map_err(|_| UNREADABLE)?;
        let from = bytes.clone();
        let skipped = encoding::skip_field(wire, number, &mut bytes, DecodeContext::default());
        skipped.map_err(|_| UNREADABLE)?;
        fields.push((number, Field { wire, from }));
    }
    Ok(fields)
}

fn phase_from_pb(code: u32) -> Result<Phase, Malformed> {
    let phase = u8::try_from(code).ok().and_then(Phase::from_code);
    phase.ok_or("a phase that this build does not know")
}

fn admission_from_pb(code: u32) -> Result<Admission, Malformed> {
    let admission = u8::try_from(code).ok().and_then(Admission::from_code);
    admission.ok_or("an admission that this build does not know")
}

fn gate_from_pb(code: u32) -> Result<Gate, Malformed> {
    let gate = u8::try_from(code).ok().and_then(Gate::from_code);
    gate.ok_or("a gate that this build does not know")
}

fn lanes_to_pb(lanes: &[LaneSettings]) -> pb::LaneList {
    let lanes = lanes.iter().map(|lane| pb::LaneSettings {
        name: lane.name.as_str().to_owned(),
        boost_ms: lane.boost_ms,
        absolute: lane.absolute,
        queue_limit: lane.queue_limit,
        jump: lane.jump,
    });
    pb::LaneList {
        lanes: lanes.collect(),
    }
}

fn lanes_from_pb(lanes: pb::LaneList) -> Result<Vec<LaneSettings>, Malformed> {
    all(lanes.lanes, |lane| {
        Ok(LaneSettings {
            name: lane_name_from_pb(&lane.name)?,
            boost_ms: lane.boost_ms,
            absolute: lane.absolute,
            queue_limit: lane.queue_limit,
            jump: lane.jump,
        })
    })
}

fn quota_to_pb(quota: Quota) -> pb::Quota {
    let renew = quota.renew.map(|renew| match renew {
        Renew::Every { ms } => pb::QuotaRenewal {
            every_ms: ms,
            daily: None,
        },
        Renew::Daily { minute, zone } => pb::QuotaRenewal {
            every_ms: 0,
            daily: Some(pb::RenewDaily {
                minute: minute.into(),
                zone: zone.as_str().to_owned(),
            }),
        },
    });
    pb::Quota {
        total: quota.total,
        standby_percent: quota.standby_percent,
        renew,
    }
}

fn quota_from_pb(quota: pb::Quota) -> Result<Quota, Malformed> {
    Ok(Quota {
        total: quota.total,
        standby_percent: quota.standby_percent,
        renew: quota.renew.map(renew_from_pb).transpose()?,
    })
}

fn renew_from_pb(renew: pb::QuotaRenewal) -> Result<Renew, Malformed> {
    let Some(pb::RenewDaily { minute, zone }) = renew.daily else {
        return Ok(Renew::Every { ms: renew.every_ms });
    };
    Ok(Renew::Daily {
        minute: minute.try_into().map_err(|_| "a minute beyond 16 bits")?,
        zone: ZoneName::new(&zone).ok_or("a time zone without a name")?,
    })
}

fn schedule_to_pb(schedule: &[ScheduledChange]) -> pb::Schedule {
    let changes = schedule.iter().map(|change| pb::ScheduledChange {
        at_ms: change.at_ms,
        set: Some(patch_to_pb(&change.set)),
    });
    pb::Schedule {
        changes: changes.collect(),
    }
}

/// A schedule within a schedule is not read: bytes that nest them deeply would exhaust the stack.
fn schedule_from_pb(schedule: pb::Schedule) -> Result<Vec<ScheduledChange>, Malformed> {
    all(schedule.changes, |change| {
        let set = change.set.unwrap_or_default();
        let nests = |(setting, _): &(&Setting, Field)| setting.kind == SettingKind::Schedule;
        if fields(set.clone())?.iter().any(nests) {
            return Err("a schedule within a schedule");
        }
        Ok(ScheduledChange {
            at_ms: change.at_ms,
            set: patch_from_pb(set)?,
        })
    })
}

fn labels_to_pb(labels: &BTreeMap<String, String>) -> pb::Labels {
    let labels = labels.iter().map(|(name, value)| pb::Label {
        name: name.clone(),
        value: value.clone(),
    });
    pb::Labels {
        labels: labels.collect(),
    }
}

fn labels_from_pb(labels: pb::Labels) -> Result<BTreeMap<String, String>, Malformed> {
    let count = labels.labels.len();
    let labels: BTreeMap<_, _> = all(labels.labels, |label| Ok((label.name, label.value)))?;
    if labels.len() == count {
        Ok(labels)
    } else {
        Err("a label that is there twice")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_line::{AdmissionRate, LaneName};

    use super::*;
    use crate::command::FORMAT;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn lane(name: &str) -> LaneSettings {
        LaneSettings::new(LaneName::try_from(name).unwrap())
    }

    /// Logs, snapshots and hashes of earlier releases have these bytes.
    #[test]
    fn the_bytes_of_settings_are_those_of_the_first_release() {
        let plain = Settings::new(1, 0);
        let mut full = Settings::new(5, 7);
        full.waiting_idle_timeout_ms = 100;
        full.claim_timeout_ms = 200;
        full.checkout_timeout_ms = 300;
        full.checkout_max_ms = 400;
        full.token_events = false;
        full.labels.insert("city".to_owned(), "Oslo".to_owned());
        full.admission_rate = Some(AdmissionRate {
            per_second_micro: 2_500_000,
            burst: 20,
        });
        full.lanes = vec![
            LaneSettings {
                boost_ms: 600_000,
                absolute: true,
                queue_limit: Some(0),
                ..lane("vip")
            },
            lane("normal"),
        ];
        full.call_ahead = 3;
        full.quota = Some(Quota {
            total: 100,
            standby_percent: 20,
            renew: None,
        });
        full.phase = Phase::Paused;
        full.position_cap = Some(9);
        full.release_on_claim = true;
        full.default_lane = Some(lane("normal").name);
        for (settings, expected) in [(plain, PLAIN), (full, FULL)] {
            let bytes = settings_to_pb(&settings);
            assert_eq!(hex(&bytes), expected.replace(char::is_whitespace, ""));
            assert_eq!(settings_from_pb(bytes), Ok(settings));
        }
    }

    const PLAIN: &str = "080118e0a71220c0a90728c0cf243080dddb0138014200";
    const FULL: &str = "
        08051007186420c80128ac02309003420e0a0c0a046369747912044f736c6f4a0708a0cb98011014
        52190a0d0a0376697010c0cf24180120000a080a066e6f726d616c58036204086410146802700978
        018201066e6f726d616c";

    #[test]
    fn the_bytes_of_patches_are_those_of_the_first_release() {
        let patch = SettingsPatch {
            seats: Some(Change::Set(8)),
            waiting_idle_timeout_ms: Some(Change::Unset),
            token_events: Some(Change::Set(false)),
            labels: Some(Change::Set(BTreeMap::new())),
            admission_rate: Some(Change::Unset),
            phase: Some(Change::Set(Phase::Open)),
            position_cap: Some(Change::Set(300)),
            default_lane: Some(Change::Set(lane("vip").name)),
            ..SettingsPatch::default()
        };
        let bytes = patch_to_pb(&patch);
        assert_eq!(
            hex(&bytes),
            "0a0208081a003a02080042020a004a006a020800720308ac028201050a03766970"
        );
        assert_eq!(patch_from_pb(bytes), Ok(patch));
    }

    #[test]
    fn only_new_settings_and_new_parts_need_the_new_format() {
        let old = Settings::new(3, 4);
        let mut jump = old.clone();
        jump.lanes[0].jump = true;
        let mut often = old.clone();
        often.jumps_max = 2;
        let mut shadow = old.clone();
        shadow.gate = Gate::Shadow;
        for (settings, format) in [
            (&old, FORMAT_MIN),
            (&jump, 7),
            (&often, 7),
            (&shadow, FORMAT),
        ] {
            assert_eq!(settings_format(settings), format);
            let lanes = SettingsPatch {
                lanes: Some(Change::Set(settings.lanes.clone())),
                ..SettingsPatch::default()
            };
            let is_jump = settings.lanes[0].jump;
            assert_eq!(patch_format(&lanes), if is_jump { 7 } else { FORMAT_MIN });
        }
        let patch = SettingsPatch {
            jumps_max: Some(Change::Unset),
            ..SettingsPatch::default()
        };
        assert_eq!(patch_format(&patch), 7);
        let gate = SettingsPatch {
            gate: Some(Change::Unset),
            ..SettingsPatch::default()
        };
        assert_eq!(patch_format(&gate), FORMAT);
        let scheduled = SettingsPatch {
            schedule: Some(Change::Set(vec![ScheduledChange {
                at_ms: 1,
                set: gate,
            }])),
            ..SettingsPatch::default()
        };
        assert_eq!(patch_format(&scheduled), FORMAT);
    }

    #[test]
    fn unknown_fields_are_skipped_and_missing_ones_are_zero() {
        let empty = settings_from_pb(Bytes::new()).unwrap();
        assert_eq!((empty.seats, empty.claim_timeout_ms), (0, 0));
        assert!(!empty.token_events && empty.labels.is_empty());
        assert_eq!(empty.lanes, [LaneSettings::default()]);
        let mut bytes = settings_to_pb(&Settings::new(3, 4)).to_vec();
        encoding::string::encode(1_000, &"of a later release".to_owned(), &mut bytes);
        assert_eq!(settings_from_pb(bytes.into()), Ok(Settings::new(3, 4)));
    }

    #[test]
    fn settings_that_cannot_be_read_are_refused() {
        let full = settings_to_pb(&Settings::new(3, 4));
        assert!(settings_from_pb(full.slice(..full.len() - 1)).is_err());
        let mut large = Vec::new();
        encoding::uint64::encode(1, &(1 << 32), &mut large);
        assert!(settings_from_pb(large.into()).is_err());
        // A number where a message stands.
        let mut mistyped = Vec::new();
        encoding::uint64::encode(9, &1, &mut mistyped);
        assert!(settings_from_pb(mistyped.into()).is_err());
    }
}
