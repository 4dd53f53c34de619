//! The place of one token, computed from boards alone.
//!
//! Nothing here does I/O: a push service in any language can do the same. A board says how far
//! admission has come (`admitted_through`) and which tokens stopped waiting since the previous board
//! (`holes`). All holes between `admitted_through` and a token give the token's exact position,
//! however many others wait:
//!
//! ```text
//! position = token - admitted_through - holes between the two
//! ```
//!
//! Boards are sent at most once. `prev_version` names the board that a board builds on. If that one is
//! newer than the last one received, a board is missing, and a `status` (with `holes: true`) or the next `whole` board
//! gives the place again.

use std::collections::BTreeMap;

/// The most ranges of holes kept for one token. Beyond it the place comes from polls alone, so that
/// memory per watcher stays bounded (1.5 MiB at most) even if every second one of millions leaves.
pub const RANGES_MAX: usize = 65_536;

/// The consequence of a board for one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// The board is not newer than the known state: a duplicate, or older than a `status`.
    Stale,
    /// Boards between the last one and this one are missing: ask `status` with `holes`.
    Gap,
    /// The token still waits, at this exact position (1 = next).
    Position(u64),
    /// The token no longer waits: ask `status` whether it is admitted or gone.
    Passed,
}

/// The exact place of one token in its lane.
///
/// Unknown at first; [`Place::sync`] sets it, [`Place::board`] keeps it up to date.
#[derive(Debug, Clone)]
pub struct Place {
    token: u64,
    /// The version of the known state; `None` before the first sync and after a gap.
    version: Option<u64>,
    admitted_through: u64,
    /// Disjoint, not adjacent: first → last, all within `admitted_through + 1 ..= token - 1`.
    holes: BTreeMap<u64, u64>,
    /// How many numbers `holes` covers.
    hole_count: u64,
    passed: bool,
}

impl Place {
    /// A token whose place is not known yet.
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

    /// Takes a `status` that was asked with `holes: true`: all holes between `admitted_through` and the
    /// token, as `[first, last]`, at this version of the line.
    ///
    /// Ignores a status that is older than the known state.
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

    /// Takes one board: its `version`, `prev_version` and, of the token's own lane,
    /// `admitted_through` and `holes`. A `prev_version` of 0 means that the sender does not know which
    /// board was published before: a gap.
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

    /// Takes a board that lists all holes (`whole`): no earlier board is needed, and the place is known even if it was
    /// not. It must be of the token's incarnation, and the token must have entered before it: `token` is less than the
    /// lane's `next_token`.
    pub fn whole_board(&mut self, version: u64, admitted_through: u64, holes: &[[u64; 2]]) -> Seen {
        if self.version.is_some_and(|known| version <= known) {
            return Seen::Stale;
        }
        self.sync(version, admitted_through, holes);
        self.passed |= contains(holes, self.token);
        match self.position() {
            _ if self.passed => Seen::Passed,
            Some(position) => Seen::Position(position),
            None => Seen::Gap,
        }
    }

    /// The exact position (1 = next) at [`Place::version`]; `None` while it is not known, or if the
    /// token no longer waits.
    #[must_use]
    pub fn position(&self) -> Option<u64> {
        self.version?;
        if self.passed {
            return None;
        }
        // Holes lie strictly between the two, so this underflows only if the cluster sends invalid
        // boards; a watcher must not panic on those.
        (self.token - self.admitted_through).checked_sub(self.hole_count)
    }

    /// The version of the line that this place belongs to; `None` after a gap.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        self.version
    }

    /// The token's number.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The highest number known to wait no longer.
    #[must_use]
    pub fn admitted_through(&self) -> u64 {
        self.admitted_through
    }

    /// Makes the place unknown until the next [`Place::sync`].
    pub fn forget(&mut self) {
        self.version = None;
        self.holes.clear();
        self.hole_count = 0;
    }

    /// Advances admission; holes at or before it no longer count.
    fn admit(&mut self, admitted_through: u64) {
        // Pointers fall only over numbers that nobody holds, so never while this token waits behind
        // them; a smaller one would be an error of the sender.
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

    /// Adds one range, merged with those that it overlaps or touches: a hole may be listed twice.
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

/// Whether boards are missing between the version `known` and a board that builds on `prev_version`.
pub(crate) fn is_gap(known: u64, prev_version: u64) -> bool {
    prev_version > known || prev_version == 0
}

fn contains(holes: &[[u64; 2]], token: u64) -> bool {
    holes
        .iter()
        .any(|&[first, last]| first <= token && token <= last)
}

#[cfg(test)]
pub(crate) mod naive;
#[cfg(test)]
mod tests;
