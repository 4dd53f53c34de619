//! S8 and S10: what a line's settings say of its seats and of when they change.

use nowserving_line::{Admission, Change, Event, Op, Settings, TokenChange};

use super::{Broken, ShadowLine};

impl ShadowLine {
    /// The most seats that the line had on the way to these settings: changes of the schedule that are due follow a change
    /// of the settings, and each other, and each admits.
    pub(super) fn seats_passing(&self, op: &Op, now: &Settings) -> u64 {
        let made = match op {
            Op::Configure { patch, .. } => match &patch.schedule {
                Some(Change::Set(schedule)) => schedule.as_slice(),
                _ => self.schedule.as_slice(),
            },
            _ => {
                let made = self.schedule.len().saturating_sub(now.schedule.len());
                self.schedule.get(..made).unwrap_or_default()
            }
        };
        let own = match op {
            Op::Configure { patch, .. } => Some(&**patch),
            _ => None,
        };
        let all = made.iter().map(|it| &it.set).chain(own);
        let seats = all.map(|set| match set.seats {
            Some(Change::Set(seats)) => seats.into(),
            _ => 0,
        });
        // What was held back before is done first, with the seats until then.
        match made.is_empty() {
            true => 0,
            false => seats.fold(self.seats, u64::max),
        }
    }

    /// A change of the schedule is made once, in its turn, and not before its time.
    pub(super) fn keeps_schedule(&self, settings: &Settings, wall_ms: u64) -> Result<(), Broken> {
        let (before, now) = (&self.schedule, &settings.schedule);
        let made = before.len().saturating_sub(now.len());
        let (made, rest) = before.split_at(made);
        match rest == now && made.iter().all(|it| it.at_ms <= wall_ms) {
            true => Ok(()),
            false => Err((
                "S10",
                format!("the schedule was {before:?}, and is {now:?} at {wall_ms}"),
            )),
        }
    }

    /// S8: in a line whose tokens are called, nobody is admitted by itself.
    pub(super) fn keeps_called(
        &self,
        op: &Op,
        now: &Settings,
        events: &[Event],
    ) -> Result<(), Broken> {
        let called = self.called && now.admission == Admission::Called && now.gate.holds_back();
        let is_call = matches!(op, Op::CallNext { .. } | Op::Take { .. });
        let admitted = events.iter().find(|event| {
            let Event::Token { what, .. } = event else {
                return false;
            };
            matches!(what, TokenChange::Admitted { .. })
        });
        match admitted {
            Some(event) if called && !is_call => {
                Err(("S8", format!("not called, and admitted: {event:?}")))
            }
            _ => Ok(()),
        }
    }
}
