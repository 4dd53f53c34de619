//! A shard that stamps its operations itself.
// Each test binary uses another part of this.
#![allow(dead_code, clippy::unwrap_used)]

use nowserving_line::{
    BadDump, Board, Event, Head, LaneBoard, Limits, Line, LineDump, LineName, Lines, Op,
    RecycleItem, Refused, Reply, Settings, SettingsPatch, Stamp, Status, TokenRef,
};
use proptest::prelude::ProptestConfig;
use proptest::test_runner::FileFailurePersistence;

/// A failing case is kept beside the source, in `tests/*.proptest-regressions`, and run first from then on.
pub fn cases(count: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource(
            "proptest-regressions",
        ))),
        ..ProptestConfig::with_cases(count)
    }
}

pub struct Shard {
    pub lines: Lines,
    pub index: u64,
    pub now_ms: u64,
    pub events: Vec<Event>,
}

pub fn name(text: &str) -> LineName {
    LineName::try_from(text).unwrap()
}

/// The one line of most tests.
pub fn shop() -> LineName {
    name("shop")
}

/// All lines of a shard as plain data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump {
    pub head: Head,
    /// In order of name.
    pub lines: Vec<LineDump>,
}

/// Lines to a [`Dump`] and back, as a restart takes them.
pub trait Restart: Sized {
    fn dump(&self) -> Dump;
    fn restore(dump: Dump) -> Result<Self, BadDump>;
    fn restore_with(limits: Limits, dump: Dump) -> Result<Self, BadDump>;
}

impl Restart for Lines {
    fn dump(&self) -> Dump {
        Dump {
            head: self.head(),
            lines: self.iter().map(Line::dump).collect(),
        }
    }

    fn restore(dump: Dump) -> Result<Self, BadDump> {
        Self::restore_with(Limits::default(), dump)
    }

    fn restore_with(limits: Limits, dump: Dump) -> Result<Self, BadDump> {
        let mut lines = Self::from_head(limits, dump.head)?;
        for line in dump.lines {
            lines.add(line)?;
        }
        Ok(lines)
    }
}

impl Shard {
    pub fn new(limits: Limits) -> Self {
        Self {
            lines: Lines::with_limits(limits),
            index: 0,
            now_ms: 1_000,
            events: Vec::new(),
        }
    }

    /// A shard with the line `shop`.
    pub fn with_shop(limits: Limits, settings: Settings) -> Self {
        let mut shard = Self::new(limits);
        let line = shop();
        shard.apply(&Op::Create { line, settings }).unwrap();
        shard
    }

    /// Each operation in an entry of its own; `events` are those of the last one.
    pub fn apply(&mut self, op: &Op) -> Result<Reply, Refused> {
        self.index += 1;
        self.events.clear();
        let stamp = Stamp {
            index: self.index,
            op_no: 0,
            now_ms: self.now_ms,
            wall_ms: self.wall_ms(),
        };
        self.lines.apply(stamp, op, Some(&mut self.events))
    }

    /// Far from the service clock, so that it shows if one is taken for the other.
    pub fn wall_ms(&self) -> u64 {
        self.now_ms.saturating_add(1_000_000_000)
    }

    pub fn line(&self) -> &Line {
        self.lines.get(&shop()).unwrap()
    }

    pub fn board(&self) -> Board {
        self.line().board(self.now_ms)
    }

    pub fn lane(&self) -> LaneBoard {
        self.board().lanes[0].clone()
    }

    pub fn at(&self, token: u64) -> TokenRef {
        TokenRef {
            incarnation: self.line().incarnation(),
            lane: 0,
            token,
        }
    }

    pub fn status(&self, token: u64) -> Status {
        self.line().status(self.at(token), self.now_ms).unwrap()
    }

    /// Nothing is done but that the clock moves: no line has this incarnation.
    pub fn move_clock(&mut self) {
        let op = Op::RunBackground {
            line: shop(),
            incarnation: 0,
        };
        self.apply(&op).unwrap();
    }

    /// Changes settings that can be changed.
    pub fn set(&mut self, patch: SettingsPatch) {
        self.try_set(patch).unwrap();
    }

    pub fn try_set(&mut self, patch: SettingsPatch) -> Result<Reply, Refused> {
        self.apply(&Op::Configure {
            line: shop(),
            patch: patch.into(),
            if_version: None,
            incarnation: None,
        })
    }

