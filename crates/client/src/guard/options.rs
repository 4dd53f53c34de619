//! What a guard is told, and what it refuses with.

use std::fmt;
use std::time::Duration;

use nowserving_adapt::AutoSeats;
use nowserving_line::LaneName;
use nowserving_protocol::error::Code;
use nowserving_protocol::user::Key;

use super::is_overloaded;
use crate::error::{Error, Kind};

/// The options of a [`Guard`](crate::Guard).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GuardOptions {
    /// What happens to callers while the cluster does not answer; default [`OnUnavailable::Allow`].
    pub on_unavailable: OnUnavailable,
    /// How long the cluster may take to answer a call, all attempts together; at most an hour. Default 5 s, in which a
    /// request that was lost with a leader is sent again, and answered by the next leader. After a call that took longer
    /// the guard asks once more, for a second at most: without an answer the cluster is away. Then later callers do not
    /// wait for it, until a write of this process's is answered.
    pub patience: Duration,
    /// How long [`Guard::acquire`](crate::Guard::acquire) takes at most: from the call to the slot, so including the time
    /// in which the cluster does not answer. The line's own `max_wait_ms` counts the time in line alone. Default: no limit.
    pub max_wait: Option<Duration>,
    /// How many visits of this process may be under way: callers that wait, slots held, and releases that the cluster
    /// does not know of yet. Default 16,384; more are refused as [`Refused::Busy`].
    pub in_flight_max: u32,
    /// The line's seats follow the time that handlers take, or the load that [`Guard::report_load`](crate::Guard::report_load)
    /// is told: see [`AutoSeats`]. The same for all processes behind the line: each tells the cluster its part of the change
    /// (`capacity_told`), for which it needs the right. Default: none, the seats are those of the line's settings.
    pub auto_seats: Option<AutoSeats>,
}

impl Default for GuardOptions {
    fn default() -> GuardOptions {
        GuardOptions {
            on_unavailable: OnUnavailable::default(),
            patience: Duration::from_secs(5),
            max_wait: None,
            in_flight_max: 16_384,
            auto_seats: None,
        }
    }
}

/// What happens to callers while the cluster does not answer.
///
/// It decides for newcomers at once, and for a caller in line when its own next poll is not answered. Slots that are
/// held stay: with `Deny` until their time is up by this process's clock, else until the cluster says that the seat is
/// gone, or `checkout_max_ms` ends. (The cluster's clock stands still while it has no quorum.)
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnUnavailable {
    /// They run, without a limit. A service stays available, at the cost of more handlers at once.
    #[default]
    Allow,
    /// They are refused as [`Refused::Unavailable`].
    Deny,
    /// At most this many of them run at once in this process, besides those that hold seats. The others wait until one
    /// of these ends, or until the cluster is back: then they enter the line.
    Local(u32),
}

/// What one caller asks for.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    pub(crate) lane: Option<LaneName>,
    pub(crate) label: Option<String>,
    pub(crate) max_wait: Option<Duration>,
}

impl Ask {
    /// Waits in this lane, not in the line's default one.
    #[must_use]
    pub fn lane(self, lane: LaneName) -> Ask {
        let lane = Some(lane);
        Ask { lane, ..self }
    }

    /// Begins the key under which operators see the visit, as in `billing-3f…`; default `guard`. 1 to 64 bytes. It need not be unique.
    #[must_use]
    pub fn label(self, label: impl Into<String>) -> Ask {
        let label = Some(label.into());
        Ask { label, ..self }
    }

    /// In place of [`GuardOptions::max_wait`].
    #[must_use]
    pub fn max_wait(self, wait: Duration) -> Ask {
        let max_wait = Some(wait);
        Ask { max_wait, ..self }
    }

    /// A key that no other visit has: with a shared key two callers would hold one seat.
    pub(crate) fn key(&self) -> Result<Key, Refused> {
        let label = self.label.as_deref().unwrap_or("guard");
        if !(1..=64).contains(&label.len()) {
            let error = Error::new(Kind::BadArgument, "a label has 1 to 64 bytes");
            return Err(Refused::Failed(error));
        }
        let key = format!("{label}-{:032x}", rand::random::<u128>());
        let bad = |message: String| Refused::Failed(Error::new(Kind::BadArgument, message));
        Key::new(key.into_bytes()).map_err(|error| bad(error.message))
    }
}

/// Why a caller gets no slot.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Refused {
    /// The line, or the lane, is full (`line_full`), or sold out: 429.
    Full {
        /// After how long the cluster suggests another attempt.
        retry_after: Option<Duration>,
    },
    /// It has waited for the line's `max_wait_ms`, or for [`GuardOptions::max_wait`]: 504.
    WaitedTooLong {
        /// From the call on.
        waited: Duration,
    },
    /// The line takes nobody now (`line_closed`): 503.
    Closed,
    /// It was removed from the line: `kicked` by an operator, `closed`, or `idle` or `no_show` because this process's
    /// requests did not get through in time: 503.
    Removed {
        /// The reason with which the token is gone.
        reason: String,
    },
    /// The cluster does not answer, and [`OnUnavailable::Deny`] decides: 503.
    Unavailable,
    /// The cluster answers that it has too many requests: 503. It is not away, so [`OnUnavailable`] does not decide.
    Overloaded {
        /// After how long the cluster suggests another attempt.
        retry_after: Option<Duration>,
    },
    /// This process has [`GuardOptions::in_flight_max`] visits under way, or [`Guard::drained`](crate::Guard::drained)
    /// was called: 503.
    Busy,
    /// Something is wrong with the set-up: the line does not exist, a right is missing: 500.
    Failed(Error),
}

impl Refused {
    /// After how long the cluster suggests another attempt.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Refused::Full { retry_after } | Refused::Overloaded { retry_after } => *retry_after,
            _ => None,
        }
    }

    /// The refusal for an error that is about the request and not about the cluster.
    pub(crate) fn from_error(error: Error) -> Refused {
        match error.code() {
            Some(Code::LineFull | Code::SoldOut) => Refused::Full {
                retry_after: error.retry_after(),
            },
            Some(Code::LineClosed) => Refused::Closed,
            Some(Code::TokenGone) => {
                let reason = error.api().and_then(|api| api.reason.clone());
                Refused::Removed {
                    reason: reason.unwrap_or_else(|| "gone".to_owned()),
                }
            }
            _ if is_overloaded(&error) => Refused::Overloaded {
                retry_after: error.retry_after(),
            },
            _ => Refused::Failed(error),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Full { .. } => f.write_str("too many wait already"),
            Refused::WaitedTooLong { waited } => {
                write!(f, "waited too long ({} ms)", waited.as_millis())
            }
            Refused::Closed => f.write_str("the line takes nobody now"),
            Refused::Removed { reason } => write!(f, "removed from the line ({reason})"),
            Refused::Unavailable => f.write_str("the cluster that admits does not answer"),
            Refused::Overloaded { .. } => {
                f.write_str("the cluster that admits has too many requests")
            }
            Refused::Busy => f.write_str("too many are under way in this process"),
            Refused::Failed(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Refused {}
