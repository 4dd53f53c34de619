//! The fields of a mapping, each read with an error that names it, its place and its limit.

use super::error::{Position, RULE_ERRORS_MAX, RuleError};
use super::read::{DESCRIPTOR_FIELDS, LIMIT_FIELDS};
use super::yaml::{Kind, Node};

/// The mistakes that were found so far.
#[derive(Debug, Default)]
pub(super) struct Mistakes(pub Vec<RuleError>);

impl Mistakes {
    pub fn add(&mut self, at: Position, field: impl Into<String>, problem: impl Into<String>) {
        if self.0.len() < RULE_ERRORS_MAX {
            self.0.push(RuleError {
                at,
                field: field.into(),
                problem: problem.into(),
            });
        }
    }
}

/// A mapping that is read field by field.
pub(super) struct Fields<'a> {
    pub at: Position,
    /// From the top of the document.
    pub path: String,
    fields: Vec<(&'a str, &'a Node)>,
    /// The fields that are meant by unknown ones.
    misspelt: Vec<String>,
}

impl<'a> Fields<'a> {
    /// Takes a mapping with no fields but the known ones, each at most once. `None`: it is no mapping.
    pub fn read(
        node: &'a Node,
        path: &str,
        known: &[&str],
        mistakes: &mut Mistakes,
    ) -> Option<Self> {
        let Kind::Map(pairs) = &node.kind else {
            let fields = known.join(", ");
            mistakes.add(
                node.at,
                path,
                format!("not a mapping; its fields are {fields}"),
            );
            return None;
        };
        let mut fields = Self {
            at: node.at,
            path: path.to_owned(),
            fields: Vec::new(),
            misspelt: Vec::new(),
        };
        let (merged, own): (Vec<_>, Vec<_>) = pairs.iter().partition(|(key, _)| is_merge(key));
        for (key, value) in own {
            fields.add(key, value, known, mistakes);
        }
        for (_, value) in merged {
            fields.merge(value, known, mistakes);
        }
        Some(fields)
    }

    /// The merge key of YAML 1.1, `<<: *anchor`: the fields of another mapping, but for those that are there already.
    fn merge(&mut self, value: &'a Node, known: &[&str], mistakes: &mut Mistakes) {
        let mappings = match &value.kind {
            Kind::List(mappings) => mappings.as_slice(),
            _ => std::slice::from_ref(value),
        };
        for mapping in mappings {
            let Kind::Map(pairs) = &mapping.kind else {
                mistakes.add(mapping.at, self.of("<<"), "a mapping or a list of mappings");
                continue;
            };
            for (key, value) in pairs {
                let is_there = |(name, _): &(&str, &Node)| key.is_text(name);
                if !self.fields.iter().any(is_there) {
                    self.add(key, value, known, mistakes);
                }
            }
        }
    }

    fn add(&mut self, key: &'a Node, value: &'a Node, known: &[&str], mistakes: &mut Mistakes) {
        let Kind::Scalar { text: name, .. } = &key.kind else {
            mistakes.add(key.at, &*self.path, "the name of a field is a text");
            return;
        };
        if !known.contains(&name.as_str()) {
            let meant = alike(name, known);
            self.misspelt.extend(meant.map(str::to_owned));
            let problem = elsewhere(name, known).unwrap_or_else(|| unknown(meant, known));
            mistakes.add(key.at, self.of(name), problem);
        } else if self.fields.iter().any(|(other, _)| other == name) {
            mistakes.add(key.at, self.of(name), "the field is there twice");
        } else {
            self.fields.push((name, value));
        }
    }

    /// The path of a field.
    pub fn of(&self, name: &str) -> String {
        match self.path.is_empty() {
            true => name.to_owned(),
            false => format!("{}.{name}", self.path),
        }
    }

