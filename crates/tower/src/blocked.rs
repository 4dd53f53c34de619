//! Why a request gets no response of its handler.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use nowserving_client::limits::CheckReply;
use nowserving_client::{Lost, Refused};

use crate::limit::Undecided;

/// Why a layer answers in place of the handler.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Blocked {
    /// The guard refused, and the handler did not run.
    Refused(Refused),
    /// The guard's seat was lost while the handler ran, which was dropped.
    Lost(Lost),
    /// Over a rate limit, or delayed for longer than [`RateLimitLayer::longest_delay`](crate::RateLimitLayer::longest_delay).
    OverLimit(CheckReply),
    /// The cluster does not decide about rate limits, or refuses to.
    Undecided(Undecided),
}

impl Blocked {
    /// One word, for metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Blocked::Refused(refused) => match refused {
                Refused::Full { .. } => "full",
                Refused::WaitedTooLong { .. } => "waited_too_long",
                Refused::Closed => "closed",
                Refused::Removed { .. } => "removed",
                Refused::Unavailable => "unavailable",
                Refused::Overloaded { .. } => "overloaded",
                Refused::Busy => "busy",
                _ => "failed",
            },
            Blocked::Lost(_) => "lost",
            Blocked::OverLimit(_) => "over_limit",
            Blocked::Undecided(undecided) if undecided.is_transient => "unavailable",
            Blocked::Undecided(_) => "failed",
        }
    }

    /// The status of an HTTP response.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Blocked::Refused(refused) => match refused {
                Refused::Full { .. } => StatusCode::TOO_MANY_REQUESTS,
                Refused::WaitedTooLong { .. } => StatusCode::GATEWAY_TIMEOUT,
                Refused::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
                _ => StatusCode::SERVICE_UNAVAILABLE,
            },
            Blocked::OverLimit(_) => StatusCode::TOO_MANY_REQUESTS,
            Blocked::Undecided(undecided) if !undecided.is_transient => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Blocked::Lost(_) | Blocked::Undecided(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The status of a gRPC response.
    #[must_use]
    pub fn grpc_status(&self) -> u8 {
        match self {
            Blocked::Refused(refused) => match refused {
                Refused::Full { .. } => 8,
                Refused::WaitedTooLong { .. } => 4,
                Refused::Failed(_) => 13,
                _ => 14,
            },
            Blocked::Lost(_) => 10,
            Blocked::OverLimit(_) => 8,
            Blocked::Undecided(undecided) if !undecided.is_transient => 13,
            Blocked::Undecided(_) => 14,
        }
    }

    /// After how many whole seconds to come again, at least one: if the line is full, if a rate limit says so, or if the
    /// cluster suggests it.
    #[must_use]
    pub fn retry_after_s(&self) -> Option<u64> {
        let wait = match self {
            Blocked::Refused(Refused::Full { retry_after }) => retry_after.unwrap_or_default(),
            Blocked::Refused(refused) => refused.retry_after()?,
            Blocked::OverLimit(reply) => Duration::from_millis(reply.retry_after_ms?),
            Blocked::Undecided(undecided) => undecided.retry_after?,
            Blocked::Lost(_) => return None,
        };
        let wait_ms = wait.max(Duration::from_secs(1)).as_millis();
        Some(wait_ms.div_ceil(1_000).try_into().unwrap_or(u64::MAX))
    }
}

/// For the client: a fault of the set-up is not described to it, but logged.
impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blocked::Refused(Refused::Failed(_)) => f.write_str("the guard is not set up"),
            Blocked::Refused(refused) => refused.fmt(f),
            Blocked::Lost(lost) => lost.fmt(f),
            Blocked::OverLimit(_) => f.write_str("too many requests"),
            Blocked::Undecided(undecided) if !undecided.is_transient => {
                f.write_str("the rate limit could not be decided")
            }
            Blocked::Undecided(_) => f.write_str("the cluster that limits does not answer"),
        }
    }
}
