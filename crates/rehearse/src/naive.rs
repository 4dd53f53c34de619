//! The seed article's algorithm as written: four numbers, and every departure moves admission on.
//!
//! The article's flaws are kept, because the comparison shows them: the departure of a waiting shopper
//! admits another though it frees no seat, and one timeout counts for all, so that shoppers in
//! checkout, which no longer poll, are recycled too. Answers carry no `poll_after_ms`.

use std::collections::BTreeMap;

use nowserving_line::{Reason, Settings, State};
use nowserving_protocol::error::Code;

use crate::queue::{Answer, Ask, Happened, Place, Pointers, Queue};

/// The interval at which the article's worker recycles idle tokens.
const RECYCLE_EVERY_MS: u64 = 1_000;

#[derive(Debug, Clone, Copy)]
struct Holder {
    last_check_ms: u64,
    /// Not in the article; only for the counts.
    claimed: bool,
}

/// The article's `CheckoutLine`, in one lane.
#[derive(Debug)]
pub(crate) struct Naive {
    timeout_ms: u64,
    seed: u64,
    since: u64,
    until: u64,
    limit: u64,
    holders: BTreeMap<u64, Holder>,
    recycle_due_ms: u64,
    happened: Vec<Happened>,
}

impl Naive {
    pub(crate) fn new(settings: &Settings) -> Self {
        let seats = u64::from(settings.seats);
        Self {
            timeout_ms: settings.waiting_idle_timeout_ms,
            seed: 1,
            since: 0,
            until: seats,
            limit: seats + u64::from(settings.queue_limit),
            holders: BTreeMap::new(),
            recycle_due_ms: RECYCLE_EVERY_MS,
            happened: Vec::new(),
        }
    }

    fn enter(&mut self, now_ms: u64) -> Result<Answer, Code> {
        if self.seed > self.limit {
            return Err(Code::LineFull);
        }
        let token = self.seed;
        self.seed += 1;
        let holder = Holder {
            last_check_ms: now_ms,
            claimed: false,
        };
        self.holders.insert(token, holder);
        if token <= self.until {
            self.happened.push(Happened::Admitted((0, token)));
        }
        Ok(self.answer((0, token)))
    }

    fn answer(&self, place: Place) -> Answer {
        let state = match self.holders.get(&place.1) {
            None => State::Gone,
            Some(holder) if holder.claimed => State::InCheckout,
            Some(_) if place.1 <= self.until => State::Admitted,
            Some(_) => State::Waiting,
        };
        Answer {
            place,
            state,
            eta_ms: None,
            eta_p90_ms: None,
            poll_after_ms: None,
            epoch: None,
            units: None,
        }
    }

    /// The article's `Remove`, for every reason to leave.
    fn remove(&mut self, token: u64, reason: Reason) {
        if self.holders.remove(&token).is_none() {
            return;
        }
        let place = (0, token);
        let units = u32::from(reason == Reason::Completed);
        self.happened.push(Happened::Gone {
            place,
            reason,
            units,
        });
        self.until += 1;
        self.limit += 1;
        if self.holders.contains_key(&self.until) {
            self.happened.push(Happened::Admitted((0, self.until)));
        }
        let first = self.holders.first_key_value().map(|(token, _)| *token);
        self.since = first.unwrap_or(self.seed) - 1;
    }

    fn recycle(&mut self, now_ms: u64) {
        let idle = |holder: &Holder| now_ms - holder.last_check_ms > self.timeout_ms;
        let idle = self.holders.iter().filter(|(_, holder)| idle(holder));
        let idle: Vec<u64> = idle.map(|(token, _)| *token).collect();
        for token in idle {
            let reason = match self.answer((0, token)).state {
                State::Waiting => Reason::Idle,
                State::Admitted => Reason::NoShow,
                State::InCheckout | State::Gone => Reason::CheckoutExpired,
            };
            self.remove(token, reason);
        }
    }
}

