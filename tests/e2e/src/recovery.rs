//! How long writes are not acknowledged.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde_json::json;

use crate::api::Api;

/// Between two requests.
const INTERVAL: Duration = Duration::from_millis(10);

/// The time from `began` to the first acknowledgement of an `enter` that was sent after it.
///
/// # Errors
/// Nothing is acknowledged within `patience`.
pub async fn first_acknowledged(
    api: &Api,
    line: &str,
    began: Instant,
    patience: Duration,
) -> Result<Duration> {
    let enter = async || {
        let reply = api.ask(line, "enter", &json!({"anonymous": true})).await?;
        match reply.code {
            None => Ok(()),
            Some(code) => bail!("{line}: enter: {code}"),
        }
    };
    first_written(began, patience, enter).await
}

/// The time from `began` to the first success of a `write` that was begun after it. Writes do not wait for
/// each other, so it is neither a client's pause between repetitions nor its patience.
///
/// # Errors
/// None succeeds within `patience`.
pub async fn first_written(
    began: Instant,
    patience: Duration,
    write: impl AsyncFn() -> Result<()>,
) -> Result<Duration> {
    let mut pending = FuturesUnordered::new();
    let mut ticks = tokio::time::interval(INTERVAL);
    let mut last = None;
    while began.elapsed() < patience {
        tokio::select! {
            _ = ticks.tick() => pending.push(write()),
            Some(done) = pending.next() => match done {
                Ok(()) => return Ok(began.elapsed()),
                Err(error) => last = Some(error),
            },
        }
    }
    bail!("nothing was acknowledged within {patience:?}, the last error: {last:?}")
}
