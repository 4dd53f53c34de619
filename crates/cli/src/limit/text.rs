//! Answers about rate limits, as text for people.

use std::fmt::Write as _;

use nowserving_client::limits::{
    CheckReply, DescriptorReply, LimitChangesReply, LimitStatsReply, ResetReply, RulesChanged,
    RulesReply, ShardLimitStats,
};

use super::nearest::Hints;
use crate::tables::{clock, duration, in_one_line, plain};
use nowserving_terminal::nearest::Names;
use nowserving_terminal::output::Output;

pub(super) fn applied(changed: &RulesChanged) -> String {
    changes(changed, |domain, version| {
        format!("domain {domain}: version {version}")
    })
}

/// What a delete would do, by its dry run.
pub(super) fn deletes(dry: &RulesChanged) -> String {
    let (domain, version) = (dry.domain.as_str(), dry.version);
    format!(
        "delete all rules of domain {domain} (version {version}), so that its requests are allowed"
    )
}

pub(super) fn deleted(changed: &RulesChanged) -> String {
    changes(changed, |domain, _| {
        format!("domain {domain} has no rules any more")
    })
}

/// `done`: what is said of the domain and its version if it was no dry run.
fn changes(changed: &RulesChanged, done: fn(&str, u64) -> String) -> String {
    let mut lines = changed.changes.clone();
    if lines.is_empty() {
        lines.push("no differences".to_owned());
    }
    let (domain, version) = (changed.domain.as_str(), changed.version);
    lines.push(match (changed.dry_run, version) {
        (true, 0) => format!("domain {domain} has no rules yet; nothing was changed"),
        (true, _) => format!("domain {domain} has version {version}; nothing was changed"),
        (false, _) => done(domain, version),
    });
    lines.join("\n")
}

pub(super) fn reset(reset: &ResetReply) -> String {
    let text = match reset.known {
        true => "what was counted is forgotten",
        false => {
            "no checkpoint has a counter of it: nothing was counted but in the last moments, which is forgotten"
        }
    };
    text.to_owned()
}

/// A table, and the shards whose changes are missing.
pub(super) fn history(reply: &LimitChangesReply, output: &Output) -> String {
    let said = |text: &Option<String>| match text {
        Some(text) => in_one_line(text),
        None => "-".to_owned(),
    };
    let rows = reply.changes.iter().map(|it| {
        vec![
            clock(it.at_ms),
            it.op.clone(),
            it.domain.as_str().to_owned(),
            said(&it.version.map(|version| version.to_string())),
            said(&it.descriptor),
            said(&it.by),
            said(&it.reason),
        ]
    });
    let unanswered = unanswered(&reply.unanswered);
    if reply.changes.is_empty() {
        return unanswered.unwrap_or_else(|| "no changes are listed".to_owned());
    }
    let header = "at, change, domain, version, descriptor, by, reason";
    let changes = plain(header, rows.collect(), output);
    let older = "older changes are left out";
    let older = reply.left_out.then(|| older.to_owned());
    let parts = [Some(changes), older, unanswered];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    parts.join("\n")
}

fn unanswered(shards: &[u32]) -> Option<String> {
    let missing: Vec<_> = shards.iter().map(u32::to_string).collect();
    let text = format!("no answer from shards: {}", missing.join(", "));
    (!shards.is_empty()).then_some(text)
}

pub(super) fn rules(shown: &RulesReply) -> String {
    if shown.domains.is_empty() {
        return "no rules".to_owned();
    }
    let mut lines = Vec::new();
    for domain in &shown.domains {
        let by = match domain.by.as_str() {
            "" => String::new(),
            by => format!(" by {}", in_one_line(by)),
        };
        let reason = match domain.reason.as_str() {
            "" => String::new(),
            reason => format!(": {}", in_one_line(reason)),
        };
        let (name, version, at) = (domain.domain.as_str(), domain.version, clock(domain.at_ms));
        let rules = several(domain.rules_total, "rule");
        lines.push(format!(
            "{name}: version {version}, {rules}, applied {at} UTC{by}{reason}"
        ));
        lines.extend(domain.rules.iter().map(|rule| format!("  {rule}")));
    }
    lines.join("\n")
}

