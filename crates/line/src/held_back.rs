//! What holds a line back: why the one who is next is not admitted now.

use crate::Phase;
use crate::line::Line;

/// What keeps the next waiting token from being admitted. When several things do, it is the first
/// of them in the order of this list: taking away a later one alone would admit nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeldBackBy {
    /// Nobody waits.
    Nothing,
    /// The phase admits nobody.
    Phase(Phase),
    /// The quota has no unit left.
    Quota,
    /// Every seat is held.
    Seats,
    /// The admission rate has no unit saved up.
    AdmissionRate {
        /// When it will have one (service clock).
        next_at_ms: u64,
    },
    /// Nothing any more: those who wait are being admitted, in steps of at most
    /// [`crate::WORK_MAX`] a log entry.
    Admitting,
}

impl HeldBackBy {
    /// The contract's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            HeldBackBy::Nothing => "nothing",
            HeldBackBy::Phase(_) => "phase",
            HeldBackBy::Quota => "quota",
            HeldBackBy::Seats => "seats",
            HeldBackBy::AdmissionRate { .. } => "admission_rate",
            HeldBackBy::Admitting => "admitting",
        }
    }
}

impl Line {
    /// What holds the line back at `now_ms` of the service clock.
    pub fn held_back_by(&self, now_ms: u64) -> HeldBackBy {
        if self.waiting() == 0 {
            HeldBackBy::Nothing
        } else if !self.phase().admits() {
            HeldBackBy::Phase(self.phase())
        } else if self.units_left() == 0 {
            HeldBackBy::Quota
        } else if self.free() == 0 {
            HeldBackBy::Seats
        } else if self.may_admit(now_ms) {
            HeldBackBy::Admitting
        } else {
            let next_at_ms = self.next_by_rate_ms().unwrap_or(now_ms);
            HeldBackBy::AdmissionRate { next_at_ms }
        }
    }
}
