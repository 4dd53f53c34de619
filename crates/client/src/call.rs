//! One call: attempts under one deadline until a reply settles it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nowserving_protocol::header::RequestId;
use tokio::time::Instant;
use tracing::debug;

use crate::error::Result;
use crate::retry::{Attempts, Effect, Failure, Route};

/// The longest an attempt waits for its answer. A little over the timeout in the header, so
/// that the cluster's own `unavailable` or `outcome_unknown` still arrives.
const ATTEMPT_MAX: Duration = Duration::from_millis(2_200);

/// How long a write is repeated once one of its attempts may have had its effect. The cluster
/// recognises a copy by its request id for two minutes; a copy that comes later could have a second
/// effect.
const REPEAT_MAX: Duration = Duration::from_secs(110);

/// One sending of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt<'a> {
    pub(crate) subject: &'a str,
    pub(crate) payload: &'a Bytes,
    /// Headers: who asks, and why.
    pub(crate) note: &'a [(&'static str, String)],
    /// Of a write: the same in all attempts of a call.
    pub(crate) request_id: Option<&'a RequestId>,
    /// By when the cluster must have answered: the header.
    pub(crate) timeout: Duration,
    /// When to stop waiting for the answer; always a little more.
    pub(crate) wait: Duration,
}

/// Sends a request once and waits for its reply.
pub(crate) trait Transport: Send + Sync {
    fn request(
        &self,
        attempt: Attempt<'_>,
    ) -> impl Future<Output = std::result::Result<Bytes, Failure>> + Send;
}

/// A request, and the subjects that it can go to.
pub(crate) struct Request {
    /// The leader's subject, if the number of shards is known.
    pub(crate) shard_subject: Option<String>,
    /// Any node's.
    pub(crate) plain_subject: String,
    pub(crate) payload: Bytes,
    /// Headers: who asks, and why.
    pub(crate) note: Arc<[(&'static str, String)]>,
    pub(crate) effect: Effect,
}

/// The reply of a call.
pub(crate) struct Answer {
    pub(crate) payload: Bytes,
    /// The leader's subject had no subscribers: the number of shards may have changed.
    pub(crate) shard_unserved: bool,
}

/// Sends attempts until a reply, a final refusal or the deadline.
pub(crate) async fn call<T: Transport>(
    transport: &T,
    request: &Request,
    mut deadline: Instant,
) -> Result<Answer> {
    let mut attempts = Attempts::new(request.effect, request.shard_subject.is_some());
    let mut shard_unserved = false;
    let is_write = request.effect == Effect::Write;
    let request_id = is_write.then(|| RequestId::from_bits(rand::random()));
    loop {
        let subject = match (attempts.route(), &request.shard_subject) {
            (Route::Shard, Some(subject)) => subject,
            _ => &request.plain_subject,
        };
        let sent_at = Instant::now();
        let wait = left(deadline).min(ATTEMPT_MAX);
        let attempt = Attempt {
            subject,
            payload: &request.payload,
            note: &request.note,
            request_id: request_id.as_ref(),
            timeout: (wait * 10 / 11).max(Duration::from_millis(1)),
            wait,
        };
        let failure = match transport.request(attempt).await {
            Ok(payload) => {
                return Ok(Answer {
                    payload,
                    shard_unserved,
                });
            }
            Err(failure) => failure,
        };
        debug!(
            subject,
            ?failure,
            uncertain = attempts.uncertain(),
            "attempt failed"
        );
        shard_unserved |=
            attempts.route() == Route::Shard && matches!(failure, Failure::NoResponders);
        let was_certain = !attempts.uncertain();
        let next = attempts.after(failure, left(deadline));
        if was_certain && attempts.uncertain() {
            deadline = deadline.min(sent_at + REPEAT_MAX);
        }
        tokio::time::sleep(next?).await;
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

#[cfg(test)]
mod tests;
