//! Answers about rate limits, as text for people.

use std::fmt::Write as _;

use nowserving_client::limits::{
    CheckReply, LimitStatsReply, RulesChanged, RulesReply, ShardLimitStats,
};

use crate::tables::duration;

pub(super) fn changed(changed: &RulesChanged) -> String {
    let mut lines = changed.changes.clone();
    if lines.is_empty() {
        lines.push("no differences".to_owned());
    }
    let (domain, version) = (changed.domain.as_str(), changed.version);
    lines.push(match (changed.dry_run, version) {
        (true, 0) => format!("domain {domain} has no rules yet; nothing was changed"),
        (true, _) => format!("domain {domain} has version {version}; nothing was changed"),
        (false, _) => format!("domain {domain}: version {version}"),
    });
    lines.join("\n")
}

pub(super) fn rules(shown: &RulesReply) -> String {
    if shown.domains.is_empty() {
        return "no rules".to_owned();
    }
    let mut lines = Vec::new();
    for domain in &shown.domains {
        let by = match domain.by.as_str() {
            "" => String::new(),
            by => format!(", by {by}"),
        };
        let (name, version, rules) = (domain.domain.as_str(), domain.version, domain.rules_total);
        lines.push(format!("{name}: version {version}, {rules} rules{by}"));
        lines.extend(domain.rules.iter().map(|rule| format!("  {rule}")));
    }
    lines.join("\n")
}

pub(super) fn check(checked: &CheckReply) -> String {
    let mut lines = vec![match (checked.unmatched, checked.allowed) {
        (true, _) => "allowed: the domain has no rules".to_owned(),
        (false, true) => "allowed".to_owned(),
        (false, false) => match checked.retry_after_ms {
            Some(ms) => format!("refused, for {ms} ms"),
            None => "refused, for good".to_owned(),
        },
    }];
    for (nth, descriptor) in checked.descriptors.iter().enumerate() {
        let says = match (descriptor.limit, descriptor.remaining) {
            (Some(limit), Some(left)) => {
                let unit = descriptor.unit.as_deref().unwrap_or("unit");
                let over = if descriptor.allowed { "" } else { ", over it" };
                format!("{left} left of {limit} per {unit}{over}")
            }
            _ if descriptor.unlimited => "unlimited".to_owned(),
            _ if descriptor.replaced => "another rule counts instead".to_owned(),
            _ => "no rule".to_owned(),
        };
        let rule = descriptor.rule.iter().map(|rule| format!(" ({rule})"));
        let number = nth + 1;
        lines.push(format!("  {number}: {says}{}", rule.collect::<String>()));
    }
    lines.join("\n")
}

pub(super) fn stats(stats: &LimitStatsReply) -> String {
    let mut parts = Vec::new();
    if !stats.shards.is_empty() {
        parts.push(counted(&stats.shards));
    }
    if !stats.unanswered.is_empty() {
        let missing: Vec<_> = stats.unanswered.iter().map(u32::to_string).collect();
        parts.push(format!("no answer from shards: {}", missing.join(", ")));
    }
    parts.join("\n")
}

fn counted(shards: &[ShardLimitStats]) -> String {
    let sum = |of: fn(&ShardLimitStats) -> u64| shards.iter().map(of).sum::<u64>();
    let in_memory = several(sum(|it| it.counters), "counter");
    let (changed, saved) = (sum(|it| it.changed), several(sum(|it| it.saved), "counter"));
    let (checks, refused) = (
        several(sum(|it| it.checks), "request"),
        sum(|it| it.refused),
    );
    let kib = sum(|it| it.key_bytes).div_ceil(1_024);
    let number = several(shards.len() as u64, "shard");
    let longest = shards.iter().map(|it| it.changed_for_ms).max();
    let longest = duration(longest.unwrap_or_default());
    let (untracked, not_kept) = (sum(|it| it.untracked), sum(|it| it.not_kept));
    let mut text = format!(
        "in the memory of the leaders of {number}: {in_memory} (keys: {kib} KiB), {changed} of them not yet in a checkpoint (for {longest})\n\
         on every node, in checkpoints or by exact limits: {saved}\n\
         answered by these leaders: {checks}, {refused} of them refused"
    );
    if untracked + not_kept > 0 {
        let _ = write!(
            text,
            "\nno room for counters: {untracked} requests not counted everywhere, {not_kept} changes not in checkpoints"
        );
    }
    text
}

/// A noun with its number.
fn several(number: u64, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {one}s"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn shards_that_did_not_answer_are_named() {
        let mut reply = LimitStatsReply {
            shards: vec![ShardLimitStats {
                counters: 1,
                ..ShardLimitStats::default()
            }],
            unanswered: Vec::new(),
        };
        let text = stats(&reply);
        assert!(
            text.starts_with("in the memory of the leaders of 1 shard: 1 counter (keys"),
            "{text}"
        );
        assert!(!text.contains("no answer"));
        reply.unanswered = vec![2, 7];
        assert!(stats(&reply).ends_with("no answer from shards: 2, 7"));
        reply.shards.clear();
        assert_eq!(stats(&reply), "no answer from shards: 2, 7");
    }
}
