//! Lines between the line crate's dumps and protobuf.

use nowserving_line::{
    Bucket, GoneDump, LaneDump, LineDump, LiveDump, Reason, Stage, Timestamp, Token,
};

use crate::forecast_pb::{
    arrivals_from_pb, arrivals_to_pb, eta_given_from_pb, eta_given_to_pb, forecast_from_pb,
    forecast_to_pb,
};
use crate::journal_pb::{change_from_pb, change_to_pb, journal_from_pb, journal_to_pb};
use crate::op_pb::lane_from_pb;
use crate::pb;
use crate::pb::live_token::Stage as PbStage;
use crate::settings_pb::{Malformed, settings_from_pb, settings_to_pb};

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
        bucket: line.bucket.map(|bucket| pb::Bucket {
            level_nano: bucket.level_nano,
            at_ms: bucket.at_ms,
        }),
        journal: line.journal.iter().map(journal_to_pb).collect(),
        forecast: Some(forecast_to_pb(&line.forecast)),
        settings_changes: line.settings_changes.iter().map(change_to_pb).collect(),
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
    let journal = line
        .journal
        .into_iter()
        .map(journal_from_pb)
        .collect::<Result<_, _>>()?;
    let settings_changes = line
        .settings_changes
        .into_iter()
        .map(change_from_pb)
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
        bucket: line.bucket.map(|bucket| Bucket {
            level_nano: bucket.level_nano,
            at_ms: bucket.at_ms,
        }),
        lanes,
        gone,
        journal,
        settings_changes,
        forecast: forecast_from_pb(line.forecast.ok_or("a line without forecasts")?)?,
    })
}

fn lane_to_pb(lane: LaneDump) -> pb::LaneState {
    let live = lane.live.into_iter().map(live_to_pb).collect();
    pb::LaneState {
        name: lane.name,
        next_token: lane.next_token,
        called_through: lane.called_through,
        arrivals: Some(arrivals_to_pb(lane.arrivals)),
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
        called_through: lane.called_through,
        arrivals: arrivals_from_pb(lane.arrivals.unwrap_or_default()),
        live,
    })
}

fn live_to_pb(live: LiveDump) -> pb::LiveToken {
    let stage = match live.stage {
        Stage::Waiting { last_seen_ms } => PbStage::Waiting(pb::WaitingStage { last_seen_ms }),
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
        entered_at_ms: live.entered.service_ms,
        entered_wall_ms: live.entered.wall_ms,
        entered_version: live.entered_version,
        stage: Some(stage),
        moved_from: live.moved_from.into_iter().map(token_to_pb).collect(),
        eta_given: live.eta_given.map(eta_given_to_pb),
    }
}

fn live_from_pb(live: pb::LiveToken) -> Result<LiveDump, Malformed> {
    let stage = match live
        .stage
        .ok_or("a live token in a state that this build does not know")?
    {
        PbStage::Waiting(stage) => Stage::Waiting {
            last_seen_ms: stage.last_seen_ms,
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
    let moved_from = live
        .moved_from
        .into_iter()
        .map(token_from_pb)
        .collect::<Result<_, _>>()?;
    Ok(LiveDump {
        token: live.token,
        // A copy, so that a key does not hold on to the whole file.
        key: live.key.map(|key| key[..].into()),
        entered: Timestamp {
            service_ms: live.entered_at_ms,
            wall_ms: live.entered_wall_ms,
        },
        entered_version: live.entered_version,
        stage,
        moved_from,
        eta_given: live.eta_given.map(eta_given_from_pb),
    })
}

fn gone_to_pb(gone: GoneDump) -> pb::GoneToken {
    pb::GoneToken {
        lane: gone.lane.into(),
        token: gone.token,
        reason: gone.reason.code().into(),
        epoch: gone.epoch,
        released: gone.released,
        moved_to: gone.moved_to.map(token_to_pb),
    }
}

fn gone_from_pb(gone: pb::GoneToken) -> Result<GoneDump, Malformed> {
    Ok(GoneDump {
        lane: lane_from_pb(gone.lane)?,
        token: gone.token,
        reason: reason_from_pb(gone.reason)?,
        epoch: gone.epoch,
        released: gone.released,
        moved_to: gone.moved_to.map(token_from_pb).transpose()?,
    })
}

pub(crate) fn reason_from_pb(code: u32) -> Result<Reason, Malformed> {
    let code = u8::try_from(code).ok();
    code.and_then(Reason::from_code)
        .ok_or("a reason that this build does not know")
}

pub(crate) fn token_to_pb((lane, token): (u8, Token)) -> pb::LaneToken {
    pb::LaneToken {
        lane: lane.into(),
        token,
    }
}

pub(crate) fn token_from_pb(at: pb::LaneToken) -> Result<(u8, Token), Malformed> {
    Ok((lane_from_pb(at.lane)?, at.token))
}
