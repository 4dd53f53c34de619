//! Operations on lines, between the line crate's types and protobuf.

use bytes::Bytes;
use nowserving_line::{ImportRow, Op, RecycleItem, RefusedCounts, State, TokenBy, TokenRef};

use crate::calls_pb::{take_by_from_pb, take_by_to_pb};
use crate::command::FORMAT_MIN;
use crate::kick_pb::{kick_item_from_pb, kick_item_to_pb, note_from_pb, note_to_pb};
use crate::pb;
use crate::pb::jump::By;
use crate::pb::line_op::Op as Kind;
use crate::pb::{Malformed, all, lane_from_pb, lane_name_from_pb, line_name_from_pb};
use crate::settings_pb::{patch_format, settings_format};
use crate::settings_pb::{patch_from_pb, patch_to_pb, settings_from_pb, settings_to_pb};

/// The first format of entries that has this operation with all its fields.
pub(crate) fn op_format(op: &Op) -> u32 {
    match op {
        Op::Create { settings, .. } => settings_format(settings),
        Op::Configure { patch, .. } => patch_format(patch),
        Op::CountRefused { .. }
        | Op::Jump { .. }
        | Op::Callback { .. }
        | Op::Kick { .. }
        | Op::CapacityTold { .. }
        | Op::RenewQuota { .. }
        | Op::CallNext { .. }
        | Op::Take { .. } => 7,
        Op::Import { .. } => 8,
        _ => FORMAT_MIN,
    }
}

pub(crate) fn op_to_pb(op: &Op) -> pb::LineOp {
    let at_pb = |at: &TokenRef| Some(at_to_pb(at));
    let kind = match op {
        Op::Create { settings, .. } => {
            let settings = Some(settings_to_pb(settings));
            Kind::Create(pb::Create { settings })
        }
        Op::Configure {
            line: _,
            patch,
            if_version,
            incarnation,
        } => Kind::Configure(pb::Configure {
            patch: Some(patch_to_pb(patch)),
            if_version: *if_version,
            incarnation: *incarnation,
        }),
        Op::Delete {
            line: _,
            force,
            incarnation,
        } => Kind::Delete(pb::Delete {
            force: *force,
            incarnation: *incarnation,
        }),
        Op::Enter { line: _, key, lane } => Kind::Enter(pb::Enter {
            key: key.as_deref().map(Bytes::copy_from_slice),
            lane: lane.as_ref().map(|lane| lane.as_str().to_owned()),
        }),
        Op::Import {
            line: _,
            import_id,
            first_row,
            rows,
        } => Kind::Import(pb::Import {
            import_id: import_id.to_string(),
            first_row: *first_row,
            rows: rows.iter().map(import_row_to_pb).collect(),
        }),
        Op::Callback { line: _, key, lane } => Kind::Callback(pb::Callback {
            key: Bytes::copy_from_slice(key),
            lane: lane.as_ref().map(|lane| lane.as_str().to_owned()),
        }),
        Op::Claim { line: _, at } => Kind::Claim(pb::Claim { at: at_pb(at) }),
        Op::Renew { line: _, at, epoch } => Kind::Renew(pb::Renew {
            at: at_pb(at),
            epoch: *epoch,
        }),
        Op::Complete { line: _, at, epoch } => Kind::Complete(pb::Complete {
            at: at_pb(at),
            epoch: *epoch,
        }),
        Op::Leave { line: _, at } => Kind::Leave(pb::Leave { at: at_pb(at) }),
        Op::Move {
            line: _,
            lane,
            token,
            to,
        } => Kind::Move(pb::Move {
            lane: lane.as_str().to_owned(),
            token: *token,
            to: to.as_str().to_owned(),
        }),
        Op::Jump { line: _, by, to } => Kind::Jump(pb::Jump {
            by: Some(by_to_pb(by)),
            to: to.as_str().to_owned(),
        }),
        Op::Recycle {
            line: _,
            incarnation,
            tokens,
        } => Kind::Recycle(pb::Recycle {
            incarnation: *incarnation,
            items: tokens.iter().map(recycle_to_pb).collect(),
        }),
        Op::Touch {
            line: _,
            incarnation,
            tokens,
        } => Kind::Touch(pb::Touch {
            incarnation: *incarnation,
            items: tokens.iter().map(touch_to_pb).collect(),
        }),
        Op::Kick {
            line: _,
            incarnation,
            tokens,
            note,
        } => Kind::Kick(pb::Kick {
            incarnation: *incarnation,
            items: tokens.iter().map(kick_item_to_pb).collect(),
            note: note.as_deref().map(note_to_pb),
        }),
        Op::CountRefused {
            line: _,
            incarnation,
            refused,
        } => Kind::CountRefused(pb::CountRefused {
            incarnation: *incarnation,
            refused: refused.stored().to_vec(),
        }),
        Op::RenewQuota {
            line: _,
            incarnation,
            next_ms,
        } => Kind::RenewQuota(pb::RenewQuota {
            incarnation: *incarnation,
            next_ms: *next_ms,
        }),
        Op::CapacityTold { line: _, told } => Kind::CapacityTold(pb::CapacityTold {
            told: told.map(|(seats, for_ms)| pb::ToldSeats { seats, for_ms }),
        }),
        Op::CallNext {
            line: _,
            n,
            lane,
            call_id,
        } => Kind::CallNext(pb::CallNext {
            n: *n,
            lane: lane.as_ref().map(|lane| lane.as_str().to_owned()),
            call_id: call_id.to_string(),
        }),
        Op::Take {
            line: _,
            by,
            call_id,
        } => Kind::Take(pb::Take {
            by: Some(take_by_to_pb(by)),
            call_id: call_id.as_deref().map(str::to_owned),
        }),
        Op::RunBackground { incarnation, .. } => {
            let incarnation = *incarnation;
            Kind::RunBackground(pb::RunBackground { incarnation })
        }
    };
    pb::LineOp {
        line: op.line().as_str().to_owned(),
        op: Some(kind),
    }
}