/// `hints`: for what no rule limits, the nearest that there is.
pub(super) fn check(checked: &CheckReply, hints: &Hints) -> String {
    let mut lines = vec![match (checked.unmatched, checked.allowed) {
        (true, _) => with_hint("allowed: the domain has no rules", hints.domain.as_ref()),
        (false, true) => match checked.delay_ms {
            Some(ms) => format!("allowed, after a wait of {}", duration(ms)),
            None => "allowed".to_owned(),
        },
        (false, false) => match checked.retry_after_ms {
            Some(ms) => format!("refused, for {}", duration(ms)),
            None => "refused, for good".to_owned(),
        },
    }];
    for (nth, descriptor) in checked.descriptors.iter().enumerate() {
        let name = descriptor.name.iter().map(|name| format!(" ({name})"));
        let (number, name) = (nth + 1, name.collect::<String>());
        let counted = with_hint(&counted_of(descriptor), hints.rules.get(&nth));
        lines.push(format!("  {number}{name}: {counted}"));
        lines.extend(descriptor.rule.iter().map(|rule| format!("     {rule}")));
    }
    lines.join("\n")
}

fn with_hint(text: &str, hint: Option<&Names>) -> String {
    match hint {
        Some(names) => format!("{text}; {names}"),
        None => text.to_owned(),
    }
}

/// What is left, and the limit. Of a bucket they are two numbers: it can have more left than it gets in a unit of time.
fn counted_of(descriptor: &DescriptorReply) -> String {
    let (Some(limit), Some(left)) = (descriptor.limit, descriptor.remaining) else {
        let nothing = match (descriptor.unlimited, descriptor.replaced) {
            (true, _) => "unlimited",
            (false, true) => "another rule counts instead",
            (false, false) => "no rule",
        };
        return nothing.to_owned();
    };
    let unit = descriptor.unit.as_deref().unwrap_or("unit");
    let of = descriptor.burst.map(|burst| format!(" of {burst}"));
    let of = of.unwrap_or_default();
    let mut text = format!("{left}{of} left, limit {limit} per {unit}");
    let flags = [
        (!descriptor.allowed, ", over it"),
        (descriptor.shadow, ", shadow mode: it refuses nothing"),
        (descriptor.quota, ", quota mode"),
        (descriptor.untracked, ", no room for a counter"),
    ];
    let set = flags.iter().filter(|(is_set, _)| *is_set);
    text.extend(set.map(|(_, words)| *words));
    if let Some(ms) = descriptor.delay_ms {
        let _ = write!(text, ", waits {}", duration(ms));
    }
    text
}

pub(super) fn stats(stats: &LimitStatsReply, output: &Output) -> String {
    let mut parts = Vec::new();
    if !stats.shards.is_empty() {
        parts.push(counted(&stats.shards));
    }
    parts.extend(unanswered(&stats.unanswered));
    parts.push(hits(stats, output));
    let missing = &stats.nodes_unanswered;
    if !missing.is_empty() {
        let missing: Vec<_> = missing.iter().map(u64::to_string).collect();
        parts.push(format!(
            "no answer from nodes: {}; their hits are missing",
            missing.join(", ")
        ));
    }
    parts.join("\n")
}

