//! Which rule of the code is broken on purpose just now, on this thread.
//!
//! The checkers of the simulation are shown to bite by that: the crates that take part have a feature
//! `bite`, with which a few of their lines ask here. Builds without it do not have those lines.

use std::cell::Cell;

/// A rule to break, named by the invariant that its checker guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// A voter forgets in each term whom it voted for.
    S1,
    /// A follower takes entries that do not follow on its own.
    S2,
    /// A voter votes for whoever asks, whatever its log lacks.
    S3,
    /// A follower does not take note of when tokens were last heard from.
    S4,
    /// An entry that took the place of a leader's own is taken for it.
    S5,
    /// What promises that something is on disk is sent before it is.
    S6,
    /// Now and then a number is left out.
    S7,
    /// The second in a lane is admitted before the first.
    S8,
    /// A claim gets the fencing number of the one before it.
    S9,
    /// One more than there are seats is admitted.
    S10,
    /// A position is told that is one too high.
    S11,
    /// Half of its time is enough to be thrown out.
    S12,
    /// A key that is in the line already gets a second number.
    S13,
    /// An operation whose outcome is open is answered as not done.
    S14,
    /// A leader answers from its state also after its lease.
    S15,
    /// Boards leave holes out.
    S16,
}

impl Break {
    /// Every one.
    pub const ALL: [Break; 16] = [
        Break::S1,
        Break::S2,
        Break::S3,
        Break::S4,
        Break::S5,
        Break::S6,
        Break::S7,
        Break::S8,
        Break::S9,
        Break::S10,
        Break::S11,
        Break::S12,
        Break::S13,
        Break::S14,
        Break::S15,
        Break::S16,
    ];
}

thread_local! {
    static BROKEN: Cell<Option<Break>> = const { Cell::new(None) };
}

/// From now on this rule is broken on this thread, and no other.
pub fn set(broken: Option<Break>) {
    BROKEN.set(broken);
}

/// Whether this rule is broken.
#[must_use]
pub fn is(rule: Break) -> bool {
    BROKEN.get() == Some(rule)
}
