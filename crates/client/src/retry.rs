//! Decides what follows a failed attempt: the next subject, the pause before it, or the end of the
//! call. Pure except for the jitter; [`crate::call`] sends the requests.
//!
//! All requests are repeated, writes too: the copies of one call have one request id, and an `enter`
//! always has a key.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::operation::Request;
use rand::RngExt;

use crate::error::{Error, Kind};

/// Delays between attempts: 20 ms doubling to 250 ms, each with up to as much again of jitter.
///
/// Short, because the usual reason is a change of leader (one to two seconds), for which many clients
/// wait together. Not shorter, so that the repetitions of thousands do not delay the election.
const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(20))
    .with_max_delay(Duration::from_millis(250))
    .without_max_times()
    .with_jitter();

/// The least time for an attempt after the first.
const ATTEMPT_MIN: Duration = Duration::from_millis(10);

/// Which subject a request goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// The leader's: one hop, but there are no subscribers while the shard has no leader.
    Shard,
    /// Any node's: the node forwards the request to the leader, and answers by the deadline.
    Plain,
}

/// How one attempt failed.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// The cluster answered with an error.
    Api(ApiError),
    /// NATS reports that the subject has no subscribers: nothing happened.
    NoResponders,
    /// Sent, and no reply in time.
    NoAnswer,
    /// Not sent: the connection is down at the moment.
    Disconnected,
    /// A further attempt cannot succeed.
    Fatal(Error),
}

/// Whether the outcome of an operation can be unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Changes nothing, so its outcome is never unknown.
    Read,
    /// Changes the line.
    Write,
}

impl Effect {
    pub(crate) fn of(request: &impl Request) -> Effect {
        match request.is_write() {
            true => Effect::Write,
            false => Effect::Read,
        }
    }
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
    /// `shard_known`: the number of shards is known, so there is a shard subject.
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

    /// Where to send the next attempt.
    pub(crate) fn route(&self) -> Route {
        self.route
    }

    /// Whether an attempt so far may have had its effect.
    pub(crate) fn uncertain(&self) -> bool {
        self.uncertain
    }

    /// Decides the next step: the pause before the next attempt, to [`Attempts::route`], or the end of the
    /// call. `left` is the time until the call's deadline.
    pub(crate) fn after(&mut self, failure: Failure, left: Duration) -> Result<Duration, Error> {
        self.count += 1;
        if let Failure::Fatal(error) = failure {
            return Err(error.after_unknown(self.uncertain));
        }
        if let Failure::Api(api) = &failure
            && !is_repeated(api.code)
        {
            let error = Error::new(Kind::Refused(api.code), &api.message).with_api(api.clone());
            return Err(error.after_unknown(self.uncertain));
        }
        if self.effect == Effect::Write && is_uncertain(&failure) {
            self.uncertain = true;
        }
        let wait = self.wait(&failure);
        // An attempt needs time for a round trip; a shorter one only makes the outcome unknown.
        if wait + ATTEMPT_MIN >= left {
            return Err(self.out_of_time(failure));
        }
        self.route = self.other_way(&failure);
        Ok(wait)
    }

    /// The deadline leaves no time for another attempt.
    fn out_of_time(&self, failure: Failure) -> Error {
        let kind = if self.uncertain {
            Kind::OutcomeUnknown
        } else {
            Kind::Unavailable
        };
        let what = match &failure {
            // `Display` prints the kind before the message: do not repeat it there.
            Failure::Api(api) if api.code == kind.code() => api.message.clone(),
            // It may say of its own attempt that nothing happened.
            Failure::Api(api) if self.uncertain => {
                format!("an attempt got no answer; the last one: {api}")
            }
            Failure::Api(api) => api.to_string(),
            Failure::NoResponders => {
                "no node listens: none runs, or the nodes have another prefix".to_owned()
            }
            Failure::NoAnswer => "no answer in time".to_owned(),
            Failure::Disconnected => "no connection to NATS".to_owned(),
            Failure::Fatal(error) => return error.clone(),
        };
        let error = Error::new(
            kind,
            format!("{what} (given up after {} attempts)", self.count),
        );
        match failure {
            Failure::Api(api) => error.with_api(api),
            _ => error,
        }
    }

