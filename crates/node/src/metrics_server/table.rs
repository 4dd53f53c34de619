//! The table of all metrics: descriptions and buckets are registered from it, and `docs/metrics.md` is made from it.

use super::line_table;

/// One metric.
#[derive(Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    pub text: &'static str,
}

#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Counter,
    Gauge,
    /// With the upper ends of its buckets.
    Histogram(&'static [f64]),
}

impl Kind {
    /// The word of Prometheus.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        }
    }
}

/// The processes that have a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Process {
    Node,
    /// `nowserving envoy`
    Envoy,
    /// `nowserving gateway`
    Gateway,
    Any,
}

/// Metrics that belong together.
#[derive(Debug)]
pub struct Section {
    pub title: &'static str,
    /// For the docs; may be empty.
    pub about: &'static str,
    pub of: Process,
    /// They are written at each scrape, not registered.
    pub written: bool,
    pub metrics: &'static [Metric],
}

pub(super) const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    text: &'static str,
) -> Metric {
    metric(name, Kind::Counter, labels, text)
}

pub(super) const fn gauge(
    name: &'static str,
    labels: &'static [&'static str],
    text: &'static str,
) -> Metric {
    metric(name, Kind::Gauge, labels, text)
}

pub(super) const fn histogram(
    name: &'static str,
    buckets: &'static [f64],
    labels: &'static [&'static str],
    text: &'static str,
) -> Metric {
    metric(name, Kind::Histogram(buckets), labels, text)
}

const fn metric(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    text: &'static str,
) -> Metric {
    Metric {
        name,
        kind,
        labels,
        text,
    }
}

/// Fine enough for the 50th to the 99.5th percentile of anything between 100 µs and 10 s.
const REQUEST_SECONDS: &[f64] = &[
    0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01,
    0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5,
    10.0,
];
const DISK_SECONDS: &[f64] = &[
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1,
    0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
];
/// Quantiles would hide the few long ones.
const TURN_SECONDS: &[f64] = &[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];
/// `nowserving_shard::tallies::WAIT_BOUNDS_MS`, in seconds.
pub const WAIT_SECONDS: &[f64] = &[
    0.1, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_200.0, 1_800.0, 3_600.0, 7_200.0,
    14_400.0, 43_200.0,
];
/// `nowserving_line::OFF_BY_PERCENT`, as parts of 1.
pub const OFF_RATIOS: &[f64] = &[0.05, 0.15, 0.3, 0.5, 1.0];

/// The metric of this name.
pub fn find(name: &str) -> Option<&'static Metric> {
    let mut all = SECTIONS.iter().flat_map(|section| section.metrics);
    all.find(|metric| metric.name == name)
}