pub(crate) fn op_from_pb(op: pb::LineOp) -> Result<Op, Malformed> {
    let kind = op.op.ok_or("an operation that this build does not know")?;
    let line = line_name_from_pb(&op.line)?;
    Ok(match kind {
        Kind::Create(create) => {
            let settings = settings_from_pb(create.settings.ok_or("create without settings")?)?;
            Op::Create { line, settings }
        }
        Kind::Configure(configure) => Op::Configure {
            line,
            patch: patch_from_pb(configure.patch.unwrap_or_default())?.into(),
            if_version: configure.if_version,
            incarnation: configure.incarnation,
        },
        Kind::Delete(delete) => Op::Delete {
            line,
            force: delete.force,
            incarnation: delete.incarnation,
        },
        Kind::Enter(enter) => Op::Enter {
            line,
            key: enter.key.map(|key| key[..].into()),
            lane: enter.lane.as_deref().map(lane_name_from_pb).transpose()?,
        },
        Kind::Import(import) => Op::Import {
            line,
            import_id: import.import_id.into(),
            first_row: import.first_row,
            rows: all(import.rows, import_row_from_pb)?,
        },
        Kind::Callback(callback) => Op::Callback {
            line,
            key: callback.key[..].into(),
            lane: callback
                .lane
                .as_deref()
                .map(lane_name_from_pb)
                .transpose()?,
        },
        Kind::Claim(claim) => {
            let at = at_from_pb(claim.at)?;
            Op::Claim { line, at }
        }
        Kind::Renew(renew) => Op::Renew {
            line,
            at: at_from_pb(renew.at)?,
            epoch: renew.epoch,
        },
        Kind::Complete(complete) => Op::Complete {
            line,
            at: at_from_pb(complete.at)?,
            epoch: complete.epoch,
        },
        Kind::Leave(leave) => {
            let at = at_from_pb(leave.at)?;
            Op::Leave { line, at }
        }
        Kind::Move(moved) => Op::Move {
            line,
            lane: lane_name_from_pb(&moved.lane)?,
            token: moved.token,
            to: lane_name_from_pb(&moved.to)?,
        },
        Kind::Jump(jump) => Op::Jump {
            line,
            by: by_from_pb(jump.by)?,
            to: lane_name_from_pb(&jump.to)?,
        },
        Kind::Recycle(recycle) => Op::Recycle {
            line,
            incarnation: recycle.incarnation,
            tokens: all(recycle.items, recycle_from_pb)?,
        },
        Kind::Touch(touch) => Op::Touch {
            line,
            incarnation: touch.incarnation,
            tokens: all(touch.items, touch_from_pb)?,
        },
        Kind::Kick(kick) => Op::Kick {
            line,
            incarnation: kick.incarnation,
            tokens: all(kick.items, kick_item_from_pb)?,
            note: kick.note.map(note_from_pb).transpose()?.map(Box::new),
        },
        Kind::CountRefused(count) => Op::CountRefused {
            line,
            incarnation: count.incarnation,
            refused: refused_from_pb(&count.refused)?,
        },
        Kind::RenewQuota(pb::RenewQuota {
            incarnation,
            next_ms,
        }) => Op::RenewQuota {
            line,
            incarnation,
            next_ms,
        },
        Kind::CapacityTold(pb::CapacityTold { told }) => Op::CapacityTold {
            line,
            told: told.map(|told| (told.seats, told.for_ms)),
        },
        Kind::CallNext(call) => Op::CallNext {
            line,
            n: call.n,
            lane: call.lane.as_deref().map(lane_name_from_pb).transpose()?,
            call_id: call.call_id.into(),
        },
        Kind::Take(take) => Op::Take {
            line,
            by: take_by_from_pb(take.by)?,
            call_id: take.call_id.map(Into::into),
        },
        Kind::RunBackground(pb::RunBackground { incarnation }) => {
            Op::RunBackground { line, incarnation }
        }
    })
}

