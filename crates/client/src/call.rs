//! One call: attempts under one deadline until an answer settles it.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tracing::debug;

use crate::error::Result;
use crate::retry::{Attempts, Effect, Miss, Next, Route};

/// The longest an attempt waits for its answer. A little over what the cluster is told, so that
/// its own `unavailable` or `outcome_unknown` still arrives.
const ATTEMPT_MAX: Duration = Duration::from_millis(2_200);

/// Sends one request and waits for its reply.
pub(crate) trait Transport: Send + Sync {
    /// `told`: by when the cluster must have answered (goes into the header).
    /// `wait`: when to stop waiting for it; always a little more.
    fn request(
        &self,
        subject: &str,
        payload: Bytes,
        told: Duration,
        wait: Duration,
    ) -> impl Future<Output = std::result::Result<Bytes, Miss>> + Send;
}

/// What is asked, and where.
pub(crate) struct Request {
    /// The leader's subject, if the number of shards is known.
    pub(crate) shard_subject: Option<String>,
    /// Any node's.
    pub(crate) plain_subject: String,
    pub(crate) payload: Bytes,
    pub(crate) effect: Effect,
}

/// An answer, and what the call knows of its attempts.
pub(crate) struct Answer {
    pub(crate) payload: Bytes,
    /// The leader's subject led nowhere: the number of shards may have changed.
    pub(crate) shard_missed: bool,
}

/// Asks until there is an answer, a final refusal or the deadline.
pub(crate) async fn call<T: Transport>(
    transport: &T,
    request: &Request,
    deadline: Instant,
) -> Result<Answer> {
    let mut attempts = Attempts::new(request.effect, request.shard_subject.is_some());
    let mut shard_missed = false;
    loop {
        let subject = match (attempts.route(), &request.shard_subject) {
            (Route::Shard, Some(subject)) => subject,
            _ => &request.plain_subject,
        };
        let wait = left(deadline).min(ATTEMPT_MAX);
        let told = (wait * 10 / 11).max(Duration::from_millis(1));
        let miss = match transport
            .request(subject, request.payload.clone(), told, wait)
            .await
        {
            Ok(payload) => {
                return Ok(Answer {
                    payload,
                    shard_missed,
                });
            }
            Err(miss) => miss,
        };
        debug!(
            subject,
            ?miss,
            uncertain = attempts.uncertain(),
            "attempt failed"
        );
        shard_missed |= attempts.route() == Route::Shard && matches!(miss, Miss::NoResponders);
        match attempts.after(miss, left(deadline)) {
            Next::Stop(error) => return Err(error),
            Next::Retry { wait } => tokio::time::sleep(wait).await,
        }
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

#[cfg(test)]
mod tests;
