//! An axum service whose clients are limited by the cluster, over all of its processes: each API key by the rules of a
//! domain.
//!
//!     nowserving dev
//!     nowserving limit apply examples/limited_service.yaml
//!     cargo run -p nowserving-examples --bin limited-service -- nats://127.0.0.1:4222 pages 127.0.0.1:8080
//!     curl -i -H 'x-api-key: ann' http://127.0.0.1:8080/page
//!
//! Over the limit: 429, and how long to wait. Every response says what is left. While the cluster is away this process
//! allows each key ten requests a second.

use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::routing::get;
use nowserving_client::limits::{Check, Entry};
use nowserving_client::{Client, ClientOptions, LimitFallback, LimiterOptions, LocalLimit};
use nowserving_tower::RateLimitLayer;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut arg = |name: &'static str| args.next().context(name);
    let (url, domain) = (arg("NATS-URL DOMAIN ADDRESS")?, arg("DOMAIN ADDRESS")?);
    let address = arg("ADDRESS")?;

    let mut connect = ClientOptions::default();
    connect.connect_in_background = true;
    let client = Client::connect_with(&url, connect).await?;
    let mut options = LimiterOptions::default();
    options.on_unavailable = LimitFallback::Local(LocalLimit {
        hits: 10,
        per: Duration::from_secs(1),
    });
    let limiter = client.limiter_with(&domain, options)?;

    let service = Router::new()
        .route("/page", get(async || "a page\n"))
        .route("/search", get(async || "what was found\n"))
        // Not `layer`: requests for unknown paths would count, too.
        .route_layer(RateLimitLayer::new(limiter, by_key))
        // Added after the limit, so not behind it.
        .route("/health", get(async || "ok\n"));
    axum::serve(TcpListener::bind(&address).await?, service).await?;
    Ok(())
}

/// What of a request is limited: all requests of its key, and those for its path apart. Without a key all clients share
/// one limit.
fn by_key(request: &Request) -> Option<Check> {
    let key = request.headers().get("x-api-key");
    let key = key.map_or(&b"none"[..], HeaderValue::as_bytes);
    // The cluster refuses values of more than 1,024 bytes.
    let key = Entry::shortened("api_key", key);
    let path = Entry::shortened("path", request.uri().path().as_bytes());
    Some(Check::new(vec![vec![key.clone()], vec![key, path]]))
}
