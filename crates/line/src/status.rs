//! What is shown: the status of a token, the board of a line, the counts.

use crate::foresee::Foreseen;
use crate::{LaneName, LineName, Phase, Reason, Settings, State, Token, TokenRef};

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

/// Nobody is told to stay away for longer, however far back.
const POLL_MS_MAX: u64 = 30_000;
/// Nobody is told to come sooner, unless the timeouts leave no choice.
const POLL_MS_MIN: u64 = 100;
/// While there is no forecast: as many places as the line has seats further back can ask this much
/// later. Set for quick checkouts, as a seat stands empty until its next holder asks.
const POLL_MS_PER_ROUND: u64 = 2_000;
/// With a forecast: it need not ask before its turn can come, this many standard deviations early,
const POLL_EARLY_SIGMAS: f64 = 1.5;
/// and where that is now, it asks so often in the time that a seat is held: on average a seat then
/// stands empty for half of that part.
const POLL_PER_HOLD: f64 = 20.0;

/// When a well-behaved client asks again. At most a third of the idle timeout and half of the
/// claim timeout, so that one lost poll or a late look at being admitted costs nobody the place.
///
/// The load: each look halves the time left, from `cap` (the 30 s or less that nobody is told to
/// exceed) down to the twentieth of the hold time, or [`POLL_MS_MIN`] if that is more; there the
/// first two or three ask 20 times a hold time. With `m` admissions a second and `w` waiting that
/// makes about `m × (log2(cap / max(hold / 20, 0.1 s)) + 50 / seats) + w / cap` polls a second.
pub(crate) fn poll_after_ms(
    settings: &Settings,
    state: State,
    position: Option<u64>,
    foreseen: Option<Foreseen>,
    token: Token,
) -> u64 {
    let cap = POLL_MS_MAX
        .min(settings.waiting_idle_timeout_ms / 3)
        .min(settings.claim_timeout_ms / 2);
    let wish = match (state, foreseen) {
        (State::Waiting, Some(it)) => {
            let early_ms = it.eta_ms - POLL_EARLY_SIGMAS * it.sigma_ms;
            let halfway_ms = early_ms.min(it.eta_ms / 2.0);
            halfway_ms.max(it.hold_ms / POLL_PER_HOLD) as u64
        }
        (State::Waiting, None) => {
            position.unwrap_or(1).saturating_mul(POLL_MS_PER_ROUND)
                / u64::from(settings.seats.max(1))
        }
        // It has what it wanted and should act on it, not ask.
        (State::Admitted, _) => 1_000,
        // In time to renew, and to miss it once.
        (State::InCheckout, _) => settings.checkout_timeout_ms / 3,
        (State::Gone, _) => POLL_MS_MAX,
    };
    let base = wish.max(POLL_MS_MIN).min(cap);
    // Up to a fifth earlier (never later: the cap is a promise), by the token, so that a crowd
    // that came at once does not keep asking at once.
    let earlier = base / 5 * (mix(token) % 1_024) / 1_024;
    (base - earlier).max(POLL_MS_MIN.min(cap)).max(1)
}

/// SplitMix64's finaliser: neighbours get unrelated values.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_keep_within_the_timeouts_and_spread() {
        let mut settings = Settings::new(1, 0);
        for timeout_ms in [100, 250, 1_000, 30_000, crate::TIMEOUT_MS_MAX] {
            settings.waiting_idle_timeout_ms = timeout_ms;
            settings.claim_timeout_ms = timeout_ms;
            for position in [1, 2, 8, 100, 10_000_000, u64::MAX] {
                for token in 1..100 {
                    let ms = poll_after_ms(&settings, State::Waiting, Some(position), None, token);
                    assert!(ms <= timeout_ms / 3 && ms <= timeout_ms / 2 && ms >= 1);
                    assert!(ms >= 100 || timeout_ms / 3 < 125, "{timeout_ms} {ms}");
                }
            }
        }
        settings = Settings::new(1, 0);
        let poll =
            |position, token| poll_after_ms(&settings, State::Waiting, Some(position), None, token);
        assert!(poll(1, 7) < poll(100, 7), "the front asks sooner");
        let distinct: std::collections::BTreeSet<_> = (1..1_000).map(|t| poll(500, t)).collect();
        assert!(distinct.len() > 500, "a crowd does not ask in step");
    }
}
