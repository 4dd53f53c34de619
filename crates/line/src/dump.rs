//! The state of a shard's lines as plain data, for snapshots, and back. A dump has nothing that can be derived:
//! counts, bitmaps and indexes are rebuilt on restoring. A dump that contradicts itself is refused.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use nowserving_codec::Codec;

use crate::bits::BITS;
use crate::calls::Calls;
use crate::draw_pages::Draw;
use crate::dump_lists::LiveList;
use crate::gone::{Gone, GoneRing};
use crate::journal::Journal;
use crate::journal_details::AllDetails;
use crate::key_index::KeyIndex;
use crate::line::{Found, Lane};
use crate::seldom::Seldom;
use crate::{
    Arrivals, Bucket, CallItem, Caller, ClockShift, DrawHead, DrawPage, Forecast, GoneFrom,
    Imported, JournalEntry, KEY_BYTES_MAX, Kicked, LANE_TABLE_MAX, LaneName, Limits, Line,
    LineName, Lines, Live, LiveRecord, MOVES_MAX, NUMBER_MAX, Noted, Offers, PER_VISIT_MAX,
    PositionMark, Reason, RefusedCounts, SEATS_MAX, Settings, SettingsChange, Shadow, Stage, Token,
    Told, Totals,
};

/// The state of a shard beside its lines.
#[derive(Codec, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Head {
    pub now_ms: u64,
    /// The largest version of any deleted line: new lines start above it.
    pub version_floor: u64,
    /// The largest epoch of any deleted line: new lines start above it.
    pub epoch_floor: u64,
    /// The largest incarnation of any restored line, and of those made above it; 0 without one. New lines have
    /// a larger one.
    pub incarnation_floor: u64,
}

/// `L`: the lists of live tokens.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub struct LineDump<L = Vec<(Token, LiveRecord)>> {
    pub name: LineName,
    pub incarnation: u64,
    pub version: u64,
    /// The newest epoch issued, or the floor that it started from.
    pub epoch: u64,
    pub settings: Settings,
    /// The version at which they last changed.
    pub settings_version: u64,
    /// Wall clock of the leader at that time.
    pub created_at_ms: u64,
    pub deleting: bool,
    /// That of its opening.
    pub draw: Option<DrawHead>,
    /// Tokens gone, by [`Reason::code`].
    pub gone_counts: [u64; Reason::ALL.len()],
    pub gone_from: GoneFrom,
    /// Entrants refused.
    pub refused: RefusedCounts,
    /// Units of the quota that completed visits used, also those which a restore has undone.
    pub used: u64,
    /// Those of them that were used before the quota was last renewed.
    pub used_in_past: u64,
    /// How far the newest import has come.
    pub imported: Option<Imported>,
    /// What was counted while the gate held nobody back.
    pub shadow: Shadow,
    /// When it is renewed next; `None` until a leader has found out.
    pub renews_at_ms: Option<u64>,
    /// `Some` exactly if the settings have an admission rate.
    pub bucket: Option<Bucket>,
    /// How many keys ever asked to be told of room.
    pub called_back: u64,
    /// What a backend has told of its capacity.
    pub told: Option<Told>,
    /// By id: 1 to [`crate::LANE_TABLE_MAX`], including all lanes of the settings. The others have no live
    /// tokens.
    pub lanes: Vec<LaneDump<L>>,
    /// The newest gone tokens by lane id and number, oldest first.
    pub gone: Vec<(u8, Token, Gone)>,
    /// The newest journal entries, oldest first.
    pub journal: Vec<JournalEntry>,
    /// The newest changes of settings in the journal, oldest first.
    pub settings_changes: Vec<SettingsChange>,
    /// Notes of the newest kicks in the journal, oldest first.
    pub kicks: Vec<Kicked>,
    /// Who asked for the newest entries in the journal, and why; oldest first.
    pub notes: Vec<Noted>,
    /// The newest calls and the tokens that each admitted, oldest first.
    pub calls: Vec<CallItem>,
    pub forecast: Forecast,
}

