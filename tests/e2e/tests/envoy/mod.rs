//! `nowserving envoy`, asked as Envoy asks: by Python's grpcio with Envoy's published messages.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{
    Cluster, Metrics, Process, eventually, free_port, grpc_python, http, program,
};
use serde_json::{Value, json};
use tokio::process::Command;

const PATIENCE: Duration = Duration::from_secs(60);
const DOMAIN: &str = "envoy-shop";
const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// Buckets of a year, which get no room again while the test runs.
const RULES: &str = "domain: envoy-shop
descriptors:
  - key: remote_address
    rate_limit: {unit: year, requests_per_unit: 3, algorithm: token_bucket, name: by_address}
    descriptors:
      - {key: path, value: /free*, rate_limit: {unlimited: true}}
  - {key: week, rate_limit: {unit: week, requests_per_unit: 5, algorithm: token_bucket}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: account, rate_limit: {unit: year, requests_per_unit: 1, algorithm: token_bucket, exact: true}}
";

/// A running `nowserving envoy`, and the client's interpreter and script.
struct Server {
    process: Process,
    addr: SocketAddr,
    metrics: SocketAddr,
    client: (PathBuf, PathBuf),
}

impl Server {
    async fn start(cluster: &Cluster, on_unavailable: &str) -> Result<Server> {
        Server::start_at(
            cluster,
            on_unavailable,
            on_unavailable,
            &cluster.nats_urls(),
        )
        .await
    }

    async fn start_at(
        cluster: &Cluster,
        on_unavailable: &str,
        name: &str,
        nats: &str,
    ) -> Result<Server> {
        let addr = || anyhow::Ok(SocketAddr::from(([127, 0, 0, 1], free_port()?)));
        let (addr, metrics) = (addr()?, addr()?);
        let log = cluster.folder().join(format!("envoy-{name}.log"));
        let (listen, metrics_addr) = (addr.to_string(), metrics.to_string());
        let args = [
            "envoy",
            "--nats",
            nats,
            "--listen",
            &listen,
            "--metrics-addr",
            &metrics_addr,
            "--on-unavailable",
            on_unavailable,
            "--response-headers",
            "--domain",
            "default/shop.http=envoy-shop",
            // On a busy machine an answer takes long.
            "--patience",
            "5s",
        ];
        let program = program().await?;
        let process = Process::start("envoy", program.as_os_str(), args, &log).await?;
        let server = Server {
            process,
            addr,
            metrics,
            client: grpc_python("ask.py", include_str!("client.py")).await?,
        };
        eventually("the server answers", PATIENCE, async || {
            let health = server.one(json!({"health": ""})).await?;
            Ok((health["status"] == "SERVING").then_some(()))
        })
        .await?;
        Ok(server)
    }

    /// The answers to these requests, one after the other by one connection.
    async fn ask(&self, requests: &[Value]) -> Result<Vec<Value>> {
        let (interpreter, script) = &self.client;
        let mut command = Command::new(interpreter);
        command.arg(script).arg(self.addr.to_string());
        command.args(requests.iter().map(Value::to_string));
        let done = command.kill_on_drop(true).output();
        let done = tokio::time::timeout(5 * PATIENCE, done).await??;
        let printed = String::from_utf8_lossy(&done.stdout);
        let answers = printed.lines().map(serde_json::from_str);
        let answers: Vec<Value> = answers.collect::<Result<_, _>>()?;
        ensure!(
            done.status.success() && answers.len() == requests.len(),
            "{printed}\n{}",
            String::from_utf8_lossy(&done.stderr)
        );
        Ok(answers)
    }

    async fn one(&self, request: Value) -> Result<Value> {
        let mut answers = self.ask(&[request]).await?;
        answers.pop().context("one answer")
    }
}

fn of(descriptors: Value) -> Value {
    json!({"domain": DOMAIN, "descriptors": descriptors})
}

fn descriptor(key: &str, value: &str) -> Value {
    json!({"entries": [{"key": key, "value": value}]})
}

pub async fn asks(cluster: &mut Cluster) -> Result<()> {
    let mut server = Server::start(cluster, "error").await?;
    let allowing = Server::start(cluster, "allow").await?;
    let denying = Server::start(cluster, "deny").await?;
    health(&server).await?;
    without_nats(cluster).await?;
    let unknown = server.one(of(json!([descriptor("any", "")]))).await?;
    ensure!(
        unknown == json!({"overall_code": "OK", "statuses": [{"code": "OK"}]}),
        "{unknown}"
    );

    cluster.api().apply_rules(DOMAIN, RULES).await?;
    until_over(&server).await?;
    several(&server).await?;
    bad(&server).await?;
    counted(&server).await?;
    without_a_cluster(cluster, &server, &allowing, &denying).await?;
    let ended = server.process.stop(PATIENCE).await?;
    ensure!(ended.success(), "{ended}: {}", server.process.tail(20));
    Ok(())
}

