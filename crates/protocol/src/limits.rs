//! Requests and replies about rate limits: docs/protocol/limits.md.

mod changes;
mod stats;

use std::borrow::Cow;
use std::time::Duration;

use nowserving_line::{LineName, NUMBER_MAX};
use serde::{Deserialize, Serialize};

use crate::codec::MAX_REQUEST_BYTES;
use crate::error::ApiError;
use crate::subject::shard_of_bytes;
use crate::wire;

pub use changes::{
    DESCRIPTOR_SHOWN_BYTES, LIMIT_CHANGES_BYTES_MAX, LIMIT_CHANGES_MAX, LimitChangeReply,
    LimitChangesReply, ListLimitChanges, shown,
};
pub use stats::{
    LimitStats, LimitStatsReply, NodeCounts, NodeHits, OTHER_RULES_NAME, RULE_HITS_BYTES_MAX,
    RuleHits, STATS_SHARDS_MAX, ShardLimitStats,
};

/// The most descriptors of a request.
pub const DESCRIPTORS_MAX: usize = 16;
/// The most entries of a descriptor.
pub const ENTRIES_MAX: usize = 16;
/// The longest key of an entry, in bytes; it has at least one.
pub const ENTRY_KEY_BYTES_MAX: usize = 256;
/// The longest value of an entry, in bytes.
pub const ENTRY_VALUE_BYTES_MAX: usize = 1_024;
/// The longest [`counter_key_bytes`] of a descriptor that a rule limits.
pub const COUNTER_KEY_BYTES_MAX: usize = 2_048;
/// The longest text of a domain's rules, in bytes.
pub const RULES_BYTES_MAX: usize = 49_152;
/// Of a request with rules, in bytes: their text in JSON can be longer than what it says.
pub const APPLY_BYTES_MAX: usize = 3 * MAX_REQUEST_BYTES;
const HITS_MAX: u64 = u32::MAX as u64;
/// Of the hash in a shortened value: 128 bits.
const HASH_CHARS: usize = 32;

/// One entry of a descriptor.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Entry {
    /// What it is about: `remote_address`.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = ENTRY_KEY_BYTES_MAX)))]
    pub key: String,
    /// Which one: `127.0.0.1`. Empty if it is left out.
    #[cfg_attr(feature = "schema", schemars(length(max = ENTRY_VALUE_BYTES_MAX)))]
    #[serde(default)]
    pub value: String,
}

impl Entry {
    /// An entry.
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Entry {
        Entry {
            key: key.into(),
            value: value.into(),
        }
    }

    /// An entry with a value that comes from a client, such as a header: of any length, and not always text. One of more
    /// than [`ENTRY_VALUE_BYTES_MAX`] bytes, or that is not UTF-8, is shortened. It keeps its beginning and its end, by
    /// which a rule with `*` can match, and has its hash between them, so that it has a counter of its own.
    pub fn shortened(key: impl Into<String>, value: &[u8]) -> Entry {
        Entry::shortened_to(key, value, ENTRY_VALUE_BYTES_MAX)
    }

    /// [`Entry::shortened`] to at most so many bytes, at least 40.
    pub fn shortened_to(key: impl Into<String>, value: &[u8], bytes_max: usize) -> Entry {
        let text = String::from_utf8_lossy(value);
        if value.len() <= bytes_max
            && let Cow::Borrowed(text) = text
        {
            return Entry::new(key, text);
        }
        let hash = &blake3::hash(value).to_hex()[..HASH_CHARS];
        let room = bytes_max.saturating_sub(HASH_CHARS + 2) / 2;
        let (begin, _) = text.split_at(text.floor_char_boundary(room));
        let from = text.len().saturating_sub(room);
        let (_, end) = text.split_at(text.ceil_char_boundary(from));
        Entry::new(key, format!("{begin}#{hash}#{end}"))
    }
}

/// What a limit is for: entries, in the order of the rules.
pub type Descriptor = Vec<Entry>;

