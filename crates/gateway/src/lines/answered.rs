//! How the questions for `info` end, and what that says of the line.

use std::time::Duration;

use nowserving_client::{Code, Error};
use tokio::time::Instant;

/// A change of leader, or of the NATS server, costs one answer. A load balancer must not take all gateways away for that.
const LASTS_FROM: u32 = 2;
/// Whoever only looks learns nothing more by another question within that time.
const FRESH: Duration = Duration::from_secs(1);

/// Why a line is not decided by the cluster now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The first question has not been answered yet.
    New,
    /// There is no line of this name.
    Missing,
    /// The newest question got no answer in time.
    Unanswered(String),
    /// The login lacks a right.
    Forbidden(String),
    /// The cluster, or NATS, refuses to answer, or its answer is of no use.
    Refused(String),
    /// It answers, but its events are not heard yet.
    NoEvents,
}

impl Trouble {
    pub(super) fn of(error: &Error) -> Trouble {
        let why = error.message().to_owned();
        match error.kind().code() {
            _ if error.is_transient() => Trouble::Unanswered(why),
            Code::LineNotFound => Trouble::Missing,
            Code::Forbidden => Trouble::Forbidden(why),
            _ => Trouble::Refused(why),
        }
    }
}

/// How the newest questions ended.
pub(super) struct Answered {
    /// When the newest one did.
    at: Option<Instant>,
    trouble: Option<Trouble>,
    /// How many in a row found trouble. A refusal counts as enough of them, and so does that nothing is known yet.
    failed: u32,
}

impl Default for Answered {
    fn default() -> Answered {
        Answered {
            at: None,
            trouble: Some(Trouble::New),
            failed: LASTS_FROM,
        }
    }
}

impl Answered {
    /// A question has ended. Returns what the one before it found.
    pub fn note(&mut self, trouble: Option<Trouble>, now: Instant) -> Option<Trouble> {
        self.at = Some(now);
        self.failed = match trouble {
            None => 0,
            Some(Trouble::Unanswered(_)) => self.failed.saturating_add(1),
            Some(_) => LASTS_FROM,
        };
        std::mem::replace(&mut self.trouble, trouble)
    }

    /// By the newest answer.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_ref()
    }

    /// Whether the trouble is more than one answer that a healthy line did not give.
    pub fn lasts(&self) -> bool {
        self.failed >= LASTS_FROM
    }

    /// Whether another question, of somebody who only looks, may say more. Each question without the right to ask is a line in
    /// the NATS server's log.
    pub fn is_worth_asking(&self, now: Instant) -> bool {
        let is_old = self
            .at
            .is_some_and(|at| now.saturating_duration_since(at) > FRESH);
        is_old && !matches!(self.trouble, Some(Trouble::Forbidden(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unanswered() -> Option<Trouble> {
        Some(Trouble::Unanswered("no answer in time".to_owned()))
    }

    #[test]
    fn one_answer_that_is_missing_is_trouble_that_does_not_last() {
        let now = Instant::now();
        let mut answered = Answered::default();
        assert_eq!(answered.note(None, now), Some(Trouble::New));
        assert!(!answered.lasts());
        for _ in 0..2 {
            assert_eq!(answered.note(unanswered(), now), None);
            assert_eq!(answered.trouble().cloned(), unanswered());
            assert!(!answered.lasts());
            answered.note(None, now);
            assert!(answered.trouble().is_none());
        }
        answered.note(unanswered(), now);
        answered.note(unanswered(), now);
        assert!(answered.lasts());
        answered.note(None, now);
        assert!(!answered.lasts());
    }

    #[test]
    fn a_line_that_never_answered_and_a_refusal_last_at_once() {
        let now = Instant::now();
        let mut answered = Answered::default();
        assert!(answered.lasts());
        answered.note(unanswered(), now);
        assert!(answered.lasts());
        for refusal in [
            Trouble::Missing,
            Trouble::Refused("made up".to_owned()),
            Trouble::Forbidden("may not publish".to_owned()),
        ] {
            answered.note(None, now);
            answered.note(Some(refusal), now);
            assert!(answered.lasts());
            answered.note(unanswered(), now);
            assert!(answered.lasts());
        }
    }

    #[test]
    fn whoever_looks_asks_only_after_an_answer_that_is_old_and_never_without_the_right() {
        let now = Instant::now();
        let later = now + Duration::from_millis(1_001);
        let mut answered = Answered::default();
        assert!(!answered.is_worth_asking(later)); // the first question is under way
        for trouble in [None, unanswered(), Some(Trouble::Missing)] {
            answered.note(trouble, now);
            assert!(!answered.is_worth_asking(now + FRESH));
            assert!(answered.is_worth_asking(later));
        }
        answered.note(Some(Trouble::Forbidden("may not publish".to_owned())), now);
        assert!(!answered.is_worth_asking(later));
    }
}
