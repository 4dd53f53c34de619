//! What operators changed of rate limits: the list that `admin.limit.changes` answers.

use nowserving_line::LineName;
use serde::{Deserialize, Serialize};

use super::Entry;
use crate::wire;

/// The most changes of rules in an answer to `changes`, and the most resets.
pub const LIMIT_CHANGES_MAX: usize = 128;
/// The most bytes of a descriptor in one of them; a longer one ends with `…`.
pub const DESCRIPTOR_SHOWN_BYTES: usize = 256;

/// `admin.limit.changes`: what operators changed of rules and counters, and who, when and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The newest changes of rules and the newest resets, at most [`LIMIT_CHANGES_MAX`] of each, the oldest first.
    pub changes: Vec<LimitChangeReply>,
    /// The shards whose leaders did not answer: changes of theirs are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<u32>,
}

impl LimitChangesReply {
    /// Of changes of several shards: orders them by their time, and drops the oldest ones beyond [`LIMIT_CHANGES_MAX`].
    pub fn keep_newest(&mut self) {
        self.changes.sort_by_key(|it| it.at_ms);
        let resets = self.changes.iter().filter(|it| it.is_reset()).count();
        let mut surplus = [self.changes.len() - resets, resets]
            .map(|count| count.saturating_sub(LIMIT_CHANGES_MAX));
        self.changes.retain(|it| {
            let surplus = &mut surplus[usize::from(it.is_reset())];
            let stays = *surplus == 0;
            *surplus = surplus.saturating_sub(1);
            stays
        });
    }
}

/// A descriptor in words, as [`LimitChangeReply::descriptor`] has it and the command `limit reset` reads it.
#[must_use]
pub fn shown(descriptor: &[Entry]) -> String {
    const CUT: char = '…';
    let escaped = |text: &str| text.replace('\\', r"\\").replace(',', r"\,");
    let entries = descriptor
        .iter()
        .map(|it| format!("{}={}", escaped(&it.key), escaped(&it.value)));
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
    /// Of `reset`: the entries, as `key=value` with commas between them (a comma in a value is `\,`, a backslash `\\`), at most [`DESCRIPTOR_SHOWN_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descriptor: Option<String>,
    /// As in the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// As in the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl LimitChangeReply {
    fn is_reset(&self) -> bool {
        self.op == "reset"
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_long_descriptor_is_cut_between_characters() {
        let short = [Entry::new("ip", "127.0.0.1"), Entry::new("plan", "")];
        assert_eq!(shown(&short), "ip=127.0.0.1,plan=");
        assert_eq!(shown(&[Entry::new("list", r"a,b\")]), r"list=a\,b\\");
        for bytes in 240..260 {
            let long = shown(&[Entry::new("x".repeat(bytes), "ä".repeat(500))]);
            assert!(
                long.len() <= DESCRIPTOR_SHOWN_BYTES && long.ends_with('…'),
                "{long}"
            );
            assert!(long.len() > DESCRIPTOR_SHOWN_BYTES - 3, "{long}");
        }
    }

    /// A support desk resets counters all day.
    #[test]
    fn the_newest_of_each_kind_stay() {
        let change = |op: &str, at_ms| LimitChangeReply {
            at_ms,
            op: op.to_owned(),
            domain: LineName::try_from("shop").unwrap(),
            version: None,
            descriptor: None,
            by: None,
            reason: None,
        };
        let max = LIMIT_CHANGES_MAX as u64;
        let resets = (0..max + 9).rev().map(|at_ms| change("reset", at_ms));
        let rules = ["delete", "apply"].map(|op| change(op, 3));
        let mut reply = LimitChangesReply {
            changes: resets.chain(rules.clone()).collect(),
            unanswered: Vec::new(),
        };
        reply.keep_newest();
        let (resets, others): (Vec<_>, Vec<_>) = reply
            .changes
            .into_iter()
            .partition(LimitChangeReply::is_reset);
        assert_eq!(others, rules, "of one time, as they came");
        let times: Vec<u64> = resets.iter().map(|it| it.at_ms).collect();
        assert_eq!(times, (9..max + 9).collect::<Vec<_>>());
    }
}
