//! What was meant by a check that no rule limits: the nearest rules, or the nearest domains.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nowserving_client::limits::{CheckReply, Descriptor};
use nowserving_client::{Admin, LineName};
use nowserving_limit::{RulePath, Rules};

use nowserving_terminal::nearest::{Names, names_for};
use nowserving_terminal::output::Output;

/// The look-up must not delay the answer, and a caller without operators' rights gets none.
const PATIENCE: Duration = Duration::from_secs(1);

/// For people: names that exist.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Hints {
    /// If the domain has no rules: other domains.
    pub domain: Option<Names>,
    /// By the place of a descriptor that no rule limits: descriptors of the same domain that one does.
    pub rules: BTreeMap<usize, Names>,
}

/// What is nearest to what an answer says no rule for. Nothing if the rules are not told.
pub(super) async fn hints(
    admin: &Admin,
    domain: &LineName,
    descriptors: &[Descriptor],
    checked: &CheckReply,
    output: &Output,
) -> Hints {
    let has_unmatched = checked.descriptors.iter().any(|it| it.unmatched);
    if output.json || !has_unmatched {
        return Hints::default();
    }
    let domain_of_rules = (!checked.unmatched).then_some(domain);
    let shown = tokio::time::timeout(PATIENCE, admin.show_limits(domain_of_rules)).await;
    let Ok(Ok(shown)) = shown else {
        return Hints::default();
    };
    if checked.unmatched {
        let names = shown.domains.iter().map(|it| it.domain.to_string());
        return Hints {
            domain: Some(names_for(domain.as_str(), names.collect())),
            rules: BTreeMap::new(),
        };
    }
    let text = shown.domains.first().and_then(|it| it.text.as_deref());
    let rules = text.and_then(|text| Rules::parse(text).ok());
    let listed = rules.iter().flat_map(Rules::rules);
    let paths: Vec<_> = listed.map(|(path, _)| path).collect();
    let unmatched = checked.descriptors.iter().zip(descriptors).enumerate();
    let unmatched = unmatched.filter(|(_, (said, _))| said.unmatched);
    Hints {
        domain: None,
        rules: unmatched
            .map(|(nth, (_, descriptor))| (nth, near(descriptor, &paths)))
            .collect(),
    }
}

/// Descriptors that a rule limits, as they are written on the command line.
fn near(descriptor: &Descriptor, paths: &[RulePath]) -> Names {
    let entries = descriptor.iter();
    let wanted = entries.map(|entry| pair(&entry.key, &entry.value));
    let limited: BTreeSet<String> = paths.iter().map(|path| like(descriptor, path)).collect();
    let wanted = wanted.collect::<Vec<_>>().join(",");
    names_for(&wanted, limited.into_iter().collect())
}

/// A descriptor of that rule: with its values, and where it has none with those of the other descriptor.
fn like(descriptor: &Descriptor, path: &RulePath) -> String {
    let entries = path.entries.iter().enumerate();
    let entries = entries.map(|(nth, (key, value))| {
        let own = descriptor.get(nth).map(|entry| entry.value.as_str());
        pair(key, value.as_deref().or(own).unwrap_or("…"))
    });
    entries.collect::<Vec<_>>().join(",")
}

fn pair(key: &str, value: &str) -> String {
    let value = value.replace('\\', r"\\").replace(',', r"\,");
    format!("{key}={value}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_client::limits::Entry;

    use super::*;

    #[test]
    fn the_nearest_rule_is_written_as_a_descriptor() {
        let text = "
domain: shop
descriptors:
  - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 5}}
  - key: plan
    value: free
    descriptors:
      - {key: path, value: /search*, rate_limit: {unit: minute, requests_per_unit: 5}}
";
        let rules = Rules::parse(text).unwrap();
        let paths: Vec<_> = rules.rules().into_iter().map(|(path, _)| path).collect();
        for (descriptor, expected) in [
            (
                vec![Entry::new("remote_adress", "1.2.3.4")],
                "the nearest: remote_address=1.2.3.4",
            ),
            (
                vec![Entry::new("plan", "free")],
                "the nearest: plan=free,path=/search*",
            ),
            (
                vec![Entry::new("plan", "paid"), Entry::new("path", "/search/x")],
                "the nearest: plan=free,path=/search*",
            ),
            (
                vec![Entry::new("zzz", "1,2")],
                r"there are: plan=free,path=/search*, remote_address=1\,2",
            ),
        ] {
            assert_eq!(near(&descriptor, &paths).to_string(), expected);
        }
    }
}
