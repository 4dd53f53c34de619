//! The gate and imports of the naive line.

use nowserving_line::{BadField, Gate, ImportRow, Journaled, Refused, ShadowOutcome};

use crate::naive::{Answer, NaiveLine};
use crate::naive_ops::bad;
use crate::shard::Entry;

/// The most `seats` and the most `queue_limit`.
const MOST: u64 = 1_000_000 + 10_000_000;

impl NaiveLine {
    pub fn holds_back(&self) -> bool {
        self.settings.gate == Gate::On
    }

    /// How many more may be live while nobody is held back.
    pub fn room_without_gate(&self) -> u64 {
        MOST - self.live()
    }

    /// Before one more is admitted.
    pub fn count_shadow(&mut self) -> Option<ShadowOutcome> {
        if self.settings.gate != Gate::Shadow {
            return None;
        }
        let (held, seats) = (self.held(), self.seats());
        let limit = seats + u64::from(self.settings.queue_limit);
        self.shadow.admitted += 1;
        self.shadow.held_back += u64::from(held >= seats);
        self.shadow.refused += u64::from(held >= limit);
        let over = (held + 1).saturating_sub(seats);
        self.shadow.over_seats_max = self.shadow.over_seats_max.max(over);
        Some(ShadowOutcome {
            held_back: held >= seats,
            refused: held >= limit,
        })
    }

    pub fn import(
        &mut self,
        import_id: &str,
        first_row: u64,
        rows: &[ImportRow],
        entry: &mut Entry<'_>,
    ) -> Result<Answer, Refused> {
        if import_id.is_empty() {
            return Err(bad("import_id"));
        }
        if rows.is_empty() {
            return Err(bad("rows"));
        }
        let known = self.imported.clone().filter(|(id, ..)| id == import_id);
        let before = known.map_or((0, 0), |(_, rows, entered)| (rows, entered));
        if first_row > before.0 {
            return Err(bad("first_row"));
        }
        let (mut done, mut entered) = before;
        for (nth, row) in (first_row..).zip(rows) {
            if nth < before.0 {
                continue;
            }
            let is_new = self.find(&row.key).is_none();
            let got = self.enter(Some(&row.key), row.lane.as_ref(), row.entered_at_ms, entry);
            match got {
                Ok(_) => {
                    done += 1;
                    entered += u64::from(is_new);
                }
                Err(Refused::BadField(BadField { field, .. })) if done == before.0 => {
                    return Err(bad(format!("rows[{nth}].{field}")));
                }
                Err(refused) if done == before.0 => return Err(refused),
                Err(_) => break,
            }
        }
        if done > before.0 {
            self.version += 1;
            self.imported = Some((import_id.to_owned(), done, entered));
            self.keep(Journaled::Imported {
                rows: done,
                entered,
            });
        }
        Ok(Answer::Line {
            incarnation: self.incarnation,
            version: self.version,
        })
    }
}
