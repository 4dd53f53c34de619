//! The backend behind the checkout: it takes so many transactions a second, in the order in which they come.

use std::collections::VecDeque;

/// A limiter that spaces transactions evenly. They queue for it without a limit.
#[derive(Debug)]
pub(crate) struct Transactions {
    every_us: u64,
    /// When the next one can begin.
    free_at_us: u64,
    /// When those that queue begin, in milliseconds.
    queued: VecDeque<u64>,
    pub(crate) queued_max: u64,
    /// How long each transaction queued.
    pub(crate) waits_ms: Vec<u64>,
}

impl Transactions {
    pub(crate) fn new(per_second: f64) -> Self {
        Self {
            every_us: (1e6 / per_second) as u64,
            free_at_us: 0,
            queued: VecDeque::new(),
            queued_max: 0,
            waits_ms: Vec::new(),
        }
    }

    /// A checkout asks for its transaction. Gives the time at which that is made.
    pub(crate) fn ask(&mut self, now_ms: u64) -> u64 {
        let at_us = self.free_at_us.max(now_ms * 1_000);
        self.free_at_us = at_us + self.every_us;
        let at_ms = at_us.div_ceil(1_000);
        self.waits_ms.push(at_ms - now_ms);
        self.queued.push_back(at_ms);
        self.queued_max = self.queued_max.max(self.queued(now_ms));
        at_ms
    }

    /// How many queue.
    pub(crate) fn queued(&mut self, now_ms: u64) -> u64 {
        let begun = self.queued.partition_point(|at_ms| *at_ms <= now_ms);
        self.queued.drain(..begun);
        self.queued.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_are_spaced_and_queue_in_order() {
        let mut transactions = Transactions::new(4.0);
        let at: Vec<u64> = (0..4).map(|_| transactions.ask(1_000)).collect();
        assert_eq!(at, [1_000, 1_250, 1_500, 1_750]);
        assert_eq!(transactions.queued(1_250), 2);
        assert_eq!(transactions.ask(1_600), 2_000);
        assert_eq!(transactions.ask(9_000), 9_000, "nothing is saved up");
        assert_eq!(transactions.ask(9_001), 9_250);
        assert_eq!(transactions.queued_max, 3);
        assert_eq!(transactions.waits_ms, [0, 250, 500, 750, 400, 0, 249]);
    }
}
