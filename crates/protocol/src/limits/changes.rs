//! What operators changed of rate limits: the list that `admin.limit.changes` answers.

use nowserving_line::LineName;
use serde::{Deserialize, Serialize};

use super::Entry;
use crate::wire;

/// The most changes in an answer to `changes`.
pub const LIMIT_CHANGES_MAX: usize = 128;
/// The most bytes of a descriptor in one of them; a longer one ends with `…`.
pub const DESCRIPTOR_SHOWN_BYTES: usize = 256;

/// `admin.limit.changes`: what operators changed of rules and counters, and who, when and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListLimitChanges {
    /// Only of this domain.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::name_option"
    )]
    pub domain: Option<LineName>,
}

/// The answer to `changes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitChangesReply {
    /// The newest ones, at most [`LIMIT_CHANGES_MAX`], the oldest first.
    pub changes: Vec<LimitChangeReply>,
    /// The shards whose leaders did not answer: changes of theirs are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<u32>,
}

impl LimitChangesReply {
    /// Orders the changes by their time, and drops the oldest ones beyond [`LIMIT_CHANGES_MAX`].
    pub fn keep_newest(&mut self) {
        self.changes.sort_by_key(|it| it.at_ms);
        let surplus = self.changes.len().saturating_sub(LIMIT_CHANGES_MAX);
        self.changes.drain(..surplus);
    }
}

/// A descriptor in words, as [`LimitChangeReply::descriptor`] has it.
#[must_use]
pub fn shown(descriptor: &[Entry]) -> String {
    const CUT: char = '…';
    let entries = descriptor
        .iter()
        .map(|it| format!("{}={}", it.key, it.value));
    let mut text = entries.collect::<Vec<_>>().join(",");
    if text.len() > DESCRIPTOR_SHOWN_BYTES {
        text.truncate(text.floor_char_boundary(DESCRIPTOR_SHOWN_BYTES - CUT.len_utf8()));
        text.push(CUT);
    }
    text
}

/// A change of rate limits that an operator made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitChangeReply {
    /// When, on the wall clock of the leader at that time.
    pub at_ms: u64,
    /// `apply`, `delete` or `reset`.
    pub op: String,
    /// Whose rules or counter.
    #[serde(with = "wire::name")]
    pub domain: LineName,
    /// Of the rules, since this change: of `apply` and `delete`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Of `reset`: the entries, as `key=value` with commas between them, at most [`DESCRIPTOR_SHOWN_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descriptor: Option<String>,
    /// As in the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// As in the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_long_descriptor_is_cut_between_characters() {
        let short = [Entry::new("ip", "127.0.0.1"), Entry::new("plan", "")];
        assert_eq!(shown(&short), "ip=127.0.0.1,plan=");
        for bytes in 240..260 {
            let long = shown(&[Entry::new("x".repeat(bytes), "ä".repeat(500))]);
            assert!(
                long.len() <= DESCRIPTOR_SHOWN_BYTES && long.ends_with('…'),
                "{long}"
            );
            assert!(long.len() > DESCRIPTOR_SHOWN_BYTES - 3, "{long}");
        }
    }

    #[test]
    fn the_newest_stay() {
        let change = |at_ms| LimitChangeReply {
            at_ms,
            op: "reset".to_owned(),
            domain: LineName::try_from("shop").unwrap(),
            version: None,
            descriptor: None,
            by: None,
            reason: None,
        };
        let mut reply = LimitChangesReply {
            changes: (0..2 * LIMIT_CHANGES_MAX as u64)
                .rev()
                .map(change)
                .collect(),
            unanswered: Vec::new(),
        };
        reply.keep_newest();
        let kept: Vec<u64> = reply.changes.iter().map(|it| it.at_ms).collect();
        let max = LIMIT_CHANGES_MAX as u64;
        assert_eq!(kept, (max..2 * max).collect::<Vec<_>>());
    }
}
