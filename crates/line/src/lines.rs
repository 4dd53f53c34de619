//! The lines of a shard, and the one way to change them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::background::BackgroundWork;
use crate::line::NewLine;
use crate::schedule;
use crate::shared::SharedSettings;
use crate::transitions::ApplyCtx;
use crate::{
    CALLED_KEPT, CALLS_KEPT, Event, GONE_KEPT, Head, JOURNAL_CHANGES_BYTES, JOURNAL_KEPT,
    Journaled, Line, LineChange, LineName, NUMBER_MAX, OPS_PER_ENTRY_MAX, Op, OperatorNote,
    Refused, Reply, Settings, Stamp, Timestamp, Totals, WORK_MAX,
};

/// Bounds that affect the state, so every replica must use the same. Nodes use the default. Tests use small ones,
/// so that a few tokens reach them. With them go two values that may differ from replica to replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// [`WORK_MAX`]
    pub work_max: u32,
    /// [`GONE_KEPT`]
    pub gone_kept: usize,
    /// [`JOURNAL_KEPT`]
    pub journal_kept: usize,
    /// [`JOURNAL_CHANGES_BYTES`]
    pub journal_changes_bytes: usize,
    /// [`CALLS_KEPT`]
    pub calls_kept: usize,
    /// [`CALLED_KEPT`]
    pub called_kept: usize,
    /// A line with at most so many live tokens has no table of their keys, but reads the keys one after the other. Nothing
    /// that can be seen depends on it.
    pub keys_read: u8,
    /// Of the hashes by which tokens are found by their keys, which clients choose: random, and kept from them. Every
    /// replica may have its own, as nothing that can be seen depends on it.
    pub hash_seed: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            work_max: WORK_MAX,
            gone_kept: GONE_KEPT,
            journal_kept: JOURNAL_KEPT,
            journal_changes_bytes: JOURNAL_CHANGES_BYTES,
            calls_kept: CALLS_KEPT,
            called_kept: CALLED_KEPT,
            keys_read: 16,
            hash_seed: 0,
        }
    }
}

/// The lines of one shard and its service clock.
#[derive(Debug, Default)]
pub struct Lines {
    pub(crate) limits: Limits,
    /// In boxes: a tree's nodes are half empty where names come in order.
    pub(crate) lines: BTreeMap<LineName, Box<Line>>,
    pub(crate) settings: SharedSettings,
    pub(crate) background: BackgroundWork,
    pub(crate) totals: Totals,
    /// Versions and epochs of new lines start above the floors in here. One pair for the shard and not one per
    /// deleted name, so that memory does not grow with the number of deleted lines.
    pub(crate) head: Head,
    /// The log entry being applied, and the rest of its work limit.
    entry: Option<(u64, u32)>,
    /// The wall clock of that entry.
    pub(crate) wall_ms: u64,
}

impl Lines {
    pub fn new() -> Self {
        Self::default()
    }

    /// The bounds that it was made with.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// With other bounds than a node's: for tests.
    pub fn with_limits(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Applies one operation. A leader passes `events`, to which the events are added in order; a
    /// follower passes `None`. Never panics, whatever the operation: it comes from a log. A refused
    /// operation changes nothing but the clock.
    pub fn apply(
        &mut self,
        stamp: Stamp,
        op: &Op,
        events: Option<&mut Vec<Event>>,
    ) -> Result<Reply, Refused> {
        self.apply_noted(stamp, op, None, events)
    }

    /// The same of an operation that an operator asked for: the journal says who did, and why.
    pub fn apply_noted(
        &mut self,
        stamp: Stamp,
        op: &Op,
        note: Option<&OperatorNote>,
        events: Option<&mut Vec<Event>>,
    ) -> Result<Reply, Refused> {
        self.read_clocks(stamp);
        if self.entry.is_none_or(|(index, _)| index != stamp.index) {
            self.entry = Some((stamp.index, self.limits.work_max));
        }
        note.map_or(Ok(()), OperatorNote::check)?;
        if let Op::Create { line, settings } = op {
            return self.create(stamp, (line, settings), note, events);
        }
        self.change(op, note, events)
    }

    /// The service clock: the largest applied stamp. It never falls.
    pub fn now_ms(&self) -> u64 {
        self.head.now_ms
    }

    pub fn get(&self, name: &LineName) -> Option<&Line> {
        self.lines.get(name).map(|line| &**line)
    }

    /// In the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Line> {
        self.lines.values().map(|line| &**line)
    }

