//! Facts about lines for the node's metrics. The engine reports them, and the node decides what it shows.
//!
//! They are gathered a part at a time: at most [`LINES_AT_ONCE`] lines every [`STEP_US`]. A line takes about 0.7 µs (an
//! optimised build, 10,000 lines), so a turn of the loop takes longer by two milliseconds at most. All of 10,000 lines are gathered
//! within a second, and 100,000 within five. Only of the busiest lines of a shard more is asked, such as an ETA.

use std::collections::BTreeMap;

use nowserving_line::{
    Gate, HeldBackBy, LaneName, Line, LineName, OFF_BY_PERCENT, Phase, Reason, RefusedCode,
};
use nowserving_shard::clock::Micros;
use nowserving_shard::leader_state::LeaderState;
use nowserving_shard::waits::WaitCounts;

use crate::engine::Engine;
use crate::shard::Shard;

/// So many lines have metrics of their own: the busiest, of all shards together.
pub const LINES_SHOWN: usize = 50;
/// Lines read in one step.
const LINES_AT_ONCE: usize = 2_048;
/// Time between two steps.
const STEP_US: Micros = 100_000;
/// Time between the beginnings of two rounds, each of which reads all lines.
const ROUND_US: Micros = 1_000_000;

/// What is known of the lines of a shard, from its leader.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardFacts {
    /// The leader's.
    pub term: u64,
    /// In the order of their names.
    pub lines: Vec<LineFacts>,
    /// More about the busiest of them: those that come first by [`LineFacts::busier`].
    pub busiest: Vec<LineDetails>,
    /// By name and value of the label.
    pub labels: BTreeMap<String, BTreeMap<String, LabelFacts>>,
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
    pub counts: LineCounts,
}

/// What only grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// Numbers issued to newcomers.
    pub entered: u64,
    /// By [`Reason::code`].
    pub gone: [u64; Reason::ALL.len()],
    /// In the order of [`RefusedCode::ALL`]; also those that the leader has not written down yet.
    pub refused: [u64; RefusedCode::ALL.len()],
    /// While the gate was `shadow`: tokens admitted, of these those that would have waited, of these those that would have
    /// been refused. Begins at 0 when the gate is set to that.
    pub shadow: [u64; 3],
    /// Entrants who were given an ETA and have been admitted since.
    pub judged: u64,
    /// Those of them who waited no longer than `eta_p90_ms`.
    pub covered: u64,
    /// Those judged, by how far their ETA was off: at most as [`OFF_BY_PERCENT`] says, or by more.
    pub off_by: [u64; OFF_BY_PERCENT.len() + 1],
    /// Since this leader's term began.
    pub waits: WaitCounts,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineDetails {
    pub line: LineName,
    pub queue_limit: u32,
    /// Of one who enters now; `None` while it is unknown.
    pub newcomer_eta_ms: Option<u64>,
    pub phase: Phase,
    pub held_back_by: HeldBackBy,
    pub gate: Gate,
    /// Waiting tokens, in the order of the settings.
    pub lanes: Vec<(LaneName, u64)>,
}

/// Sums over the lines with one value of a label.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LabelFacts {
    pub lines: u64,
    pub waiting: u64,
    pub seats: u64,
    pub seats_held: u64,
    pub over_seats: u64,
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
        let counts = line.counts();
        let forecasts = line.forecast_record();
        let shadow = line.shadow();
        let refused = counts.refused.plus(&leader_state.refusals.unwritten(line));
        LineFacts {
            line: line.name().clone(),
            incarnation: line.incarnation(),
            waiting: counts.waiting,
            admitted: counts.admitted,
            in_checkout: counts.in_checkout,
            seats: line.seats().into(),
            over_seats: line.over_seats(),
            counts: LineCounts {
                // A moved token is gone, and was issued another number.
                entered: counts.issued.saturating_sub(counts.gone_for(Reason::Moved)),
                gone: counts.gone,
                refused: RefusedCode::ALL.map(|code| refused.get(code)),
                shadow: [shadow.admitted, shadow.held_back, shadow.refused],
                judged: forecasts.judged,
                covered: forecasts.covered,
                off_by: forecasts.off_by,
                waits: leader_state.waits.of(line),
            },
        }
    }
}

impl LineCounts {
    /// What has been added since.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        self.with(before, u64::saturating_sub)
    }

    #[must_use]
    pub fn plus(&self, more: &Self) -> Self {
        self.with(more, u64::saturating_add)
    }

    fn with(&self, other: &Self, both: impl Fn(u64, u64) -> u64 + Copy) -> Self {
        Self {
            entered: both(self.entered, other.entered),
            gone: each(&self.gone, &other.gone, both),
            refused: each(&self.refused, &other.refused, both),
            shadow: each(&self.shadow, &other.shadow, both),
            judged: both(self.judged, other.judged),
            covered: both(self.covered, other.covered),
            off_by: each(&self.off_by, &other.off_by, both),
            waits: WaitCounts {
                classes: each(&self.waits.classes, &other.waits.classes, both),
                sum_ms: both(self.waits.sum_ms, other.waits.sum_ms),
            },
        }
    }
}

