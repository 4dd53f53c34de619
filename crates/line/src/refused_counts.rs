//! How many entrants a line has refused, by code.

use crate::{NUMBER_MAX, Refused};

/// The codes with which a line refuses [`crate::Op::Enter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedCode {
    /// The line or the lane.
    LineFull,
    SoldOut,
    /// It is closed, being deleted, or draining.
    LineClosed,
    /// The line has no such lane.
    BadRequest,
}

impl RefusedCode {
    /// In the order in which they are stored, which never changes between releases.
    pub const ALL: [RefusedCode; 4] = [
        RefusedCode::LineFull,
        RefusedCode::SoldOut,
        RefusedCode::LineClosed,
        RefusedCode::BadRequest,
    ];

    /// As the protocol spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            RefusedCode::LineFull => "line_full",
            RefusedCode::SoldOut => "sold_out",
            RefusedCode::LineClosed => "line_closed",
            RefusedCode::BadRequest => "bad_request",
        }
    }

    /// `None` for what entrants are not refused with.
    pub fn of(refused: &Refused) -> Option<Self> {
        match refused {
            Refused::LineFull | Refused::LaneFull { .. } | Refused::NoRoomKept { .. } => {
                Some(RefusedCode::LineFull)
            }
            Refused::SoldOut => Some(RefusedCode::SoldOut),
            Refused::LineClosed | Refused::LineDraining => Some(RefusedCode::LineClosed),
            Refused::BadField(_) => Some(RefusedCode::BadRequest),
            _ => None,
        }
    }
}

/// The leader counts, and writes down what it has counted by [`crate::Op::CountRefused`]: a refusal has no log entry of
/// its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RefusedCounts([u64; RefusedCode::ALL.len()]);

impl RefusedCounts {
    /// From what [`RefusedCounts::stored`] gave; `None` if those are too many.
    pub fn from_stored(counts: &[u64]) -> Option<Self> {
        let mut read = Self::default();
        read.0.get_mut(..counts.len())?.copy_from_slice(counts);
        Some(read)
    }

    /// In the order of [`RefusedCode::ALL`], without zeros at the end: none if nobody was refused.
    pub fn stored(&self) -> &[u64] {
        let used = self.0.iter().rposition(|count| *count > 0);
        &self.0[..used.map_or(0, |last| last + 1)]
    }

    pub fn get(&self, code: RefusedCode) -> u64 {
        self.0[code as usize]
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn add(&mut self, code: RefusedCode) {
        self.0[code as usize] = self.0[code as usize].saturating_add(1);
    }

    /// Up to [`NUMBER_MAX`].
    #[must_use]
    pub fn plus(&self, more: &Self) -> Self {
        let sum = |nth: usize| self.0[nth].saturating_add(more.0[nth]).min(NUMBER_MAX);
        Self(std::array::from_fn(sum))
    }

    /// Down to 0.
    #[must_use]
    pub fn minus(&self, less: &Self) -> Self {
        Self(std::array::from_fn(|nth| {
            self.0[nth].saturating_sub(less.0[nth])
        }))
    }

    pub(crate) fn in_range(&self) -> bool {
        self.0.iter().all(|count| *count <= NUMBER_MAX)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn counts_add_up_and_are_stored_without_zeros() {
        let mut counts = RefusedCounts::default();
        assert!(counts.is_empty() && counts.stored().is_empty());
        for refused in [
            Refused::LineFull,
            Refused::LaneFull {
                lane: "vip".try_into().unwrap(),
                limit: 3,
            },
            Refused::LineDraining,
        ] {
            counts.add(RefusedCode::of(&refused).unwrap());
        }
        assert_eq!(counts.stored(), [2, 0, 1]);
        assert_eq!(RefusedCounts::from_stored(&[2, 0, 1]), Some(counts));
        assert_eq!(RefusedCounts::from_stored(&[0; 5]), None);
        assert_eq!(RefusedCode::of(&Refused::NotAdmitted), None);
        let twice = counts.plus(&counts);
        assert_eq!(twice.get(RefusedCode::LineFull), 4);
        assert_eq!(twice.minus(&counts), counts);
        let most = RefusedCounts::from_stored(&[u64::MAX]).unwrap();
        assert_eq!(most.plus(&most).stored(), [NUMBER_MAX]);
    }
}
