//! Lines between the line crate's dumps and protobuf.

use std::sync::Arc;

use bytes::Bytes;
use nowserving_line::{
    Entered, Forecast, ForecastRecord, Gone, GoneFrom, Imported, LaneDump, LineDump, Live, Offers,
    PositionMark, Shadow, Stage, Timestamp, Token, Told, Window,
};

use crate::calls_pb::{call_item_from_pb, call_item_to_pb};
use crate::journal_pb::{
    change_from_pb, change_to_pb, journal_from_pb, journal_to_pb, noted_from_pb, noted_to_pb,
};
use crate::kick_pb::{kicked_from_pb, kicked_to_pb, state_from_pb, state_to_pb};
use crate::op_pb::refused_from_pb;
use crate::pb;
use crate::pb::live_token::Stage as PbStage;
use crate::pb::{
    Malformed, all, lane_from_pb, lane_name_from_pb, line_name_from_pb, reason_from_pb,
    token_from_pb, token_to_pb,
};
use crate::settings_pb::{settings_from_pb, settings_to_pb};

pub(crate) fn line_to_pb(line: LineDump) -> pb::LineState {
    pb::LineState {
        name: line.name.as_str().to_owned(),
        incarnation: line.incarnation,
        version: line.version,
        epoch: line.epoch,
        settings: Some(settings_to_pb(&line.settings)),
        settings_version: line.settings_version,
        created_at_ms: line.created_at_ms,
        deleting: line.deleting,
        gone_counts: counts_to_pb(&line.gone_counts),
        gone_from: departures_to_pb(&line.gone_from),
        refused: line.refused.stored().to_vec(),
        completed_before: line.completed_before,
        completed_in_past: line.completed_in_past,
        renews_at_ms: line.renews_at_ms,
        lanes: line.lanes.into_iter().map(lane_to_pb).collect(),
        gone: line.gone.into_iter().map(gone_to_pb).collect(),
        bucket: line.bucket.map(Into::into),
        called_back: line.called_back,
        told: line.told.map(|told| pb::Told {
            seats: told.seats,
            until_ms: told.until_ms,
            silent: told.silent,
        }),
        shadow: (line.shadow != Shadow::default()).then(|| line.shadow.into()),
        imported: line.imported.map(|imported| pb::Imported {
            id: imported.id.into(),
            rows: imported.rows,
            entered: imported.entered,
        }),
        journal: line.journal.iter().map(journal_to_pb).collect(),
        forecast: Some(forecast_to_pb(&line.forecast)),
        settings_changes: line.settings_changes.iter().map(change_to_pb).collect(),
        kicks: line.kicks.iter().map(kicked_to_pb).collect(),
        notes: line.notes.iter().map(noted_to_pb).collect(),
        calls: line.calls.iter().map(call_item_to_pb).collect(),
    }
}

/// The reasons of the first format always have a count; later ones if it is not 0.
const REASONS: usize = 9;

fn counts_to_pb(counts: &[u64]) -> Vec<u64> {
    let used = counts
        .iter()
        .rposition(|count| *count > 0)
        .map_or(0, |last| last + 1);
    counts.iter().take(used.max(REASONS)).copied().collect()
}

fn counts_from_pb<const N: usize>(stored: &[u64]) -> Result<[u64; N], Malformed> {
    if !(REASONS..=N).contains(&stored.len()) {
        return Err("not one count per reason");
    }
    let mut counts = [0; N];
    counts[..stored.len()].copy_from_slice(stored);
    Ok(counts)
}

/// Counts of 0 are left out, so that a state without any has the bytes of the format before.
fn departures_to_pb(gone: &GoneFrom) -> Vec<pb::GoneFrom> {
    let counts = gone.iter().map(|(state, reason, count)| pb::GoneFrom {
        state: state_to_pb(Some(state)),
        reason: reason.code().into(),
        count,
    });
    counts.collect()
}

fn departures_from_pb(stored: &[pb::GoneFrom]) -> Result<GoneFrom, Malformed> {
    let in_order = |a: &pb::GoneFrom, b: &pb::GoneFrom| (a.state, a.reason) < (b.state, b.reason);
    if !stored.is_sorted_by(in_order) {
        return Err("departures out of order");
    }
    let mut gone = GoneFrom::default();
    for it in stored {
        let state = state_from_pb(it.state)?.ok_or("a departure from no state")?;
        gone.set(state, reason_from_pb(it.reason)?, it.count);
    }
    Ok(gone)
}

