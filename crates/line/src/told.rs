//! Seats as a backend tells them: [`crate::Op::CapacityTold`]. A backend that knows its capacity says it again and again;
//! what it said last is in force instead of the setting `seats`. When it has been silent for too long, the seats fall to
//! `seats_when_silent`, if that is set.

use nowserving_codec::Codec;

use crate::line::Line;
use crate::transitions::ApplyCtx;
use crate::{BadField, LineChange, NUMBER_MAX, Refused, SEATS_MAX, TIMEOUT_MS_MAX, TIMEOUT_MS_MIN};

/// What a backend has told of its capacity.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// 0 to [`SEATS_MAX`].
    pub seats: u32,
    /// From then on it counts as silent (service clock).
    pub until_ms: u64,
    /// It is past that time, and the line has taken note of it.
    pub silent: bool,
}

impl Line {
    /// How many tokens may hold seats now: what a backend has told, else the setting.
    pub fn seats(&self) -> u32 {
        let least = self.settings.seats_when_silent;
        match (self.told(), least) {
            (Some(told), Some(least)) if told.silent => told.seats.min(least),
            (Some(told), _) => told.seats,
            (None, _) => self.settings.seats,
        }
    }

    /// What a backend has told; `None`: none has, or it has taken that back.
    pub fn told(&self) -> Option<Told> {
        self.told.as_deref().copied()
    }

    /// `told`: the seats, and for how long they hold without being told again. `None`: the setting is in force again.
    pub(crate) fn capacity_told(
        &mut self,
        told: Option<(u32, u64)>,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<(), Refused> {
        if self.deleting {
            return Err(Refused::LineClosed);
        }
        let told = match told {
            None => None,
            Some((seats, _)) if seats > SEATS_MAX => {
                return Err(BadField::new("seats", format!("0 to {SEATS_MAX}")).into());
            }
            Some((_, for_ms)) if !(TIMEOUT_MS_MIN..=TIMEOUT_MS_MAX).contains(&for_ms) => {
                let limit = format!("{TIMEOUT_MS_MIN} to {TIMEOUT_MS_MAX} milliseconds");
                return Err(BadField::new("for_ms", limit).into());
            }
            Some((seats, for_ms)) => Some(Told {
                seats,
                until_ms: ctx.now_ms.saturating_add(for_ms).min(NUMBER_MAX),
                silent: false,
            }),
        };
        let before = (self.seats(), self.is_silent());
        self.told = told.map(Box::new);
        if (self.seats(), self.is_silent()) != before {
            self.seats_event(ctx);
            self.run_background(ctx);
        }
        Ok(())
    }

    /// When the backend counts as silent, if that matters and the line has not taken note of it (service clock).
    pub(crate) fn silence_due_ms(&self) -> Option<u64> {
        let told = self.told().filter(|told| !told.silent)?;
        self.settings.seats_when_silent.map(|_| told.until_ms)
    }

    /// Takes note of a silence that is due; to be called before a token is admitted, and after every operation. Returns
    /// false if none is.
    pub(crate) fn note_silence(&mut self, ctx: &mut ApplyCtx<'_>) -> bool {
        let due_ms = self.silence_due_ms();
        let due = due_ms.is_some_and(|due_ms| due_ms <= ctx.now_ms);
        if due && let Some(told) = &mut self.told {
            told.silent = true;
            self.seats_event(ctx);
        }
        due
    }

    /// The same as [`Line::seats`], of a line that would take note of a silence first.
    pub(crate) fn seats_at(&self, now_ms: u64) -> u32 {
        let due_ms = self.silence_due_ms();
        match (self.told(), self.settings.seats_when_silent) {
            (Some(told), Some(least)) if due_ms.is_some_and(|due_ms| due_ms <= now_ms) => {
                told.seats.min(least)
            }
            _ => self.seats(),
        }
    }

    fn is_silent(&self) -> bool {
        self.told().is_some_and(|told| told.silent)
    }

    fn seats_event(&mut self, ctx: &mut ApplyCtx<'_>) {
        let what = LineChange::Seats {
            seats: self.seats(),
            silent: self.is_silent(),
        };
        self.line_event(what, ctx.wall_ms, ctx.events.as_deref_mut());
    }
}
