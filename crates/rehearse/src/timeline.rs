//! A queue of future events, by time and, within a millisecond, in the order in which they were planned.
//!
//! The slots of the present span of time are lists, one a millisecond; what lies in a later span is
//! only listed and gets its slot when that span begins. So planning and taking cost the same however
//! much is planned. (With a binary heap, comparing, sifting and moving its entries was half of a run
//! with a million shoppers, in memory that no cache holds. Without it, and without the tree that
//! `real` kept of when tokens were last seen, such a run takes a third of the processor's time.)

use std::collections::BTreeMap;

/// The milliseconds of a span. Longer than nearly all pauses between polls, so that few events are
/// listed first.
const SPAN_MS: u64 = 65_536;

/// An ordered list of events.
#[derive(Debug)]
pub(crate) struct Timeline<T> {
    now_ms: u64,
    /// The remaining events of this millisecond.
    now: std::vec::IntoIter<T>,
    /// By the milliseconds since the present span began.
    slots: Vec<Vec<T>>,
    in_slots: usize,
    /// By the number of the span, in the order in which it was planned.
    later: BTreeMap<u64, Vec<(u64, T)>>,
}

impl<T> Timeline<T> {
    pub(crate) fn new() -> Self {
        Self {
            now_ms: 0,
            now: Vec::new().into_iter(),
            slots: (0..SPAN_MS).map(|_| Vec::new()).collect(),
            in_slots: 0,
            later: BTreeMap::new(),
        }
    }

    /// Plans an event; one for a time that has passed comes next, after those of this millisecond.
    pub(crate) fn plan(&mut self, at_ms: u64, event: T) {
        let at_ms = at_ms.max(self.now_ms);
        let span = at_ms / SPAN_MS;
        if span == self.now_ms / SPAN_MS {
            self.fill(at_ms, event);
        } else {
            self.later.entry(span).or_default().push((at_ms, event));
        }
    }

    /// Takes the next event, and its time.
    pub(crate) fn next(&mut self) -> Option<(u64, T)> {
        loop {
            if let Some(event) = self.now.next() {
                return Some((self.now_ms, event));
            }
            if self.in_slots == 0 {
                self.begin_span()?;
            }
            // Others may have been planned for this very millisecond.
            while self.slots[slot(self.now_ms)].is_empty() {
                self.now_ms += 1;
            }
            let now = std::mem::take(&mut self.slots[slot(self.now_ms)]);
            self.in_slots -= now.len();
            self.now = now.into_iter();
        }
    }

    fn begin_span(&mut self) -> Option<()> {
        let (span, events) = self.later.pop_first()?;
        self.now_ms = span * SPAN_MS;
        for (at_ms, event) in events {
            self.fill(at_ms, event);
        }
        Some(())
    }

    fn fill(&mut self, at_ms: u64, event: T) {
        self.slots[slot(at_ms)].push(event);
        self.in_slots += 1;
    }
}

fn slot(at_ms: u64) -> usize {
    (at_ms % SPAN_MS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;

    #[test]
    fn events_come_by_time_and_then_as_planned() {
        let mut dice = Dice::new(1, 1);
        let mut timeline = Timeline::new();
        let mut no = 0;
        let mut plan = |timeline: &mut Timeline<(u64, u64)>, now_ms: u64, dice: &mut Dice| {
            let ahead_ms = [0, 1, 100, 3 * SPAN_MS, 40 * SPAN_MS][dice.below(5) as usize];
            let at_ms = now_ms + dice.below(ahead_ms + 1);
            no += 1;
            timeline.plan(at_ms, (at_ms, no));
        };
        for _ in 0..100 {
            plan(&mut timeline, 0, &mut dice);
        }
        let (mut last, mut taken) = ((0, 0), 0);
        while let Some((now_ms, (at_ms, no))) = timeline.next() {
            assert_eq!(now_ms, at_ms);
            assert!(last < (at_ms, no), "{last:?} before {:?}", (at_ms, no));
            last = (at_ms, no);
            taken += 1;
            if taken < 10_000 {
                plan(&mut timeline, now_ms, &mut dice);
            }
        }
        assert_eq!(taken, 10_099);
    }
}
