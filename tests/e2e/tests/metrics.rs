//! The metrics of lines, lanes and labels against what `show` says, on the leader of their shard alone; and whether
//! each metric of the docs is there.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{Api, Cluster, HOUR_MS, Metrics, Options, eventually, number, run};
use nowserving_protocol::error::Code;
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(10);
const LINE: &str = "shop";
/// With `LINE` 60 lines.
const IDLE_LINES: usize = 59;
const SHOWN: usize = 50;

/// All lines are in one shard: one node shows them.
#[tokio::test]
async fn metrics_say_what_happens() -> Result<()> {
    let options = Options {
        shards: 1,
        ..Options::default()
    };
    run(options, say_what_happens).await
}

async fn say_what_happens(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    busy_line(&api).await?;
    for nth in 0..IDLE_LINES {
        let labels = json!({"city": "Beijing", "nth": nth.to_string()});
        let settings =
            json!({"seats": 2, "queue_limit": 10, "labels": labels, "claim_timeout_ms": 300});
        api.admin(&idle(nth), "create", settings).await?;
    }
    let rules = "domain: shop\ndescriptors:\n  - {key: ip, rate_limit: {unit: day, requests_per_unit: 9}}\n";
    api.limit("apply", json!({"rules": rules})).await?;
    let leader = cluster.leader_of(LINE).await?;
    agree_with_show(cluster, leader, true).await?;
    the_others_are_together(cluster, leader).await?;
    labels_are_summed(cluster, leader).await?;
    // It does not claim, and becomes one of the busiest until then.
    api.enter(&idle(IDLE_LINES - 1), "no show").await?;
    all_metrics_are_there(cluster).await?;

    let heir = cluster.ids().find(|id| *id != leader).context("one node")?;
    cluster.transfer(&[0], heir).await?;
    agree_with_show(cluster, heir, false).await?;
    api.ok(LINE, "enter", json!({"key": "secret-late"})).await?;
    eventually("it counts what happens from now on", PATIENCE, async || {
        let metrics = cluster.metrics(heir).await?;
        let entered = metrics.sum("nowserving_line_entered_total", &["line=\"shop\""]);
        Ok((entered == 1.0).then_some(()))
    })
    .await?;
    eventually("the old leader shows no lines", PATIENCE, async || {
        let old = cluster.metrics(leader).await?;
        let names = [
            "nowserving_line_waiting",
            "nowserving_line_entered_total",
            "nowserving_wait_seconds_count",
            "nowserving_lane_waiting",
            "nowserving_label_lines",
            "nowserving_peer_lag_entries",
        ];
        Ok((!names.iter().any(|name| old.has(name))).then_some(()))
    })
    .await?;
    for path in ["/healthz", "/readyz"] {
        // Not ready for a moment after the machine stood still.
        eventually(path, PATIENCE, async || {
            let (status, text) = cluster.http(leader, path).await?;
            ensure!(status == 200, "{status} {text}");
            Ok(Some(()))
        })
        .await?;
    }
    readiness_ends_with_the_quorum(cluster, leader).await
}

async fn readiness_ends_with_the_quorum(cluster: &mut Cluster, left: u64) -> Result<()> {
    eventually("the node is ready", PATIENCE, async || {
        let ready = cluster.metrics(left).await?.sum("nowserving_ready", &[]);
        Ok((ready == 1.0).then_some(()))
    })
    .await?;
    for id in cluster.ids().filter(|id| *id != left) {
        cluster.process(id)?.kill().await?;
    }
    eventually("the node that is left is not ready", PATIENCE, async || {
        let metrics = cluster.metrics(left).await?;
        ensure!(metrics.has("nowserving_ready"));
        Ok((metrics.sum("nowserving_ready", &[]) == 0.0).then_some(()))
    })
    .await?;
    let (status, text) = cluster.http(left, "/readyz").await?;
    ensure!(status == 503, "{status} {text}");
    Ok(())
}

fn idle(nth: usize) -> String {
    format!("idle-{nth:02}")
}