#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub struct LaneDump<L = Vec<(Token, LiveRecord)>> {
    pub name: LaneName,
    pub next_token: Token,
    /// `call_ahead` events were sent for the waiting numbers up to this one.
    pub called_through: Token,
    /// One for each of the line's `position_events`, in their order.
    pub marks: Vec<PositionMark>,
    pub arrivals: Arrivals,
    /// Who took part in the draw, in order of number.
    pub draw: Vec<DrawPage>,
    /// In order of number.
    pub live: L,
    pub offers: Offers,
    /// The keys that wait to be told of room, in the order of their numbers.
    pub callers: Vec<(u64, Arc<[u8]>)>,
}

impl Lines {
    /// With each [`Line::dump`], all of the state. To be taken between log entries: the rest of an entry's work
    /// limit is not in it.
    pub fn head(&self) -> Head {
        self.head
    }
}

impl Line {
    pub fn dump(&self) -> LineDump {
        self.dump_as()
    }

    /// The same with another kind of lists of live tokens.
    pub fn dump_as<L: LiveList>(&self) -> LineDump<L> {
        let lanes = self.lanes.iter();
        let whole = 0..u64::MAX;
        let lanes = (0..).zip(lanes).map(|(id, lane)| LaneDump {
            draw: self.drawn_pages(id, whole.clone()),
            ..lane.dump(whole.clone(), whole.clone())
        });
        self.dump_with(
            lanes.collect(),
            0..self.gone.len(),
            0..self.journal.len(),
            0..self.calls.len(),
        )
    }

    /// A part of the dump: everything small, and of each long list at most `size` (1 or more) consecutive items; of
    /// live tokens and of callers those of one lane. The parts follow each other as `nth` grows, and start over after the last.
    pub fn dump_part<L: LiveList>(&self, nth: u64, size: u64) -> LineDump<L> {
        let count = self.lanes.len() as u64;
        let lane_dump = |(at, lane): (u64, &Lane)| {
            let first = lane.done_through() + 1;
            let (tokens, callers) = match at == nth % count {
                true => (
                    window(nth / count, size, lane.next_token - first),
                    window(nth / count, size, lane.callers.len()),
                ),
                false => (0..0, 0..0),
            };
            let pages = match at == nth % count {
                true => window(nth / count, size.div_ceil(BITS), self.drawn_pages_len(at)),
                false => 0..0,
            };
            LaneDump {
                draw: self.drawn_pages(at, pages),
                ..lane.dump(first + tokens.start..first + tokens.end, callers)
            }
        };
        let places = |length: usize| {
            let places = window(nth, size, length as u64);
            places.start as usize..places.end as usize
        };
        self.dump_with(
            (0..).zip(&self.lanes).map(lane_dump).collect(),
            places(self.gone.len()),
            places(self.journal.len()),
            places(self.calls.len()),
        )
    }

    fn dump_with<L>(
        &self,
        lanes: Vec<LaneDump<L>>,
        gone: Range<usize>,
        journal: Range<usize>,
        calls: Range<usize>,
    ) -> LineDump<L> {
        let entries = self.journal.after(0).take(journal.end);
        let journal: Vec<JournalEntry> = entries.skip(journal.start).collect();
        let versions = journal.iter().map(|entry| entry.version);
        let changes = versions.clone().filter_map(|it| self.journal.change(it));
        let settings_changes = changes.cloned().collect();
        let kicks = versions.clone().filter_map(|it| self.journal.kicked(it));
        let kicks = kicks.cloned().collect();
        let notes = versions.filter_map(|it| self.journal.noted(it));
        let notes = notes.cloned().collect();
        LineDump {
            name: self.name.clone(),
            incarnation: self.incarnation,
            version: self.version,
            epoch: self.epoch,
            settings: (*self.settings).clone(),
            settings_version: self.settings_version,
            created_at_ms: self.created_at_ms,
            deleting: self.deleting,
            draw: self.draw.as_ref().map(|draw| draw.head.clone()),
            gone_counts: self.gone_counts.value(),
            gone_from: self.gone_from.get().copied().unwrap_or_default(),
            refused: self.refused.value(),
            used: self.used,
            used_in_past: self.used_in_past,
            imported: self.imported().cloned(),
            shadow: self.shadow(),
            renews_at_ms: self.renews_at_ms,
            bucket: self.bucket.as_deref().copied(),
            called_back: self.called_back,
            told: self.told(),
            lanes,
            gone: self.gone.range(gone).collect(),
            journal,
            settings_changes,
            kicks,
            notes,
            calls: self
                .calls
                .items_from(calls.start)
                .take(calls.len())
                .collect(),
            forecast: self.forecast.clone(),
        }
    }
}