    /// The value of a field, if it has one: `name:` and `name: ~` have none.
    pub fn get(&self, name: &str) -> Option<&'a Node> {
        let mut fields = self.fields.iter();
        let (_, node) = fields.find(|(other, _)| *other == name)?;
        Some(*node).filter(|node| !node.is_null())
    }

    /// Where a field stands, or the mapping that lacks it.
    pub fn place(&self, name: &str) -> Position {
        self.get(name).map_or(self.at, |node| node.at)
    }

    /// Notes that a field is missing, unless it is there and wrong, or misspelt.
    pub fn missing(&self, name: &str, limit: &str, mistakes: &mut Mistakes) {
        let path = self.of(name);
        let is_wrong = mistakes.0.iter().any(|mistake| mistake.field == path);
        let is_misspelt = self.misspelt.iter().any(|meant| meant == name);
        if !is_wrong && !is_misspelt {
            mistakes.add(self.place(name), path, format!("missing: {limit}"));
        }
    }

    /// A text of at most so many bytes. Numbers are texts too, as they are written. An empty one is none.
    pub fn text(&self, name: &str, bytes_max: usize, mistakes: &mut Mistakes) -> Option<&'a str> {
        let node = self.get(name)?;
        let Kind::Scalar { text, .. } = &node.kind else {
            mistakes.add(
                node.at,
                self.of(name),
                format!("a text of 1 to {bytes_max} bytes"),
            );
            return None;
        };
        if text.len() > bytes_max {
            let problem = format!("{} bytes; at most {bytes_max}", text.len());
            mistakes.add(node.at, self.of(name), problem);
            return None;
        }
        Some(text.as_str()).filter(|text| !text.is_empty())
    }

    /// A whole number: digits, between which `_` may stand.
    pub fn number(&self, name: &str, mistakes: &mut Mistakes) -> Option<u32> {
        let node = self.get(name)?;
        let read = match &node.kind {
            Kind::Scalar {
                text,
                is_plain: true,
            } => whole_number(text),
            _ => None,
        };
        if read.is_none() {
            let problem = format!(
                "{} is not a whole number from 0 to {}",
                shown(node),
                u32::MAX
            );
            mistakes.add(node.at, self.of(name), problem);
        }
        read
    }

    /// `true` or `false`, also as YAML 1.1 spells them; `false` if the field is not there.
    pub fn flag(&self, name: &str, mistakes: &mut Mistakes) -> bool {
        let Some(node) = self.get(name) else {
            return false;
        };
        let read = match &node.kind {
            Kind::Scalar {
                text,
                is_plain: true,
            } => boolean(text),
            _ => None,
        };
        if read.is_none() {
            let problem = format!("{} is neither true nor false", shown(node));
            mistakes.add(node.at, self.of(name), problem);
        }
        read.unwrap_or(false)
    }

    /// One of some names; `options` lists them for the error.
    pub fn choice<T>(
        &self,
        name: &str,
        options: &str,
        parse: impl Fn(&str) -> Option<T>,
        mistakes: &mut Mistakes,
    ) -> Option<T> {
        let node = self.get(name)?;
        let read = match &node.kind {
            Kind::Scalar { text, .. } => parse(text),
            _ => None,
        };
        if read.is_none() {
            let problem = format!("{} is not one of {options}", shown(node));
            mistakes.add(node.at, self.of(name), problem);
        }
        read
    }

    /// The items of a list; none if the field is not there.
    pub fn list(&self, name: &str, mistakes: &mut Mistakes) -> &'a [Node] {
        match self.get(name) {
            None => &[],
            Some(Node {
                kind: Kind::List(items),
                ..
            }) => items,
            Some(node) => {
                mistakes.add(node.at, self.of(name), "not a list");
                &[]
            }
        }
    }
}

fn is_merge(key: &Node) -> bool {
    matches!(&key.kind, Kind::Scalar { text, is_plain: true } if text == "<<")
}

/// The known field that differs in case and separators only.
fn alike<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace(['_', '-'], "");
    let mut known = known.iter().copied();
    known.find(|known| plain(known) == plain(name))
}

/// A field that is known in another place. Lyft's server takes it anywhere, and does not look at it.
fn elsewhere(name: &str, known: &[&str]) -> Option<String> {
    let place = if known == DESCRIPTOR_FIELDS && LIMIT_FIELDS.contains(&name) {
        "in the descriptor's `rate_limit`"
    } else if known == LIMIT_FIELDS && DESCRIPTOR_FIELDS.contains(&name) {
        "in the descriptor, beside `rate_limit`"
    } else {
        return None;
    };
    Some(format!("has no effect here; it belongs {place}"))
}

fn unknown(meant: Option<&str>, known: &[&str]) -> String {
    match meant {
        Some(meant) => format!("an unknown field; `{meant}` is meant"),
        None => format!("an unknown field; known ones are {}", known.join(", ")),
    }
}

fn shown(node: &Node) -> String {
    match &node.kind {
        Kind::Scalar { text, .. } if text.chars().count() <= 40 => format!("`{text}`"),
        Kind::Scalar { .. } => "a long text".to_owned(),
        Kind::List(_) => "a list".to_owned(),
        Kind::Map(_) => "a mapping".to_owned(),
    }
}

/// Without a leading 0, which YAML 1.1 reads as octal and YAML 1.2 does not.
fn whole_number(text: &str) -> Option<u32> {
    let is_digits = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'_');
    let begins =
        text.bytes().next()?.is_ascii_digit() && (text.len() == 1 || !text.starts_with('0'));
    if !is_digits || !begins {
        return None;
    }
    text.replace('_', "").parse().ok()
}

fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" => Some(true),
        "false" | "no" | "off" | "n" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_one_reading() {
        for (text, number) in [
            ("0", Some(0)),
            ("7", Some(7)),
            ("4294967295", Some(u32::MAX)),
            ("1_000_000", Some(1_000_000)),
            ("4294967296", None),
            ("010", None),
            ("0x10", None),
            ("-1", None),
            ("+1", None),
            ("1.0", None),
            ("1e3", None),
            ("_1", None),
            ("", None),
            ("five", None),
        ] {
            assert_eq!(whole_number(text), number, "{text}");
        }
    }

    #[test]
    fn booleans_are_those_of_both_yamls() {
        assert_eq!(boolean("True"), Some(true));
        assert_eq!(boolean("off"), Some(false));
        assert_eq!(boolean("1"), None);
    }
}
