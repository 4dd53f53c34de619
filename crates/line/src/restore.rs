//! A shard from its dump: what is derived is rebuilt, and what contradicts itself is refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::gone::{Gone, GoneRing};
use crate::journal::Journal;
use crate::lane::Lane;
use crate::line::Found;
use crate::{
    Dump, GoneDump, Head, KEY_BYTES_MAX, LANE_TABLE_MAX, LaneDump, LaneName, Limits, Line,
};
use crate::{
    LineDump, LineName, Lines, Live, LiveDump, MOVES_MAX, NUMBER_MAX, Reason, Stage, Totals,
};

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
        let mut line = Line::restore(dump, self.limits).map_err(|what| bad(&name, what))?;
        if self.lines.contains_key(&line.name) {
            return Err(bad(&name, "two lines of this name"));
        }
        self.totals.replace(&Totals::default(), &line.totals());
        self.background.update(&mut line, self.head.now_ms);
        self.lines.insert(line.name.clone(), line);
        Ok(())
    }
}

impl Line {
    fn restore(dump: LineDump, limits: Limits) -> Result<Self, &'static str> {
        let name = LineName::try_from(dump.name.as_str()).map_err(|_| "not a name")?;
        dump.settings
            .validate()
            .map_err(|_| "settings out of range")?;
        let largest = dump.incarnation.max(dump.version).max(dump.epoch);
        let largest = largest.max(dump.created_at_ms);
        require(largest <= NUMBER_MAX, "a number out of range")?;
        let settled = dump.settings_version <= dump.version;
        require(settled, "settings of a later version")?;
        let lanes_fit = (1..=LANE_TABLE_MAX).contains(&dump.lanes.len());
        require(lanes_fit, "needs 1 to 64 lanes")?;
        let gone_fit = dump.gone.len() <= limits.gone_kept;
        require(gone_fit, "too many gone tokens")?;
        let bucket_fits = match (&dump.bucket, &dump.settings.admission_rate) {
            (Some(bucket), Some(rate)) => bucket.fits(rate),
            (bucket, rate) => bucket.is_none() && rate.is_none(),
        };
        require(bucket_fits, "not a bucket of the rate")?;
        require(dump.forecast.is_sane(), "nothing a line can have measured")?;
        let journal = Journal::restore(limits, dump.journal, dump.settings_changes, dump.version);
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
            order: Vec::new(),
            bucket: dump.bucket,
            keys: BTreeMap::new(),
            moved: BTreeMap::new(),
            gone: GoneRing::new(limits.gone_kept),
            journal: journal.ok_or("not a journal")?,
            gone_counts: dump.gone_counts,
            admitted: 0,
            in_checkout: 0,
            forecast: dump.forecast,
            background: None,
        };
        for (id, lane) in (0..).zip(dump.lanes) {
            line.restore_lane(id, lane)?;
        }
        line.restore_order()?;
        let lanes = line.lanes.len();
        let known = line
            .journal
            .after(0)
            .all(|entry| entry.names_lanes_below(lanes));
        require(known, "a journal of other lanes")?;
        line.restore_moved()?;
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
        let called = dump.called_through < dump.next_token;
        require(called, "called ahead of issue")?;
        lane.called_through = dump.called_through;
        let arrivals = dump.arrivals;
        require(arrivals.is_sane(), "arrivals as no lane has them")?;
        lane.arrivals = dump.arrivals;
        let (mut last, mut last_entered) = (0, 0);
        for live in dump.live {
            let in_order = last < live.token && live.token < dump.next_token;
            require(in_order, "live tokens out of order")?;
            last = live.token;
            // Who was moved may have entered before others of the lane did.
            if live.moved_from.is_empty() {
                let in_order = last_entered < live.entered_version;
                require(in_order, "entered out of order")?;
                last_entered = live.entered_version;
            }
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
            Stage::Waiting { .. } => lane.waiting.push(dump.token, dump.entered),
            Stage::Admitted { .. } => self.admitted += 1,
            Stage::InCheckout { epoch, .. } => {
                require((1..=self.epoch).contains(&epoch), "an epoch never given")?;
                self.in_checkout += 1;
            }
        }
        let entered = (1..=self.version).contains(&dump.entered_version);
        require(entered, "entered at no version of the line")?;
        let key: Option<Arc<[u8]>> = dump.key.map(Into::into);
        if let Some(key) = &key {
            let fits = (1..=KEY_BYTES_MAX).contains(&key.len());
            require(fits, "a key of no or too many bytes")?;
            let known = self.keys.insert(key.clone(), (lane_id, dump.token));
            require(known.is_none(), "two live tokens of one key")?;
        }
        let live = Live {
            key,
            entered: dump.entered,
            entered_version: dump.entered_version,
            stage: dump.stage,
            moved_from: dump.moved_from.into(),
            told: dump.told,
        };
        lane.live.insert(dump.token, live);
        Ok(())
    }

    fn restore_gone(&mut self, dump: GoneDump) -> Result<(), &'static str> {
        let at = self.token_ref(dump.lane, dump.token);
        let found = self.locate(at).map_err(|_| "a gone token never issued")?.1;
        require(matches!(found, Found::Gone(_)), "a token live and gone")?;
        let is_moved = self.moved.contains_key(&(dump.lane, dump.token));
        require(!is_moved, "a token moved and gone")?;
        self.check_moved_to(&dump)?;
        let epoch_given = dump.epoch.is_none_or(|e| (1..=self.epoch).contains(&e));
        require(epoch_given, "an epoch never given")?;
        let gone = Gone {
            reason: dump.reason,
            epoch: dump.epoch,
            released: dump.released,
            moved_to: dump.moved_to,
        };
        let new = self.gone.push(dump.lane, dump.token, gone);
        require(new, "a token gone twice")
    }

    fn check_moved_to(&self, dump: &GoneDump) -> Result<(), &'static str> {
        let moved = dump.reason == Reason::Moved;
        let fits = moved == dump.moved_to.is_some() && !(moved && dump.epoch.is_some());
        require(fits, "a token moved nowhere")?;
        let Some((lane, token)) = dump.moved_to else {
            return Ok(());
        };
        let to = self.locate(self.token_ref(lane, token));
        let gone = to.is_ok_and(|(_, found)| matches!(found, Found::Gone(_)));
        require(
            gone && (lane, token) != (dump.lane, dump.token),
            "a token moved nowhere",
        )
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

    fn restore_moved(&mut self) -> Result<(), &'static str> {
        let mut moved = BTreeMap::new();
        for (lane, token, live) in self.live_from((0, 0)) {
            require(live.moved_from.len() <= MOVES_MAX, "moved too often")?;
            for (old_lane, old) in &live.moved_from {
                let known = self.locate(self.token_ref(*old_lane, *old));
                let gone = known.is_ok_and(|(_, found)| matches!(found, Found::Gone(_)));
                require(gone, "moved from a token that is not gone")?;
                let new = moved.insert((*old_lane, *old), (lane, token)).is_none();
                require(new, "a token moved twice")?;
            }
        }
        self.moved = moved;
        Ok(())
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
