//! Tokens: numbers, states, reasons, and a live token as it is stored and read.

use std::sync::Arc;

use nowserving_codec::Codec;

use crate::{EtaGiven, LaneName, Timestamp};

/// A number in a lane: 1, 2, 3, … without gaps, at most [`crate::NUMBER_MAX`].
pub type Token = u64;

/// Identifies a token; a ticket contains one.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenRef {
    /// The incarnation of the line.
    pub incarnation: u64,
    /// The lane's id: its index in the line's table, stable for the incarnation.
    pub lane: u8,
    /// The number in that lane.
    pub token: Token,
}

/// How a request names a token.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub enum TokenBy {
    At(TokenRef),
    /// The live token of this key.
    Key(Box<[u8]>),
}

/// How an operator names a token to admit.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub enum TakeBy {
    /// The live token of this key.
    Key(Box<[u8]>),
    /// Its number in a lane, now or before it was moved.
    Number { lane: LaneName, token: Token },
}

#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Holds a number and no seat.
    Waiting,
    /// Holds a seat that it has not claimed.
    Admitted,
    /// Holds a seat that it has claimed.
    InCheckout,
    Gone,
}

impl State {
    /// As the protocol spells it.
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
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    Completed,
    /// The client gave up.
    Left,
    /// It waited and its client was not seen for `waiting_idle_timeout_ms`.
    Idle,
    /// It was admitted and did not claim within `claim_timeout_ms`.
    NoShow,
    /// It claimed and neither renewed nor completed in time.
    CheckoutExpired,
    /// An operator ended it.
    Kicked,
    /// The quota was used up while it waited.
    SoldOut,
    /// It became a token of another lane.
    Moved,
    /// The line was closed or deleted.
    Closed,
    /// It waited for longer than `max_wait_ms`.
    WaitExpired,
}

impl Reason {
    /// In the order of [`Reason::code`].
    pub const ALL: [Reason; 10] = [
        Reason::Completed,
        Reason::Left,
        Reason::Idle,
        Reason::NoShow,
        Reason::CheckoutExpired,
        Reason::Kicked,
        Reason::SoldOut,
        Reason::Moved,
        Reason::Closed,
        Reason::WaitExpired,
    ];

    /// 0 to 9, for storage: it never changes between releases.
    pub fn code(self) -> u8 {
        self as u8
    }

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// As the protocol spells it.
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
            Reason::WaitExpired => "wait_expired",
        }
    }

    /// From [`Reason::as_str`].
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|r| r.as_str() == word)
    }
}

/// The state of a live token, with the clock that runs on it. Times are of the service clock.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Waiting {
        /// When its client was last seen, as far as the log knows. The leader may know better.
        last_seen_ms: u64,
    },
    Admitted {
        /// On the service clock.
        deadline_ms: u64,
        /// How many units of the quota its seat reserves: 1 without a quota.
        units: u32,
    },
    InCheckout {
        /// On the service clock.
        deadline_ms: u64,
        /// As before the claim.
        units: u32,
        /// `checkout_max_ms` counts from here.
        claimed_at_ms: u64,
        /// The fencing number of the claim.
        epoch: u64,
    },
}

/// When a token entered; a move does not change it.
#[derive(Codec, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entered {
    pub at: Timestamp,
    /// The line's version right after it entered. All operations of a log entry have the same time; the version
    /// says which token entered first.
    pub version: u64,
}

/// The record of a token that is not gone, as it is stored and as a token with a seat has it.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub struct LiveRecord {
    /// The backend's name for its holder.
    pub key: Option<Arc<[u8]>>,
    pub entered: Entered,
    pub stage: Stage,
    /// The former numbers (lane id, number) of a moved token, oldest first. Moves are rare, so this takes no more
    /// than a pointer and a length.
    pub moved_from: Box<[(u8, Token)]>,
    /// How many of these moves were its holder's ([`crate::Op::Jump`]).
    pub jumps: u8,
    /// The ETA that it was given on entering, if it had to wait and the ETA was measured. `None` after a move, as that
    /// ETA was about another place.
    pub eta_given: Option<EtaGiven>,
}

/// A token that is not gone, as it is read: the fields of its [`LiveRecord`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Live<'a> {
    pub key: Option<&'a [u8]>,
    pub entered: Entered,
    pub stage: Stage,
    pub moved_from: &'a [(u8, Token)],
    pub jumps: u8,
    pub eta_given: Option<EtaGiven>,
}

impl LiveRecord {
    pub(crate) fn view(&self) -> Live<'_> {
        Live {
            key: self.key.as_deref(),
            entered: self.entered,
            stage: self.stage,
            moved_from: &self.moved_from,
            jumps: self.jumps,
            eta_given: self.eta_given,
        }
    }
}

impl<'a> Live<'a> {
    pub(crate) fn newcomer(key: Option<&'a [u8]>, entered: Entered) -> Self {
        Self {
            key,
            entered,
            stage: Stage::Waiting {
                last_seen_ms: entered.at.service_ms,
            },
            moved_from: &[],
            jumps: 0,
            eta_given: None,
        }
    }

    pub(crate) fn to_record(self) -> LiveRecord {
        LiveRecord {
            key: self.key.map(Into::into),
            entered: self.entered,
            stage: self.stage,
            moved_from: self.moved_from.into(),
            jumps: self.jumps,
            eta_given: self.eta_given,
        }
    }

    /// Never [`State::Gone`].
    pub fn state(&self) -> State {
        self.stage.state()
    }

    /// While it holds a seat: when it expires.
    pub fn deadline_ms(&self) -> Option<u64> {
        self.stage.deadline_ms()
    }

    /// In checkout: the fencing number of its claim.
    pub fn epoch(&self) -> Option<u64> {
        self.stage.epoch()
    }

    /// How many units of the quota its seat reserves; 0 while it waits.
    pub fn units(&self) -> u32 {
        self.stage.units()
    }

    /// `last_seen_ms` or `deadline_ms`: an [`crate::RecycleItem`] must name the current value.
    pub fn clock_ms(&self) -> u64 {
        self.stage.clock_ms()
    }

    pub(crate) fn holds_seat(&self) -> bool {
        self.stage.holds_seat()
    }
}

impl Stage {
    pub(crate) fn state(self) -> State {
        match self {
            Stage::Waiting { .. } => State::Waiting,
            Stage::Admitted { .. } => State::Admitted,
            Stage::InCheckout { .. } => State::InCheckout,
        }
    }

    /// With a seat: when it expires.
    pub(crate) fn deadline_ms(self) -> Option<u64> {
        self.holds_seat().then(|| self.clock_ms())
    }

    /// In checkout: the fencing number of its claim.
    pub(crate) fn epoch(self) -> Option<u64> {
        match self {
            Stage::InCheckout { epoch, .. } => Some(epoch),
            _ => None,
        }
    }

    /// How many units of the quota its seat reserves; 0 without a seat.
    pub fn units(self) -> u32 {
        match self {
            Stage::Waiting { .. } => 0,
            Stage::Admitted { units, .. } | Stage::InCheckout { units, .. } => units,
        }
    }

    fn clock_ms(self) -> u64 {
        match self {
            Stage::Waiting { last_seen_ms: ms }
            | Stage::Admitted {
                deadline_ms: ms, ..
            }
            | Stage::InCheckout {
                deadline_ms: ms, ..
            } => ms,
        }
    }

    pub(crate) fn holds_seat(self) -> bool {
        !matches!(self, Stage::Waiting { .. })
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
        assert_eq!(Reason::from_code(10), None);
        assert_eq!(Reason::parse("forgotten"), None);
    }
}
