//! The state of a shard as plain data, for snapshots. Nothing derived is in it: counts that can be
//! recounted, bitmaps and indexes are rebuilt on restoring, and what contradicts itself is refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::gone::{Gone, GoneRing};
use crate::lane::Lane;
use crate::line::Found;
use crate::{KEY_BYTES_MAX, LANES_MAX, LaneName, Limits, Line, LineName, Lines, Live, NUMBER_MAX};
use crate::{Reason, Settings, Stage, Token};

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
    /// When it was made (service clock).
    pub created_at_ms: u64,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Tokens gone, by [`Reason::code`].
    pub gone_counts: [u64; Reason::ALL.len()],
    /// Its lanes, in the order of the table.
    pub lanes: Vec<LaneDump>,
    /// The newest gone tokens, oldest first.
    pub gone: Vec<GoneDump>,
}

/// One lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneDump {
    /// Its name.
    pub name: String,
    /// The number that the next entrant gets.
    pub next_token: Token,
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
    /// When it entered (service clock).
    pub entered_at_ms: u64,
    /// What it is doing.
    pub stage: Stage,
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
}

/// A dump that no shard can have left.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line:?}: {what}")]
pub struct BadDump {
    /// The line that is wrong; empty for the shard's own part.
    pub line: String,
    /// What is wrong with it.
    pub what: &'static str,
}

fn bad(line: &str, what: &'static str) -> BadDump {
    let line = line.to_owned();
    BadDump { line, what }
}

fn require(holds: bool, what: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(what) }
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

    /// The shard that left this dump.
    pub fn restore(dump: Dump) -> Result<Self, BadDump> {
        Self::restore_with(Limits::default(), dump)
    }

    /// As [`Lines::restore`], with other bounds than a node's: for tests.
    pub fn restore_with(limits: Limits, dump: Dump) -> Result<Self, BadDump> {
        let mut lines = Self::from_head(limits, dump.head)?;
        for line in dump.lines {
            lines.add(line)?;
        }
        Ok(lines)
    }

    /// A shard without lines; [`Lines::add`] brings them back one by one.
    pub fn from_head(limits: Limits, head: Head) -> Result<Self, BadDump> {
        let largest = head.now_ms.max(head.version_floor).max(head.epoch_floor);
        require(largest <= NUMBER_MAX, "a number out of range").map_err(|what| bad("", what))?;
        let mut lines = Self::with_limits(limits);
        lines.head = head;
        Ok(lines)
    }

    /// Brings back one line.
    pub fn add(&mut self, dump: LineDump) -> Result<(), BadDump> {
        let name = dump.name.clone();
        let line = Line::restore(dump, self.limits.gone_kept).map_err(|what| bad(&name, what))?;
        if line.has_job() {
            self.jobs.insert(line.name.clone(), line.incarnation);
        }
        match self.lines.insert(line.name.clone(), line) {
            None => Ok(()),
            Some(_) => Err(bad(&name, "two lines of this name")),
        }
    }
}

