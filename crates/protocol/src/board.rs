//! Boards, and the answer to `info`.

use std::borrow::Cow;

use nowserving_line::{self as line, HeldBackBy, LaneName, LineName, Timestamp};
use serde::{Deserialize, Serialize};

use crate::draw::DrawReply;
use crate::wire;

/// A board: the four pointers of every lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BoardReply {
    /// The line's name.
    #[serde(with = "wire::Name")]
    pub line: LineName,
    /// Which creation of it.
    pub incarnation: u64,
    /// Grows by one with every change of the line.
    pub version: u64,
    /// The time of the board, on the wall clock of the node that sent it.
    pub at_ms: u64,
    /// `pre_open`, `open`, `paused`, `draining` or `closed`; later releases may have more.
    pub phase: String,
    /// A draw is awaited or goes on: places are not known, whatever the pointers are. The first board after it is
    /// without this, and `whole`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undrawn: bool,
    /// How many tokens may be in checkout at once.
    pub seats: u32,
    /// How many tokens hold a seat and have not claimed it.
    pub admitted: u64,
    /// How many tokens hold a seat and have claimed it.
    pub in_checkout: u64,
    /// The lanes, in the line's order.
    pub lanes: Vec<LaneReply>,
}

/// One lane of a board.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LaneReply {
    /// The lane's name.
    #[serde(with = "wire::Name")]
    pub lane: LaneName,
    /// The number that the next entrant gets.
    pub next_token: u64,
    /// Every token up to it is gone.
    pub done_through: u64,
    /// No token up to this number waits, or would wait if it were issued.
    pub admitted_through: u64,
    /// The highest number that could be issued now.
    pub accepts_through: u64,
    /// How many tokens wait.
    pub waiting: u64,
    /// In events only: the waiting tokens gone since `prev_version`, as ranges. Missing in an
    /// event: there were too many to list; `status` has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holes: Option<Vec<[u64; 2]>>,
}

impl BoardReply {
    /// A board at `at_ms` of the wall clock.
    pub fn new(board: &line::Board, at_ms: u64) -> BoardReply {
        let lanes = board.lanes.iter().map(|lane| LaneReply {
            lane: lane.lane.clone(),
            next_token: lane.next_token,
            done_through: lane.done_through,
            admitted_through: lane.admitted_through,
            accepts_through: lane.accepts_through,
            waiting: lane.waiting,
            holes: None,
        });
        BoardReply {
            line: board.line.clone(),
            incarnation: board.incarnation,
            version: board.version,
            at_ms,
            phase: board.phase.as_str().to_owned(),
            undrawn: board.undrawn,
            seats: board.seats,
            admitted: board.admitted,
            in_checkout: board.in_checkout,
            lanes: lanes.collect(),
        }
    }
}

/// Why the next token of a line is not admitted at this moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeldBackReply {
    /// `nothing` (nobody waits), `phase`, `draw`, `quota`, `seats`, `called`, `admission_rate`, or `admitting`
    /// (nothing: waiting tokens are being admitted, in steps); the first that applies. Later releases
    /// may have more.
    pub by: Cow<'static, str>,
    /// With `phase`: which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Cow<'static, str>>,
    /// With `admission_rate`: when the next token can be admitted, on the clock of `at_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at_ms: Option<u64>,
    /// With `admission_rate`: in how many milliseconds that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_in_ms: Option<u64>,
}

impl HeldBackReply {
    /// The reason that holds the line back at `now`.
    pub fn new(line: &line::Line, now: Timestamp) -> HeldBackReply {
        HeldBackReply::of(line.held_back_by(now.service_ms), now)
    }

    pub(crate) fn of(held_back: HeldBackBy, now: Timestamp) -> HeldBackReply {
        let next_ms = match held_back {
            HeldBackBy::AdmissionRate { next_at_ms } => Some(next_at_ms),
            _ => None,
        };
        HeldBackReply {
            by: held_back.as_str().into(),
            phase: match held_back {
                HeldBackBy::Phase(phase) => Some(phase.as_str().into()),
                _ => None,
            },
            next_at_ms: next_ms.map(|ms| now.wall_at_ms(ms)),
            next_in_ms: next_ms.map(|ms| now.until_ms(ms)),
        }
    }
}

