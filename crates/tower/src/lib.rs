//! nowserving in front of a service: `tower` layers for axum, hyper and tonic.
//!
//! [`ConcurrencyGuardLayer`] lets at most a line's `seats` requests run at once, over all hosts. The others wait in that
//! line, in its order, and a full line refuses:
//!
//! ```no_run
//! use nowserving_client::{Client, Guard, GuardOptions};
//! use nowserving_tower::ConcurrencyGuardLayer;
//!
//! # async fn layer() -> nowserving_client::Result<()> {
//! let client = Client::connect("nats://127.0.0.1:4222").await?;
//! let guard = Guard::new(client.line("reports")?, GuardOptions::default());
//! let layer = ConcurrencyGuardLayer::new(guard);
//! // axum: Router::new().route("/report", get(report)).route_layer(layer)
//! # Ok(())
//! # }
//! ```
//!
//! [`RateLimitLayer`] asks the cluster whether a request may pass, by the rules of a domain:
//!
//! ```no_run
//! use http::{HeaderValue, Request};
//! use nowserving_client::Client;
//! use nowserving_client::limits::{Check, Entry};
//! use nowserving_tower::RateLimitLayer;
//!
//! # async fn layer() -> nowserving_client::Result<()> {
//! let client = Client::connect("nats://127.0.0.1:4222").await?;
//! let by_key = |request: &Request<String>| {
//!     // Without a key all clients share one limit; with `None` they would have none.
//!     let key = request.headers().get("x-api-key");
//!     let key = key.map_or(&b"none"[..], HeaderValue::as_bytes);
//!     Some(Check::new(vec![vec![Entry::shortened("api_key", key)]]))
//! };
//! let layer = RateLimitLayer::new(client.limiter("shop")?, by_key);
//! # Ok(())
//! # }
//! ```
//!
//! With axum use `route_layer`: `layer` would put requests for unknown paths into the line, and count them, too.
//!
//! | what happens to a request | HTTP | gRPC, with [`GrpcResponses`] |
//! |---|---|---|
//! | the line is full | 429 with `Retry-After` | 8, `RESOURCE_EXHAUSTED` |
//! | it waited too long | 504 | 4, `DEADLINE_EXCEEDED` |
//! | the line is closed; the token was removed; the cluster is away with `Deny`, or has too many requests; the process has too many under way | 503 | 14, `UNAVAILABLE` |
//! | its seat is lost while its handler runs | 503, and the handler is dropped | 10, `ABORTED` |
//! | the line does not exist, a right is missing | 500 | 13, `INTERNAL` |
//! | it is over a rate limit; a leaking bucket would delay it for too long | 429 with `Retry-After` | 8, `RESOURCE_EXHAUSTED` |
//! | the cluster does not decide about rate limits, with [`LimitFallback::Deny`](nowserving_client::LimitFallback) or `Fail` | 503 | 14, `UNAVAILABLE` |
//! | the cluster refuses to decide: a right is missing, or a descriptor is too long | 500 | 13, `INTERNAL` |
//!
//! The slot of a guard is held from the admission until the inner service has produced its response, which is before the response's
//! body is sent. It is given back however that ends: a response, an error, a panic, a client that goes away (the server
//! drops the future), a process that is killed (after the line's `checkout_timeout_ms`). A request whose client goes away
//! while it waits leaves the line.
//!
//! Metrics, by the `metrics` facade, each with the label `line`: the counters `nowserving_guard_allowed`, `_enqueued`,
//! `_dequeued`, `_left`, `_unavailable`, `_lost`, `_abandoned` and `_tell_failed` (see
//! [`GuardCounts`](nowserving_client::GuardCounts)), each incremented at its event; `_blocked`, with `reason`, by the layer;
//! the histogram `nowserving_guard_wait_seconds` of the allowed requests; and with
//! [`auto_seats`](nowserving_client::GuardOptions::auto_seats) the gauge `nowserving_guard_seats`: the line's seats.
//! With the label `domain`: `nowserving_rate_limit_allowed`, `_blocked`, with `reason`, and `_unavailable`: those of
//! either kind about which the cluster did not decide.

#![warn(missing_docs)]

mod blocked;
mod fields;
mod guard;
mod limit;
mod log_pace;
mod response;

pub use blocked::Blocked;
pub use fields::{rate_limit_fields, shown_remaining};
pub use guard::{Anyone, AskBy, ConcurrencyGuard, ConcurrencyGuardLayer};
pub use limit::{Decide, RateLimit, RateLimitLayer, Undecided};
pub use response::{GrpcResponses, HttpResponses, Respond};
