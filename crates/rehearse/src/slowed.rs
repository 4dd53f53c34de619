//! The service behind the checkout, if it gets slower by its load: all checkouts share its speed alike.
//!
//! A checkout has so much work, in milliseconds at full speed. All of them get on at one speed, so the first to be done is
//! the one whose work ends first on a clock of work done: one number moves all of them on.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Slowdown;

/// Work is done if less than this is left, in milliseconds at full speed: what adding fractions loses.
const DUST: f64 = 1e-6;

#[derive(Debug)]
pub(crate) struct Slowed {
    of: Slowdown,
    now_ms: u64,
    /// The work that a checkout would have done that was there from the beginning.
    work: f64,
    /// By the work at which they are done, as bits: these have the order of the numbers, none of which is negative.
    running: BTreeSet<(u64, u32)>,
    began_ms: BTreeMap<u32, u64>,
    /// The load times how long, since it was asked for.
    load_ms: f64,
    load_since_ms: u64,
    /// Of each that is done: when, and how long it took.
    pub(crate) took: Vec<(u64, u64)>,
}

impl Slowed {
    pub(crate) fn new(of: Slowdown) -> Self {
        Self {
            of,
            now_ms: 0,
            work: 0.0,
            running: BTreeSet::new(),
            began_ms: BTreeMap::new(),
            load_ms: 0.0,
            load_since_ms: 0,
            took: Vec::new(),
        }
    }

    /// A part of full speed.
    fn speed(&self) -> f64 {
        let share = self.share();
        (0..self.of.power).fold(1.0, |speed, _| speed * share)
    }

    /// The knee by the checkouts, at most 1.
    fn share(&self) -> f64 {
        f64::from(self.of.knee) / (self.running.len() as f64).max(self.of.knee.into())
    }

    fn advance(&mut self, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.now_ms) as f64;
        self.now_ms = now_ms;
        self.work += passed * self.speed();
        let load = self.running.len() as f64 / f64::from(self.of.knee);
        self.load_ms += passed * load.min(1.0);
    }

    pub(crate) fn begin(&mut self, now_ms: u64, shopper: u32, work_ms: u64) {
        self.advance(now_ms);
        let done_at = self.work + work_ms as f64;
        self.running.insert((done_at.to_bits(), shopper));
        self.began_ms.insert(shopper, now_ms);
    }

    /// Those that are done now, in order.
    pub(crate) fn done(&mut self, now_ms: u64) -> Vec<u32> {
        self.advance(now_ms);
        let mut done = Vec::new();
        while let Some((done_at, shopper)) = self.running.first().copied()
            && f64::from_bits(done_at) <= self.work + DUST
        {
            self.running.pop_first();
            if let Some(began_ms) = self.began_ms.remove(&shopper) {
                self.took.push((now_ms, now_ms - began_ms));
            }
            done.push(shopper);
        }
        done
    }

    /// When the next one is done, if none comes before.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        let (done_at, _) = self.running.first()?;
        let left = (f64::from_bits(*done_at) - self.work - DUST).max(0.0);
        let left_ms = (left / self.speed()).ceil() as u64;
        Some(self.now_ms.saturating_add(left_ms))
    }

    /// The mean part of the service that worked since the last time that it was asked for.
    pub(crate) fn load(&mut self, now_ms: u64) -> Option<f64> {
        self.advance(now_ms);
        let passed = now_ms - self.load_since_ms;
        let load = self.load_ms / passed as f64;
        self.load_since_ms = now_ms;
        self.load_ms = 0.0;
        (passed > 0).then_some(load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slowed(knee: u32, power: u32) -> Slowed {
        Slowed::new(Slowdown { knee, power })
    }

    /// Runs to the end; the time at which each is done.
    fn run(mut service: Slowed) -> Vec<(u32, u64)> {
        let mut ends = Vec::new();
        while let Some(at_ms) = service.next_ms() {
            ends.extend(
                service
                    .done(at_ms)
                    .into_iter()
                    .map(|shopper| (shopper, at_ms)),
            );
        }
        ends
    }

    #[test]
    fn up_to_the_knee_each_takes_its_time() {
        let mut service = slowed(2, 1);
        service.begin(100, 1, 50);
        service.begin(120, 2, 10);
        assert_eq!(service.load(130), Some((20.0 * 0.5 + 10.0) / 130.0));
        assert_eq!(run(service), [(2, 130), (1, 150)]);
    }

    #[test]
    fn beyond_it_they_share_what_there_is() {
        for (power, ends) in [
            // All at half of the speed until 200; then at full speed.
            (1, [(3, 200), (4, 200), (1, 300), (2, 300)]),
            // At a quarter.
            (2, [(3, 400), (4, 400), (1, 500), (2, 500)]),
        ] {
            let mut service = slowed(2, power);
            for (shopper, work_ms) in [(1, 200), (2, 200), (3, 100), (4, 100)] {
                service.begin(0, shopper, work_ms);
            }
            assert_eq!(run(service), ends);
        }
    }

    #[test]
    fn work_without_an_end_in_sight_is_no_overflow() {
        let mut service = slowed(1, 4);
        for shopper in 0..100_000 {
            service.begin(1, shopper, 7 * 86_400_000);
        }
        assert_eq!(service.next_ms(), Some(u64::MAX));
        assert!(service.done(86_400_000).is_empty());
    }

    #[test]
    fn those_without_work_are_done_at_once() {
        let mut service = slowed(1, 1);
        service.begin(7, 1, 0);
        assert_eq!(service.next_ms(), Some(7));
        assert_eq!(service.done(7), [1]);
        assert_eq!(service.took, [(7, 0)]);
        assert_eq!(service.next_ms(), None);
    }
}