/// Two seats: one is given back, and one holder is in checkout. Two lanes, a full line, and a key that must stay secret.
async fn busy_line(api: &Api) -> Result<()> {
    let settings = json!({
        "seats": 2,
        "queue_limit": 3,
        "lanes": [{"name": "normal"}, {"name": "vip", "queue_limit": 2}],
        "labels": {"city": "上海 \"pudong\""},
        "claim_timeout_ms": HOUR_MS,
        "checkout_timeout_ms": HOUR_MS,
        "waiting_idle_timeout_ms": HOUR_MS,
    });
    api.admin(LINE, "create", settings).await?;
    let mut tickets = Vec::new();
    for nth in 0..5 {
        let lane = if nth == 4 { "vip" } else { "normal" };
        let body = json!({"key": format!("secret-order-{nth}"), "lane": lane});
        let entered = api.ok(LINE, "enter", body).await?;
        tickets.push(json!({"ticket": entered["ticket"]}));
    }
    for nth in 0..2 {
        let once = api.with_request_id(format!("refused-{nth}"));
        let body = json!({"key": format!("secret-refused-{nth}")});
        once.refused(LINE, "enter", body, Code::LineFull).await?;
    }
    api.ok(LINE, "claim", tickets[0].clone()).await?;
    api.ok(LINE, "complete", tickets[0].clone()).await?;
    api.ok(LINE, "claim", tickets[1].clone()).await?;
    Ok(())
}

/// What the metrics of `LINE` should be: names, labels and values. `counters`: the node has led it all the time.
async fn shown(api: &Api, counters: bool) -> Result<Vec<(String, Vec<String>, f64)>> {
    let shown = api.admin(LINE, "show", json!({})).await?;
    let counts = &shown["counts"];
    let mut samples = Vec::new();
    let mut add = |name: &str, labels: &[(&str, &str)], value: f64| {
        let labels = [&[("line", LINE)][..], labels].concat();
        let labels = labels.iter().map(|(name, of)| format!("{name}=\"{of}\""));
        samples.push((format!("nowserving_{name}"), labels.collect(), value));
    };
    for field in ["waiting", "admitted", "in_checkout"] {
        let value = number(counts, field)? as f64;
        add(&format!("line_{field}"), &[], value);
    }
    let counted = [("gone", &counts["gone"]), ("refused", &counts["refused"])];
    for (name, counted) in counted.into_iter().filter(|_| counters) {
        for (reason, count) in counted.as_object().context("no counts")? {
            let count = count.as_u64().context("count")? as f64;
            add(
                &format!("line_{name}_total"),
                &[("reason", reason.as_str())],
                count,
            );
        }
    }
    add("line_seats", &[], 2.0);
    add("line_queue_limit", &[], 3.0);
    if counters {
        add("line_entered_total", &[], number(counts, "issued")? as f64);
        add("lane_entered_total", &[("lane", "normal")], 4.0);
        add("lane_entered_total", &[("lane", "vip")], 1.0);
    }
    add("line_room", &[], 1.0);
    add("lane_room", &[("lane", "vip")], 1.0);
    add("lane_queue_limit", &[("lane", "vip")], 2.0);
    add("lane_admitted", &[("lane", "normal")], 1.0);
    add("lane_in_checkout", &[("lane", "normal")], 1.0);
    add("line_phase", &[("phase", "open")], 1.0);
    add("line_held_back", &[("by", "seats")], 1.0);
    add("line_gate", &[("gate", "on")], 1.0);
    add("lane_waiting", &[("lane", "normal")], 1.0);
    add("lane_waiting", &[("lane", "vip")], 1.0);
    Ok(samples)
}

async fn agree_with_show(cluster: &Cluster, leader: u64, counters: bool) -> Result<()> {
    let expected = shown(cluster.api(), counters).await?;
    ensure!(
        expected.iter().any(|(.., value)| *value == 2.0),
        "{expected:?}"
    );
    eventually("the metrics are those of show", PATIENCE, async || {
        let metrics = cluster.metrics(leader).await?;
        for (name, labels, value) in &expected {
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            let found = metrics.sum(name, &labels);
            ensure!(found == *value, "{name} {labels:?}: {found}, not {value}");
        }
        Ok(Some(()))
    })
    .await
}

async fn the_others_are_together(cluster: &Cluster, leader: u64) -> Result<()> {
    let others = "line=\"(others)\"";
    eventually("50 lines and the others", PATIENCE, async || {
        let metrics = cluster.metrics(leader).await?;
        let is_bounded = metrics.count("nowserving_line_waiting") == SHOWN + 1
            && metrics.count("nowserving_line_phase") == SHOWN
            && metrics.count("nowserving_wait_seconds_count") == SHOWN + 1
            && metrics.sum("nowserving_line_seats", &[others]) == 20.0
            && metrics.sum("nowserving_line_seats", &["line=\"idle-48\""]) == 2.0
            && metrics.sum("nowserving_line_seats", &["line=\"idle-49\""]) == 0.0;
        ensure!(is_bounded, "{metrics:?}");
        Ok(Some(()))
    })
    .await?;
    let metrics = cluster.metrics(leader).await?;
    let waits = metrics.sum("nowserving_wait_seconds_count", &["line=\"shop\""]);
    ensure!(waits == 3.0, "admitted: {waits}");
    let (_, text) = cluster.http(leader, "/metrics").await?;
    ensure!(!text.contains("secret"), "a key: {text}");
    Ok(())
}

