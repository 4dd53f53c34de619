//! The state of a shard as plain data, for snapshots. Nothing derived is in it: counts that can be
//! recounted, bitmaps and indexes are rebuilt on restoring (`restore`).

use std::ops::Range;

use crate::lane::Lane;
use crate::{
    Arrivals, Bucket, Forecast, JournalEntry, Line, Lines, Reason, Settings, SettingsChange, Stage,
    Timestamp, Token, Told,
};

/// A whole shard. Take it between log entries: what is left of an entry's work limit is not in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dump {
    /// What the shard has besides its lines.
    pub head: Head,
    /// The lines, by name.
    pub lines: Vec<LineDump>,
}

/// What a shard has besides its lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Head {
    /// The service clock.
    pub now_ms: u64,
    /// The largest version of any line deleted: new ones start above it.
    pub version_floor: u64,
    /// The largest epoch of any line deleted: new ones start above it.
    pub epoch_floor: u64,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineDump {
    /// Its name.
    pub name: String,
    /// Which creation of it.
    pub incarnation: u64,
    /// Its version.
    pub version: u64,
    /// The newest epoch given, or what it started from.
    pub epoch: u64,
    /// Its settings.
    pub settings: Settings,
    /// The version at which they last changed.
    pub settings_version: u64,
    /// When it was made (wall clock).
    pub created_at_ms: u64,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Tokens gone, by [`Reason::code`].
    pub gone_counts: [u64; Reason::ALL.len()],
    /// What is saved up; exactly if the settings have an admission rate.
    pub bucket: Option<Bucket>,
    /// Its lanes, in the order of the table: 1 to [`crate::LANE_TABLE_MAX`], among them all of the
    /// settings'; in the others nobody is live.
    pub lanes: Vec<LaneDump>,
    /// The newest gone tokens, oldest first.
    pub gone: Vec<GoneDump>,
    /// The newest journal entries, oldest first.
    pub journal: Vec<JournalEntry>,
    /// The newest changes of settings in the journal, oldest first.
    pub settings_changes: Vec<SettingsChange>,
    /// What it measures of itself.
    pub forecast: Forecast,
}

/// One lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneDump {
    /// Its name.
    pub name: String,
    /// The number that the next entrant gets.
    pub next_token: Token,
    /// Of those who wait, the numbers up to it were called ahead.
    pub called_through: Token,
    /// How many came lately.
    pub arrivals: Arrivals,
    /// Its live tokens, by number.
    pub live: Vec<LiveDump>,
}

/// One live token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveDump {
    /// Its number.
    pub token: Token,
    /// Who it is.
    pub key: Option<Box<[u8]>>,
    /// When it entered.
    pub entered: Timestamp,
    /// The line's version right after that.
    pub entered_version: u64,
    /// What it is doing.
    pub stage: Stage,
    /// The tokens (lane, number) that it was, if it was moved, oldest first.
    pub moved_from: Vec<(u8, Token)>,
    /// What it was told on entering.
    pub told: Option<Told>,
}

/// One gone token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoneDump {
    /// Its lane's place in the table.
    pub lane: u8,
    /// Its number.
    pub token: Token,
    /// Why it is gone.
    pub reason: Reason,
    /// The epoch of its claim, if it claimed.
    pub epoch: Option<u64>,
    /// Its claim completed it.
    pub released: bool,
    /// Exactly with [`Reason::Moved`]: the token (lane, number) that it ended as.
    pub moved_to: Option<(u8, Token)>,
}

impl Lines {
    /// The whole shard as plain data. For one that is large, take [`Lines::head`] and each
    /// [`Line::dump`] in turn instead.
    pub fn dump(&self) -> Dump {
        Dump {
            head: self.head(),
            lines: self.iter().map(Line::dump).collect(),
        }
    }

    /// What the shard has besides its lines.
    pub fn head(&self) -> Head {
        self.head
    }
}

impl Line {
    /// The line as plain data.
    pub fn dump(&self) -> LineDump {
        let lanes = self.lanes.iter().map(|lane| lane.dump(0..Token::MAX));
        self.dump_with(
            lanes.collect(),
            0..self.gone.len(),
            0..self.journal.after(0).count(),
        )
    }

    /// A part of the line as plain data: all that is small, and of each list that can be long at most
    /// `size` in a row, 1 or more; of live tokens those of one lane. The parts follow each other as
    /// `nth` grows, and begin again after the last one.
    pub fn dump_part(&self, nth: u64, size: u64) -> LineDump {
        let count = self.lanes.len() as u64;
        let lane_dump = |(at, lane): (u64, &Lane)| {
            let first = lane.done_through() + 1;
            let tokens = match at == nth % count {
                true => window(nth / count, size, lane.next_token - first),
                false => 0..0,
            };
            lane.dump(first + tokens.start..first + tokens.end)
        };
        let places = |length: usize| {
            let places = window(nth, size, length as u64);
            places.start as usize..places.end as usize
        };
        self.dump_with(
            (0..).zip(&self.lanes).map(lane_dump).collect(),
            places(self.gone.len()),
            places(self.journal.after(0).count()),
        )
    }

    /// All but the lanes, the gone tokens at these places and these journal entries.
    fn dump_with(
        &self,
        lanes: Vec<LaneDump>,
        gone: Range<usize>,
        journal: Range<usize>,
    ) -> LineDump {
        let gone = self.gone.range(gone).map(|(lane, token, gone)| GoneDump {
            lane,
            token,
            reason: gone.reason,
            epoch: gone.epoch,
            released: gone.released,
            moved_to: gone.moved_to,
        });
        let entries = self.journal.after(0).take(journal.end);
        let journal: Vec<JournalEntry> = entries.skip(journal.start).copied().collect();
        let changes = journal
            .iter()
            .filter_map(|e| self.journal.change(e.version));
        let settings_changes = changes.cloned().collect();
        LineDump {
            name: self.name.as_str().to_owned(),
            incarnation: self.incarnation,
            version: self.version,
            epoch: self.epoch,
            settings: self.settings.clone(),
            settings_version: self.settings_version,
            created_at_ms: self.created_at_ms,
            deleting: self.deleting,
            gone_counts: self.gone_counts,
            bucket: self.bucket,
            lanes,
            gone: gone.collect(),
            journal,
            settings_changes,
            forecast: self.forecast,
        }
    }
}

impl Lane {
    fn dump(&self, tokens: Range<Token>) -> LaneDump {
        let live = self.live.range(tokens).map(|(token, live)| LiveDump {
            token: *token,
            key: live.key.as_deref().map(Into::into),
            entered: live.entered,
            entered_version: live.entered_version,
            stage: live.stage,
            moved_from: live.moved_from.to_vec(),
            told: live.told,
        });
        LaneDump {
            name: self.name.as_str().to_owned(),
            next_token: self.next_token,
            called_through: self.called_through,
            arrivals: self.arrivals,
            live: live.collect(),
        }
    }
}

/// The `nth` window of `size` places on `length`, beginning again after the last one.
fn window(nth: u64, size: u64, length: u64) -> Range<u64> {
    let start = nth % length.div_ceil(size).max(1) * size;
    start..length.min(start + size)
}
