//! Who waited in a line when its draw began.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::events::{Happened, Id, LineEvents, What};

/// Who waited in each lane, and the last number that it had issued.
#[derive(Debug, Default)]
pub struct Waited {
    /// Lanes in which somebody waited.
    pub by_lane: BTreeMap<usize, BTreeSet<u64>>,
    issued: BTreeMap<usize, u64>,
}

impl Waited {
    /// At the newest draw of the line; `None` without one.
    pub fn for_the_draw(events: &LineEvents) -> Option<Waited> {
        let mut line = events.line.iter().rev();
        let (begun_at, _) = line.find(|(_, it)| &*it.event == "draw_begun")?;
        Some(Waited::until(*begun_at, events))
    }

    /// Before the event of this version.
    pub fn until(begun_at: u64, events: &LineEvents) -> Waited {
        let mut waited = Waited::default();
        for happened in events.tokens.range(..begun_at).map(|(_, it)| it) {
            match &happened.what {
                What::Entered { .. } => waited.issue(happened.id),
                What::Admitted { .. } | What::Gone { .. } => waited.leave(happened.id),
                What::Moved { to, .. } => {
                    waited.leave(happened.id);
                    waited.issue(*to);
                }
                What::Claimed | What::Other => {}
            }
        }
        // Of these no event is there, and numbers are issued without gaps.
        let known = |happened: &Happened| {
            let to = match happened.what {
                What::Moved { to, .. } => Some(to),
                _ => None,
            };
            [Some(happened.id), to].into_iter().flatten()
        };
        let before = events.tokens.range(..begun_at);
        let known: BTreeSet<Id> = before.flat_map(|(_, it)| known(it)).collect();
        for (lane, issued) in waited.issued.clone() {
            let unknown = (1..=issued).filter(|token| !known.contains(&(lane, *token)));
            waited.by_lane.entry(lane).or_default().extend(unknown);
        }
        waited.by_lane.retain(|_, tokens| !tokens.is_empty());
        waited
    }

    /// The numbers that the draw gives in a lane.
    pub fn numbers(&self, lane: usize) -> Range<u64> {
        let first = self.issued.get(&lane).map_or(1, |last| last + 1);
        let count = self.by_lane.get(&lane).map_or(0, BTreeSet::len);
        first..first + count as u64
    }

    fn issue(&mut self, (lane, token): Id) {
        self.by_lane.entry(lane).or_default().insert(token);
        let issued = self.issued.entry(lane).or_default();
        *issued = token.max(*issued);
    }

    fn leave(&mut self, (lane, token): Id) {
        self.by_lane.entry(lane).or_default().remove(&token);
    }
}
