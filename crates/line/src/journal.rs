//! The journal: the newest events of a line, kept to explain later why one token was admitted before
//! another.

use nowserving_codec::Codec;

use crate::journal_details::{AllDetails, Details};
use crate::journal_entries::{Cursor, Entries};
use crate::line::Line;
use crate::{
    AdmittedBy, Entered, KickNote, Kicked, LaneName, Limits, MovedBy, Noted, OVERTAKERS_MAX,
    Reason, Refused, Settings, SettingsPatch, Token, TokenRef,
};

#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalEntry {
    /// The line's version right after it. Entries are in this order, and each has its own.
    pub version: u64,
    /// Wall clock of the leader at that time.
    pub at_ms: u64,
    pub what: Journaled,
}

#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
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
    /// So many of an import's first rows are done, of which so many entered: their entries come before it.
    Imported { rows: u64, entered: u64 },
    /// What counts against the quota started at 0 again.
    QuotaRenewed,
    /// The draw at the opening got its seed.
    DrawSealed,
    /// The line opened, and so many who waited in it are numbered anew. Their entries follow.
    DrawBegun { took_part: u64 },
    /// All of them are.
    Drawn,
    /// An operator put the line back from a backup. What happened after the backup is not in the journal.
    Restored,
    Token {
        lane: u8,
        token: Token,
        entered: Entered,
        what: JournaledToken,
    },
}

#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournaledToken {
    /// It entered: the oldest entry about it.
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
    Gone {
        /// Never [`Reason::Moved`].
        reason: Reason,
        /// If it completed: how many units of the quota it used.
        units: Option<u32>,
    },
    /// It has become this token.
    Moved {
        to_lane: u8,
        to: Token,
        by: MovedBy,
    },
}

/// The changed settings of an entry [`Journaled::Configured`] or [`Journaled::ScheduleFailed`]. They are kept apart from the entries, which are
/// many and small: a change is large, and bounded in bytes.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
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
    /// Whether it is about one token, and not about the line as a whole.
    pub fn is_of_token(&self) -> bool {
        matches!(self.what, Journaled::Token { .. })
    }

    /// Whether a [`SettingsChange`] belongs to it.
    pub(crate) fn has_changes(&self) -> bool {
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

/// The newest entries about tokens, and apart from them the newest ones about the line as a whole: a crowd that comes and
/// goes within a minute takes no operator's action out of the journal.
#[derive(Debug)]
pub(crate) struct Journal {
    /// [`Limits::journal_kept`]
    kept: usize,
    /// [`Limits::journal_changes_bytes`]
    details_bytes: usize,
    tokens: Kept,
    actions: Kept,
    changes: Details<SettingsChange>,
    kicks: Details<Kicked>,
}

/// Entries, oldest first, and the notes of the operations that made them.
#[derive(Debug)]
struct Kept {
    entries: Entries,
    notes: Details<Noted>,
}

impl Kept {
    fn new() -> Self {
        Self {
            entries: Entries::default(),
            notes: Details::new(),
        }
    }

    fn restore(entries: Vec<JournalEntry>, notes: Vec<Noted>, limits: &Limits) -> Option<Self> {
        let fits = entries.len() <= limits.journal_kept;
        let most = limits.journal_changes_bytes;
        let mut kept = Self {
            notes: Details::restore(notes, &entries, most).filter(|_| fits)?,
            entries: Entries::default(),
        };
        for entry in entries {
            kept.entries.push(entry);
        }
        Some(kept)
    }

    fn oldest(&self) -> u64 {
        self.entries.oldest().unwrap_or(u64::MAX)
    }

    /// The note of the operation that made the entry of this version.
    fn note(&self, version: u64) -> Option<&Noted> {
        let noted = self.notes.newest_until(version)?;
        (version <= noted.through).then_some(noted)
    }
}

impl Journal {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            kept: limits.journal_kept,
            details_bytes: limits.journal_changes_bytes,
            tokens: Kept::new(),
            actions: Kept::new(),
            changes: Details::new(),
            kicks: Details::new(),
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
        let noted = details
            .notes
            .iter()
            .all(|it| it.through <= version && it.is_plausible());
        if !(in_order && past && entered && noted) {
            return None;
        }
        let (tokens, actions): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(JournalEntry::is_of_token);
        let most = limits.journal_changes_bytes;
        let changes = Details::restore(details.changes, &actions, most)?;
        let kicks = Details::restore(details.kicks, &actions, most)?;
        let of_action = |noted: &Noted| {
            let found = actions.binary_search_by_key(&noted.version, |it| it.version);
            found.is_ok()
        };
        let (of_actions, of_tokens): (Vec<_>, Vec<_>) =
            details.notes.into_iter().partition(of_action);
        Some(Self {
            changes,
            kicks,
            tokens: Kept::restore(tokens, of_tokens, &limits)?,
            actions: Kept::restore(actions, of_actions, &limits)?,
            ..Self::new(limits)
        })
    }

    pub(crate) fn push(&mut self, entry: JournalEntry) {
        let part = match entry.is_of_token() {
            true => &mut self.tokens,
            false => &mut self.actions,
        };
        part.entries.push(entry);
        if part.entries.len() > self.kept {
            part.entries.pop_front();
            self.forget_details();
        }
    }

    /// Changes the times of entering on the service clock.
    pub(crate) fn shift(&mut self, shifted: impl Fn(u64) -> u64) {
        self.tokens.entries.change(|entry| {
            if let Journaled::Token { entered, .. } = &mut entry.what {
                entered.at.service_ms = shifted(entered.at.service_ms);
            }
        });
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
        match self.actions.entries.has(noted.version) {
            true => self.actions.notes.push(noted),
            false => self.tokens.notes.push(noted),
        }
        self.forget_details();
    }

    fn forget_details(&mut self) {
        let (most, actions) = (self.details_bytes, &self.actions.entries);
        self.changes.forget(most, actions);
        self.kicks.forget(most, actions);
        self.actions.notes.forget(most, actions);
        self.tokens.notes.forget(most, &self.tokens.entries);
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
        let of_action = self.actions.notes.get(version);
        of_action.or_else(|| self.tokens.notes.get(version))
    }

    /// The note of the operation that made the entry of this version.
    pub(crate) fn note(&self, version: u64) -> Option<&Noted> {
        let of_action = self.actions.note(version);
        of_action.or_else(|| self.tokens.note(version))
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.entries.len() + self.actions.entries.len()
    }

    /// Whether older entries about tokens may have been dropped.
    fn is_full(&self) -> bool {
        self.len() >= self.kept
    }

    /// Oldest first.
    pub(crate) fn after(&self, version: u64) -> impl DoubleEndedIterator<Item = JournalEntry> {
        let newer = |part: &Entries| part.until(version);
        Merged {
            tokens: self.tokens.entries.cursor(newer(&self.tokens.entries)),
            actions: self.actions.entries.cursor(newer(&self.actions.entries)),
        }
    }
}

