//! When an engine has something to do of itself.
//!
//! All times are multiples of their interval on the machine's clock, so that what is due at about the same time shares a
//! turn: a node that has nothing to do wakes once a tick.

use nowserving_shard::clock::Micros;

/// The interval for deadlines, while requests wait or a snapshot is fetched.
const BUSY_INTERVAL_US: Micros = 20_000;
/// The same otherwise.
const QUIET_INTERVAL_US: Micros = 50_000;
/// The interval for hand-overs, snapshots and gauges.
const SLOW_INTERVAL_US: Micros = 250_000;

#[derive(Debug)]
pub(crate) struct Timers {
    tick_us: Micros,
    /// When each was done last.
    ticked_at: Micros,
    maintained_at: Option<Micros>,
    slowly_maintained_at: Option<Micros>,
}

/// The ticks of Raft that are due, by their numbers on the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticks {
    last: u64,
    now: u64,
}

impl Ticks {
    pub fn count(self) -> u64 {
        self.now.saturating_sub(self.last)
    }

    /// Whether a multiple of `every` is among them.
    pub fn reach(self, every: u64) -> bool {
        self.now / every > self.last / every
    }
}

impl Timers {
    pub fn new(tick_us: Micros, now: Micros) -> Self {
        Timers {
            tick_us,
            ticked_at: now,
            maintained_at: None,
            slowly_maintained_at: None,
        }
    }

    /// `busy`: see [`BUSY_INTERVAL_US`].
    pub fn next_due(&self, busy: bool) -> Micros {
        let maintenance = self.maintained_at.map(|at| next(at, interval_us(busy)));
        next(self.ticked_at, self.tick_us).min(maintenance.unwrap_or(0))
    }

    pub fn take_ticks(&mut self, now: Micros) -> Ticks {
        let last = self.ticked_at;
        self.ticked_at = now.max(last);
        Ticks {
            last: last / self.tick_us,
            now: self.ticked_at / self.tick_us,
        }
    }

    /// Whether maintenance is due.
    pub fn take_maintenance(&mut self, busy: bool, now: Micros) -> bool {
        take(&mut self.maintained_at, interval_us(busy), now)
    }

    /// Whether the slow part of maintenance is due, too.
    pub fn take_slow_maintenance(&mut self, now: Micros) -> bool {
        take(&mut self.slowly_maintained_at, SLOW_INTERVAL_US, now)
    }

    /// Maintenance is due at the end of this turn.
    pub fn hurry(&mut self) {
        self.maintained_at = None;
    }
}

fn interval_us(busy: bool) -> Micros {
    match busy {
        true => BUSY_INTERVAL_US,
        false => QUIET_INTERVAL_US,
    }
}

fn next(last: Micros, every: Micros) -> Micros {
    (last / every + 1).saturating_mul(every)
}

fn take(last: &mut Option<Micros>, every: Micros, now: Micros) -> bool {
    let due = last.is_none_or(|last| now >= next(last, every));
    if due {
        *last = Some(now);
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_due_at_about_one_time_is_due_together() {
        let mut timers = Timers::new(50_000, 7);
        assert!(timers.take_maintenance(false, 7));
        assert_eq!(timers.next_due(false), 50_000);
        assert_eq!(timers.next_due(true), 20_000);
        // The loop is late.
        let ticks = timers.take_ticks(50_003);
        assert_eq!(ticks.count(), 1);
        assert!(timers.take_maintenance(false, 50_003));
        assert_eq!(timers.next_due(false), 100_000);
        assert!(!timers.take_maintenance(false, 99_999));
    }

    #[test]
    fn a_late_tick_reaches_what_it_passes() {
        let mut timers = Timers::new(50_000, 150_000);
        let ticks = timers.take_ticks(260_000);
        assert_eq!(ticks.count(), 2);
        assert!(ticks.reach(2) && ticks.reach(4) && !ticks.reach(6));
        assert_eq!(timers.take_ticks(260_000).count(), 0);
    }
}
