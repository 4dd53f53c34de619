//! A line's journal between the line crate's types and protobuf.

use nowserving_line::{JournalEntry, Journaled, JournaledToken, SettingsChange, Timestamp};

use crate::op_pb::lane_from_pb;
use crate::pb;
use crate::pb::journal_entry::What;
use crate::settings_pb::{Malformed, patch_from_pb, patch_to_pb};
use crate::snapshot_pb::{reason_from_pb, token_from_pb, token_to_pb};

pub(crate) fn journal_to_pb(entry: &JournalEntry) -> pb::JournalEntry {
    let mut pb = pb::JournalEntry {
        version: entry.version,
        at_ms: entry.at_ms,
        what: Some(What::Configured(pb::JournalConfigured {})),
        ..pb::JournalEntry::default()
    };
    if let Journaled::Token {
        lane,
        token,
        entered,
        entered_version,
        what,
    } = entry.what
    {
        pb.lane = lane.into();
        pb.token = token;
        pb.entered_at_ms = entered.service_ms;
        pb.entered_wall_ms = entered.wall_ms;
        pb.entered_version = entered_version;
        pb.what = Some(match what {
            JournaledToken::Admitted { absolute, boost_ms } => {
                What::Admitted(pb::JournalAdmitted { absolute, boost_ms })
            }
            JournaledToken::Claimed { epoch } => What::Claimed(epoch),
            JournaledToken::Gone(reason) => What::Gone(reason.code().into()),
            JournaledToken::Moved { to_lane, to } => What::Moved(token_to_pb((to_lane, to))),
        });
    }
    pb
}

pub(crate) fn journal_from_pb(entry: pb::JournalEntry) -> Result<JournalEntry, Malformed> {
    let what = match entry.what {
        None => return Err("a journal entry that this build does not know"),
        Some(What::Configured(_)) => None,
        Some(What::Admitted(admitted)) => Some(JournaledToken::Admitted {
            absolute: admitted.absolute,
            boost_ms: admitted.boost_ms,
        }),
        Some(What::Claimed(epoch)) => Some(JournaledToken::Claimed { epoch }),
        Some(What::Gone(reason)) => Some(JournaledToken::Gone(reason_from_pb(reason)?)),
        Some(What::Moved(to)) => {
            let (to_lane, to) = token_from_pb(to)?;
            Some(JournaledToken::Moved { to_lane, to })
        }
    };
    let what = match what {
        None => Journaled::Configured,
        Some(what) => Journaled::Token {
            lane: lane_from_pb(entry.lane)?,
            token: entry.token,
            entered: Timestamp {
                service_ms: entry.entered_at_ms,
                wall_ms: entry.entered_wall_ms,
            },
            entered_version: entry.entered_version,
            what,
        },
    };
    Ok(JournalEntry {
        version: entry.version,
        at_ms: entry.at_ms,
        what,
    })
}

pub(crate) fn change_to_pb(change: &SettingsChange) -> pb::SettingsChange {
    pb::SettingsChange {
        version: change.version,
        from: Some(patch_to_pb(&change.from)),
        to: Some(patch_to_pb(&change.to)),
    }
}

pub(crate) fn change_from_pb(change: pb::SettingsChange) -> Result<SettingsChange, Malformed> {
    Ok(SettingsChange {
        version: change.version,
        from: patch_from_pb(change.from.unwrap_or_default())?,
        to: patch_from_pb(change.to.unwrap_or_default())?,
    })
}
