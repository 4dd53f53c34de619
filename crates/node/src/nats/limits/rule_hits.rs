//! How many hits each rule allowed and refused, of the checks that this node answered since its start: `limit stats` adds up those
//! of all nodes.
//!
//! Beside the metrics of `rule_counters`, which count descriptors, whatever their hits, and by names that can have values of
//! requests. A node counts the answer that it gives: only it knows whether the whole request passed.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use async_nats::HeaderMap;
use futures::StreamExt as _;
use nowserving_limit::{Rules, Verdict, combine};
use nowserving_line::LineName;
use nowserving_protocol::codec::{Format, encode};
use nowserving_protocol::limits::{NodeCounts, NodeHits, RuleHits};

use super::Limits;
use crate::clock;

/// The counts of all rules that this node knows, by their paths in words: as many as there are rules.
#[derive(Debug)]
pub struct HitCounters {
    since_ms: u64,
    rules: RwLock<HashMap<Box<str>, Hits>>,
}

#[derive(Debug, Default)]
struct Hits {
    allowed: AtomicU64,
    refused: AtomicU64,
}

impl Default for HitCounters {
    fn default() -> Self {
        HitCounters {
            since_ms: clock::wall_ms(),
            rules: RwLock::default(),
        }
    }
}

thread_local! {
    static PATH: RefCell<String> = const { RefCell::new(String::new()) };
}

impl HitCounters {
    /// Forgets the rules that are there no longer.
    pub fn keep<'a>(&self, all: impl Iterator<Item = &'a Rules>) {
        let known = all.flat_map(Rules::rules);
        let known: HashSet<String> = known.map(|(path, _)| path.to_string()).collect();
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        rules.retain(|path, _| known.contains(&**path));
    }

    /// Counts the descriptors of an answered request, of so many hits each. What another limit refused counts nowhere else.
    pub fn count(
        &self,
        (domain, rules): (&LineName, &Rules),
        entries: &[Vec<(&str, &str)>],
        verdicts: &[Option<Verdict>],
        hits: u32,
    ) {
        let decided: Vec<Verdict> = verdicts.iter().flatten().copied().collect();
        let passes = combine(&decided).allowed;
        PATH.with_borrow_mut(|path| {
            for (entries, verdict) in entries.iter().zip(verdicts) {
                let Some(verdict) = verdict else { continue };
                let is_over = !verdict.answer.allowed;
                if !is_over && !passes {
                    continue;
                }
                path.clear();
                if rules.append_path(domain.as_str(), entries, path) {
                    self.add(path, is_over, hits.into());
                }
            }
        });
    }

    fn add(&self, path: &str, is_over: bool, hits: u64) {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = rules.get(path) {
            return known.add(is_over, hits);
        }
        drop(rules);
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        rules.entry(path.into()).or_default().add(is_over, hits);
    }

    /// What this node says of them.
    pub fn of_node(&self, node: u64) -> NodeHits {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        let counted = rules.iter().map(|(path, hits)| RuleHits {
            rule: path.to_string(),
            allowed: hits.allowed.load(Ordering::Relaxed),
            refused: hits.refused.load(Ordering::Relaxed),
        });
        let since_ms = self.since_ms;
        NodeHits {
            of: NodeCounts { node, since_ms },
            rules: RuleHits::sum(counted),
        }
    }
}

impl Hits {
    fn add(&self, is_over: bool, hits: u64) {
        let counter = match is_over {
            true => &self.refused,
            false => &self.allowed,
        };
        counter.fetch_add(hits, Ordering::Relaxed);
    }
}

impl Limits {
    /// Tells other nodes what this one has counted, until the connection is closed.
    ///
    /// # Errors
    /// The subscription cannot be made.
    pub async fn answer_nodes(self: Arc<Self>) -> anyhow::Result<()> {
        let me = self.nodes.me;
        let mut asked = self.client.subscribe(self.forward.limit_hits(me)).await?;
        while let Some(message) = asked.next().await {
            let hits = encode(&self.counters.hits.of_node(me), Format::MsgPack);
            let reply = message.reply.as_deref();
            let sent = self.responder.send(reply, HeaderMap::new(), hits.into());
            sent.await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::rules::read_one;
    use super::super::tests::verdict;
    use super::*;

    const TEXT: &str = "
domain: shop
descriptors:
  - {key: ip, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: user, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: path, value: /a*, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}
";

    fn hits(rule: &str, allowed: u64, refused: u64) -> RuleHits {
        RuleHits {
            rule: rule.to_owned(),
            allowed,
            refused,
        }
    }

    #[test]
    fn hits_are_counted_by_rule_where_they_are_decided() {
        let (domain, rules) = read_one(TEXT).unwrap();
        let counters = HitCounters::default();
        let shadow = Verdict {
            is_shadow: true,
            ..verdict(false, 0)
        };
        let count = |request: &[(&str, &str, Option<Verdict>)], hits| {
            let entries: Vec<_> = request.iter().map(|it| vec![(it.0, it.1)]).collect();
            let verdicts: Vec<_> = request.iter().map(|it| it.2).collect();
            counters.count((&domain, &rules), &entries, &verdicts, hits);
        };
        let (yes, no) = (Some(verdict(true, 4)), Some(verdict(false, 0)));
        count(&[("ip", "a", yes), ("user", "ann", yes)], 3);
        // Refused by one: the other has counted nothing.
        count(&[("ip", "b", yes), ("user", "bob", no)], 2);
        count(&[("path", "/ab", Some(shadow)), ("ip", "c", yes)], 1);
        count(&[("other", "x", None)], 1);
        let counted = counters.of_node(7);
        assert_eq!(counted.of.node, 7);
        assert_eq!(
            counted.rules,
            [
                hits("shop / ip", 4, 0),
                hits("shop / path=/a*", 0, 1),
                hits("shop / user", 3, 2),
            ]
        );
    }

    /// However many there were: it keeps as many as there are.
    #[test]
    fn rules_that_are_gone_are_forgotten() {
        let (domain, rules) = read_one(TEXT).unwrap();
        let counters = HitCounters::default();
        let entries = [vec![("ip", "a")], vec![("user", "ann")]];
        let verdicts = [Some(verdict(true, 4)), Some(verdict(true, 4))];
        counters.count((&domain, &rules), &entries, &verdicts, 1);
        let text = TEXT.replace("key: user", "key: account");
        let (_, fewer) = read_one(&text).unwrap();
        counters.keep([&fewer].into_iter());
        assert_eq!(counters.of_node(1).rules, [hits("shop / ip", 1, 0)]);
        counters.keep(std::iter::empty());
        assert!(counters.of_node(1).rules.is_empty());
    }
}
