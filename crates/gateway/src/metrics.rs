//! What the gateway counts. The table in `node/src/metrics_server/table.rs` describes all of it.

use std::time::Duration;

use ::http::StatusCode;
use metrics::{counter, gauge, histogram};
use nowserving_client::LineName;

/// A number was taken, or found again.
pub fn entered(line: &LineName) {
    counter!("nowserving_gateway_entered_total", "line" => line.to_string()).increment(1);
}

/// Somebody was not let in.
pub fn shown(line: &str, page: &'static str) {
    counter!("nowserving_gateway_pages_total", "line" => line.to_owned(), "page" => page)
        .increment(1);
}

pub fn limited(request: &'static str) {
    counter!("nowserving_gateway_limited_total", "request" => request).increment(1);
}

pub fn limit_failed() {
    counter!("nowserving_gateway_limits_failed_total").increment(1);
}

/// A request was answered, but for its stream.
pub fn answered(endpoint: &'static str, status: StatusCode, took: Duration) {
    let class = match status.as_u16() {
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        _ => "5xx",
    };
    counter!("nowserving_gateway_requests_total", "endpoint" => endpoint, "status" => class)
        .increment(1);
    histogram!("nowserving_gateway_seconds", "endpoint" => endpoint).record(took.as_secs_f64());
}

/// So many are open.
pub fn connections(open: usize) {
    gauge!("nowserving_gateway_connections").set(open as f64);
}

/// `why`: `full`, `reserved` for a visitor's where only proxies' questions have room, `address` for one of too many of its
/// address, `silent` for one that had asked for nothing when too many did, or `idle`.
pub fn connection_closed(why: &'static str) {
    counter!("nowserving_gateway_connections_closed_total", "why" => why).increment(1);
}

pub fn streams(open: usize) {
    gauge!("nowserving_gateway_streams").set(open as f64);
}
