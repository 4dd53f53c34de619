//! The crowd's own record, made only of the answers that it received.
//!
//! Pure: callers pass the time since the crowd opened. The definitions are strict where the cluster could
//! be wrong, and lenient where only the crowd's own knowledge is late:
//!
//! * a seat is held from the answer to `claim` until `complete` or `leave` is sent, or until the deadline that the
//!   answers to `claim` and `renew` gave it: a renewal that comes too late is no fault. So the count is never above the number of seats that the
//!   cluster has granted at that moment, and a count above `seats` proves an oversold seat;
//! * an overtake is a `status` request sent after a higher number of the lane was seen admitted
//!   whose answer still says waiting;
//! * a duplicate is a number given to two shoppers, a second number for one shopper's key, or a
//!   fencing epoch given with two numbers;
//! * a number is lost if it was acknowledged and the cluster no longer knows it, or has forgotten or
//!   changed its acknowledged end, or if a live shopper that has not left finds it gone before its timeout can have
//!   passed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::plan::Size;
use super::report::Report;

/// Time since the crowd opened.
pub type At = Duration;

/// One token, as every answer names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number {
    /// Incarnation of the line.
    pub incarnation: u64,
    pub lane: String,
    pub token: u64,
}

/// Where the crowd knows a token to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its shopper waits, and lives.
    Waiting,
    /// Admitted, not in a seat yet.
    Called,
    Seated,
    /// Its shopper does nothing more with it, or has asked for its end.
    Over,
}

#[derive(Debug)]
struct Record {
    shopper: u32,
    stage: Stage,
    /// Until when it surely holds a seat.
    held_until: Option<At>,
    /// Why it is gone, once an answer said so.
    fate: Option<String>,
}

/// The crowd's book.
#[derive(Debug, Default)]
pub struct Ledger {
    nodes: usize,
    shoppers: u32,
    seats: u32,
    records: HashMap<Number, Record>,
    by_shopper: HashMap<u32, Number>,
    epochs: HashMap<u64, Number>,
    highest_admitted: HashMap<String, u64>,
    acknowledged: u64,
    refused: u64,
    overtakes: u64,
    duplicates: u64,
    lost: BTreeSet<Number>,

    /// The tokens that hold seats, by the time until which they surely do.
    held: BTreeSet<(At, Number)>,
    in_checkout_max: u32,
    waiting: u64,

    clock: At,
    waited: Duration,
    /// Seconds of all seats in checkout while anybody waited.
    used_seat_s: f64,

    killed: Option<At>,
    failover: Option<Duration>,
}

impl Ledger {
    /// Of a crowd of this size, served by so many nodes.
    pub fn new(nodes: usize, size: Size) -> Ledger {
        Ledger {
            nodes,
            shoppers: size.shoppers,
            seats: size.seats,
            ..Ledger::default()
        }
    }

    /// `enter` was answered for this shopper: once, or again for the same key. Whether the number
    /// is new.
    pub fn entered(&mut self, at: At, shopper: u32, number: &Number) -> bool {
        self.advance(at);
        if let Some(record) = self.records.get(number) {
            if record.shopper != shopper {
                self.duplicates += 1;
            }
            return false;
        }
        if self.by_shopper.insert(shopper, number.clone()).is_some() {
            self.duplicates += 1;
        }
        self.waiting += 1;
        let record = Record {
            shopper,
            stage: Stage::Waiting,
            held_until: None,
            fate: None,
        };
        self.records.insert(number.clone(), record);
        true
    }

    /// A shopper was turned away for good.
    pub fn refused(&mut self) {
        self.refused += 1;
    }

    /// An answer says that the token is admitted, or in checkout.
    pub fn admitted(&mut self, at: At, number: &Number) {
        self.advance(at);
        let highest = self
            .highest_admitted
            .entry(number.lane.clone())
            .or_default();
        *highest = number.token.max(*highest);
        if self.stage(number) == Some(Stage::Waiting) {
            self.set_stage(number, Stage::Called);
        }
    }

    /// The highest number of the lane seen admitted so far (0: none). Take it when a `status`
    /// request is sent, and give it to [`Ledger::still_waiting`].
    pub fn highest_admitted(&self, lane: &str) -> u64 {
        self.highest_admitted.get(lane).copied().unwrap_or(0)
    }

    /// A `status` says waiting. `highest_when_sent`: see [`Ledger::highest_admitted`].
    pub fn still_waiting(&mut self, number: &Number, highest_when_sent: u64) {
        if number.token < highest_when_sent {
            self.overtakes += 1;
        }
    }

    /// `claim` was answered with a seat, which is surely held until then.
    pub fn seated(&mut self, at: At, number: &Number, epoch: u64, until: At) {
        self.admitted(at, number);
        if self.epochs.entry(epoch).or_insert_with(|| number.clone()) != number {
            self.duplicates += 1;
        }
        if self.stage(number) == Some(Stage::Called) {
            self.set_stage(number, Stage::Seated);
            self.hold(at, number, until);
        }
    }

    /// `renew` was answered: the seat is surely held until then.
    pub fn renewed(&mut self, at: At, number: &Number, until: At) {
        self.advance(at);
        if self.stage(number) == Some(Stage::Seated) {
            self.hold(at, number, until);
        }
    }