/// `check`: whether a request may pass, and counts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Check {
    /// 1 to [`DESCRIPTORS_MAX`], each of 1 to [`ENTRIES_MAX`] entries.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = DESCRIPTORS_MAX), inner(length(min = 1, max = ENTRIES_MAX))))]
    pub descriptors: Vec<Descriptor>,
    /// How many hits it is, for each descriptor; by default 1.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::WithinOption::<0, HITS_MAX>"
    )]
    pub hits: Option<u32>,
    /// Only asks.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "wire::flag"
    )]
    pub dry_run: bool,
    /// The longest delay that the caller accepts of a leaking bucket. If it would have to wait for longer, the check is
    /// refused, and counts nothing. If it is missing, any delay is accepted.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NumberOption"
    )]
    pub max_delay_ms: Option<u64>,
}

impl Check {
    /// One hit.
    pub fn new(descriptors: Vec<Descriptor>) -> Check {
        Check {
            descriptors,
            hits: None,
            dry_run: false,
            max_delay_ms: None,
        }
    }

    /// Checks what the types do not say; `bad_request` names the field.
    pub fn check(&self) -> Result<(), ApiError> {
        if !(1..=DESCRIPTORS_MAX).contains(&self.descriptors.len()) {
            return Err(bad(format!("descriptors: 1 to {DESCRIPTORS_MAX} of them")));
        }
        for (nth, descriptor) in self.descriptors.iter().enumerate() {
            check_descriptor(&format!("descriptors[{nth}]"), descriptor)?;
        }
        Ok(())
    }

    /// The same check for a caller that accepts no delay longer than this, nor one longer than it said already.
    #[must_use]
    pub fn with_max_delay(self, max: Duration) -> Check {
        let max_ms = u64::try_from(max.as_millis()).unwrap_or(u64::MAX);
        let max_ms = max_ms.min(self.max_delay_ms.unwrap_or(NUMBER_MAX));
        Check {
            max_delay_ms: Some(max_ms),
            ..self
        }
    }

    /// How many hits it is.
    pub fn hits(&self) -> u32 {
        self.hits.unwrap_or(1)
    }
}

/// In a counter's key before its texts: the algorithm and the unit.
const KEY_HEAD_BYTES: usize = 2;

/// The texts of a descriptor's counter, each with the two bytes of its length, the greater one first, before it.
fn key_texts<'a>(
    domain: &'a str,
    descriptor: &'a [Entry],
) -> impl Iterator<Item = ([u8; 2], &'a str)> {
    let entries = descriptor.iter();
    let entries = entries.flat_map(|entry| [entry.key.as_str(), entry.value.as_str()]);
    let texts = [domain].into_iter().chain(entries);
    texts.map(|text| ((text.len() as u16).to_be_bytes(), text))
}

/// How long the key of a descriptor's counter is.
pub fn counter_key_bytes(domain: &str, descriptor: &[Entry]) -> usize {
    let texts = key_texts(domain, descriptor);
    KEY_HEAD_BYTES
        + texts
            .map(|(length, text)| length.len() + text.len())
            .sum::<usize>()
}

/// The shard that counts for a descriptor, in a cluster of so many, unless its rule has `share_threshold`: then it depends
/// on the rule. The hash is that of lines, of the counter's key without its first two bytes.
pub fn limit_shard_of(domain: &LineName, descriptor: &[Entry], shards: u32) -> u32 {
    let mut bytes = Vec::with_capacity(64);
    for (length, text) in key_texts(domain.as_str(), descriptor) {
        bytes.extend(length);
        bytes.extend(text.as_bytes());
    }
    shard_of_bytes(&bytes, shards)
}

/// `bad_request` names the part of `field` that is wrong.
pub fn check_descriptor(field: &str, descriptor: &[Entry]) -> Result<(), ApiError> {
    if !(1..=ENTRIES_MAX).contains(&descriptor.len()) {
        return Err(bad(format!("{field}: 1 to {ENTRIES_MAX} entries")));
    }
    for (nth, entry) in descriptor.iter().enumerate() {
        if !(1..=ENTRY_KEY_BYTES_MAX).contains(&entry.key.len()) {
            let limit = format!("1 to {ENTRY_KEY_BYTES_MAX} bytes");
            return Err(bad(format!("{field}[{nth}].key: {limit}")));
        }
        if entry.value.len() > ENTRY_VALUE_BYTES_MAX {
            let limit = format!("at most {ENTRY_VALUE_BYTES_MAX} bytes");
            return Err(bad(format!("{field}[{nth}].value: {limit}")));
        }
    }
    Ok(())
}