pub(crate) fn line_from_pb(line: pb::LineState) -> Result<LineDump, Malformed> {
    Ok(LineDump {
        name: line_name_from_pb(&line.name)?,
        incarnation: line.incarnation,
        version: line.version,
        epoch: line.epoch,
        settings: settings_from_pb(line.settings.ok_or("a line without settings")?)?,
        settings_version: line.settings_version,
        created_at_ms: line.created_at_ms,
        deleting: line.deleting,
        gone_counts: counts_from_pb(&line.gone_counts)?,
        gone_from: departures_from_pb(&line.gone_from)?,
        refused: refused_from_pb(&line.refused)?,
        completed_before: line.completed_before,
        completed_in_past: line.completed_in_past,
        renews_at_ms: line.renews_at_ms,
        bucket: line.bucket.map(Into::into),
        called_back: line.called_back,
        told: line.told.map(|told| Told {
            seats: told.seats,
            until_ms: told.until_ms,
            silent: told.silent,
        }),
        shadow: line.shadow.unwrap_or_default().into(),
        imported: line.imported.map(|imported| Imported {
            id: imported.id.into(),
            rows: imported.rows,
            entered: imported.entered,
        }),
        lanes: all(line.lanes, lane_dump_from_pb)?,
        gone: all(line.gone, gone_from_pb)?,
        journal: all(line.journal, journal_from_pb)?,
        settings_changes: all(line.settings_changes, change_from_pb)?,
        kicks: all(line.kicks, kicked_from_pb)?,
        notes: all(line.notes, noted_from_pb)?,
        calls: all(line.calls, call_item_from_pb)?,
        forecast: forecast_from_pb(line.forecast.ok_or("a line without forecasts")?)?,
    })
}

fn lane_to_pb(lane: LaneDump) -> pb::LaneState {
    pb::LaneState {
        name: lane.name.as_str().to_owned(),
        next_token: lane.next_token,
        called_through: lane.called_through,
        marks: lane.marks.into_iter().map(mark_to_pb).collect(),
        offers: offers_to_pb(lane.offers),
        callers: lane.callers.into_iter().map(caller_to_pb).collect(),
        arrivals: Some(lane.arrivals.into()),
        live: lane.live.into_iter().map(live_to_pb).collect(),
    }
}

fn lane_dump_from_pb(lane: pb::LaneState) -> Result<LaneDump, Malformed> {
    Ok(LaneDump {
        name: lane_name_from_pb(&lane.name)?,
        next_token: lane.next_token,
        called_through: lane.called_through,
        marks: lane.marks.into_iter().map(mark_from_pb).collect(),
        offers: offers_from_pb(lane.offers),
        callers: lane.callers.into_iter().map(caller_from_pb).collect(),
        arrivals: lane.arrivals.unwrap_or_default().into(),
        live: all(lane.live, live_from_pb)?,
    })
}

/// Left out while nothing was offered.
fn offers_to_pb(offers: Offers) -> Option<pb::Offers> {
    let Offers {
        recent,
        earlier,
        since_ms,
    } = offers;
    (offers != Offers::default()).then_some(pb::Offers {
        recent,
        earlier,
        since_ms,
    })
}

fn offers_from_pb(offers: Option<pb::Offers>) -> Offers {
    let offers = offers.unwrap_or_default();
    Offers {
        recent: offers.recent,
        earlier: offers.earlier,
        since_ms: offers.since_ms,
    }
}

pub(crate) fn caller_to_pb((number, key): (u64, Arc<[u8]>)) -> pb::Caller {
    pb::Caller {
        number,
        key: Bytes::copy_from_slice(&key),
    }
}

pub(crate) fn caller_from_pb(caller: pb::Caller) -> (u64, Arc<[u8]>) {
    // A copy, so that a key does not hold on to the whole file.
    (caller.number, caller.key[..].into())
}

fn mark_to_pb(mark: PositionMark) -> pb::PositionMark {
    let PositionMark { position, through } = mark;
    pb::PositionMark { position, through }
}

fn mark_from_pb(mark: pb::PositionMark) -> PositionMark {
    let pb::PositionMark { position, through } = mark;
    PositionMark { position, through }
}

pub(crate) fn live_to_pb((token, live): (Token, Live)) -> pb::LiveToken {
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
        token,
        key: live.key.as_deref().map(Bytes::copy_from_slice),
        entered_at_ms: live.entered.at.service_ms,
        entered_wall_ms: live.entered.at.wall_ms,
        entered_version: live.entered.version,
        stage: Some(stage),
        moved_from: live.moved_from.iter().copied().map(token_to_pb).collect(),
        jumps: live.jumps.into(),
        eta_given: live.eta_given.map(Into::into),
    }
}