    /// The shopper is about to send `complete` or `leave`.
    pub fn leaving(&mut self, at: At, number: &Number) {
        self.advance(at);
        self.release(number);
        self.set_stage(number, Stage::Over);
    }

    /// The shopper goes silent for good. Its seat, if it has one, is held until its deadline.
    pub fn vanished(&mut self, at: At, number: &Number) {
        self.advance(at);
        self.set_stage(number, Stage::Over);
    }

    /// An answer says that the token is gone, as its shopper asked or must expect. Saying something
    /// else than before about an end that was acknowledged counts as lost.
    pub fn gone(&mut self, number: &Number, reason: &str) {
        let Some(record) = self.records.get_mut(number) else {
            return;
        };
        match &record.fate {
            Some(known) if known != reason => {
                self.lost.insert(number.clone());
            }
            Some(_) => {}
            None => record.fate = Some(reason.to_owned()),
        }
    }

    /// A live shopper that has not left finds its token gone, and its timeout cannot have passed.
    pub fn found_gone(&mut self, at: At, number: &Number, reason: &str) {
        self.leaving(at, number);
        self.gone(number, reason);
        self.lost.insert(number.clone());
    }

    /// The coordinator does not know the token, or says that it lives although its end was
    /// acknowledged.
    pub fn lost(&mut self, at: At, number: &Number) {
        self.leaving(at, number);
        self.lost.insert(number.clone());
    }

    /// The leader of the line was killed.
    pub fn killed(&mut self, at: At) {
        self.killed = Some(at);
    }

    /// A write sent at `sent` was acknowledged. Only those sent after the kill count for the
    /// failover: an older one may have been answered by the dead leader in its last moment.
    pub fn wrote(&mut self, sent: At, at: At) {
        self.acknowledged += 1;
        if let Some(killed) = self.killed
            && sent >= killed
            && self.failover.is_none()
        {
            self.failover = Some(at.saturating_sub(killed));
        }
    }

    /// Whether a token's end is known.
    pub fn is_gone(&self, number: &Number) -> bool {
        self.records
            .get(number)
            .is_some_and(|record| record.fate.is_some())
    }

    /// Visits in checkout now, live shoppers waiting now: for the board on the screen.
    pub fn in_checkout_and_waiting(&mut self, at: At) -> (u32, u64) {
        self.advance(at);
        (self.held_now(), self.waiting)
    }

    /// Everything counted until now.
    pub fn report(&mut self, at: At) -> Report {
        self.advance(at);
        let mut gone = BTreeMap::new();
        let fates = self
            .records
            .values()
            .filter_map(|record| record.fate.as_ref());
        for reason in fates {
            *gone.entry(reason.clone()).or_insert(0) += 1;
        }
        let capacity_seat_s = self.waited.as_secs_f64() * f64::from(self.seats);
        let use_permille = self.used_seat_s / capacity_seat_s * 1_000.0;
        Report {
            nodes: self.nodes,
            shoppers: self.shoppers,
            acknowledged: self.acknowledged,
            issued: self.records.len() as u64,
            completed: gone.get("completed").copied().unwrap_or(0),
            gone,
            refused: self.refused,
            seats: self.seats,
            in_checkout_max: self.in_checkout_max,
            overtakes: self.overtakes,
            duplicates: self.duplicates,
            lost: self.lost.len() as u64,
            failover_ms: self.failover.map(whole_ms),
            seat_use_percent: (capacity_seat_s > 0.0).then(|| use_permille.round() / 10.0),
            duration_ms: whole_ms(at),
        }
    }

    fn stage(&self, number: &Number) -> Option<Stage> {
        self.records.get(number).map(|record| record.stage)
    }

    fn set_stage(&mut self, number: &Number, stage: Stage) {
        let Some(record) = self.records.get_mut(number) else {
            return;
        };
        if record.stage == Stage::Waiting && stage != Stage::Waiting {
            self.waiting -= 1;
        }
        record.stage = stage;
    }

    fn held_now(&self) -> u32 {
        u32::try_from(self.held.len()).unwrap_or(u32::MAX)
    }

    fn hold(&mut self, at: At, number: &Number, until: At) {
        self.release(number);
        if let Some(record) = self.records.get_mut(number).filter(|_| until > at) {
            record.held_until = Some(until);
            self.held.insert((until, number.clone()));
            self.in_checkout_max = self.in_checkout_max.max(self.held_now());
        }
    }

    fn release(&mut self, number: &Number) {
        let record = self.records.get_mut(number);
        if let Some(until) = record.and_then(|record| record.held_until.take()) {
            self.held.remove(&(until, number.clone()));
        }
    }

    /// Moves the clock, letting seats go at their deadlines.
    fn advance(&mut self, at: At) {
        while let Some((until, number)) = self.held.first().cloned()
            && until <= at
        {
            self.integrate(until);
            self.release(&number);
        }
        self.integrate(at);
    }

    fn integrate(&mut self, at: At) {
        let passed = at.saturating_sub(self.clock);
        if self.waiting > 0 {
            self.waited += passed;
            self.used_seat_s += passed.as_secs_f64() * f64::from(self.held_now());
        }
        self.clock = self.clock.max(at);
    }
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
