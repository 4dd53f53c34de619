//! The dashboards and alert rules of `deploy/` against a real Prometheus that scrapes a real cluster: every query
//! returns data. So a metric or a label that the nodes do not have is found.
//!
//! An alert's expression returns nothing while all is well. So its comparisons with numbers are taken away, and what they
//! compare must be there. A query of metrics that exist only after trouble may be empty if the nodes' sources name them.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Api, Cluster, HOUR_MS, Process, eventually, free_port, http};
use serde_json::{Value, json};

use crate::rate_limits::apply_text;

const LINE: &str = "dashboards";
/// A line whose gate holds nobody back.
const TRIED: &str = "dashboards-tried";
const DOMAIN: &str = "dashboards";
/// Between two rounds of the crowd.
const PAUSE: Duration = Duration::from_millis(20);
const START: Duration = Duration::from_secs(20);
/// Forecasts need some time, and rates some scrapes.
const PATIENCE: Duration = Duration::from_secs(45);

/// Counters that a node has from the first time on that it was in such trouble.
const TROUBLE: [&str; 9] = [
    "nowserving_events_dropped_total",
    "nowserving_late_writes_total",
    "nowserving_limit_not_kept_total",
    "nowserving_nats_reconnects_total",
    "nowserving_nats_slow_consumer_total",
    "nowserving_peer_frames_dropped_total",
    "nowserving_snapshots_received_total",
    "nowserving_snapshots_sent_total",
    "nowserving_state_differs_total",
];

