//! Operators' names and reasons: what the journal says of an operation that an operator asked for.

use crate::line::Line;
use crate::{BadField, Journaled, KICK_TEXT_BYTES_MAX, Op};

/// About the memory that a note takes beside its texts.
const NOTE_BYTES: usize = 96;

/// Who asked for an operation, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperatorNote {
    /// At most [`KICK_TEXT_BYTES_MAX`] bytes.
    pub by: Option<Box<str>>,
    /// At most [`KICK_TEXT_BYTES_MAX`] bytes.
    pub reason: Option<Box<str>>,
}

/// A note in the journal. Notes are kept apart from the entries, as changes of settings are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noted {
    /// The version of the first entry of the operation.
    pub version: u64,
    /// The version of the last one.
    pub through: u64,
    pub note: OperatorNote,
}

impl OperatorNote {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.by.is_none() && self.reason.is_none()
    }

    pub(crate) fn check(&self) -> Result<(), BadField> {
        for (field, text) in [("by", &self.by), ("reason", &self.reason)] {
            if text
                .as_ref()
                .is_some_and(|it| it.len() > KICK_TEXT_BYTES_MAX)
            {
                return Err(BadField::new(field, "at most 128 bytes"));
            }
        }
        Ok(())
    }
}

impl Noted {
    /// Counts against [`crate::JOURNAL_CHANGES_BYTES`].
    pub(crate) fn bytes(&self) -> usize {
        let texts = [&self.note.by, &self.note.reason].into_iter().flatten();
        NOTE_BYTES + texts.map(|text| text.len()).sum::<usize>()
    }

    /// For dumps: whether an operation can have it.
    pub(crate) fn is_plausible(&self) -> bool {
        self.version <= self.through && self.note.check().is_ok()
    }
}

impl Line {
    /// Notes who asked for the operation that has just been run, and why; `before` is the line's version before it. An
    /// operation that journals nothing by itself gets an entry if it is noted. [`Op::Delete`] has none: the journal goes
    /// with the line.
    pub(crate) fn journal_note(&mut self, note: &OperatorNote, op: &Op, before: u64, at_ms: u64) {
        let versions = match op {
            Op::CapacityTold { told, .. } => {
                let seats = told.map(|(seats, _)| seats);
                let version = self.next_version();
                self.journal_entry(Journaled::CapacityTold { seats }, at_ms);
                (version, version)
            }
            Op::Configure { .. } => {
                let mut entries = self.journal.after(before);
                let own = Journaled::Configured {
                    scheduled_at_ms: None,
                };
                let Some(entry) = entries.find(|entry| entry.what == own) else {
                    return;
                };
                (entry.version, entry.version)
            }
            Op::Move { .. } | Op::CallNext { .. } | Op::Take { .. } | Op::Import { .. } => {
                let mut entries = self.journal.after(before);
                let Some(first) = entries.next() else {
                    return;
                };
                let last = entries.next_back().unwrap_or(first);
                (first.version, last.version)
            }
            _ => return,
        };
        self.push_note(versions, note);
    }

    /// Notes who asked for the entries of these versions, and why.
    pub(crate) fn push_note(&mut self, (version, through): (u64, u64), note: &OperatorNote) {
        self.journal.push_note(Noted {
            version,
            through,
            note: note.clone(),
        });
    }

    /// Who asked for the operation that made this journal entry, and why. `None` if that was not said, or is forgotten:
    /// see [`crate::JOURNAL_CHANGES_BYTES`].
    pub fn operator_note(&self, version: u64) -> Option<&Noted> {
        self.journal.note(version)
    }
}
