//! The cluster's public keys, for edges that check passes.

use std::time::Duration;

use ::http::{HeaderValue, StatusCode, header};
use axum::extract::State;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{Answer, json, problem};
use crate::Shared;

/// Keys are rotated with days of notice.
const ASK_EVERY: Duration = Duration::from_secs(60);
/// After an attempt that failed.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// The newest answer of the cluster. One request at a time asks; the others wait for it.
#[derive(Debug, Default)]
pub(crate) struct PublicKeys(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    keys: Option<Value>,
    ask_at: Option<Instant>,
}

/// `GET /_nowserving/jwks.json`.
pub(super) async fn jwks(State(gateway): State<Shared>) -> Answer {
    let mut known = gateway.keys.0.lock().await;
    let now = Instant::now();
    if known.ask_at.is_none_or(|at| at <= now) {
        let patience = Duration::from_millis(gateway.config.patience_ms);
        let asked = gateway.client.with_deadline(patience).admin().jwks().await;
        known.ask_at = Some(now + if asked.is_ok() { ASK_EVERY } else { TRY_AGAIN });
        match asked.map(|keys| serde_json::to_value(&keys)) {
            Ok(Ok(keys)) => known.keys = Some(keys),
            Ok(Err(error)) => tracing::warn!(%error, "the public keys could not be read"),
            // The ones from before stand.
            Err(error) => tracing::warn!(%error, "the public keys were not answered"),
        }
    }
    let Some(keys) = &known.keys else {
        let why = "the cluster has not answered its public keys";
        return problem(StatusCode::SERVICE_UNAVAILABLE, "Unavailable", why);
    };
    let mut answer = json(StatusCode::OK, keys);
    for (name, value) in [
        (header::CONTENT_TYPE, "application/jwk-set+json"),
        (header::CACHE_CONTROL, "public, max-age=60"),
    ] {
        answer
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    answer
}
