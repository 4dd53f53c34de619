//! What follows a failed attempt: which way next, how long to wait, when to stop. Pure but for the
//! jitter; [`crate::call`] does the asking.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use nowserving_protocol::error::{ApiError, Code};
use rand::RngExt;

use crate::error::{Error, Kind};

/// Delays between attempts: 20 ms doubling to 250 ms, each with up to as much again of jitter.
///
/// Short, as the usual reason is a change of leader (one to two seconds) that many wait out
/// together; not shorter, so that a crowd of thousands does not keep an election from ending.
const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(20))
    .with_max_delay(Duration::from_millis(250))
    .without_max_times()
    .with_jitter();

/// The least time that an attempt after the first is given.
const ATTEMPT_MIN: Duration = Duration::from_millis(10);

/// Which subject a request goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// The leader's: one hop, but nobody listens while there is no leader.
    Shard,
    /// Any node's: it sees to it that the leader serves the request, by the deadline.
    Plain,
}

/// How one attempt failed.
#[derive(Debug, Clone)]
pub(crate) enum Miss {
    /// The cluster answered with an error.
    Api(ApiError),
    /// NATS says that nobody listens there: nothing happened.
    NoResponders,
    /// Sent, and no answer in time.
    NoAnswer,
    /// Not sent: the connection is down at the moment.
    Disconnected,
    /// No further attempt makes sense.
    Fatal(Error),
}

/// Whether repeating or losing an operation can matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Changes nothing: its outcome cannot be unknown.
    Read,
    /// Changes the line.
    Write,
}

/// What to do after a miss.
#[derive(Debug)]
pub(crate) enum Next {
    /// Try again after that long, at [`Attempts::route`].
    Retry { wait: Duration },
    /// It is over.
    Stop(Error),
}

/// The attempts of one call.
pub(crate) struct Attempts {
    effect: Effect,
    shard_known: bool,
    route: Route,
    delays: ExponentialBackoff,
    /// An attempt may have had its effect.
    uncertain: bool,
    count: u32,
}

impl Attempts {
    /// `shard_known`: there is a shard subject to go to.
    pub(crate) fn new(effect: Effect, shard_known: bool) -> Attempts {
        Attempts {
            effect,
            shard_known,
            route: if shard_known {
                Route::Shard
            } else {
                Route::Plain
            },
            delays: BACKOFF.build(),
            uncertain: false,
            count: 0,
        }
    }

    /// Where the next attempt goes.
    pub(crate) fn route(&self) -> Route {
        self.route
    }

    /// Whether an attempt so far may have had its effect.
    pub(crate) fn uncertain(&self) -> bool {
        self.uncertain
    }

    /// Decides what follows; `left` is what remains of the call's deadline.
    pub(crate) fn after(&mut self, miss: Miss, left: Duration) -> Next {
        self.count += 1;
        if let Miss::Fatal(error) = miss {
            return Next::Stop(error.after_unknown(self.uncertain));
        }
        if let Miss::Api(api) = &miss
            && !is_retried(api.code)
        {
            return Next::Stop(Error::refused(api.clone(), self.uncertain));
        }
        if self.effect == Effect::Write && is_uncertain(&miss) {
            self.uncertain = true;
        }
        let wait = self.wait(&miss);
        // An attempt needs time for a round trip, else it only makes the outcome unknown.
        if wait + ATTEMPT_MIN >= left {
            return Next::Stop(self.unsettled(miss));
        }
        self.route = self.other_way(&miss);
        Next::Retry { wait }
    }

    /// The deadline leaves no time for another attempt.
    fn unsettled(&self, miss: Miss) -> Error {
        let kind = if self.uncertain {
            Kind::OutcomeUnknown
        } else {
            Kind::Unavailable
        };
        let attempts = self.count;
        let (what, api) = match miss {
            // The kind is told before the message: not twice.
            Miss::Api(api) if api.code.as_str() == kind.to_string() => {
                (api.message.clone(), Some(api))
            }
            Miss::Api(api) => (api.to_string(), Some(api)),
            Miss::NoResponders => ("no node listens".to_owned(), None),
            Miss::NoAnswer => ("no answer in time".to_owned(), None),
            Miss::Disconnected => ("no connection to NATS".to_owned(), None),
            Miss::Fatal(error) => return error,
        };
        Error::unsettled(
            kind,
            format!("{what} (given up after {attempts} attempts)"),
            api,
        )
    }

    fn wait(&mut self, miss: &Miss) -> Duration {
        // No leader listens: any node can be asked at once, and waits for the new leader for us.
        if matches!(miss, Miss::NoResponders) && self.route == Route::Shard {
            return Duration::ZERO;
        }
        // The builder sets no limit of times, so there always is a next one.
        let backoff = self.delays.next().unwrap_or(Duration::from_millis(250));
        let Miss::Api(ApiError {
            retry_after_ms: Some(told_ms),
            ..
        }) = miss
        else {
            return backoff;
        };
        // Everybody refused at one moment is told the same time: spread their return by a quarter.
        let spread_ms = rand::rng().random_range(0..=told_ms / 4);
        backoff.max(Duration::from_millis(told_ms.saturating_add(spread_ms)))
    }

    fn other_way(&self, miss: &Miss) -> Route {
        let overloaded = matches!(miss, Miss::Api(api) if api.code == Code::Overloaded);
        match self.route {
            // The leader is there and busy: a detour over another node would only add to it.
            Route::Shard if overloaded => Route::Shard,
            Route::Shard => Route::Plain,
            Route::Plain if self.shard_known => Route::Shard,
            Route::Plain => Route::Plain,
        }
    }
}