impl Queue for Naive {
    fn ask(&mut self, now_ms: u64, _shopper: u32, ask: Ask) -> Result<Answer, Code> {
        let place = match ask {
            Ask::Enter { .. } => return self.enter(now_ms),
            Ask::Poll(place) => {
                if let Some(holder) = self.holders.get_mut(&place.1) {
                    holder.last_check_ms = now_ms;
                }
                place
            }
            Ask::Claim(place) => {
                let may = place.1 <= self.until;
                if let Some(holder) = self.holders.get_mut(&place.1)
                    && may
                {
                    holder.claimed = true;
                }
                place
            }
            // The article has no renewals.
            Ask::Renew(place, _) => place,
            Ask::Complete(place, ..) => {
                self.remove(place.1, Reason::Completed);
                place
            }
            Ask::Leave(place) => {
                self.remove(place.1, Reason::Left);
                place
            }
        };
        Ok(self.answer(place))
    }

    fn upkeep(&mut self, now_ms: u64) {
        while self.recycle_due_ms <= now_ms {
            self.recycle(now_ms);
            self.recycle_due_ms += RECYCLE_EVERY_MS;
        }
    }

    fn next_upkeep_ms(&self) -> u64 {
        self.recycle_due_ms
    }

    fn open(&mut self, _now_ms: u64) {
        // The article has no phases: the line is always open.
    }

    fn call(&mut self, _now_ms: u64, _n: u32) {
        // Nor can it be called.
    }

    fn seats_told(&mut self, _now_ms: u64, _seats: u32) {
        // Nor be told its seats.
    }

    fn happened(&mut self) -> Vec<Happened> {
        std::mem::take(&mut self.happened)
    }

    fn pointers(&self, _now_ms: u64) -> Vec<Pointers> {
        vec![Pointers {
            next_token: self.seed,
            done_through: self.since,
            admitted_through: self.until,
            accepts_through: self.limit,
        }]
    }

    fn order_key(&self, _lane: u8, entered_ms: u64) -> (bool, i64) {
        (false, i64::try_from(entered_ms).unwrap_or(i64::MAX))
    }

    fn newcomer_eta_ms(&self, _now_ms: u64) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(entered: u32) -> Naive {
        let mut line = Naive::new(&Settings::new(7, 15));
        for shopper in 0..entered {
            assert!(line.ask(0, shopper, Ask::Enter { lane: 0 }).is_ok());
        }
        line
    }

    fn pointers(line: &Naive) -> [u64; 4] {
        [line.since, line.until, line.limit, line.seed]
    }

    #[test]
    fn the_articles_own_example() {
        let mut line = line(9);
        assert_eq!(pointers(&line), [0, 7, 22, 10]);
        assert!(line.ask(0, 2, Ask::Complete((0, 3), None, 1)).is_ok());
        assert_eq!(pointers(&line), [0, 8, 23, 10]);
        assert!(line.ask(0, 1, Ask::Complete((0, 2), None, 1)).is_ok());
        assert!(line.ask(0, 0, Ask::Complete((0, 1), None, 1)).is_ok());
        assert_eq!(pointers(&line), [3, 10, 25, 10]);
    }

    #[test]
    fn a_departure_while_waiting_admits_a_token_without_a_seat() {
        let mut line = line(10);
        line.happened();
        assert!(line.ask(0, 9, Ask::Leave((0, 10))).is_ok());
        let happened = line.happened();
        let admitted = matches!(
            happened[..],
            [Happened::Gone { .. }, Happened::Admitted((0, 8))]
        );
        assert!(admitted, "though all seven seats are held: {happened:?}");
    }

    #[test]
    fn a_token_in_checkout_is_recycled_too() {
        let mut line = line(1);
        assert!(line.ask(0, 0, Ask::Claim((0, 1))).is_ok());
        let state = |line: &Naive| line.answer((0, 1)).state;
        assert_eq!(state(&line), State::InCheckout);
        line.upkeep(400_000);
        assert_eq!(state(&line), State::Gone);
    }
}
