//! What is to happen, in order of time; at the same time, in the order in which it was entered.

use std::collections::BTreeMap;

/// Microseconds of the simulation's own time, which no node sees.
pub type Time = u64;

/// The events to come.
#[derive(Debug)]
pub struct Timeline<E> {
    now: Time,
    /// By due time, then in the order in which they were entered. Boxed, as the map often moves its elements.
    events: BTreeMap<(Time, u64), Box<E>>,
    entered: u64,
}

impl<E> Default for Timeline<E> {
    fn default() -> Self {
        Timeline {
            now: 0,
            events: BTreeMap::new(),
            entered: 0,
        }
    }
}

impl<E> Timeline<E> {
    /// The time of the event that was taken last.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Enters an event for a time; one that has passed is now.
    pub fn at(&mut self, time: Time, event: E) {
        self.entered += 1;
        let due = (time.max(self.now), self.entered);
        self.events.insert(due, Box::new(event));
    }

    /// Enters an event for so much later.
    pub fn after(&mut self, delay: Time, event: E) {
        self.at(self.now.saturating_add(delay), event);
    }

    /// Takes the next event that is due by `until`; else the time is `until`.
    pub fn next(&mut self, until: Time) -> Option<E> {
        let first = self.events.first_entry();
        match first.filter(|first| first.key().0 <= until) {
            Some(first) => {
                self.now = first.key().0;
                Some(*first.remove())
            }
            None => {
                self.now = self.now.max(until);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_as_entered() {
        let mut timeline = Timeline::default();
        for (time, event) in [(20, 'c'), (10, 'a'), (20, 'd'), (10, 'b'), (40, 'e')] {
            timeline.at(time, event);
        }
        let mut taken = Vec::new();
        while let Some(event) = timeline.next(30) {
            taken.push((timeline.now(), event));
        }
        assert_eq!(taken, [(10, 'a'), (10, 'b'), (20, 'c'), (20, 'd')]);
        assert_eq!(timeline.now(), 30);
        timeline.at(5, 'f');
        assert_eq!(timeline.next(100), Some('f'), "what is past is due now");
        assert_eq!(timeline.now(), 30);
    }
}
