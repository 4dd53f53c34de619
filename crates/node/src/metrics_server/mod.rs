//! The node's HTTP server: `/metrics` for Prometheus, `/healthz` (does it live?) and `/readyz` (does it serve?).
//!
//! All metrics are in the `table`. Most are set where they happen, by the `metrics` facade. Those of lines, lanes, labels and
//! the process are written at each scrape (`facts`, `shown`, `counted`, `process`).

mod counted;
#[cfg(test)]
mod doc;
pub mod facts;
mod line_table;
mod process;
mod shown;
pub mod table;
mod text;

use std::collections::VecDeque;
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
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use self::process::ProcessMetrics;
pub use self::table::Process;
use self::table::{Kind, Metric, SECTIONS};
use self::text::Text;
use crate::clock::monotonic_us;
use crate::health::Health;

/// The interval for folding histograms, which would grow between scrapes.
const FOLD_INTERVAL: Duration = Duration::from_secs(5);
/// After a connection that could not be taken (too many open files?) the next try is this much later.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// So many connections at once are served: scrapers and probes are a few. One more ends the oldest, so that connections
/// that do nothing, or do not read, keep no probe out.
const CONNECTIONS_MAX: usize = 64;
/// So long a connection lasts: it is for one request.
const CONNECTION_MAX: Duration = Duration::from_secs(30);
/// So many texts for `/metrics` are made at once. Others wait, and probes do not wait for them.
const SCRAPES_MAX: usize = 2;

/// What a scrape gets its text from.
#[derive(Debug, Clone)]
struct Page {
    registered: PrometheusHandle,
    process: ProcessMetrics,
    health: Arc<Health>,
    scrapes: Arc<Semaphore>,
}

/// Serves the metrics and the health of a node from now on, as [`install`] does.
///
/// # Errors
/// As [`install`].
pub fn of_node(addr: Option<SocketAddr>) -> anyhow::Result<Arc<Health>> {
    let health = Arc::new(Health::default());
    install(addr, &health, Process::Node)?;
    Ok(health)
}

/// Serves the metrics of such a process at `addr`, or only counts if there is none.
///
/// # Errors
/// The address cannot be listened on, or the process has a recorder already.
pub fn install(addr: Option<SocketAddr>, health: &Arc<Health>, of: Process) -> anyhow::Result<()> {
    let Some(addr) = addr else {
        return Ok(());
    };
    let listener = std::net::TcpListener::bind(addr).and_then(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
    let listener = listener.with_context(|| format!("metrics_addr {addr}"))?;
    let mut builder = PrometheusBuilder::new();
    for metric in SECTIONS.iter().flat_map(|section| section.metrics) {
        if let Kind::Histogram(buckets) = metric.kind {
            let name = Matcher::Full(metric.name.to_owned());
            builder = builder.set_buckets_for_metric(name, buckets)?;
        }
    }
    let registered = builder.install_recorder()?;
    describe(of);
    health.facts.want();
    let page = Page {
        registered: registered.clone(),
        process: ProcessMetrics::begin(env!("CARGO_PKG_VERSION")),
        health: health.clone(),
        scrapes: Arc::new(Semaphore::new(SCRAPES_MAX)),
    };
    tokio::spawn(fold(registered));
    tokio::spawn(serve(listener, page, CONNECTION_MAX));
    Ok(())
}

/// Counters without labels begin at 0: an alarm on one that has never been touched must have data.
fn describe(of: Process) {
    for section in SECTIONS {
        for &Metric {
            name,
            kind,
            labels,
            text,
        } in section.metrics
        {
            match kind {
                Kind::Counter => metrics::describe_counter!(name, text),
                Kind::Gauge => metrics::describe_gauge!(name, text),
                Kind::Histogram(_) => metrics::describe_histogram!(name, text),
            }
            let begins = section.of == of && !section.written && labels.is_empty();
            if begins && matches!(kind, Kind::Counter) {
                metrics::counter!(name).increment(0);
            }
        }
    }
}

async fn fold(metrics: PrometheusHandle) {
    loop {
        tokio::time::sleep(FOLD_INTERVAL).await;
        metrics.run_upkeep();
    }
}

async fn serve(listener: TcpListener, page: Page, connection_max: Duration) {
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection to the metrics address was not taken");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        open.retain(|task| !task.is_finished());
        if open.len() >= CONNECTIONS_MAX
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let page = page.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (path, page) = (request.uri().path().to_owned(), page.clone());
            async move { Ok::<_, Infallible>(answer(&path, page).await) }
        });
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).keep_alive(false);
        let connection = server.serve_connection(TokioIo::new(stream), service);
        let connection = tokio::time::timeout(connection_max, connection);
        // Fails when the other side breaks it off, which is its right.
        let task = tokio::spawn(async { drop(connection.await) });
        open.push_back(task.abort_handle());
    }
}

