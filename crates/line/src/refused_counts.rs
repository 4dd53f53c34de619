//! How many entrants a line has refused, by code.

use nowserving_codec::Codec;

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
    /// In the order of their numbers, which are those of their counts.
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
#[derive(Codec, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RefusedCounts([u64; RefusedCode::ALL.len()]);

impl RefusedCounts {
    /// In the order of [`RefusedCode::ALL`].
    pub fn new(counts: [u64; RefusedCode::ALL.len()]) -> Self {
        Self(counts)
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
    fn counts_add_up() {
        let mut counts = RefusedCounts::default();
        assert!(counts.is_empty());
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
        assert_eq!(counts, RefusedCounts::new([2, 0, 1, 0]));
        assert_eq!(
            RefusedCode::of(&Refused::SoldOut),
            Some(RefusedCode::SoldOut)
        );
        assert_eq!(RefusedCode::of(&Refused::NotAdmitted), None);
        let twice = counts.plus(&counts);
        assert_eq!(twice.get(RefusedCode::LineFull), 4);
        assert_eq!(twice.minus(&counts), counts);
        let most = RefusedCounts::new([u64::MAX, 0, 0, 0]);
        assert_eq!(most.plus(&most), RefusedCounts::new([NUMBER_MAX, 0, 0, 0]));
    }
}