/// Codes that say "not now" or "not here" instead of "no".
fn is_retried(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable | Code::NotLeader | Code::Overloaded | Code::OutcomeUnknown
    )
}

fn is_uncertain(miss: &Miss) -> bool {
    match miss {
        Miss::NoAnswer => true,
        Miss::Api(api) => api.code == Code::OutcomeUnknown,
        Miss::NoResponders | Miss::Disconnected | Miss::Fatal(_) => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    fn api(code: Code) -> Miss {
        Miss::Api(ApiError::new(code, "x"))
    }

    /// Takes the miss and wants another attempt.
    fn again(attempts: &mut Attempts, miss: Miss) -> (Route, Duration) {
        match attempts.after(miss, LONG) {
            Next::Retry { wait } => (attempts.route(), wait),
            Next::Stop(error) => panic!("stopped: {error}"),
        }
    }

    fn stop(next: Next) -> Error {
        match next {
            Next::Stop(error) => error,
            Next::Retry { .. } => panic!("retried"),
        }
    }

    #[test]
    fn final_codes_are_not_retried() {
        let retried = [
            Code::Unavailable,
            Code::NotLeader,
            Code::Overloaded,
            Code::OutcomeUnknown,
        ];
        for &code in Code::ALL {
            let mut attempts = Attempts::new(Effect::Write, true);
            if retried.contains(&code) {
                again(&mut attempts, api(code));
            } else {
                let error = stop(attempts.after(api(code), LONG));
                assert_eq!(error.kind(), Kind::Refused(code));
                assert!(!error.may_have_happened());
            }
        }
    }

    #[test]
    fn no_leader_goes_to_any_node_at_once_and_back_after_a_pause() {
        let mut attempts = Attempts::new(Effect::Write, true);
        assert_eq!(attempts.route(), Route::Shard);
        let (route, wait) = again(&mut attempts, Miss::NoResponders);
        assert_eq!((route, wait), (Route::Plain, Duration::ZERO));
        let (route, wait) = again(&mut attempts, api(Code::Unavailable));
        assert_eq!(route, Route::Shard);
        assert!(wait >= Duration::from_millis(20), "{wait:?}");
    }

    #[test]
    fn without_a_known_shard_it_stays_plain() {
        let mut attempts = Attempts::new(Effect::Write, false);
        for _ in 0..5 {
            let (route, wait) = again(&mut attempts, Miss::NoResponders);
            assert_eq!(route, Route::Plain);
            assert!(wait > Duration::ZERO);
        }
    }

    #[test]
    fn a_busy_leader_is_not_gone_around() {
        let mut attempts = Attempts::new(Effect::Write, true);
        assert_eq!(again(&mut attempts, api(Code::Overloaded)).0, Route::Shard);
        assert_eq!(again(&mut attempts, api(Code::NotLeader)).0, Route::Plain);
    }

    #[test]
    fn delays_grow_and_stay_bounded() {
        let mut attempts = Attempts::new(Effect::Write, false);
        let waits: Vec<Duration> = (0..20)
            .map(|_| again(&mut attempts, Miss::NoAnswer).1)
            .collect();
        assert!(waits[0] < Duration::from_millis(41), "{waits:?}");
        assert!(waits[10] >= Duration::from_millis(250), "{waits:?}");
        assert!(
            waits.iter().all(|w| *w <= Duration::from_millis(500)),
            "{waits:?}"
        );
    }

    #[test]
    fn retry_after_is_honoured_and_spread() {
        for _ in 0..50 {
            let miss = Miss::Api(ApiError::new(Code::Overloaded, "x").retry_after_ms(1000));
            let (_, wait) = again(&mut Attempts::new(Effect::Write, true), miss);
            assert!(wait >= Duration::from_millis(1000) && wait <= Duration::from_millis(1250));
        }
    }

    #[test]
    fn a_wait_past_the_deadline_stops_at_once() {
        let miss = Miss::Api(ApiError::new(Code::Overloaded, "x").retry_after_ms(1000));
        let mut attempts = Attempts::new(Effect::Write, true);
        let error = stop(attempts.after(miss, Duration::from_millis(900)));
        assert_eq!(error.kind(), Kind::Unavailable);
        assert_eq!(error.retry_after(), Some(Duration::from_millis(1000)));
        assert!(!error.may_have_happened());
    }

    #[test]
    fn an_unknown_outcome_is_not_forgotten() {
        let mut attempts = Attempts::new(Effect::Write, true);
        again(&mut attempts, Miss::NoAnswer);
        // "unavailable" speaks of its own attempt only
        let error = stop(attempts.after(api(Code::Unavailable), Duration::ZERO));
        assert_eq!(error.kind(), Kind::OutcomeUnknown);
        // also behind a final answer
        let error = stop(attempts.after(api(Code::VersionConflict), LONG));
        assert_eq!(error.code(), Some(Code::VersionConflict));
        assert!(error.may_have_happened());
    }

    #[test]
    fn a_read_has_no_unknown_outcome() {
        let mut attempts = Attempts::new(Effect::Read, true);
        let error = stop(attempts.after(Miss::NoAnswer, Duration::ZERO));
        assert_eq!(error.kind(), Kind::Unavailable);
    }
}
