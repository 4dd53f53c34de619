//! Rules as they are matched: a tree by keys and values of descriptors.

use std::collections::BTreeMap;
use std::fmt;

use super::error::Position;
use super::wildcard::Wildcard;
use crate::{Limit, WhenFull};

/// The longest domain, in bytes; it has at least one.
pub const DOMAIN_BYTES_MAX: usize = 128;
/// The longest key of a rule, in bytes; it has at least one.
pub const RULE_KEY_BYTES_MAX: usize = 256;
/// The longest value of a rule, in bytes.
pub const RULE_VALUE_BYTES_MAX: usize = 1_024;
/// The longest name of a rule, in bytes.
pub const RULE_NAME_BYTES_MAX: usize = 128;

/// The rules of all domains.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    pub(super) domains: BTreeMap<Box<str>, Domain>,
}

#[derive(Debug, Clone)]
pub(super) struct Domain {
    pub at: Position,
    pub top: Level,
}

/// One list of `descriptors`, by key.
#[derive(Debug, Clone, Default)]
pub(super) struct Level {
    pub keys: BTreeMap<Box<str>, Choices>,
}

/// The entries of a list that have the same key, by what they match: the first that does counts.
#[derive(Debug, Clone, Default)]
pub(super) struct Choices {
    pub values: BTreeMap<Box<str>, Entry>,
    /// In the order of the file.
    pub wildcards: Vec<(Wildcard, Entry)>,
    /// The entry without a value.
    pub any: Option<Entry>,
}

/// One entry of a list of `descriptors`.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub at: Position,
    pub rule: Option<Rule>,
    pub next: Level,
    pub share_threshold: bool,
    pub value_to_metric: bool,
}

/// A `rate_limit` with what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// `None`: unlimited.
    pub limit: Option<Limit>,
    /// By which other rules can replace it.
    pub name: Option<Box<str>>,
    /// The names of the rules that do not count for a request if this one does.
    pub replaces: Vec<Box<str>>,
    /// It answers and never refuses.
    pub is_shadow: bool,
    /// It refuses only if all limits of the request in quota mode do.
    pub is_quota: bool,
    /// Its metrics are kept for each descriptor.
    pub has_detailed_metric: bool,
    /// Each hit goes through the log before it is answered.
    pub is_exact: bool,
    pub when_full: WhenFull,
}

/// Where a rule stands: its domain, and the keys and values from the top.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RulePath {
    pub domain: Box<str>,
    pub entries: Vec<(Box<str>, Option<Box<str>>)>,
}

impl fmt::Display for RulePath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.iter();
        write_path(
            &self.domain,
            entries.map(|(key, value)| (&**key, value.as_deref())),
            out,
        )
    }
}

pub(super) fn write_path<'a>(
    domain: &str,
    entries: impl Iterator<Item = (&'a str, Option<&'a str>)>,
    out: &mut impl fmt::Write,
) -> fmt::Result {
    out.write_str(domain)?;
    for (key, value) in entries {
        write!(out, " / {key}")?;
        if let Some(value) = value {
            write!(out, "={value}")?;
        }
    }
    Ok(())
}

/// In words, as `limit show` and a comparison have it.
impl fmt::Display for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.limit {
            None => out.write_str("unlimited")?,
            Some(limit) => describe(limit, out)?,
        }
        let flags = [
            (self.is_exact, ", exact"),
            (self.when_full == WhenFull::Deny, ", refused when full"),
            (self.is_shadow, ", shadow mode"),
            (self.is_quota, ", quota mode"),
            (self.has_detailed_metric, ", detailed metric"),
        ];
        for (_, text) in flags.iter().filter(|(is_set, _)| *is_set) {
            out.write_str(text)?;
        }
        if let Some(name) = &self.name {
            write!(out, ", named {name}")?;
        }
        if !self.replaces.is_empty() {
            write!(out, ", replaces {}", self.replaces.join(" "))?;
        }
        Ok(())
    }
}

fn describe(limit: &Limit, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    let parts = limit.parts();
    let (unit, algorithm) = (parts.unit.name(), parts.algorithm.name());
    write!(out, "{} per {unit}, {algorithm}", parts.requests_per_unit)?;
    if let Some(burst) = parts.burst {
        write!(out, ", burst {burst}")?;
    }
    if let Some(zone) = &parts.zone {
        write!(out, ", zone {}", zone.name())?;
    }
    Ok(())
}

impl Rules {
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.domains.keys().map(|name| &**name)
    }

    /// All rules with their paths, by domain and key; of a key by value, then wildcards in their order.
    pub fn rules(&self) -> Vec<(RulePath, &Rule)> {
        let entries = self.entries().into_iter();
        entries
            .filter_map(|listed| Some((listed.path, listed.entry.rule.as_ref()?)))
            .collect()
    }

    /// What to know of rules that do not what they seem to say, a line each.
    pub fn notes(&self) -> Vec<String> {
        let rules = self.rules().into_iter();
        let notes = rules.filter_map(|(path, rule)| {
            let burst = rule.limit.as_ref()?.burst_for_whole_rate()?;
            Some(format!(
                "{path}: {rule}: lets less through than its rate, as requests come some milliseconds apart; burst {burst} is enough for all"
            ))
        });
        notes.collect()
    }

    pub(super) fn entries(&self) -> Vec<Listed<'_>> {
        let mut all = Vec::new();
        for (name, domain) in &self.domains {
            let mut path = RulePath {
                domain: name.clone(),
                entries: Vec::new(),
            };
            domain.top.list(&mut path, &mut all);
        }
        all
    }
}

/// An entry and where it stands.
pub(super) struct Listed<'a> {
    pub path: RulePath,
    pub entry: &'a Entry,
    /// Of a wildcard: its place among those of its key, from 1, and how many these are.
    pub wildcard: Option<(usize, usize)>,
}

impl Level {
    fn list<'a>(&'a self, path: &mut RulePath, all: &mut Vec<Listed<'a>>) {
        for (key, choices) in &self.keys {
            let values = choices.values.iter();
            let values = values.map(|(value, entry)| (Some(value.clone()), entry, None));
            let count = choices.wildcards.len();
            let wildcards = (1..).zip(&choices.wildcards);
            let wildcards = wildcards.map(|(nth, (wildcard, entry))| {
                let value = Some(Box::from(wildcard.as_str()));
                (value, entry, Some((nth, count)))
            });
            let any = choices.any.iter().map(|entry| (None, entry, None));
            for (value, entry, wildcard) in values.chain(wildcards).chain(any) {
                path.entries.push((key.clone(), value));
                all.push(Listed {
                    path: path.clone(),
                    entry,
                    wildcard,
                });
                entry.next.list(path, all);
                path.entries.pop();
            }
        }
    }

    /// Adds an entry; if there is one with the same key and value already, returns where that stands.
    pub fn add(&mut self, key: &str, value: Option<&str>, entry: Entry) -> Result<(), Position> {
        let choices = self.keys.entry(key.into()).or_default();
        let wildcard = value.and_then(Wildcard::new);
        match (value, wildcard) {
            (_, Some(wildcard)) => {
                let mut others = choices.wildcards.iter();
                if let Some((_, other)) = others.find(|(other, _)| *other == wildcard) {
                    return Err(other.at);
                }
                choices.wildcards.push((wildcard, entry));
            }
            (Some(value), None) => match choices.values.get(value) {
                Some(other) => return Err(other.at),
                None => {
                    choices.values.insert(value.into(), entry);
                }
            },
            (None, None) => match &choices.any {
                Some(other) => return Err(other.at),
                None => choices.any = Some(entry),
            },
        }
        Ok(())
    }
}
