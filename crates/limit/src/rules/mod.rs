//! Rules: which limit counts for which descriptor.
//!
//! ```text
//! text ─► yaml (a tree with places) ─► fields, read ─► rule: Rules, a tree by key and value
//!                                                        │
//! domain, descriptors ─────────────────────────► matching ─► Matched: which rule, which counter
//! ```

mod diff;
mod error;
mod fields;
mod foreign;
mod matching;
mod metric;
mod one;
mod read;
mod rule;
mod wildcard;
mod yaml;

pub use diff::Difference;
pub use error::{Position, RULE_ERRORS_MAX, RuleError, RuleErrors};
pub use matching::{DescriptorTooLong, Entries, Matched};
pub use metric::MetricValues;
pub use rule::{
    DOMAIN_BYTES_MAX, RULE_KEY_BYTES_MAX, RULE_NAME_BYTES_MAX, RULE_VALUE_BYTES_MAX, Rule,
    RulePath, Rules,
};
pub use wildcard::Wildcard;
pub use yaml::{RULES_BYTES_MAX, RULES_DEPTH_MAX, RULES_NODES_MAX};