async fn answer(path: &str, page: Page) -> Response<Full<Bytes>> {
    let now = monotonic_us();
    let (status, text) = match path {
        "/metrics" => match scrape(page).await {
            Ok(text) => (StatusCode::OK, text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        },
        "/healthz" => checked(page.health.lives(now)),
        "/readyz" => checked(page.health.serves(now)),
        _ => {
            let paths = "/metrics, /healthz and /readyz are here\n".to_owned();
            (StatusCode::NOT_FOUND, paths)
        }
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let text = header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response
}

async fn scrape(page: Page) -> anyhow::Result<String> {
    let taken = Arc::clone(&page.scrapes).acquire_owned().await?;
    let made = tokio::task::spawn_blocking(move || {
        // Until the text is made: that goes on if the connection ends.
        let _taken = taken;
        page.metrics()
    });
    Ok(made.await?)
}

impl Page {
    /// Takes some milliseconds with many lines or many rules of rate limits: not for a thread that serves requests.
    fn metrics(&self) -> String {
        let mut text = Text(self.registered.render());
        self.health.facts.write(&mut text);
        self.process.write(&mut text);
        let serves = self.health.serves(monotonic_us());
        text.family("nowserving_ready")
            .sample(&[], u8::from(serves.is_ok()));
        text.0
    }
}

fn checked(state: Result<(), String>) -> (StatusCode, String) {
    match state {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    /// A server, whose `/metrics` also has a text that fits into no buffer of a connection.
    async fn served(connection_max: Duration) -> (SocketAddr, Arc<Health>) {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            for nth in 0..30_u32 {
                let long = format!("{nth}{}", "x".repeat(200_000));
                metrics::gauge!("long", "label" => long).set(1.0);
            }
        });
        let health = Arc::new(Health::default());
        let page = Page {
            registered: recorder.handle(),
            process: ProcessMetrics::begin("1.2.3"),
            health: health.clone(),
            scrapes: Arc::new(Semaphore::new(SCRAPES_MAX)),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, page, connection_max));
        (addr, health)
    }

    async fn asked(addr: SocketAddr, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    async fn get(addr: SocketAddr, path: &str) -> String {
        let mut text = String::new();
        let mut stream = asked(addr, path).await;
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn connections_that_do_not_read_or_ask_keep_no_probe_and_no_scrape_out() {
        let (addr, _) = served(CONNECTION_MAX).await;
        let mut idle = Vec::new();
        for nth in 0..2 * CONNECTIONS_MAX {
            idle.push(match nth % 8 {
                0 => asked(addr, "/metrics").await,
                _ => TcpStream::connect(addr).await.unwrap(),
            });
        }
        assert!(get(addr, "/healthz").await.starts_with("HTTP/1.1 200"));
        let text = get(addr, "/metrics").await;
        assert!(text.contains("\nprocess_cpu_seconds_total "));
    }

    /// Also one that has asked and does not read.
    #[tokio::test]
    async fn a_connection_ends_after_a_while() {
        let (addr, _) = served(Duration::from_millis(50)).await;
        let mut silent = TcpStream::connect(addr).await.unwrap();
        assert_eq!(silent.read(&mut [0]).await.unwrap(), 0);
        let mut unread = asked(addr, "/metrics").await;
        loop {
            // Once the server has closed it, a write fails.
            if unread.write_all(b"\r\n").await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Also while the node starts, and while it asks to be added: then it must not be restarted.
    #[tokio::test]
    async fn the_metric_of_readiness_says_what_readyz_says() {
        let (addr, health) = served(CONNECTION_MAX).await;
        let asks = "asks the cluster to be added";
        for (serves, status, text, sample) in [
            (None, "503", "starting: reading the log", "0"),
            (Some(Err(asks.to_owned())), "503", asks, "0"),
            (Some(Ok(())), "200", "ok", "1"),
            (Some(Err("refused".to_owned())), "503", "refused", "0"),
        ] {
            if let Some(serves) = serves {
                health.set_serves(serves);
            }
            let ready = get(addr, "/readyz").await;
            assert!(ready.starts_with(&format!("HTTP/1.1 {status}")), "{ready}");
            assert!(ready.ends_with(&format!("\r\n\r\n{text}\n")), "{ready}");
            assert!(get(addr, "/healthz").await.starts_with("HTTP/1.1 200"));
            let metrics = get(addr, "/metrics").await;
            assert!(metrics.contains(&format!("\nnowserving_ready {sample}\n")));
        }
    }
}
