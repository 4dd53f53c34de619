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
/// So many connections at once are served: scrapers and probes are a few.
const CONNECTIONS_MAX: usize = 64;

/// What a scrape gets its text from.
#[derive(Debug, Clone)]
struct Page {
    registered: PrometheusHandle,
    process: ProcessMetrics,
    health: Arc<Health>,
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
    };
    tokio::spawn(fold(registered));
    tokio::spawn(serve(listener, page));
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

async fn serve(listener: TcpListener, page: Page) {
    let free = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection to the metrics address was not taken");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        // Whoever comes while all are taken finds the connection closed.
        let Ok(taken) = Arc::clone(&free).try_acquire_owned() else {
            continue;
        };
        let page = page.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (path, page) = (request.uri().path().to_owned(), page.clone());
            async move { Ok::<_, Infallible>(answer(&path, page).await) }
        });
        let mut server = http1::Builder::new();
        // Closes a connection that sends nothing for half a minute.
        server.timer(TokioTimer::new());
        let connection = server.serve_connection(TokioIo::new(stream), service);
        // Fails when the other side breaks it off, which is its right.
        tokio::spawn(async {
            drop(connection.await);
            drop(taken);
        });
    }
}

async fn answer(path: &str, page: Page) -> Response<Full<Bytes>> {
    let now = monotonic_us();
    let (status, text) = match path {
        "/metrics" => match tokio::task::spawn_blocking(move || page.metrics()).await {
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

impl Page {
    /// Takes some milliseconds with many lines or many rules of rate limits: not for a thread that serves requests.
    fn metrics(&self) -> String {
        let mut text = Text(self.registered.render());
        self.health.facts.write(&mut text);
        self.process.write(&mut text);
        text.0
    }
}

fn checked(state: Result<(), String>) -> (StatusCode, String) {
    match state {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n"),
    }
}
