//! For tests: one shard's lines under a leader, without a log. Operations are applied as soon as
//! they are proposed, and the service clock moves only when a test moves it.
#![allow(clippy::unwrap_used)]

use nowserving_line::{
    LaneName, LaneSettings, Limits, Line, LineName, Op, Refused, Reply, Settings, SettingsPatch,
    TokenRef,
};

use crate::clock::{ClientReachability, Micros};
use crate::command::{Command, Entry};
use crate::leader_state::LeaderState;
use crate::published::OutEvent;
use crate::state::{AppliedToLine, Observer, State};

pub struct World {
    pub state: State,
    pub leader_state: LeaderState,
    pub events: Vec<OutEvent>,
    pub now: Micros,
    pub reachability: ClientReachability,
    index: u64,
}

struct Watch<'a> {
    leader_state: &'a mut LeaderState,
    out: &'a mut Vec<OutEvent>,
    results: Vec<Result<Reply, Refused>>,
}

impl Observer for Watch<'_> {
    fn before(&mut self, state: &State, command: &Command) {
        self.leader_state.before(state, command);
    }

    fn line(&mut self, state: &State, applied: AppliedToLine<'_>) {
        self.leader_state.after(state, &applied, self.out);
        self.results.push(applied.result);
    }
}

pub fn name(text: &str) -> LineName {
    LineName::try_from(text).unwrap()
}

pub fn lane(text: &str) -> LaneName {
    LaneName::try_from(text).unwrap()
}

/// Lanes without any privilege.
pub fn lanes(names: &[&str]) -> Vec<LaneSettings> {
    let names = names.iter();
    names.map(|name| LaneSettings::new(lane(name))).collect()
}

impl World {
    /// Begins at a clock of 1,000,000 ms with one line, `shop`.
    pub fn new(settings: Settings) -> Self {
        Self::with_limits(Limits::default(), settings)
    }

    /// The same, with other bounds.
    pub fn with_limits(limits: Limits, settings: Settings) -> Self {
        let (state, reachability) = (State::with_limits(limits), ClientReachability::new(0));
        let mut world = World {
            leader_state: LeaderState::begin(1, &state, &reachability, 0, 1_000_000),
            state,
            events: Vec::new(),
            now: 0,
            reachability,
            index: 0,
        };
        world.create("shop", settings);
        world
    }

    pub fn create(&mut self, line: &str, settings: Settings) {
        let line = name(line);
        self.apply(&Op::Create { line, settings }).unwrap();
    }

    pub fn apply(&mut self, op: &Op) -> Result<Reply, Refused> {
        let mut results = self.propose(vec![Command::Line(op.clone())]);
        results.pop().unwrap()
    }

    /// The leader's reading of the service clock.
    pub fn now_ms(&self) -> u64 {
        self.leader_state.now_ms(&self.state, &self.reachability)
    }

    /// Time passes in which every request reaches the leader.
    pub fn wait(&mut self, ms: u64) {
        let until = self.now + ms * 1_000;
        while self.now < until {
            self.now = until.min(self.now + 250_000);
            self.reachability.echo(self.now);
            self.reachability.advance(self.now);
        }
    }

    /// One entry; gives the answers of the operations on lines.
    fn propose(&mut self, commands: Vec<Command>) -> Vec<Result<Reply, Refused>> {
        self.index += 1;
        let now_ms = self.now_ms();
        let entry = Entry {
            format: crate::command::FORMAT,
            now_ms,
            wall_ms: now_ms,
            compact_floor: 0,
            commands,
        };
        let mut watch = Watch {
            leader_state: &mut self.leader_state,
            out: &mut self.events,
            results: Vec::new(),
        };
        self.state.apply_entry(self.index, &entry, &mut watch);
        let results = watch.results;
        self.leader_state.stamped(now_ms);
        results
    }

    pub fn configure(&mut self, patch: SettingsPatch) -> Result<Reply, Refused> {
        self.apply(&Op::Configure {
            line: name("shop"),
            patch: patch.into(),
            if_version: None,
            incarnation: None,
        })
    }

    /// Moves a token into another lane; returns its new place.
    pub fn move_to(&mut self, at: TokenRef, to: &str) -> Option<TokenRef> {
        let at = self.line().resolve(at);
        let from = self.line().lane_names().nth(usize::from(at.lane)).cloned();
        let op = Op::Move {
            line: name("shop"),
            lane: from.unwrap(),
            token: at.token,
            to: lane(to),
        };
        match self.apply(&op) {
            Ok(Reply::Token(at)) => Some(at),
            _ => None,
        }
    }

    pub fn enter(&mut self) -> Option<TokenRef> {
        self.enter_lane(None)
    }

    pub fn enter_lane(&mut self, lane: Option<LaneName>) -> Option<TokenRef> {
        let op = Op::Enter {
            line: name("shop"),
            key: None,
            lane,
        };
        match self.apply(&op) {
            Ok(Reply::Token(at)) => Some(at),
            _ => None,
        }
    }

    pub fn leave(&mut self, at: TokenRef) {
        self.try_leave(at).unwrap();
    }

    pub fn try_leave(&mut self, at: TokenRef) -> Result<Reply, Refused> {
        let line = name("shop");
        self.apply(&Op::Leave { line, at })
    }

    pub fn claim(&mut self, at: TokenRef) -> Result<Reply, Refused> {
        let line = name("shop");
        self.apply(&Op::Claim { line, at })
    }

    /// A `status` request. Tells whether it cost a log entry.
    pub fn poll(&mut self, at: TokenRef) -> bool {
        self.seen(&[at]) > 0
    }

    /// A `seen` request. Tells how many tokens its log entry has.
    pub fn seen(&mut self, tokens: &[TokenRef]) -> usize {
        let now_ms = self.now_ms();
        let line = self.state.lines().get(&name("shop")).unwrap();
        let touch = self
            .leader_state
            .touch(line, tokens.iter().copied(), now_ms);
        let recorded = match &touch {
            Some(Command::Line(Op::Touch { tokens, .. })) => tokens.len(),
            _ => 0,
        };
        self.apply_all(touch.into_iter().collect());
        recorded
    }

    /// The clocks as the leader reads them.
    pub fn wall(&self) -> (Micros, u64) {
        (self.now, self.now / 1_000)
    }

    pub fn line(&self) -> &Line {
        self.state.lines().get(&name("shop")).unwrap()
    }

    pub fn lives(&self, at: TokenRef) -> bool {
        self.line().live(at.lane, at.token).is_some()
    }

    /// Applies each command that the leader proposes now as an entry of its own, and returns them.
    pub fn pass(&mut self) -> Vec<Command> {
        let commands = self.proposed();
        self.apply_all(commands.clone());
        commands
    }

    /// What the leader proposes now.
    pub fn proposed(&mut self) -> Vec<Command> {
        self.leader_state.forget_pauses();
        self.leader_state
            .propose(&self.state, self.wall(), &self.reachability, true)
    }

    /// Each command is an entry of its own.
    pub fn apply_all(&mut self, commands: Vec<Command>) {
        for command in commands {
            for result in self.propose(vec![command]) {
                result.unwrap();
            }
        }
    }

    /// The clock moves and a pass follows.
    pub fn step(&mut self, ms: u64) -> Vec<Command> {
        self.wait(ms);
        self.pass()
    }

    /// The leader is lost and another takes over from the log.
    pub fn change_leader(&mut self) {
        let term = self.leader_state.term + 1;
        self.leader_state = LeaderState::begin(term, &self.state, &self.reachability, self.now, 0);
    }
}