    /// The lines after this name (all, if `None`), in the order of their names: for listing in pages.
    pub fn range_after(&self, name: Option<&LineName>) -> impl Iterator<Item = &Line> {
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        let range = self
            .lines
            .range::<LineName, _>((from, Bound::<&LineName>::Unbounded));
        range.map(|(_, line)| &**line)
    }

    pub fn len(&self) -> usize {
        self.lines.len()
    }

    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Sums over all lines, O(1).
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The lines with background work to do at `now_ms`, the leader's reading of the service clock, with
    /// their incarnation. The leader proposes [`Op::RunBackground`] for each until it is not listed any
    /// more. A line is listed if some work was too much for one entry, or if its first waiting token
    /// waited only for the admission rate and can be admitted by now. O(listed).
    pub fn background_work(&self, now_ms: u64) -> impl Iterator<Item = (&LineName, u64)> {
        self.background_work_after(now_ms, None)
    }

    /// The same. One long piece of work can use up the limit of an entry: so lines that are due by the clock come
    /// first, and of the others the one after `after`, round to that one.
    pub fn background_work_after(
        &self,
        now_ms: u64,
        after: Option<&LineName>,
    ) -> impl Iterator<Item = (&LineName, u64)> + use<'_> {
        self.background
            .by_clock(now_ms)
            .chain(self.background.pending(after))
    }

    /// The line that comes first of those in [`Lines::background_work_after`] that are not due by the clock.
    pub fn next_in_background(&self, after: Option<&LineName>) -> Option<&LineName> {
        self.background.pending(after).next().map(|(name, _)| name)
    }

    /// When [`Lines::background_work`] will list one more line if nothing is applied meanwhile (service
    /// clock; it can be past).
    pub fn next_background_ms(&self) -> Option<u64> {
        self.background.next_due_ms()
    }

    /// The lines with something to do at `wall_ms`, the leader's wall clock, with their incarnation, the earliest
    /// first: the leader proposes [`Op::RunBackground`] for each. Nothing happens before its time by the entry's
    /// own [`Stamp::wall_ms`]. O(listed).
    pub fn due_by_wall_clock(&self, wall_ms: u64) -> impl Iterator<Item = (&LineName, u64)> {
        self.background.by_wall_clock(wall_ms)
    }

    /// When [`Lines::due_by_wall_clock`] will list a line (it can be past).
    pub fn next_by_wall_clock_ms(&self) -> Option<u64> {
        self.background.next_by_wall_clock_ms()
    }

    /// How much of its work limit the log entry at this index has used.
    pub fn work_done(&self, index: u64) -> u32 {
        let entry = self.entry.filter(|(of, _)| *of == index);
        entry.map_or(0, |(_, left)| self.limits.work_max - left)
    }

    /// The time of an operation.
    pub(crate) fn read_clocks(&mut self, stamp: Stamp) {
        self.head.now_ms = stamp.now_ms.min(NUMBER_MAX).max(self.head.now_ms);
        self.wall_ms = stamp.wall_ms.min(NUMBER_MAX);
    }

    fn create(
        &mut self,
        stamp: Stamp,
        (name, settings): (&LineName, &Settings),
        note: Option<&OperatorNote>,
        mut events: Option<&mut Vec<Event>>,
    ) -> Result<Reply, Refused> {
        if self.lines.contains_key(name) {
            return Err(Refused::LineExists);
        }
        settings.validate()?;
        schedule::check(settings, None)?;
        let new = NewLine {
            incarnation: self.next_incarnation(stamp),
            version_floor: self.head.version_floor,
            epoch_floor: self.head.epoch_floor,
            limits: self.limits,
            now: Timestamp {
                service_ms: self.head.now_ms,
                wall_ms: self.wall_ms,
            },
        };
        let settings = Arc::new(settings.clone());
        let mut line = Line::create(name, settings, &new, events.as_deref_mut());
        if let Some(note) = note {
            line.journal_entry(Journaled::Created, self.wall_ms);
            line.push_note((line.version, line.version), note);
        }
        // A new line has nobody in it: nothing to add to the totals, and no work but that of its schedule.
        let mut work_left = self.entry.map_or(0, |(_, left)| left);
        line.run_background(&mut ApplyCtx {
            now_ms: self.head.now_ms,
            wall_ms: self.wall_ms,
            work_left: &mut work_left,
            events,
        });
        self.entry = self.entry.map(|(index, _)| (index, work_left));
        self.background.update(&mut line, self.head.now_ms);
        let reply = line.as_reply();
        self.settings.share(&mut line);
        self.lines.insert(name.clone(), Box::new(line));
        Ok(reply)
    }

    fn next_incarnation(&mut self, stamp: Stamp) -> u64 {
        let incarnation = incarnation_at(stamp);
        // A restored line has that of another log, which this one may yet come to.
        let floor = &mut self.head.incarnation_floor;
        if incarnation > *floor {
            return incarnation;
        }
        *floor = floor.saturating_add(1).min(NUMBER_MAX);
        *floor
    }

    /// Runs an operation on its line and then its consequences: background work, or the line's end. An operation
    /// that names another incarnation was meant for an earlier or later line of the same name: an operator's is
    /// refused, and one that a leader proposed of its own does nothing.
    fn change(
        &mut self,
        op: &Op,
        note: Option<&OperatorNote>,
        events: Option<&mut Vec<Event>>,
    ) -> Result<Reply, Refused> {
        let name = op.line();
        let found = self.lines.get_mut(name);
        let known = found.as_deref().map(|line| line.incarnation);
        match op {
            Op::Configure { incarnation, .. } | Op::Delete { incarnation, .. }
                if incarnation.is_some() && known.is_some() && *incarnation != known =>
            {
                return Err(Refused::AnotherIncarnation);
            }
            Op::Recycle { incarnation, .. }
            | Op::Touch { incarnation, .. }
            | Op::Kick { incarnation, .. }
            | Op::CountRefused { incarnation, .. }
            | Op::RenewQuota { incarnation, .. }
            | Op::SealDraw { incarnation, .. }
            | Op::RunBackground { incarnation, .. }
                if known != Some(*incarnation) =>
            {
                return Ok(Reply::Nothing);
            }
            _ => {}
        }
        let line = found.ok_or(Refused::LineNotFound)?;
        let before = line.totals();
        let settings_version = line.settings_version;
        let mut work_left = self.entry.map_or(0, |(_, left)| left);
        let mut ctx = ApplyCtx {
            now_ms: self.head.now_ms,
            wall_ms: self.wall_ms,
            work_left: &mut work_left,
            events,
        };
        let before_op = note.map(|note| (note, line.before_note()));
        let reply = line.run(op, &mut ctx)?;
        if let Some((note, before_op)) = before_op {
            line.journal_note(note, op, before_op, ctx.wall_ms);
        }
        if line.settings_version != settings_version {
            self.settings.share(line);
        }
        if line.deleting && line.left_to_delete() == 0 {
            line.line_event(LineChange::Deleted, ctx.wall_ms, ctx.events);
            self.head.version_floor = line.version.max(self.head.version_floor);
            self.head.epoch_floor = line.epoch.max(self.head.epoch_floor);
            self.totals.replace(&before, &Totals::default());
            self.background.remove(line);
            self.lines.remove(name);
        } else {
            self.totals.replace(&before, &line.totals());
            self.background.update(line, self.head.now_ms);
        }
        self.entry = self.entry.map(|(index, _)| (index, work_left));
        Ok(reply)
    }
}

/// The incarnation of a line that this operation creates.
pub(crate) fn incarnation_at(stamp: Stamp) -> u64 {
    let first = stamp.index.saturating_mul(OPS_PER_ENTRY_MAX);
    first.saturating_add(stamp.op_no.into()).min(NUMBER_MAX)
}
