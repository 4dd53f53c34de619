//! The node's HTTP server: `/metrics` for Prometheus, `/healthz` (does it live?) and `/readyz` (does it serve?).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;

use crate::clock::monotonic_us;
use crate::health::Health;

/// The interval for folding histograms, which would grow between scrapes.
const FOLD_INTERVAL: Duration = Duration::from_secs(5);
/// After a connection that could not be taken (too many open files?) the next try is this much later.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The time of a turn, in buckets: quantiles would hide the few long ones.
pub(crate) const TURN_SECONDS: &str = "nowserving_turn_seconds";
/// The CPU time of a turn, in the same buckets.
pub(crate) const TURN_CPU_SECONDS: &str = "nowserving_turn_cpu_seconds";
const TURN_BUCKETS: [f64; 10] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];

/// Serves at `addr`, or only counts if there is none.
///
/// # Errors
/// The address cannot be listened on, or the process has a recorder already.
pub fn install(addr: Option<SocketAddr>, health: &Arc<Health>) -> anyhow::Result<()> {
    let Some(addr) = addr else {
        return Ok(());
    };
    let listener = std::net::TcpListener::bind(addr).and_then(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
    let listener = listener.with_context(|| format!("metrics_addr {addr}"))?;
    let mut metrics = PrometheusBuilder::new();
    for turns in [TURN_SECONDS, TURN_CPU_SECONDS] {
        let turns = Matcher::Full(turns.to_owned());
        metrics = metrics.set_buckets_for_metric(turns, &TURN_BUCKETS)?;
    }
    let metrics = metrics.install_recorder()?;
    describe();
    tokio::spawn(fold(metrics.clone()));
    tokio::spawn(serve(listener, metrics, health.clone()));
    Ok(())
}

async fn fold(metrics: PrometheusHandle) {
    loop {
        tokio::time::sleep(FOLD_INTERVAL).await;
        metrics.run_upkeep();
    }
}

async fn serve(listener: TcpListener, metrics: PrometheusHandle, health: Arc<Health>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection to the metrics address was not taken");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let (metrics, health) = (metrics.clone(), health.clone());
        let service = service_fn(move |request| {
            let answer = answer(&request, &metrics, &health);
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        let mut server = http1::Builder::new();
        // Closes a connection that sends nothing for half a minute.
        server.timer(TokioTimer::new());
        let connection = server.serve_connection(TokioIo::new(stream), service);
        // Fails when the other side breaks it off, which is its right.
        tokio::spawn(async { drop(connection.await) });
    }
}

fn answer(
    request: &Request<Incoming>,
    metrics: &PrometheusHandle,
    health: &Health,
) -> Response<Full<Bytes>> {
    let now = monotonic_us();
    let (status, text) = match request.uri().path() {
        "/metrics" => (StatusCode::OK, metrics.render()),
        "/healthz" => checked(health.lives(now)),
        "/readyz" => checked(health.serves(now)),
        _ => {
            let paths = "/metrics, /healthz and /readyz are here\n".to_owned();
            (StatusCode::NOT_FOUND, paths)
        }
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let text = header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response
}

fn checked(state: Result<(), String>) -> (StatusCode, String) {
    match state {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n"),
    }
}

/// Name, kind and text of each metric.
const METRICS: &str = "\
nowserving_requests_total counter Requests answered here, by operation and error code (ok: none).
nowserving_requests_forwarded_total counter Requests that reached this node and were answered by the leader.
nowserving_rate_limit_total counter Descriptors of rate limit checks answered here, by rule and outcome.
nowserving_proposals_total counter Log entries proposed by this node as a leader.
nowserving_log_bytes_written_total counter Bytes written to the Raft log.
nowserving_log_syncs_total counter Synced writes to the Raft log.
nowserving_turn_seconds histogram Time of one turn of the engine's loop: as long, nothing else is served.
nowserving_turn_cpu_seconds histogram CPU time of one turn of the engine's loop. A turn that took much longer waited for a CPU.
nowserving_disk_full gauge 1 while the disk of this node is full.
nowserving_disk_free_bytes gauge Free bytes on the disk of this node.
nowserving_log_sync_seconds histogram Time of one write to the Raft log with its sync.
nowserving_peer_frames_sent_total counter Frames sent to other nodes.
nowserving_peer_frames_received_total counter Frames that came from other nodes, refused ones too.
nowserving_peer_frames_dropped_total counter Frames dropped because a bounded queue was full.
nowserving_peer_bytes_sent_total counter Bytes sent to other nodes.
nowserving_peer_append_messages_sent_total counter Raft messages sent that carry log entries.
nowserving_frames_refused_total counter Frames refused: not authentic, foreign, late or doubled.
nowserving_raft_refused_total counter Raft messages refused for their shape.
nowserving_recycled_total counter Tokens that expired on this node as a leader, by reason.
nowserving_state_differs_total counter Times that a peer's state of a shard was found to differ from this node's.
nowserving_events_published_total counter Events published.
nowserving_events_dropped_total counter Events dropped because a bounded queue was full.
nowserving_replies_refused_total counter Requests whose reply subject no answer may be sent to.
nowserving_nats_slow_consumer_total counter Times that messages to this node were dropped.
nowserving_in_touch gauge 1 once a quorum has accepted this node: it votes and serves.
nowserving_shard_leader gauge 1 on the node that leads the shard.
nowserving_shards_led gauge Shards led by this node.
nowserving_lines_led gauge Lines in shards led by this node.
nowserving_tokens_waiting gauge Waiting tokens in shards led by this node.
nowserving_seats_held gauge Seats held in shards led by this node.
nowserving_forecasts gauge Entrants of lines led by this node that had to wait: with an ETA or without; of those with one, admitted since (judged); of those, no later than eta_p90_ms (p90_covered).
nowserving_forecasts_off_by gauge Those judged, by how far eta_ms was off the true wait: by at most so many percent of it.
nowserving_limit_unsaved_seconds gauge Age of the oldest change of a rate limit's counter that is in no checkpoint, over all shards led by this node: the hits that a failover would forget.
nowserving_limit_not_kept_total counter Counters of rate limits that found no room in a checkpoint: a failover forgets them, however old they are. Once for each checkpoint.
nowserving_kv_bytes gauge Bytes of key-values in the shard, as they count against its limit of 33,554,432. The same on all nodes, but for those that lag.
nowserving_log_entries gauge Log entries kept by this node, in all shards.
nowserving_log_memory_bytes gauge Memory of the log entries that are kept in it.
nowserving_log_disk_bytes gauge Disk that the Raft log takes.
nowserving_snapshots_total counter Snapshots of shards made on this node, by outcome.
nowserving_snapshots_sent_total counter Snapshots that this node, as a leader, offered a peer, by outcome.
nowserving_snapshots_received_total counter Snapshots that this node fetched from a peer, by outcome.
nowserving_late_writes_total counter Requests refused because they may have been sent too long ago: writes, and checks of rate limits.
nowserving_service_unreachable_seconds gauge Time since requests were last proven to reach this node.";

fn describe() {
    for row in METRICS.lines() {
        let mut words = row.splitn(3, ' ').map(str::to_owned);
        let [Some(name), Some(kind), Some(text)] = [(); 3].map(|()| words.next()) else {
            continue;
        };
        match kind.as_str() {
            "gauge" => metrics::describe_gauge!(name, text),
            "histogram" => metrics::describe_histogram!(name, text),
            _ => metrics::describe_counter!(name, text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_has_a_name_a_kind_and_a_text() {
        for row in METRICS.lines() {
            let words: Vec<&str> = row.splitn(3, ' ').collect();
            let is_row = matches!(
                words[..],
                [name, "counter" | "gauge" | "histogram", text]
                    if name.starts_with("nowserving_") && text.ends_with('.')
            );
            assert!(is_row, "{row}");
        }
    }
}
