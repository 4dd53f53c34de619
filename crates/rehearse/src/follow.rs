//! The seats follow the service: the backend measures its checkouts as the SDK's guard does, and tells the line.

use std::collections::BTreeMap;
use std::time::Duration;

use nowserving_adapt::{AutoSeats, Began, LineNow, Outcome, Rule};

/// How often the backend polls its load, and whether a step is due.
pub(crate) const LOOK_EVERY_MS: u64 = 1_000;

#[derive(Debug)]
pub(crate) struct Follow {
    rule: Rule,
    began: BTreeMap<u32, Began>,
    /// A report is under way.
    is_telling: bool,
    /// How many reports it sent.
    pub(crate) told: u64,
}

impl Follow {
    pub(crate) fn new(auto: AutoSeats) -> Self {
        Self {
            rule: Rule::new(auto, 0.5),
            began: BTreeMap::new(),
            is_telling: false,
            told: 0,
        }
    }

    pub(crate) fn begin(&mut self, now_ms: u64, shopper: u32, waited: bool) {
        let began = self.rule.began(Duration::from_millis(now_ms), waited);
        self.began.insert(shopper, began);
    }

    pub(crate) fn end(&mut self, now_ms: u64, shopper: u32, outcome: Outcome) {
        if let Some(began) = self.began.remove(&shopper) {
            let now = Duration::from_millis(now_ms);
            self.rule.ended(began, now, outcome);
        }
    }

    /// The seats to tell, if these are not the line's.
    pub(crate) fn look(&mut self, now_ms: u64, load: Option<f64>, line: LineNow) -> Option<u32> {
        load.into_iter().for_each(|load| self.rule.load(load));
        if self.is_telling {
            return None;
        }
        let seats = self.rule.step(Duration::from_millis(now_ms), line);
        let is_new = seats != line.seats;
        self.is_telling = is_new;
        self.told += u64::from(is_new);
        is_new.then_some(seats)
    }

    /// The report has got to the server.
    pub(crate) fn arrived(&mut self) {
        self.is_telling = false;
    }
}
