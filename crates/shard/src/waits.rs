//! How long the tokens waited that this leader has admitted, by line, for metrics.
//!
//! Not replicated: a new leader counts from zero, as any process does that starts. One look-up by name for each
//! admission, and 150 bytes for each line that admits.

use std::collections::BTreeMap;

use nowserving_line::{Line, LineName};

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

/// Those of a shard's leader.
#[derive(Debug, Default)]
pub struct Waits {
    /// With the incarnation of the line.
    lines: BTreeMap<LineName, (u64, WaitCounts)>,
}

impl WaitCounts {
    fn add(&mut self, wait_ms: u64) {
        let class = WAIT_BOUNDS_MS.partition_point(|bound_ms| *bound_ms < wait_ms);
        self.classes[class] += 1;
        self.sum_ms = self.sum_ms.saturating_add(wait_ms);
    }
}

impl Waits {
    /// A token was admitted after so long.
    pub(crate) fn count(&mut self, line: &Line, wait_ms: u64) {
        let incarnation = line.incarnation();
        // Looked up first, as a copy of the name costs more.
        if let Some((of, counts)) = self.lines.get_mut(line.name()) {
            if *of != incarnation {
                (*of, *counts) = (incarnation, WaitCounts::default());
            }
            return counts.add(wait_ms);
        }
        let mut counts = WaitCounts::default();
        counts.add(wait_ms);
        self.lines
            .insert(line.name().clone(), (incarnation, counts));
    }

    /// Those of this creation of the line.
    #[must_use]
    pub fn of(&self, line: &Line) -> WaitCounts {
        let found = self.lines.get(line.name());
        let found = found.filter(|(of, _)| *of == line.incarnation());
        found.map_or_else(WaitCounts::default, |(_, counts)| *counts)
    }

    /// The line was deleted.
    pub(crate) fn forget(&mut self, name: &LineName) {
        self.lines.remove(name);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_line::Settings;

    use super::*;
    use crate::test_world::World;

    #[test]
    fn a_wait_is_in_the_first_class_that_is_long_enough() {
        let mut counts = WaitCounts::default();
        for wait_ms in [0, 100, 101, 1_000, 43_200_000, 43_200_001] {
            counts.add(wait_ms);
        }
        let mut expected = [0; 16];
        (expected[0], expected[1], expected[14], expected[15]) = (2, 2, 1, 1);
        assert_eq!(counts.classes, expected);
        assert_eq!(counts.sum_ms, 86_401_202);
    }

    #[test]
    fn a_leader_counts_each_admission_once_and_forgets_them_with_its_lead() {
        let mut world = World::new(Settings::new(1, 5));
        let first = world.enter().unwrap();
        let second = world.enter().unwrap();
        world.wait(4_000);
        world.leave(first);
        world.claim(second).unwrap();
        let counts = world.leader_state.waits.of(world.line());
        assert_eq!(counts.classes[..3], [1, 0, 1]);
        assert_eq!(counts.classes.iter().sum::<u64>(), 2);
        assert!((3_000..=4_000).contains(&counts.sum_ms), "{counts:?}");
        world.change_leader();
        let counts = world.leader_state.waits.of(world.line());
        assert_eq!(counts, WaitCounts::default());
    }

    #[test]
    fn the_bounds_ascend() {
        assert!(WAIT_BOUNDS_MS.is_sorted());
    }
}
