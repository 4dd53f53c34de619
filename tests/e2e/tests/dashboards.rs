//! The dashboards and alert rules of `deploy/` against a real Prometheus that scrapes a real cluster: on a healthy cluster
//! under load nobody is woken, and every query returns data. So a metric or a label that the nodes do not have is found.
//!
//! An alert's expression returns nothing while all is well. So its comparisons with numbers are taken away, and what they
//! compare must be there, on each side of an `or`. A side that looks for trouble alone may be empty if there is data
//! without its matchers. And every value that a query compares a label with is one that the code can set.

mod promql;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nowserving_e2e::{Api, Cluster, HOUR_MS, Process, eventually, free_port, http};
use nowserving_line::{Gate, HeldBackBy, Phase, Reason, RefusedCode};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

use self::promql::{Matcher, matchers, sides, without_comparisons, without_matchers};

const LINE: &str = "dashboards";
const LANES: [&str; 2] = ["normal", "vip"];
/// A line whose gate holds nobody back.
const TRIED: &str = "dashboards-tried";
/// A line whose admission rate holds people back while seats are free.
const SLOW: &str = "dashboards-slow";
const DOMAIN: &str = "dashboards";
/// Between two rounds of the crowd.
const PAUSE: Duration = Duration::from_millis(20);
/// So many may be in the line while all is well.
const CALM: usize = 20;
/// The limits of the line that fills up, and of its lane. While one is served there is room for one, and that has to be less
/// than the tenth of a limit at which the alerts begin: else each scrape in such a moment ends the alert.
const FULL: u32 = 30;
const FULL_LANE: u32 = 20;
const START: Duration = Duration::from_secs(20);
/// Forecasts need some time, and rates some scrapes.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an alert's condition holds here before it fires: nobody waits for minutes.
const FOR: &str = "3s";
/// Several times as long.
const SCRAPES: u32 = 10;
/// At least as long nobody is woken.
const CALM_LASTS: Duration = Duration::from_secs(9);
/// A round of the crowd that takes longer: the machine stood still, and the nodes may have refused requests.
const STANDS_STILL: Duration = Duration::from_secs(1);
/// So long alerts may fire for that.
const TOLD_FOR: Duration = Duration::from_secs(60);
/// Then it is looked again whether nobody is woken, so often at most.
const LOOKS: usize = 5;

/// Labels whose values the code does not list: names of lines, addresses and the like.
const FREE: [&str; 5] = ["instance", "label", "line", "rule", "value"];

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
    let mut crowd = Crowd::default();
    let stood_still = Cell::new(None);
    tokio::select! {
        // It ends by an error only.
        ended = crowd.come(&api, true, &stood_still) => ended.context("the crowd").map(|never| match never {}),
        calm = prometheus.wakes_nobody(&stood_still) => calm,
    }?;
    api.admin(LINE, "configure", lanes(FULL, FULL_LANE)).await?;
    tokio::select! {
        ended = crowd.come(&api, false, &stood_still) => ended.context("the crowd").map(|never| match never {}),
        all = prometheus.answers(queries) => all,
    }
}

/// Room in the line, and in the lane that has a limit of its own.
fn lanes(queue_limit: u32, lane: u32) -> Value {
    let [normal, vip] = LANES;
    let lanes = json!([{"name": normal}, {"name": vip, "queue_limit": lane}]);
    json!({"queue_limit": queue_limit, "lanes": lanes})
}

/// A line with lanes and a label, one without a gate, one with a rate, and rules with each outcome.
async fn prepare(api: &Api) -> Result<()> {
    let mut settings = json!({
        "seats": 4, "labels": {"city": "Taipei"},
        "waiting_idle_timeout_ms": HOUR_MS, "claim_timeout_ms": HOUR_MS,
        "checkout_timeout_ms": HOUR_MS, "checkout_max_ms": HOUR_MS,
    });
    for (name, value) in lanes(1_000, 500).as_object().into_iter().flatten() {
        settings[name] = value.clone();
    }
    api.admin(LINE, "create", settings).await?;
    let tried = json!({"seats": 4, "queue_limit": 30, "gate": "shadow"});
    api.admin(TRIED, "create", tried).await?;
    let rate = json!({"per_second": 0.001, "burst": 1});
    let slow = json!({
        "seats": 4, "queue_limit": 30, "admission_rate": rate,
        "waiting_idle_timeout_ms": HOUR_MS, "claim_timeout_ms": 100,
    });
    api.admin(SLOW, "create", slow).await?;
    // The first does not come, and is recycled; the second waits.
    api.enter(SLOW, "first").await?;
    api.enter(SLOW, "second").await?;
    let rules = format!(
        "domain: {DOMAIN}
descriptors:
  - {{key: ip, rate_limit: {{unit: day, requests_per_unit: 20, name: by_ip}}}}
  - {{key: new, shadow_mode: true, rate_limit: {{unit: day, requests_per_unit: 1, name: tried}}}}
"
    );
    api.apply_rules(DOMAIN, &rules).await
}

