//! What a checkpoint says of one counter.

use nowserving_codec::Codec;

use crate::algorithm::LogPart;
use crate::{Algorithm, Counter};

/// A counter that changed since the last checkpoint. It is absolute: applying it again changes nothing.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
#[codec(check = Change::check)]
pub struct Change {
    pub key: Box<[u8]>,
    pub state: ChangedState,
}

#[derive(Codec, Debug, Clone, PartialEq, Eq)]
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
    fn check(&self) -> Result<(), &'static str> {
        let (algorithm, _) =
            crate::key::head(&self.key).ok_or("the key of a counter that is none")?;
        let fits = match &self.state {
            ChangedState::Whole(Counter::SlidingWindowLog(_)) => false,
            ChangedState::Whole(counter) => counter.fits(algorithm),
            ChangedState::LogPart(_) => algorithm == Algorithm::SlidingWindowLog,
        };
        fits.then_some(())
            .ok_or("a counter of another kind than its key says")
    }

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
