//! Reads rules in the YAML of Lyft's ratelimit, and what is ours beside it.
//!
//! Every field of Lyft's files is known. `metadata` may be anything and has no effect, nor has the `name` of a domain or a
//! descriptor: Lyft's server takes it there, and looks at that of a `rate_limit` alone. In `rate_limit` there are
//! besides: `algorithm`, `burst`, `zone`, `exact` and `when_full`.
//!
//! Stricter than Lyft's server: a field in a place where it would have no effect, a field that is there twice, a
//! `rate_limit` without `requests_per_unit`, and numbers in quotes are errors. A text may have several documents, each
//! with a domain of its own; a domain must be in one document.

use nowserving_calendar::Zone;

use super::error::{RuleError, RuleErrors};
use super::fields::{Fields, Mistakes};
use super::foreign::foreign;
use super::rule::{
    DOMAIN_BYTES_MAX, Domain, Entry, Level, RULE_KEY_BYTES_MAX, RULE_NAME_BYTES_MAX,
    RULE_VALUE_BYTES_MAX, Rule, Rules,
};
use super::yaml::{Node, documents};
use crate::{Algorithm, Limit, LimitParts, Unit, WhenFull};

const TOP_FIELDS: [&str; 3] = ["domain", "descriptors", "name"];
pub(super) const DESCRIPTOR_FIELDS: [&str; 11] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
    "name",
];
pub(super) const LIMIT_FIELDS: [&str; 10] = [
    "unit",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "algorithm",
    "burst",
    "zone",
    "exact",
    "when_full",
];
/// What has no meaning without a limit. `requests_per_unit` has none either; Lyft's server ignores it.
const NOT_UNLIMITED: [&str; 6] = ["unit", "algorithm", "burst", "zone", "exact", "when_full"];
const UNITS: &str = "second, minute, hour, day, week, month, year";
const ALGORITHMS: &str =
    "fixed_window, sliding_window_log, sliding_window_counter, token_bucket, leaking_bucket";

impl Rules {
    /// Reads a text of rules.
    ///
    /// # Errors
    ///
    /// All mistakes, each with its place and its field; of a text that is no YAML only the first one.
    pub fn parse(text: &str) -> Result<Self, RuleErrors> {
        let mut rules = Self::default();
        rules.add(text)?;
        Ok(rules)
    }

    /// Adds the domains of another text.
    ///
    /// # Errors
    ///
    /// As [`Rules::parse`], and a domain that is there already. Nothing is added then.
    pub fn add(&mut self, text: &str) -> Result<(), RuleErrors> {
        let mut mistakes = Mistakes::default();
        let mut read = self.clone();
        for document in &documents(text)? {
            read.add_document(document, &mut mistakes);
        }
        if !mistakes.0.is_empty() {
            mistakes.0.sort_by_key(|mistake: &RuleError| mistake.at);
            return Err(RuleErrors(mistakes.0));
        }
        *self = read;
        Ok(())
    }

    fn add_document(&mut self, document: &Node, mistakes: &mut Mistakes) {
        if let Some((at, problem)) = foreign(document) {
            return mistakes.add(at, "kind", problem);
        }
        let Some(fields) = Fields::read(document, "", &TOP_FIELDS, mistakes) else {
            return;
        };
        fields.text("name", RULE_NAME_BYTES_MAX, mistakes);
        let top = descriptors(&fields, mistakes);
        let Some(name) = fields.text("domain", DOMAIN_BYTES_MAX, mistakes) else {
            fields.missing("domain", "a text that is not empty", mistakes);
            return;
        };
        let at = fields.place("domain");
        match self.domains.get(name) {
            Some(other) => {
                let problem = format!(
                    "the domain `{name}` is there twice, first in line {}",
                    other.at.line
                );
                mistakes.add(at, "domain", problem);
            }
            None => {
                self.domains.insert(name.into(), Domain { at, top });
            }
        }
    }
}

fn descriptors(fields: &Fields<'_>, mistakes: &mut Mistakes) -> Level {
    let mut level = Level::default();
    for (nth, node) in fields.list("descriptors", mistakes).iter().enumerate() {
        let path = format!("{}[{nth}]", fields.of("descriptors"));
        if let Some(fields) = Fields::read(node, &path, &DESCRIPTOR_FIELDS, mistakes) {
            add_descriptor(&mut level, &fields, mistakes);
        }
    }
    level
}

fn add_descriptor(level: &mut Level, fields: &Fields<'_>, mistakes: &mut Mistakes) {
    let key = fields.text("key", RULE_KEY_BYTES_MAX, mistakes);
    let value = fields.text("value", RULE_VALUE_BYTES_MAX, mistakes);
    fields.text("name", RULE_NAME_BYTES_MAX, mistakes);
    let entry = entry(fields, value, mistakes);
    let Some(key) = key else {
        fields.missing("key", "a text that is not empty", mistakes);
        return;
    };
    if let Err(first) = level.add(key, value, entry) {
        let value = value.map_or(String::new(), |value| format!(" with value `{value}`"));
        let problem = format!(
            "key `{key}`{value} is there twice, first in line {}",
            first.line
        );
        mistakes.add(fields.place("key"), fields.of("key"), problem);
    }
}

