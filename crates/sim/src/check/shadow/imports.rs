//! S13: imports, as one would keep them by hand: the rows are done once each and in their order, and the line says how
//! many are.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_line::{Event, ImportRow, Imported, Line, Op, Refused, Reply, TokenChange};

use super::{Broken, Kept, Place, ShadowLine};

/// The imports of one line.
#[derive(Clone, Debug, Default)]
pub struct Imports {
    /// How far the newest one had come: by the version of the line that it made.
    by_version: BTreeMap<u64, Imported>,
}

/// An import that goes on.
#[derive(Debug)]
pub struct Importing<'a> {
    /// How far it had come.
    before: Imported,
    /// What was not done of it.
    rows: &'a [ImportRow],
    /// So many of them have a token, or were passed over.
    passed: usize,
    /// The keys that had a live token, and those that have entered.
    live: BTreeSet<&'a [u8]>,
    /// How many have entered.
    entered: u64,
}

impl Imports {
    fn newest(&self) -> Option<&Imported> {
        self.by_version.values().next_back()
    }
}

impl<'a> Importing<'a> {
    /// The next row whose key has no token.
    fn next_row(&mut self) -> Option<&'a ImportRow> {
        loop {
            let row = self.rows.get(self.passed)?;
            self.passed += 1;
            if self.live.insert(&row.key) {
                self.entered += 1;
                return Some(row);
            }
        }
    }

    /// Whether it has come so far: past the last row that entered, and then only over keys that have a token.
    fn may_be(&self, now: &Imported) -> bool {
        let done = now.rows.checked_sub(self.before.rows);
        let rows = done.and_then(|done| self.rows.get(..done as usize));
        let Some(rows) = rows else {
            return false;
        };
        let live = |row: &ImportRow| self.live.contains(&*row.key);
        now.id == self.before.id
            && now.entered == self.before.entered + self.entered
            && rows.len() >= self.passed.max(1)
            && rows.iter().all(live)
    }
}

impl ShadowLine {
    /// How far the newest import had come at a version of the line.
    #[must_use]
    pub fn imported_at(&self, version: u64) -> Option<&Imported> {
        let until = self.imports.by_version.range(..=version);
        until.map(|(_, imported)| imported).next_back()
    }

    /// An operation is done, of which no event is taken in yet: what it had to import.
    pub(super) fn importing<'a>(
        &self,
        op: &'a Op,
        result: &Result<Reply, Refused>,
    ) -> Result<Option<Importing<'a>>, Broken> {
        let (
            Op::Import {
                import_id,
                first_row,
                rows,
                ..
            },
            Ok(_),
        ) = (op, result)
        else {
            return Ok(None);
        };
        let newest = self.imports.newest().filter(|it| it.id == *import_id);
        let before = newest.cloned().unwrap_or_else(|| Imported {
            id: import_id.clone(),
            rows: 0,
            entered: 0,
        });
        let Some(done) = before.rows.checked_sub(*first_row) else {
            let what = format!("rows from {first_row} on are imported after {before:?}");
            return Err(("S13", what));
        };
        let rows = rows.get(done as usize..).unwrap_or_default();
        let keys = rows.iter().map(|row| &*row.key);
        Ok(Some(Importing {
            live: keys.filter(|key| self.keys.contains_key(*key)).collect(),
            before,
            rows,
            passed: 0,
            entered: 0,
        }))
    }

    /// Who enters by an import is the next one of its rows.
    pub(super) fn imports(
        &mut self,
        importing: &mut Importing<'_>,
        event: &Event,
        line: Option<&Line>,
        place: Place,
    ) -> Result<(), Broken> {
        let Event::Token {
            version,
            lane_id,
            token,
            what: TokenChange::Entered { .. },
            ..
        } = event
        else {
            return Ok(());
        };
        let id = (*lane_id, *token);
        let Some(row) = importing.next_row() else {
            return Err(("S13", format!("{id:?} enters, and no row is left")));
        };
        let lane = line.and_then(|line| line.lane_names().nth(usize::from(id.0)));
        let default = line.and_then(|line| line.settings().effective_default_lane());
        if lane != row.lane.as_ref().or(default) {
            return Err(("S13", format!("{id:?} enters by {row:?} into {lane:?}")));
        }
        self.told.entered(&row.key);
        let token = Kept {
            key: Some(row.key.clone()),
            left_at: None,
            issued_at: *version,
            entered_at: *version,
            epoch: None,
            moved_to: None,
            since: place.appended_at,
            jumps: 0,
        };
        self.issue(id, token)
    }

    /// The operation's events are taken in: the line knows how far its newest import has come.
    pub(super) fn knows_imported(
        &mut self,
        importing: Option<Importing<'_>>,
        line: &Line,
    ) -> Result<(), Broken> {
        let now = line.imported();
        let goes_on = importing.filter(|it| !it.rows.is_empty());
        let is_true = match (&goes_on, now) {
            (Some(importing), Some(now)) => importing.may_be(now),
            (Some(_), None) => false,
            (None, now) => now == self.imports.newest(),
        };
        if !is_true {
            let newest = self.imports.newest();
            let what = format!("imported is {now:?} after {newest:?}, by {goes_on:?}");
            return Err(("S13", what));
        }
        if goes_on.is_some()
            && let Some(now) = now
        {
            self.imports.by_version.insert(line.version(), now.clone());
        }
        Ok(())
    }
}