impl Lane {
    /// With the live tokens of these numbers, and the callers at these places.
    fn dump<L: LiveList>(&self, tokens: Range<Token>, callers: Range<u64>) -> LaneDump<L> {
        let many = usize::try_from(callers.end.saturating_sub(callers.start)).unwrap_or(usize::MAX);
        let callers = self.callers.at(callers.start).take(many);
        LaneDump {
            name: self.name.clone(),
            next_token: self.next_token,
            called_through: self.called_through,
            marks: self.marks.clone(),
            arrivals: self.arrivals,
            draw: Vec::new(),
            live: L::of(self.live_range(tokens)),
            offers: self.callers.offers,
            callers: callers.map(|(number, key)| (number, key.clone())).collect(),
        }
    }
}

/// The `nth` window of `size` places on `length`, starting over after the last one.
fn window(nth: u64, size: u64, length: u64) -> Range<u64> {
    let start = nth % length.div_ceil(size).max(1) * size;
    start..length.min(start + size)
}

/// A dump that no shard can have made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line:?}: {what}")]
pub struct BadDump {
    /// Empty for [`Head`].
    pub line: String,
    pub what: &'static str,
}

fn bad(line: &str, what: &'static str) -> BadDump {
    let line = line.to_owned();
    BadDump { line, what }
}

const NOT_DRAWN: &str = "a number that is not drawn";

fn require(holds: bool, what: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(what) }
}

impl Lines {
    /// A shard without lines; [`Lines::add`] adds them one by one.
    pub fn from_head(limits: Limits, head: Head) -> Result<Self, BadDump> {
        let floors = head.version_floor.max(head.epoch_floor);
        let largest = head.now_ms.max(floors).max(head.incarnation_floor);
        require(largest <= NUMBER_MAX, "a number out of range").map_err(|what| bad("", what))?;
        let mut lines = Self::with_limits(limits);
        lines.head = head;
        Ok(lines)
    }

    /// The next line in order of name.
    pub fn add(&mut self, dump: LineDump<impl LiveList>) -> Result<(), BadDump> {
        let mut line = LineBuilder::new(dump, self.limits)?.finish()?;
        let name = line.name.clone();
        let last = self.lines.last_key_value();
        if last.is_some_and(|(last, _)| *last >= name) {
            return Err(bad(name.as_str(), "lines out of order"));
        }
        self.totals.replace(&Totals::default(), &line.totals());
        self.background.update(&mut line, self.head.now_ms);
        self.settings.share(&mut line);
        self.lines.insert(name, Box::new(line));
        Ok(())
    }
}

/// An item of the long lists of a [`LineDump`]. Those who took part in a draw, live tokens and callers are of a
/// lane, each lane's in order of number.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub enum LineItem {
    Draw(u8, DrawPage),
    Live(u8, Token, LiveRecord),
    Caller(Caller),
    Gone(u8, Token, Gone),
    Journal(JournalEntry),
    Settings(Box<SettingsChange>),
    Kicked(Kicked),
    Noted(Noted),
    Call(CallItem),
}

