//! Where one token stands, worked out from boards alone.
//!
//! Nothing here does I/O: a push service in any language can do the same. A board says how far
//! admission has come (`admitted_through`) and which waiting tokens went since the board before
//! it (`holes`). Who knows all holes between `admitted_through` and their own number knows their
//! exact position, however many others wait:
//!
//! ```text
//! position = token - admitted_through - holes between the two
//! ```
//!
//! Boards are sent at most once. `prev_version` says what a board builds on; if that is newer than
//! what was seen last, something is missing and only a `status` (with `holes: true`) helps.

use std::collections::BTreeMap;

/// Ranges of holes kept for one token. Beyond it the place is taken from polls alone: memory per
/// watcher stays bounded (1.5 MiB at most) even if every second one of millions goes away.
pub const RANGES_MAX: usize = 65_536;

/// What a board told about one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Not newer than what is known already: a double, or one that a `status` has overtaken.
    Stale,
    /// Something between the last board and this one is missing: ask `status` with `holes`.
    Gap,
    /// The token still waits, and this is its exact position (1 = next).
    Position(u64),
    /// The token does not wait any more, admitted or gone: ask `status` which.
    Passed,
}

/// The exact place of one token in its lane.
///
/// Begins without knowledge; [`Place::sync`] gives it, [`Place::board`] keeps it up to date.
#[derive(Debug, Clone)]
pub struct Place {
    token: u64,
    /// The version up to which everything is known; `None` before the first sync and after a gap.
    version: Option<u64>,
    admitted_through: u64,
    /// Disjoint, not adjacent: first → last, all within `admitted_through + 1 ..= token - 1`.
    holes: BTreeMap<u64, u64>,
    /// How many numbers `holes` covers.
    hole_count: u64,
    passed: bool,
}

impl Place {
    /// A token of which nothing is known yet.
    #[must_use]
    pub fn new(token: u64) -> Place {
        Place {
            token,
            version: None,
            admitted_through: 0,
            holes: BTreeMap::new(),
            hole_count: 0,
            passed: false,
        }
    }

    /// Takes over a `status` that was asked with `holes: true`: all holes between
    /// `admitted_through` and the token, as `[first, last]`, at this version of the line.
    ///
    /// A status older than what is known is ignored.
    pub fn sync(&mut self, version: u64, admitted_through: u64, holes: &[[u64; 2]]) {
        if self.version.is_some_and(|known| known > version) {
            return;
        }
        self.version = Some(version);
        self.passed = admitted_through >= self.token;
        self.admitted_through = admitted_through;
        self.holes.clear();
        self.hole_count = 0;
        self.dig(holes);
    }

    /// Takes in one board: its `version`, `prev_version` and, of the token's own lane,
    /// `admitted_through` and `holes`. A `prev_version` of 0 says that its sender does not know
    /// what was published before: a gap.
    pub fn board(
        &mut self,
        version: u64,
        prev_version: u64,
        admitted_through: u64,
        holes: &[[u64; 2]],
    ) -> Seen {
        let Some(known) = self.version else {
            return Seen::Gap;
        };
        if version <= known {
            return Seen::Stale;
        }
        if is_gap(known, prev_version) {
            self.forget();
            return Seen::Gap;
        }
        self.version = Some(version);
        if admitted_through >= self.token || contains(holes, self.token) {
            self.passed = true;
        }
        if self.passed {
            return Seen::Passed;
        }
        self.admit(admitted_through);
        self.dig(holes);
        match self.position() {
            Some(position) => Seen::Position(position),
            None => Seen::Gap,
        }
    }

    /// The exact position (1 = next) at [`Place::version`]; `None` while that is not known or the
    /// token does not wait any more.
    #[must_use]
    pub fn position(&self) -> Option<u64> {
        self.version?;
        if self.passed {
            return None;
        }
        // Cannot underflow: holes lie strictly between the two. A cluster that sends nonsense
        // must not bring a watcher down all the same.
        (self.token - self.admitted_through).checked_sub(self.hole_count)
    }

    /// The version of the line that this place is as of; `None` after a gap.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        self.version
    }

    /// The token's number.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The highest number known not to wait any more.
    #[must_use]
    pub fn admitted_through(&self) -> u64 {
        self.admitted_through
    }

    /// Boards cannot be counted on any more: known only again after the next [`Place::sync`].
    pub fn forget(&mut self) {
        self.version = None;
        self.holes.clear();
        self.hole_count = 0;
    }

    /// Admission has come this far: holes at or before it count no more.
    fn admit(&mut self, admitted_through: u64) {
        // Pointers fall only over numbers that nobody holds, so never while this token waits
        // behind them; a smaller one would be an error on the other side.
        self.admitted_through = self.admitted_through.max(admitted_through);
        while let Some(entry) = self.holes.first_entry() {
            let (first, last) = (*entry.key(), *entry.get());
            if first > self.admitted_through {
                break;
            }
            entry.remove();
            if last > self.admitted_through {
                self.holes.insert(self.admitted_through + 1, last);
                self.hole_count -= self.admitted_through + 1 - first;
                break;
            }
            self.hole_count -= last - first + 1;
        }
    }

    fn dig(&mut self, holes: &[[u64; 2]]) {
        for &[first, last] in holes {
            let first = first.max(self.admitted_through.saturating_add(1));
            let last = last.min(self.token.saturating_sub(1));
            if first <= last {
                self.insert(first, last);
            }
        }
        if self.holes.len() > RANGES_MAX {
            self.forget();
        }
    }

    /// Adds one range, merging with what it overlaps or touches: the same hole may be told twice.
    fn insert(&mut self, mut first: u64, mut last: u64) {
        while let Some((&other_first, &other_last)) = self.holes.range(..=last + 1).next_back() {
            if other_last + 1 < first {
                break;
            }
            self.holes.remove(&other_first);
            self.hole_count -= other_last - other_first + 1;
            first = first.min(other_first);
            last = last.max(other_last);
        }
        self.holes.insert(first, last);
        self.hole_count += last - first + 1;
    }
}

/// Whether a board that builds on `prev_version` leaves something out for who has seen `known`.
pub(crate) fn is_gap(known: u64, prev_version: u64) -> bool {
    prev_version > known || prev_version == 0
}

fn contains(holes: &[[u64; 2]], token: u64) -> bool {
    holes
        .iter()
        .any(|&[first, last]| first <= token && token <= last)
}

#[cfg(test)]
mod tests;