fn entry(fields: &Fields<'_>, value: Option<&str>, mistakes: &mut Mistakes) -> Entry {
    let share_threshold = fields.flag("share_threshold", mistakes);
    if share_threshold && !value.is_some_and(|value| value.contains('*')) {
        let at = fields.place("share_threshold");
        mistakes.add(
            at,
            fields.of("share_threshold"),
            "only with a value that has a `*`",
        );
    }
    Entry {
        at: fields.at,
        rule: rule(fields, mistakes),
        next: descriptors(fields, mistakes),
        share_threshold,
        value_to_metric: fields.flag("value_to_metric", mistakes),
    }
}

fn rule(descriptor: &Fields<'_>, mistakes: &mut Mistakes) -> Option<Rule> {
    let [is_shadow, is_quota, has_detailed_metric] =
        ["shadow_mode", "quota_mode", "detailed_metric"]
            .map(|name| descriptor.flag(name, mistakes));
    let node = descriptor.get("rate_limit")?;
    let path = descriptor.of("rate_limit");
    let fields = Fields::read(node, &path, &LIMIT_FIELDS, mistakes)?;
    let name = fields.text("name", RULE_NAME_BYTES_MAX, mistakes);
    let is_exact = fields.flag("exact", mistakes);
    let when_full = |text: &str| match text.to_ascii_lowercase().as_str() {
        "allow" => Some(WhenFull::Allow),
        "deny" => Some(WhenFull::Deny),
        _ => None,
    };
    let when_full = fields.choice("when_full", "allow, deny", when_full, mistakes);
    Some(Rule {
        replaces: replaces(&fields, name, mistakes),
        limit: limit(&fields, mistakes),
        name: name.map(Box::from),
        is_shadow,
        is_quota,
        has_detailed_metric,
        is_exact,
        // An exact limit that has no counter must not let everything pass.
        when_full: when_full.unwrap_or(match is_exact {
            true => WhenFull::Deny,
            false => WhenFull::Allow,
        }),
    })
}

/// `None` if it is unlimited, or wrong.
fn limit(fields: &Fields<'_>, mistakes: &mut Mistakes) -> Option<Limit> {
    let requests_per_unit = fields.number("requests_per_unit", mistakes);
    if fields.flag("unlimited", mistakes) {
        for name in NOT_UNLIMITED
            .iter()
            .filter(|name| fields.get(name).is_some())
        {
            mistakes.add(fields.place(name), fields.of(name), "not with unlimited");
        }
        return None;
    }
    let unit = fields.choice("unit", UNITS, Unit::parse, mistakes);
    let algorithm = fields.choice("algorithm", ALGORITHMS, Algorithm::parse, mistakes);
    let burst = fields.number("burst", mistakes);
    let zone = zone(fields, mistakes);
    if unit.is_none() {
        fields.missing("unit", &format!("one of {UNITS}"), mistakes);
    }
    if requests_per_unit.is_none() {
        fields.missing(
            "requests_per_unit",
            "a whole number from 0 to 4294967295",
            mistakes,
        );
    }
    let parts = LimitParts {
        algorithm: algorithm.unwrap_or_default(),
        unit: unit?,
        requests_per_unit: requests_per_unit?,
        burst,
        zone,
    };
    let limit = Limit::new(parts);
    let limit =
        limit.map_err(|bad| mistakes.add(fields.place(bad.field), fields.of(bad.field), bad.limit));
    limit.ok()
}

fn zone(fields: &Fields<'_>, mistakes: &mut Mistakes) -> Option<Zone> {
    let parse = Zone::get;
    let options = "the time zones of the IANA database, as Asia/Taipei";
    fields.choice("zone", options, parse, mistakes)
}

fn replaces(fields: &Fields<'_>, own: Option<&str>, mistakes: &mut Mistakes) -> Vec<Box<str>> {
    let mut names = Vec::new();
    for (nth, node) in fields.list("replaces", mistakes).iter().enumerate() {
        let path = format!("{}[{nth}]", fields.of("replaces"));
        let Some(fields) = Fields::read(node, &path, &["name"], mistakes) else {
            continue;
        };
        match fields.text("name", RULE_NAME_BYTES_MAX, mistakes) {
            None => fields.missing("name", "the name of another rule", mistakes),
            Some(name) if Some(name) == own => {
                mistakes.add(
                    fields.place("name"),
                    fields.of("name"),
                    "a rule cannot replace itself",
                );
            }
            Some(name) => names.push(name.into()),
        }
    }
    names
}
