//! Import of a queue that runs elsewhere: keys enter in the order of its rows, many in one operation, and the line
//! remembers how many rows are done. So an import that was broken off goes on where it was, and nobody whose token has
//! gone meanwhile enters again.

use nowserving_codec::Codec;

use crate::line::Line;
use crate::transitions::ApplyCtx;
use crate::{BadField, Journaled, LaneName, NUMBER_MAX, Refused};

/// The longest id of an import, in bytes.
pub const IMPORT_ID_BYTES_MAX: usize = 64;
/// The most rows of an [`crate::Op::Import`].
pub const IMPORT_ROWS_MAX: usize = 1_024;

/// One who waits in the other queue.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub struct ImportRow {
    /// As for [`crate::Op::Enter`].
    pub key: Box<[u8]>,
    /// As for [`crate::Op::Enter`].
    pub lane: Option<LaneName>,
    /// When it entered the other queue (wall clock), to be shown; `None`, or a later time than the entry's: now.
    pub entered_at_ms: Option<u64>,
}

/// How far the line's newest import has come.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    pub id: Box<str>,
    /// So many of its first rows are done.
    pub rows: u64,
    /// Of these, rows that got a number; the keys of the others had a live token.
    pub entered: u64,
}

impl Imported {
    pub(crate) fn is_plausible(&self) -> bool {
        check_id(&self.id).is_ok() && self.entered <= self.rows && self.rows <= NUMBER_MAX
    }
}

fn check_id(id: &str) -> Result<(), BadField> {
    let fits = (1..=IMPORT_ID_BYTES_MAX).contains(&id.len());
    match fits && id.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(()),
        false => Err(BadField::new(
            "import_id",
            "1 to 64 visible ASCII characters",
        )),
    }
}

impl Line {
    /// How far the newest import has come; `None` if there never was one.
    pub fn imported(&self) -> Option<&Imported> {
        self.imported.as_deref()
    }

    /// Lets the keys of the rows that are not done yet enter, in their order, up to one that is refused. If that is the
    /// first of them, so is the operation.
    pub(crate) fn import(
        &mut self,
        import_id: &str,
        first_row: u64,
        rows: &[ImportRow],
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<(), Refused> {
        check_id(import_id)?;
        if !(1..=IMPORT_ROWS_MAX).contains(&rows.len()) {
            return Err(BadField::new("rows", format!("1 to {IMPORT_ROWS_MAX}")).into());
        }
        let known = self.imported().cloned();
        let known = known.filter(|imported| *imported.id == *import_id);
        let mut imported = known.unwrap_or_else(|| Imported {
            id: import_id.into(),
            rows: 0,
            entered: 0,
        });
        if first_row > imported.rows {
            let limit = format!("at most {}: so many rows are done", imported.rows);
            return Err(BadField::new("first_row", limit).into());
        }
        let done = usize::try_from(imported.rows - first_row).unwrap_or(usize::MAX);
        let done = match nowserving_bite::is(nowserving_bite::Break::S13Import) {
            true => 0,
            false => done,
        };
        let before = imported.rows;
        for row in rows.iter().skip(done) {
            let is_new = self.find(&row.key).is_none();
            let entered = self.enter(Some(&row.key), row.lane.as_ref(), row.entered_at_ms, ctx);
            if let Err(refused) = entered {
                if imported.rows == before {
                    return Err(in_row(imported.rows, refused));
                }
                break;
            }
            imported.rows += 1;
            imported.entered += u64::from(is_new);
        }
        if imported.rows > before {
            let Imported { rows, entered, .. } = imported;
            self.imported = Some(Box::new(imported));
            self.next_version();
            self.journal_entry(Journaled::Imported { rows, entered }, ctx.wall_ms);
        }
        Ok(())
    }
}

/// The refusal names the row, counted from 0 over the whole import, and the field.
fn in_row(row: u64, refused: Refused) -> Refused {
    match refused {
        Refused::BadField(BadField { field, limit }) => {
            BadField::new(format!("rows[{row}].{field}"), limit).into()
        }
        refused => refused,
    }
}