fn bad(message: String) -> ApiError {
    ApiError::bad_request(message)
}

/// The answer to `check`. Over the limit is an answer, not an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CheckReply {
    /// Whether it may pass.
    pub allowed: bool,
    /// The `requests_per_unit` of the limit that is nearest to its end, or that refuses for longest. Like all that
    /// follows it is null if nothing limits the request.
    pub limit: Option<u32>,
    /// How many more hits that limit allows now, without those of this request if they are not counted.
    pub remaining: Option<u32>,
    /// After how many ms its counter is as good as new if nobody comes.
    pub reset_ms: Option<u64>,
    /// After how many ms the same request is allowed if nobody else comes. Null if it is allowed now, or never will be.
    pub retry_after_ms: Option<u64>,
    /// How long the caller has to wait before it goes on: a leaking bucket says so. Of a refusal for
    /// [`Check::max_delay_ms`]: how long it would have had to wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// The domain has no rules.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unmatched: bool,
    /// The SDK decided, because the cluster did not answer. Nodes leave it out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_cluster: bool,
    /// One for each descriptor, in the order of the request.
    pub descriptors: Vec<DescriptorReply>,
}

/// What is said of one descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DescriptorReply {
    /// Whether its own limit allows it; with `shadow` or `quota` the request may pass all the same.
    pub allowed: bool,
    /// As in [`CheckReply`]; null if nothing limits it.
    pub limit: Option<u32>,
    /// `second` to `year`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// Of a bucket: how many hits it holds, which is the most that `remaining` can be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// The name of the rule, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// As in [`CheckReply`].
    pub remaining: Option<u32>,
    /// As in [`CheckReply`].
    pub reset_ms: Option<u64>,
    /// As in [`CheckReply`].
    pub retry_after_ms: Option<u64>,
    /// As in [`CheckReply`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// No rule counts for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unmatched: bool,
    /// Its rule says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unlimited: bool,
    /// A rule of another descriptor counts in place of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replaced: bool,
    /// Its rule never refuses.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// Its rule refuses only if all others in quota mode do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quota: bool,
    /// There was no room for its counter.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untracked: bool,
    /// Where its rule stands, and the rule in words, as `show` lists it: only of `test`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// A node asks the leader of a shard to give back what it counted for a check that another shard's limits refuse.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GiveBackHits {
    /// The request id of the question that counted them.
    pub name: String,
}

/// What the leader of a shard answers to a node of the counters that it has: one for each descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartReply {
    /// In the order of the request.
    pub verdicts: Vec<PartVerdict>,
}

/// What it says of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct PartVerdict {
    pub allowed: bool,
    pub limit: u32,
    pub remaining: u32,
    pub reset_us: u64,
    #[serde(default)]
    pub retry_after_us: Option<u64>,
    #[serde(default)]
    pub delay_us: u64,
    #[serde(default)]
    pub shadow: bool,
    #[serde(default)]
    pub quota: bool,
    #[serde(default)]
    pub untracked: bool,
}

/// `admin.limit.apply`: replaces the rules of one domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ApplyRules {
    /// YAML, of one domain, at most [`RULES_BYTES_MAX`] bytes.
    #[cfg_attr(feature = "schema", schemars(length(max = RULES_BYTES_MAX)))]
    pub rules: String,
    /// Only shows what would change.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "wire::flag"
    )]
    pub dry_run: bool,
    /// Only if the rules of the domain have this version; 0: only if it has none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NumberOption"
    )]
    pub if_version: Option<u64>,
}

impl ApplyRules {
    /// Checks what the types do not say; `bad_request` names the field.
    pub fn check(&self) -> Result<(), ApiError> {
        if self.rules.len() > RULES_BYTES_MAX {
            let bytes = self.rules.len();
            return Err(bad(format!(
                "rules: {bytes} bytes; those of a domain have at most {RULES_BYTES_MAX}"
            )));
        }
        Ok(())
    }
}

