//! Rate limits: the rules that a node knows, and what they say of a request.

mod rules;
mod show;

use nowserving_limit::{Entries, Matched};
use nowserving_line::LineName;
use nowserving_protocol::codec::MAX_REQUEST_BYTES;
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::limits::{Check, Descriptor};
use nowserving_shard::limits::LimitAsk;

pub use rules::{KnownDomain, KnownRules, changes, notes, read_one};
pub use show::{in_words, show};

/// A text of rules in JSON can be longer than what it says.
pub const APPLY_BYTES_MAX: usize = 3 * MAX_REQUEST_BYTES;
/// A leader answers so when its rules say that a counter is not its own.
pub const OTHER_RULES: Code = Code::VersionConflict;

/// Keys and values of descriptors, as rules read them.
#[must_use]
pub fn entries<'a>(descriptors: &'a [Descriptor]) -> Vec<Vec<(&'a str, &'a str)>> {
    let pairs = |descriptor: &'a Descriptor| -> Vec<(&'a str, &'a str)> {
        let pairs = descriptor.iter();
        pairs
            .map(|entry| (entry.key.as_str(), entry.value.as_str()))
            .collect()
    };
    descriptors.iter().map(pairs).collect()
}

/// Which rule and counter each descriptor has.
///
/// # Errors
/// `bad_request`: there are too many.
pub fn resolve<'r>(
    known: &'r KnownDomain,
    domain: &LineName,
    entries: &[Vec<(&str, &str)>],
) -> Result<Vec<Matched<'r>>, ApiError> {
    let entries: Vec<Entries<'_>> = entries.iter().map(Vec::as_slice).collect();
    let resolved = known.rules.resolve(domain.as_str(), &entries);
    resolved.map_err(|error| ApiError::bad_request(error.to_string()))
}

/// What is asked of a counter; `None` without a limit.
#[must_use]
pub fn limit_ask(matched: &Matched<'_>, ask: &Check) -> Option<LimitAsk> {
    let Matched::Limited { rule, key } = matched else {
        return None;
    };
    Some(LimitAsk {
        limit: rule.limit.clone()?,
        key: key.as_slice().into(),
        hits: ask.hits().into(),
        max_delay_us: ask.max_delay_ms.map(|ms| ms.saturating_mul(1_000)),
        when_full: rule.when_full,
        is_shadow: rule.is_shadow,
        is_quota: rule.is_quota,
    })
}