/// Everything that a process of this project shows.
pub const SECTIONS: &[Section] = &[
    line_table::LINES,
    line_table::LANES_AND_LABELS,
    line_table::FULL_AND_HELD_BACK,
    Section {
        title: "All lines of a node",
        about: "",
        of: Process::Node,
        written: false,
        metrics: &[
            gauge(
                "nowserving_lines_led",
                &[],
                "Lines in shards led by this node.",
            ),
            gauge(
                "nowserving_tokens_waiting",
                &[],
                "Waiting tokens in shards led by this node.",
            ),
            gauge(
                "nowserving_seats_held",
                &[],
                "Seats held in shards led by this node.",
            ),
            counter(
                "nowserving_recycled_total",
                &["reason"],
                "Tokens that expired on this node as a leader, by reason.",
            ),
        ],
    },
    Section {
        title: "Requests",
        about: "The rate of an operation is `sum by (op) (rate(nowserving_requests_total[1m]))`: a request counts there \
            on the one node that executes or refuses it. Its 99.5th percentile: \
            `histogram_quantile(0.995, sum by (op, le) (rate(nowserving_request_seconds_bucket[5m])))`; a forwarded \
            request is in this histogram twice, with the whole time on the node that it reached.",
        of: Process::Node,
        written: false,
        metrics: &[
            counter(
                "nowserving_requests_total",
                &["op", "code"],
                "Requests answered here, by operation and error code (ok: none).",
            ),
            counter(
                "nowserving_requests_forwarded_total",
                &["op", "code"],
                "Requests that reached this node and were answered by the leader, by operation and the leader's error code (ok: none; unknown: one that this release does not know).",
            ),
            histogram(
                "nowserving_request_seconds",
                REQUEST_SECONDS,
                &["op"],
                "Time from a request's arrival at this node to its answer, errors too. A forwarded request counts here and, for its part, on the leader.",
            ),
            counter(
                "nowserving_late_writes_total",
                &[],
                "Requests refused because they may have been sent too long ago: writes, and checks of rate limits.",
            ),
            counter(
                "nowserving_replies_refused_total",
                &[],
                "Requests whose reply subject no answer may be sent to.",
            ),
            gauge(
                "nowserving_service_unreachable_seconds",
                &[],
                "Time since requests were last proven to reach this node, at most an hour.",
            ),
        ],
    },
    Section {
        title: "Rate limits",
        about: "[rate-limits.md](rate-limits.md#metrics) says more.",
        of: Process::Node,
        written: false,
        metrics: &[
            counter(
                "nowserving_rate_limit_total",
                &["rule", "outcome"],
                "Descriptors of rate limit checks answered here, by rule and outcome: within (allowed), near (allowed, more than four fifths used), over (refused), shadow_over (allowed, as the rule is in shadow mode), untracked (allowed or refused without a counter, for want of room).",
            ),
            gauge(
                "nowserving_limit_unsaved_seconds",
                &[],
                "Age of the oldest change of a rate limit's counter that is in no checkpoint, over all shards led by this node: the hits that a failover would forget.",
            ),
            counter(
                "nowserving_limit_not_kept_total",
                &[],
                "Counters of rate limits that found no room in a checkpoint: a failover forgets them, however old they are. Each of them counts once in each checkpoint (up to five a second), so the rate says for how many and how long, not how many different ones.",
            ),
        ],
    },
    Section {
        title: "Raft",
        about: "",
        of: Process::Node,
        written: false,
        metrics: &[
            gauge(
                "nowserving_in_touch",
                &[],
                "1 once a quorum has accepted this node since its start; it stays 1 without a quorum or NATS. Whether the node serves says nowserving_ready.",
            ),
            gauge(
                "nowserving_shard_leader",
                &["shard"],
                "1 on the node that leads the shard.",
            ),
            gauge("nowserving_shards_led", &[], "Shards led by this node."),
            gauge(
                "nowserving_shards_without_leader",
                &[],
                "Shards of which this node knows no leader.",
            ),
            counter(
                "nowserving_leader_changes_total",
                &[],
                "Times that this node learned of another leader of a shard than the one before; the first after its start counts.",
            ),
            counter(
                "nowserving_term_changes_total",
                &[],
                "Times that this node entered a new Raft term, over all shards.",
            ),
            gauge(
                "nowserving_peer_lag_entries",
                &["peer"],
                "Log entries that the peer is not known to have on its disk, in the shard where it lacks most of those led by this node.",
            ),
            gauge(
                "nowserving_apply_lag_entries",
                &[],
                "Committed log entries that this node has not applied, in the shard where these are most.",
            ),
            counter(
                "nowserving_proposals_total",
                &[],
                "Log entries proposed by this node as a leader.",
            ),
            histogram(
                "nowserving_commit_seconds",
                DISK_SECONDS,
                &[],
                "Time from proposing a log entry to applying it, on the node that proposed it.",
            ),
            counter(
                "nowserving_raft_refused_total",
                &[],
                "Raft messages refused for their shape.",
            ),
            counter(
                "nowserving_state_differs_total",
                &[],
                "Times that a peer's state of a shard was found to differ from this node's.",
            ),
            counter(
                "nowserving_foreign_members_total",
                &[],
                "Lists of members of another cluster of the same name that were refused.",
            ),
            gauge(
                "nowserving_key_in_force",
                &[],
                "The id of the key with which this node signs tickets and seals frames.",
            ),
        ],
    },
    Section {
        title: "Log, snapshots and disk",
        about: "",
        of: Process::Node,
        written: false,
        metrics: &[
            histogram(
                "nowserving_log_sync_seconds",
                DISK_SECONDS,
                &[],
                "Time of one write to the Raft log with its sync.",
            ),
            counter(
                "nowserving_log_bytes_written_total",
                &[],
                "Bytes written to the Raft log.",
            ),
            counter(
                "nowserving_log_syncs_total",
                &[],
                "Synced writes to the Raft log.",
            ),
            gauge(
                "nowserving_log_entries",
                &[],
                "Log entries kept by this node, in all shards.",
            ),
            gauge(
                "nowserving_log_memory_bytes",
                &[],
                "Memory of the log entries that are kept in it.",
            ),
            gauge(
                "nowserving_log_disk_bytes",
                &[],
                "Disk that the Raft log takes.",
            ),
            counter(
                "nowserving_snapshots_total",
                &["outcome"],
                "Snapshots of shards made on this node, by outcome.",
            ),
            counter(
                "nowserving_snapshots_sent_total",
                &["outcome"],
                "Snapshots that this node, as a leader, offered a peer, by outcome.",
            ),
            counter(
                "nowserving_snapshots_received_total",
                &["outcome"],
                "Snapshots that this node fetched from a peer, by outcome.",
            ),
            gauge(
                "nowserving_disk_full",
                &[],
                "1 while the disk of this node is full.",
            ),
            gauge(
                "nowserving_disk_free_bytes",
                &[],
                "Free bytes on the disk of this node.",
            ),
        ],
    },
    Section {
        title: "The loop",
        about: "",
        of: Process::Node,
        written: false,
        metrics: &[
            histogram(
                "nowserving_turn_seconds",
                TURN_SECONDS,
                &[],
                "Time of one turn of the engine's loop: as long, nothing else is served.",
            ),
            histogram(
                "nowserving_turn_cpu_seconds",
                TURN_SECONDS,
                &[],
                "CPU time of one turn of the engine's loop. A turn that took much longer waited for a CPU.",
            ),
        ],
    },
    Section {
        title: "Between nodes",
        about: "",
        of: Process::Node,
        written: false,
        metrics: &[
            counter(
                "nowserving_peer_frames_sent_total",
                &[],
                "Frames sent to other nodes.",
            ),
            counter(
                "nowserving_peer_frames_direct_total",
                &[],
                "Of those, frames sent by direct links; the others went over NATS.",
            ),
            gauge(
                "nowserving_direct_links_wanted",
                &[],
                "Nodes to which this one keeps or tries to open a direct link.",
            ),
            gauge(
                "nowserving_direct_links",
                &[],
                "Direct links to other nodes that are open: frames to the others go over NATS.",
            ),
            counter(
                "nowserving_peer_frames_received_total",
                &[],
                "Frames that came from other nodes, refused ones too.",
            ),
            counter(
                "nowserving_peer_frames_dropped_total",
                &[],
                "Frames dropped because a bounded queue was full.",
            ),
            counter(
                "nowserving_loop_messages_dropped_total",
                &[],
                "Messages between the loops of a node that were dropped because a bounded queue was full. They are sent again.",
            ),
            counter(
                "nowserving_peer_bytes_sent_total",
                &[],
                "Bytes sent to other nodes.",
            ),
            counter(
                "nowserving_peer_append_messages_sent_total",
                &[],
                "Raft messages sent that carry log entries.",
            ),
            counter(
                "nowserving_frames_refused_total",
                &[],
                "Frames refused: not authentic, foreign, late or doubled.",
            ),
        ],
    },
    Section {
        title: "NATS and events",
        about: "The kinds of connections: `service` (requests, answers, events), `peers` (frames), `witness` (one for each URL).",
        of: Process::Node,
        written: false,
        metrics: &[
            gauge(
                "nowserving_nats_connected",
                &["kind"],
                "Connections to NATS that are up.",
            ),
            gauge(
                "nowserving_nats_connections_wanted",
                &["kind"],
                "Connections to NATS that this node keeps or tries to make: fewer connected ones mean that a server is away.",
            ),
            counter(
                "nowserving_nats_reconnects_total",
                &["kind"],
                "Times that a lost connection to NATS was made again.",
            ),
            counter(
                "nowserving_nats_slow_consumer_total",
                &["kind"],
                "Times that messages to this node were dropped.",
            ),
            gauge(
                "nowserving_max_payload_bytes",
                &[],
                "What the NATS server takes in one message (its max_payload). Below 65,536 the node serves nobody.",
            ),
            counter(
                "nowserving_publishes_refused_total",
                &["what"],
                "Messages that were larger than max_payload and are lost, by what they were: `frame`, `event`, `answer`; `by_server`: the limit was lowered, and the server refused them.",
            ),
            counter(
                "nowserving_events_published_total",
                &[],
                "Events published.",
            ),
            counter(
                "nowserving_events_dropped_total",
                &[],
                "Events dropped because a bounded queue was full.",
            ),
        ],
    },
    Section {
        title: "Key-values",
        about: "",
        of: Process::Node,
        written: false,
        metrics: &[gauge(
            "nowserving_kv_bytes",
            &["shard"],
            "Bytes of key-values in the shard, as they count against its limit of 33,554,432. The same on all nodes, but for those that lag.",
        )],
    },
    Section {
        title: "`nowserving envoy`",
        about: "[envoy.md](envoy.md#metrics-and-health) says more.",
        of: Process::Envoy,
        written: false,
        metrics: &[
            counter(
                "nowserving_envoy_requests_total",
                &["domain", "outcome"],
                "Requests of Envoy, by the cluster's domain and outcome; `without_rules` by the domain in the request, at most 100 of them, others by an empty one.",
            ),
            counter(
                "nowserving_envoy_overrides_ignored_total",
                &[],
                "Limits that descriptors carried, which the cluster's rules replace.",
            ),
            counter(
                "nowserving_envoy_refunds_ignored_total",
                &[],
                "Descriptors with hits to be given back (is_negative_hits), which nothing was counted for.",
            ),
            histogram(
                "nowserving_envoy_seconds",
                REQUEST_SECONDS,
                &[],
                "Time from a request of Envoy to its answer.",
            ),
        ],
    },
    Section {
        title: "`nowserving gateway`",
        about: "[front.md](front.md#watch-it) says more.",
        of: Process::Gateway,
        written: false,
        metrics: &[
            counter(
                "nowserving_gateway_checks_total",
                &["outcome"],
                "Checks of requests for the shop, by what they came to: `known` was answered without the cluster; `allowed_unavailable` passed because the cluster did not answer.",
            ),
            counter(
                "nowserving_gateway_requests_total",
                &["endpoint", "status"],
                "Requests by what they were for (`gate`, `wait`, `enter`, `events`, …) and the class of the answer (`2xx`, …).",
            ),
            histogram(
                "nowserving_gateway_seconds",
                REQUEST_SECONDS,
                &["endpoint"],
                "Time from a request to its answer; of `events`, to the first byte.",
            ),
            counter(
                "nowserving_gateway_entered_total",
                &["line"],
                "Visitors who took a number, or came back to theirs by entering again.",
            ),
            counter(
                "nowserving_gateway_pages_total",
                &["line", "page"],
                "Answers to visitors who were not let in, by the state of the page. The line is empty for one that is not known.",
            ),
            counter(
                "nowserving_gateway_limited_total",
                &["request"],
                "Requests that were refused because their address makes too many.",
            ),
            counter(
                "nowserving_gateway_limits_failed_total",
                &[],
                "Requests that no limit decided: the domain has no rules, or the gateway may not ask.",
            ),
            gauge(
                "nowserving_gateway_connections",
                &[],
                "Open connections of the main address.",
            ),
            counter(
                "nowserving_gateway_connections_closed_total",
                &["why"],
                "Connections that the gateway closed: `full`, there were too many; `reserved`, what is left is for questions of proxies, and a visitor asked; `address`, its address had too many; `silent`, it had asked for nothing while many others came; `idle`, nothing was asked, or no answer taken, for a minute (HTTP/2).",
            ),
            gauge(
                "nowserving_gateway_streams",
                &[],
                "Open streams of visitors.",
            ),
            counter(
                "nowserving_gateway_streams_refused_total",
                &[],
                "Streams that were refused, because there are `streams_max` of them or the gateway stops.",
            ),
            counter(
                "nowserving_gateway_seen_total",
                &[],
                "Tickets of open streams of which the gateway said to their lines that their holders are there.",
            ),
        ],
    },
    Section {
        title: "The process",
        about: "Nodes, `nowserving envoy` and `nowserving gateway` have these. Those that are read from `/proc` are missing on other systems than Linux.",
        of: Process::Any,
        written: true,
        metrics: &[
            gauge(
                "nowserving_ready",
                &[],
                "1 while /readyz answers 200: the process serves requests.",
            ),
            gauge(
                "nowserving_build_info",
                &["version"],
                "1, with the version of this build.",
            ),
            gauge(
                "process_resident_memory_bytes",
                &[],
                "Resident memory of the process.",
            ),
            counter(
                "process_cpu_seconds_total",
                &[],
                "CPU time that the process has used.",
            ),
            gauge("process_open_fds", &[], "Open file descriptors."),
            gauge(
                "process_start_time_seconds",
                &[],
                "When the process began to serve metrics, in seconds since 1970.",
            ),
        ],
    },
];
