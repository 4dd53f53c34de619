//! The journal: the newest events of a line, kept to explain later why one token was admitted before
//! another.

use std::collections::VecDeque;

use crate::line::Line;
use crate::{
    AdmittedBy, Entered, KickNote, Kicked, LaneName, Limits, MovedBy, Noted, OVERTAKERS_MAX,
    Reason, Refused, Settings, SettingsPatch, Token, TokenRef,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalEntry {
    /// The line's version right after it. Entries are in this order, and each has its own.
    pub version: u64,
    /// Wall clock of the leader at that time.
    pub at_ms: u64,
    pub what: Journaled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Journaled {
    /// An operator created the line and gave a name or a reason: see [`crate::Line::operator_note`].
    Created,
    /// The settings or the phase changed; see [`crate::Line::settings_change`].
    Configured {
        /// By the schedule, at this time of it; otherwise by an operator.
        scheduled_at_ms: Option<u64>,
    },
    /// A change of the schedule could not be applied. [`crate::Line::settings_change`] has what it should have
    /// changed.
    ScheduleFailed { scheduled_at_ms: u64 },
    /// An operator told these seats, and gave a name or a reason; `None`: the setting is in force again.
    CapacityTold { seats: Option<u32> },
    /// An operator ended tokens, whose entries follow; see [`crate::Line::kick_note`].
    Kicked,
    /// What counts against the quota started at 0 again.
    QuotaRenewed,
    /// An operator put the line back from a backup. What happened after the backup is not in the journal.
    Restored,
    Token {
        lane: u8,
        token: Token,
        entered: Entered,
        what: JournaledToken,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournaledToken {
    /// It entered: the oldest entry about it. Lines that are older than [`crate::HISTORY_FORMAT`] have none of the
    /// tokens that entered before.
    Entered {
        /// 1 + the number of tokens that waited before it in its lane.
        position: u64,
    },
    /// It was admitted. The settings of its lane at that time are kept with it.
    Admitted {
        absolute: bool,
        boost_ms: u64,
        by: AdmittedBy,
    },
    Claimed {
        epoch: u64,
    },
    /// Never [`Reason::Moved`].
    Gone(Reason),
    /// It has become this token.
    Moved {
        to_lane: u8,
        to: Token,
        by: MovedBy,
    },
}

/// The changed settings of an entry [`Journaled::Configured`] or [`Journaled::ScheduleFailed`]. They are kept apart from the entries, which are
/// many and small: a change is large, and bounded in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsChange {
    /// The version of its entry.
    pub version: u64,
    /// The changed settings before.
    pub from: SettingsPatch,
    /// The same settings after.
    pub to: SettingsPatch,
}

impl SettingsChange {
    pub(crate) fn new(version: u64, old: &Settings, new: &Settings) -> Self {
        Self {
            version,
            from: old.difference(new),
            to: new.difference(old),
        }
    }

    /// Counts against [`crate::JOURNAL_CHANGES_BYTES`].
    pub fn bytes(&self) -> usize {
        self.from.bytes() + self.to.bytes()
    }
}

impl JournalEntry {
    /// Whether a [`SettingsChange`] belongs to it.
    fn has_changes(&self) -> bool {
        matches!(
            self.what,
            Journaled::Configured { .. } | Journaled::ScheduleFailed { .. }
        )
    }

    /// For dumps: whether it fits the time at which its token entered.
    fn fits_entering(&self) -> bool {
        match self.what {
            Journaled::Token {
                token,
                entered,
                what: JournaledToken::Entered { position },
                ..
            } => entered.version == self.version && (1..=token).contains(&position),
            Journaled::Token { entered, .. } => (1..self.version).contains(&entered.version),
            _ => true,
        }
    }

    /// For dumps: whether all its lanes are in a table of this length.
    pub(crate) fn names_lanes_below(&self, lanes: usize) -> bool {
        match self.what {
            Journaled::Token { lane, what, .. } => {
                let to = match what {
                    JournaledToken::Moved { to_lane, .. } => to_lane,
                    _ => lane,
                };
                usize::from(lane.max(to)) < lanes
            }
            _ => true,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Journal {
    limits: Limits,
    entries: VecDeque<JournalEntry>,
    changes: Details<SettingsChange>,
    kicks: Details<Kicked>,
    notes: Details<Noted>,
}

/// The details of a dump, each kind oldest first.
#[derive(Debug, Default)]
pub(crate) struct AllDetails {
    pub changes: Vec<SettingsChange>,
    pub kicks: Vec<Kicked>,
    pub notes: Vec<Noted>,
}

/// What belongs to an entry and is too large to be a part of it.
trait Detail {
    /// Whether an entry can have it.
    fn belongs_to(entry: &JournalEntry) -> bool;
    fn version(&self) -> u64;
    fn bytes(&self) -> usize;
}

impl Detail for SettingsChange {
    fn belongs_to(entry: &JournalEntry) -> bool {
        entry.has_changes()
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn bytes(&self) -> usize {
        SettingsChange::bytes(self)
    }
}

impl Detail for Kicked {
    fn belongs_to(entry: &JournalEntry) -> bool {
        entry.what == Journaled::Kicked
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn bytes(&self) -> usize {
        Kicked::bytes(self)
    }
}

impl Detail for Noted {
    fn belongs_to(_: &JournalEntry) -> bool {
        true
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn bytes(&self) -> usize {
        Noted::bytes(self)
    }
}

/// The details of the newest entries of one kind, oldest first, bounded in bytes.
#[derive(Debug)]
struct Details<D> {
    kept: VecDeque<D>,
    bytes: usize,
}

impl<D: Detail> Details<D> {
    fn new() -> Self {
        Self {
            kept: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Those of a dump; `None` if they do not belong to these entries or are too large.
    fn restore(kept: Vec<D>, entries: &[JournalEntry], limits: &Limits) -> Option<Self> {
        let belongs = |detail: &D| {
            let found = entries.binary_search_by_key(&detail.version(), |entry| entry.version);
            found.is_ok_and(|i| D::belongs_to(&entries[i]))
        };
        let known = kept.is_sorted_by(|a, b| a.version() < b.version()) && kept.iter().all(belongs);
        let bytes = kept.iter().map(D::bytes).sum();
        (known && bytes <= limits.journal_changes_bytes).then(|| Self {
            kept: kept.into(),
            bytes,
        })
    }

    fn push(&mut self, detail: D) {
        self.bytes += detail.bytes();
        self.kept.push_back(detail);
    }

    /// Drops the oldest ones while they take too many bytes or their entry has been dropped.
    fn forget(&mut self, limits: &Limits, kept_from: u64) {
        while let Some(oldest) = self.kept.front()
            && (self.bytes > limits.journal_changes_bytes || oldest.version() < kept_from)
        {
            self.bytes -= oldest.bytes();
            self.kept.pop_front();
        }
    }

    fn get(&self, version: u64) -> Option<&D> {
        let found = self.kept.binary_search_by_key(&version, D::version);
        found.ok().map(|i| &self.kept[i])
    }
}

impl Journal {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: VecDeque::new(),
            changes: Details::new(),
            kicks: Details::new(),
            notes: Details::new(),
        }
    }

    /// The journal of a dump; `None` if no line can have written it.
    pub(crate) fn restore(
        limits: Limits,
        entries: Vec<JournalEntry>,
        details: AllDetails,
        version: u64,
    ) -> Option<Self> {
        let in_order = entries.is_sorted_by(|a, b| a.version < b.version);
        let past = entries.last().is_none_or(|last| last.version <= version);
        let entered = entries.iter().all(JournalEntry::fits_entering);
        let fits = entries.len() <= limits.journal_kept;
        let noted = details
            .notes
            .iter()
            .all(|it| it.through <= version && it.is_plausible());
        if !(in_order && past && entered && fits && noted) {
            return None;
        }
        Some(Self {
            limits,
            changes: Details::restore(details.changes, &entries, &limits)?,
            kicks: Details::restore(details.kicks, &entries, &limits)?,
            notes: Details::restore(details.notes, &entries, &limits)?,
            entries: entries.into(),
        })
    }

    pub(crate) fn push(&mut self, entry: JournalEntry) {
        self.entries.push_back(entry);
        if self.entries.len() > self.limits.journal_kept {
            self.entries.pop_front();
        }
        self.forget_details();
    }

    /// Changes the times of entering on the service clock.
    pub(crate) fn shift(&mut self, shifted: impl Fn(u64) -> u64) {
        for entry in &mut self.entries {
            if let Journaled::Token { entered, .. } = &mut entry.what {
                entered.at.service_ms = shifted(entered.at.service_ms);
            }
        }
    }

    /// Adds the settings that belong to the newest entry.
    pub(crate) fn push_change(&mut self, change: SettingsChange) {
        self.changes.push(change);
        self.forget_details();
    }

    /// Adds the note of a kick to the newest entry.
    pub(crate) fn push_kick(&mut self, kicked: Kicked) {
        self.kicks.push(kicked);
        self.forget_details();
    }

    /// Adds who asked for some of the newest entries, and why.
    pub(crate) fn push_note(&mut self, noted: Noted) {
        self.notes.push(noted);
        self.forget_details();
    }

    fn forget_details(&mut self) {
        let kept_from = self.entries.front().map_or(0, |oldest| oldest.version);
        self.changes.forget(&self.limits, kept_from);
        self.kicks.forget(&self.limits, kept_from);
        self.notes.forget(&self.limits, kept_from);
    }

    pub(crate) fn change(&self, version: u64) -> Option<&SettingsChange> {
        self.changes.get(version)
    }

    pub(crate) fn kicked(&self, version: u64) -> Option<&Kicked> {
        self.kicks.get(version)
    }

    pub(crate) fn kick(&self, version: u64) -> Option<&KickNote> {
        self.kicked(version).map(|kicked| &kicked.note)
    }

    /// The note whose first entry has this version.
    pub(crate) fn noted(&self, version: u64) -> Option<&Noted> {
        self.notes.get(version)
    }

    /// The note of the operation that made the entry of this version.
    pub(crate) fn note(&self, version: u64) -> Option<&Noted> {
        let notes = &self.notes.kept;
        let begun = notes.partition_point(|it| it.version <= version);
        let noted = notes.get(begun.checked_sub(1)?)?;
        (version <= noted.through).then_some(noted)
    }

    /// Whether older entries may have been dropped.
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= self.limits.journal_kept
    }

    /// Oldest first.
    pub(crate) fn after(&self, version: u64) -> impl DoubleEndedIterator<Item = &JournalEntry> {
        let from = self.entries.partition_point(|e| e.version <= version);
        self.entries.range(from..)
    }
}

/// The history of one token, and the tokens that were admitted before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The token; of a moved one, the token that it has become.
    pub at: TokenRef,
    /// Wall clock; `None` once the journal has forgotten the token, and then the rest is empty.
    pub entered_at_ms: Option<u64>,
    /// The entries about it, including those under former numbers, oldest first.
    pub entries: Vec<JournalEntry>,
    /// How many tokens of its own lane were admitted after it entered and before it, in regular order: they had
    /// entered before it. Its own lane is the one that it was in at that time.
    pub own_lane_before: u64,
    /// The tokens of any lane that entered after it and were admitted before it, oldest first, at most
    /// [`OVERTAKERS_MAX`].
    pub overtakers: Vec<Overtaker>,
    /// Their number, including those not listed.
    pub overtakers_total: u64,
    /// The journal may not reach back to its entering: there may have been more.
    pub cut: bool,
}

/// A token that entered later and was admitted earlier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overtaker {
    pub lane: LaneName,
    pub token: Token,
    /// Wall clock of the leader at that time.
    pub entered_at_ms: u64,
    /// Wall clock of the leader at that time.
    pub admitted_at_ms: u64,
    /// The version of its admission.
    pub version: u64,
    pub by: OvertookBy,
}

/// Why a token was admitted first. The settings of the overtaker's lane are those at that time, the settings of
/// the own lane are the current ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OvertookBy {
    /// Its lane was absolute, and the other one is not.
    Absolute,
    /// Its lane had the larger boost.
    Boost {
        /// By so much, in milliseconds.
        ms: u64,
    },
    /// The order keys were equal, and its lane is listed first.
    ListedFirst,
    /// An operator called its lane alone.
    Called,
    /// An operator took it out of order.
    Taken,
    /// None of these. The overtaken token stood in its lane behind another one that was not first yet, because
    /// it or the overtaker had been moved there, or its lane's settings were different then.
    BehindItsLane,
}

impl Line {
    /// Explains from the journal why tokens were admitted before this one. O(journal).
    ///
    /// [`Refused::TicketInvalid`] if this line never issued the token.
    pub fn explain(&self, at: TokenRef) -> Result<Explanation, Refused> {
        let at = self.resolve(at);
        self.locate(at)?;
        let entries = self.entries_of((at.lane, at.token));
        let live = self.live(at.lane, at.token);
        let first = entries.first().map(|entry| entry.what);
        let entered = match (live, first) {
            (Some(live), _) => Some(live.entered),
            (None, Some(Journaled::Token { entered, .. })) => Some(entered),
            (None, _) => None,
        };
        let oldest = self.journal.after(0).next();
        let reaches_back = oldest
            .zip(entered)
            .is_some_and(|(oldest, entered)| oldest.version <= entered.version);
        let mut explanation = Explanation {
            at,
            entered_at_ms: entered.map(|entered| entered.at.wall_ms),
            entries,
            own_lane_before: 0,
            overtakers: Vec::new(),
            overtakers_total: 0,
            // Numbers that a restored line skipped have no entries at all.
            cut: entered.is_none() || (self.journal.is_full() && !reaches_back),
        };
        if let Some(entered) = entered {
            self.add_admitted_before(&mut explanation, entered);
        }
        Ok(explanation)
    }

    /// The entries about a token under all its numbers, oldest first. Each former number ended with a move to the
    /// next one.
    fn entries_of(&self, at: (u8, Token)) -> Vec<JournalEntry> {
        let (mut this, mut entries) = (at, Vec::new());
        for entry in self.journal.after(0).rev() {
            let Journaled::Token {
                lane, token, what, ..
            } = entry.what
            else {
                continue;
            };
            if matches!(what, JournaledToken::Moved { to_lane, to, .. } if (to_lane, to) == this) {
                this = (lane, token);
            }
            if (lane, token) == this {
                entries.push(*entry);
            }
        }
        entries.reverse();
        entries
    }

    fn add_admitted_before(&self, explanation: &mut Explanation, mine: Entered) {
        let mut this = match explanation.entries.first().map(|oldest| oldest.what) {
            Some(Journaled::Token { lane, token, .. }) => (lane, token),
            _ => (explanation.at.lane, explanation.at.token),
        };
        for entry in self.journal.after(mine.version) {
            let Journaled::Token {
                lane, token, what, ..
            } = entry.what
            else {
                continue;
            };
            match what {
                JournaledToken::Moved { to_lane, to, .. } if (lane, token) == this => {
                    this = (to_lane, to);
                }
                // It was admitted or it ended.
                _ if (lane, token) == this => break,
                JournaledToken::Admitted { .. } => match self.overtaker(this.0, mine, entry) {
                    Some(overtaker) => {
                        explanation.overtakers_total += 1;
                        if explanation.overtakers.len() < OVERTAKERS_MAX {
                            explanation.overtakers.push(overtaker);
                        }
                    }
                    None => explanation.own_lane_before += u64::from(lane == this.0),
                },
                _ => {}
            }
        }
    }

    /// The token whose admission this entry is about, if it entered later than `mine`.
    fn overtaker(&self, own: u8, mine: Entered, entry: &JournalEntry) -> Option<Overtaker> {
        let Journaled::Token {
            lane,
            token,
            entered,
            what:
                JournaledToken::Admitted {
                    absolute,
                    boost_ms,
                    by,
                },
        } = entry.what
        else {
            return None;
        };
        if entered.version <= mine.version {
            return None;
        }
        let later_ms = entered.at.service_ms.saturating_sub(mine.at.service_ms);
        Some(Overtaker {
            lane: self.lanes[usize::from(lane)].name.clone(),
            token,
            entered_at_ms: entered.at.wall_ms,
            admitted_at_ms: entry.at_ms,
            version: entry.version,
            by: match by {
                AdmittedBy::Take => OvertookBy::Taken,
                _ if lane == own => OvertookBy::BehindItsLane,
                AdmittedBy::Call => OvertookBy::Called,
                AdmittedBy::Turn => self.overtook_by((lane, absolute, boost_ms), own, later_ms),
            },
        })
    }

    fn overtook_by(
        &self,
        (lane, absolute, boost_ms): (u8, bool, u64),
        own: u8,
        later_ms: u64,
    ) -> OvertookBy {
        let place = |id| self.order.iter().position(|listed| *listed == id);
        let (theirs, own) = (place(lane), place(own));
        let listed_first = theirs.zip(own).is_some_and(|(theirs, own)| theirs < own);
        let set = own.and_then(|own| self.settings.lanes.get(own));
        let own_absolute = set.is_some_and(|set| set.absolute);
        let more_ms = boost_ms.saturating_sub(set.map_or(0, |set| set.boost_ms));
        if absolute && !own_absolute {
            OvertookBy::Absolute
        } else if later_ms < more_ms {
            OvertookBy::Boost { ms: more_ms }
        } else if later_ms == more_ms && listed_first {
            OvertookBy::ListedFirst
        } else {
            OvertookBy::BehindItsLane
        }
    }
}