pub(crate) fn live_from_pb(live: pb::LiveToken) -> Result<(Token, Live), Malformed> {
    let stage = live.stage;
    let stage = match stage.ok_or("a live token in a state that this build does not know")? {
        PbStage::Waiting(pb::WaitingStage { last_seen_ms }) => Stage::Waiting { last_seen_ms },
        PbStage::Admitted(pb::AdmittedStage { deadline_ms }) => Stage::Admitted { deadline_ms },
        PbStage::InCheckout(stage) => Stage::InCheckout {
            deadline_ms: stage.deadline_ms,
            claimed_at_ms: stage.claimed_at_ms,
            epoch: stage.epoch,
        },
    };
    let entered = entered(
        live.entered_at_ms,
        live.entered_wall_ms,
        live.entered_version,
    );
    let read = Live {
        // A copy, so that a key does not hold on to the whole file.
        key: live.key.map(|key| key[..].into()),
        entered,
        stage,
        moved_from: all(live.moved_from, token_from_pb)?,
        jumps: live.jumps.try_into().map_err(|_| "jumps beyond 8 bits")?,
        eta_given: live.eta_given.map(Into::into),
    };
    Ok((live.token, read))
}

pub(crate) fn entered(service_ms: u64, wall_ms: u64, version: u64) -> Entered {
    Entered {
        at: Timestamp {
            service_ms,
            wall_ms,
        },
        version,
    }
}

pub(crate) fn gone_to_pb((lane, token, gone): (u8, Token, Gone)) -> pb::GoneToken {
    pb::GoneToken {
        lane: lane.into(),
        token,
        reason: gone.reason.code().into(),
        epoch: gone.epoch,
        released: gone.released,
        moved_to: gone.moved_to.map(token_to_pb),
    }
}

pub(crate) fn gone_from_pb(it: pb::GoneToken) -> Result<(u8, Token, Gone), Malformed> {
    let gone = Gone {
        reason: reason_from_pb(it.reason)?,
        epoch: it.epoch,
        released: it.released,
        moved_to: it.moved_to.map(token_from_pb).transpose()?,
    };
    Ok((lane_from_pb(it.lane)?, it.token, gone))
}

fn forecast_to_pb(forecast: &Forecast) -> pb::Forecast {
    let record = &forecast.record;
    pb::Forecast {
        measured_ms: forecast.measured_ms,
        windows: forecast.windows.map(Into::into).to_vec(),
        current: Some(forecast.current.into()),
        quiet_seat_ms: forecast.quiet_seat_ms,
        leaves: forecast.leaves,
        waiter_ms: forecast.waiter_ms,
        spread_micro: forecast.spread_micro,
        record: Some(pb::ForecastRecord {
            eta_given: record.eta_given,
            eta_unknown: record.eta_unknown,
            judged: record.judged,
            covered: record.covered,
            off_by: record.off_by.to_vec(),
        }),
    }
}

fn forecast_from_pb(forecast: pb::Forecast) -> Result<Forecast, Malformed> {
    let windows: Vec<Window> = forecast.windows.into_iter().map(Into::into).collect();
    let windows = windows.try_into();
    let record = forecast.record.unwrap_or_default();
    let off_by = record.off_by.try_into();
    Ok(Forecast {
        measured_ms: forecast.measured_ms,
        windows: windows.map_err(|_| "another number of windows than this build has")?,
        current: forecast.current.unwrap_or_default().into(),
        quiet_seat_ms: forecast.quiet_seat_ms,
        leaves: forecast.leaves,
        waiter_ms: forecast.waiter_ms,
        spread_micro: forecast.spread_micro,
        record: ForecastRecord {
            eta_given: record.eta_given,
            eta_unknown: record.eta_unknown,
            judged: record.judged,
            covered: record.covered,
            off_by: off_by.map_err(|_| "another number of errors than this build has")?,
        },
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_line::{Reason, State};

    use super::*;

    #[test]
    fn departures_come_back_and_are_in_order() {
        let mut gone = GoneFrom::default();
        gone.set(State::InCheckout, Reason::Completed, 7);
        gone.set(State::Waiting, Reason::WaitExpired, u64::MAX);
        gone.set(State::Waiting, Reason::Left, 1);
        let stored = departures_to_pb(&gone);
        assert_eq!(stored.len(), 3);
        assert_eq!(departures_from_pb(&stored), Ok(gone));
        assert_eq!(departures_from_pb(&[]), Ok(GoneFrom::default()));
        let twice = [stored[0], stored[0]];
        assert!(departures_from_pb(&twice).is_err());
        for (state, reason) in [(0, 1), (4, 1), (1, 99)] {
            let unknown = pb::GoneFrom {
                state,
                reason,
                count: 1,
            };
            assert!(departures_from_pb(&[unknown]).is_err());
        }
    }
}
