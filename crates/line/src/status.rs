//! The results of reads of a line: the status of a token, the board, the counts.

use crate::{
    EtaFrom, GoneFrom, HeldBackBy, LaneName, LineName, Phase, Reason, RefusedCounts, State, Token,
    TokenRef,
};

/// A token as its holder may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Which token. Not the one asked about if that was moved.
    pub at: TokenRef,
    pub line: LineName,
    pub lane: LaneName,
    pub state: State,
    /// While waiting: 1 + the number of tokens that wait before it in its lane, at most `position_cap`. `None` while a draw
    /// is awaited or goes on.
    pub position: Option<u64>,
    /// `position` is the cap; the true one is larger.
    pub position_capped: bool,
    /// While waiting: `position - 1`.
    pub ahead: Option<u64>,
    /// While waiting: 1 + the number of tokens of all lanes that would be admitted before it, as things are. `None` if
    /// that is more than `position_cap`.
    pub turn: Option<u64>,
    /// While waiting: the median time until it is admitted; `None` while it is unknown, as too few seats were
    /// given back yet (without `checkout_expected_ms`) or nobody is being admitted.
    pub eta_ms: Option<u64>,
    /// With `eta_ms`: the 90th percentile.
    pub eta_p90_ms: Option<u64>,
    /// With `eta_ms`: what that rests on.
    pub eta_from: Option<EtaFrom>,
    /// While waiting: the line's phase.
    pub phase: Option<Phase>,
    /// While waiting: why the line does not admit its next token now.
    pub held_back_by: Option<HeldBackBy>,
    /// While waiting: it was called ahead, so its holder should prepare.
    pub call_ahead: bool,
    /// The lane's pointer: no number up to this one waits.
    pub admitted_through: u64,
    /// The fencing number of its claim, if it has claimed; of a gone token as long as that is remembered.
    pub epoch: Option<u64>,
    /// While it holds a seat: when that expires (service clock).
    pub deadline_ms: Option<u64>,
    /// While it holds a seat of a line with a quota: how many units it reserves.
    pub units: Option<u32>,
    /// Once gone: why; `Some(None)` once that is forgotten.
    pub reason: Option<Option<Reason>>,
    /// While live: when it entered (wall clock).
    pub entered_at_ms: Option<u64>,
    /// After how long a well-behaved client polls again.
    pub poll_after_ms: u64,
    /// The line's version.
    pub version: u64,
}

/// The answer to [`crate::Line::poll`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poll {
    /// The token as its holder may see it.
    pub status: Status,
    /// `None` if not asked for; `Some(None)` if the position is capped, or there are too many to list.
    pub holes: Option<Option<Vec<(Token, Token)>>>,
}

/// The public state of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Board {
    pub line: LineName,
    /// Which creation of it.
    pub incarnation: u64,
    /// The line's version.
    pub version: u64,
    /// Whether it takes and admits tokens.
    pub phase: Phase,
    /// A draw is awaited or goes on: places mean nothing.
    pub undrawn: bool,
    pub seats: u32,
    /// Tokens with a seat that they have not claimed.
    pub admitted: u64,
    /// Tokens with a seat that they have claimed.
    pub in_checkout: u64,
    /// The lanes, in the order of the settings.
    pub lanes: Vec<LaneBoard>,
}

/// The four pointers of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneBoard {
    pub lane: LaneName,
    /// The lane's id, as in tokens and events. Not its index here.
    pub lane_id: u8,
    /// Every token up to this one is gone.
    pub done_through: u64,
    /// No number up to this one waits, or would have to wait when it is issued.
    pub admitted_through: u64,
    /// The largest number that could be issued now.
    pub accepts_through: u64,
    pub next_token: u64,
    pub waiting: u64,
}

/// The tokens of an incarnation by state: `issued = drawn + waiting + admitted + in_checkout + the sum of gone`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Numbers issued, over all lanes.
    pub issued: u64,
    /// Numbers that the draw has replaced by others, or is to replace: those of all who took part.
    pub drawn: u64,
    pub waiting: u64,
    pub admitted: u64,
    pub in_checkout: u64,
    /// Tokens gone, by [`Reason::code`].
    pub gone: [u64; Reason::ALL.len()],
    pub gone_from: GoneFrom,
    /// Entrants refused, as far as a leader has written them down.
    pub refused: RefusedCounts,
}

impl Counts {
    /// Tokens gone for this reason.
    pub fn gone_for(&self, reason: Reason) -> u64 {
        self.gone[usize::from(reason.code())]
    }

    /// Tokens that are not gone.
    pub fn live(&self) -> u64 {
        self.waiting + self.admitted + self.in_checkout
    }
}

/// Sums over all lines of a shard, kept up to date by every operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub waiting: u64,
    pub admitted: u64,
    pub in_checkout: u64,
}

impl Totals {
    /// Adds the totals of another shard.
    pub fn add(&mut self, other: &Self) {
        self.replace(&Self::default(), other);
    }

    /// Replaces one line's share of the sums. The arithmetic wraps: the sums of a hostile snapshot may pass
    /// 2^64.
    pub(crate) fn replace(&mut self, old: &Self, new: &Self) {
        let replace = |sum: &mut u64, old: u64, new: u64| {
            *sum = sum.wrapping_sub(old).wrapping_add(new);
        };
        replace(&mut self.waiting, old.waiting, new.waiting);
        replace(&mut self.admitted, old.admitted, new.admitted);
        replace(&mut self.in_checkout, old.in_checkout, new.in_checkout);
    }
}