/// Those in the line, by lane.
#[derive(Default)]
struct Crowd {
    tickets: [VecDeque<Value>; LANES.len()],
    nth: usize,
}

impl Crowd {
    /// In a round one comes into each lane. While it is calm as many leave, else one, so that the line fills up. Notes when
    /// the machine `stood_still`.
    async fn come(
        &mut self,
        api: &Api,
        is_calm: bool,
        stood_still: &Cell<Option<Instant>>,
    ) -> Result<Infallible> {
        let descriptors = |key: &str| json!({"descriptors": [[{"key": key, "value": "1"}]]});
        loop {
            self.nth += 1;
            let begin = Instant::now();
            for (lane, tickets) in LANES.iter().zip(&mut self.tickets) {
                let entrant = json!({"key": format!("{}{lane}", self.nth), "lane": lane});
                let entered = api.call(LINE, "enter", &entrant).await?;
                if entered.code.is_none() {
                    tickets.push_back(entered.body["ticket"].clone());
                }
            }
            self.serve(api).await?;
            let present: usize = self.tickets.iter().map(VecDeque::len).sum();
            if is_calm && present > CALM {
                self.serve(api).await?;
            }
            for key in ["ip", "new"] {
                api.check(DOMAIN, &descriptors(key)).await?;
            }
            // No mapping leads these to the leader: two in three are forwarded.
            api.admin(LINE, "show", json!({})).await?;
            if begin.elapsed() > STANDS_STILL {
                stood_still.set(Some(Instant::now()));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One at the head of a lane who is admitted claims and completes.
    async fn serve(&mut self, api: &Api) -> Result<()> {
        for tickets in &mut self.tickets {
            let Some(ticket) = tickets.front() else {
                continue;
            };
            let claimed = api.call(LINE, "claim", &json!({"ticket": ticket})).await?;
            if claimed.code.is_none() {
                let done = json!({"ticket": ticket, "epoch": claimed.body["epoch"]});
                api.ok(LINE, "complete", done).await?;
                tickets.pop_front();
                break;
            }
        }
        Ok(())
    }
}

struct Prometheus {
    process: Process,
    addr: SocketAddr,
    nodes: usize,
}

impl Prometheus {
    async fn start(cluster: &Cluster, program: &Path) -> Result<Prometheus> {
        let folder = cluster.folder().join("prometheus");
        std::fs::create_dir_all(&folder)?;
        let targets: Vec<String> = cluster
            .ids()
            .map(|id| Ok(cluster.metrics_addr(id)?.to_string()))
            .collect::<Result<_>>()?;
        let nodes = targets.len();
        let rules = std::fs::read_to_string(deploy().join("prometheus/rules.yml"))?;
        let rules_file = folder.join("rules.yml");
        std::fs::write(&rules_file, soon(&rules))?;
        // JSON is YAML.
        let configuration = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [rules_file],
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
        Ok(Prometheus {
            process,
            addr,
            nodes,
        })
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

    /// On a healthy cluster under load no alert fires that wakes somebody. Prometheus takes seconds to find its first targets, and
    /// rightly says so: what fires before that has ended does not count. Nor does what fires because the machine
    /// `stood_still`.
    async fn wakes_nobody(&self, stood_still: &Cell<Option<Instant>>) -> Result<()> {
        let page = r#"severity="page""#;
        let none = format!(r#"absent(ALERTS{{alertstate="firing", {page}}})"#);
        for _ in 0..LOOKS {
            eventually(
                "all nodes are scraped, and it is calm",
                PATIENCE,
                async || {
                    let begun = self.was_scraped(1).await? && self.has_data(&none).await?;
                    Ok(begun.then_some(()))
                },
            )
            .await?;
            let begin = Instant::now();
            eventually("the nodes were scraped for a while", PATIENCE, async || {
                let enough = self.was_scraped(SCRAPES).await? && begin.elapsed() >= CALM_LASTS;
                Ok(enough.then_some(()))
            })
            .await?;
            let pages = self.fired(page, begin.elapsed()).await?;
            if pages.is_empty() {
                return Ok(());
            }
            let is_told = |at: Instant| at + TOLD_FOR > begin;
            ensure!(
                stood_still.get().is_some_and(is_told),
                "somebody was woken: {pages:?}"
            );
        }
        bail!("the machine stands still again and again")
    }

    /// Whether each node was scraped so often.
    async fn was_scraped(&self, times: u32) -> Result<bool> {
        let scraped = r#"count_over_time(nowserving_lines_led{job="nowserving"}[5m])"#;
        let nodes = self.nodes;
        self.has_data(&format!("count({scraped} >= {times}) == {nodes}"))
            .await
    }

    /// The names of the alerts that have fired in this time.
    async fn fired(&self, which: &str, within: Duration) -> Result<BTreeSet<String>> {
        let within = within.as_secs();
        let fired = format!(r#"max_over_time(ALERTS{{alertstate="firing", {which}}}[{within}s])"#);
        let data = self
            .get(&format!("/api/v1/query?query={}", encoded(&fired)))
            .await?;
        let samples = data["result"].as_array().context("no vector")?;
        let names = samples.iter().map(|it| it["metric"]["alertname"].as_str());
        names
            .map(|name| Ok(name.context("no name")?.to_owned()))
            .collect()
    }

    /// Waits until each query returns data, and the alerts fire that are due: the line is full.
    async fn answers(&self, queries: Vec<Query>) -> Result<()> {
        let mut open: Vec<(String, String)> = Vec::new();
        for Query { of, text } in &queries {
            open.extend(sides(text).into_iter().map(|side| (of.clone(), side)));
        }
        eventually("each query returns data", PATIENCE, async || {
            let mut missing = Vec::new();
            let mut list = String::new();
            for (of, text) in &open {
                let answered = self.shows_something(text, &queries).await;
                if !matches!(answered, Ok(true)) {
                    writeln!(list, "{of}: {text} ({answered:?})")?;
                    missing.push((of.clone(), text.clone()));
                }
            }
            open = missing;
            ensure!(open.is_empty(), "no data:\n{list}");
            Ok(Some(()))
        })
        .await?;
        let due = ["NowservingLineNearlyFull", "NowservingLaneNearlyFull"];
        eventually("the alerts of a full line fire", PATIENCE, async || {
            let fired = self
                .fired(&format!(r#"line="{LINE}""#), 5 * PATIENCE)
                .await?;
            ensure!(due.iter().all(|it| fired.contains(*it)), "{fired:?}");
            Ok(Some(()))
        })
        .await?;
        self.values_exist(&queries).await
    }

    /// Whether it returns data, or is a side of an `or` that does so without its matchers: those of trouble.
    async fn shows_something(&self, text: &str, queries: &[Query]) -> Result<bool> {
        let is_whole = queries.iter().any(|query| query.text == text);
        Ok(self.has_data(text).await?
            || !is_whole && self.has_data(&without_matchers(text)?).await?)
    }

    /// Every value that a query compares a label with is one that the code lists or the nodes have shown.
    async fn values_exist(&self, queries: &[Query]) -> Result<()> {
        let mut shown = BTreeMap::new();
        let mut list = String::new();
        for Query { of, text } in queries {
            for matcher in matchers(text)? {
                let Matcher { metric, label, .. } = matcher;
                if FREE.contains(&label) {
                    continue;
                }
                let key = (metric.to_owned(), label.to_owned());
                if !shown.contains_key(&key) {
                    shown.insert(key.clone(), self.values(metric, label).await?);
                }
                let listed = listed(metric, label);
                for value in matcher.values {
                    if !listed.contains(&value) && !shown[&key].contains(value) {
                        writeln!(list, "{of}: {metric} has no {label}=\"{value}\"")?;
                    }
                }
            }
        }
        ensure!(list.is_empty(), "unknown values of labels:\n{list}");
        Ok(())
    }

    /// Those of a metric's label that the nodes have shown.
    async fn values(&self, metric: &str, label: &str) -> Result<BTreeSet<String>> {
        let path = format!(
            "/api/v1/label/{label}/values?{}={}",
            encoded("match[]"),
            encoded(metric)
        );
        Ok(serde_json::from_value(self.get(&path).await?)?)
    }

    /// Whether any of the answer's values is a number.
    async fn has_data(&self, query: &str) -> Result<bool> {
        let path = format!("/api/v1/query?query={}", encoded(query));
        let data = self.get(&path).await?;
        let samples = data["result"].as_array().context("no vector")?;
        Ok(samples.iter().any(|sample| sample["value"][1] != "NaN"))
    }
}

/// The values that the code can give a metric's label, where it has a list of them. Others begin at 0, all of them.
fn listed(metric: &str, label: &str) -> Vec<&'static str> {
    match label {
        "by" => HeldBackBy::WORDS.to_vec(),
        "code" => Code::ALL.iter().map(|it| it.as_str()).collect(),
        "gate" => Gate::ALL.map(Gate::as_str).to_vec(),
        "phase" => Phase::ALL.map(Phase::as_str).to_vec(),
        "reason" if metric.contains("_refused_") => {
            RefusedCode::ALL.map(RefusedCode::as_str).to_vec()
        }
        "reason" => Reason::ALL.map(Reason::as_str).to_vec(),
        _ => Vec::new(),
    }
}

/// The rules with [`FOR`] in place of how long each condition has to hold.
fn soon(rules: &str) -> String {
    let lines = rules.lines().map(|line| match line.split_once("for: ") {
        Some((indent, _)) if indent.trim().is_empty() => format!("{indent}for: {FOR}\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
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