fn import_row_to_pb(row: &ImportRow) -> pb::ImportRow {
    pb::ImportRow {
        key: Bytes::copy_from_slice(&row.key),
        lane: row.lane.as_ref().map(|lane| lane.as_str().to_owned()),
        entered_at_ms: row.entered_at_ms,
    }
}

fn import_row_from_pb(row: pb::ImportRow) -> Result<ImportRow, Malformed> {
    Ok(ImportRow {
        key: row.key[..].into(),
        lane: row.lane.as_deref().map(lane_name_from_pb).transpose()?,
        entered_at_ms: row.entered_at_ms,
    })
}

pub(crate) fn refused_from_pb(counts: &[u64]) -> Result<RefusedCounts, Malformed> {
    let counts = RefusedCounts::from_stored(counts);
    counts.ok_or("refusals with a code that this build does not know")
}

pub(crate) fn at_to_pb(at: &TokenRef) -> pb::TokenRef {
    pb::TokenRef {
        incarnation: at.incarnation,
        lane: at.lane.into(),
        token: at.token,
    }
}

pub(crate) fn at_from_pb(at: Option<pb::TokenRef>) -> Result<TokenRef, Malformed> {
    let at = at.ok_or("an operation on a token that does not say which")?;
    Ok(TokenRef {
        incarnation: at.incarnation,
        lane: lane_from_pb(at.lane)?,
        token: at.token,
    })
}

fn by_to_pb(by: &TokenBy) -> By {
    match by {
        TokenBy::At(at) => By::Ticket(at_to_pb(at)),
        TokenBy::Key(key) => By::Key(Bytes::copy_from_slice(key)),
    }
}

fn by_from_pb(by: Option<By>) -> Result<TokenBy, Malformed> {
    Ok(match by.ok_or("a jump of a token that it does not name")? {
        By::Ticket(at) => TokenBy::At(at_from_pb(Some(at))?),
        By::Key(key) => TokenBy::Key(key[..].into()),
    })
}

fn recycle_to_pb(item: &RecycleItem) -> pb::RecycleItem {
    let state = match item.state {
        State::Waiting => pb::LiveState::Waiting,
        State::Admitted => pb::LiveState::Admitted,
        State::InCheckout => pb::LiveState::InCheckout,
        // Never live, so never recycled: the state machine skips it as well.
        State::Gone => pb::LiveState::Unspecified,
    };
    pb::RecycleItem {
        lane: item.lane.into(),
        token: item.token,
        state: state.into(),
        clock_ms: item.clock_ms,
    }
}

fn recycle_from_pb(item: pb::RecycleItem) -> Result<RecycleItem, Malformed> {
    let state = match pb::LiveState::try_from(item.state) {
        Ok(pb::LiveState::Unspecified) => State::Gone,
        Ok(pb::LiveState::Waiting) => State::Waiting,
        Ok(pb::LiveState::Admitted) => State::Admitted,
        Ok(pb::LiveState::InCheckout) => State::InCheckout,
        Err(_) => return Err("a state that this build does not know"),
    };
    Ok(RecycleItem {
        lane: lane_from_pb(item.lane)?,
        token: item.token,
        state,
        clock_ms: item.clock_ms,
    })
}

fn touch_to_pb(&(lane, token, last_seen_ms): &(u8, u64, u64)) -> pb::TouchItem {
    pb::TouchItem {
        lane: lane.into(),
        token,
        last_seen_ms,
    }
}

fn touch_from_pb(item: pb::TouchItem) -> Result<(u8, u64, u64), Malformed> {
    Ok((lane_from_pb(item.lane)?, item.token, item.last_seen_ms))
}
