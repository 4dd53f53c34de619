//! Measurements and ETAs, between the line crate's dumps and protobuf.

use nowserving_line::{Arrivals, EtaGiven, Forecast, ForecastRecord, Window};

use crate::pb;
use crate::settings_pb::Malformed;

pub(crate) fn forecast_to_pb(forecast: &Forecast) -> pb::Forecast {
    let record = &forecast.record;
    pb::Forecast {
        measured_ms: forecast.measured_ms,
        windows: forecast.windows.iter().copied().map(window_to_pb).collect(),
        current: Some(window_to_pb(forecast.current)),
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

pub(crate) fn forecast_from_pb(forecast: pb::Forecast) -> Result<Forecast, Malformed> {
    let windows: Vec<Window> = forecast.windows.into_iter().map(window_from_pb).collect();
    let record = forecast.record.unwrap_or_default();
    Ok(Forecast {
        measured_ms: forecast.measured_ms,
        windows: windows
            .try_into()
            .map_err(|_| "another number of windows than this build has")?,
        current: window_from_pb(forecast.current.unwrap_or_default()),
        quiet_seat_ms: forecast.quiet_seat_ms,
        leaves: forecast.leaves,
        waiter_ms: forecast.waiter_ms,
        spread_micro: forecast.spread_micro,
        record: ForecastRecord {
            eta_given: record.eta_given,
            eta_unknown: record.eta_unknown,
            judged: record.judged,
            covered: record.covered,
            off_by: record
                .off_by
                .try_into()
                .map_err(|_| "another number of errors than this build has")?,
        },
    })
}

fn window_to_pb(window: Window) -> pb::ForecastWindow {
    pb::ForecastWindow {
        releases: window.releases,
        seat_ms: window.seat_ms,
    }
}

fn window_from_pb(window: pb::ForecastWindow) -> Window {
    Window {
        releases: window.releases,
        seat_ms: window.seat_ms,
    }
}

pub(crate) fn arrivals_to_pb(arrivals: Arrivals) -> pb::Arrivals {
    pb::Arrivals {
        count: arrivals.count,
        since_ms: arrivals.since_ms,
        began_ms: arrivals.began_ms,
        last_ms: arrivals.last_ms,
    }
}

pub(crate) fn arrivals_from_pb(arrivals: pb::Arrivals) -> Arrivals {
    Arrivals {
        count: arrivals.count,
        since_ms: arrivals.since_ms,
        began_ms: arrivals.began_ms,
        last_ms: arrivals.last_ms,
    }
}

pub(crate) fn eta_given_to_pb(given: EtaGiven) -> pb::EtaGiven {
    pb::EtaGiven {
        eta_ms: given.eta_ms,
        eta_p90_ms: given.eta_p90_ms,
    }
}

pub(crate) fn eta_given_from_pb(given: pb::EtaGiven) -> EtaGiven {
    EtaGiven {
        eta_ms: given.eta_ms,
        eta_p90_ms: given.eta_p90_ms,
    }
}