async fn labels_are_summed(cluster: &Cluster, leader: u64) -> Result<()> {
    let metrics = cluster.metrics(leader).await?;
    for (name, value, expected) in [
        ("lines", "Beijing", IDLE_LINES as f64),
        ("seats", "Beijing", 2.0 * IDLE_LINES as f64),
        ("waiting", "上海 \\\"pudong\\\"", 2.0),
        ("admitted", "上海 \\\"pudong\\\"", 1.0),
        ("in_checkout", "上海 \\\"pudong\\\"", 1.0),
        ("entered_total", "上海 \\\"pudong\\\"", 5.0),
    ] {
        let labels = ["label=\"city\"", &format!("value=\"{value}\"")];
        let found = metrics.sum(&format!("nowserving_label_{name}"), &labels);
        ensure!(found == expected, "{name} of {value}: {found}");
    }
    // 61 pairs: 50, and the other values of `nth`.
    let pairs = metrics.count("nowserving_label_lines");
    ensure!(pairs == SHOWN + 1, "{pairs}");
    let lines = metrics.sum("nowserving_label_lines", &["label=\"nth\""]);
    ensure!(lines == IDLE_LINES as f64, "each counts once: {lines}");
    let full = metrics.sum("nowserving_lines_full", &[]);
    ensure!(full == 0.0, "lines that are full: {full}");
    let held_back = metrics.sum("nowserving_lines_held_back", &["by=\"seats\""]);
    ensure!(held_back == 1.0, "lines that wait for seats: {held_back}");
    Ok(())
}

/// Not on these nodes, or only after more than happens here.
const NOT_HERE: [&str; 3] = [
    "nowserving_envoy_",
    "nowserving_gateway_",
    "nowserving_requests_forwarded_total",
];

/// Series that are there before anything has happened, on each node, so that `increase` sees the first event.
const BEGIN_AT_0: [(&str, &str, &[&str]); 5] = [
    (
        "nowserving_snapshots_total",
        "outcome",
        &["written", "failed"],
    ),
    (
        "nowserving_snapshots_sent_total",
        "outcome",
        &["acknowledged", "offered_again"],
    ),
    (
        "nowserving_snapshots_received_total",
        "outcome",
        &[
            "installed",
            "refused",
            "timed_out",
            "not_stored",
            "disk_full",
        ],
    ),
    (
        "nowserving_rate_limit_total",
        "outcome",
        &["within", "near", "over", "shadow_over", "untracked"],
    ),
    (
        "nowserving_nats_reconnects_total",
        "kind",
        &["service", "peers", "witness"],
    ),
];

/// Those of the docs.
fn documented() -> Result<Vec<String>> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let text = std::fs::read_to_string(docs)?;
    let rows = text.lines().filter_map(|row| row.strip_prefix("| `"));
    let names = rows.filter_map(|row| row.split('`').next());
    Ok(names.map(str::to_owned).collect())
}

async fn all_metrics_are_there(cluster: &Cluster) -> Result<()> {
    let mut names = documented()?;
    ensure!(names.len() > 60, "{names:?}");
    names.retain(|name| !NOT_HERE.iter().any(|begin| name.starts_with(begin)));
    eventually("each metric of the docs is there", PATIENCE, async || {
        let nodes = cluster.all_metrics().await?;
        let has = |node: &Metrics, name: &str| {
            node.has(name)
                || (node.has(&format!("{name}_bucket")) && node.has(&format!("{name}_count")))
        };
        let missing = names.iter();
        let missing = missing.filter(|name| !nodes.iter().any(|node| has(node, name)));
        let missing: Vec<_> = missing.collect();
        ensure!(missing.is_empty(), "missing: {missing:?}");
        Ok(Some(()))
    })
    .await?;
    for node in cluster.all_metrics().await? {
        for (name, label, values) in BEGIN_AT_0 {
            for value in values {
                let label = format!("{label}=\"{value}\"");
                let count = node.count_with(name, &label);
                ensure!(count == 1, "{name} {label}: {count} series");
            }
        }
    }
    let metrics = cluster.metrics(1).await?;
    for kind in ["service", "peers", "witness"] {
        for name in [
            "nowserving_nats_connected",
            "nowserving_nats_connections_wanted",
        ] {
            let count = metrics.sum(name, &[&format!("kind=\"{kind}\"")]);
            ensure!(count == 1.0, "{name} of {kind}: {count}");
        }
    }
    ensure!(metrics.sum("nowserving_shards_without_leader", &[]) == 0.0);
    ensure!(metrics.sum("nowserving_build_info", &[]) == 1.0);
    Ok(())
}