    fn wait(&mut self, failure: &Failure) -> Duration {
        // There is no leader. Any node can be asked at once, and waits for the new leader.
        if matches!(failure, Failure::NoResponders) && self.route == Route::Shard {
            return Duration::ZERO;
        }
        // The builder sets no limit on the number of delays, so there is always a next one.
        let backoff = self.delays.next().unwrap_or(Duration::from_millis(250));
        let Failure::Api(ApiError {
            retry_after_ms: Some(retry_after_ms),
            ..
        }) = failure
        else {
            return backoff;
        };
        // Clients refused at one moment get the same time: spread their return by a quarter.
        let spread_ms = rand::rng().random_range(0..=retry_after_ms / 4);
        backoff.max(Duration::from_millis(
            retry_after_ms.saturating_add(spread_ms),
        ))
    }

    fn other_way(&self, failure: &Failure) -> Route {
        let overloaded = matches!(failure, Failure::Api(api) if api.code == Code::Overloaded);
        match self.route {
            // The leader is reachable and busy: a detour over another node would only add load.
            Route::Shard if overloaded => Route::Shard,
            Route::Shard => Route::Plain,
            Route::Plain if self.shard_known => Route::Shard,
            Route::Plain => Route::Plain,
        }
    }
}

/// Codes after which another attempt can succeed.
fn is_repeated(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable | Code::NotLeader | Code::Overloaded | Code::OutcomeUnknown
    )
}

fn is_uncertain(failure: &Failure) -> bool {
    match failure {
        Failure::NoAnswer => true,
        Failure::Api(api) => api.code == Code::OutcomeUnknown,
        Failure::NoResponders | Failure::Disconnected | Failure::Fatal(_) => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    fn api(code: Code) -> Failure {
        Failure::Api(ApiError::new(code, "x"))
    }

    /// Reports the failure and expects another attempt.
    fn again(attempts: &mut Attempts, failure: Failure) -> (Route, Duration) {
        match attempts.after(failure, LONG) {
            Ok(wait) => (attempts.route(), wait),
            Err(error) => panic!("stopped: {error}"),
        }
    }

    fn stop(next: Result<Duration, Error>) -> Error {
        next.expect_err("retried")
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
        let (route, wait) = again(&mut attempts, Failure::NoResponders);
        assert_eq!((route, wait), (Route::Plain, Duration::ZERO));
        let (route, wait) = again(&mut attempts, api(Code::Unavailable));
        assert_eq!(route, Route::Shard);
        assert!(wait >= Duration::from_millis(20), "{wait:?}");
    }

    #[test]
    fn without_a_known_shard_it_stays_plain() {
        let mut attempts = Attempts::new(Effect::Write, false);
        for _ in 0..5 {
            let (route, wait) = again(&mut attempts, Failure::NoResponders);
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
            .map(|_| again(&mut attempts, Failure::NoAnswer).1)
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
            let failure = Failure::Api(ApiError::new(Code::Overloaded, "x").retry_after_ms(1000));
            let (_, wait) = again(&mut Attempts::new(Effect::Write, true), failure);
            assert!(wait >= Duration::from_millis(1000) && wait <= Duration::from_millis(1250));
        }
    }

    #[test]
    fn a_wait_past_the_deadline_stops_at_once() {
        let failure = Failure::Api(ApiError::new(Code::Overloaded, "x").retry_after_ms(1000));
        let mut attempts = Attempts::new(Effect::Write, true);
        let error = stop(attempts.after(failure, Duration::from_millis(900)));
        assert_eq!(error.kind(), Kind::Unavailable);
        assert_eq!(error.retry_after(), Some(Duration::from_millis(1000)));
        assert!(!error.may_have_happened());
    }

    #[test]
    fn an_unknown_outcome_is_not_forgotten() {
        let mut attempts = Attempts::new(Effect::Write, true);
        again(&mut attempts, Failure::NoAnswer);
        // "unavailable" is about its own attempt only.
        let error = stop(attempts.after(api(Code::Unavailable), Duration::ZERO));
        assert_eq!(error.kind(), Kind::OutcomeUnknown);
        // A final answer does not settle the earlier attempt either.
        let error = stop(attempts.after(api(Code::VersionConflict), LONG));
        assert_eq!(error.code(), Some(Code::VersionConflict));
        assert!(error.may_have_happened());
    }

    #[test]
    fn a_read_has_no_unknown_outcome() {
        let mut attempts = Attempts::new(Effect::Read, true);
        let error = stop(attempts.after(Failure::NoAnswer, Duration::ZERO));
        assert_eq!(error.kind(), Kind::Unavailable);
    }
}
