//! Operators' changes of rate limits: a shard's newest ones, for `limit changes`. Shard 0 has those of the rules, and
//! each shard those of its counters.

use std::collections::VecDeque;

use nowserving_codec::Codec;
use nowserving_line::LineName;
use nowserving_protocol::limits::LIMIT_CHANGES_MAX;

use super::{LimitCommand, LimitReply};

/// So many changes of rules are kept, and as many resets, so that neither takes the other out.
pub const CHANGES_KEPT: usize = LIMIT_CHANGES_MAX;

/// A change that an operator made.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub struct LimitChange {
    /// On the wall clock of the leader.
    pub at_ms: u64,
    pub domain: LineName,
    pub what: Changed,
    /// The operator's name and reason, as given in the request.
    pub by: String,
    pub reason: String,
}

/// What was changed.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// The rules have this version since.
    Applied { version: u64 },
    /// The rules are gone since this version.
    Deleted { version: u64 },
    /// What was counted of this descriptor was forgotten.
    Reset { descriptor: String },
}

/// The newest ones, the oldest first.
#[derive(Codec, Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitChanges(VecDeque<LimitChange>);

impl LimitChanges {
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &LimitChange> + DoubleEndedIterator {
        self.0.iter()
    }

    pub(super) fn keep(&mut self, change: LimitChange) {
        let is_reset = |it: &LimitChange| matches!(it.what, Changed::Reset { .. });
        let is_alike = |it: &&LimitChange| is_reset(it) == is_reset(&change);
        if self.0.iter().filter(is_alike).count() >= CHANGES_KEPT {
            let oldest = self.0.iter().position(|it| is_alike(&it));
            oldest.and_then(|oldest| self.0.remove(oldest));
        }
        self.0.push_back(change);
    }
}

/// `None`: it was refused, it changed nothing, or it is no operator's. `before` is the version that the rules had before it.
pub(super) fn change_of(
    command: &LimitCommand,
    reply: &LimitReply,
    before: u64,
    at_ms: u64,
) -> Option<LimitChange> {
    let changed = match reply {
        LimitReply::Rules(Ok(version)) => Some(*version).filter(|version| *version > before),
        _ => None,
    };
    let (domain, what, by, reason) = match command {
        LimitCommand::Apply(it) => {
            let version = changed?;
            (&it.domain, Changed::Applied { version }, &it.by, &it.reason)
        }
        LimitCommand::Delete(it) => {
            let version = changed?;
            (&it.domain, Changed::Deleted { version }, &it.by, &it.reason)
        }
        LimitCommand::Reset(it) => {
            let descriptor = it.descriptor.clone();
            (
                &it.domain,
                Changed::Reset { descriptor },
                &it.by,
                &it.reason,
            )
        }
        LimitCommand::Checkpoint { .. } | LimitCommand::Hits { .. } | LimitCommand::GiveBack(_) => {
            return None;
        }
    };
    Some(LimitChange {
        at_ms,
        domain: domain.clone(),
        what,
        by: by.clone(),
        reason: reason.clone(),
    })
}