/// The answer to `apply` and `delete`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RulesChanged {
    /// The domain.
    #[serde(with = "wire::Name")]
    pub domain: LineName,
    /// The version of its rules since; of a dry run, that which they have now (0: none).
    pub version: u64,
    /// Nothing was changed.
    #[serde(default)]
    pub dry_run: bool,
    /// What changed, a line each, as the answering node knew the rules before.
    pub changes: Vec<String>,
    /// What to know of the rules of an `apply` that do not what they seem to say, a line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// `admin.limit.delete`: removes the rules of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeleteRules {
    /// The domain.
    #[serde(with = "wire::Name")]
    pub domain: LineName,
    /// As in [`ApplyRules`].
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "wire::flag"
    )]
    pub dry_run: bool,
    /// As in [`ApplyRules`].
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NumberOption"
    )]
    pub if_version: Option<u64>,
}

/// `admin.limit.show`: a page of the rules, as the answering node has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShowRules {
    /// Only of this domain, with their text.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NameOption"
    )]
    pub domain: Option<LineName>,
    /// With a domain: the [`DomainReply::next`] of the page before.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NumberOption"
    )]
    pub from: Option<u64>,
    /// Without a domain: the [`RulesReply::next`] of the page before.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NameOption"
    )]
    pub after: Option<LineName>,
}

/// The answer to `show`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RulesReply {
    /// By name.
    pub domains: Vec<DomainReply>,
    /// The `after` of the next page of domains; null on the last one, and if a domain was named.
    #[serde(default, with = "wire::NameOption")]
    pub next: Option<LineName>,
}

/// The rules of one domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DomainReply {
    /// Its name.
    #[serde(with = "wire::Name")]
    pub domain: LineName,
    /// Of its rules.
    pub version: u64,
    /// When they were applied, on the wall clock.
    pub at_ms: u64,
    /// Who applied them.
    pub by: String,
    /// Why.
    pub reason: String,
    /// How many there are.
    pub rules_total: u64,
    /// In words, a line each: only if the domain was named. Those of this page, which follow those of the page before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// The YAML: only if the domain was named. The part of this page, which follows that of the page before; it begins after the
    /// last rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The `from` of the next page; left out on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

impl DomainReply {
    /// Appends the next page. Returns false if that has another version: then both are of no use.
    #[must_use]
    pub fn append(&mut self, page: DomainReply) -> bool {
        if (&page.domain, page.version) != (&self.domain, self.version) {
            return false;
        }
        self.rules.extend(page.rules);
        if let Some(text) = page.text {
            self.text.get_or_insert_default().push_str(&text);
        }
        self.next = page.next;
        true
    }
}

/// `admin.limit.reset`: forgets what was counted of one descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResetLimit {
    /// The domain.
    #[serde(with = "wire::Name")]
    pub domain: LineName,
    /// Its entries.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = ENTRIES_MAX)))]
    pub descriptor: Descriptor,
}

impl ResetLimit {
    /// Checks what the types do not say; `bad_request` names the field.
    pub fn check(&self) -> Result<(), ApiError> {
        check_descriptor("descriptor", &self.descriptor)
    }
}

/// The answer to `reset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResetReply {
    /// There was such a counter on all nodes. One that only the leader had in its memory is forgotten as well.
    pub known: bool,
}

