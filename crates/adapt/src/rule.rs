//! One step: from a complete cohort and the line's seats to the seats that the line is to have.

use std::time::Duration;

use crate::cohort::{Began, Cohort, Outcome};
use crate::{AutoSeats, Target};

/// The part of the way to the target that a step goes.
const GAIN: f64 = 0.25;
/// How far off the target a measurement counts: at most 19 % fewer seats in a step, 25 % more.
const RATIO: (f64, f64) = (0.25, 2.0);

/// A line at the moment of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineNow {
    /// How many seats are in force.
    pub seats: u32,
    /// How many are held, by all processes.
    pub held: u64,
}

/// What one process measures and decides. All times are since any fixed moment, and never go back.
#[derive(Debug)]
pub struct Rule {
    auto: AutoSeats,
    now: Duration,
    running: u32,
    cohort: Cohort,
    /// The part of a seat that is left over, from 0 to 1. It is never thrown away: a process's share of a change is often
    /// less than a seat, and with the parts of all processes at different places as many of them add one as it takes.
    part: f64,
    /// The growth that nobody waited for, up to a seat. Later measurements beyond the target use it up before they take
    /// seats away: chance puts some on either side, and while nobody waits only those beyond it would count.
    spare: f64,
}

impl Rule {
    /// Without any measurement. `part`, from 0 to 1, is to be another one in each process, at random: processes with the
    /// same would all add a seat, or take one away, at the same time.
    #[must_use]
    pub fn new(auto: AutoSeats, part: f64) -> Rule {
        let limit = match auto.target() {
            Target::Latency(mean) => Some(mean),
            Target::Load(_) => None,
        };
        Rule {
            auto,
            now: Duration::ZERO,
            running: 0,
            cohort: Cohort::new(limit),
            part: part.clamp(0.0, 1.0),
            spare: 0.0,
        }
    }

    /// A handler of this process begins. `waited`: no seat was free when it came.
    pub fn began(&mut self, now: Duration, waited: bool) -> Began {
        let now = self.advance(now);
        self.running += 1;
        self.cohort.begins(now, waited)
    }

    /// It has ended.
    pub fn ended(&mut self, began: Began, now: Duration, outcome: Outcome) {
        let now = self.advance(now);
        self.running = self.running.saturating_sub(1);
        self.cohort.ends(began, now, outcome);
    }

    /// The process reports its load. What is not a number from 0 on is ignored.
    pub fn load(&mut self, load: f64) {
        if load.is_finite() && load >= 0.0 {
            self.cohort.reported(load);
        }
    }

    /// Whether enough is measured for a [`Rule::step`].
    #[must_use]
    pub fn is_due(&self, now: Duration) -> bool {
        let now = now.max(self.now);
        self.cohort.is_complete(now) || self.is_far_too_slow(now)
    }

    /// Whatever the handlers that have not ended will take, it changes nothing: as many seats as a step can are taken away.
    fn is_far_too_slow(&self, now: Duration) -> bool {
        let Target::Latency(mean) = self.auto.target() else {
            return false;
        };
        let slowest = mean.as_secs_f64() / RATIO.0;
        let measured = self.cohort.mean_time(now);
        !self.cohort.is_open(now) && measured.is_some_and(|measured| measured >= slowest)
    }

    /// The seats that the line is to have. What was measured is used up; until [`Rule::is_due`] again, only the bounds
    /// change anything.
    pub fn step(&mut self, now: Duration, line: LineNow) -> u32 {
        let seats = self.auto.within(line.seats);
        if !self.is_due(now) {
            return seats;
        }
        let now = self.advance(now);
        let next = self.cohort.after();
        let cohort = std::mem::replace(&mut self.cohort, next);
        // Out of bounds: it was measured under other seats.
        if seats != line.seats {
            return seats;
        }
        let Some(ratio) = self.ratio(&cohort, now) else {
            return seats;
        };
        // The seats that its own handlers held. Of the share of these, `seats` cancels out.
        let own = cohort.mean_running(now).min(f64::from(seats));
        let change = GAIN * (ratio - 1.0) * own;
        // Hardly used: callers wait for something other than seats, the pace or a call. The handlers that run can still be
        // too many.
        let is_used = line.held * 2 >= u64::from(seats);
        self.part += match change {
            // Nobody had to wait: more seats would not be used, and nobody knows how the service would bear them.
            more if more > 0.0 => self.grows(more, if is_used { cohort.waited() } else { 0.0 }),
            fewer => self.shrinks(fewer),
        };
        self.take_whole_seats(seats)
    }

    /// The share of a growth that is wanted; the rest is kept.
    fn grows(&mut self, more: f64, wanted: f64) -> f64 {
        let now = more * wanted;
        self.spare = (self.spare + more - now).min(1.0);
        now
    }

    /// What is kept covers the loss first. Not above 0.
    fn shrinks(&mut self, fewer: f64) -> f64 {
        let covered = self.spare.min(-fewer);
        self.spare -= covered;
        fewer + covered
    }

    /// How many times the measured the target is.
    fn ratio(&self, cohort: &Cohort, now: Duration) -> Option<f64> {
        let (target, measured) = match self.auto.target() {
            Target::Latency(mean) => (mean.as_secs_f64(), cohort.mean_time(now)?),
            Target::Load(load) => (load, cohort.mean_load()?),
        };
        let (least, most) = RATIO;
        // Nothing measured is the largest ratio.
        Some((target / measured.max(target / most)).max(least))
    }

    /// Adds the whole seats of the part.
    fn take_whole_seats(&mut self, seats: u32) -> u32 {
        let whole = self.part.floor();
        self.part -= whole;
        // Both are far below 2^32.
        let next = f64::from(seats) + whole;
        next.clamp(self.auto.min().into(), self.auto.max().into()) as u32
    }

    /// Time goes on. A reading that is behind counts as no progress.
    fn advance(&mut self, now: Duration) -> Duration {
        let now = now.max(self.now);
        self.cohort.ran(self.running, self.now, now);
        self.now = now;
        now
    }
}