async fn health(server: &Server) -> Result<()> {
    let asked = ["", SERVICE, "nobody"].map(|service| json!({"health": service}));
    let answers = server.ask(&asked).await?;
    let serving = json!({"status": "SERVING"});
    ensure!(answers[..2] == [serving.clone(), serving], "{answers:?}");
    ensure!(answers[2]["error"] == "NOT_FOUND", "{answers:?}");
    let ready = http::get(server.metrics, "/readyz").await?;
    ensure!(ready == (200, "ok\n".to_owned()), "{ready:?}");
    Ok(())
}

/// Without NATS it says that it is not healthy, by gRPC and by HTTP.
async fn without_nats(cluster: &Cluster) -> Result<()> {
    let nats = format!("nats://127.0.0.1:{}", free_port()?);
    let server = Server::start_at(cluster, "error", "cut-off", &nats).await?;
    eventually("it is not healthy", PATIENCE, async || {
        let health = server.one(json!({"health": SERVICE})).await?;
        Ok((health["status"] == "NOT_SERVING").then_some(()))
    })
    .await?;
    let (ready, why) = http::get(server.metrics, "/readyz").await?;
    ensure!(
        (ready, why.as_str()) == (503, "no connection to NATS\n"),
        "{ready} {why}"
    );
    let (lives, _) = http::get(server.metrics, "/healthz").await?;
    ensure!(lives == 200, "the process lives");
    Ok(())
}

/// The same limit under the name that Envoy's configuration has for the domain.
async fn until_over(server: &Server) -> Result<()> {
    let ask = of(json!([descriptor("remote_address", "10.0.0.1")]));
    let mut renamed = ask.clone();
    renamed["domain"] = json!("default/shop.http");
    let answers = server
        .ask(&[ask.clone(), renamed, ask.clone(), ask])
        .await?;
    for (answer, left) in answers.iter().zip([2, 1, 0]) {
        let status = &answer["statuses"][0];
        let remaining = status["limit_remaining"].as_u64().unwrap_or(0);
        ensure!(
            answer["overall_code"] == "OK" && status["code"] == "OK" && remaining == left,
            "{answer}"
        );
    }
    let over = &answers[3];
    let status = &over["statuses"][0];
    ensure!(
        over["overall_code"] == "OVER_LIMIT" && status["code"] == "OVER_LIMIT",
        "{over}"
    );
    let limit = json!({"name": "by_address", "requests_per_unit": 3, "unit": "YEAR"});
    ensure!(status["current_limit"] == limit, "{over}");
    let reset = status["duration_until_reset"].as_str().unwrap_or_default();
    ensure!(reset.ends_with('s') && reset.len() > 8, "months: {over}");
    let headers = over["response_headers_to_add"].as_array();
    let header = |name: &str| {
        let mut headers = headers.into_iter().flatten();
        let found = headers.find(|it| it["key"] == name);
        found
            .and_then(|it| it["value"].as_str())
            .unwrap_or_default()
    };
    ensure!(header("x-ratelimit-limit") == "3", "{over}");
    ensure!(header("x-ratelimit-remaining") == "0", "{over}");
    ensure!(header("ratelimit-policy") == "\"by_address\";q=3", "{over}");
    let retry_after: u64 = header("retry-after").parse()?;
    // A third of a year.
    ensure!((10_000_000..=10_520_000).contains(&retry_after), "{over}");
    ensure!(header("x-ratelimit-retry-after") == header("retry-after"));
    Ok(())
}

/// Several descriptors, hits of the request and of descriptors.
async fn several(server: &Server) -> Result<()> {
    let free = json!({"entries": [
        {"key": "remote_address", "value": "10.0.0.1"},
        {"key": "path", "value": "/free/page"},
    ]});
    let own_hits = |hits: u64| json!({"entries": [{"key": "week", "value": "w"}], "hits_addend": hits.to_string()});
    let mut two_hits = of(json!([descriptor("remote_address", "10.0.0.2")]));
    two_hits["hits_addend"] = json!(2);
    let answers = server
        .ask(&[
            of(json!([
                free,
                descriptor("shadow", "s"),
                descriptor("none", "n")
            ])),
            two_hits.clone(),
            two_hits,
            of(json!([
                descriptor("remote_address", "10.0.0.4"),
                own_hits(4)
            ])),
            of(json!([
                own_hits(0),
                descriptor("remote_address", "10.0.0.2")
            ])),
            of(json!([descriptor("account", "a")])),
            of(json!([
                descriptor("account", "a"),
                descriptor("week", "other")
            ])),
        ])
        .await?;
    let codes: Vec<_> = answers
        .iter()
        .map(|it| it["overall_code"].as_str())
        .collect();
    let (ok, over) = (Some("OK"), Some("OVER_LIMIT"));
    ensure!(codes == [ok, ok, over, ok, over, ok, over], "{answers:?}");
    let status = |answer: usize, nth: usize| &answers[answer]["statuses"][nth];
    ensure!(status(0, 0) == &json!({"code": "OK"}), "{answers:?}");
    ensure!(status(0, 1)["code"] == "OK", "in shadow: {answers:?}");
    ensure!(status(3, 1)["limit_remaining"] == 1, "{answers:?}");
    ensure!(
        status(3, 1)["current_limit"]["unit"] == "WEEK",
        "{answers:?}"
    );
    ensure!(status(4, 0)["code"] == "OK" && status(4, 1)["code"] == "OVER_LIMIT");
    ensure!(status(6, 0)["code"] == "OVER_LIMIT" && status(6, 1)["code"] == "OK");
    costs(server).await?;
    // More than the cluster takes at once, and a path that is longer than it takes.
    let many: Vec<_> = (0..40)
        .map(|nth| descriptor("week", &nth.to_string()))
        .collect();
    let long = "x".repeat(5_000);
    let long = of(json!([descriptor("remote_address", &long)]));
    let answers = server
        .ask(&[
            of(json!(many)),
            long.clone(),
            long.clone(),
            long.clone(),
            long,
        ])
        .await?;
    let statuses = answers[0]["statuses"].as_array().map(Vec::len);
    ensure!(statuses == Some(40), "{:?}", answers[0]);
    ensure!(answers[3]["overall_code"] == "OK", "{answers:?}");
    ensure!(answers[4]["overall_code"] == "OVER_LIMIT", "{answers:?}");
    Ok(())
}

