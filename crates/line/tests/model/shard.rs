//! The naive lines of a shard.

use std::collections::BTreeMap;

use nowserving_line::{Event, LineChange, LineName, Op, Refused, RefusedCode, Settings, Shadow};

use crate::naive::{Answer, Events, NaiveLine, UNIT};

#[derive(Debug, Default)]
pub struct Naive {
    pub now_ms: u64,
    pub lines: BTreeMap<LineName, NaiveLine>,
    /// Versions and epochs of all lines that were deleted stay below these.
    pub version_floor: u64,
    pub epoch_floor: u64,
    pub work_max: u32,
    /// Of the entry that is being applied.
    pub work_left: u32,
    pub gone_kept: usize,
}

/// The log entry of an operation.
pub struct Entry<'a> {
    pub now_ms: u64,
    /// The rest of its work limit.
    pub work: u32,
    pub events: &'a mut Vec<Event>,
}

impl Naive {
    /// Later operations are in another log entry.
    pub fn begin_entry(&mut self) {
        self.work_left = self.work_max;
    }

    pub fn apply(
        &mut self,
        incarnation_of_new: u64,
        (now_ms, wall_ms): (u64, u64),
        op: &Op,
        events: Events<'_>,
    ) -> Result<Answer, Refused> {
        let passed_ms = now_ms.saturating_sub(self.now_ms);
        for line in self.lines.values_mut() {
            line.pass(passed_ms);
            line.wall_ms = wall_ms;
        }
        self.now_ms += passed_ms;
        let mut entry = Entry {
            now_ms: self.now_ms,
            work: self.work_left,
            events,
        };
        let name = match op {
            Op::Create { line, settings } => {
                return self.create(line, settings, incarnation_of_new, wall_ms, entry.events);
            }
            _ => op.line(),
        };
        let line = self.lines.get_mut(name);
        let current = line.as_ref().map(|l| l.incarnation);
        if let Op::Recycle { incarnation, .. }
        | Op::Touch { incarnation, .. }
        | Op::Kick { incarnation, .. }
        | Op::CountRefused { incarnation, .. }
        | Op::RenewQuota { incarnation, .. }
        | Op::SealDraw { incarnation, .. }
        | Op::RunBackground { incarnation, .. } = op
            && current != Some(*incarnation)
        {
            return Ok(Answer::Nothing);
        }
        let line = line.ok_or(Refused::LineNotFound)?;
        let mut answer = on_line(line, op, self.gone_kept, &mut entry)?;
        line.settle(&mut entry);
        line.note_callers_due(entry.now_ms);
        self.work_left = entry.work;
        match &mut answer {
            Answer::Line { version, .. } => *version = line.version,
            Answer::Remaining(remaining) => *remaining = line.left_to_delete(),
            _ => {}
        }
        if line.deleting && line.left_to_delete() == 0 {
            line.line_event(LineChange::Deleted, entry.events);
            self.version_floor = self.version_floor.max(line.version);
            self.epoch_floor = self.epoch_floor.max(line.epoch);
            self.lines.remove(name);
        }
        Ok(answer)
    }

    fn create(
        &mut self,
        name: &LineName,
        settings: &Settings,
        incarnation: u64,
        wall_ms: u64,
        events: Events<'_>,
    ) -> Result<Answer, Refused> {
        if self.lines.contains_key(name) {
            return Err(Refused::LineExists);
        }
        let full = settings.admission_rate.map_or(0, |rate| rate.burst);
        let mut line = NaiveLine {
            name: name.clone(),
            incarnation,
            version: self.version_floor,
            epoch: self.epoch_floor,
            settings: settings.clone(),
            settings_version: self.version_floor + 1,
            deleting: false,
            wall_ms,
            etas: BTreeMap::new(),
            table: settings.lanes.iter().map(|set| set.name.clone()).collect(),
            tokens: BTreeMap::new(),
            refused: BTreeMap::new(),
            used: 0,
            gone: 0,
            entered: 0,
            saved: u128::from(full) * UNIT,
            admissions: Vec::new(),
            journal: Vec::new(),
            kept: Vec::new(),
            changes: BTreeMap::new(),
            kicks: BTreeMap::new(),
            callers: Vec::new(),
            offers: BTreeMap::new(),
            callers_due_ms: None,
            told: None,
            used_in_past: 0,
            renews_at_ms: None,
            calls: Vec::new(),
            shadow: Shadow::default(),
            imported: None,
            opened: 0,
            draw: None,
        };
        line.line_event(LineChange::Created, events);
        let version = line.version;
        self.lines.insert(name.clone(), line);
        Ok(Answer::Line {
            incarnation,
            version,
        })
    }
}

fn on_line(
    line: &mut NaiveLine,
    op: &Op,
    kept: usize,
    entry: &mut Entry<'_>,
) -> Result<Answer, Refused> {
    match op {
        Op::Configure {
            patch, if_version, ..
        } => line.configure(patch, *if_version, entry),
        Op::Delete { force, .. } => line.delete(*force, entry),
        Op::Enter { key, lane, .. } => line.enter(key.as_deref(), lane.as_ref(), None, entry),
        Op::Import {
            import_id,
            first_row,
            rows,
            ..
        } => line.import(import_id, *first_row, rows, entry),
        Op::RenewQuota { next_ms, .. } => {
            line.renew_quota(*next_ms, entry);
            Ok(Answer::Nothing)
        }
        Op::SealDraw { seed, .. } => {
            line.seal(seed.0, entry);
            Ok(Answer::Nothing)
        }
        Op::CapacityTold { told, .. } => line.capacity_told(*told, entry),
        Op::Callback { key, lane, .. } => line.callback(key, lane.as_ref(), entry.now_ms),
        Op::Move {
            lane, token, to, ..
        } => line.move_token((lane, *token), to, kept, entry),
        Op::Jump { by, to, .. } => line.jump(by, to, kept, entry),
        Op::CallNext {
            n, lane, call_id, ..
        } => line.call_next(*n, lane.as_ref(), call_id, entry),
        Op::Take { by, call_id, .. } => line.take(by, call_id.as_deref(), kept, entry),
        Op::Recycle { tokens, .. } => Ok(line.recycle(tokens, entry)),
        Op::Touch { tokens, .. } => {
            for (lane, token, seen_ms) in tokens {
                let id = line.resolve((*lane, *token), kept);
                if let Some(tok) = line.tokens.get_mut(&id) {
                    tok.last_seen_ms = tok.last_seen_ms.max((*seen_ms).min(entry.now_ms));
                }
            }
            Ok(Answer::Nothing)
        }
        Op::CountRefused { refused, .. } => {
            for code in RefusedCode::ALL {
                *line.refused.entry(code.as_str()).or_insert(0) += refused.get(code);
            }
            Ok(Answer::Nothing)
        }
        Op::Kick { tokens, note, .. } => line.kick(tokens, note.as_deref(), kept, entry),
        Op::RunBackground { .. } => {
            line.work(entry);
            Ok(Answer::Nothing)
        }
        _ => line.token_op(op, kept, entry),
    }
}
