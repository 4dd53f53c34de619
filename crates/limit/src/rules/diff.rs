//! What would change if rules were replaced by others.

use std::collections::BTreeMap;
use std::fmt;

use super::rule::{Entry, RulePath, Rules};

/// One entry that differs, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    Added {
        path: RulePath,
        is: String,
    },
    Removed {
        path: RulePath,
        was: String,
    },
    Changed {
        path: RulePath,
        was: String,
        is: String,
    },
}

impl Rules {
    /// The differences to newer rules, by path: entries that have no limit of their own are compared too, as they keep
    /// descriptors from other rules. The order of wildcards counts.
    pub fn diff(&self, newer: &Self) -> Vec<Difference> {
        let (before, mut after) = (self.described(), newer.described());
        let mut all = Vec::new();
        for (path, was) in before {
            match after.remove(&path) {
                None => all.push(Difference::Removed { path, was }),
                Some(is) if is != was => all.push(Difference::Changed { path, was, is }),
                Some(_) => {}
            }
        }
        let added = after.into_iter();
        all.extend(added.map(|(path, is)| Difference::Added { path, is }));
        all.sort_by(|one, other| one.path().cmp(other.path()));
        all
    }

    fn described(&self) -> BTreeMap<RulePath, String> {
        let mut all = BTreeMap::new();
        for (name, domain) in &self.domains {
            if domain.top.keys.is_empty() {
                let path = RulePath {
                    domain: name.clone(),
                    entries: Vec::new(),
                };
                all.insert(path, "no rules".to_owned());
            }
        }
        for listed in self.entries() {
            let text = described(listed.entry, listed.wildcard);
            all.insert(listed.path, text);
        }
        all
    }
}

fn described(entry: &Entry, wildcard: Option<(usize, usize)>) -> String {
    let mut text = match &entry.rule {
        Some(rule) => rule.to_string(),
        None => "no limit of its own".to_owned(),
    };
    if entry.share_threshold {
        text.push_str(", shared threshold");
    }
    if entry.value_to_metric {
        text.push_str(", value in metric");
    }
    match wildcard {
        Some((nth, count)) if count > 1 => {
            text.push_str(&format!(", wildcard {nth} of {count}"));
        }
        _ => {}
    }
    text
}

impl Difference {
    pub fn path(&self) -> &RulePath {
        match self {
            Self::Added { path, .. } | Self::Removed { path, .. } | Self::Changed { path, .. } => {
                path
            }
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added { path, is } => write!(out, "+ {path}: {is}"),
            Self::Removed { path, was } => write!(out, "- {path}: {was}"),
            Self::Changed { path, was, is } => write!(out, "~ {path}: {was} -> {is}"),
        }
    }
}
