//! A line's journal between the line crate's types and protobuf.

use nowserving_line::{
    AdmittedBy, JournalEntry, Journaled, JournaledToken, MovedBy, Noted, OperatorNote,
    SettingsChange,
};

use crate::pb;
use crate::pb::journal_entry::What;
use crate::pb::{Malformed, lane_from_pb, reason_from_pb, token_from_pb, token_to_pb};
use crate::settings_pb::{patch_from_pb, patch_to_pb};
use crate::snapshot_pb::entered;

pub(crate) fn journal_to_pb(entry: &JournalEntry) -> pb::JournalEntry {
    let mut pb = pb::JournalEntry {
        version: entry.version,
        at_ms: entry.at_ms,
        ..pb::JournalEntry::default()
    };
    pb.what = Some(match entry.what {
        Journaled::Configured { scheduled_at_ms } => {
            What::Configured(pb::JournalConfigured { scheduled_at_ms })
        }
        Journaled::ScheduleFailed { scheduled_at_ms } => {
            What::ScheduleFailed(pb::JournalScheduleFailed { scheduled_at_ms })
        }
        Journaled::Created => What::Created(pb::JournalCreated {}),
        Journaled::CapacityTold { seats } => What::CapacityTold(pb::JournalCapacityTold { seats }),
        Journaled::Imported { rows, entered } => {
            What::Imported(pb::JournalImported { rows, entered })
        }
        Journaled::Kicked => What::Kicked(pb::JournalKicked {}),
        Journaled::QuotaRenewed => What::QuotaRenewed(pb::JournalQuotaRenewed {}),
        Journaled::Restored => What::Restored(pb::JournalRestored {}),
        Journaled::Token {
            lane,
            token,
            entered,
            what,
        } => {
            pb.lane = lane.into();
            pb.token = token;
            pb.entered_at_ms = entered.at.service_ms;
            pb.entered_wall_ms = entered.at.wall_ms;
            pb.entered_version = entered.version;
            pb.jumped = matches!(
                what,
                JournaledToken::Moved {
                    by: MovedBy::Jump,
                    ..
                }
            );
            token_what_to_pb(what)
        }
    });
    pb
}

fn token_what_to_pb(what: JournaledToken) -> What {
    match what {
        JournaledToken::Entered { position } => What::Entered(position),
        JournaledToken::Admitted {
            absolute,
            boost_ms,
            by,
        } => What::Admitted(pb::JournalAdmitted {
            absolute,
            boost_ms,
            called: by == AdmittedBy::Call,
            taken: by == AdmittedBy::Take,
        }),
        JournaledToken::Claimed { epoch } => What::Claimed(epoch),
        JournaledToken::Gone(reason) => What::Gone(reason.code().into()),
        JournaledToken::Moved { to_lane, to, .. } => What::Moved(token_to_pb((to_lane, to))),
    }
}

pub(crate) fn journal_from_pb(entry: pb::JournalEntry) -> Result<JournalEntry, Malformed> {
    let token = |what| -> Result<_, Malformed> {
        Ok(Journaled::Token {
            lane: lane_from_pb(entry.lane)?,
            token: entry.token,
            entered: entered(
                entry.entered_at_ms,
                entry.entered_wall_ms,
                entry.entered_version,
            ),
            what,
        })
    };
    let what = match entry.what {
        None => return Err("a journal entry that this build does not know"),
        Some(What::Entered(position)) => token(JournaledToken::Entered { position })?,
        Some(What::Configured(pb::JournalConfigured { scheduled_at_ms })) => {
            Journaled::Configured { scheduled_at_ms }
        }
        Some(What::ScheduleFailed(pb::JournalScheduleFailed { scheduled_at_ms })) => {
            Journaled::ScheduleFailed { scheduled_at_ms }
        }
        Some(What::Created(_)) => Journaled::Created,
        Some(What::CapacityTold(pb::JournalCapacityTold { seats })) => {
            Journaled::CapacityTold { seats }
        }
        Some(What::Imported(pb::JournalImported { rows, entered })) => {
            Journaled::Imported { rows, entered }
        }
        Some(What::Kicked(_)) => Journaled::Kicked,
        Some(What::QuotaRenewed(_)) => Journaled::QuotaRenewed,
        Some(What::Restored(_)) => Journaled::Restored,
        Some(What::Admitted(admitted)) => token(JournaledToken::Admitted {
            absolute: admitted.absolute,
            boost_ms: admitted.boost_ms,
            by: match (admitted.called, admitted.taken) {
                (false, false) => AdmittedBy::Turn,
                (true, false) => AdmittedBy::Call,
                (false, true) => AdmittedBy::Take,
                (true, true) => return Err("a token both called and taken"),
            },
        })?,
        Some(What::Claimed(epoch)) => token(JournaledToken::Claimed { epoch })?,
        Some(What::Gone(reason)) => token(JournaledToken::Gone(reason_from_pb(reason)?))?,
        Some(What::Moved(to)) => {
            let (to_lane, to) = token_from_pb(to)?;
            let by = match entry.jumped {
                true => MovedBy::Jump,
                false => MovedBy::Operator,
            };
            token(JournaledToken::Moved { to_lane, to, by })?
        }
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

pub(crate) fn operator_note_to_pb(note: &OperatorNote) -> pb::OperatorNote {
    pb::OperatorNote {
        by: note.by.as_deref().map(str::to_owned),
        reason: note.reason.as_deref().map(str::to_owned),
    }
}

pub(crate) fn operator_note_from_pb(note: pb::OperatorNote) -> OperatorNote {
    OperatorNote {
        by: note.by.map(Into::into),
        reason: note.reason.map(Into::into),
    }
}

pub(crate) fn noted_to_pb(noted: &Noted) -> pb::NotedEntries {
    pb::NotedEntries {
        version: noted.version,
        through: noted.through,
        note: Some(operator_note_to_pb(&noted.note)),
    }
}

pub(crate) fn noted_from_pb(noted: pb::NotedEntries) -> Result<Noted, Malformed> {
    Ok(Noted {
        version: noted.version,
        through: noted.through,
        note: operator_note_from_pb(noted.note.ok_or("entries without a note")?),
    })
}