/// A cost that is reported after the response and does not fit uses up the limit.
async fn costs(server: &Server) -> Result<()> {
    let costs = |hits: u64| {
        let entries = json!([{"key": "week", "value": "costs"}]);
        of(json!([{"entries": entries, "hits_addend": hits.to_string()}]))
    };
    let answers = server
        .ask(&[costs(0), costs(4), costs(0), costs(3), costs(0)])
        .await?;
    let seen: Vec<_> = answers
        .iter()
        .map(|it| it["overall_code"].as_str())
        .collect();
    let (ok, over) = (Some("OK"), Some("OVER_LIMIT"));
    ensure!(seen == [ok, ok, ok, over, over], "{answers:?}");
    for (answer, left) in [(0, 5), (1, 1), (2, 1), (3, 0)] {
        let status = &answers[answer]["statuses"][0];
        let remaining = status["limit_remaining"].as_u64().unwrap_or(0);
        ensure!(remaining == left, "{answers:?}");
    }
    Ok(())
}

async fn bad(server: &Server) -> Result<()> {
    let bad = [
        (of(json!([])), "descriptors: "),
        (of(json!([{"entries": []}])), "descriptors[0].entries: "),
        (
            of(json!([descriptor("", "x")])),
            "descriptors[0].entries[0].key: ",
        ),
        (json!({"descriptors": [descriptor("a", "b")]}), "domain: "),
    ];
    let requests: Vec<_> = bad.iter().map(|(request, _)| request.clone()).collect();
    let answers = server.ask(&requests).await?;
    for ((_, names), answer) in bad.iter().zip(answers) {
        let message = answer["message"].as_str().unwrap_or_default();
        ensure!(
            answer["error"] == "INVALID_ARGUMENT" && message.starts_with(names),
            "{answer}"
        );
    }
    Ok(())
}

async fn counted(server: &Server) -> Result<()> {
    let metrics = Metrics::scrape(server.metrics).await?;
    let requests = |outcome: &str, domain: &str| {
        let labels = [
            format!("outcome=\"{outcome}\""),
            format!("domain=\"{domain}\""),
        ];
        let labels = labels.each_ref().map(String::as_str);
        metrics.sum("nowserving_envoy_requests_total", &labels)
    };
    ensure!(requests("ok", DOMAIN) >= 8.0, "{metrics:?}");
    ensure!(requests("over_limit", DOMAIN) >= 5.0, "{metrics:?}");
    ensure!(requests("bad_request", "") == 4.0, "{metrics:?}");
    ensure!(
        requests("without_rules", DOMAIN) == 1.0,
        "before it had rules: {metrics:?}"
    );
    Ok(())
}

async fn without_a_cluster(
    cluster: &mut Cluster,
    server: &Server,
    allowing: &Server,
    denying: &Server,
) -> Result<()> {
    let nodes = cluster.options().nodes;
    for id in 1..=nodes {
        cluster.process(id)?.kill().await?;
    }
    let ask = of(json!([
        descriptor("remote_address", "10.0.0.3"),
        descriptor("week", "x")
    ]));
    let failed = server.one(ask.clone()).await?;
    ensure!(failed["error"] == "UNAVAILABLE", "{failed}");
    let allowed = allowing.one(ask.clone()).await?;
    let ok = json!({"code": "OK"});
    ensure!(allowed == json!({"overall_code": "OK", "statuses": [ok, ok]}));
    let denied = denying.one(ask.clone()).await?;
    let over = json!({"code": "OVER_LIMIT"});
    ensure!(denied == json!({"overall_code": "OVER_LIMIT", "statuses": [over, over]}));
    for id in 1..=nodes {
        cluster.start_node(id).await?;
    }
    cluster.wait_ready().await?;
    eventually("the cluster decides again", PATIENCE, async || {
        let answer = server.one(ask.clone()).await?;
        let limit = &answer["statuses"][0]["current_limit"];
        Ok((limit["name"] == "by_address").then_some(()))
    })
    .await
}
