//! Operators' names and reasons: what the journal says of an operation that an operator asked for.

use nowserving_codec::Codec;

use crate::line::Line;
use crate::{BadField, JournalEntry, Journaled, KICK_TEXT_BYTES_MAX, Op};

/// About the memory that a note takes beside its texts.
const NOTE_BYTES: usize = 96;

/// What a line was like before an operation that is to be noted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BeforeNote {
    version: u64,
    seats: SeatsTold,
}

/// The seats that a backend has told, and those in force.
type SeatsTold = (Option<u32>, u32);

/// Who asked for an operation, and why.
#[derive(Codec, Debug, Clone, Default, PartialEq, Eq)]
pub struct OperatorNote {
    /// At most [`KICK_TEXT_BYTES_MAX`] bytes.
    pub by: Option<Box<str>>,
    /// At most [`KICK_TEXT_BYTES_MAX`] bytes.
    pub reason: Option<Box<str>>,
}

/// A note in the journal. Notes are kept apart from the entries, as changes of settings are.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
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
    /// To be called before an operation that is to be noted.
    pub(crate) fn before_note(&self) -> BeforeNote {
        BeforeNote {
            version: self.version,
            seats: self.seats_told(),
        }
    }

    fn seats_told(&self) -> SeatsTold {
        (self.told().map(|told| told.seats), self.seats())
    }

    /// Notes who asked for the operation that has just been run, and why. Told seats get an entry if they are others than
    /// before: a backend tells them every few seconds. [`Op::Delete`] has none: the journal goes with the line.
    pub(crate) fn journal_note(
        &mut self,
        note: &OperatorNote,
        op: &Op,
        before: BeforeNote,
        at_ms: u64,
    ) {
        if let Op::CapacityTold { told, .. } = op {
            if self.seats_told() == before.seats {
                return;
            }
            let seats = told.map(|(seats, _)| seats);
            self.next_version();
            self.journal_entry(Journaled::CapacityTold { seats }, at_ms);
            return self.push_note((self.version, self.version), note);
        }
        for versions in self.noted_by(op, before.version) {
            self.push_note(versions, note);
        }
    }

    /// Those of the entries since then that this operation made: of each run the first and the last.
    fn noted_by(&self, op: &Op, before: u64) -> Vec<(u64, u64)> {
        let mut entries = self.journal.after(before);
        let is_own = |entry: &JournalEntry| match (op, entry.what) {
            (Op::Configure { .. }, Journaled::Configured { scheduled_at_ms }) => {
                scheduled_at_ms.is_none()
            }
            (Op::Import { .. }, Journaled::Imported { .. }) => true,
            _ => false,
        };
        match op {
            Op::Configure { .. } | Op::Import { .. } => {
                let Some(own) = entries.find(is_own).map(|it| it.version) else {
                    return Vec::new();
                };
                // The rows of an import entered before its own entry.
                let first = self.journal.after(before).map(|it| it.version).next();
                let rows = first.filter(|first| *first < own && matches!(op, Op::Import { .. }));
                let rows = rows.map(|first| (first, own - 1));
                rows.into_iter().chain([(own, own)]).collect()
            }
            Op::Move { .. } | Op::CallNext { .. } | Op::Take { .. } => {
                let first = entries.next();
                let last = entries.next_back().or(first);
                let both = first
                    .zip(last)
                    .map(|(first, last)| (first.version, last.version));
                both.into_iter().collect()
            }
            _ => Vec::new(),
        }
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
