//! A service behind rate limits: the example in axum, by HTTP.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{Cli, Cluster, Process, eventually, example, free_port};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(60);
/// Buckets of a year, which get no room again while the test runs; and one whose requests wait.
const RULES: &str = "domain: pages
descriptors:
  - key: api_key
    rate_limit: {unit: year, requests_per_unit: 3, algorithm: token_bucket, name: by_key}
    descriptors:
      - key: path
        value: /search
        rate_limit: {unit: second, requests_per_unit: 5, burst: 3, algorithm: leaking_bucket, name: searches}
";

struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

pub async fn by_http(cluster: &mut Cluster) -> Result<()> {
    let cli = Cli::new(cluster.nats.url());
    let rules = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/limited_service.yaml"
    );
    cli.run(&["limit", "apply", rules, "--dry-run"])
        .await?
        .done()?;
    let addr = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let service = start(cluster, addr).await?;

    // While it does not reach the cluster it limits by itself.
    eventually("no rules yet", PATIENCE, async || {
        let free = get(addr, "/page", "ann").await?;
        Ok((free.status == 200 && free.header("x-ratelimit-limit").is_empty()).then_some(()))
    })
    .await?;
    let api = cluster.api();
    api.limit("apply", json!({"rules": RULES})).await?;
    eventually("all nodes know the rules", PATIENCE, async || {
        let mut known = true;
        for _ in 0..12 {
            let body = json!({"descriptors": [[{"key": "none"}]], "dry_run": true});
            let reply = api.check("pages", &body).await?.accepted(api.format())?;
            known &= reply.get("unmatched").is_none();
        }
        Ok(known.then_some(()))
    })
    .await?;
    let over = asked_in_time(async |nth| until_over(addr, nth).await).await?;
    asked_in_time(async |nth| delayed(addr, nth).await).await?;
    without_a_cluster(cluster, addr, &over).await?;
    drop(service);
    Ok(())
}

/// A part of the test, until the cluster has answered all of its requests in time, so that the service did not limit by
/// itself; each time with keys of its own.
async fn asked_in_time<T>(part: impl AsyncFn(u32) -> Result<Option<T>>) -> Result<T> {
    let mut nth = 0;
    eventually("the cluster answers in time", PATIENCE, async || {
        nth += 1;
        // Other errors are permanent.
        Ok(part(nth).await.transpose())
    })
    .await?
}

/// Whether the service has limited this by itself.
fn by_itself(answer: &Answer) -> bool {
    answer.header("x-ratelimit-limit") == "10"
}

/// Returns a key that is over its limit.
async fn until_over(addr: SocketAddr, nth: u32) -> Result<Option<String>> {
    let (bob, eve) = (format!("bob-{nth}"), format!("eve-{nth}"));
    for left in ["2", "1", "0"] {
        let page = get(addr, "/page", &bob).await?;
        if by_itself(&page) {
            return Ok(None);
        }
        ensure!(
            page.status == 200 && page.body == "a page\n",
            "{}",
            page.body
        );
        ensure!(page.header("x-ratelimit-limit") == "3");
        ensure!(page.header("x-ratelimit-remaining") == left);
        ensure!(page.header("ratelimit-policy") == "\"by_key\";q=3");
        let state = page.header("ratelimit");
        ensure!(
            state.starts_with(&format!("\"by_key\";r={left};t=")),
            "{state}"
        );
    }
    let over = get(addr, "/page", &bob).await?;
    if by_itself(&over) {
        return Ok(None);
    }
    ensure!(
        over.status == 429 && over.body == "too many requests\n",
        "{}",
        over.body
    );
    let retry_after: u64 = over.header("retry-after").parse()?;
    // A third of a year.
    ensure!(
        (10_000_000..=10_520_000).contains(&retry_after),
        "{retry_after}"
    );
    ensure!(over.header("x-ratelimit-retry-after") == over.header("retry-after"));
    ensure!(over.header("x-ratelimit-remaining") == "0");
    // Other keys, and paths that are not behind the limit.
    let first = get(addr, "/page", &eve).await?;
    ensure!(first.status == 200);
    ensure!(get(addr, "/health", &bob).await?.status == 200);
    ensure!(get(addr, "/unknown", &eve).await?.status == 404);
    let second = get(addr, "/page", &eve).await?;
    if by_itself(&first) || by_itself(&second) {
        return Ok(None);
    }
    ensure!(second.header("x-ratelimit-remaining") == "1");
    Ok(Some(bob))
}

/// Only what a leaking bucket delays takes long.
async fn delayed(addr: SocketAddr, nth: u32) -> Result<Option<()>> {
    let zoe = format!("zoe-{nth}");
    let asked = (0..3).map(|_| get(addr, "/search", &zoe));
    let answers = futures::future::try_join_all(asked).await?;
    if answers.iter().any(by_itself) {
        return Ok(None);
    }
    ensure!(answers.iter().all(|it| it.status == 200));
    let limits = answers.iter().map(|it| it.header("ratelimit-policy"));
    let both = "\"by_key\";q=3, \"searches\";q=5;w=1";
    ensure!(
        limits.clone().all(|it| it == both),
        "{:?}",
        limits.collect::<Vec<_>>()
    );
    Ok(Some(()))
}

async fn without_a_cluster(cluster: &mut Cluster, addr: SocketAddr, over: &str) -> Result<()> {
    let nodes = cluster.options().nodes;
    for id in 1..=nodes {
        cluster.process(id)?.kill().await?;
    }
    eventually("the process limits itself", PATIENCE, async || {
        let page = get(addr, "/page", over).await?;
        Ok((page.status == 200 && by_itself(&page)).then_some(()))
    })
    .await?;
    for id in 1..=nodes {
        cluster.start_node(id).await?;
    }
    cluster.wait_ready().await?;
    // It has lost the last moments at most, which were long ago.
    eventually("the cluster limits again", PATIENCE, async || {
        Ok((get(addr, "/page", over).await?.status == 429).then_some(()))
    })
    .await
}

async fn start(cluster: &Cluster, addr: SocketAddr) -> Result<Process> {
    let program = example("limited-service").await?;
    let log = cluster.folder().join("limited-service.log");
    let args = [cluster.nats_urls(), "pages".to_owned(), addr.to_string()];
    let service = Process::start("limited-service", program.as_os_str(), args, &log).await?;
    eventually("the service listens", PATIENCE, async || {
        TcpStream::connect(addr).await?;
        Ok(Some(()))
    })
    .await?;
    Ok(service)
}

async fn get(addr: SocketAddr, path: &str, key: &str) -> Result<Answer> {
    let exchange = async {
        let mut stream = TcpStream::connect(addr).await?;
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {addr}\r\nX-Api-Key: {key}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer = tokio::time::timeout(PATIENCE, exchange).await??;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .context("no end of the head")?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    Ok(Answer {
        status: status.context("no status")?.parse()?,
        headers: headers.collect(),
        body: body.to_owned(),
    })
}