/// A line that is made from its dump, at once or item by item: those who took part in a draw first, then live tokens, callers, then gone tokens. Each is
/// checked as it comes, so that the work of [`LineBuilder::finish`] does not grow with the number of tokens.
#[derive(Debug)]
pub struct LineBuilder {
    pub(crate) line: Line,
    pub(crate) shift: Option<ClockShift>,
    /// By lane, the last live token and the version at which the last one entered that was not moved.
    last: Vec<(Token, u64)>,
    journal: Vec<JournalEntry>,
    details: AllDetails,
    limits: Limits,
}

impl LineBuilder {
    /// Begins with a dump whose lists may be empty or incomplete: [`LineBuilder::add`] adds the rest.
    pub fn new(dump: LineDump<impl LiveList>, limits: Limits) -> Result<Self, BadDump> {
        let name = dump.name.clone();
        Self::begin(dump, limits).map_err(|what| bad(name.as_str(), what))
    }

    pub fn name(&self) -> &LineName {
        &self.line.name
    }

    pub fn incarnation(&self) -> u64 {
        self.line.incarnation
    }

    /// After an error the builder is of no use any more.
    pub fn add(&mut self, item: LineItem) -> Result<(), BadDump> {
        let added = self.add_item(item);
        added.map_err(|what| bad(self.line.name.as_str(), what))
    }

    /// All that was added: [`LineBuilder::new`] makes an equal builder of it.
    pub fn dump(&self) -> LineDump {
        LineDump {
            journal: self.journal.clone(),
            settings_changes: self.details.changes.clone(),
            kicks: self.details.kicks.clone(),
            notes: self.details.notes.clone(),
            ..self.line.dump()
        }
    }

    /// The line. Refused if something is missing.
    pub fn finish(self) -> Result<Line, BadDump> {
        let name = self.line.name.clone();
        self.end().map_err(|what| bad(name.as_str(), what))
    }