/// The Prometheus that `cargo xtask test` names.
pub fn prometheus() -> Option<PathBuf> {
    let given = std::env::var_os("PROMETHEUS");
    given.filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// A query, and where it stands.
#[derive(Clone)]
struct Query {
    of: String,
    text: String,
}

pub async fn return_data(cluster: &Cluster, program: &Path) -> Result<()> {
    let api = cluster.api().clone();
    prepare(&api).await?;
    let prometheus = Prometheus::start(cluster, program).await?;
    let mut queries = prometheus.rules().await?;
    queries.extend(dashboards()?);
    ensure!(queries.len() > 100, "{} queries were found", queries.len());
    tokio::select! {
        // It ends by an error only.
        ended = crowd(&api) => ended.context("the crowd").map(|never| match never {}),
        all = prometheus.answers(queries) => all,
    }
}

/// A line with a label, one without a gate, and rules with each outcome.
async fn prepare(api: &Api) -> Result<()> {
    let settings = json!({
        "seats": 4, "queue_limit": 30, "labels": {"city": "Taipei"},
        "waiting_idle_timeout_ms": HOUR_MS, "claim_timeout_ms": HOUR_MS,
        "checkout_timeout_ms": HOUR_MS, "checkout_max_ms": HOUR_MS,
    });
    api.admin(LINE, "create", settings).await?;
    let tried = json!({"seats": 4, "queue_limit": 30, "gate": "shadow"});
    api.admin(TRIED, "create", tried).await?;
    let rules = format!(
        "domain: {DOMAIN}
descriptors:
  - {{key: ip, rate_limit: {{unit: day, requests_per_unit: 20, name: by_ip}}}}
  - {{key: new, shadow_mode: true, rate_limit: {{unit: day, requests_per_unit: 1, name: tried}}}}
"
    );
    apply_text(api, DOMAIN, &rules).await
}

/// More people come than the line has room for; those at its head claim and complete, one in a round.
async fn crowd(api: &Api) -> Result<Infallible> {
    let mut tickets = VecDeque::new();
    let descriptors = |key: &str| json!({"descriptors": [[{"key": key, "value": "1"}]]});
    let mut nth = 0u64;
    loop {
        nth += 1;
        for half in ["a", "b"] {
            let key = json!({"key": format!("{nth}{half}")});
            let entered = api.call(LINE, "enter", &key).await?;
            if entered.code.is_none() {
                tickets.push_back(entered.body["ticket"].clone());
            }
        }
        if let Some(ticket) = tickets.pop_front() {
            let claimed = api.ok(LINE, "claim", json!({"ticket": ticket})).await?;
            let done = json!({"ticket": ticket, "epoch": claimed["epoch"]});
            api.ok(LINE, "complete", done).await?;
        }
        for key in ["ip", "new"] {
            api.check(DOMAIN, &descriptors(key)).await?;
        }
        // No mapping leads these to the leader: two in three are forwarded.
        api.admin(LINE, "show", json!({})).await?;
        tokio::time::sleep(PAUSE).await;
    }
}

struct Prometheus {
    process: Process,
    addr: SocketAddr,
}

impl Prometheus {
    async fn start(cluster: &Cluster, program: &Path) -> Result<Prometheus> {
        let folder = cluster.folder().join("prometheus");
        std::fs::create_dir_all(&folder)?;
        let targets: Vec<String> = cluster
            .ids()
            .map(|id| Ok(cluster.metrics_addr(id)?.to_string()))
            .collect::<Result<_>>()?;
        // JSON is YAML.
        let configuration = json!({
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"},
            "rule_files": [deploy().join("prometheus/rules.yml")],
            "scrape_configs": [{"job_name": "nowserving", "static_configs": [{"targets": targets}]}],
        });
        let file = folder.join("prometheus.yml");
        std::fs::write(&file, configuration.to_string())?;
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let args = [
            format!("--config.file={}", file.display()),
            format!("--storage.tsdb.path={}", folder.join("data").display()),
            format!("--web.listen-address={addr}"),
        ];
        let log = cluster.folder().join("prometheus.log");
        let process = Process::start("prometheus", program.as_os_str(), args, &log).await?;
        let ready = eventually("Prometheus is ready", START, async || {
            let (status, _) = http::get(addr, "/-/ready").await?;
            Ok((status == 200).then_some(()))
        });
        ready.await.with_context(|| process.tail(20))?;
        Ok(Prometheus { process, addr })
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let (status, text) = http::get(self.addr, path).await?;
        ensure!(status == 200, "{status} {text}");
        let answer: Value = serde_json::from_str(&text)?;
        ensure!(answer["status"] == "success", "{answer}");
        Ok(answer["data"].clone())
    }

    /// What the alert rules look at, once each has been evaluated without an error.
    async fn rules(&self) -> Result<Vec<Query>> {
        let rules = eventually("each rule was evaluated", START, async || {
            let data = self.get("/api/v1/rules").await?;
            let groups = data["groups"].as_array().into_iter().flatten();
            let rules = groups.flat_map(|group| group["rules"].as_array().into_iter().flatten());
            let rules: Vec<Value> = rules.cloned().collect();
            let bad = rules.iter().find(|rule| rule["health"] != "ok");
            ensure!(bad.is_none(), "{bad:?}");
            Ok((!rules.is_empty()).then_some(rules))
        });
        let rules = rules.await.with_context(|| self.process.tail(20))?;
        let query = |rule: &Value| {
            Some(Query {
                of: rule["name"].as_str()?.to_owned(),
                text: without_comparisons(rule["query"].as_str()?),
            })
        };
        let queries = rules.iter().map(|rule| query(rule).context("a rule"));
        queries.collect()
    }

    /// Waits until each query returns data.
    async fn answers(&self, mut queries: Vec<Query>) -> Result<()> {
        eventually("each query returns data", PATIENCE, async || {
            let mut missing = Vec::new();
            let mut list = String::new();
            for query in &queries {
                let answered = self.has_data(&query.text).await;
                let is_answered = match &answered {
                    Ok(false) => only_after_trouble(&query.text)?,
                    other => matches!(other, Ok(true)),
                };
                if !is_answered {
                    writeln!(list, "{}: {} ({answered:?})", query.of, query.text)?;
                    missing.push(query.clone());
                }
            }
            queries = missing;
            ensure!(queries.is_empty(), "no data:\n{list}");
            Ok(Some(()))
        })
        .await
    }

    /// Whether any of the answer's values is a number.
    async fn has_data(&self, query: &str) -> Result<bool> {
        let path = format!("/api/v1/query?query={}", encoded(query));
        let data = self.get(&path).await?;
        let samples = data["result"].as_array().context("no vector")?;
        Ok(samples.iter().any(|sample| sample["value"][1] != "NaN"))
    }
}

/// Whether the query looks at one of [`TROUBLE`] that the nodes' sources name.
fn only_after_trouble(query: &str) -> Result<bool> {
    let Some(metric) = TROUBLE.iter().find(|metric| query.contains(*metric)) else {
        return Ok(false);
    };
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    let is_named = is_named_in(&sources, metric)?;
    ensure!(is_named, "{metric} stands nowhere in the nodes' sources");
    Ok(true)
}

fn is_named_in(folder: &Path, name: &str) -> Result<bool> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let is_named = match path.is_dir() {
            true => is_named_in(&path, name)?,
            false if path.extension().is_some_and(|it| it == "rs") => {
                std::fs::read_to_string(&path)?.contains(name)
            }
            false => false,
        };
        if is_named {
            return Ok(true);
        }
    }
    Ok(false)
}

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// The queries of all dashboards: of panels and of variables.
fn dashboards() -> Result<Vec<Query>> {
    let mut queries = Vec::new();
    for entry in std::fs::read_dir(deploy().join("grafana/dashboards"))? {
        let dashboard: Value = serde_json::from_slice(&std::fs::read(entry?.path())?)?;
        let title = dashboard["title"].as_str().context("no title")?;
        for panel in dashboard["panels"].as_array().into_iter().flatten() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let text = target["expr"].as_str().context("no query")?;
                queries.push(Query {
                    of: format!("{title}: {}", panel["title"]),
                    text: without_comparisons(&with_values(text)),
                });
            }
        }
        let variables = dashboard["templating"]["list"].as_array();
        for variable in variables.into_iter().flatten() {
            if let Some(text) = variable["definition"].as_str() {
                queries.push(Query {
                    of: format!("{title}: {}", variable["name"]),
                    text: label_values(&with_values(text))?,
                });
            }
        }
    }
    Ok(queries)
}

