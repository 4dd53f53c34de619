//! What is shown: the status of a token, the board of a line, the counts.

use crate::{ForecastRecord, LaneName, LineName, Phase, Reason, State, Token, TokenRef};

/// A token as its holder may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Which token. Not the one asked about if that was moved.
    pub at: TokenRef,
    /// Its line.
    pub line: LineName,
    /// Its lane.
    pub lane: LaneName,
    /// Where it stands.
    pub state: State,
    /// While waiting: 1 + the number of tokens that wait before it in its lane, or `position_cap`
    /// if it is past that.
    pub position: Option<u64>,
    /// `position` is the cap, not where it stands.
    pub position_capped: bool,
    /// While waiting: `position - 1`.
    pub ahead: Option<u64>,
    /// While waiting: how long it will take until it is admitted, as likely longer as shorter; none
    /// while nothing is known: too few have left their seats yet, or nobody is being admitted.
    pub eta_ms: Option<u64>,
    /// With `eta_ms`: what nine in ten don't exceed.
    pub eta_p90_ms: Option<u64>,
    /// It waits among the first `call_ahead` of its lane: its holder should prepare.
    pub call_ahead: bool,
    /// The lane's pointer: no number up to it waits.
    pub admitted_through: u64,
    /// The fencing number of its claim, if it ever claimed (and, once gone, that is remembered).
    pub epoch: Option<u64>,
    /// While it holds a seat: when it loses it (service clock).
    pub deadline_ms: Option<u64>,
    /// Once gone: why; `Some(None)` when that is forgotten.
    pub reason: Option<Option<Reason>>,
    /// While live: when it entered (wall clock).
    pub entered_at_ms: Option<u64>,
    /// When a well-behaved client asks again.
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

/// The pointers of every lane, as everybody may see them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Board {
    /// The line.
    pub line: LineName,
    /// Which creation of it.
    pub incarnation: u64,
    /// Grows by one with every change of the line.
    pub version: u64,
    /// Whether it takes and admits tokens.
    pub phase: Phase,
    /// How many may hold a seat at once.
    pub seats: u32,
    /// How many hold a seat that they have not claimed.
    pub admitted: u64,
    /// How many hold a seat that they have claimed.
    pub in_checkout: u64,
    /// The lanes, in the order of the settings.
    pub lanes: Vec<LaneBoard>,
}

/// The four pointers of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneBoard {
    /// The lane.
    pub lane: LaneName,
    /// The lane's place in the line's table, which events and tokens name: not its place here.
    pub lane_id: u8,
    /// Every token up to it is gone.
    pub done_through: u64,
    /// No number up to it waits, or would have to on being issued.
    pub admitted_through: u64,
    /// The highest number that could be handed out now.
    pub accepts_through: u64,
    /// The number that the next entrant gets.
    pub next_token: u64,
    /// How many wait.
    pub waiting: u64,
}

/// How many tokens an incarnation has had, and where they are:
/// `issued = waiting + admitted + in_checkout + the sum of gone`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Numbers handed out, over all lanes.
    pub issued: u64,
    /// Tokens that wait.
    pub waiting: u64,
    /// Tokens that hold a seat they have not claimed.
    pub admitted: u64,
    /// Tokens that hold a seat they have claimed.
    pub in_checkout: u64,
    /// Tokens gone, by [`Reason::code`].
    pub gone: [u64; Reason::ALL.len()],
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
    /// Tokens that wait.
    pub waiting: u64,
    /// Tokens that hold a seat they have not claimed.
    pub admitted: u64,
    /// Tokens that hold a seat they have claimed.
    pub in_checkout: u64,
    /// How good the forecasts of the lines have been.
    pub forecasts: ForecastRecord,
}

impl Totals {
    /// Puts `new` in the place of `old`, which is part of the sums. The arithmetic wraps: sums of what
    /// a hostile snapshot holds may pass 2^64 and must come back.
    pub(crate) fn replace(&mut self, old: &Self, new: &Self) {
        let replace = |sum: &mut u64, old: u64, new: u64| {
            *sum = sum.wrapping_sub(old).wrapping_add(new);
        };
        replace(&mut self.waiting, old.waiting, new.waiting);
        replace(&mut self.admitted, old.admitted, new.admitted);
        replace(&mut self.in_checkout, old.in_checkout, new.in_checkout);
        let (sum, old, new) = (&mut self.forecasts, &old.forecasts, &new.forecasts);
        replace(&mut sum.told, old.told, new.told);
        replace(&mut sum.untold, old.untold, new.untold);
        replace(&mut sum.judged, old.judged, new.judged);
        replace(&mut sum.covered, old.covered, new.covered);
        for (sum, (old, new)) in sum.off_by.iter_mut().zip(old.off_by.iter().zip(new.off_by)) {
            replace(sum, *old, new);
        }
    }
}
