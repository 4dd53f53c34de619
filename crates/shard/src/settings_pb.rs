//! Settings between the line crate's types and protobuf.

use std::collections::BTreeMap;

use nowserving_line::{
    AdmissionRate, Change, LaneName, LaneSettings, Phase, Quota, Settings, SettingsPatch,
};

use crate::pb;

/// What is wrong with a message that protobuf itself can read.
pub(crate) type Malformed = &'static str;

pub(crate) fn settings_to_pb(settings: &Settings) -> pb::Settings {
    pb::Settings {
        seats: settings.seats,
        queue_limit: settings.queue_limit,
        waiting_idle_timeout_ms: settings.waiting_idle_timeout_ms,
        claim_timeout_ms: settings.claim_timeout_ms,
        checkout_timeout_ms: settings.checkout_timeout_ms,
        checkout_max_ms: settings.checkout_max_ms,
        token_events: settings.token_events,
        labels: Some(labels_to_pb(&settings.labels)),
        admission_rate: settings.admission_rate.as_ref().map(rate_to_pb),
        lanes: (settings.lanes[..] != [LaneSettings::default()])
            .then(|| lanes_to_pb(&settings.lanes)),
        call_ahead: settings.call_ahead,
        quota: settings.quota.as_ref().map(quota_to_pb),
        phase: phase_to_pb(settings.phase).into(),
        position_cap: settings.position_cap,
        release_on_claim: settings.release_on_claim,
        default_lane: settings.default_lane.as_ref().map(lane_name_to_pb),
    }
}

/// Ranges are not checked here: the state machine checks them.
pub(crate) fn settings_from_pb(settings: pb::Settings) -> Result<Settings, Malformed> {
    Ok(Settings {
        seats: settings.seats,
        queue_limit: settings.queue_limit,
        waiting_idle_timeout_ms: settings.waiting_idle_timeout_ms,
        claim_timeout_ms: settings.claim_timeout_ms,
        checkout_timeout_ms: settings.checkout_timeout_ms,
        checkout_max_ms: settings.checkout_max_ms,
        token_events: settings.token_events,
        labels: labels_from_pb(settings.labels.unwrap_or_default())?,
        admission_rate: settings.admission_rate.map(rate_from_pb),
        lanes: match settings.lanes {
            Some(lanes) => lanes_from_pb(lanes)?,
            None => vec![LaneSettings::default()],
        },
        call_ahead: settings.call_ahead,
        quota: settings.quota.map(quota_from_pb),
        phase: phase_from_pb(settings.phase)?,
        position_cap: settings.position_cap,
        release_on_claim: settings.release_on_claim,
        default_lane: match settings.default_lane {
            Some(name) => Some(lane_name_from_pb(&name)?),
            None => None,
        },
    })
}

pub(crate) fn patch_to_pb(patch: &SettingsPatch) -> pb::SettingsPatch {
    pb::SettingsPatch {
        seats: number_to_pb(&patch.seats),
        queue_limit: number_to_pb(&patch.queue_limit),
        waiting_idle_timeout_ms: number_to_pb(&patch.waiting_idle_timeout_ms),
        claim_timeout_ms: number_to_pb(&patch.claim_timeout_ms),
        checkout_timeout_ms: number_to_pb(&patch.checkout_timeout_ms),
        checkout_max_ms: number_to_pb(&patch.checkout_max_ms),
        token_events: flag_to_pb(&patch.token_events),
        labels: patch.labels.as_ref().map(|change| pb::ChangeLabels {
            set: set_of(change).map(labels_to_pb),
        }),
        admission_rate: patch
            .admission_rate
            .as_ref()
            .map(|change| pb::ChangeAdmissionRate {
                set: set_of(change).map(rate_to_pb),
            }),
        lanes: patch.lanes.as_ref().map(|change| pb::ChangeLanes {
            set: set_of(change).map(|lanes| lanes_to_pb(lanes)),
        }),
        call_ahead: number_to_pb(&patch.call_ahead),
        quota: patch.quota.as_ref().map(|change| pb::ChangeQuota {
            set: set_of(change).map(quota_to_pb),
        }),
        phase: patch.phase.as_ref().map(|change| pb::ChangePhase {
            set: set_of(change).map(|phase| phase_to_pb(*phase).into()),
        }),
        position_cap: number_to_pb(&patch.position_cap),
        release_on_claim: flag_to_pb(&patch.release_on_claim),
        default_lane: patch.default_lane.as_ref().map(|change| pb::ChangeText {
            set: set_of(change).map(lane_name_to_pb),
        }),
    }
}

