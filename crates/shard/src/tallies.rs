//! What this leader has counted in its lines and their lanes: newcomers, departures, refusals, waits, forecasts. For
//! metrics.
//!
//! Not replicated: a new leader counts from zero, as any process does that starts. It costs one look-up by name for each
//! operation with such an event and for each refusal, and 400 bytes for each line with something to count. Lanes are
//! counted apart only in lines that have several: 400 bytes more for each.

use std::collections::BTreeMap;
use std::sync::Arc;

use nowserving_line::{
    Event, LaneName, Line, LineName, MovedBy, OFF_BY_PERCENT, Reason, Refused, RefusedCode,
    TokenChange,
};

/// The upper ends of the classes: a tenth of a second to twelve hours.
pub const WAIT_BOUNDS_MS: [u64; 15] = [
    100, 1_000, 5_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_200_000, 1_800_000,
    3_600_000, 7_200_000, 14_400_000, 43_200_000,
];

/// The waits of admitted tokens, from entering to admission.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitCounts {
    /// Tokens that waited no longer than the bound of that place in [`WAIT_BOUNDS_MS`], and longer than the one before;
    /// in the last place those that waited longer than all.
    pub classes: [u64; WAIT_BOUNDS_MS.len() + 1],
    pub sum_ms: u64,
}

/// Counts that only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Newcomers that got a number.
    pub entered: u64,
    /// By [`Reason::code`].
    pub gone: [u64; Reason::ALL.len()],
    /// In the order of [`RefusedCode::ALL`].
    pub refused: [u64; RefusedCode::ALL.len()],
    /// While the gate was `shadow`: tokens admitted, of these those that would have waited, of these those that would have
    /// been refused.
    pub shadow: [u64; 3],
    /// Tokens that were given an ETA and have been admitted, by how far that was off: at most as [`OFF_BY_PERCENT`] says,
    /// or by more.
    pub off_by: [u64; OFF_BY_PERCENT.len() + 1],
    /// Those of them that waited no longer than `eta_p90_ms`.
    pub covered: u64,
    pub waits: WaitCounts,
}

/// Those of a shard's leader.
#[derive(Debug, Default)]
pub struct Tallies {
    lines: BTreeMap<LineName, Counted>,
    /// Of all lines with nothing to count.
    nothing: Arc<Tally>,
}

#[derive(Debug)]
struct Counted {
    /// Of the line.
    incarnation: u64,
    /// Apart: a tree's nodes are half empty where names come in order, and metrics have it, too.
    line: Arc<Tally>,
    /// By lane id, up to the largest one with something to count.
    lanes: Vec<Tally>,
}

impl WaitCounts {
    fn add(&mut self, wait_ms: u64) {
        let class = WAIT_BOUNDS_MS.partition_point(|bound_ms| *bound_ms < wait_ms);
        self.classes[class] += 1;
        self.sum_ms = self.sum_ms.saturating_add(wait_ms);
    }
}

impl Tally {
    /// What has been added since.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        self.with(before, u64::saturating_sub)
    }

    #[must_use]
    pub fn plus(&self, more: &Self) -> Self {
        self.with(more, u64::saturating_add)
    }

    /// Tokens that were given an ETA and have been admitted.
    #[must_use]
    pub fn judged(&self) -> u64 {
        self.off_by.iter().sum()
    }

    fn with(&self, other: &Self, both: impl Fn(u64, u64) -> u64 + Copy) -> Self {
        Self {
            entered: both(self.entered, other.entered),
            gone: each(&self.gone, &other.gone, both),
            refused: each(&self.refused, &other.refused, both),
            shadow: each(&self.shadow, &other.shadow, both),
            off_by: each(&self.off_by, &other.off_by, both),
            covered: both(self.covered, other.covered),
            waits: WaitCounts {
                classes: each(&self.waits.classes, &other.waits.classes, both),
                sum_ms: both(self.waits.sum_ms, other.waits.sum_ms),
            },
        }
    }

    /// `wait_ms` is that of an admitted token.
    fn count(&mut self, what: &TokenChange, wait_ms: Option<u64>) {
        match what {
            TokenChange::Entered { .. } => self.entered += 1,
            TokenChange::Gone { reason, .. } => self.gone[usize::from(reason.code())] += 1,
            TokenChange::Moved { by, .. } => {
                let counts = u64::from(*by != MovedBy::Draw);
                self.gone[usize::from(Reason::Moved.code())] += counts;
            }
            TokenChange::Admitted { eta, shadow, .. } => {
                if let Some(eta) = eta {
                    self.off_by[usize::from(eta.off_by)] += 1;
                    self.covered += u64::from(eta.covered);
                }
                if let Some(shadow) = shadow {
                    self.shadow[0] += 1;
                    self.shadow[1] += u64::from(shadow.held_back);
                    self.shadow[2] += u64::from(shadow.refused);
                }
                if let Some(wait_ms) = wait_ms {
                    self.waits.add(wait_ms);
                }
            }
            TokenChange::Claimed { .. } | TokenChange::CallAhead | TokenChange::Position { .. } => {
            }
        }
    }
}

