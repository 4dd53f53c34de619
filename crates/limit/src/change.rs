//! What a checkpoint says of one counter.

use crate::Counter;
use crate::algorithm::LogPart;

/// A counter that changed since the last checkpoint. It is absolute: applying it again changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub key: Box<[u8]>,
    pub state: ChangedState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangedState {
    /// All of it; never a log.
    Whole(Counter),
    /// What was added to a log. Without hits too, if all of them are over.
    LogPart(LogPart),
}

/// How much a portion of changes may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortionMax {
    /// How many counters.
    pub counters: usize,
    /// About how many bytes: a key counts as its length, a counter as 32, a time of a log as 16. One counter more than
    /// that fits, so that there is always progress; if it is a log that begins anew, all of it.
    pub bytes: usize,
}

impl Change {
    /// What it counts as in [`PortionMax::bytes`].
    pub fn bytes(&self) -> usize {
        let log = match &self.state {
            ChangedState::Whole(_) => 0,
            ChangedState::LogPart(part) => part.hits.len() * LOG_HIT_BYTES,
        };
        self.key.len() + COUNTER_BYTES + log
    }
}

pub(crate) const COUNTER_BYTES: usize = 32;
pub(crate) const LOG_HIT_BYTES: usize = 16;