/// Where a line is served, as the node that answers knows it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// The shard that serves the line.
    pub shard: u32,
    /// The id of the node that leads it, if known.
    pub leader: Option<u64>,
}

/// The answer to `info`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InfoReply {
    /// The board; its fields are beside the others.
    #[serde(flatten)]
    pub board: BoardReply,
    /// The shard that the line is in.
    pub shard: u32,
    /// The id of the node that leads the shard; null while none is known.
    pub leader: Option<u64>,
    /// Why the next token is not admitted now.
    pub held_back_by: HeldBackReply,
    /// The draw at its opening; missing if it opens in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draw: Option<DrawReply>,
    /// The `eta_ms` of a token that enters the default lane now; null while nothing is known.
    #[serde(default)]
    pub newcomer_eta_ms: Option<u64>,
    /// With `newcomer_eta_ms`: what it rests on, as `eta_from` of a status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newcomer_eta_from: Option<Cow<'static, str>>,
    /// The settings that users may see.
    pub settings: UserSettings,
}

impl InfoReply {
    /// The line as users see it now.
    pub fn new(line: &line::Line, now: Timestamp, home: Home) -> InfoReply {
        let eta = line.newcomer_eta(now.service_ms);
        InfoReply {
            board: BoardReply::new(&line.board(now.service_ms), now.wall_ms),
            shard: home.shard,
            leader: home.leader,
            held_back_by: HeldBackReply::new(line, now),
            draw: DrawReply::new(line),
            newcomer_eta_ms: eta.map(|(eta_ms, _)| eta_ms),
            newcomer_eta_from: eta.map(|(_, from)| from.as_str().into()),
            settings: line.settings().into(),
        }
    }
}

/// The settings of a line that users may see. Listed by hand, because a new setting must not
/// become visible to users unless somebody decides that: labels, boosts and the rate are the
/// operator's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UserSettings {
    /// How many tokens may be in checkout at once.
    pub seats: u32,
    /// How many tokens more than `seats` may be in the line.
    pub queue_limit: u32,
    /// A waiting token that has not been seen for longer is recycled.
    pub waiting_idle_timeout_ms: u64,
    /// How long an admitted token has to claim its seat.
    pub claim_timeout_ms: u64,
    /// How long a claimed seat lasts without renewal.
    pub checkout_timeout_ms: u64,
    /// The longest checkout with renewals, counted from the claim.
    pub checkout_max_ms: u64,
    /// The names of the lanes.
    #[serde(default, with = "wire::Names")]
    pub lanes: Vec<LaneName>,
    /// The lane of entrants that name none.
    #[serde(default, with = "wire::NameOption")]
    pub default_lane: Option<LaneName>,
    /// How many of the first waiting positions of a lane are called to prepare.
    #[serde(default)]
    pub call_ahead: u32,
    /// How many can complete; missing: no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<UserQuota>,
    /// As on the board.
    #[serde(default)]
    pub phase: String,
    /// `shadow` or `off`: nobody is held back; missing: `on`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<String>,
    /// Larger positions are not shown; missing: all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position_cap: Option<u32>,
    /// Whether a claim also completes.
    #[serde(default)]
    pub release_on_claim: bool,
    /// Whether an event per token is published.
    pub token_events: bool,
}

/// The part of a quota that users may see.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UserQuota {
    /// How many can complete.
    pub total: u64,
}

impl From<&line::Settings> for UserSettings {
    fn from(settings: &line::Settings) -> UserSettings {
        UserSettings {
            seats: settings.seats,
            queue_limit: settings.queue_limit,
            waiting_idle_timeout_ms: settings.waiting_idle_timeout_ms,
            claim_timeout_ms: settings.claim_timeout_ms,
            checkout_timeout_ms: settings.checkout_timeout_ms,
            checkout_max_ms: settings.checkout_max_ms,
            lanes: settings.lanes.iter().map(|l| l.name.clone()).collect(),
            default_lane: settings.effective_default_lane().cloned(),
            call_ahead: settings.call_ahead,
            quota: settings.quota.map(|quota| UserQuota { total: quota.total }),
            phase: settings.phase.as_str().to_owned(),
            gate: (!settings.gate.holds_back()).then(|| settings.gate.as_str().to_owned()),
            position_cap: settings.position_cap,
            release_on_claim: settings.release_on_claim,
            token_events: settings.token_events,
        }
    }
}
