//! How many hits each rule of rate limits allowed and refused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a rule's counts take beside its name.
const RULE_HITS_BYTES: usize = 48;

/// The hits that one rule decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleHits {
    /// Where it stands, as `show` lists it; `other`: all for which there was no room.
    pub rule: String,
    /// Hits of requests that passed.
    pub allowed: u64,
    /// Hits that were over its limit. In shadow mode they passed all the same.
    pub refused: u64,
}

/// A node whose counts are among [`LimitStatsReply::rules`](super::LimitStatsReply::rules).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCounts {
    /// Its number.
    pub node: u64,
    /// Since when it counts, on its wall clock: its start.
    pub since_ms: u64,
}

/// What a node answers to another one of the hits that it has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHits {
    /// The node.
    pub of: NodeCounts,
    /// By rule.
    pub rules: Vec<RuleHits>,
}

/// The most bytes of names of rules in an answer.
pub const RULE_HITS_BYTES_MAX: usize = 32_768;
/// What is counted of rules without a name in an answer.
pub const OTHER_RULES_NAME: &str = "other";

impl RuleHits {
    /// Adds up the counts of each rule, by rule. Of more than fit an answer, those with the most hits stay apart; all others are
    /// `other`.
    #[must_use]
    pub fn sum(counts: impl IntoIterator<Item = RuleHits>) -> Vec<RuleHits> {
        let mut rules: BTreeMap<String, RuleHits> = BTreeMap::new();
        let add = |rules: &mut BTreeMap<String, RuleHits>, it: RuleHits| {
            let sum = rules.entry(it.rule.clone()).or_default();
            sum.allowed = sum.allowed.saturating_add(it.allowed);
            sum.refused = sum.refused.saturating_add(it.refused);
            sum.rule = it.rule;
        };
        counts.into_iter().for_each(|it| add(&mut rules, it));
        let mut most: Vec<RuleHits> = rules.into_values().collect();
        most.sort_by_key(|it| std::cmp::Reverse(it.allowed.saturating_add(it.refused)));
        let mut apart = BTreeMap::new();
        let mut bytes = 0;
        for mut it in most {
            bytes += it.rule.len() + RULE_HITS_BYTES;
            if bytes > RULE_HITS_BYTES_MAX {
                it.rule = OTHER_RULES_NAME.to_owned();
            }
            add(&mut apart, it);
        }
        apart.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_of_rules_add_up_and_fit_an_answer() {
        let hits = |rule: &str, allowed, refused| RuleHits {
            rule: rule.to_owned(),
            allowed,
            refused,
        };
        let sum = RuleHits::sum([hits("b", 1, 2), hits("a", 5, 0), hits("b", 3, u64::MAX)]);
        assert_eq!(sum, [hits("a", 5, 0), hits("b", 4, u64::MAX)]);
        let name = |nth: u64| format!("{nth:04}{}", "x".repeat(400));
        let many = (0..500).map(|nth| hits(&name(nth), nth, 1));
        let sum = RuleHits::sum(many);
        let bytes: usize = sum.iter().map(|it| it.rule.len()).sum();
        assert!(bytes <= RULE_HITS_BYTES_MAX, "{bytes}");
        assert_eq!(sum.iter().map(|it| it.refused).sum::<u64>(), 500);
        let apart = sum.iter().filter(|it| it.rule != OTHER_RULES_NAME);
        assert!(apart.clone().count() > 50 && apart.clone().all(|it| it.allowed > 400));
        // Sums of sums stay the same.
        assert_eq!(RuleHits::sum(sum.clone()), sum);
    }
}
