//! Which rule counts for a descriptor, as Lyft's ratelimit finds it (`GetLimit` in `src/config/config_impl.go`,
//! `constructLimitsToCheck` in `src/service/ratelimit.go`).
//!
//! The entries of a descriptor are followed from the top of its domain. At each step the entry of the list with the
//! same key and value is taken; else the first in the file with a wildcard that matches; else the one with the key and
//! no value. There is no way back: if the entry that was taken leads nowhere, no other one is tried. Only a rule at
//! the last entry counts: a descriptor of two entries never counts against the rule of its first.
//!
//! Then rules that other rules of the request replace are left out, and unlimited ones.
//!
//! (One difference: Lyft's server joins key and value with `_`, so that key `a_b` without a value and key `a` with
//! value `b` are the same to it. Here they are not.)

use super::rule::{Choices, Entry, Rule, RulePath, Rules, write_path};
use super::wildcard::Wildcard;
use crate::{KeyTooLong, key};

/// A descriptor of a request: keys and values.
pub type Entries<'a> = &'a [(&'a str, &'a str)];

/// What the rules say of one descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matched<'r> {
    /// No rule counts: it is allowed.
    Nothing,
    /// It is allowed without being counted.
    Unlimited(&'r Rule),
    /// Another rule of this request counts in place of this one: it is allowed without being counted.
    Replaced(&'r Rule),
    Limited {
        rule: &'r Rule,
        /// Of the counter: decides on the shard, too.
        key: Vec<u8>,
    },
}

/// A descriptor of a request is too long to be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("descriptors[{place}]: {too_long}")]
pub struct DescriptorTooLong {
    /// In the request, from 0.
    pub place: usize,
    pub too_long: KeyTooLong,
}

/// One step into the rules.
#[derive(Clone, Copy)]
pub(super) struct Step<'r> {
    pub entry: &'r Entry,
    pub by: By<'r>,
}

#[derive(Clone, Copy)]
pub(super) enum By<'r> {
    Value,
    Wildcard(&'r Wildcard),
    Key,
}

impl Choices {
    fn choose(&self, value: &str) -> Option<Step<'_>> {
        if let Some(entry) = self.values.get(value) {
            return Some(Step {
                entry,
                by: By::Value,
            });
        }
        let mut wildcards = self.wildcards.iter();
        if let Some((wildcard, entry)) = wildcards.find(|(wildcard, _)| wildcard.matches(value)) {
            let by = By::Wildcard(wildcard);
            return Some(Step { entry, by });
        }
        let entry = self.any.as_ref()?;
        Some(Step { entry, by: By::Key })
    }
}

impl Step<'_> {
    /// The value that the rule names.
    pub(super) fn value<'a>(&'a self, value: &'a str) -> Option<&'a str> {
        match self.by {
            By::Value => Some(value),
            By::Wildcard(wildcard) => Some(wildcard.as_str()),
            By::Key => None,
        }
    }

    /// The value by which the counter is found: all that match a wildcard with a shared threshold have one.
    fn counted<'a>(&'a self, value: &'a str) -> &'a str {
        match self.by {
            By::Wildcard(wildcard) if self.entry.share_threshold => wildcard.as_str(),
            _ => value,
        }
    }
}

impl Rules {
    /// The steps to the entry of a descriptor; as many as it has entries, or `None`.
    pub(super) fn steps(&self, domain: &str, entries: Entries<'_>) -> Option<Vec<Step<'_>>> {
        let mut level = &self.domains.get(domain)?.top;
        let mut steps = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let step = level.keys.get(*key)?.choose(value)?;
            level = &step.entry.next;
            steps.push(step);
        }
        Some(steps)
    }

    /// Where the rule stands that counts for a descriptor, if one does: with the values of the rule, not of the descriptor.
    pub fn path(&self, domain: &str, entries: Entries<'_>) -> Option<RulePath> {
        let steps = self.steps(domain, entries)?;
        steps.last()?.entry.rule.as_ref()?;
        let named = steps.iter().zip(entries);
        let named =
            named.map(|(step, (key, value))| (Box::from(*key), step.value(value).map(Box::from)));
        Some(RulePath {
            domain: domain.into(),
            entries: named.collect(),
        })
    }

    /// Appends that path in words. Whether a rule counts.
    pub fn append_path(&self, domain: &str, entries: Entries<'_>, text: &mut String) -> bool {
        let Some(steps) = self.steps(domain, entries) else {
            return false;
        };
        let has_rule = steps.last().is_some_and(|last| last.entry.rule.is_some());
        if has_rule {
            let named = steps.iter().zip(entries);
            let named = named.map(|(step, (key, value))| (*key, step.value(value)));
            // A `String` takes everything.
            let _ = write_path(domain, named, text);
        }
        has_rule
    }

    /// What the rules say of each descriptor of a request, in the same order.
    ///
    /// # Errors
    ///
    /// [`DescriptorTooLong`] for one that a rule matches.
    pub fn resolve(
        &self,
        domain: &str,
        descriptors: &[Entries<'_>],
    ) -> Result<Vec<Matched<'_>>, DescriptorTooLong> {
        let matched = descriptors.iter().enumerate().map(|(place, entries)| {
            let matched = self.find(domain, entries);
            matched.map_err(|too_long| DescriptorTooLong { place, too_long })
        });
        let mut matched = matched.collect::<Result<Vec<_>, _>>()?;
        replace(&mut matched);
        Ok(matched)
    }

    fn find(&self, domain: &str, entries: Entries<'_>) -> Result<Matched<'_>, KeyTooLong> {
        let steps = self.steps(domain, entries).unwrap_or_default();
        let Some(rule) = steps.last().and_then(|last| last.entry.rule.as_ref()) else {
            return Ok(Matched::Nothing);
        };
        let Some(limit) = &rule.limit else {
            return Ok(Matched::Unlimited(rule));
        };
        let counted = steps.iter().zip(entries);
        let counted = counted.map(|(step, (key, value))| (*key, step.counted(value)));
        let mut key = key::encode(limit.algorithm(), limit.unit(), domain, counted)?;
        if rule.is_exact {
            key::set_exact(&mut key);
        }
        Ok(Matched::Limited { rule, key })
    }
}

/// Leaves out what others replace. Those that are replaced themselves replace others all the same.
fn replace(matched: &mut [Matched<'_>]) {
    let replaced: Vec<&str> = matched
        .iter()
        .filter_map(Matched::rule)
        .flat_map(|rule| rule.replaces.iter().map(|name| &**name))
        .collect();
    if replaced.is_empty() {
        return;
    }
    for matched in matched {
        if let Matched::Limited { rule, .. } = matched
            && let Some(name) = &rule.name
            && replaced.contains(&&**name)
        {
            *matched = Matched::Replaced(rule);
        }
    }
}

impl<'r> Matched<'r> {
    pub fn rule(&self) -> Option<&'r Rule> {
        match self {
            Self::Nothing => None,
            Self::Unlimited(rule) | Self::Replaced(rule) | Self::Limited { rule, .. } => Some(rule),
        }
    }
}
