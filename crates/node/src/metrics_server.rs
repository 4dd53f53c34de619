//! Prometheus metrics over HTTP.

use std::net::SocketAddr;

use anyhow::Context as _;
use metrics_exporter_prometheus::PrometheusBuilder;

/// Serves metrics at `addr`, or only counts if there is none.
///
/// # Errors
/// The address cannot be listened on, or the process has a recorder already.
pub fn install(addr: Option<SocketAddr>) -> anyhow::Result<()> {
    let Some(addr) = addr else {
        return Ok(());
    };
    PrometheusBuilder::new()
        .with_http_listener(addr)
        .install()
        .with_context(|| format!("metrics_addr {addr}"))?;
    describe();
    Ok(())
}

fn describe() {
    use metrics::{describe_counter as counter, describe_gauge as gauge, describe_histogram};
    counter!(
        "nowserving_requests_total",
        "Requests answered here, by operation and error code (ok: none)."
    );
    counter!(
        "nowserving_requests_forwarded_total",
        "Requests that reached this node and were answered by the leader."
    );
    counter!(
        "nowserving_proposals_total",
        "Log entries proposed by this node as a leader."
    );
    counter!(
        "nowserving_log_bytes_written_total",
        "Bytes written to the Raft log."
    );
    counter!(
        "nowserving_log_syncs_total",
        "Synced writes to the Raft log."
    );
    describe_histogram!(
        "nowserving_log_sync_seconds",
        "Time of one write to the Raft log with its sync."
    );
    counter!(
        "nowserving_peer_frames_sent_total",
        "Frames sent to other nodes."
    );
    counter!(
        "nowserving_peer_frames_received_total",
        "Frames that came from other nodes, refused ones too."
    );
    counter!(
        "nowserving_peer_frames_dropped_total",
        "Frames dropped because a bounded queue was full."
    );
    counter!(
        "nowserving_peer_bytes_sent_total",
        "Bytes sent to other nodes."
    );
    counter!(
        "nowserving_peer_append_messages_sent_total",
        "Raft messages sent that carry log entries."
    );
    counter!(
        "nowserving_frames_refused_total",
        "Frames refused: not authentic, foreign, late or doubled."
    );
    counter!(
        "nowserving_raft_refused_total",
        "Raft messages refused for their shape."
    );
    counter!(
        "nowserving_recycled_total",
        "Tokens thrown out by this node as a leader, by reason."
    );
    counter!("nowserving_events_published_total", "Events published.");
    counter!(
        "nowserving_events_dropped_total",
        "Events dropped because a bounded queue was full."
    );
    counter!(
        "nowserving_replies_refused_total",
        "Requests whose reply subject no answer may be sent to."
    );
    counter!(
        "nowserving_nats_slow_consumer_total",
        "Times that messages to this node were dropped."
    );
    gauge!(
        "nowserving_shard_leader",
        "1 on the node that leads the shard."
    );
    gauge!("nowserving_shards_led", "Shards led by this node.");
    gauge!("nowserving_lines_led", "Lines in shards led by this node.");
    gauge!(
        "nowserving_tokens_waiting",
        "Waiting tokens in shards led by this node."
    );
    gauge!(
        "nowserving_seats_held",
        "Seats held in shards led by this node."
    );
    gauge!(
        "nowserving_forecasts",
        "Entrants of lines led by this node who had to wait: told a time to wait or not; of the \
         told, admitted since (judged); of those, no later than eta_p90_ms said (p90_covered)."
    );
    gauge!(
        "nowserving_forecasts_off_by",
        "Those judged, by how far eta_ms was off the true wait: by at most so many percent of it."
    );
    gauge!(
        "nowserving_log_entries",
        "Log entries kept by this node, in all shards."
    );
    gauge!(
        "nowserving_log_memory_bytes",
        "Memory of the log entries that are kept in it."
    );
    gauge!("nowserving_log_disk_bytes", "Disk that the Raft log takes.");
    counter!(
        "nowserving_snapshots_total",
        "Snapshots of shards made on this node, by outcome."
    );
    gauge!(
        "nowserving_service_deaf_seconds",
        "Time since requests were last proven to reach this node."
    );
}
