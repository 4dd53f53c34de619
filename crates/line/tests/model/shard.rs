//! The naive lines of a shard.

use std::collections::BTreeMap;

use nowserving_line::{LineChange, LineName, Op, Refused, Settings};

use crate::naive::{Answer, Events, NaiveLine};

#[derive(Debug, Default)]
pub struct Naive {
    pub now_ms: u64,
    pub lines: BTreeMap<LineName, NaiveLine>,
    /// Versions and epochs of all lines that were deleted stay below these.
    pub version_floor: u64,
    pub epoch_floor: u64,
    pub work_max: u32,
    pub gone_kept: usize,
}

impl Naive {
    pub fn apply(
        &mut self,
        incarnation_of_new: u64,
        now_ms: u64,
        op: &Op,
        events: Events<'_>,
    ) -> Result<Answer, Refused> {
        self.now_ms = self.now_ms.max(now_ms);
        let now_ms = self.now_ms;
        let (name, work_max, kept) = match op {
            Op::Stamp => return Ok(Answer::Nothing),
            Op::Create { line, settings } => {
                return self.create(line, settings, incarnation_of_new, events);
            }
            Op::Configure { line, .. }
            | Op::Delete { line, .. }
            | Op::Enter { line, .. }
            | Op::Claim { line, .. }
            | Op::Renew { line, .. }
            | Op::Complete { line, .. }
            | Op::Leave { line, .. }
            | Op::Recycle { line, .. }
            | Op::Heard { line, .. }
            | Op::Step { line, .. } => (line, self.work_max, self.gone_kept),
        };
        let line = self.lines.get_mut(name);
        let current = line.as_ref().map(|l| l.incarnation);
        if let Op::Recycle { incarnation, .. }
        | Op::Heard { incarnation, .. }
        | Op::Step { incarnation, .. } = op
            && current != Some(*incarnation)
        {
            return Ok(Answer::Nothing);
        }
        let line = line.ok_or(Refused::LineNotFound)?;
        let answer = match op {
            Op::Configure {
                patch, if_version, ..
            } => line.configure(patch, *if_version, work_max, now_ms, events),
            Op::Delete { force, .. } => line.delete(*force, work_max, now_ms, events),
            Op::Enter { key, .. } => line.enter(key.as_deref(), now_ms, events),
            Op::Recycle { tokens, .. } => Ok(line.recycle(tokens, work_max, now_ms, events)),
            Op::Heard { tokens, .. } => {
                for (_, token, heard_ms) in tokens {
                    if let Some(tok) = line.tokens.get_mut((*token as usize).wrapping_sub(1)) {
                        tok.seen_ms = tok.seen_ms.max((*heard_ms).min(now_ms));
                    }
                }
                Ok(Answer::Nothing)
            }
            Op::Step { .. } => {
                line.work(work_max, now_ms, events);
                Ok(Answer::Nothing)
            }
            _ => line.token_op(op, kept, now_ms, events),
        };
        if line.deleting && line.live() == 0 {
            line.line_event(LineChange::Deleted, now_ms, events);
            self.version_floor = self.version_floor.max(line.version);
            self.epoch_floor = self.epoch_floor.max(line.epoch);
            self.lines.remove(name);
        }
        answer
    }

    fn create(
        &mut self,
        name: &LineName,
        settings: &Settings,
        incarnation: u64,
        events: Events<'_>,
    ) -> Result<Answer, Refused> {
        if self.lines.contains_key(name) {
            return Err(Refused::LineExists);
        }
        let mut line = NaiveLine {
            name: name.clone(),
            incarnation,
            version: self.version_floor,
            epoch: self.epoch_floor,
            settings: settings.clone(),
            settings_version: self.version_floor + 1,
            deleting: false,
            tokens: Vec::new(),
            gone: 0,
        };
        line.line_event(LineChange::Created, self.now_ms, events);
        let version = line.version;
        self.lines.insert(name.clone(), line);
        Ok(Answer::Line {
            incarnation,
            version,
        })
    }
}
