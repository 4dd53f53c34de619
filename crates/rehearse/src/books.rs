//! The place of each shopper, derived from answers only: numbers given, admissions, claims, departures.
//!
//! The queue's own counters are not asked. A queue that counts wrong, gives a seat too many or one
//! seat twice is found out here.

use std::collections::BTreeMap;

use nowserving_line::{State, Token};

use crate::queue::{Answer, Ask, Place, Queue};

#[derive(Debug, Clone, Copy)]
struct Waiter {
    shopper: u32,
    entered_ms: u64,
}

#[derive(Debug, Clone, Copy)]
struct Seat {
    shopper: u32,
    claimed: bool,
}

/// A shopper whose place in the queue has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) shopper: u32,
    /// The state that it left from.
    pub(crate) from: State,
}

/// The books, and the three checks that must never find anything.
#[derive(Debug, Default)]
pub(crate) struct Books {
    seats: u64,
    /// As many may be held: after `seats` was lowered more than these, until they are given back.
    may_be_held: u64,
    /// By lane, in the order of the numbers.
    waiting: BTreeMap<u8, BTreeMap<Token, Waiter>>,
    seated: BTreeMap<Place, Seat>,
    in_checkout: u64,
    /// When those who waited for the opening were drawn.
    drawn_ms: u64,
    /// The newest number of each lane.
    newest: BTreeMap<u8, Token>,
    pub(crate) overtakes: u64,
    pub(crate) held_max: u64,
    pub(crate) over_limit_max: u64,
    pub(crate) contradictions: u64,
}

impl Books {
    pub(crate) fn new(seats: u64) -> Self {
        Self {
            seats,
            may_be_held: seats,
            ..Self::default()
        }
    }

    pub(crate) fn set_seats(&mut self, seats: u64) {
        self.seats = seats;
        self.may_be_held = seats.max(self.held());
    }

    pub(crate) fn entered(&mut self, shopper: u32, (lane, token): Place, entered_ms: u64) {
        let newest = self.newest.entry(lane).or_default();
        if token <= *newest {
            // Somebody else has had this number, or a later one.
            self.contradictions += 1;
        }
        *newest = token.max(*newest);
        let waiter = Waiter {
            shopper,
            entered_ms,
        };
        self.waiting.entry(lane).or_default().insert(token, waiter);
    }

    /// Between lanes all who are drawn count as having entered now.
    pub(crate) fn begin_draw(&mut self, now_ms: u64) {
        self.drawn_ms = now_ms;
    }

    /// The shopper who has another number of its lane; `None` if none waits there.
    pub(crate) fn drawn(&mut self, from: Place, to: Place) -> Option<u32> {
        let waiting = self.waiting.entry(from.0).or_default();
        let waiter = waiting.remove(&from.1).filter(|_| from.0 == to.0);
        let Some(waiter) = waiter else {
            self.contradictions += 1;
            return None;
        };
        let entered_ms = self.drawn_ms;
        let had = waiting.insert(
            to.1,
            Waiter {
                entered_ms,
                ..waiter
            },
        );
        self.contradictions += u64::from(had.is_some());
        let newest = self.newest.entry(to.0).or_default();
        *newest = to.1.max(*newest);
        Some(waiter.shopper)
    }

    /// The admitted shopper; `None` if none waits there.
    pub(crate) fn admitted(&mut self, place: Place, queue: &impl Queue) -> Option<u32> {
        let (lane, token) = place;
        let waiter = self.waiting.get_mut(&lane).and_then(|w| w.remove(&token));
        let Some(Waiter {
            shopper,
            entered_ms,
        }) = waiter
        else {
            self.contradictions += 1;
            return None;
        };
        let own = queue.order_key(lane, entered_ms);
        // Nobody in its lane may be before it, and the head of no other lane may go first by the
        // published rule.
        let overtaken = self.waiting.iter().any(|(other, waiting)| {
            waiting.first_key_value().is_some_and(|(first, head)| {
                if *other == lane {
                    *first < token
                } else {
                    queue.order_key(*other, head.entered_ms) < own
                }
            })
        });
        self.overtakes += u64::from(overtaken);
        let claimed = false;
        self.seated.insert(place, Seat { shopper, claimed });
        Some(shopper)
    }

