//! Commands that put lines back, and the parts of lines, between this crate's types and protobuf.

use bytes::Bytes;
use nowserving_line::{Caller, ClockShift, LinePart, Restore};

use crate::calls_pb::{call_item_from_pb, call_item_to_pb};
use crate::journal_pb::{
    change_from_pb, change_to_pb, journal_from_pb, journal_to_pb, noted_from_pb, noted_to_pb,
};
use crate::kick_pb::{kicked_from_pb, kicked_to_pb};
use crate::pb;
use crate::pb::restore_command::Step;
use crate::pb::{
    Malformed, all, digest_from_pb, lane_from_pb, line_name_from_pb, upload_id_from_pb,
};
use crate::restore::{RestoreCommand, RestoreStep};
use crate::snapshot_pb::{
    caller_from_pb, caller_to_pb, gone_from_pb, gone_to_pb, live_from_pb, live_to_pb,
};

pub(crate) fn restore_to_pb(command: &RestoreCommand) -> pb::RestoreCommand {
    let step = match &command.step {
        RestoreStep::Part { number, data } => Step::Part(pb::RestorePart {
            number: *number,
            data: data.clone(),
        }),
        RestoreStep::Finish { parts, digest, how } => Step::Finish(pb::RestoreFinish {
            parts: *parts,
            digest: Bytes::copy_from_slice(digest),
            clock_ms: how.clock_ms,
            overwrite: how.overwrite,
        }),
    };
    pb::RestoreCommand {
        line: command.line.as_str().to_owned(),
        upload: Bytes::copy_from_slice(&command.upload.to_be_bytes()),
        step: Some(step),
    }
}

pub(crate) fn restore_from_pb(command: pb::RestoreCommand) -> Result<RestoreCommand, Malformed> {
    let step = command.step;
    Ok(RestoreCommand {
        line: line_name_from_pb(&command.line)?,
        upload: upload_id_from_pb(&command.upload)?,
        step: match step.ok_or("a step of a restore that this build does not know")? {
            Step::Part(pb::RestorePart { number, data }) => RestoreStep::Part { number, data },
            Step::Finish(finish) => RestoreStep::Finish {
                parts: finish.parts,
                digest: digest_from_pb(&finish.digest)?,
                how: Restore {
                    clock_ms: finish.clock_ms,
                    overwrite: finish.overwrite,
                },
            },
        },
    })
}

pub(crate) fn shift_to_pb(shift: ClockShift) -> pb::ClockShift {
    pb::ClockShift {
        from_ms: shift.from_ms,
        to_ms: shift.to_ms,
        lane: shift.next.0.into(),
        token: shift.next.1,
    }
}

pub(crate) fn shift_from_pb(shift: pb::ClockShift) -> Result<ClockShift, Malformed> {
    Ok(ClockShift {
        from_ms: shift.from_ms,
        to_ms: shift.to_ms,
        next: (lane_from_pb(shift.lane)?, shift.token),
    })
}

pub(crate) fn part_to_pb(part: LinePart) -> pb::LinePart {
    let live = part.live.into_iter();
    pb::LinePart {
        live: live
            .map(|(lane, token, live)| pb::PartToken {
                lane: lane.into(),
                token: Some(live_to_pb((token, live))),
            })
            .collect(),
        callers: part
            .callers
            .into_iter()
            .map(|it| pb::PartCaller {
                lane: it.lane.into(),
                caller: Some(caller_to_pb((it.number, it.key))),
            })
            .collect(),
        gone: part.gone.into_iter().map(gone_to_pb).collect(),
        journal: part.journal.iter().map(journal_to_pb).collect(),
        settings_changes: part.settings_changes.iter().map(change_to_pb).collect(),
        kicks: part.kicks.iter().map(kicked_to_pb).collect(),
        notes: part.notes.iter().map(noted_to_pb).collect(),
        calls: part.calls.iter().map(call_item_to_pb).collect(),
    }
}

pub(crate) fn part_from_pb(part: pb::LinePart) -> Result<LinePart, Malformed> {
    Ok(LinePart {
        live: all(part.live, |it| {
            let (token, live) = live_from_pb(it.token.ok_or("a live token without one")?)?;
            Ok((lane_from_pb(it.lane)?, token, live))
        })?,
        callers: all(part.callers, |it| {
            let (number, key) = caller_from_pb(it.caller.ok_or("a caller without a key")?);
            Ok(Caller {
                lane: lane_from_pb(it.lane)?,
                number,
                key,
            })
        })?,
        gone: all(part.gone, gone_from_pb)?,
        journal: all(part.journal, journal_from_pb)?,
        settings_changes: all(part.settings_changes, change_from_pb)?,
        kicks: all(part.kicks, kicked_from_pb)?,
        notes: all(part.notes, noted_from_pb)?,
        calls: all(part.calls, call_item_from_pb)?,
    })
}
