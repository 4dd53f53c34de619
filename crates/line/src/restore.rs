//! Puts a line back from a backup.
//!
//! A restored line is as it was at the time of the backup, except that nothing which clients or operators may
//! have seen since is used again:
//!
//! | | |
//! |---|---|
//! | numbers | a number that was issued after the backup counts as gone, [`Reason::Kicked`] |
//! | version, settings version | above those of the backup, of the line that is replaced, and of deleted lines |
//! | epoch | at least each of these |
//! | incarnation | that of the backup, so that tickets stay good |
//! | times of the service clock | shifted by the difference of the two clocks: what was left of a deadline is left |
//! | keys that wait to be told of room | those of the backup; nothing counts as offered |
//! | the draw at the opening | one that had not begun gets another seed: that of the backup may have been shown since |
//! | used units of a quota | as many as in the backup or in the line that is replaced, whichever has more |

use nowserving_codec::Codec;

use crate::line::{Lane, Line};
use crate::lines::incarnation_at;
use crate::waiting::WaitingSet;
use crate::{
    BadDump, Event, Journaled, LineBuilder, LineChange, LineName, Lines, LiveRecord, NUMBER_MAX,
    Offers, OperatorNote, Reason, Refused, Stage, Stamp, Token, Totals,
};

/// Tokens whose times are shifted in one [`LineBuilder::shift_page`], about: some fifty nanoseconds each.
const SHIFT_TOKENS: usize = 32_768;

/// How a line is put back.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restore {
    /// The service clock of the shard in the backup.
    pub clock_ms: u64,
    /// Replaces a line of the same name, if it has the same incarnation.
    pub overwrite: bool,
}

/// How far the times of a builder's tokens were shifted from one service clock to another.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockShift {
    pub from_ms: u64,
    pub to_ms: u64,
    /// The tokens from this one on (lane id and number) are still to be shifted.
    pub next: (u8, Token),
}

impl ClockShift {
    fn shift(self, ms: &mut u64) {
        *ms = self.shifted(*ms);
    }

    fn shifted(self, ms: u64) -> u64 {
        let shifted = ms.saturating_add(self.to_ms).saturating_sub(self.from_ms);
        shifted.min(NUMBER_MAX)
    }
}

