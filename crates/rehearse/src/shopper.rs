//! One shopper: its next step after an answer, an event, or a timer that it has set.

use nowserving_line::State;

use crate::crowd::Nature;
use crate::queue::{Answer, Ask, Place};

/// The timers of a shopper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timer {
    Poll,
    Patience,
    Done,
    Renew,
}

/// The next step of a shopper.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Act {
    Nothing,
    Send(Ask),
    /// It waits on, and asks again later.
    Wait {
        poll_after_ms: Option<u64>,
        /// From the start of its wait, once: when it gives up.
        patience_ms: Option<u64>,
    },
    Shop {
        for_ms: u64,
    },
    /// It has what it wants: its transaction is to be made.
    Pay,
    Renew(Ask),
    /// It goes, with a last request if it does not just vanish.
    GoHome(Option<Ask>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Entering,
    Waiting,
    Claiming,
    Shopping,
    Paying,
    Home,
}

/// A shopper with its knowledge of its token.
#[derive(Debug)]
pub(crate) struct Shopper {
    pub(crate) nature: Nature,
    give_up_percent: f64,
    mood: Mood,
    place: Place,
    epoch: Option<u64>,
    /// How many units of the quota it uses.
    units: u32,
    /// The newest timer of each kind; older ones are void.
    serials: [u32; 4],
}

impl Shopper {
    pub(crate) fn new(nature: Nature, give_up_percent: f64) -> Self {
        Self {
            nature,
            give_up_percent,
            mood: Mood::Entering,
            place: (0, 0),
            epoch: None,
            units: 1,
            serials: [0; 4],
        }
    }

    pub(crate) fn set(&mut self, timer: Timer) -> u32 {
        let serial = &mut self.serials[timer as usize];
        *serial += 1;
        *serial
    }

    pub(crate) fn answered(&mut self, answer: Option<Answer>) -> Act {
        let Some(answer) = answer else {
            // Turned away at the door. (Later on every question has an answer.)
            return self.go_home(None);
        };
        match (self.mood, answer.state) {
            (Mood::Entering, State::Waiting) => {
                self.place = answer.place;
                self.mood = Mood::Waiting;
                let patience_ms = self.nature.patience_ms;
                self.wait_on(&answer, patience_ms)
            }
            (Mood::Waiting, State::Waiting) => self.wait_on(&answer, None),
            (Mood::Entering | Mood::Waiting, State::Admitted) => {
                self.place = answer.place;
                self.claim()
            }
            (Mood::Claiming, State::InCheckout) => self.start_shopping(&answer),
            (Mood::Home, _) => Act::Nothing,
            (_, State::Gone) => self.go_home(None),
            // An answer to an older question.
            _ => Act::Nothing,
        }
    }

    /// The event of its admission came, before any answer said so.
    pub(crate) fn pushed(&mut self) -> Act {
        match self.mood {
            Mood::Waiting => self.claim(),
            _ => Act::Nothing,
        }
    }

    pub(crate) fn timer(&mut self, timer: Timer, serial: u32) -> Act {
        if self.serials[timer as usize] != serial {
            return Act::Nothing;
        }
        match (timer, self.mood) {
            (Timer::Poll, Mood::Waiting) => Act::Send(Ask::Poll(self.place)),
            (Timer::Patience, Mood::Waiting) => self.give_up(),
            (Timer::Done, Mood::Shopping) if self.nature.abandons => self.go_home(None),
            (Timer::Done, Mood::Shopping) => {
                self.mood = Mood::Paying;
                Act::Pay
            }
            (Timer::Done, Mood::Paying) => self.paid(),
            (Timer::Renew, Mood::Shopping | Mood::Paying) => {
                Act::Renew(Ask::Renew(self.place, self.epoch))
            }
            _ => Act::Nothing,
        }
    }

    fn wait_on(&mut self, answer: &Answer, patience_ms: Option<u64>) -> Act {
        if self.nature.dice.percent(self.give_up_percent) {
            return self.give_up();
        }
        Act::Wait {
            poll_after_ms: answer.poll_after_ms,
            patience_ms,
        }
    }

    fn claim(&mut self) -> Act {
        if self.nature.no_show {
            return self.go_home(None);
        }
        self.mood = Mood::Claiming;
        Act::Send(Ask::Claim(self.place))
    }

    fn start_shopping(&mut self, answer: &Answer) -> Act {
        self.mood = Mood::Shopping;
        self.epoch = answer.epoch;
        self.units = self.nature.basket.min(answer.units.unwrap_or(1));
        let part = if self.nature.abandons { 2 } else { 1 };
        Act::Shop {
            for_ms: self.nature.service_ms / part,
        }
    }

    /// Its transaction is made.
    pub(crate) fn paid(&mut self) -> Act {
        self.go_home(Some(Ask::Complete(self.place, self.epoch, self.units)))
    }

    fn give_up(&mut self) -> Act {
        let word = Ask::Leave(self.place);
        self.go_home((!self.nature.vanishes).then_some(word))
    }

    fn go_home(&mut self, last: Option<Ask>) -> Act {
        self.mood = Mood::Home;
        Act::GoHome(last)
    }
}
