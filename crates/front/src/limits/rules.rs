//! The rules of rate limits that a node knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use nowserving_limit::Rules;
use nowserving_line::LineName;
use nowserving_protocol::error::ApiError;
use nowserving_protocol::limits::RULES_BYTES_MAX;
use nowserving_shard::limits::{DomainRules, RuleTexts};

use super::show::{first_lines, shortened};

/// The most bytes of JSON that the lines of an `apply` have in its answer: what changes, and the notes.
const CHANGES_BYTES_MAX: usize = 32 << 10;
const NOTES_BYTES_MAX: usize = 16 << 10;
/// And those of its mistakes.
const MISTAKES_BYTES_MAX: usize = 32 << 10;

/// The rules of all domains.
#[derive(Debug, Default)]
pub struct KnownRules {
    pub domains: BTreeMap<LineName, Arc<KnownDomain>>,
    /// Of the newest change.
    pub version: u64,
}

impl KnownRules {
    /// What these texts say. Domains that have not changed since `before` are not read again.
    pub fn of(
        texts: &RuleTexts,
        before: Option<&KnownRules>,
        mut read: impl FnMut(&LineName, &str) -> Rules,
    ) -> KnownRules {
        let domains = texts.domains().map(|(domain, of)| {
            let known = before.and_then(|before| before.domains.get(domain));
            let known = known.filter(|known| known.of.version == of.version);
            let known = known.cloned().unwrap_or_else(|| {
                Arc::new(KnownDomain {
                    of: of.clone(),
                    rules: read(domain, &of.text),
                })
            });
            (domain.clone(), known)
        });
        KnownRules {
            domains: domains.collect(),
            version: texts.version(),
        }
    }
}

/// Those of one.
#[derive(Debug)]
pub struct KnownDomain {
    pub of: DomainRules,
    pub rules: Rules,
}

/// Reads a text with the rules of one domain.
///
/// # Errors
/// `bad_request` with the first mistakes, each with its line and column.
pub fn read_one(text: &str) -> Result<(LineName, Rules), ApiError> {
    let read = Rules::parse_one(text, RULES_BYTES_MAX, str::parse::<LineName>);
    read.map_err(|errors| {
        let message = format!("rules: {errors}");
        ApiError::bad_request(shortened(message, MISTAKES_BYTES_MAX))
    })
}

/// What is different, in words, a line each.
pub fn changes(before: Option<&KnownDomain>, after: &Rules) -> Vec<String> {
    let nothing = Rules::default();
    let before = before.map_or(&nothing, |known| &known.rules);
    let all = before.diff(after);
    first_lines(
        all.iter().map(ToString::to_string).collect(),
        CHANGES_BYTES_MAX,
    )
}

/// What to know of the rules that do not what they seem to say, a line each.
pub fn notes(rules: &Rules) -> Vec<String> {
    first_lines(rules.notes(), NOTES_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_shard::limits::ApplyRules;

    use super::*;

    #[test]
    fn a_text_has_one_domain_that_fits_a_subject() {
        let (domain, rules) = read_one("domain: shop\ndescriptors: []\n").unwrap();
        assert_eq!(domain.as_str(), "shop");
        assert!(rules.rules().is_empty());
        for (text, part) in [
            ("", "line 1, column 1: domain: there is none"),
            (
                "domain: a\n---\ndomain: b\n",
                "line 3, column 9: domain: the second of 2",
            ),
            (
                "domain: a.b\n",
                "line 1, column 9: domain: `a.b` cannot be a part of subjects",
            ),
            ("domain: a\ndescriptors: {}\n", "line 2, column"),
        ] {
            let error = read_one(text).unwrap_err();
            assert!(error.message.starts_with("rules: "), "{error}");
            assert!(error.message.contains(part), "{error}");
        }
    }

    #[test]
    fn a_domain_is_read_again_when_its_version_is_another() {
        let domains = ["a", "b"].map(|it| it.parse::<LineName>().unwrap());
        let mut texts = RuleTexts::default();
        let mut known = KnownRules::default();
        let mut changed = |domain: &LineName, text: &str| {
            let apply = ApplyRules {
                domain: domain.clone(),
                text: text.into(),
                if_version: None,
                by: String::new(),
                reason: String::new(),
            };
            texts.apply(&apply, 0).unwrap();
            let mut read = Vec::new();
            known = KnownRules::of(&texts, Some(&known), |domain, text| {
                read.push((domain.clone(), text.to_owned()));
                Rules::default()
            });
            assert_eq!(known.version, texts.version());
            assert_eq!(*known.domains[domain].of.text, *text);
            read
        };
        for (domain, text) in [(0, "1"), (1, "2"), (0, "3")] {
            let domain = &domains[domain];
            assert_eq!(changed(domain, text), [(domain.clone(), text.to_owned())]);
        }
        assert_eq!(changed(&domains[1], "2"), []);
    }

    #[test]
    fn changes_are_told_in_words() {
        let text = "domain: shop\ndescriptors:\n  - {key: ip, rate_limit: {unit: minute, requests_per_unit: 5}}\n";
        let (_, rules) = read_one(text).unwrap();
        let lines = changes(None, &rules);
        assert_eq!(lines, ["+ shop / ip: 5 per minute, fixed_window"]);
    }
}