pub(crate) fn patch_from_pb(patch: pb::SettingsPatch) -> Result<SettingsPatch, Malformed> {
    Ok(SettingsPatch {
        seats: number_from_pb(patch.seats)?,
        queue_limit: number_from_pb(patch.queue_limit)?,
        waiting_idle_timeout_ms: number_from_pb(patch.waiting_idle_timeout_ms)?,
        claim_timeout_ms: number_from_pb(patch.claim_timeout_ms)?,
        checkout_timeout_ms: number_from_pb(patch.checkout_timeout_ms)?,
        checkout_max_ms: number_from_pb(patch.checkout_max_ms)?,
        token_events: patch.token_events.map(|change| change_of(change.set)),
        labels: match patch.labels {
            Some(change) => Some(change_of(change.set.map(labels_from_pb).transpose()?)),
            None => None,
        },
        admission_rate: patch
            .admission_rate
            .map(|change| change_of(change.set.map(rate_from_pb))),
        lanes: match patch.lanes {
            Some(change) => Some(change_of(change.set.map(lanes_from_pb).transpose()?)),
            None => None,
        },
        call_ahead: number_from_pb(patch.call_ahead)?,
        quota: patch
            .quota
            .map(|change| change_of(change.set.map(quota_from_pb))),
        phase: match patch.phase {
            Some(change) => Some(change_of(change.set.map(phase_from_pb).transpose()?)),
            None => None,
        },
        position_cap: number_from_pb(patch.position_cap)?,
        release_on_claim: patch.release_on_claim.map(|change| change_of(change.set)),
        default_lane: match patch.default_lane {
            Some(change) => {
                let set = change
                    .set
                    .map(|name| lane_name_from_pb(&name))
                    .transpose()?;
                Some(change_of(set))
            }
            None => None,
        },
    })
}

fn set_of<T>(change: &Change<T>) -> Option<&T> {
    match change {
        Change::Set(value) => Some(value),
        Change::Unset => None,
    }
}

fn change_of<T>(set: Option<T>) -> Change<T> {
    set.map_or(Change::Unset, Change::Set)
}

fn number_to_pb<T: Copy + Into<u64>>(change: &Option<Change<T>>) -> Option<pb::ChangeNumber> {
    change.as_ref().map(|change| pb::ChangeNumber {
        set: set_of(change).map(|value| (*value).into()),
    })
}

fn number_from_pb<T: TryFrom<u64>>(
    change: Option<pb::ChangeNumber>,
) -> Result<Option<Change<T>>, Malformed> {
    let Some(change) = change else {
        return Ok(None);
    };
    let set = change
        .set
        .map(T::try_from)
        .transpose()
        .map_err(|_| "a setting beyond 32 bits")?;
    Ok(Some(change_of(set)))
}

fn flag_to_pb(change: &Option<Change<bool>>) -> Option<pb::ChangeFlag> {
    change.as_ref().map(|change| pb::ChangeFlag {
        set: set_of(change).copied(),
    })
}

fn rate_to_pb(rate: &AdmissionRate) -> pb::AdmissionRate {
    pb::AdmissionRate {
        per_second_micro: rate.per_second_micro,
        burst: rate.burst,
    }
}

fn rate_from_pb(rate: pb::AdmissionRate) -> AdmissionRate {
    AdmissionRate {
        per_second_micro: rate.per_second_micro,
        burst: rate.burst,
    }
}

fn quota_to_pb(quota: &Quota) -> pb::Quota {
    pb::Quota {
        total: quota.total,
        standby_percent: quota.standby_percent,
    }
}

fn quota_from_pb(quota: pb::Quota) -> Quota {
    Quota {
        total: quota.total,
        standby_percent: quota.standby_percent,
    }
}

fn phase_to_pb(phase: Phase) -> pb::Phase {
    match phase {
        Phase::Open => pb::Phase::Open,
        Phase::PreOpen => pb::Phase::PreOpen,
        Phase::Paused => pb::Phase::Paused,
        Phase::Draining => pb::Phase::Draining,
        Phase::Closed => pb::Phase::Closed,
    }
}

fn phase_from_pb(phase: i32) -> Result<Phase, Malformed> {
    match pb::Phase::try_from(phase) {
        Ok(pb::Phase::Open) => Ok(Phase::Open),
        Ok(pb::Phase::PreOpen) => Ok(Phase::PreOpen),
        Ok(pb::Phase::Paused) => Ok(Phase::Paused),
        Ok(pb::Phase::Draining) => Ok(Phase::Draining),
        Ok(pb::Phase::Closed) => Ok(Phase::Closed),
        Err(_) => Err("a phase that this build does not know"),
    }
}

fn lanes_to_pb(lanes: &[LaneSettings]) -> pb::LaneList {
    let lanes = lanes.iter().map(|lane| pb::LaneSettings {
        name: lane.name.as_str().to_owned(),
        boost_ms: lane.boost_ms,
        absolute: lane.absolute,
        queue_limit: lane.queue_limit,
    });
    pb::LaneList {
        lanes: lanes.collect(),
    }
}

fn lanes_from_pb(lanes: pb::LaneList) -> Result<Vec<LaneSettings>, Malformed> {
    let lane = |lane: pb::LaneSettings| {
        Ok(LaneSettings {
            name: lane_name_from_pb(&lane.name)?,
            boost_ms: lane.boost_ms,
            absolute: lane.absolute,
            queue_limit: lane.queue_limit,
        })
    };
    lanes.lanes.into_iter().map(lane).collect()
}

fn lane_name_to_pb(name: &LaneName) -> String {
    name.as_str().to_owned()
}

pub(crate) fn lane_name_from_pb(name: &str) -> Result<LaneName, Malformed> {
    LaneName::try_from(name).map_err(|_| "a lane's name that is none")
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
    let labels: BTreeMap<_, _> = labels
        .labels
        .into_iter()
        .map(|label| (label.name, label.value))
        .collect();
    if labels.len() == count {
        Ok(labels)
    } else {
        Err("a label stands there twice")
    }
}
