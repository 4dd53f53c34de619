//! Queues that are wrong on purpose: a rehearsal must find out, whatever they say of themselves.

use std::collections::{BTreeMap, VecDeque};

use nowserving_line::{Admission, Reason, State, Token};
use nowserving_protocol::error::Code;

use crate::config::{Calls, Config, Crowd};
use crate::queue::{Answer, Ask, Happened, Place, Pointers, Queue};
use crate::report::Summary;
use crate::sim;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Gives a seat too many.
    OverAdmits,
    /// Says of everybody twice that it is admitted.
    AdmitsTwice,
    /// Serves the newest first.
    Overtakes,
    /// Answers every request with `admitted`.
    SaysAdmitted,
    /// Gives the same numbers again.
    RepeatsNumbers,
    /// Says of everybody twice that it is gone.
    EndsTwice,
    /// Admits without being called.
    AdmitsUncalled,
    /// Admits one more than a call is for.
    CallsTooMany,
}

/// A plain queue but for its fault.
struct Wrong {
    fault: Fault,
    seats: usize,
    /// Who may be admitted, where tokens are called.
    callable: Option<u32>,
    next: Token,
    waiting: VecDeque<Token>,
    seated: BTreeMap<Token, State>,
    happened: Vec<Happened>,
}

impl Wrong {
    fn new(fault: Fault, seats: usize, called: bool) -> Self {
        Self {
            fault,
            seats,
            callable: (called && fault != Fault::AdmitsUncalled).then_some(0),
            next: 1,
            waiting: VecDeque::new(),
            seated: BTreeMap::new(),
            happened: Vec::new(),
        }
    }

    fn admit(&mut self) {
        let seats = self.seats + usize::from(self.fault == Fault::OverAdmits);
        while self.seated.len() < seats && self.callable != Some(0) {
            let next = match self.fault {
                Fault::Overtakes => self.waiting.pop_back(),
                _ => self.waiting.pop_front(),
            };
            let Some(token) = next else { break };
            self.callable = self.callable.map(|left| left - 1);
            self.seated.insert(token, State::Admitted);
            self.tell(Happened::Admitted((0, token)), Fault::AdmitsTwice);
        }
    }

    fn end(&mut self, token: Token, reason: Reason) {
        let waited = self.waiting.len();
        self.waiting.retain(|other| *other != token);
        if self.seated.remove(&token).is_some() || self.waiting.len() < waited {
            let place = (0, token);
            let units = u32::from(reason == Reason::Completed);
            let gone = Happened::Gone {
                place,
                reason,
                units,
            };
            self.tell(gone, Fault::EndsTwice);
        }
    }

    fn tell(&mut self, happened: Happened, twice_if: Fault) {
        self.happened.push(happened.clone());
        if self.fault == twice_if {
            self.happened.push(happened);
        }
    }

    fn answer(&self, place: Place) -> Answer {
        let waiting = self.waiting.contains(&place.1).then_some(State::Waiting);
        let seated = self.seated.get(&place.1).copied();
        Answer {
            place,
            state: seated.or(waiting).unwrap_or(State::Gone),
            eta_ms: None,
            eta_p90_ms: None,
            poll_after_ms: Some(1_000),
            epoch: None,
            units: None,
        }
    }
}

impl Queue for Wrong {
    fn ask(&mut self, _now_ms: u64, _shopper: u32, ask: Ask) -> Result<Answer, Code> {
        let place = match ask {
            Ask::Enter { .. } => {
                let token = self.next;
                self.next += 1;
                if self.fault == Fault::RepeatsNumbers && token.is_multiple_of(10) {
                    self.next -= 1;
                }
                self.waiting.push_back(token);
                (0, token)
            }
            Ask::Poll(place) | Ask::Renew(place, _) => place,
            Ask::Claim(place) => {
                if let Some(state) = self.seated.get_mut(&place.1) {
                    *state = State::InCheckout;
                }
                place
            }
            Ask::Complete(place, ..) => {
                self.end(place.1, Reason::Completed);
                place
            }
            Ask::Leave(place) => {
                self.end(place.1, Reason::Left);
                place
            }
        };
        self.admit();
        let mut answer = self.answer(place);
        if self.fault == Fault::SaysAdmitted && answer.state == State::Waiting {
            answer.state = State::Admitted;
        }
        Ok(answer)
    }

