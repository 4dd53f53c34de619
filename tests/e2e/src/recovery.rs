//! How long writes of a shard are not acknowledged.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde_json::json;

use crate::api::{Api, Reply};

/// Between two requests.
const INTERVAL: Duration = Duration::from_millis(10);

/// The time from `began` to the first acknowledgement of an `enter` that was sent after it. Requests do not wait for
/// each other, so it is neither a client's pause between repetitions nor its patience.
///
/// # Errors
/// Nothing is acknowledged within `patience`.
pub async fn first_acknowledged(
    api: &Api,
    line: &str,
    began: Instant,
    patience: Duration,
) -> Result<Duration> {
    let mut pending = FuturesUnordered::new();
    let mut ticks = tokio::time::interval(INTERVAL);
    let mut last = None;
    while began.elapsed() < patience {
        tokio::select! {
            _ = ticks.tick() => {
                pending.push(async { api.ask(line, "enter", &json!({"anonymous": true})).await });
            }
            Some(reply) = pending.next() => {
                let reply: Result<Reply> = reply;
                if reply.as_ref().is_ok_and(|reply| reply.code.is_none()) {
                    return Ok(began.elapsed());
                }
                last = Some(reply);
            }
        }
    }
    bail!("{line}: no enter was acknowledged within {patience:?}, the last answer: {last:?}")
}
