//! The rules that this node knows: the texts that shard 0 has, read off the loop's thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use nowserving_limit::Rules;
use nowserving_line::LineName;
use nowserving_protocol::error::ApiError;
use nowserving_protocol::limits::RULES_BYTES_MAX;
use nowserving_shard::limits::{DomainRules, RuleTexts};
use tokio::sync::watch;

use super::rule_counters::RuleCounters;
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

/// Those of one.
#[derive(Debug)]
pub struct KnownDomain {
    pub of: DomainRules,
    pub rules: Rules,
}

/// `None` until this node has caught up with shard 0.
pub type RulesReceiver = watch::Receiver<Option<Arc<KnownRules>>>;

/// Reads what the engine tells, until it ends.
pub async fn run(
    mut texts: watch::Receiver<Option<RuleTexts>>,
    known: watch::Sender<Option<Arc<KnownRules>>>,
    counters: Arc<RuleCounters>,
) -> anyhow::Result<()> {
    loop {
        let told = texts.borrow_and_update().clone();
        if let Some(told) = told {
            let (before, counters) = (known.borrow().clone(), counters.clone());
            let read = move || read(&told, before.as_deref(), &counters);
            let read = tokio::task::spawn_blocking(read);
            known.send_replace(Some(Arc::new(read.await?)));
        }
        if texts.changed().await.is_err() {
            return Ok(());
        }
    }
}

/// Domains that have not changed are not read again.
fn read(texts: &RuleTexts, before: Option<&KnownRules>, counters: &RuleCounters) -> KnownRules {
    let domains = texts.domains().map(|(domain, of)| {
        let known = before.and_then(|before| before.domains.get(domain));
        let known = known
            .filter(|known| known.of.version == of.version)
            .cloned();
        let domain_rules = known.unwrap_or_else(|| {
            // They were read before they were replicated. A node with an older release may not understand all.
            let rules = Rules::parse(&of.text).unwrap_or_else(|errors| {
                let domain = domain.as_str();
                tracing::error!(domain, %errors, "the rules of this domain are not understood");
                Rules::default()
            });
            counters.begin(&rules);
            let of = of.clone();
            Arc::new(KnownDomain { of, rules })
        });
        (domain.clone(), domain_rules)
    });
    let known = KnownRules {
        domains: domains.collect(),
        version: texts.version(),
    };
    let all = known.domains.values().map(|domain| &domain.rules);
    counters.keep(all);
    known
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
    fn changes_are_told_in_words() {
        let text = "domain: shop\ndescriptors:\n  - {key: ip, rate_limit: {unit: minute, requests_per_unit: 5}}\n";
        let (_, rules) = read_one(text).unwrap();
        let lines = changes(None, &rules);
        assert_eq!(lines, ["+ shop / ip: 5 per minute, fixed_window"]);
    }
}
