//! A shard's state between the line crate's dumps and protobuf.

use nowserving_line::{GoneDump, Head, LaneDump, LineDump, LiveDump, Reason, Stage};

use crate::command_pb::lane_from_pb;
use crate::pb;
use crate::pb::live_token::Stage as PbStage;
use crate::settings_pb::{Malformed, settings_from_pb, settings_to_pb};

pub(crate) fn head_to_pb(head: Head) -> pb::ShardState {
    pb::ShardState {
        now_ms: head.now_ms,
        version_floor: head.version_floor,
        epoch_floor: head.epoch_floor,
    }
}

pub(crate) fn head_from_pb(head: pb::ShardState) -> Head {
    Head {
        now_ms: head.now_ms,
        version_floor: head.version_floor,
        epoch_floor: head.epoch_floor,
    }
}

pub(crate) fn line_to_pb(line: LineDump) -> pb::LineState {
    pb::LineState {
        name: line.name,
        incarnation: line.incarnation,
        version: line.version,
        epoch: line.epoch,
        settings: Some(settings_to_pb(&line.settings)),
        settings_version: line.settings_version,
        created_at_ms: line.created_at_ms,
        deleting: line.deleting,
        gone_counts: line.gone_counts.to_vec(),
        lanes: line.lanes.into_iter().map(lane_to_pb).collect(),
        gone: line.gone.into_iter().map(gone_to_pb).collect(),
    }
}

pub(crate) fn line_from_pb(line: pb::LineState) -> Result<LineDump, Malformed> {
    let gone_counts = line
        .gone_counts
        .try_into()
        .map_err(|_| "not one count per reason")?;
    let lanes = line
        .lanes
        .into_iter()
        .map(lane_from_pb_state)
        .collect::<Result<_, _>>()?;
    let gone = line
        .gone
        .into_iter()
        .map(gone_from_pb)
        .collect::<Result<_, _>>()?;
    Ok(LineDump {
        name: line.name,
        incarnation: line.incarnation,
        version: line.version,
        epoch: line.epoch,
        settings: settings_from_pb(line.settings.ok_or("a line without settings")?)?,
        settings_version: line.settings_version,
        created_at_ms: line.created_at_ms,
        deleting: line.deleting,
        gone_counts,
        lanes,
        gone,
    })
}

fn lane_to_pb(lane: LaneDump) -> pb::LaneState {
    let live = lane.live.into_iter().map(live_to_pb).collect();
    pb::LaneState {
        name: lane.name,
        next_token: lane.next_token,
        live,
    }
}

fn lane_from_pb_state(lane: pb::LaneState) -> Result<LaneDump, Malformed> {
    let live = lane
        .live
        .into_iter()
        .map(live_from_pb)
        .collect::<Result<_, _>>()?;
    Ok(LaneDump {
        name: lane.name,
        next_token: lane.next_token,
        live,
    })
}

fn live_to_pb(live: LiveDump) -> pb::LiveToken {
    let stage = match live.stage {
        Stage::Waiting { seen_ms } => PbStage::Waiting(pb::WaitingStage { seen_ms }),
        Stage::Admitted { deadline_ms } => PbStage::Admitted(pb::AdmittedStage { deadline_ms }),
        Stage::InCheckout {
            deadline_ms,
            claimed_at_ms,
            epoch,
        } => PbStage::InCheckout(pb::CheckoutStage {
            deadline_ms,
            claimed_at_ms,
            epoch,
        }),
    };
    pb::LiveToken {
        token: live.token,
        key: live.key.map(Into::into),
        entered_at_ms: live.entered_at_ms,
        stage: Some(stage),
    }
}

fn live_from_pb(live: pb::LiveToken) -> Result<LiveDump, Malformed> {
    let stage = match live
        .stage
        .ok_or("a live token in a state that this build does not know")?
    {
        PbStage::Waiting(stage) => Stage::Waiting {
            seen_ms: stage.seen_ms,
        },
        PbStage::Admitted(stage) => Stage::Admitted {
            deadline_ms: stage.deadline_ms,
        },
        PbStage::InCheckout(stage) => Stage::InCheckout {
            deadline_ms: stage.deadline_ms,
            claimed_at_ms: stage.claimed_at_ms,
            epoch: stage.epoch,
        },
    };
    Ok(LiveDump {
        token: live.token,
        // A copy, so that a key does not hold on to the whole file.
        key: live.key.map(|key| key[..].into()),
        entered_at_ms: live.entered_at_ms,
        stage,
    })
}

fn gone_to_pb(gone: GoneDump) -> pb::GoneToken {
    pb::GoneToken {
        lane: gone.lane.into(),
        token: gone.token,
        reason: gone.reason.code().into(),
        epoch: gone.epoch,
    }
}

fn gone_from_pb(gone: pb::GoneToken) -> Result<GoneDump, Malformed> {
    let code = u8::try_from(gone.reason).ok();
    let reason = code
        .and_then(Reason::from_code)
        .ok_or("a reason that this build does not know")?;
    Ok(GoneDump {
        lane: lane_from_pb(gone.lane)?,
        token: gone.token,
        reason,
        epoch: gone.epoch,
    })
}