    pub fn enter_in(&mut self, lane: &str) -> Result<Status, Refused> {
        self.status_of(&Op::Enter {
            line: shop(),
            key: None,
            lane: Some(lane.try_into().unwrap()),
        })
    }

    pub fn move_to(&mut self, lane: &str, token: u64, to: &str) -> Result<Status, Refused> {
        self.status_of(&Op::Move {
            line: shop(),
            lane: lane.try_into().unwrap(),
            token,
            to: to.try_into().unwrap(),
        })
    }

    pub fn status_of(&mut self, op: &Op) -> Result<Status, Refused> {
        match self.apply(op)? {
            Reply::Token(at) => self.line().status(at, self.lines.now_ms()),
            other => panic!("{other:?} to {op:?}"),
        }
    }

    pub fn enter(&mut self) -> Result<Status, Refused> {
        self.enter_as(None)
    }

    pub fn enter_as(&mut self, key: Option<&str>) -> Result<Status, Refused> {
        self.status_of(&Op::Enter {
            line: shop(),
            key: key.map(|key| key.as_bytes().into()),
            lane: None,
        })
    }

    /// The place on the list of those that are told of room; none if there is room.
    pub fn call_back(&mut self, key: &str, lane: Option<&str>) -> Result<Option<u64>, Refused> {
        let reply = self.apply(&Op::Callback {
            line: shop(),
            key: key.as_bytes().into(),
            lane: lane.map(|lane| lane.try_into().unwrap()),
        })?;
        match reply {
            Reply::Callback { position } => Ok(position),
            other => panic!("{other:?}"),
        }
    }

    pub fn claim(&mut self, token: u64) -> Result<Status, Refused> {
        let at = self.at(token);
        self.status_of(&Op::Claim { line: shop(), at })
    }

    pub fn renew(&mut self, token: u64, epoch: u64) -> Result<Status, Refused> {
        let (line, at) = (shop(), self.at(token));
        self.status_of(&Op::Renew { line, at, epoch })
    }

    pub fn complete(&mut self, token: u64, epoch: Option<u64>) -> Result<Status, Refused> {
        let (line, at) = (shop(), self.at(token));
        self.status_of(&Op::Complete {
            line,
            at,
            epoch,
            units: None,
        })
    }

    /// Completes with so many units of the quota.
    pub fn complete_units(&mut self, token: u64, units: u32) -> Result<Status, Refused> {
        let (line, at) = (shop(), self.at(token));
        self.status_of(&Op::Complete {
            line,
            at,
            epoch: None,
            units: Some(units),
        })
    }

    pub fn leave(&mut self, token: u64) -> Result<Status, Refused> {
        let at = self.at(token);
        self.status_of(&Op::Leave { line: shop(), at })
    }

    /// Claims if need be, and completes.
    pub fn serve(&mut self, token: u64) {
        self.claim(token).unwrap();
        self.complete(token, None).unwrap();
    }

    /// The item that a leader would propose about this token now.
    pub fn item(&self, token: u64) -> RecycleItem {
        let live = self.line().live(0, token).unwrap();
        RecycleItem {
            lane: 0,
            token,
            state: live.state(),
            clock_ms: live.clock_ms(),
        }
    }

    pub fn recycle(&mut self, tokens: Vec<RecycleItem>) -> u64 {
        let incarnation = self.line().incarnation();
        let line = shop();
        let op = Op::Recycle {
            line,
            incarnation,
            tokens,
        };
        match self.apply(&op) {
            Ok(Reply::Recycled { count }) => count,
            other => panic!("{other:?}"),
        }
    }

    /// Proposes steps until no job is left; returns how many it took.
    pub fn finish_jobs(&mut self) -> u64 {
        let mut steps = 0;
        while let Some(op) = self.next_step() {
            self.apply(&op).unwrap();
            steps += 1;
        }
        steps
    }

    /// One step of a job; false if there is none.
    pub fn finish_job(&mut self) -> bool {
        let step = self.next_step();
        let op = step.as_ref();
        op.is_some_and(|op| self.apply(op).is_ok())
    }

    fn next_step(&self) -> Option<Op> {
        let (line, incarnation) = self.lines.background_work(self.now_ms).next()?;
        let line = line.clone();
        Some(Op::RunBackground { line, incarnation })
    }
}