    fn begin(mut dump: LineDump<impl LiveList>, limits: Limits) -> Result<Self, &'static str> {
        let set = dump.settings.validate();
        set.map_err(|_| "settings out of range")?;
        let largest = dump.incarnation.max(dump.version).max(dump.epoch);
        let largest = largest.max(dump.created_at_ms).max(dump.used);
        let largest = largest.max(dump.called_back).max(dump.used_in_past);
        let largest = largest.max(dump.renews_at_ms.unwrap_or(0));
        let in_range = dump.refused.in_range() && dump.shadow.in_range();
        let in_range = in_range && largest <= NUMBER_MAX;
        require(in_range, "a number out of range")?;
        let imported = dump.imported.as_ref();
        let imported = imported.is_none_or(Imported::is_plausible);
        require(imported, "an impossible import")?;
        let settled = dump.settings_version <= dump.version;
        require(settled, "settings of a later version")?;
        let lanes_fit = (1..=LANE_TABLE_MAX).contains(&dump.lanes.len());
        require(lanes_fit, "needs 1 to 64 lanes")?;
        let bucket_fits = match (&dump.bucket, &dump.settings.admission_rate) {
            (Some(bucket), Some(rate)) => bucket.fits(rate),
            (bucket, rate) => bucket.is_none() && rate.is_none(),
        };
        require(bucket_fits, "not a bucket of the rate")?;
        let told_fits = |told: Told| told.seats <= SEATS_MAX && told.until_ms <= NUMBER_MAX;
        require(dump.told.is_none_or(told_fits), "seats that none can tell")?;
        require(dump.forecast.is_plausible(), "impossible measurements")?;
        let draw = dump.draw.as_ref();
        let drawn = draw.is_none_or(|draw| draw.is_plausible(&dump.lanes));
        require(drawn, "an impossible draw")?;
        let (mut draw, live, mut others) = dump.take_lists();
        let line = Line {
            name: dump.name,
            incarnation: dump.incarnation,
            version: dump.version,
            epoch: dump.epoch,
            settings: Arc::new(dump.settings),
            settings_version: dump.settings_version,
            created_at_ms: dump.created_at_ms,
            deleting: dump.deleting,
            lanes: Vec::with_capacity(dump.lanes.len()),
            order: Vec::new(),
            told: dump.told.map(Box::new),
            bucket: dump.bucket.map(Box::new),
            keys: KeyIndex::new(limits.hash_seed, limits.keys_read),
            callers: BTreeMap::new(),
            called_back: dump.called_back,
            moved: Seldom::default(),
            gone: GoneRing::new(limits.gone_kept),
            draw: dump.draw.map(Draw::from_head).map(Box::new),
            calls: Calls::new(limits),
            journal: Journal::new(limits),
            gone_counts: dump.gone_counts.into(),
            gone_from: dump.gone_from.into(),
            refused: dump.refused.into(),
            used: dump.used,
            used_in_past: dump.used_in_past,
            reserved: 0,
            imported: dump.imported.map(Box::new),
            shadow: dump.shadow.into(),
            renews_at_ms: dump.renews_at_ms,
            admitted: 0,
            in_checkout: 0,
            forecast: dump.forecast,
            background: None,
            due_by_wall_ms: None,
        };
        let mut builder = Self {
            line,
            shift: None,
            last: vec![(0, 0); dump.lanes.len()],
            journal: Vec::new(),
            details: AllDetails::default(),
            limits,
        };
        for lane in dump.lanes {
            builder.line.restore_lane(lane)?;
        }
        draw.try_for_each(|item| builder.add_item(item))?;
        for (lane, live) in (0..).zip(live) {
            live.each(|token, live| builder.add_live((lane, token), live))?;
        }
        others.try_for_each(|item| builder.add_item(item))?;
        Ok(builder)
    }

    fn add_item(&mut self, item: LineItem) -> Result<(), &'static str> {
        match item {
            LineItem::Draw(lane, page) => {
                require(self.is_without_tokens(), "a draw after live tokens")?;
                return self.line.restore_draw(lane, page);
            }
            LineItem::Live(lane, token, live) => {
                require(self.line.gone.len() == 0, "live tokens after gone ones")?;
                require(self.line.callers.is_empty(), "live tokens after callers")?;
                return self.add_live((lane, token), live.view());
            }
            LineItem::Caller(caller) => return self.line.restore_caller(caller),
            LineItem::Gone(lane, token, gone) => {
                let fits = self.line.gone.len() < self.limits.gone_kept;
                require(fits, "too many gone tokens")?;
                return self.line.restore_gone((lane, token), gone);
            }
            LineItem::Call(item) => return require(self.line.calls.add(item), "not calls"),
            LineItem::Journal(entry) => self.journal.push(entry),
            LineItem::Settings(change) => self.details.changes.push(*change),
            LineItem::Kicked(kicked) => self.details.kicks.push(kicked),
            LineItem::Noted(noted) => self.details.notes.push(noted),
        }
        let AllDetails {
            changes,
            kicks,
            notes,
        } = &self.details;
        let details = changes.len().max(kicks.len()).max(notes.len());
        // Of tokens and of actions.
        let fits = self.journal.len().max(details) <= 2 * self.limits.journal_kept;
        require(fits, "not a journal")
    }

    fn is_without_tokens(&self) -> bool {
        let mut lanes = self.line.lanes.iter();
        let has_none = lanes.all(|lane| lane.live_count() == 0);
        has_none && self.line.callers.is_empty() && self.line.gone.len() == 0
    }

    fn add_live(&mut self, at: (u8, Token), live: Live<'_>) -> Result<(), &'static str> {
        let last = self.last.get_mut(usize::from(at.0)).ok_or("no such lane")?;
        require(last.0 < at.1, "live tokens out of order")?;
        last.0 = at.1;
        // A token that was moved into the lane, or drawn, may have entered before the ones in front of it.
        if live.moved_from.is_empty() && !self.line.is_drawn(at) {
            require(last.1 < live.entered.version, "entered out of order")?;
            last.1 = live.entered.version;
        }
        self.line.restore_live(at, live)
    }

    fn end(self) -> Result<Line, &'static str> {
        let mut line = self.line;
        let lanes = line.lanes.len();
        let noted = self
            .details
            .kicks
            .iter()
            .all(|it| it.note.check(lanes).is_ok());
        require(noted, "not a note of a kick")?;
        let journal = Journal::restore(self.limits, self.journal, self.details, line.version);
        line.journal = journal.ok_or("not a journal")?;
        require(line.has_issued_called(), "a call of no token")?;
        line.draw.as_mut().map_or(Ok(()), |draw| draw.restored())?;
        line.restore_order()?;
        let known = line
            .journal
            .after(0)
            .all(|entry| entry.names_lanes_below(lanes));
        require(known, "a journal of other lanes")?;
        line.check_sums()?;
        Ok(line)
    }
}

