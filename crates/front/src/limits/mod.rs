//! Rate limits for clients: any node takes a request, asks the leaders of the shards that have its counters, and makes one
//! answer of theirs.
//!
//! ```text
//! limit.<domain>.check, leader.<n>.limit.<domain>.check ─► the rules: which limit, which counter, which shard
//!     ─► this node's own engine, if it leads the shard; or
//!        forward.shard.<n>.<domain>.limit_part or shard.<n>.<domain>.limit_exact: one for each shard, at once
//!     ─► combine ─► the answer; if it is a refusal, forward.shard.<n>.<domain>.limit_give_back or
//!        shard.<n>.<domain>.limit_exact_give_back first
//! admin.limit.<op> ─► admin.shard.<n>.<domain>.limit_<op>
//! ```

mod admin;
mod check;
mod counters;
mod parts;
mod reply;
mod rules;
mod show;

use nowserving_engine::{Now, Via};
use nowserving_limit::{Entries, Matched};
use nowserving_line::LineName;
use nowserving_protocol::codec::decode;
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::limits::{Check, Descriptor};
use nowserving_protocol::operation::Operation;
use nowserving_protocol::subject::Target;
use nowserving_shard::limits::LimitAsk;

use self::check::{Call, Checking};
use crate::Message;
use crate::gather::{Config, Work};

pub(crate) use counters::RuleCounters;
pub use rules::{KnownDomain, KnownRules, changes, notes, read_one};
pub use show::{in_words, show};

/// A leader answers so when its rules say that a counter is not its own.
pub const OTHER_RULES: Code = Code::VersionConflict;

/// A descriptor as rules read it.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a>(&'a Descriptor);

impl Entries for Asked<'_> {
    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let entries = self.0.iter();
        entries.map(|entry| (entry.key.as_str(), entry.value.as_str()))
    }
}

/// Descriptors as rules read them.
pub fn entries(descriptors: &[Descriptor]) -> impl ExactSizeIterator<Item = Asked<'_>> + Clone {
    descriptors.iter().map(Asked)
}

/// Which rule and counter each descriptor has.
///
/// # Errors
/// `bad_request`: there are too many.
pub fn resolve<'r>(
    known: &'r KnownDomain,
    domain: &LineName,
    descriptors: &[Descriptor],
) -> Result<Vec<Matched<'r>>, ApiError> {
    let resolved = known.rules.resolve(domain.as_str(), entries(descriptors));
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

/// What is done for a client's or an operator's request, the `nth` that this node takes.
///
/// # Errors
/// It cannot be read.
pub(crate) fn work_of_limits(
    target: Target,
    message: &Message<'_>,
    now: Now,
    (config, nth): (&Config, u64),
) -> Result<Box<dyn Work>, ApiError> {
    let op = target.op;
    if let (Some(domain), Operation::LimitCheck) = (target.name, op) {
        let ask: Check = decode(message.payload)?;
        ask.check()?;
        let call = Call::of(message, op, now, (config, nth))?;
        return Ok(Box::new(Checking::new(domain, ask, call, false)));
    }
    let mut call = Call::of(message, op, now, (config, nth))?;
    call.note = config.trust.note(message, Via::Plain, op)?;
    admin::work(op, message.payload, call)
}
