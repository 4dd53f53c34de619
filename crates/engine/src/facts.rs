//! Facts about lines for the node's metrics. The engine reports them, and the node decides what it shows.
//!
//! They are gathered a part at a time: at most [`LINES_AT_ONCE`] lines every [`STEP_US`]. A line takes at most about
//! 0.7 µs (an optimised build, 10,000 lines), so a turn of the loop takes longer by two milliseconds at most. All of
//! 10,000 lines are gathered within a second, and 100,000 within five. Only of the busiest lines of a shard more is asked,
//! such as an ETA. Whether a line is full and what holds it back is asked of each.
//!
//! A shard in which nothing has happened is read again after a while only, for time alone changes little of it: after ten
//! seconds, and the more lines it has the later, up to a minute. Each ten seconds would be a fifth of what three idle nodes
//! take with 100,000 lines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nowserving_line::{Gate, HeldBackBy, LaneName, Line, LineName, Phase};
use nowserving_shard::clock::{ClientReachability, Micros};
use nowserving_shard::leader_state::LeaderState;
use nowserving_shard::tallies::Tally;

use crate::shard::{Shard, Shards};

/// So many lines have metrics of their own: the busiest, of all shards together.
pub const LINES_SHOWN: usize = 50;
/// Lines read in one step.
const LINES_AT_ONCE: usize = 2_048;
/// Time between two steps.
const STEP_US: Micros = 100_000;
/// Time between the beginnings of two rounds, each of which reads all lines.
const ROUND_US: Micros = 1_000_000;

/// Time between two readings of a shard in which nothing has happened: so long for each of its lines …
const UNCHANGED_US_A_LINE: Micros = 10_000;
/// … within these bounds.
const UNCHANGED_US_MIN: Micros = 10_000_000;
const UNCHANGED_US_MAX: Micros = 60_000_000;

/// What is known of the lines of a shard, from its leader.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardFacts {
    /// The leader's.
    pub term: u64,
    /// In the order of their names.
    pub lines: Vec<LineFacts>,
    /// More about the busiest of them: those that come first by [`LineFacts::busier`].
    pub busiest: Vec<LineDetails>,
    pub labels: LineLabels,
    /// Lines that refuse newcomers because they are full.
    pub full: u64,
    /// Lines in which somebody waits, by what keeps the next token from being admitted: [`HeldBackBy::as_str`].
    pub held_back: BTreeMap<&'static str, u64>,
}

/// The labels of a shard's lines. Many lines have the same ones, so each pair of name and value is there once, at a place
/// that lines refer to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineLabels {
    places: BTreeMap<String, BTreeMap<String, usize>>,
    pairs: usize,
    /// The place of a line in [`ShardFacts::lines`], and that of a pair: in the order of the lines.
    of_lines: Vec<(usize, usize)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineFacts {
    pub line: LineName,
    /// Which creation of it: the counts of each begin at 0.
    pub incarnation: u64,
    pub waiting: u64,
    pub admitted: u64,
    pub in_checkout: u64,
    /// In force.
    pub seats: u64,
    /// Seats that are held beyond those.
    pub over_seats: u64,
    /// Since this leader's term began.
    pub tally: Arc<Tally>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineDetails {
    pub line: LineName,
    pub queue_limit: u32,
    /// So many more newcomers of the default lane get a number before one is refused because the line is full: see
    /// [`nowserving_line::LaneUse::room`].
    pub room: Option<u64>,
    /// It refuses newcomers of the default lane with `line_full` now.
    pub is_full: bool,
    /// Of one who enters now; `None` while it is unknown.
    pub newcomer_eta_ms: Option<u64>,
    pub phase: Phase,
    pub held_back_by: HeldBackBy,
    pub gate: Gate,
    /// In the order of the settings.
    pub lanes: Vec<LaneFacts>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneFacts {
    pub lane: LaneName,
    pub waiting: u64,
    pub admitted: u64,
    pub in_checkout: u64,
    /// The lane's own limit, and the room that is left as [`LineDetails::room`] says.
    pub queue_limit: Option<(u32, Option<u64>)>,
    /// Since this leader's term began; `None` if the line has no other lane: then the line's own is the same.
    pub tally: Option<Tally>,
}

/// A part of what a round has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gathered {
    /// `None`: this node does not lead it.
    Shard(u32, Option<ShardFacts>),
    /// The round is over. By peer the log entries that it lacks, in the shard where it lacks most of those that this
    /// node leads.
    PeerLag(BTreeMap<u64, u64>),
}

/// How far the round has come.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    next_step_at: Micros,
    round_began_at: Micros,
    /// The next shard, or the one that is being read.
    shard: u32,
    /// What is read of that one.
    part: Option<ShardFacts>,
    /// When the reading of a shard began, and what its leader had then seen: term and [`LeaderState::changes`].
    read: BTreeMap<u32, (Micros, (u64, u64))>,
}

