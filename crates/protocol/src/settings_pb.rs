//! Settings between the line crate's types and protobuf.

use std::collections::BTreeMap;

use nowserving_line::{Change, Settings, SettingsPatch};

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
        token_events: patch.token_events.as_ref().map(|change| pb::ChangeFlag {
            set: set_of(change).copied(),
        }),
        labels: patch.labels.as_ref().map(|change| pb::ChangeLabels {
            set: set_of(change).map(labels_to_pb),
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