fn each<const N: usize>(
    ours: &[u64; N],
    theirs: &[u64; N],
    both: impl Fn(u64, u64) -> u64,
) -> [u64; N] {
    std::array::from_fn(|nth| both(ours[nth], theirs[nth]))
}

impl LineDetails {
    fn of(line: &Line, now_ms: u64) -> Self {
        let lanes = line.board(now_ms).lanes.into_iter();
        LineDetails {
            line: line.name().clone(),
            queue_limit: line.settings().queue_limit,
            newcomer_eta_ms: line.newcomer_eta_ms(now_ms),
            phase: line.phase(),
            held_back_by: line.held_back_by(now_ms),
            gate: line.settings().gate,
            lanes: lanes.map(|lane| (lane.lane, lane.waiting)).collect(),
        }
    }
}

impl LabelFacts {
    pub fn add(&mut self, other: &Self) {
        self.lines += other.lines;
        self.waiting += other.waiting;
        self.seats += other.seats;
        self.seats_held += other.seats_held;
        self.over_seats += other.over_seats;
    }
}

impl ShardFacts {
    fn add(&mut self, line: &Line, leader_state: &LeaderState) {
        let facts = LineFacts::of(line, leader_state);
        let sums = LabelFacts {
            lines: 1,
            waiting: facts.waiting,
            seats: facts.seats,
            seats_held: facts.held(),
            over_seats: facts.over_seats,
        };
        for (label, value) in &line.settings().labels {
            // Looked up first, as copies cost more.
            let values = match self.labels.get_mut(label) {
                Some(values) => values,
                None => self.labels.entry(label.clone()).or_default(),
            };
            if let Some(those) = values.get_mut(value) {
                those.add(&sums);
            } else {
                values.insert(value.clone(), sums);
            }
        }
        self.lines.push(facts);
    }

    fn finish(&mut self, shard: &Shard, now_ms: u64) {
        let mut busiest: Vec<&LineFacts> = self.lines.iter().collect();
        if busiest.len() > LINES_SHOWN {
            busiest.select_nth_unstable_by(LINES_SHOWN, |a, b| a.busier(b));
            busiest.truncate(LINES_SHOWN);
        }
        busiest.sort_unstable_by(|a, b| a.busier(b));
        let lines = busiest.into_iter();
        let lines = lines.filter_map(|it| shard.state.lines().get(&it.line));
        self.busiest = lines.map(|line| LineDetails::of(line, now_ms)).collect();
    }
}

impl Engine {
    /// What has been found since the last call, for a node that shows metrics. Cheap while no step is due.
    pub fn gather(&mut self, now: Micros) -> Vec<Gathered> {
        let mut gathered = Vec::new();
        if now < self.gathering.next_step_at {
            return gathered;
        }
        self.gathering.next_step_at = now + STEP_US;
        if self.gathering.shard == 0 && self.gathering.part.is_none() {
            self.gathering.round_began_at = now;
        }
        let mut room = LINES_AT_ONCE;
        while room > 0 {
            let from = self.gathering.shard;
            let Some((id, shard)) = self.shards.range(from..).next() else {
                gathered.push(Gathered::PeerLag(self.peer_lag()));
                let round_ends_at = self.gathering.round_began_at + ROUND_US;
                self.gathering = Gathering {
                    next_step_at: round_ends_at.max(now + STEP_US),
                    ..Gathering::default()
                };
                break;
            };
            let part = self.gathering.part.take();
            let now_ms = shard.service_ms(&self.ctx.reachability);
            let (Some(leader_state), Some(now_ms)) = (&shard.leader_state, now_ms) else {
                gathered.push(Gathered::Shard(*id, None));
                self.gathering.shard = id + 1;
                continue;
            };
            let part = part.filter(|part| part.term == leader_state.term);
            let mut part = part.unwrap_or_else(|| ShardFacts {
                term: leader_state.term,
                ..ShardFacts::default()
            });
            let after = part.lines.last().map(|last| last.line.clone());
            let mut lines = shard.state.lines().range_after(after.as_ref());
            for line in lines.by_ref().take(room) {
                part.add(line, leader_state);
                room -= 1;
            }
            self.gathering.shard = *id;
            match lines.next() {
                Some(_) => self.gathering.part = Some(part),
                None => {
                    part.finish(shard, now_ms);
                    gathered.push(Gathered::Shard(*id, Some(part)));
                    self.gathering.shard = id + 1;
                }
            }
        }
        gathered
    }

    fn peer_lag(&self) -> BTreeMap<u64, u64> {
        let mut most = BTreeMap::new();
        for shard in self.shards.values() {
            // Known to the leader alone.
            for peer in self.others() {
                if let Some(progress) = shard.replica.progress_of(peer) {
                    let lag: &mut u64 = most.entry(peer).or_default();
                    *lag = progress.lag.max(*lag);
                }
            }
        }
        most
    }
}