impl LineFacts {
    /// The order in which lines are shown: more tokens first, then by name.
    #[must_use]
    pub fn busier(&self, other: &Self) -> std::cmp::Ordering {
        let by_tokens = other.tokens().cmp(&self.tokens());
        by_tokens.then_with(|| self.line.cmp(&other.line))
    }

    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.waiting + self.held()
    }

    /// Seats that are held.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.admitted + self.in_checkout
    }

    fn of(line: &Line, leader_state: &LeaderState) -> Self {
        let totals = line.totals();
        LineFacts {
            line: line.name().clone(),
            incarnation: line.incarnation(),
            waiting: totals.waiting,
            admitted: totals.admitted,
            in_checkout: totals.in_checkout,
            seats: line.seats().into(),
            over_seats: line.over_seats(),
            tally: leader_state.tallies.of(line),
        }
    }
}

impl LineDetails {
    fn of(line: &Line, leader_state: &LeaderState, now_ms: u64) -> Self {
        let has_lanes = line.settings().lanes.len() > 1;
        let default_lane = line.newcomers_lane_id(None);
        let default_lane = line
            .lane_uses(now_ms)
            .find(|it| Some(it.id) == default_lane);
        let lanes = line.lane_uses(now_ms).map(|it| LaneFacts {
            lane: it.lane.clone(),
            waiting: it.waiting,
            admitted: it.admitted,
            in_checkout: it.in_checkout,
            queue_limit: it.queue_limit.map(|limit| (limit, it.room)),
            tally: has_lanes.then(|| leader_state.tallies.of_lane(line, it.id)),
        });
        LineDetails {
            line: line.name().clone(),
            queue_limit: line.settings().queue_limit,
            room: default_lane.and_then(|it| it.room),
            is_full: line.is_full(now_ms),
            newcomer_eta_ms: line.newcomer_eta(now_ms).map(|(eta_ms, _)| eta_ms),
            phase: line.phase(),
            held_back_by: line.held_back_by(now_ms),
            gate: line.settings().gate,
            lanes: lanes.collect(),
        }
    }
}

impl LineLabels {
    /// The next line, at this place, has this label.
    pub fn add(&mut self, line: usize, label: &str, value: &str) {
        // Looked up first, as copies cost more.
        if !self.places.contains_key(label) {
            self.places.insert(label.to_owned(), BTreeMap::new());
        }
        let Some(values) = self.places.get_mut(label) else {
            return;
        };
        let place = match values.get(value) {
            Some(place) => *place,
            None => {
                let place = self.pairs;
                values.insert(value.to_owned(), place);
                self.pairs += 1;
                place
            }
        };
        self.of_lines.push((line, place));
    }

    /// The pairs of name and value, in the order of their places.
    #[must_use]
    pub fn pairs(&self) -> Vec<(&str, &str)> {
        let mut pairs = vec![("", ""); self.pairs];
        for (label, values) in &self.places {
            for (value, place) in values {
                pairs[*place] = (label, value);
            }
        }
        pairs
    }

    /// Places of lines with those of their labels, in the order of the lines.
    #[must_use]
    pub fn of_lines(&self) -> &[(usize, usize)] {
        &self.of_lines
    }
}

impl ShardFacts {
    fn add(&mut self, line: &Line, leader_state: &LeaderState, now_ms: u64) {
        let place = self.lines.len();
        for (label, value) in &line.settings().labels {
            self.labels.add(place, label, value);
        }
        self.lines.push(LineFacts::of(line, leader_state));
        self.full += u64::from(line.is_full(now_ms));
        let held_back_by = line.held_back_by(now_ms);
        if held_back_by != HeldBackBy::Nothing {
            *self.held_back.entry(held_back_by.as_str()).or_default() += 1;
        }
    }