fn each<const N: usize>(
    ours: &[u64; N],
    theirs: &[u64; N],
    both: impl Fn(u64, u64) -> u64,
) -> [u64; N] {
    std::array::from_fn(|nth| both(ours[nth], theirs[nth]))
}

fn is_counted(event: &Event) -> bool {
    matches!(
        event,
        Event::Token {
            what: TokenChange::Entered { .. }
                | TokenChange::Gone { .. }
                | TokenChange::Moved { .. }
                | TokenChange::Admitted { .. },
            ..
        }
    )
}

impl Counted {
    fn new(incarnation: u64) -> Self {
        Self {
            incarnation,
            line: Arc::default(),
            lanes: Vec::new(),
        }
    }

    /// Adds to the line's counts, and to those of the lane if there are several.
    fn add(&mut self, line: &Line, lane: Option<u8>, add: impl Fn(&mut Tally)) {
        add(Arc::make_mut(&mut self.line));
        let lane = lane.filter(|_| line.settings().lanes.len() > 1);
        if let Some(lane) = lane.map(usize::from) {
            if self.lanes.len() <= lane {
                self.lanes.resize(lane + 1, Tally::default());
            }
            add(&mut self.lanes[lane]);
        }
    }
}

impl Tallies {
    /// These events have made the line what it is now.
    pub(crate) fn count(&mut self, line: &Line, events: &[Event], now_ms: u64) {
        if !events.iter().any(is_counted) {
            return;
        }
        let Some(counted) = self.counted(line) else {
            return;
        };
        for event in events {
            let Event::Token {
                lane_id,
                token,
                what,
                ..
            } = event
            else {
                continue;
            };
            let is_admission = matches!(what, TokenChange::Admitted { .. });
            let live = is_admission.then(|| line.live(*lane_id, *token));
            let entered_ms = live.flatten().map(|live| live.entered.at.service_ms);
            let wait_ms = entered_ms.map(|entered_ms| now_ms.saturating_sub(entered_ms));
            counted.add(line, Some(*lane_id), |tally| tally.count(what, wait_ms));
        }
    }

    /// The line has refused an entrant who asked for this lane.
    pub(crate) fn count_refused(
        &mut self,
        line: &Line,
        lane: Option<&LaneName>,
        refused: &Refused,
    ) {
        let Some(code) = RefusedCode::of(refused) else {
            return;
        };
        let lane = line.newcomers_lane_id(lane);
        if let Some(counted) = self.counted(line) {
            counted.add(line, lane, |tally| tally.refused[code as usize] += 1);
        }
    }

    fn counted(&mut self, line: &Line) -> Option<&mut Counted> {
        let incarnation = line.incarnation();
        // Looked up first, as a copy of the name costs more.
        if !self.lines.contains_key(line.name()) {
            let counted = Counted::new(incarnation);
            self.lines.insert(line.name().clone(), counted);
        }
        let counted = self.lines.get_mut(line.name())?;
        if counted.incarnation != incarnation {
            *counted = Counted::new(incarnation);
        }
        Some(counted)
    }

    fn find(&self, line: &Line) -> Option<&Counted> {
        let found = self.lines.get(line.name());
        found.filter(|counted| counted.incarnation == line.incarnation())
    }

    /// What was counted of this creation of the line.
    #[must_use]
    pub fn of(&self, line: &Line) -> Arc<Tally> {
        let found = self.find(line);
        found.map_or(&self.nothing, |counted| &counted.line).clone()
    }

    /// The same of one of its lanes, while it had several.
    #[must_use]
    pub fn of_lane(&self, line: &Line, lane: u8) -> Tally {
        let found = self.find(line);
        let found = found.and_then(|counted| counted.lanes.get(usize::from(lane)));
        found.copied().unwrap_or_default()
    }

    /// The line was deleted.
    pub(crate) fn forget(&mut self, name: &LineName) {
        self.lines.remove(name);
    }
}

#[cfg(test)]
#[path = "tallies_tests.rs"]
mod tests;