impl Line {
    /// The line as plain data.
    pub fn dump(&self) -> LineDump {
        let gone = self.gone.iter().map(|(lane, token, gone)| GoneDump {
            lane,
            token,
            reason: gone.reason,
            epoch: gone.epoch,
        });
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
            lanes: self.lanes.iter().map(Lane::dump).collect(),
            gone: gone.collect(),
        }
    }

    fn restore(dump: LineDump, gone_kept: usize) -> Result<Self, &'static str> {
        let name = LineName::try_from(dump.name.as_str()).map_err(|_| "not a name")?;
        dump.settings
            .validate()
            .map_err(|_| "settings out of range")?;
        let largest = dump.incarnation.max(dump.version).max(dump.epoch);
        let largest = largest.max(dump.created_at_ms);
        require(largest <= NUMBER_MAX, "a number out of range")?;
        let settled = dump.settings_version <= dump.version;
        require(settled, "settings of a later version")?;
        let lanes_fit = (1..=LANES_MAX).contains(&dump.lanes.len());
        require(lanes_fit, "needs 1 to 8 lanes")?;
        require(dump.gone.len() <= gone_kept, "too many gone tokens")?;
        let mut line = Self {
            name,
            incarnation: dump.incarnation,
            version: dump.version,
            epoch: dump.epoch,
            settings: dump.settings,
            settings_version: dump.settings_version,
            created_at_ms: dump.created_at_ms,
            deleting: dump.deleting,
            lanes: Vec::with_capacity(dump.lanes.len()),
            keys: BTreeMap::new(),
            gone: GoneRing::new(gone_kept),
            gone_counts: dump.gone_counts,
            admitted: 0,
            in_checkout: 0,
        };
        for (id, lane) in (0..).zip(dump.lanes) {
            line.restore_lane(id, lane)?;
        }
        for gone in dump.gone {
            line.restore_gone(gone)?;
        }
        line.check_sums()?;
        Ok(line)
    }

    fn restore_lane(&mut self, id: u8, dump: LaneDump) -> Result<(), &'static str> {
        let name = LaneName::try_from(dump.name.as_str()).map_err(|_| "not a lane's name")?;
        let known = self.lanes.iter().any(|lane| lane.name == name);
        require(!known, "two lanes of one name")?;
        let mut lane = Lane::new(name);
        lane.next_token = dump.next_token;
        let in_range = (1..=NUMBER_MAX + 1).contains(&dump.next_token);
        require(in_range, "next_token out of range")?;
        let mut last = 0;
        for live in dump.live {
            let in_order = last < live.token && live.token < dump.next_token;
            require(in_order, "live tokens out of order")?;
            last = live.token;
            self.restore_live(id, &mut lane, live)?;
        }
        self.lanes.push(lane);
        Ok(())
    }

    fn restore_live(
        &mut self,
        lane_id: u8,
        lane: &mut Lane,
        dump: LiveDump,
    ) -> Result<(), &'static str> {
        match dump.stage {
            Stage::Waiting { .. } => lane.waiting.push(dump.token),
            Stage::Admitted { .. } => self.admitted += 1,
            Stage::InCheckout { epoch, .. } => {
                require((1..=self.epoch).contains(&epoch), "an epoch never given")?;
                self.in_checkout += 1;
            }
        }
        let key: Option<Arc<[u8]>> = dump.key.map(Into::into);
        if let Some(key) = &key {
            let fits = (1..=KEY_BYTES_MAX).contains(&key.len());
            require(fits, "a key of no or too many bytes")?;
            let known = self.keys.insert(key.clone(), (lane_id, dump.token));
            require(known.is_none(), "two live tokens of one key")?;
        }
        let live = Live {
            key,
            entered_at_ms: dump.entered_at_ms,
            stage: dump.stage,
        };
        lane.live.insert(dump.token, live);
        Ok(())
    }

    fn restore_gone(&mut self, dump: GoneDump) -> Result<(), &'static str> {
        let at = self.token_ref(dump.lane, dump.token);
        let found = self.locate(at).map_err(|_| "a gone token never issued")?.1;
        require(matches!(found, Found::Gone(_)), "a token live and gone")?;
        let epoch_given = dump.epoch.is_none_or(|e| (1..=self.epoch).contains(&e));
        require(epoch_given, "an epoch never given")?;
        let gone = Gone {
            reason: dump.reason,
            epoch: dump.epoch,
        };
        let new = self.gone.push(dump.lane, dump.token, gone);
        require(new, "a token gone twice")
    }

    /// Every number issued is somewhere, once.
    fn check_sums(&self) -> Result<(), &'static str> {
        let counts = self.counts();
        let gone: Option<u64> = counts
            .gone
            .iter()
            .try_fold(0u64, |sum, n| sum.checked_add(*n));
        let sum = gone.and_then(|gone| gone.checked_add(counts.live()));
        require(sum == Some(counts.issued), "tokens don't add up")
    }
}

impl Lane {
    fn dump(&self) -> LaneDump {
        let live = self.live.iter().map(|(token, live)| LiveDump {
            token: *token,
            key: live.key.as_deref().map(Into::into),
            entered_at_ms: live.entered_at_ms,
            stage: live.stage,
        });
        LaneDump {
            name: self.name.as_str().to_owned(),
            next_token: self.next_token,
            live: live.collect(),
        }
    }
}
