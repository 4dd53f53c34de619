//! Operations on lines, between the line crate's types and protobuf.

use bytes::Bytes;
use nowserving_line::{LineName, Op, RecycleItem, State, TokenRef};

use crate::pb;
use crate::pb::line_op::Op as Kind;
use crate::settings_pb::{
    Malformed, lane_name_from_pb, patch_from_pb, patch_to_pb, settings_from_pb, settings_to_pb,
};

pub(crate) fn op_to_pb(op: &Op) -> pb::LineOp {
    let (line, kind) = match op {
        Op::Create { line, settings } => (
            line,
            Kind::Create(pb::Create {
                settings: Some(settings_to_pb(settings)),
            }),
        ),
        Op::Configure {
            line,
            patch,
            if_version,
            incarnation,
        } => {
            let patch = Some(patch_to_pb(patch));
            (
                line,
                Kind::Configure(pb::Configure {
                    patch,
                    if_version: *if_version,
                    incarnation: *incarnation,
                }),
            )
        }
        Op::Delete {
            line,
            force,
            incarnation,
        } => (
            line,
            Kind::Delete(pb::Delete {
                force: *force,
                incarnation: *incarnation,
            }),
        ),
        Op::Enter { line, key, lane } => {
            let key = key.as_deref().map(Bytes::copy_from_slice);
            let lane = lane.as_ref().map(|lane| lane.as_str().to_owned());
            (line, Kind::Enter(pb::Enter { key, lane }))
        }
        Op::Claim { line, at } => (
            line,
            Kind::Claim(pb::Claim {
                at: Some(at_to_pb(at)),
            }),
        ),
        Op::Renew { line, at, epoch } => (
            line,
            Kind::Renew(pb::Renew {
                at: Some(at_to_pb(at)),
                epoch: *epoch,
            }),
        ),
        Op::Complete { line, at, epoch } => (
            line,
            Kind::Complete(pb::Complete {
                at: Some(at_to_pb(at)),
                epoch: *epoch,
            }),
        ),
        Op::Leave { line, at } => (
            line,
            Kind::Leave(pb::Leave {
                at: Some(at_to_pb(at)),
            }),
        ),
        Op::Move {
            line,
            lane,
            token,
            to,
        } => (
            line,
            Kind::Move(pb::Move {
                lane: lane.as_str().to_owned(),
                token: *token,
                to: to.as_str().to_owned(),
            }),
        ),
        Op::Recycle {
            line,
            incarnation,
            tokens,
        } => {
            let items = tokens.iter().map(recycle_to_pb).collect();
            (
                line,
                Kind::Recycle(pb::Recycle {
                    incarnation: *incarnation,
                    items,
                }),
            )
        }
        Op::Touch {
            line,
            incarnation,
            tokens,
        } => {
            let items = tokens.iter().map(touch_to_pb).collect();
            (
                line,
                Kind::Touch(pb::Touch {
                    incarnation: *incarnation,
                    items,
                }),
            )
        }
        Op::RunBackground { line, incarnation } => (
            line,
            Kind::RunBackground(pb::RunBackground {
                incarnation: *incarnation,
            }),
        ),
    };
    pb::LineOp {
        line: line.as_str().to_owned(),
        op: Some(kind),
    }
}

pub(crate) fn op_from_pb(op: pb::LineOp) -> Result<Op, Malformed> {
    let kind = op.op.ok_or("an operation that this build does not know")?;
    let line = LineName::try_from(op.line.as_str()).map_err(|_| "a line's name that is none")?;
    Ok(match kind {
        Kind::Create(create) => {
            let settings = settings_from_pb(create.settings.ok_or("create without settings")?)?;
            Op::Create { line, settings }
        }
        Kind::Configure(configure) => {
            let patch = patch_from_pb(configure.patch.unwrap_or_default())?;
            Op::Configure {
                line,
                patch: patch.into(),
                if_version: configure.if_version,
                incarnation: configure.incarnation,
            }
        }
        Kind::Delete(delete) => Op::Delete {
            line,
            force: delete.force,
            incarnation: delete.incarnation,
        },
        Kind::Enter(enter) => enter_from_pb(line, enter)?,
        Kind::Claim(claim) => Op::Claim {
            line,
            at: at_from_pb(claim.at)?,
        },
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
        Kind::Leave(leave) => Op::Leave {
            line,
            at: at_from_pb(leave.at)?,
        },
        Kind::Move(moved) => Op::Move {
            line,
            lane: lane_name_from_pb(&moved.lane)?,
            token: moved.token,
            to: lane_name_from_pb(&moved.to)?,
        },
        Kind::Recycle(recycle) => {
            let tokens = recycle
                .items
                .into_iter()
                .map(recycle_from_pb)
                .collect::<Result<_, _>>()?;
            Op::Recycle {
                line,
                incarnation: recycle.incarnation,
                tokens,
            }
        }
        Kind::Touch(touch) => {
            let tokens = touch
                .items
                .into_iter()
                .map(touch_from_pb)
                .collect::<Result<_, _>>()?;
            Op::Touch {
                line,
                incarnation: touch.incarnation,
                tokens,
            }
        }
        Kind::RunBackground(step) => Op::RunBackground {
            line,
            incarnation: step.incarnation,
        },
    })
}

fn enter_from_pb(line: LineName, enter: pb::Enter) -> Result<Op, Malformed> {
    Ok(Op::Enter {
        line,
        key: enter.key.map(|key| key[..].into()),
        lane: enter.lane.as_deref().map(lane_name_from_pb).transpose()?,
    })
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

pub(crate) fn lane_from_pb(lane: u32) -> Result<u8, Malformed> {
    u8::try_from(lane).map_err(|_| "a lane's place beyond 255")
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
    let lane = lane_from_pb(item.lane)?;
    Ok(RecycleItem {
        lane,
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