impl Line {
    /// Without its live tokens.
    fn restore_lane<L>(&mut self, dump: LaneDump<L>) -> Result<(), &'static str> {
        require(self.lane_id(&dump.name).is_none(), "two lanes of one name")?;
        let mut lane = Lane::new(dump.name);
        lane.next_token = dump.next_token;
        let in_range = (1..=NUMBER_MAX + 1).contains(&dump.next_token);
        require(in_range, "next_token out of range")?;
        let called = dump.called_through < dump.next_token;
        require(called, "called ahead of issue")?;
        lane.called_through = dump.called_through;
        lane.marks = dump.marks;
        let marked = lane.marks_fit(&self.settings.position_events);
        require(marked, "marks of other positions")?;
        require(dump.offers.is_plausible(), "impossible offers")?;
        lane.callers.offers = dump.offers;
        require(dump.arrivals.is_plausible(), "impossible arrivals")?;
        lane.arrivals = dump.arrivals;
        self.lanes.push(lane);
        Ok(())
    }

    fn restore_live(&mut self, at: (u8, Token), live: Live<'_>) -> Result<(), &'static str> {
        self.restore_moved(at, live)?;
        require(self.drawn_as(at).is_none(), "a token live and drawn")?;
        require(!self.is_to_be_drawn(at), NOT_DRAWN)?;
        let may_be_drawn = !live.stage.holds_seat() || !self.waits_for_draw(at);
        require(may_be_drawn, "a seat before the draw")?;
        let counts_as_entered = self.counts_as_entered(live.entered.at);
        let lane = self.lanes.get_mut(usize::from(at.0));
        let lane = lane.ok_or("no such lane")?;
        require(at.1 < lane.next_token, "live tokens out of order")?;
        match live.stage {
            Stage::Waiting { .. } => {}
            Stage::Admitted { .. } => self.admitted += 1,
            Stage::InCheckout { epoch, .. } => {
                require((1..=self.epoch).contains(&epoch), "an epoch never given")?;
                self.in_checkout += 1;
                lane.in_checkout += 1;
            }
        }
        let units = live.stage.units();
        let reserves = !live.stage.holds_seat() || (1..=PER_VISIT_MAX).contains(&units);
        require(reserves, "units that no seat reserves")?;
        self.reserved = self.reserved.saturating_add(units.into());
        let entered = (1..=self.version).contains(&live.entered.version);
        require(entered, "entered at no version of the line")?;
        if let Some(key) = live.key {
            let fits = (1..=KEY_BYTES_MAX).contains(&key.len());
            require(fits, "a key of no or too many bytes")?;
            require(self.find(key).is_none(), "two live tokens of one key")?;
        }
        self.lanes[usize::from(at.0)].add(at.1, counts_as_entered, live);
        self.add_key(live.key, at);
        Ok(())
    }

    fn restore_caller(&mut self, caller: Caller) -> Result<(), &'static str> {
        let Caller { lane, number, key } = caller;
        let fits = (1..=KEY_BYTES_MAX).contains(&key.len());
        require(fits, "a key of no or too many bytes")?;
        require(self.find(&key).is_none(), "a caller who is in the line")?;
        require(
            (1..=self.called_back).contains(&number),
            "a caller who never asked",
        )?;
        let known = self.callers.insert(key.clone(), (lane, number));
        require(known.is_none(), "two callers of one key")?;
        let lane = self
            .lanes
            .get_mut(usize::from(lane))
            .ok_or("no such lane")?;
        require(lane.callers.is_next(number), "callers out of order")?;
        lane.callers.add(number, key);
        Ok(())
    }

    /// The former numbers of a token are gone, also those that come later.
    fn restore_moved(&mut self, at: (u8, Token), live: Live<'_>) -> Result<(), &'static str> {
        const LIVE: &str = "moved from a token that is not gone";
        require(!self.was_moved(at), LIVE)?;
        require(live.moved_from.len() <= MOVES_MAX, "moved too often")?;
        let jumps = usize::from(live.jumps) <= live.moved_from.len();
        require(jumps, "more jumps than moves")?;
        for old in live.moved_from {
            require(*old != at && self.is_gone(*old), LIVE)?;
            require(!self.is_to_be_drawn(*old), NOT_DRAWN)?;
            let new = self.moved.get_mut().insert(*old, at).is_none();
            require(new, "a token moved twice")?;
        }
        Ok(())
    }

    fn was_moved(&self, at: (u8, Token)) -> bool {
        self.moved
            .get()
            .is_some_and(|moved| moved.contains_key(&at))
    }

    fn restore_gone(&mut self, at: (u8, Token), gone: Gone) -> Result<(), &'static str> {
        let found = self.locate(self.token_ref(at.0, at.1));
        let (_, found) = found.map_err(|_| "a gone token never issued")?;
        require(matches!(found, Found::Gone(_)), "a token live and gone")?;
        require(!self.was_moved(at), "a token moved and gone")?;
        require(!self.is_to_be_drawn(at), NOT_DRAWN)?;
        let moved = gone.reason == Reason::Moved;
        let fits = moved == gone.moved_to.is_some() && !(moved && gone.epoch.is_some());
        let to_gone = |to| to != at && self.is_gone(to);
        let moved_to_gone = gone.moved_to.is_none_or(to_gone);
        require(fits && moved_to_gone, "a token moved nowhere")?;
        let epoch_given = gone.epoch.is_none_or(|e| (1..=self.epoch).contains(&e));
        require(epoch_given, "an epoch never given")?;
        let new = self.gone.push(at.0, at.1, gone);
        require(new, "a token gone twice")
    }

    fn is_gone(&self, (lane, token): (u8, Token)) -> bool {
        let found = self.locate(self.token_ref(lane, token));
        found.is_ok_and(|(_, found)| matches!(found, Found::Gone(_)))
    }

    fn restore_order(&mut self) -> Result<(), &'static str> {
        let known = |name| self.lane_id(name).is_some();
        let all = self.settings.lanes.iter().all(|set| known(&set.name));
        require(all, "a lane of the settings is missing")?;
        let fits = self.check_lanes(&self.settings.lanes);
        fits.map_err(|_| "somebody in a lane that was removed")?;
        self.order_lanes();
        Ok(())
    }

    /// Every issued number is in one state.
    fn check_sums(&self) -> Result<(), &'static str> {
        let counts = self.counts();
        let gone: Option<u64> = counts
            .gone
            .iter()
            .try_fold(0u64, |sum, n| sum.checked_add(*n));
        let sum = gone.and_then(|gone| gone.checked_add(counts.live()));
        let sum = sum.and_then(|sum| sum.checked_add(counts.drawn));
        require(sum == Some(counts.issued), "tokens don't add up")?;
        let fits = |reason| {
            let from = counts.gone_from.of(reason);
            from.is_some_and(|from| from <= counts.gone_for(reason))
        };
        let fit = Reason::ALL.into_iter().all(fits);
        require(fit, "more departures than tokens gone")
    }
}
