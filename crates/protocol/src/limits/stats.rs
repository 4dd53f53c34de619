//! What shards and nodes have counted of rate limits: `admin.limit.stats`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::page::json_bytes;
use crate::wire;

const SHARD_NUMBER_MAX: u64 = u32::MAX as u64;

/// The most shards in an answer to `stats`.
pub const STATS_SHARDS_MAX: u32 = 64;

/// `admin.limit.stats`: the counters of all shards, [`STATS_SHARDS_MAX`] a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitStats {
    /// The [`LimitStatsReply::next`] of the page before. Only the first page, without it, has the hits of rules.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::WithinOption::<0, SHARD_NUMBER_MAX>"
    )]
    pub from: Option<u32>,
}

/// The answer to `stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitStatsReply {
    /// By number.
    pub shards: Vec<ShardLimitStats>,
    /// The `from` of the next page; null on the last one.
    #[serde(default)]
    pub next: Option<u32>,
    /// The shards whose leaders did not answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<u32>,
    /// The hits of each rule that had any, of all nodes that answered, by rule.
    #[serde(default)]
    pub rules: Vec<RuleHits>,
    /// These nodes, by number.
    #[serde(default)]
    pub nodes: Vec<NodeCounts>,
    /// The nodes that did not answer: what they have counted is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes_unanswered: Vec<u64>,
}

impl LimitStatsReply {
    /// Appends the next page.
    pub fn append(&mut self, page: LimitStatsReply) {
        self.shards.extend(page.shards);
        self.unanswered.extend(page.unanswered);
        self.next = page.next;
    }
}

/// The counters of one shard's leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShardLimitStats {
    /// The shard.
    pub shard: u32,
    /// In the leader's memory, those that are idle and not yet dropped included.
    pub counters: u64,
    /// The bytes of their keys.
    pub key_bytes: u64,
    /// The times that sliding window logs remember.
    pub log_hits: u64,
    /// Changed since the last checkpoint.
    pub changed: u64,
    /// For how long the oldest of these changes has waited for it: what a failover would forget.
    #[serde(default)]
    pub changed_for_ms: u64,
    /// On all nodes: those of checkpoints and of exact limits.
    pub saved: u64,
    /// Requests that this leader has answered.
    pub checks: u64,
    /// Those of them that it refused.
    pub refused: u64,
    /// Those of them with a limit whose counter found no room.
    #[serde(default)]
    pub untracked: u64,
    /// Counters that this leader wrote into checkpoints without room for them: a failover forgets them, however old they
    /// are. Once for each checkpoint.
    #[serde(default)]
    pub not_kept: u64,
}

/// The hits that one rule decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RuleHits {
    /// Where it stands, as `show` lists it; `other`: all for which there was no room.
    pub rule: String,
    /// Hits of requests that passed.
    pub allowed: u64,
    /// Hits that were over its limit. In shadow mode they passed all the same.
    pub refused: u64,
}

/// A node whose counts are among [`LimitStatsReply::rules`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

impl NodeHits {
    /// What the parts of one node have counted.
    #[must_use]
    pub fn sum(parts: impl IntoIterator<Item = NodeHits>) -> NodeHits {
        let mut of = NodeCounts::default();
        let mut rules = Vec::new();
        for part in parts {
            of = part.of;
            rules.extend(part.rules);
        }
        NodeHits {
            of,
            rules: RuleHits::sum(rules),
        }
    }
}

/// The most bytes of JSON that the hits of rules have in an answer, without those of [`OTHER_RULES_NAME`].
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
            bytes += json_bytes(&it) + ",".len();
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
    use nowserving_line::NUMBER_MAX;

    use super::*;
    use crate::codec::MAX_PAYLOAD_MIN;

    #[test]
    fn the_largest_answer_fits_a_message() {
        let shard = ShardLimitStats {
            shard: 255,
            counters: NUMBER_MAX,
            key_bytes: NUMBER_MAX,
            log_hits: NUMBER_MAX,
            changed: NUMBER_MAX,
            changed_for_ms: NUMBER_MAX,
            saved: NUMBER_MAX,
            checks: NUMBER_MAX,
            refused: NUMBER_MAX,
            untracked: NUMBER_MAX,
            not_kept: NUMBER_MAX,
        };
        let hits = |nth: u64| RuleHits {
            rule: format!("shop / {}={nth}", "\"".repeat(100)),
            allowed: u64::MAX,
            refused: u64::MAX,
        };
        let node = NodeCounts {
            node: NUMBER_MAX,
            since_ms: NUMBER_MAX,
        };
        let reply = LimitStatsReply {
            shards: vec![shard; STATS_SHARDS_MAX as usize],
            unanswered: (0..STATS_SHARDS_MAX).collect(),
            next: Some(192),
            rules: RuleHits::sum((0..1_000).map(hits)),
            nodes: vec![node; 7],
            nodes_unanswered: vec![NUMBER_MAX; 7],
        };
        let bytes = json_bytes(&reply);
        assert!(bytes < MAX_PAYLOAD_MIN - 1_024, "{bytes}");
    }

    #[test]
    fn hits_of_rules_add_up_and_fit_an_answer() {
        let hits = |rule: &str, allowed, refused| RuleHits {
            rule: rule.to_owned(),
            allowed,
            refused,
        };
        let sum = RuleHits::sum([hits("b", 1, 2), hits("a", 5, 0), hits("b", 3, u64::MAX)]);
        assert_eq!(sum, [hits("a", 5, 0), hits("b", 4, u64::MAX)]);
        let name = |nth: u64| format!("{nth:04}{}", "\u{1}".repeat(60));
        let many = (0..500).map(|nth| hits(&name(nth), nth, 1));
        let sum = RuleHits::sum(many);
        let bytes = json_bytes(&sum);
        assert!(bytes <= RULE_HITS_BYTES_MAX + 100, "{bytes}");
        assert_eq!(sum.iter().map(|it| it.refused).sum::<u64>(), 500);
        let apart = sum.iter().filter(|it| it.rule != OTHER_RULES_NAME);
        assert!(apart.clone().count() > 50 && apart.clone().all(|it| it.allowed > 400));
        // Sums of sums stay the same.
        assert_eq!(RuleHits::sum(sum.clone()), sum);
    }
}