/// As Grafana fills them in.
fn with_values(query: &str) -> String {
    let variables = [
        ("$__rate_interval", "15s"),
        ("$__range", "5m"),
        ("$line", LINE),
        ("$rule", ".*"),
        ("$label", "city"),
        ("$city", ".*"),
    ];
    variables
        .iter()
        .fold(query.to_owned(), |query, (name, value)| {
            query.replace(name, value)
        })
}

/// `label_values(metric, label)`, which is Grafana's own, as a query.
fn label_values(text: &str) -> Result<String> {
    let inner = text.strip_prefix("label_values(");
    let parts = inner.and_then(|inner| inner.strip_suffix(')')?.rsplit_once(", "));
    let (metric, label) = parts.with_context(|| format!("not label_values: {text}"))?;
    Ok(format!("count by ({label}) ({metric})"))
}

/// The query without `== 0`, `> 0.9` and the like; what stands in quotes stays.
fn without_comparisons(query: &str) -> String {
    let mut kept = String::new();
    let (mut rest, mut quoted) = (query, false);
    while let Some(next) = rest.chars().next() {
        quoted ^= next == '"';
        let compared = if quoted { None } else { after_comparison(rest) };
        if let Some(after) = compared {
            rest = after;
        } else {
            kept.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    kept
}

/// What follows a comparison with a number, if the text begins with one.
fn after_comparison(text: &str) -> Option<&str> {
    let operators = ["==", "!=", "<=", ">=", "<", ">"];
    let after = operators.iter().find_map(|it| text.strip_prefix(it))?;
    let number = after.trim_start();
    let is_part = |(at, part): &(usize, char)| {
        part.is_ascii_digit()
            || matches!(part, '.' | 'e')
            || matches!(part, '+' | '-') && (*at == 0 || number[..*at].ends_with('e'))
    };
    let length = number.char_indices().take_while(is_part).count();
    number[..length].parse::<f64>().ok()?;
    Some(&number[length..])
}

/// For a URL.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut url, byte| {
        match byte.is_ascii_alphanumeric() {
            true => url.push(char::from(byte)),
            false => url += &format!("%{byte:02X}"),
        }
        url
    })
}

#[test]
fn comparisons_with_numbers_are_taken_away() {
    for (query, left) in [
        (r#"up{job="a == 1"} == 0"#, r#"up{job="a == 1"} "#),
        (r#"a{b!="1"} / (c > 0) > 0.9"#, r#"a{b!="1"} / (c ) "#),
        ("a < 1.073741824e+09 and on (x) b >= -2", "a  and on (x) b "),
        ("a > b", "a > b"),
    ] {
        assert_eq!(without_comparisons(query), left);
    }
}
