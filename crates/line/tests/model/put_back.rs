//! Backups of lines, and lines that are put back, against the model: what was backed up, by the rules of
//! `restore`.

use nowserving_line::{
    Event, Journaled, LineBuilder, LineChange, LineDump, LineItem, LineName, Reason, Refused,
    Restore, RestoreRefused, Stamp, State, Timestamp,
};

use crate::naive::{NaiveLine, Tok};
use crate::{LIMITS, LIMITS_OF_FOLLOWER, Run};

/// A line at the time of its backup.
pub struct Backup {
    dump: LineDump,
    model: NaiveLine,
    clock_ms: u64,
}

impl Run {
    pub fn back_up(&mut self, name: &LineName) {
        if let Some(line) = self.lines.get(name) {
            let backup = Backup {
                dump: line.dump(),
                model: self.naive.lines[name].clone(),
                clock_ms: self.lines.now_ms(),
            };
            self.backups.insert(name.clone(), backup);
        }
    }

    pub fn put_back(&mut self, name: &LineName, overwrite: bool, events: &mut Vec<Event>) {
        let Some(backup) = self.backups.get(name) else {
            return;
        };
        self.index += 1;
        self.wall_ms += 3;
        let stamp = Stamp {
            index: self.index,
            op_no: 0,
            now_ms: self.naive.now_ms,
            wall_ms: self.wall_ms,
        };
        let how = Restore {
            clock_ms: backup.clock_ms,
            overwrite,
        };
        let present = self.naive.lines.get(name);
        let refused = present.and_then(|present| match present {
            _ if !overwrite => Some(Refused::LineExists),
            present if present.deleting => Some(Refused::LineClosed),
            present if present.incarnation != backup.model.incarnation => {
                Some(Refused::AnotherIncarnation)
            }
            _ => None,
        });
        let whole = LineBuilder::new(backup.dump.clone(), LIMITS_OF_FOLLOWER).unwrap();
        let put = self
            .lines
            .put_back(stamp, in_parts(&backup.dump), how, Some(events));
        let followed = self.follower.put_back(stamp, whole, how, None);
        let (put, followed) = (put.map(drop), followed.map(drop));
        assert_eq!(put, followed, "the follower's result");
        if let Some(refused) = refused {
            assert_eq!(put, Err(RestoreRefused::Line(refused)));
            return;
        }
        put.unwrap();
        let mut expected = Vec::new();
        let line = self.naive_after(name, &mut expected);
        self.naive.lines.insert(name.clone(), line);
        self.tell_etas(name.clone());
        let now_ms = self.naive.now_ms;
        let line = self.naive.lines.get_mut(name).unwrap();
        line.note_callers_due(now_ms);
        assert_eq!(events, &expected, "events");
        // Its pointers and positions may fall.
        self.seen.remove(name);
    }

    fn naive_after(&self, name: &LineName, events: &mut Vec<Event>) -> NaiveLine {
        let backup = &self.backups[name];
        let mut line = backup.model.clone();
        let shift_ms = self.naive.now_ms - backup.clock_ms;
        for tok in line.tokens.values_mut() {
            tok.entered.service_ms += shift_ms;
            tok.last_seen_ms += shift_ms;
            tok.deadline_ms += shift_ms;
            tok.claimed_at_ms += shift_ms;
        }
        if let Some(draw) = &mut line.draw {
            match &mut draw.begun {
                Some(begun) => begun.opened_at_ms += shift_ms,
                None => draw.seed = None,
            }
        }
        for at_ms in &mut line.admissions {
            *at_ms += shift_ms;
        }
        for entry in line.journal.iter_mut().chain(&mut line.kept) {
            if let Journaled::Token { entered, .. } = &mut entry.what {
                entered.at.service_ms += shift_ms;
            }
        }
        let floor = self.naive.version_floor;
        let deleted_since = floor.saturating_sub(line.version);
        let issued = |line: &NaiveLine, lane| line.issued(lane);
        match self.naive.lines.get(name) {
            Some(present) => {
                line.table.clone_from(&present.table);
                for lane in 0..line.table.len() as u8 {
                    let count = issued(present, lane).saturating_sub(issued(&line, lane));
                    skip(&mut line, lane, count);
                }
                line.used = line.used.max(present.used);
                line.used_in_past = line.used_in_past.max(present.used_in_past);
                let renew = |line: &NaiveLine| line.settings.quota.and_then(|it| it.renew);
                if renew(&line) == renew(present) {
                    line.renews_at_ms = line.renews_at_ms.max(present.renews_at_ms);
                }
                line.version = line.version.max(present.version);
                line.epoch = line.epoch.max(present.epoch);
            }
            None => {
                for lane in 0..line.table.len() as u8 {
                    skip(&mut line, lane, deleted_since);
                }
            }
        }
        line.version = line.version.max(floor);
        line.epoch = line.epoch.max(self.naive.epoch_floor);
        line.wall_ms = self.wall_ms;
        line.offers.clear();
        if let Some((_, until_ms, _)) = &mut line.told {
            *until_ms += shift_ms;
        }
        line.line_event(LineChange::Restored, events);
        line.settings_version = line.version;
        line.keep(Journaled::Restored);
        line
    }
}

/// The next numbers of a lane are gone, and nothing more is known of them.
fn skip(line: &mut NaiveLine, lane: u8, count: u64) {
    let first = line.issued(lane) + 1;
    for token in first..first + count {
        let mut tok = Tok::newcomer(None, Timestamp::default());
        (tok.state, tok.reason) = (State::Gone, Some(Reason::Kicked));
        line.tokens.insert((lane, token), tok);
    }
}

/// The line item by item, and a builder that is itself put away and taken up in between.
fn in_parts(dump: &LineDump) -> LineBuilder {
    let mut head = dump.clone();
    let items = head.take_items();
    let mut builder = LineBuilder::new(head, LIMITS).unwrap();
    for item in items {
        if !matches!(item, LineItem::Journal(_)) {
            builder = LineBuilder::new(builder.dump(), LIMITS).unwrap();
        }
        builder.add(item).unwrap();
    }
    assert_eq!(builder.dump(), *dump);
    builder
}
