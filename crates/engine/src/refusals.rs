//! Errors of nodes, as opposed to those of lines.

use nowserving_line::LineName;
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::header::SENT_MS_HEADER;

use crate::requests::age::{CLOCK_TOLERANCE_MS, LATE_MAX_US};

/// Nothing happened, and it may be tried again.
pub fn unavailable() -> ApiError {
    ApiError::new(
        Code::Unavailable,
        "no quorum answered in time; nothing happened",
    )
    .retry_after_ms(250)
}

/// Nothing happened, and it may be tried again.
pub fn late() -> ApiError {
    ApiError::new(
        Code::Unavailable,
        "the request came too long after it was sent; nothing happened",
    )
    .retry_after_ms(250)
}

/// `error`, of a request that is refused because it was sent so long ago by its header alone. The next try would say the same.
pub fn late_by_header(error: ApiError, ago_ms: u64) -> ApiError {
    let tolerance_ms = LATE_MAX_US / 1_000 + CLOCK_TOLERANCE_MS;
    let outcome = match error.code {
        Code::OutcomeUnknown => "this copy of the request is not executed",
        _ => "nothing happened",
    };
    ApiError::new(
        error.code,
        format!(
            "{SENT_MS_HEADER}: by this header the request was sent {ago_ms} ms ago, and it may take its timeout + \
             {tolerance_ms} ms; the header is wrong (it is in milliseconds since 1970), or a clock is; {outcome}"
        ),
    )
}

/// Nothing happened, and it may be tried again.
pub fn disk_full() -> ApiError {
    ApiError::new(
        Code::Unavailable,
        "the disk of the leader is full, or those of too many nodes; nothing happened",
    )
    .retry_after_ms(1_000)
}

/// A member of the group does not read such a command.
pub fn older_member() -> ApiError {
    ApiError::new(
        Code::Unavailable,
        "a node still runs an older release, which does not know this; nothing happened",
    )
    .retry_after_ms(1_000)
}

/// It may or may not have happened.
pub fn outcome_unknown() -> ApiError {
    ApiError::new(
        Code::OutcomeUnknown,
        "the outcome is not known, as the deadline passed or the lead of the shard changed; repeat it with the same key, ticket or \
         request id",
    )
}

/// The rules of a domain do not have the version that the request names. 0: there are none.
pub fn rules_changed(domain: &LineName, version: u64) -> ApiError {
    let domain = domain.as_str();
    let what = match version {
        0 => format!("domain {domain} has no rules"),
        _ => format!("the rules of domain {domain} have version {version}"),
    };
    ApiError::new(Code::VersionConflict, what)
}

/// There are no rules of rate limits of this domain.
pub fn no_rules(domain: &LineName) -> ApiError {
    let what = format!("there are no rules of domain {}", domain.as_str());
    ApiError::new(Code::DomainNotFound, what)
}

/// A bounded queue is full.
pub fn overloaded() -> ApiError {
    ApiError::new(
        Code::Overloaded,
        "too many requests wait here; nothing happened",
    )
    .retry_after_ms(250)
}
