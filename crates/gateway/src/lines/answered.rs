//! How the questions for `info` end, and what that says of the line.

use std::time::Duration;

use nowserving_client::{Code, Error};
use tokio::time::Instant;

/// A change of leader, or of the NATS server, costs one answer. A load balancer must not take all gateways away for that.
const LASTS_FROM: u32 = 2;
/// Whoever only looks learns nothing more by another question within that time.
const FRESH: Duration = Duration::from_secs(1);
/// A change of leader takes one to two seconds, and is no news for visitors.
const AWAY_AFTER: Duration = Duration::from_secs(6);

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
    /// Since when no question was answered at all.
    silent_since: Option<Instant>,
    is_away: bool,
    /// The log says that something is wrong.
    is_reported: bool,
}

/// The message of the log that is due after a question.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Report {
    Nothing,
    /// The line was refused or is missing, which it was not before.
    Refused,
    /// It has not answered for long.
    Away,
    /// It answers, after one of these.
    Answers,
}

impl Default for Answered {
    fn default() -> Answered {
        Answered {
            at: None,
            trouble: Some(Trouble::New),
            failed: LASTS_FROM,
            silent_since: None,
            is_away: false,
            is_reported: false,
        }
    }
}

impl Answered {
    /// A question has ended. `is_heard`: the cluster has answered it, if only by a refusal. `patience`: how long a question may
    /// take.
    pub fn note(
        &mut self,
        trouble: Option<Trouble>,
        is_heard: bool,
        patience: Duration,
        now: Instant,
    ) -> Report {
        self.at = Some(now);
        let was_away = self.is_away;
        let before = std::mem::replace(&mut self.trouble, trouble);
        match &self.trouble {
            None => {
                (self.failed, self.silent_since, self.is_away) = (0, None, false);
            }
            Some(Trouble::Unanswered(_)) => {
                let since = *self.silent_since.get_or_insert(now);
                self.failed = self.failed.saturating_add(1);
                self.is_away |= now.saturating_duration_since(since) + patience >= AWAY_AFTER;
            }
            Some(_) => {
                (self.failed, self.silent_since) = (LASTS_FROM, None);
                self.is_away = !is_heard;
            }
        }
        let report = match &self.trouble {
            None if self.is_reported => Report::Answers,
            Some(Trouble::Unanswered(_)) if self.is_away && !was_away => Report::Away,
            None | Some(Trouble::Unanswered(_)) => Report::Nothing,
            _ if before == self.trouble => Report::Nothing,
            _ => Report::Refused,
        };
        match report {
            Report::Nothing => {}
            Report::Refused | Report::Away => self.is_reported = true,
            Report::Answers => self.is_reported = false,
        }
        report
    }