    fn finish(&mut self, shard: &Shard, leader_state: &LeaderState, now_ms: u64) {
        let mut busiest: Vec<usize> = (0..self.lines.len()).collect();
        let busier = |a: &usize, b: &usize| self.lines[*a].busier(&self.lines[*b]);
        if busiest.len() > LINES_SHOWN {
            busiest.select_nth_unstable_by(LINES_SHOWN, busier);
            busiest.truncate(LINES_SHOWN);
        }
        busiest.sort_unstable_by(busier);
        // Those of a large shard were read in an earlier step. Counts of lanes must be of the same moment as the line's.
        for place in &busiest {
            let facts = &mut self.lines[*place];
            if let Some(line) = shard.state.lines().get(&facts.line) {
                *facts = LineFacts::of(line, leader_state);
            }
        }
        let lines = busiest.iter().map(|place| &self.lines[*place].line);
        let lines = lines.filter_map(|name| shard.state.lines().get(name));
        let details = lines.map(|line| LineDetails::of(line, leader_state, now_ms));
        self.busiest = details.collect();
    }
}

impl Gathering {
    /// What has been found since the last call. Cheap while no step is due.
    pub fn gather(
        &mut self,
        shards: &Shards,
        reachability: &ClientReachability,
        peers: &BTreeSet<u64>,
        now: Micros,
    ) -> Vec<Gathered> {
        let mut gathered = Vec::new();
        if now < self.next_step_at {
            return gathered;
        }
        self.next_step_at = now + STEP_US;
        if self.shard == 0 && self.part.is_none() {
            self.round_began_at = now;
        }
        let mut room = LINES_AT_ONCE;
        while room > 0 {
            let from = self.shard;
            let Some((id, shard)) = shards.range(from..).next() else {
                gathered.push(Gathered::PeerLag(peer_lag(shards, peers)));
                let round_ends_at = self.round_began_at + ROUND_US;
                self.next_step_at = round_ends_at.max(now + STEP_US);
                (self.shard, self.part) = (0, None);
                break;
            };
            let part = self.part.take();
            let now_ms = shard.service_ms(reachability);
            let (Some(leader_state), Some(now_ms)) = (&shard.leader_state, now_ms) else {
                gathered.push(Gathered::Shard(*id, None));
                self.read.remove(id);
                self.shard = id + 1;
                continue;
            };
            if part.is_none() {
                let seen = (leader_state.term, leader_state.changes());
                let read = self.read.get(id);
                let pause_us = unchanged_us(shard.state.lines().len());
                if read.is_some_and(|(at, then)| now < at + pause_us && *then == seen) {
                    self.shard = id + 1;
                    continue;
                }
                self.read.insert(*id, (now, seen));
            }
            let part = part.filter(|part| part.term == leader_state.term);
            let mut part = part.unwrap_or_else(|| ShardFacts {
                term: leader_state.term,
                lines: Vec::with_capacity(shard.state.lines().len()),
                ..ShardFacts::default()
            });
            let after = part.lines.last().map(|last| last.line.clone());
            let mut lines = shard.state.lines().range_after(after.as_ref());
            for line in lines.by_ref().take(room) {
                part.add(line, leader_state, now_ms);
                room -= 1;
            }
            self.shard = *id;
            match lines.next() {
                Some(_) => self.part = Some(part),
                None => {
                    part.finish(shard, leader_state, now_ms);
                    gathered.push(Gathered::Shard(*id, Some(part)));
                    self.shard = id + 1;
                }
            }
        }
        gathered
    }
}

/// After how long so many lines are read again if nothing has happened.
pub(crate) fn unchanged_us(lines: usize) -> Micros {
    let pause_us = UNCHANGED_US_A_LINE.saturating_mul(lines as Micros);
    pause_us.clamp(UNCHANGED_US_MIN, UNCHANGED_US_MAX)
}

fn peer_lag(shards: &Shards, peers: &BTreeSet<u64>) -> BTreeMap<u64, u64> {
    let mut most = BTreeMap::new();
    for shard in shards.values() {
        // Known to the leader alone.
        for &peer in peers {
            if let Some(progress) = shard.replica.progress_of(peer) {
                let lag: &mut u64 = most.entry(peer).or_default();
                *lag = progress.lag.max(*lag);
            }
        }
    }
    most
}