/// Both kinds of entries in one order. `skip` is as fast as of a list: a page of a dump begins anywhere.
struct Merged<'a> {
    tokens: Cursor<'a>,
    actions: Cursor<'a>,
}

impl Iterator for Merged<'_> {
    type Item = JournalEntry;

    fn next(&mut self) -> Option<JournalEntry> {
        let version = |part: &mut Cursor<'_>| part.peek().map_or(u64::MAX, |it| it.version);
        match version(&mut self.tokens) < version(&mut self.actions) {
            true => self.tokens.next(),
            false => self.actions.next(),
        }
    }

    fn nth(&mut self, count: usize) -> Option<JournalEntry> {
        self.advance(count);
        self.next()
    }
}

impl Merged<'_> {
    /// Leaves out the next `count` entries.
    fn advance(&mut self, count: usize) {
        let tokens = self.tokens_among(count);
        self.tokens.skip_next(tokens);
        self.actions.skip_next(count - tokens);
    }

    /// How many of the next `count` entries are about tokens: as many as come before the action that would be next.
    fn tokens_among(&mut self, count: usize) -> usize {
        let version = |part: &mut Cursor<'_>, at: usize| part.peek_nth(at).map(|it| it.version);
        let (mut low, mut high) = (
            count.saturating_sub(self.actions.left()),
            count.min(self.tokens.left()),
        );
        while low < high {
            let tokens = (low + high) / 2;
            // With so few tokens the last action among them must not come after the token that is left out.
            let action = version(&mut self.actions, count - tokens - 1);
            match version(&mut self.tokens, tokens) < action {
                true => low = tokens + 1,
                false => high = tokens,
            }
        }
        low
    }
}

impl DoubleEndedIterator for Merged<'_> {
    fn next_back(&mut self) -> Option<JournalEntry> {
        let version = |part: &mut Cursor<'_>| part.peek_back().map_or(0, |it| it.version);
        match version(&mut self.tokens) > version(&mut self.actions) {
            true => self.tokens.next_back(),
            false => self.actions.next_back(),
        }
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
    /// The draw at the opening put it first.
    Drawn,
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
        let reaches_back = entered.is_some_and(|it| self.journal.tokens.oldest() <= it.version);
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
                entries.push(entry);
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
                JournaledToken::Admitted { .. } => match self.overtaker(this.0, mine, &entry) {
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
        let compared = |at| match self.is_issued_since_draw((lane, token)) {
            true => self.counts_as_entered(at).service_ms,
            false => at.service_ms,
        };
        let later_ms = compared(entered.at).saturating_sub(compared(mine.at));
        Some(Overtaker {
            lane: self.lanes[usize::from(lane)].name.clone(),
            token,
            entered_at_ms: entered.at.wall_ms,
            admitted_at_ms: entry.at_ms,
            version: entry.version,
            by: match by {
                AdmittedBy::Take => OvertookBy::Taken,
                _ if lane == own && self.is_drawn((lane, token)) => OvertookBy::Drawn,
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