    /// By the newest answer.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_ref()
    }

    /// Whether the trouble is more than one answer that a healthy line did not give.
    pub fn lasts(&self) -> bool {
        self.failed >= LASTS_FROM
    }

    /// Nothing was heard of the line for longer than a change of leader takes.
    pub fn is_away(&self) -> bool {
        self.is_away
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

    const PATIENCE: Duration = Duration::from_secs(2);

    fn unanswered() -> Option<Trouble> {
        Some(Trouble::Unanswered("no answer in time".to_owned()))
    }

    fn note(answered: &mut Answered, trouble: Option<Trouble>, now: Instant) -> Report {
        let is_heard = !matches!(trouble, Some(Trouble::Unanswered(_)));
        answered.note(trouble, is_heard, PATIENCE, now)
    }

    #[test]
    fn one_answer_that_is_missing_is_trouble_that_does_not_last() {
        let now = Instant::now();
        let mut answered = Answered::default();
        note(&mut answered, None, now);
        assert!(!answered.lasts());
        for _ in 0..2 {
            note(&mut answered, unanswered(), now);
            assert_eq!(answered.trouble().cloned(), unanswered());
            assert!(!answered.lasts());
            note(&mut answered, None, now);
            assert!(answered.trouble().is_none());
        }
        note(&mut answered, unanswered(), now);
        note(&mut answered, unanswered(), now);
        assert!(answered.lasts());
        note(&mut answered, None, now);
        assert!(!answered.lasts());
    }

    #[test]
    fn a_line_that_never_answered_and_a_refusal_last_at_once() {
        let now = Instant::now();
        let mut answered = Answered::default();
        assert!(answered.lasts());
        note(&mut answered, unanswered(), now);
        assert!(answered.lasts());
        for refusal in [
            Trouble::Missing,
            Trouble::Refused("made up".to_owned()),
            Trouble::Forbidden("may not publish".to_owned()),
        ] {
            note(&mut answered, None, now);
            note(&mut answered, Some(refusal), now);
            assert!(answered.lasts());
            note(&mut answered, unanswered(), now);
            assert!(answered.lasts());
        }
    }

    #[test]
    fn a_line_is_away_after_a_long_silence_and_not_because_it_is_missing() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut answered = Answered::default();
        assert_eq!(note(&mut answered, None, at(0)), Report::Nothing);
        assert_eq!(note(&mut answered, unanswered(), at(1)), Report::Nothing);
        assert_eq!(note(&mut answered, unanswered(), at(4)), Report::Nothing);
        assert!(!answered.is_away());
        assert_eq!(note(&mut answered, unanswered(), at(5)), Report::Away);
        assert!(answered.is_away());
        assert_eq!(note(&mut answered, unanswered(), at(6)), Report::Nothing);
        // Somebody answers, that there is no such line.
        let missing = Some(Trouble::Missing);
        assert_eq!(note(&mut answered, missing.clone(), at(7)), Report::Refused);
        assert!(!answered.is_away());
        assert_eq!(note(&mut answered, missing, at(8)), Report::Nothing);
        assert_eq!(note(&mut answered, None, at(9)), Report::Answers);
        assert_eq!(note(&mut answered, None, at(10)), Report::Nothing);
    }

    #[test]
    fn one_lost_answer_about_a_line_that_is_missing_opens_no_shop() {
        let start = Instant::now();
        let mut answered = Answered::default();
        for seconds in 0..60 {
            let now = start + Duration::from_secs(seconds);
            note(&mut answered, Some(Trouble::Missing), now);
        }
        let now = start + Duration::from_secs(60);
        assert_eq!(note(&mut answered, unanswered(), now), Report::Nothing);
        assert!(!answered.is_away());
    }

    #[test]
    fn it_answers_again_also_after_a_short_silence_between() {
        let now = Instant::now();
        let mut answered = Answered::default();
        assert_eq!(
            note(&mut answered, Some(Trouble::Missing), now),
            Report::Refused
        );
        assert_eq!(note(&mut answered, unanswered(), now), Report::Nothing);
        assert_eq!(note(&mut answered, None, now), Report::Answers);
    }

    #[test]
    fn a_refusal_by_nats_itself_is_no_answer_of_the_line() {
        let mut answered = Answered::default();
        let forbidden = Some(Trouble::Forbidden("may not publish".to_owned()));
        let report = answered.note(forbidden, false, PATIENCE, Instant::now());
        assert_eq!(report, Report::Refused);
        assert!(answered.is_away());
    }

    #[test]
    fn whoever_looks_asks_only_after_an_answer_that_is_old_and_never_without_the_right() {
        let now = Instant::now();
        let later = now + Duration::from_millis(1_001);
        let mut answered = Answered::default();
        assert!(!answered.is_worth_asking(later)); // the first question is under way
        for trouble in [None, unanswered(), Some(Trouble::Missing)] {
            note(&mut answered, trouble, now);
            assert!(!answered.is_worth_asking(now + FRESH));
            assert!(answered.is_worth_asking(later));
        }
        note(
            &mut answered,
            Some(Trouble::Forbidden("may not publish".to_owned())),
            now,
        );
        assert!(!answered.is_worth_asking(later));
    }
}
