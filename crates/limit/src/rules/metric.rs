//! The name under which a descriptor is counted in metrics, as Lyft's ratelimit makes it.

use super::matching::{By, Entries, Step};
use super::rule::Rules;

/// Which values the name of a metric has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricValues {
    /// Those of rules: there are as many names as rules.
    OfRules,
    /// Those of requests, too: clients choose how many names there are.
    OfRequests,
}

impl Rules {
    /// Appends `domain.key_value.key` of the rule that matches: with the rule's values, and with the request's where
    /// `detailed_metric` or `value_to_metric` says so. Values that share a threshold are never told apart. `None`, and
    /// nothing is appended, if no rule matches.
    pub fn metric_name(
        &self,
        domain: &str,
        entries: Entries<'_>,
        name: &mut String,
    ) -> Option<MetricValues> {
        let steps = self.steps(domain, entries)?;
        let is_detailed = steps.last()?.entry.rule.as_ref()?.has_detailed_metric;
        let mut values = MetricValues::OfRules;
        name.push_str(domain);
        for (step, (key, value)) in steps.iter().zip(entries) {
            name.push('.');
            name.push_str(key);
            let (shown, of) = shown(step, value, is_detailed);
            if !shown.is_empty() {
                name.push('_');
                name.push_str(shown);
            }
            if of == MetricValues::OfRequests {
                values = of;
            }
        }
        Some(values)
    }
}

fn shown<'a>(step: &Step<'a>, value: &'a str, is_detailed: bool) -> (&'a str, MetricValues) {
    let wants_value = is_detailed || step.entry.value_to_metric;
    match step.by {
        By::Value => (value, MetricValues::OfRules),
        By::Wildcard(wildcard) if step.entry.share_threshold || !wants_value => {
            (wildcard.as_str(), MetricValues::OfRules)
        }
        By::Key if !wants_value => ("", MetricValues::OfRules),
        By::Wildcard(_) | By::Key => (value, MetricValues::OfRequests),
    }
}
