//! The name under which a descriptor is counted in metrics, as Lyft's ratelimit makes it.

use super::matching::{By, Entries, Step};
use super::rule::{Entry, Level, Rules, write_path};

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
        entries: impl Entries,
        name: &mut String,
    ) -> Option<MetricValues> {
        let steps = self.steps(domain, &entries)?;
        let is_detailed = steps.last()?.entry.rule.as_ref()?.has_detailed_metric;
        let steps = steps.iter().zip(entries.pairs());
        let steps = steps.map(|(step, (key, value))| (*step, key, value));
        Some(append(domain, steps, is_detailed, name))
    }

    /// The path in words and the name of each rule with a limit, but of those whose names have values of requests.
    pub fn metric_names(&self) -> Vec<(String, String)> {
        let mut names = Vec::new();
        for (name, domain) in &self.domains {
            domain.top.add_names(name, &mut Vec::new(), &mut names);
        }
        names
    }
}

/// A step of a descriptor, with its key and value.
type Named<'a> = (Step<'a>, &'a str, &'a str);

impl Level {
    /// `above`: the steps to this list.
    fn add_names<'a>(
        &'a self,
        domain: &str,
        above: &mut Vec<Named<'a>>,
        names: &mut Vec<(String, String)>,
    ) {
        for (key, choices) in &self.keys {
            let values = choices.values.iter();
            let values = values.map(|(value, entry)| (By::Value, &**value, entry));
            let wildcards = choices.wildcards.iter();
            let wildcards = wildcards.map(|(it, entry)| (By::Wildcard(it), it.as_str(), entry));
            let any = choices.any.iter().map(|entry| (By::Key, "", entry));
            for (by, value, entry) in values.chain(wildcards).chain(any) {
                above.push((Step { entry, by }, key, value));
                names.extend(name_of(entry, domain, above));
                entry.next.add_names(domain, above, names);
                above.pop();
            }
        }
    }
}

fn name_of(entry: &Entry, domain: &str, steps: &[Named<'_>]) -> Option<(String, String)> {
    let rule = entry.rule.as_ref().filter(|rule| rule.limit.is_some())?;
    let (mut path, mut name) = (String::new(), String::new());
    let named = steps.iter();
    let named = named.map(|(step, key, value)| (*key, step.value(value)));
    // A `String` takes everything.
    let _ = write_path(domain, named, &mut path);
    let steps = steps.iter().copied();
    let values = append(domain, steps, rule.has_detailed_metric, &mut name);
    (values == MetricValues::OfRules).then_some((path, name))
}

fn append<'a>(
    domain: &str,
    steps: impl Iterator<Item = Named<'a>>,
    is_detailed: bool,
    name: &mut String,
) -> MetricValues {
    let mut values = MetricValues::OfRules;
    name.push_str(domain);
    for (step, key, value) in steps {
        name.push('.');
        name.push_str(key);
        let (shown, of) = shown(&step, value, is_detailed);
        if !shown.is_empty() {
            name.push('_');
            name.push_str(shown);
        }
        if of == MetricValues::OfRequests {
            values = of;
        }
    }
    values
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
