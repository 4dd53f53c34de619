//! An axum service that runs at most as many handlers at once as a line has seats, over all of its processes.
//!
//!     nowserving dev
//!     nowserving line create reports --seats 2 --queue-limit 10 \
//!         --waiting-idle-timeout 10s --claim-timeout 5s --checkout-timeout 30s
//!     cargo run -p nowserving-examples --bin guarded-service -- nats://127.0.0.1:4222 reports 127.0.0.1:8080
//!     curl http://127.0.0.1:8080/report/1000
//!
//! A full line is answered with 429, a wait of more than five seconds with 504. A request whose client goes away leaves
//! the line, or gives its seat back. The service starts and answers also while NATS or the cluster is away.

use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use nowserving_client::{Client, ClientOptions, Guard, GuardOptions};
use nowserving_tower::ConcurrencyGuardLayer;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut arg = |name: &'static str| args.next().context(name);
    let (url, line) = (arg("NATS-URL LINE ADDRESS")?, arg("LINE ADDRESS")?);
    let address = arg("ADDRESS")?;

    let mut connect = ClientOptions::default();
    connect.connect_in_background = true;
    let client = Client::connect_with(&url, connect).await?;
    let mut options = GuardOptions::default();
    options.max_wait = Some(Duration::from_secs(5));
    let guard = Guard::new(client.line(&line)?, options);
    match guard.check().await {
        Ok(settings) => println!(
            "{} run at once, {} wait",
            settings.seats, settings.queue_limit
        ),
        Err(error) if error.is_transient() => eprintln!("goes on without the cluster: {error}"),
        Err(error) => return Err(error.into()),
    }

    let service = Router::new()
        .route("/report/{ms}", get(report))
        // Not `layer`: requests for unknown paths would wait in line, too.
        .route_layer(ConcurrencyGuardLayer::new(guard.clone()))
        // Added after the guard, so not behind it.
        .route("/health", get(async || "ok\n"));
    let mut terminated = signal(SignalKind::terminate())?;
    let stop = async move {
        terminated.recv().await;
    };
    axum::serve(TcpListener::bind(&address).await?, service)
        .with_graceful_shutdown(stop)
        .await?;
    // Without this, seats that are being given back now would be free only after the line's `checkout_timeout_ms`.
    // Within a time, because the cluster may be away.
    let drained = tokio::time::timeout(Duration::from_secs(10), guard.drained()).await;
    drained.context("the cluster does not know of all releases")
}

/// Takes so long.
async fn report(Path(ms): Path<u64>) -> String {
    tokio::time::sleep(Duration::from_millis(ms)).await;
    format!("done after {ms} ms\n")
}