/// Why a line is not put back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreRefused {
    #[error(transparent)]
    Line(#[from] Refused),
    #[error(transparent)]
    Bad(#[from] BadDump),
}

impl Lines {
    /// Whether a line can be put back: [`Refused::LineExists`] if there is one and it must not be replaced,
    /// [`Refused::AnotherIncarnation`] if it can't be, [`Refused::LineClosed`] while it is being deleted.
    pub fn check_restore(
        &self,
        name: &LineName,
        incarnation: u64,
        overwrite: bool,
    ) -> Result<(), Refused> {
        match self.get(name) {
            Some(_) if !overwrite => Err(Refused::LineExists),
            Some(line) if line.deleting => Err(Refused::LineClosed),
            Some(line) if line.incarnation != incarnation => Err(Refused::AnotherIncarnation),
            _ => Ok(()),
        }
    }

    /// Puts a line back, and returns the one that it replaces. The work does not grow with its tokens if
    /// their times were shifted before ([`LineBuilder::shift_page`]).
    pub fn put_back(
        &mut self,
        stamp: Stamp,
        mut builder: LineBuilder,
        how: Restore,
        events: Option<&mut Vec<Event>>,
    ) -> Result<Option<Line>, RestoreRefused> {
        self.read_clocks(stamp);
        self.check_restore(builder.name(), builder.incarnation(), how.overwrite)?;
        let shift = loop {
            if let Some(shift) = builder.shift_page(how.clock_ms, self.head.now_ms) {
                break shift;
            }
        };
        let mut line = builder.finish()?;
        let name = line.name.clone();
        let present = self.lines.get(&name);
        let head = self.head;
        match present {
            Some(present) => line.keep_numbers_of(present)?,
            // The line may have been deleted from this very shard since the backup. Each number took a version of
            // its own, and no version is above the floor.
            None if line.incarnation < incarnation_at(stamp) => {
                line.skip_numbers(head.version_floor.saturating_sub(line.version));
            }
            None => {}
        }
        line.version = line.version.max(head.version_floor);
        line.epoch = line.epoch.max(head.epoch_floor);
        line.shift_clock(shift);
        line.unseal_draw();
        line.settings_version = line.line_event(LineChange::Restored, self.wall_ms, events);
        line.journal_entry(Journaled::Restored, self.wall_ms);
        self.head.incarnation_floor = line.incarnation.max(head.incarnation_floor);
        let replaced = self.lines.remove(&name);
        let before = match &replaced {
            Some(old) => {
                self.background.remove(old);
                old.totals()
            }
            None => Totals::default(),
        };
        self.totals.replace(&before, &line.totals());
        self.background.update(&mut line, self.head.now_ms);
        self.settings.share(&mut line);
        self.lines.insert(name, Box::new(line));
        Ok(replaced.map(|line| *line))
    }
}

impl Lines {
    /// Notes who put this line back just now, and why. A note that is too long is left out.
    pub fn note_restored(&mut self, name: &LineName, note: &OperatorNote) {
        if let Some(line) = self.lines.get_mut(name)
            && note.check().is_ok()
        {
            line.push_note((line.version, line.version), note);
        }
    }
}

impl LineBuilder {
    /// Shifts times of the next tokens from the service clock of the backup to that of this shard. The first call
    /// decides on the readings of both. Returns them once nothing is left to shift.
    pub fn shift_page(&mut self, from_ms: u64, to_ms: u64) -> Option<ClockShift> {
        let mut shift = match self.shift {
            Some(shift) => shift,
            None => {
                let next = (0, 0);
                let shift = ClockShift {
                    from_ms,
                    to_ms,
                    next,
                };
                self.line.shift_opening(shift);
                shift
            }
        };
        let mut left = SHIFT_TOKENS;
        let mut done = false;
        while left > 0 && !done {
            match self.line.shift_tokens(shift) {
                Some((tokens, next)) => {
                    shift.next = next;
                    left = left.saturating_sub(tokens);
                }
                None => done = true,
            }
        }
        self.shift = Some(shift);
        done.then_some(shift)
    }

    /// How far [`LineBuilder::shift_page`] has come.
    pub fn clock_shift(&self) -> Option<ClockShift> {
        self.shift
    }

    /// Takes up the shifting of the builder from whose dump this one was made.
    pub fn resume_shift(&mut self, shift: ClockShift) {
        self.shift = Some(shift);
    }
}

impl Line {
    /// The numbers, versions and epochs that a line of the same incarnation has issued since stay issued.
    fn keep_numbers_of(&mut self, present: &Line) -> Result<(), Refused> {
        let mut pairs = self.lanes.iter().zip(&present.lanes);
        if pairs.any(|(ours, theirs)| ours.name != theirs.name) {
            return Err(Refused::AnotherIncarnation);
        }
        // Lanes that were added since: tickets have their ids.
        for lane in present.lanes.iter().skip(self.lanes.len()) {
            self.lanes.push(Lane::new(lane.name.clone()));
        }
        self.mark_positions();
        for (id, lane) in present.lanes.iter().enumerate() {
            let issued = lane.next_token.saturating_sub(self.lanes[id].next_token);
            let issued = match nowserving_bite::is(nowserving_bite::Break::S7Restored) {
                true => 0,
                false => issued,
            };
            self.skip_in(id, issued);
        }
        self.used = self.used.max(present.used);
        // What it has renewed since stays renewed.
        self.used_in_past = self.used_in_past.max(present.used_in_past);
        let renew = |line: &Line| line.settings.quota.and_then(|quota| quota.renew);
        if renew(self) == renew(present) {
            self.renews_at_ms = self.renews_at_ms.max(present.renews_at_ms);
        }
        self.version = self.version.max(present.version);
        self.epoch = self.epoch.max(present.epoch);
        Ok(())
    }

    /// Counts the next `count` numbers of each lane as issued and gone.
    fn skip_numbers(&mut self, count: u64) {
        for id in 0..self.lanes.len() {
            self.skip_in(id, count);
        }
    }

    fn skip_in(&mut self, id: usize, count: u64) {
        let lane = &mut self.lanes[id];
        let count = count.min(NUMBER_MAX + 1 - lane.next_token);
        lane.next_token += count;
        self.gone_counts.get_mut()[usize::from(Reason::Kicked.code())] += count;
    }

    /// Shifts the times of a page of tokens. Returns how many these are, and where the next ones begin; `None` if
    /// there are no more.
    fn shift_tokens(&mut self, shift: ClockShift) -> Option<(usize, (u8, Token))> {
        let opened_at_ms = self.draw_begun().map_or(0, |begun| begun.opened_at_ms);
        let (id, from) = shift.next;
        let lane = self.lanes.get_mut(usize::from(id))?;
        let first = lane.live_range(from..Token::MAX).next();
        let Some((first, _)) = first else {
            return Some((0, (id + 1, 0)));
        };
        let page = WaitingSet::<()>::page_at(first);
        let mut tokens = 0;
        for live in lane.seated.range_mut(page.clone()) {
            live.shift(shift);
            tokens += 1;
        }
        // As they count between lanes, from their records: a builder that was made anew meanwhile has the same.
        let waiting = &mut lane.waiting;
        tokens += waiting.shift(page.clone(), &|ms| shift.shifted(ms), opened_at_ms);
        Some((tokens, (id, page.end)))
    }

    /// Shifts the time of the opening, by which those who were drawn count: before all others.
    fn shift_opening(&mut self, shift: ClockShift) {
        if let Some(begun) = self.draw.as_mut().and_then(|it| it.head.begun.as_mut()) {
            shift.shift(&mut begun.opened_at_ms);
        }
    }

    /// Shifts all other times.
    fn shift_clock(&mut self, shift: ClockShift) {
        for lane in &mut self.lanes {
            let arrivals = &mut lane.arrivals;
            shift.shift(&mut arrivals.since_ms);
            shift.shift(&mut arrivals.began_ms);
            shift.shift(&mut arrivals.last_ms);
            // It was long ago that these were made.
            lane.callers.offers = Offers::default();
        }
        if let Some(told) = &mut self.told {
            shift.shift(&mut told.until_ms);
        }
        if let Some(bucket) = &mut self.bucket {
            shift.shift(&mut bucket.at_ms);
        }
        shift.shift(&mut self.forecast.measured_ms);
        self.journal.shift(|ms| shift.shifted(ms));
    }
}

impl LiveRecord {
    fn shift(&mut self, shift: ClockShift) {
        shift.shift(&mut self.entered.at.service_ms);
        match &mut self.stage {
            Stage::Waiting { last_seen_ms } => shift.shift(last_seen_ms),
            Stage::Admitted { deadline_ms, .. } => shift.shift(deadline_ms),
            Stage::InCheckout {
                deadline_ms,
                claimed_at_ms,
                ..
            } => {
                shift.shift(deadline_ms);
                shift.shift(claimed_at_ms);
            }
        }
    }
}
