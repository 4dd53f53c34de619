//! What operators changed of rate limits: the list that `admin.limit.changes` answers.

use nowserving_line::LineName;
use serde::{Deserialize, Serialize};

use super::Entry;
use crate::page::{PAGE_BYTES_MAX, json_bytes};
use crate::wire;

/// The most changes of rules in an answer to `changes`, and the most resets.
pub const LIMIT_CHANGES_MAX: usize = 128;
/// The most bytes of JSON that either have in an answer.
pub const LIMIT_CHANGES_BYTES_MAX: usize = PAGE_BYTES_MAX / 2;
/// The most bytes of a descriptor in one of them; a longer one ends with `…`.
pub const DESCRIPTOR_SHOWN_BYTES: usize = 256;

/// `admin.limit.changes`: what operators changed of rules and counters, and who, when and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListLimitChanges {
    /// Only of this domain.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NameOption"
    )]
    pub domain: Option<LineName>,
}

/// The answer to `changes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitChangesReply {
    /// The newest changes of rules and the newest resets, at most [`LIMIT_CHANGES_MAX`] and [`LIMIT_CHANGES_BYTES_MAX`] of each,
    /// the oldest first.
    pub changes: Vec<LimitChangeReply>,
    /// Older ones are remembered, for which there is no room here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_out: bool,
    /// The shards whose leaders did not answer: changes of theirs are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<u32>,
}

impl LimitChangesReply {
    /// Orders changes by their time, and drops the oldest of each kind beyond [`LIMIT_CHANGES_MAX`] and
    /// [`LIMIT_CHANGES_BYTES_MAX`].
    pub fn keep_newest(&mut self) {
        self.changes.sort_by_key(|it| it.at_ms);
        let (mut counts, mut bytes) = ([0; 2], [0; 2]);
        let newest_first = std::mem::take(&mut self.changes).into_iter().rev();
        let mut kept: Vec<_> = newest_first
            .filter(|it| {
                let kind = usize::from(it.is_reset());
                counts[kind] += 1;
                // One that has no room leaves none for older ones.
                bytes[kind] += json_bytes(it) + ",".len();
                counts[kind] <= LIMIT_CHANGES_MAX && bytes[kind] <= LIMIT_CHANGES_BYTES_MAX
            })
            .collect();
        kept.reverse();
        self.left_out |= counts.iter().sum::<usize>() > kept.len();
        self.changes = kept;
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitChangeReply {
    /// When, on the wall clock of the leader at that time.
    pub at_ms: u64,
    /// `apply`, `delete` or `reset`.
    pub op: String,
    /// Whose rules or counter.
    #[serde(with = "wire::Name")]
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
    use nowserving_line::NUMBER_MAX;

    use super::*;
    use nowserving_line::KICK_TEXT_BYTES_MAX;

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
            ..LimitChangesReply::default()
        };
        reply.keep_newest();
        assert!(reply.left_out);
        let (resets, others): (Vec<_>, Vec<_>) = reply
            .changes
            .into_iter()
            .partition(LimitChangeReply::is_reset);
        assert_eq!(others, rules, "of one time, as they came");
        let times: Vec<u64> = resets.iter().map(|it| it.at_ms).collect();
        assert_eq!(times, (9..max + 9).collect::<Vec<_>>());
    }

    #[test]
    fn the_largest_changes_fit_an_answer() {
        let change = |op: &str, at_ms| LimitChangeReply {
            at_ms,
            op: op.to_owned(),
            domain: LineName::try_from("x".repeat(64).as_str()).unwrap(),
            version: Some(at_ms),
            descriptor: Some("\u{1}".repeat(DESCRIPTOR_SHOWN_BYTES)),
            by: Some("\"".repeat(KICK_TEXT_BYTES_MAX)),
            reason: Some("\\".repeat(KICK_TEXT_BYTES_MAX)),
        };
        let all = (0..LIMIT_CHANGES_MAX as u64).flat_map(|nth| {
            let at_ms = NUMBER_MAX - 128 + nth;
            ["apply", "reset"].map(|op| change(op, at_ms))
        });
        let mut reply = LimitChangesReply {
            changes: all.collect(),
            unanswered: (0..256).collect(),
            ..LimitChangesReply::default()
        };
        reply.keep_newest();
        assert!(reply.left_out && json_bytes(&reply) < PAGE_BYTES_MAX + 2_048);
        let (newest, oldest) = (reply.changes.last().unwrap(), &reply.changes[0]);
        assert_eq!(newest.at_ms, NUMBER_MAX - 1);
        // As many of each kind.
        let resets = reply.changes.iter().filter(|it| it.is_reset()).count();
        assert_eq!(2 * resets, reply.changes.len());
        let few = LimitChangesReply {
            changes: vec![oldest.clone()],
            ..LimitChangesReply::default()
        };
        let mut kept = few.clone();
        kept.keep_newest();
        assert_eq!(kept, few);
    }
}
