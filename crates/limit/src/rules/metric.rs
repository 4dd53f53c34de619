//! The name under which a descriptor is counted in metrics, as Lyft's ratelimit makes it.

use super::matching::{By, Entries, Step};
use super::rule::Rules;

impl Rules {
    /// `domain.key_value.key` of the rule that matches: with the rule's values, and with the request's where
    /// `detailed_metric` or `value_to_metric` says so. Values that share a threshold are never told apart. `None` if
    /// no rule matches.
    pub fn metric_name(&self, domain: &str, entries: Entries<'_>) -> Option<String> {
        let steps = self.steps(domain, entries)?;
        let is_detailed = steps.last()?.entry.rule.as_ref()?.has_detailed_metric;
        let mut name = domain.to_owned();
        for (step, (key, value)) in steps.iter().zip(entries) {
            name.push('.');
            name.push_str(key);
            let shown = shown(step, value, is_detailed);
            if !shown.is_empty() {
                name.push('_');
                name.push_str(shown);
            }
        }
        Some(name)
    }
}

fn shown<'a>(step: &Step<'a>, value: &'a str, is_detailed: bool) -> &'a str {
    let wants_value = is_detailed || step.entry.value_to_metric;
    match step.by {
        By::Value => value,
        By::Wildcard(wildcard) if step.entry.share_threshold || !wants_value => wildcard.as_str(),
        By::Key if !wants_value => "",
        _ => value,
    }
}
