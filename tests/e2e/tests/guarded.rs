//! Services behind a concurrency guard: `nowserving_client::Guard` and `crates/tower`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::guarded::{self, Plan};
use nowserving_e2e::{Cluster, Process, eventually, example, free_port, number};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const LINE: &str = "reports";
const PATIENCE: Duration = Duration::from_secs(20);

/// Handlers that return, fail, panic, hang and are cancelled; one process and the leader are killed.
pub async fn however_they_end() -> Result<()> {
    let report = guarded::run(Plan {
        processes: 4,
        handlers: 160,
        seats: 3,
        leader_dies: true,
        default_options: false,
    })
    .await?;
    for kind in ["returned", "failed", "panicked", "cancelled", "lost"] {
        ensure!(number(&report.ended, kind)? > 0, "{kind}: {report:?}");
    }
    ensure!(report.ended["abandoned"] == 0, "{report:?}");
    ensure!(report.at_once == 3, "the seats are used: {report:?}");
    Ok(())
}

/// The loss of a leader does not open a guard that allows callers while the cluster is away.
pub async fn through_a_change_of_leader() -> Result<()> {
    let report = guarded::run(Plan {
        processes: 3,
        handlers: 120,
        seats: 2,
        leader_dies: true,
        default_options: true,
    })
    .await?;
    ensure!(report.ended["without_cluster"] == 0, "{report:?}");
    ensure!(report.ended["abandoned"] == 0, "{report:?}");
    Ok(())
}

/// The example in axum: a full line, a client that goes while it waits, one that goes while its handler runs.
pub async fn by_http(cluster: &mut Cluster) -> Result<()> {
    let settings = json!({"seats": 1, "queue_limit": 1});
    cluster.api().admin(LINE, "create", settings).await?;
    let addr = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let mut service = start(cluster, addr).await?;

    let mut first = get(addr, "/report/50").await?;
    ensure!(answer(&mut first).await?.starts_with("HTTP/1.1 200"));
    let runs = get(addr, "/report/600000").await?;
    live(cluster, [0, 1]).await?;
    let waits = get(addr, "/report/50").await?;
    live(cluster, [1, 1]).await?;
    let full = answer(&mut get(addr, "/report/50").await?).await?;
    let full = full.to_ascii_lowercase();
    ensure!(
        full.starts_with("http/1.1 429") && full.contains("\r\nretry-after: "),
        "{full}"
    );
    // Not behind the guard, as an unknown path is not.
    let unknown = answer(&mut get(addr, "/unknown").await?).await?;
    ensure!(unknown.starts_with("HTTP/1.1 404"), "{unknown}");
    let health = answer(&mut get(addr, "/health").await?).await?;
    ensure!(health.starts_with("HTTP/1.1 200"), "{health}");

    // Its client goes, and it is out of the line.
    drop(waits);
    live(cluster, [0, 1]).await?;
    let mut waits = get(addr, "/report/50").await?;
    live(cluster, [1, 1]).await?;
    // The client of the one that runs goes, and the next runs.
    drop(runs);
    ensure!(answer(&mut waits).await?.starts_with("HTTP/1.1 200"));
    live(cluster, [0, 0]).await?;

    // The example waits for five seconds.
    let runs = get(addr, "/report/600000").await?;
    live(cluster, [0, 1]).await?;
    let late = answer(&mut get(addr, "/report/50").await?).await?;
    ensure!(late.starts_with("HTTP/1.1 504"), "{late}");
    drop(runs);
    live(cluster, [0, 0]).await?;

    // Its end leaves no seat behind.
    let runs = get(addr, "/report/600000").await?;
    live(cluster, [0, 1]).await?;
    drop(runs);
    let ended = service.stop(PATIENCE).await?;
    ensure!(ended.success(), "{ended}: {}", service.tail(20));
    ensure!(counted(cluster).await? == [0, 0], "a seat is left");
    Ok(())
}

async fn start(cluster: &Cluster, addr: SocketAddr) -> Result<Process> {
    let program = example("guarded-service").await?;
    let log = cluster.folder().join("guarded-service.log");
    let args = [cluster.nats_urls(), LINE.to_owned(), addr.to_string()];
    let service = Process::start("guarded-service", program.as_os_str(), args, &log).await?;
    eventually("the service listens", PATIENCE, async || {
        TcpStream::connect(addr).await?;
        Ok(Some(()))
    })
    .await?;
    Ok(service)
}

/// A request; the answer is still to be read.
async fn get(addr: SocketAddr, path: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(addr).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    Ok(stream)
}

async fn answer(stream: &mut TcpStream) -> Result<String> {
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer))
        .await
        .context("no answer")??;
    Ok(answer)
}

/// Waits until so many wait and so many hold seats.
async fn live(cluster: &Cluster, want: [u64; 2]) -> Result<()> {
    let what = format!("{want:?} wait and run");
    eventually(&what, PATIENCE, async || {
        Ok((counted(cluster).await? == want).then_some(()))
    })
    .await
}

async fn counted(cluster: &Cluster) -> Result<[u64; 2]> {
    let shown: Value = cluster.api().admin(LINE, "show", json!({})).await?;
    let counts = &shown["counts"];
    let held = number(counts, "admitted")? + number(counts, "in_checkout")?;
    Ok([number(counts, "waiting")?, held])
}
