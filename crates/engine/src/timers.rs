//! When an engine has something to do of itself.

use nowserving_shard::clock::Micros;

/// The interval for deadlines and leases.
const INTERVAL_US: Micros = 20_000;
/// The interval for hand-overs, snapshots and gauges.
const SLOW_INTERVAL_US: Micros = 250_000;

#[derive(Debug)]
pub(crate) struct Timers {
    tick_us: Micros,
    next_tick: Micros,
    next_maintenance: Micros,
    next_slow_maintenance: Micros,
}

impl Timers {
    pub fn new(tick_us: Micros, now: Micros) -> Self {
        Timers {
            tick_us,
            next_tick: now + tick_us,
            next_maintenance: now,
            next_slow_maintenance: now,
        }
    }

    pub fn next_due(&self) -> Micros {
        self.next_tick.min(self.next_maintenance)
    }

    /// How many of Raft's ticks are due.
    pub fn take_ticks(&mut self, now: Micros) -> u64 {
        if now < self.next_tick {
            return 0;
        }
        let due = (now - self.next_tick) / self.tick_us + 1;
        self.next_tick += due * self.tick_us;
        due
    }

    /// Whether maintenance is due.
    pub fn take_maintenance(&mut self, now: Micros) -> bool {
        let due = now >= self.next_maintenance;
        if due {
            self.next_maintenance = now + INTERVAL_US;
        }
        due
    }

    /// Whether the slow part of maintenance is due, too.
    pub fn take_slow_maintenance(&mut self, now: Micros) -> bool {
        let due = now >= self.next_slow_maintenance;
        if due {
            self.next_slow_maintenance = now + SLOW_INTERVAL_US;
        }
        due
    }

    /// Maintenance is due at the end of this turn.
    pub fn hurry(&mut self) {
        self.next_maintenance = 0;
    }
}
