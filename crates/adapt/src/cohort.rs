//! The handlers that one step is decided by.
//!
//! They all began after the step before, so under the seats that it left: those that ran already would show what the seats
//! before did, and the rule would go on in its direction for too long. The first handlers to end are the quickest ones, so
//! a cohort is not judged by these: it is complete when nine in ten have ended, and the others count with their age. (If that
//! is far above the target already, nobody waits for the end of the slow ones.) A load does not depend on which handlers end
//! first, so with that target a cohort is complete as soon as it is closed.

use std::time::Duration;

/// A cohort is open for at least so many handlers, or until this many could have run one after the other at the target.
///
/// Without the second the time of a step would grow with the number of processes, of which each has ever fewer handlers.
/// Small cohorts are noisy, but weigh little: the parts of all processes have the same noise in sum as one large cohort.
const HANDLERS_MIN: u32 = 10;
/// And for at least so long since its first one.
const OPEN_FOR: Duration = Duration::from_secs(1);

/// A handler that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "it counts as running until its end is told"]
pub struct Began {
    at: Duration,
    waited: bool,
    /// The cohort that it is in, if that was open.
    cohort: Option<u64>,
}

/// How a handler ended, for its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Its work was done.
    Done,
    /// It was dropped before, so it would have taken longer. Counts if it took longer than the target already.
    BrokenOff,
    /// It failed. Counts if it took longer than the target already: a service that is too slow for its time-outs must not
    /// look idle, and handlers that fail at once must not look like fast ones.
    Failed,
}

/// Sums over the handlers of a cohort. Times are in seconds since its first one began.
#[derive(Debug, Default)]
pub(crate) struct Cohort {
    number: u64,
    /// The target for the time of handlers, if that is the target.
    limit: Option<Duration>,
    since: Option<Duration>,
    /// Handlers in it, ended or not, and how many of them had to wait in line.
    begun: u32,
    waited: u32,
    ended: u32,
    /// The times of those that ended, and the beginnings of those that have not.
    took: f64,
    beginnings: f64,
    loads: f64,
    reports: u32,
    /// The handlers of this process that ran, of any cohort, times how long.
    busy: f64,
}

impl Cohort {
    pub(crate) fn new(limit: Option<Duration>) -> Cohort {
        Cohort {
            limit,
            ..Cohort::default()
        }
    }

    pub(crate) fn after(&self) -> Cohort {
        Cohort {
            number: self.number + 1,
            ..Cohort::new(self.limit)
        }
    }

    /// `running` handlers ran from one moment to another.
    pub(crate) fn ran(&mut self, running: u32, from: Duration, to: Duration) {
        if let Some(since) = self.since {
            self.busy += f64::from(running) * to.saturating_sub(from.max(since)).as_secs_f64();
        }
    }

    pub(crate) fn begins(&mut self, now: Duration, waited: bool) -> Began {
        let since = *self.since.get_or_insert(now);
        let is_open = self.is_open(now);
        if is_open {
            self.begun += 1;
            self.waited += u32::from(waited);
            self.beginnings += (now - since).as_secs_f64();
        }
        Began {
            at: now,
            waited,
            cohort: is_open.then_some(self.number),
        }
    }

    pub(crate) fn ends(&mut self, began: Began, now: Duration, outcome: Outcome) {
        let (Some(since), true) = (self.since, began.cohort == Some(self.number)) else {
            return;
        };
        let took = now.saturating_sub(began.at);
        self.beginnings -= (began.at - since).as_secs_f64();
        let counts = outcome == Outcome::Done || took > self.limit.unwrap_or_default();
        if counts {
            self.ended += 1;
            self.took += took.as_secs_f64();
        } else {
            self.begun -= 1;
        }
        // A handler that failed is no reason for more seats.
        if !counts || outcome == Outcome::Failed {
            self.waited -= u32::from(began.waited);
        }
    }

    pub(crate) fn reported(&mut self, load: f64) {
        if self.since.is_some() {
            self.loads += load;
            self.reports += 1;
        }
    }

    pub(crate) fn is_open(&self, now: Duration) -> bool {
        let age = self.age(now);
        let needs_more = |limit: Duration| self.begun < HANDLERS_MIN && age < limit * HANDLERS_MIN;
        age < OPEN_FOR || self.limit.is_some_and(needs_more)
    }

    pub(crate) fn is_complete(&self, now: Duration) -> bool {
        let is_measured = match self.limit {
            Some(_) => u64::from(self.ended) * 10 >= u64::from(self.begun) * 9,
            None => self.reports > 0,
        };
        !self.is_open(now) && is_measured
    }

    fn age(&self, now: Duration) -> Duration {
        self.since
            .map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// The mean time of its handlers, in seconds.
    pub(crate) fn mean_time(&self, now: Duration) -> Option<f64> {
        let running = f64::from(self.begun - self.ended);
        let ages = running * self.age(now).as_secs_f64() - self.beginnings;
        (self.begun > 0).then(|| (self.took + ages) / f64::from(self.begun))
    }

    pub(crate) fn mean_load(&self) -> Option<f64> {
        (self.reports > 0).then(|| self.loads / f64::from(self.reports))
    }

    /// The share of its handlers that had to wait in line: the seats were all held when these came.
    pub(crate) fn waited(&self) -> f64 {
        f64::from(self.waited) / f64::from(self.begun.max(1))
    }

    /// How many handlers of this process ran at once, on average.
    pub(crate) fn mean_running(&self, now: Duration) -> f64 {
        let age = self.age(now).as_secs_f64();
        if age > 0.0 { self.busy / age } else { 0.0 }
    }
}
