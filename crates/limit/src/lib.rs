//! Rate limits: rules, and the counters that decide by them.
//!
//! No I/O, no clock, no randomness and no order of a hash that could be seen. Time comes in with each check, in µs
//! ([`Now`]): the shard's service clock, and for windows the leader's wall clock.
//!
//! # How a check flows
//!
//! 1. [`Rules::parse`] reads rules in the YAML of Lyft's ratelimit (`rules`).
//! 2. [`Rules::resolve`] finds the rule of each descriptor of a request, and the key of its counter (`key`).
//! 3. [`Windows::moment`] says which time it is for that limit: its clock, and the window of its calendar (`moment`).
//! 4. [`check()`] decides all limits of the request together (`check`), on the counters of a leader ([`Table`], or
//!    [`Live`] after a failover), or on those that all nodes have by the log ([`Saved`]: exact limits).
//! 5. [`combine`] makes one answer of them.
//!
//! A [`Counter`] is one of five algorithms (`algorithm`, one file each).
//!
//! # Checkpoints
//!
//! A leader counts in its memory. From time to time it writes [`Table::changes`] to the log, a bounded portion each time,
//! and all nodes [`Saved::merge`] them. The next leader begins with an empty table over that. A counter that is idle is
//! dropped on either side without a word, as it answers as a fresh one.
//!
//! # Hits that are given back
//!
//! Limits whose counters several shards have are decided apart. If one of them refuses, what the others have counted is
//! given back: [`Held`] remembers the newest hits for that, and [`Counter::give_back`] never makes room that they did not take.
//!
//! # Bounds
//!
//! | what | bound |
//! |---|---|
//! | counters, keys and logs in memory | [`TableMax`]; the top of `table` has the bytes |
//! | the work of a check | the top of `table`; a look-up in a tree of rules for each entry of a descriptor |
//! | hits that can be given back | the newest [`HELD_MAX`], with at most [`HELD_KEY_BYTES_MAX`] of keys |
//! | a key | [`COUNTER_KEY_BYTES_MAX`] |
//! | rules | [`RULES_BYTES_MAX`], [`RULES_NODES_MAX`], [`RULES_DEPTH_MAX`] |
//! | hits beyond a limit | none while a leader counts; see [`WhenFull`] for keys without room |

mod algorithm;
mod answer;
mod change;
mod check;
mod counter;
mod held;
pub mod key;
mod limit;
mod moment;
mod packed;
mod paged;
mod rules;
mod saved;
mod table;
mod unit;

pub use algorithm::{Drain, FixedWindow, LogHits, LogPart, SlidingWindowCounter, SlidingWindowLog};
pub use answer::Answer;
pub use change::{Change, ChangedState, PortionMax};
pub use check::{
    Ask, Counters, Overall, Peeked, Place, RETRY_WHEN_FULL_US, Verdict, WhenFull, check, combine,
};
pub use counter::Counter;
pub use held::{Counted, HELD_KEY_BYTES_MAX, HELD_MAX, Held};
pub use key::{COUNTER_KEY_BYTES_MAX, KeyTooLong};
pub use limit::{
    Algorithm, BUCKET_PAUSE_US, BadLimit, Clock, LOG_REQUESTS_MAX, Limit, LimitParts, Now,
    REFILL_US_MAX,
};
pub use moment::{Moment, Windows};
pub use nowserving_calendar::{Window, Zone};
pub use rules::{
    DOMAIN_BYTES_MAX, DescriptorTooLong, Difference, Entries, Matched, MetricValues, Position,
    RULE_ERRORS_MAX, RULE_KEY_BYTES_MAX, RULE_NAME_BYTES_MAX, RULE_VALUE_BYTES_MAX,
    RULES_BYTES_MAX, RULES_DEPTH_MAX, RULES_NODES_MAX, Rule, RuleError, RuleErrors, RulePath,
    Rules, Wildcard,
};
pub use saved::Saved;
pub use table::{COUNTERS_MAX, HashSeed, Live, Table, TableMax};
pub use unit::Unit;
