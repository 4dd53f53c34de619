//! The gate: what a line counts while it holds nobody back.
//!
//! In `shadow` and `off`, `capacity` looks at nothing but the phase, so that everybody is admitted at once. Under
//! `shadow` each admission is compared with what the line would have had room for.

use nowserving_codec::Codec;

use crate::line::Line;
use crate::seldom::Seldom;
use crate::{Gate, NUMBER_MAX};

/// What a line has counted since its gate was last set to [`Gate::Shadow`].
#[derive(Codec, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shadow {
    /// Tokens admitted.
    pub admitted: u64,
    /// Of these, tokens that were admitted while every seat was held: each would have waited.
    pub held_back: u64,
    /// Of these, tokens that were admitted while `queue_limit` more than the seats were held, too: the line would have
    /// been full.
    pub refused: u64,
    /// The most seats that were held beyond those that there are: as many would have waited at once.
    pub over_seats_max: u64,
}

/// What one admission adds to [`Shadow`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShadowOutcome {
    /// See [`Shadow::held_back`].
    pub held_back: bool,
    /// See [`Shadow::refused`].
    pub refused: bool,
}

impl Shadow {
    pub(crate) fn in_range(&self) -> bool {
        let counts_fit = self.refused <= self.held_back && self.held_back <= self.admitted;
        counts_fit && self.admitted.max(self.over_seats_max) <= NUMBER_MAX
    }
}

impl Line {
    /// What the line has counted under `shadow`: kept until the gate is set to that again.
    pub fn shadow(&self) -> Shadow {
        self.shadow.value()
    }

    /// How many tokens more than `seats` hold one.
    pub fn over_seats(&self) -> u64 {
        self.held().saturating_sub(self.seats().into())
    }

    pub(crate) fn holds_back(&self) -> bool {
        self.settings.gate.holds_back()
    }

    /// To be called before a token is admitted.
    pub(crate) fn count_shadow(&mut self) -> Option<ShadowOutcome> {
        if self.settings.gate != Gate::Shadow {
            return None;
        }
        let (held, seats) = (self.held(), u64::from(self.seats()));
        let limit = seats + u64::from(self.settings.queue_limit);
        let shadow = self.shadow.get_mut();
        let count = |counted: &mut u64| *counted = (*counted + 1).min(NUMBER_MAX);
        let outcome = ShadowOutcome {
            held_back: held >= seats,
            refused: held >= limit,
        };
        count(&mut shadow.admitted);
        if outcome.held_back {
            count(&mut shadow.held_back);
        }
        if outcome.refused {
            count(&mut shadow.refused);
        }
        let over = (held + 1).saturating_sub(seats);
        shadow.over_seats_max = shadow.over_seats_max.max(over);
        Some(outcome)
    }

    /// To be called when the gate of the settings differs from what it was.
    pub(crate) fn change_gate(&mut self) {
        if self.settings.gate == Gate::Shadow {
            self.shadow = Seldom::default();
        }
    }
}