    fn upkeep(&mut self, _now_ms: u64) {}

    fn next_upkeep_ms(&self) -> u64 {
        u64::MAX
    }

    fn open(&mut self, _now_ms: u64) {}

    fn seats_told(&mut self, _now_ms: u64, _seats: u32) {}

    fn call(&mut self, _now_ms: u64, n: u32) {
        let more = u32::from(self.fault == Fault::CallsTooMany);
        self.callable = self.callable.map(|_| n + more);
        self.admit();
        self.callable = self.callable.map(|_| 0);
    }

    fn happened(&mut self) -> Vec<Happened> {
        std::mem::take(&mut self.happened)
    }

    fn pointers(&self, _now_ms: u64) -> Vec<Pointers> {
        vec![Pointers::default()]
    }

    fn order_key(&self, _lane: u8, entered_ms: u64) -> (bool, i64) {
        (false, i64::try_from(entered_ms).unwrap_or(i64::MAX))
    }

    fn newcomer_eta_ms(&self, _now_ms: u64) -> Option<u64> {
        None
    }
}

fn rehearsed(fault: Fault) -> Summary {
    rehearsed_with(fault, None)
}

fn rehearsed_with(fault: Fault, calls: Option<Calls>) -> Summary {
    let mut config = Config::poc();
    if calls.is_some() {
        config.settings.admission = Admission::Called;
        config.calls = calls;
    }
    config.settings.seats = 5;
    config.crowd = Crowd::patient(40);
    config.until_ms = 600_000;
    let wrong = Wrong::new(fault, 5, calls.is_some());
    sim::run(&config, wrong, &mut |_| {}).summary
}

#[test]
fn a_queue_that_is_right_has_no_faults() {
    let right = rehearsed(Fault::None);
    assert_eq!((right.completed, right.entered), (40, 40));
    assert_eq!(found(&right), [0, 0, 0]);
    assert_eq!(right.seat_held_percent, Some(100.0));
}

#[test]
fn seats_too_many_are_counted_whatever_the_queue_says() {
    let found = found(&rehearsed(Fault::OverAdmits));
    assert_eq!(found, [0, 1, 0]);
}

#[test]
fn overtaking_is_counted() {
    let found = found(&rehearsed(Fault::Overtakes));
    assert!(found[0] > 10 && found[1] == 0 && found[2] == 0, "{found:?}");
}

#[test]
fn impossible_observations_are_counted() {
    for fault in [
        Fault::AdmitsTwice,
        Fault::SaysAdmitted,
        Fault::RepeatsNumbers,
        Fault::EndsTwice,
    ] {
        let found = found(&rehearsed(fault));
        assert!(found[2] > 10, "{fault:?}: {found:?}");
    }
}

#[test]
fn admissions_without_a_call_are_counted() {
    let calls = Some(Calls::Rounds {
        every_ms: 1_000,
        n: 2,
    });
    let right = rehearsed_with(Fault::None, calls);
    assert_eq!((right.completed, right.called), (40, 40));
    assert_eq!(found(&right), [0, 0, 0]);
    for fault in [Fault::AdmitsUncalled, Fault::CallsTooMany] {
        let found = found(&rehearsed_with(fault, calls));
        assert!(found[2] > 0 && found[0] == 0, "{fault:?}: {found:?}");
    }
}

fn found(summary: &Summary) -> [u64; 3] {
    [
        summary.overtakes,
        summary.over_limit_max,
        summary.contradictions,
    ]
}
