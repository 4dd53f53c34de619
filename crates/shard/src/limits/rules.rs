//! The rules of all domains, as texts. Shard 0 has them.

use std::collections::BTreeMap;
use std::sync::Arc;

use nowserving_codec::Codec;
use nowserving_line::LineName;

/// The longest text of one domain: a log entry and a request have room for it, and to read it is short.
pub const RULES_TEXT_BYTES_MAX: usize = nowserving_protocol::limits::RULES_BYTES_MAX;
/// The most domains.
pub const DOMAINS_MAX: usize = 256;
/// All texts together.
const TEXTS_BYTES_MAX: usize = 4 << 20;

/// Replaces the rules of a domain.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub struct ApplyRules {
    pub domain: LineName,
    /// YAML with this domain alone, which was read and is valid.
    pub text: Arc<str>,
    /// Only if they have this version; 0: only if there are none.
    pub if_version: Option<u64>,
    /// The operator's name and reason, as given in the request.
    pub by: String,
    pub reason: String,
}

/// Removes the rules of a domain.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub struct DeleteRules {
    pub domain: LineName,
    pub if_version: Option<u64>,
    pub by: String,
    pub reason: String,
}

/// The rules of one domain.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub struct DomainRules {
    /// Grows with each change, also over a removal.
    pub version: u64,
    pub text: Arc<str>,
    /// When they were applied, on the wall clock.
    pub at_ms: u64,
    pub by: String,
    pub reason: String,
}

/// Why rules are not changed.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RulesRefused {
    #[error("the rules of this domain have changed meanwhile")]
    Version,
    #[error("there are no rules of this domain")]
    NoDomain,
    #[error("there are rules of {DOMAINS_MAX} domains already: delete some first")]
    TooManyDomains,
    #[error("the rules of all domains have at most {TEXTS_BYTES_MAX} bytes together")]
    TooLarge,
}

#[derive(Codec, Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleTexts {
    version: u64,
    domains: BTreeMap<LineName, DomainRules>,
}

impl RuleTexts {
    /// Of the newest change; 0: there was none.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn domains(&self) -> impl ExactSizeIterator<Item = (&LineName, &DomainRules)> {
        self.domains.iter()
    }

    #[must_use]
    pub fn get(&self, domain: &LineName) -> Option<&DomainRules> {
        self.domains.get(domain)
    }

    /// Puts the rules of a domain in force, at this time of the wall clock; returns their version. The same rules again
    /// change nothing.
    ///
    /// # Errors
    /// The domain's rules have another version than asked for, or these are too many or too long.
    pub fn apply(&mut self, apply: &ApplyRules, wall_ms: u64) -> Result<u64, RulesRefused> {
        let known = self.domains.get(&apply.domain);
        if let Some(known) = known.filter(|known| known.text == apply.text) {
            return Ok(known.version);
        }
        check_version(known, apply.if_version)?;
        if known.is_none() && self.domains.len() >= DOMAINS_MAX {
            return Err(RulesRefused::TooManyDomains);
        }
        let others = self.domains.iter();
        let others = others.filter(|(domain, _)| **domain != apply.domain);
        let bytes: usize = others.map(|(_, rules)| rules.text.len()).sum();
        if bytes + apply.text.len() > TEXTS_BYTES_MAX {
            return Err(RulesRefused::TooLarge);
        }
        self.version += 1;
        let rules = DomainRules {
            version: self.version,
            text: apply.text.clone(),
            at_ms: wall_ms,
            by: apply.by.clone(),
            reason: apply.reason.clone(),
        };
        self.domains.insert(apply.domain.clone(), rules);
        Ok(self.version)
    }

    pub(crate) fn delete(&mut self, delete: &DeleteRules) -> Result<u64, RulesRefused> {
        let known = self.domains.get(&delete.domain);
        if known.is_none() {
            return Err(RulesRefused::NoDomain);
        }
        check_version(known, delete.if_version)?;
        self.domains.remove(&delete.domain);
        self.version += 1;
        Ok(self.version)
    }
}

fn check_version(known: Option<&DomainRules>, if_version: Option<u64>) -> Result<(), RulesRefused> {
    let version = known.map_or(0, |known| known.version);
    match if_version.is_none_or(|it| it == version) {
        true => Ok(()),
        false => Err(RulesRefused::Version),
    }
}
