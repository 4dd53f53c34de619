//! The model's own record of events, of the journal, and of the order of admissions. It is written when
//! something happens, not derived from the journal.

use nowserving_line::{
    Entered, Event, Explanation, JournalEntry, Journaled, JournaledToken, Line, LineChange, State,
    TokenChange,
};

use crate::LIMITS;
use crate::check;
use crate::naive::{Events, Id, NaiveLine};

impl NaiveLine {
    pub fn event(&mut self, id: Id, what: TokenChange, events: Events<'_>) {
        self.version += 1;
        self.event_of_version(id, what, events);
    }

    fn event_of_version(&self, id: Id, what: TokenChange, events: Events<'_>) {
        let shown = self.tokens[&id].key.clone();
        let shown = shown.filter(|_| self.settings.event_key);
        events.push(Event::Token {
            line: self.name.clone(),
            incarnation: self.incarnation,
            version: self.version,
            at_ms: self.wall_ms,
            lane: self.table[usize::from(id.0)].clone(),
            lane_id: id.0,
            token: id.1,
            key: shown.map(Into::into),
            what,
        });
    }

    pub fn line_event(&mut self, what: LineChange, events: Events<'_>) {
        self.version += 1;
        events.push(Event::Line {
            line: self.name.clone(),
            incarnation: self.incarnation,
            version: self.version,
            at_ms: self.wall_ms,
            what,
        });
    }

    pub fn note(&mut self, id: Id, what: JournaledToken) {
        self.keep(Journaled::Token {
            lane: id.0,
            token: id.1,
            entered: Entered {
                at: self.tokens[&id].entered,
                version: self.tokens[&id].entered_version,
            },
            what,
        });
    }

    /// Adds an entry, and forgets the oldest of its kind.
    pub fn keep(&mut self, what: Journaled) {
        let entry = JournalEntry {
            version: self.version,
            at_ms: self.wall_ms,
            what,
        };
        self.journal.push(entry);
        self.kept.push(entry);
        for of_token in [false, true] {
            let counts = |it: &JournalEntry| it.is_of_token() == of_token;
            while self.kept.iter().filter(|it| counts(it)).count() > LIMITS.journal_kept {
                let oldest = self.kept.iter().position(counts).unwrap();
                self.kept.remove(oldest);
            }
        }
    }

    /// A newcomer is the next one to have entered.
    pub fn note_entered(&mut self, id: Id, events: Events<'_>) {
        self.entered += 1;
        let tok = self.tokens.get_mut(&id).unwrap();
        tok.entered_no = self.entered;
        tok.entered_version = self.version;
        let position = self.position(id);
        let shown = (!self.is_undrawn()).then_some(position);
        let entered = TokenChange::Entered { position: shown };
        self.event_of_version(id, entered, events);
        self.note(id, JournaledToken::Entered { position });
    }

    /// Every waiting token counts the admission of `id` as before it or as overtaking it.
    pub fn note_turn(&mut self, id: Id) {
        let entered_no = self.tokens[&id].entered_no;
        let all = self.tokens.iter_mut();
        for (other, tok) in all.filter(|(_, t)| t.state == State::Waiting) {
            if tok.entered_no < entered_no {
                tok.overtaken_by.push(id);
            } else if other.0 == id.0 {
                tok.before += 1;
            }
        }
    }

    /// The token as which it lives now, even if the line has dropped the move.
    fn last(&self, mut id: Id) -> Id {
        loop {
            let tok = &self.tokens[&id];
            let drawn = tok.drawn_to.filter(|_| tok.renumbered);
            match tok.moved_to.or(drawn) {
                Some(to) => id = to,
                None => return id,
            }
        }
    }
}

/// The journal and every explanation from it.
pub fn journal(line: &Line, model: &NaiveLine, gone_kept: usize) {
    let kept: Vec<JournalEntry> = line.journal_after(0).collect();
    let all = &model.journal;
    assert_eq!(kept, model.kept, "journal");
    changes(line, model, &kept);
    kicks(line, model, &kept);
    // Each explanation reads the whole journal. In so many cases every fourth version is often enough.
    if !line.version().is_multiple_of(4) {
        return;
    }
    for id in model.tokens.keys() {
        let Ok(answer) = line.explain(check::at(line, *id)) else {
            panic!("no explanation of {id:?}");
        };
        if !answer.cut {
            explanation(line, &answer, model, *id);
        }
        let last = model.last(*id);
        if !answer.cut && model.resolve(*id, gone_kept) == last {
            let of = |entry: &JournalEntry| match entry.what {
                Journaled::Token { lane, token, .. } => model.last((lane, token)) == last,
                _ => false,
            };
            let all = all.iter().filter(|entry| of(entry));
            assert!(all.eq(&answer.entries), "the story of {id:?}");
        }
    }
}

/// Kept changes of settings, newest first, agree with the model as far as there is room.
fn changes(line: &Line, model: &NaiveLine, kept: &[JournalEntry]) {
    let configured = kept.iter().filter(|e| {
        let failed = matches!(e.what, Journaled::ScheduleFailed { .. });
        failed || matches!(e.what, Journaled::Configured { .. })
    });
    let (mut bytes, mut forgotten) = (0, false);
    for entry in configured.rev() {
        let Some(change) = line.settings_change(entry.version) else {
            forgotten = true;
            continue;
        };
        assert!(!forgotten, "the newest changes are kept");
        // Of a change that failed, the settings are those before.
        if let Some((old, new)) = model.changes.get(&entry.version) {
            assert_eq!(old.with(&change.to).as_ref(), Ok(new), "since then");
            assert_eq!(new.with(&change.from).as_ref(), Ok(old), "before it");
        }
        bytes += change.bytes();
    }
    let limit = LIMITS.journal_changes_bytes;
    assert!(bytes <= limit, "{bytes} bytes of changes");
    // None of them takes more than that.
    assert!(!forgotten || bytes + 5_000 > limit, "forgotten at {bytes}");
}

/// The notes of kicks are those of the model, the newest as far as there is room.
fn kicks(line: &Line, model: &NaiveLine, kept: &[JournalEntry]) {
    let kicked = kept.iter().filter(|e| e.what == Journaled::Kicked);
    let mut forgotten = false;
    for entry in kicked.rev() {
        match line.kick_note(entry.version) {
            Some(note) => {
                assert!(!forgotten, "the newest notes are kept");
                assert_eq!(*note, model.kicks[&entry.version], "what was said");
            }
            None => forgotten = true,
        }
    }
}

/// Which tokens and how many; the reasons are tested by examples, in `tests/journal.rs`.
fn explanation(line: &Line, answer: &Explanation, model: &NaiveLine, id: Id) {
    let tok = &model.tokens[&model.last(id)];
    assert_eq!(answer.entered_at_ms, Some(tok.entered.wall_ms));
    assert_eq!(answer.own_lane_before, tok.before, "before {id:?}");
    let overtakers = answer.overtakers.iter().map(|by| {
        let mut names = line.lane_names();
        let lane = names.position(|name| *name == by.lane).unwrap();
        (lane as u8, by.token)
    });
    let overtakers: Vec<Id> = overtakers.collect();
    assert_eq!(overtakers, tok.overtaken_by, "overtook {id:?}");
    assert_eq!(answer.overtakers_total, overtakers.len() as u64);
}
