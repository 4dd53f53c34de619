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
use crate::{KeyTooLong, Limit, key};

/// A descriptor of a request.
pub trait Entries {
    /// Its keys and values.
    fn pairs(&self) -> impl Iterator<Item = (&str, &str)>;
}

impl Entries for [(&str, &str)] {
    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.iter().copied()
    }
}

impl<const N: usize> Entries for [(&str, &str); N] {
    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.iter().copied()
    }
}

impl<T: Entries + ?Sized> Entries for &T {
    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        T::pairs(self)
    }
}

/// What the rules say of one descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matched<'r, Key = Vec<u8>> {
    /// No rule counts: it is allowed.
    Nothing,
    /// It is allowed without being counted.
    Unlimited(&'r Rule),
    /// Another rule of this request counts in place of this one: it is allowed without being counted.
    Replaced(&'r Rule),
    Limited {
        rule: &'r Rule,
        /// Of the counter: decides on the shard, too.
        key: Key,
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

/// The steps to the entry of a descriptor. Most have one or two, which take no allocation.
#[derive(Default)]
pub(super) struct Steps<'r> {
    few: [Option<Step<'r>>; 4],
    more: Vec<Step<'r>>,
}

impl<'r> Steps<'r> {
    fn push(&mut self, step: Step<'r>) {
        match self.few.iter_mut().find(|it| it.is_none()) {
            Some(vacant) => *vacant = Some(step),
            None => self.more.push(step),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Step<'r>> {
        self.few.iter().flatten().chain(&self.more)
    }

    pub fn last(&self) -> Option<&Step<'r>> {
        let few = self.few.iter().rev().flatten();
        self.more.last().or_else(|| few.into_iter().next())
    }
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
    /// As many as the descriptor has entries, or `None`.
    pub(super) fn steps(&self, domain: &str, entries: &impl Entries) -> Option<Steps<'_>> {
        let mut level = &self.domains.get(domain)?.top;
        let mut steps = Steps::default();
        for (key, value) in entries.pairs() {
            let step = level.keys.get(key)?.choose(value)?;
            level = &step.entry.next;
            steps.push(step);
        }
        Some(steps)
    }

    /// Where the rule stands that counts for a descriptor, if one does: with the values of the rule, not of the descriptor.
    pub fn path(&self, domain: &str, entries: impl Entries) -> Option<RulePath> {
        let steps = self.steps(domain, &entries)?;
        steps.last()?.entry.rule.as_ref()?;
        let named = steps.iter().zip(entries.pairs());
        let named =
            named.map(|(step, (key, value))| (Box::from(key), step.value(value).map(Box::from)));
        Some(RulePath {
            domain: domain.into(),
            entries: named.collect(),
        })
    }

    /// Appends that path in words. Whether a rule counts.
    pub fn append_path(&self, domain: &str, entries: impl Entries, text: &mut String) -> bool {
        let Some(steps) = self.steps(domain, &entries) else {
            return false;
        };
        let has_rule = steps.last().is_some_and(|last| last.entry.rule.is_some());
        if has_rule {
            let named = steps.iter().zip(entries.pairs());
            let named = named.map(|(step, (key, value))| (key, step.value(value)));
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
        descriptors: impl IntoIterator<Item: Entries, IntoIter: ExactSizeIterator>,
    ) -> Result<Vec<Matched<'_>>, DescriptorTooLong> {
        let descriptors = descriptors.into_iter();
        let mut all = Vec::with_capacity(descriptors.len());
        for (place, entries) in descriptors.enumerate() {
            let matched = self.find(domain, &entries, |rule, limit, steps| {
                let counted = steps.iter().zip(entries.pairs());
                let counted = counted.map(|(step, (key, value))| (key, step.counted(value)));
                let mut key = key::encode(limit.algorithm(), limit.unit(), domain, counted)?;
                if rule.is_exact {
                    key::set_exact(&mut key);
                }
                Ok(key)
            });
            all.push(matched.map_err(|too_long| DescriptorTooLong { place, too_long })?);
        }
        replace(&mut all);
        Ok(all)
    }

    /// The same of descriptors that are not too long, without the keys of their counters.
    pub fn matched(
        &self,
        domain: &str,
        descriptors: impl IntoIterator<Item: Entries>,
    ) -> Vec<Matched<'_, ()>> {
        let descriptors = descriptors.into_iter();
        let matched = descriptors.map(|it| self.find(domain, &it, |_, _, _| Ok(())));
        let mut matched: Vec<_> = matched.map(|it| it.unwrap_or(Matched::Nothing)).collect();
        replace(&mut matched);
        matched
    }

    fn find<Key>(
        &self,
        domain: &str,
        entries: &impl Entries,
        key: impl FnOnce(&Rule, &Limit, &Steps<'_>) -> Result<Key, KeyTooLong>,
    ) -> Result<Matched<'_, Key>, KeyTooLong> {
        let steps = self.steps(domain, entries).unwrap_or_default();
        let Some(rule) = steps.last().and_then(|last| last.entry.rule.as_ref()) else {
            return Ok(Matched::Nothing);
        };
        let Some(limit) = &rule.limit else {
            return Ok(Matched::Unlimited(rule));
        };
        let key = key(rule, limit, &steps)?;
        Ok(Matched::Limited { rule, key })
    }
}

/// Leaves out what others replace. Those that are replaced themselves replace others all the same.
fn replace<Key>(matched: &mut [Matched<'_, Key>]) {
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

impl<'r, Key> Matched<'r, Key> {
    pub fn rule(&self) -> Option<&'r Rule> {
        match self {
            Self::Nothing => None,
            Self::Unlimited(rule) | Self::Replaced(rule) | Self::Limited { rule, .. } => Some(rule),
        }
    }
}