    /// The shopper whose place it was; `None` if it was nobody's.
    pub(crate) fn gone(&mut self, place: Place) -> Option<Ended> {
        let waiting = self.waiting.get_mut(&place.0);
        if let Some(waiter) = waiting.and_then(|w| w.remove(&place.1)) {
            return Some(Ended {
                shopper: waiter.shopper,
                from: State::Waiting,
            });
        }
        let Some(seat) = self.seated.remove(&place) else {
            self.contradictions += 1;
            return None;
        };
        self.in_checkout -= u64::from(seat.claimed);
        self.may_be_held = self.seats.max(self.may_be_held.min(self.held()));
        Some(Ended {
            shopper: seat.shopper,
            from: match seat.claimed {
                true => State::InCheckout,
                false => State::Admitted,
            },
        })
    }

    /// Checks an answer to a shopper. The answer may be older than the latest events, but
    /// it cannot report a seat that was never given.
    pub(crate) fn answered(&mut self, ask: Ask, answer: &Answer) {
        if !matches!(answer.state, State::Admitted | State::InCheckout) {
            return;
        }
        match self.seated.get_mut(&answer.place) {
            None => self.contradictions += 1,
            Some(seat) => {
                let claims = matches!(ask, Ask::Claim(_));
                if claims && answer.state == State::InCheckout && !seat.claimed {
                    seat.claimed = true;
                    self.in_checkout += 1;
                }
            }
        }
    }

    /// All that happens at once has happened.
    pub(crate) fn check(&mut self) {
        self.held_max = self.held_max.max(self.held());
        self.over_limit_max = self.over_limit_max.max(self.over_limit());
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.values().map(|lane| lane.len() as u64).sum()
    }

    pub(crate) fn waiting_in(&self, lane: u8) -> u64 {
        self.waiting.get(&lane).map_or(0, |lane| lane.len() as u64)
    }

    pub(crate) fn held(&self) -> u64 {
        self.seated.len() as u64
    }

    pub(crate) fn live(&self) -> u64 {
        self.waiting() + self.held()
    }

    pub(crate) fn in_checkout(&self) -> u64 {
        self.in_checkout
    }

    pub(crate) fn seats(&self) -> u64 {
        self.seats
    }

    pub(crate) fn over_limit(&self) -> u64 {
        self.held().saturating_sub(self.may_be_held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::Naive;

    #[test]
    fn seats_that_are_lowered_are_given_back_first() {
        let queue = Naive::new(&nowserving_line::Settings::new(1, 9));
        let mut books = Books::new(2);
        for token in 1..=4 {
            books.entered(token as u32, (0, token), token);
        }
        books.admitted((0, 1), &queue);
        books.admitted((0, 2), &queue);
        books.set_seats(1);
        assert_eq!(books.over_limit(), 0, "nobody is thrown out");
        books.gone((0, 1));
        books.admitted((0, 3), &queue);
        assert_eq!(books.over_limit(), 1, "one seat was there, and is held");
        books.set_seats(3);
        books.admitted((0, 4), &queue);
        assert_eq!((books.over_limit(), books.held()), (0, 3));
    }

    #[test]
    fn overtakes_are_counted() {
        let queue = Naive::new(&nowserving_line::Settings::new(1, 9));
        let mut books = Books::new(9);
        for shopper in 0..4 {
            let place = (shopper as u8 / 2, u64::from(shopper) % 2 + 1);
            books.entered(shopper, place, u64::from(shopper) * 10);
        }
        assert_eq!(books.admitted((0, 1), &queue), Some(0));
        assert_eq!(books.overtakes, 0);
        books.admitted((1, 1), &queue);
        assert_eq!(books.overtakes, 1, "past the other lane's, who came before");
        books.admitted((0, 2), &queue);
        books.admitted((1, 2), &queue);
        assert_eq!(books.overtakes, 1);
        books.entered(0, (0, 3), 60);
        books.entered(1, (0, 4), 70);
        books.admitted((0, 4), &queue);
        assert_eq!(books.overtakes, 2, "past its own lane's first");
        assert_eq!(
            (books.held(), books.waiting(), books.contradictions),
            (5, 1, 0)
        );
    }
}
