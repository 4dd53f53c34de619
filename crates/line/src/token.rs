//! Tokens: their numbers, states and what is kept about a live one.

use std::sync::Arc;

use crate::{Timestamp, Told};

/// A number in a lane: 1, 2, 3, … without gaps, at most [`crate::NUMBER_MAX`].
pub type Token = u64;

/// Which token: a ticket says this much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenRef {
    /// Which creation of the line.
    pub incarnation: u64,
    /// The lane's place in the line's table, stable for the incarnation.
    pub lane: u8,
    /// The number in that lane.
    pub token: Token,
}

/// Where a token stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Holds a number, no seat yet.
    Waiting,
    /// Holds a seat, has not claimed it yet.
    Admitted,
    /// Holds a seat and has claimed it.
    InCheckout,
    /// Left for good.
    Gone,
}

impl State {
    /// The contract's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Admitted => "admitted",
            State::InCheckout => "in_checkout",
            State::Gone => "gone",
        }
    }
}

/// Why a token is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It was served.
    Completed,
    /// Its holder gave up.
    Left,
    /// It waited and was not heard from.
    Idle,
    /// It was admitted and did not claim in time.
    NoShow,
    /// It held a seat and neither renewed nor completed in time.
    CheckoutExpired,
    /// An operator threw it out.
    Kicked,
    /// The quota was used up before its turn.
    SoldOut,
    /// It became another token in another lane.
    Moved,
    /// The line was closed or deleted.
    Closed,
}

impl Reason {
    /// Every reason, in the order of [`Reason::code`].
    pub const ALL: [Reason; 9] = [
        Reason::Completed,
        Reason::Left,
        Reason::Idle,
        Reason::NoShow,
        Reason::CheckoutExpired,
        Reason::Kicked,
        Reason::SoldOut,
        Reason::Moved,
        Reason::Closed,
    ];

    /// A small number for it, 0 to 8, that does not change between builds: what is stored.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The reason with this [`Reason::code`].
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The contract's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Completed => "completed",
            Reason::Left => "left",
            Reason::Idle => "idle",
            Reason::NoShow => "no_show",
            Reason::CheckoutExpired => "checkout_expired",
            Reason::Kicked => "kicked",
            Reason::SoldOut => "sold_out",
            Reason::Moved => "moved",
            Reason::Closed => "closed",
        }
    }

    /// The reason with this word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|r| r.as_str() == word)
    }
}

/// What a live token is doing, and the clock that runs on it. Times are of the service clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Waiting; last heard from at `seen_ms`, as far as the log knows (the leader may know better).
    Waiting {
        /// When it entered or was last heard from.
        seen_ms: u64,
    },
    /// Holds a seat that it can claim until `deadline_ms`.
    Admitted {
        /// From when on it can be recycled.
        deadline_ms: u64,
    },
    /// Has claimed its seat.
    InCheckout {
        /// From when on it can be recycled.
        deadline_ms: u64,
        /// When it claimed: `checkout_max_ms` counts from here.
        claimed_at_ms: u64,
        /// The fencing number of the claim.
        epoch: u64,
    },
}

/// What is kept about a token that is not gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Live {
    pub(crate) key: Option<Arc<[u8]>>,
    pub(crate) entered: Timestamp,
    /// The line's version right after that. Everything in a log entry has one time; by this it is
    /// known who of a crowd came first. Kept through moves.
    pub(crate) entered_version: u64,
    pub(crate) stage: Stage,
    /// The tokens that it was, if it was moved, oldest first. Rare, so no more than a pointer.
    pub(crate) moved_from: Box<[(u8, Token)]>,
    /// What it was told on entering; none once it was moved, as that was about another place.
    pub(crate) told: Option<Told>,
}

impl Live {
    /// `version` is what the line's will be once it is issued.
    pub(crate) fn newcomer(key: Option<&[u8]>, now: Timestamp, version: u64) -> Self {
        Self {
            key: key.map(Into::into),
            entered: now,
            entered_version: version,
            stage: Stage::Waiting {
                seen_ms: now.service_ms,
            },
            moved_from: Box::default(),
            told: None,
        }
    }

    /// What it is doing and the clock on it.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Its state; never [`State::Gone`].
    pub fn state(&self) -> State {
        match self.stage {
            Stage::Waiting { .. } => State::Waiting,
            Stage::Admitted { .. } => State::Admitted,
            Stage::InCheckout { .. } => State::InCheckout,
        }
    }

    /// Who it is, in the backend's words.
    pub fn key(&self) -> Option<&[u8]> {
        self.key.as_deref()
    }

    /// When it entered.
    pub fn entered(&self) -> Timestamp {
        self.entered
    }

    /// The tokens (lane, number) that it was before it was moved, oldest first.
    pub fn moved_from(&self) -> &[(u8, Token)] {
        &self.moved_from
    }

    /// The forecast that it was told on entering, if it had to wait and there was one.
    pub fn told(&self) -> Option<Told> {
        self.told
    }

    /// While waiting: when it was last heard from, as far as the log knows.
    pub fn seen_ms(&self) -> Option<u64> {
        match self.stage {
            Stage::Waiting { seen_ms } => Some(seen_ms),
            _ => None,
        }
    }

    /// While it holds a seat: from when on it can be recycled.
    pub fn deadline_ms(&self) -> Option<u64> {
        match self.stage {
            Stage::Waiting { .. } => None,
            Stage::Admitted { deadline_ms } | Stage::InCheckout { deadline_ms, .. } => {
                Some(deadline_ms)
            }
        }
    }

    /// In checkout: when it claimed.
    pub fn claimed_at_ms(&self) -> Option<u64> {
        match self.stage {
            Stage::InCheckout { claimed_at_ms, .. } => Some(claimed_at_ms),
            _ => None,
        }
    }

    /// In checkout: the fencing number of its claim.
    pub fn epoch(&self) -> Option<u64> {
        match self.stage {
            Stage::InCheckout { epoch, .. } => Some(epoch),
            _ => None,
        }
    }

    /// What an [`crate::RecycleItem`] must say about it: `seen_ms` or `deadline_ms`.
    pub fn clock_ms(&self) -> u64 {
        match self.stage {
            Stage::Waiting { seen_ms } => seen_ms,
            Stage::Admitted { deadline_ms } | Stage::InCheckout { deadline_ms, .. } => deadline_ms,
        }
    }

    /// Whether it holds a seat.
    pub(crate) fn holds_seat(&self) -> bool {
        !matches!(self.stage, Stage::Waiting { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_keep_their_codes_and_words() {
        for (code, reason) in (0..).zip(Reason::ALL) {
            assert_eq!(reason.code(), code);
            assert_eq!(Reason::from_code(code), Some(reason));
            assert_eq!(Reason::parse(reason.as_str()), Some(reason));
        }
        assert_eq!(Reason::from_code(9), None);
        assert_eq!(Reason::parse("forgotten"), None);
    }
}