/// Those of each rule.
fn hits(stats: &LimitStatsReply, output: &Output) -> String {
    let since = stats.nodes.iter().map(|it| {
        let at = clock(it.since_ms);
        format!("node {} since {at}", it.node)
    });
    let since = since.collect::<Vec<_>>().join(", ");
    if stats.rules.is_empty() {
        return format!("no hits by rule ({since} UTC)");
    }
    let rows = stats.rules.iter().map(|it| {
        vec![
            in_one_line(&it.rule),
            it.allowed.to_string(),
            it.refused.to_string(),
        ]
    });
    let table = plain("rule, hits allowed, refused", rows.collect(), output);
    format!("hits by rule ({since} UTC):\n{table}")
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
    use nowserving_client::limits::{DomainReply, LimitChangeReply, NodeCounts, RuleHits};

    use super::*;

    const PLAIN: Output = Output {
        json: false,
        colour: false,
        live: false,
    };

    #[test]
    fn rules_show_when_they_were_applied_by_whom_and_why() {
        let domain = |by: &str, reason: &str| DomainReply {
            domain: "shop".parse().unwrap(),
            version: 3,
            at_ms: 1_766_222_333_444,
            by: by.to_owned(),
            reason: reason.to_owned(),
            rules_total: 1,
            rules: vec!["shop / ip: 5 per day, fixed_window".to_owned()],
            text: None,
            next: None,
        };
        let domains = vec![domain("ann", "sale on Friday"), domain("", "")];
        assert_eq!(
            rules(&RulesReply {
                domains,
                next: None
            })
            .lines()
            .collect::<Vec<_>>(),
            [
                "shop: version 3, 1 rule, applied 2025-12-20 09:18:53.444 UTC by ann: sale on Friday",
                "  shop / ip: 5 per day, fixed_window",
                "shop: version 3, 1 rule, applied 2025-12-20 09:18:53.444 UTC",
                "  shop / ip: 5 per day, fixed_window",
            ]
        );
    }

    #[test]
    fn a_check_shows_waits_and_what_each_limit_says() {
        let bucket = DescriptorReply {
            allowed: true,
            limit: Some(60),
            burst: Some(100),
            remaining: Some(72),
            unit: Some("minute".into()),
            delay_ms: Some(1_863),
            rule: Some("shop / queue: 60 per minute, leaking_bucket".into()),
            ..DescriptorReply::default()
        };
        let shadow = DescriptorReply {
            limit: Some(2),
            remaining: Some(0),
            unit: Some("day".into()),
            name: Some("by_ip".into()),
            shadow: true,
            ..DescriptorReply::default()
        };
        let mut reply = CheckReply {
            allowed: true,
            delay_ms: Some(1_863),
            descriptors: vec![bucket, shadow, DescriptorReply::default()],
            ..CheckReply::default()
        };
        let hints = Hints {
            domain: None,
            rules: [(2, Names::Near(vec!["ip=1.2.3.4".to_owned()]))].into(),
        };
        let text = check(&reply, &hints);
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                "allowed, after a wait of 1.8 s",
                "  1: 72 of 100 left, limit 60 per minute, waits 1.8 s",
                "     shop / queue: 60 per minute, leaking_bucket",
                "  2 (by_ip): 0 left, limit 2 per day, over it, shadow mode: it refuses nothing",
                "  3: no rule; the nearest: ip=1.2.3.4",
            ]
        );
        (reply.allowed, reply.retry_after_ms) = (false, Some(73_804_437));
        assert!(check(&reply, &hints).starts_with("refused, for 20 h 30 min\n"));
        reply.retry_after_ms = None;
        assert!(check(&reply, &hints).starts_with("refused, for good\n"));
    }

    #[test]
    fn changes_show_what_was_done_by_whom_and_why() {
        let change = |op: &str| LimitChangeReply {
            at_ms: 1_766_222_333_444,
            op: op.to_owned(),
            domain: "shop".parse().unwrap(),
            version: None,
            descriptor: None,
            by: Some("ann".to_owned()),
            reason: None,
        };
        let applied = LimitChangeReply {
            version: Some(3),
            reason: Some("sale".to_owned()),
            ..change("apply")
        };
        let reset = LimitChangeReply {
            descriptor: Some(r"list=a\,b".to_owned()),
            reason: Some("the shop's\u{1b}[2J".to_owned()),
            ..change("reset")
        };
        let mut reply = LimitChangesReply {
            changes: vec![applied, reset],
            left_out: true,
            unanswered: vec![5],
        };
        let text = history(&reply, &PLAIN);
        let lines: Vec<_> = text.lines().map(|line| line.replace('│', " ")).collect();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let rows: Vec<_> = lines.iter().map(|line| words(line)).collect();
        for row in [
            "2025-12-20 09:18:53.444 apply shop 3 - ann sale",
            r"2025-12-20 09:18:53.444 reset shop - list=a\,b ann the shop's\u{1b}[2J",
            "older changes are left out",
            "no answer from shards: 5",
        ] {
            assert!(rows.iter().any(|it| it == row), "{row} in {rows:?}");
        }
        reply = LimitChangesReply::default();
        assert_eq!(history(&reply, &PLAIN), "no changes are listed");
    }

    #[test]
    fn stats_show_the_hits_of_each_rule_and_what_did_not_answer() {
        let mut reply = LimitStatsReply {
            shards: vec![ShardLimitStats {
                counters: 1,
                ..ShardLimitStats::default()
            }],
            rules: vec![RuleHits {
                rule: "shop / ip".to_owned(),
                allowed: 70,
                refused: 12,
            }],
            nodes: vec![NodeCounts {
                node: 2,
                since_ms: 1_766_222_333_444,
            }],
            ..LimitStatsReply::default()
        };
        let text = stats(&reply, &PLAIN);
        assert!(
            text.starts_with("in the memory of the leaders of 1 shard: 1 counter (keys"),
            "{text}"
        );
        assert!(text.contains("hits by rule (node 2 since 2025-12-20 09:18:53.444 UTC):\n"));
        let words = |line: &str| -> Vec<String> {
            let words = line.replace('│', " ");
            words.split_whitespace().map(str::to_owned).collect()
        };
        let has_row = text
            .lines()
            .any(|line| words(line) == ["shop", "/", "ip", "70", "12"]);
        assert!(has_row, "{text}");
        assert!(!text.contains("no answer"));
        reply.unanswered = vec![2, 7];
        reply.nodes_unanswered = vec![3];
        reply.rules.clear();
        let text = stats(&reply, &PLAIN);
        for part in [
            "\nno answer from shards: 2, 7\n",
            "\nno hits by rule (node 2 since 2025-12-20 09:18:53.444 UTC)\n",
            "\nno answer from nodes: 3; their hits are missing",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