/// `admin.limit.test`: what `check` would answer, and by which rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TestLimits {
    /// The domain.
    #[serde(with = "wire::Name")]
    pub domain: LineName,
    /// As in [`Check`].
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = DESCRIPTORS_MAX), inner(length(min = 1, max = ENTRIES_MAX))))]
    pub descriptors: Vec<Descriptor>,
    /// As in [`Check`].
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::WithinOption::<0, HITS_MAX>"
    )]
    pub hits: Option<u32>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::codec::{Format, decode, encode};

    #[test]
    fn a_clients_value_of_any_bytes_is_shortened() {
        let value = |value: &[u8]| {
            let entry = Entry::shortened("path", value);
            check_descriptor("it", std::slice::from_ref(&entry)).unwrap();
            entry.value
        };
        assert_eq!(value(b""), "");
        assert_eq!(value("/ä".as_bytes()), "/ä");
        assert_eq!(value(&[b'x'; 1_024]).as_bytes(), [b'x'; 1_024]);
        let long = [b"/search/".as_slice(), &[b'x'; 2_000], b"/export"].concat();
        let shortened = value(&long);
        assert_eq!(shortened.len(), ENTRY_VALUE_BYTES_MAX);
        assert!(shortened.starts_with("/search/xxx") && shortened.ends_with("xxx/export"));
        let other = [b"/search/".as_slice(), &[b'x'; 2_001], b"/export"].concat();
        assert_ne!(value(&other), shortened, "a counter of its own");
        let wide = value("ä".repeat(1_000).as_bytes());
        assert!(wide.starts_with("ää") && wide.ends_with("ää"));
        let bytes = value(b"/a\xff/b");
        assert!(bytes.starts_with("/a\u{fffd}/b#") && bytes.ends_with("#/a\u{fffd}/b"));
        assert_ne!(value(b"/a\xfe/b"), bytes);
        for bytes_max in [0, 40, 96] {
            let short = Entry::shortened_to("path", &long, bytes_max).value;
            assert!(short.len() <= bytes_max.max(40), "{short}");
        }
    }

    /// The same as by the recipe in docs/protocol/limits.md.
    #[test]
    fn a_descriptor_has_a_shard() {
        let shop = LineName::try_from("shop").unwrap();
        for (value, shard) in [("a", 8), ("ä", 7)] {
            let descriptor = [Entry::new("ip", value)];
            assert_eq!(limit_shard_of(&shop, &descriptor, 16), shard);
        }
    }

    #[test]
    fn a_check_is_read_in_both_formats() {
        let check = Check {
            hits: Some(3),
            max_delay_ms: Some(1_500),
            ..Check::new(vec![vec![Entry::new("remote_address", "127.0.0.1")]])
        };
        for format in [Format::Json, Format::MsgPack] {
            let read: Check = decode(&encode(&check, format)).unwrap();
            assert_eq!(read, check);
            read.check().unwrap();
        }
        let plain: Check = decode(br#"{"descriptors":[[{"key":"a"}]]}"#).unwrap();
        assert_eq!(plain, Check::new(vec![vec![Entry::new("a", "")]]));
        assert_eq!(plain.hits(), 1);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, field) in [
            ("{}", "descriptors"),
            (r#"{"descriptors":[]}"#, "descriptors"),
            (r#"{"descriptors":[[]]}"#, "descriptors[0]"),
            (r#"{"descriptors":[[{"key":""}]]}"#, "descriptors[0][0].key"),
            (r#"{"descriptors":[[{"value":"x"}]]}"#, "descriptors[0][0]"),
            (r#"{"descriptors":[[{"key":"a"}]],"hits":-1}"#, "hits"),
            (
                r#"{"descriptors":[[{"key":"a"}]],"hits":4294967296}"#,
                "hits",
            ),
            (r#"{"descriptors":[[{"key":"a"}]],"dry_run":1}"#, "dry_run"),
            (
                r#"{"descriptors":[[{"key":"a"}]],"max_delay_ms":-1}"#,
                "max_delay_ms",
            ),
            (r#"{"descriptors":[[{"key":"a"}]],"hit":5}"#, "hit"),
        ] {
            let read = decode::<Check>(body.as_bytes());
            let error = read.and_then(|check| check.check()).unwrap_err();
            let names = error.message.contains(&format!("`{field}`"));
            assert!(names || error.message.starts_with(field), "{body}: {error}");
        }
        let long = Check::new(vec![vec![Entry::new("a", "x".repeat(1_025))]]);
        let error = long.check().unwrap_err();
        assert!(error.message.starts_with("descriptors[0][0].value"));
        let many = Check::new(vec![vec![Entry::new("a", "")]; 17]);
        assert!(many.check().is_err());
    }
}
