//! The real line under a real leader, without a log: proposals are applied at once.

use nowserving_line::{
    Admission, Change, Event, Line, LineChange, LineName, MovedBy, Op, Phase, Refused, Reply,
    Secret, Settings, SettingsPatch, Status, TokenChange, TokenRef,
};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::time;
use nowserving_shard::clock::ClientReachability;
use nowserving_shard::command::{Command, Entry};
use nowserving_shard::leader_state::LeaderState;
use nowserving_shard::published::OutEvent;
use nowserving_shard::state::{AppliedToLine, Observer, State};

use crate::config::{BadConfig, DURATION_MS_MAX};
use crate::queue::{Answer, Ask, Happened, Place, Pointers, Queue};
use crate::report::FailedChange;

/// Everybody reaches this leader all the time: an echo proves it this often. Further ahead than that
/// the leader does not know its own clock.
const ECHO_EVERY_MS: u64 = 200;

/// One line of its own, and its leader.
#[derive(Debug)]
pub(crate) struct Real {
    state: State,
    leader_state: LeaderState,
    reachability: ClientReachability,
    /// The wall clock at the virtual time 0.
    starts_at_ms: u64,
    /// The time of the newest echo.
    echo_ms: u64,
    name: LineName,
    incarnation: u64,
    /// Of the newest log entry.
    index: u64,
    /// How many calls there were: each has an id of its own.
    calls: u64,
    happened: Vec<Happened>,
}

/// Watches one entry for the leader and for the crowd.
struct Watch<'a> {
    leader_state: &'a mut LeaderState,
    happened: &'a mut Vec<Happened>,
    /// The answer to the last command: about its token, or a refusal.
    answer: Option<Result<Answer, Code>>,
    /// Events for subscribers. Watching shoppers get `happened` instead.
    published: Vec<OutEvent>,
}

impl Observer for Watch<'_> {
    fn before(&mut self, state: &State, command: &Command) {
        self.leader_state.before(state, command);
    }

    fn line(&mut self, state: &State, applied: AppliedToLine<'_>) {
        self.leader_state
            .after(state, &applied, &mut self.published);
        let line = state.lines().get(applied.op.line());
        self.happened.extend(
            applied
                .events
                .iter()
                .filter_map(|event| happened(event, line)),
        );
        self.answer = match (applied.result, line) {
            (Ok(Reply::Token(at)), Some(line)) => {
                let status = line.status(at, state.now_ms());
                Some(status.map(|status| answer(&status)).map_err(code))
            }
            (Err(refused), _) => Some(Err(code(refused))),
            _ => None,
        };
    }
}

fn happened(event: &Event, line: Option<&Line>) -> Option<Happened> {
    if let Event::Line {
        version,
        what: LineChange::Configured | LineChange::Phase { .. },
        ..
    } = event
    {
        return line.map(|line| configured(line, *version));
    }
    if let Event::Line {
        what: LineChange::ScheduleFailed {
            scheduled_at_ms,
            wrong,
        },
        ..
    } = event
    {
        return Some(Happened::ScheduleFailed(FailedChange {
            at: time::text(*scheduled_at_ms),
            error: wrong.to_string(),
        }));
    }
    if let Event::Line {
        what: LineChange::Seats { seats, .. },
        ..
    } = event
    {
        return Some(Happened::Seats(u64::from(*seats)));
    }
    if let Event::Line {
        what: LineChange::DrawBegun { .. },
        ..
    } = event
    {
        return Some(Happened::DrawBegun);
    }
    let Event::Token {
        lane_id,
        token,
        what,
        ..
    } = event
    else {
        return None;
    };
    let place = (*lane_id, *token);
    match *what {
        TokenChange::Admitted { .. } => Some(Happened::Admitted(place)),
        TokenChange::Gone { reason, units, .. } => Some(Happened::Gone {
            place,
            reason,
            units: units.unwrap_or(0),
        }),
        TokenChange::Moved {
            to: TokenRef { lane, token, .. },
            by: MovedBy::Draw,
            ..
        } => Some(Happened::Drawn {
            from: place,
            to: (lane, token),
        }),
        TokenChange::Entered { .. }
        | TokenChange::Claimed { .. }
        | TokenChange::CallAhead
        | TokenChange::Position { .. }
        | TokenChange::Moved { .. } => None,
    }
}

fn draw_secret(seed: u64) -> Secret {
    let bytes = seed.to_le_bytes();
    Secret(std::array::from_fn(|i| bytes[i % bytes.len()]))
}

/// The settings at that version. Several scheduled changes can be due in one entry, with admissions between them: the
/// settings after the entry are not those of each event in it.
fn configured(line: &Line, version: u64) -> Happened {
    let later = line.journal_after(version);
    let later = later.filter_map(|entry| line.settings_change(entry.version));
    let later: Vec<&SettingsPatch> = later.map(|change| &change.from).collect();
    let settings = line.settings();
    let phase = before(&later, |from| from.phase.as_ref(), settings.phase);
    let admission = before(&later, |from| from.admission.as_ref(), settings.admission);
    let seats = match line.told() {
        // In force instead of the setting.
        Some(_) => line.seats(),
        None => before(&later, |from| from.seats.as_ref(), settings.seats),
    };
    Happened::Configured {
        seats: seats.into(),
        admits: phase.admits(),
        called: admission == Admission::Called,
    }
}

/// The value of a setting before these changes, oldest first. `now`: after them.
fn before<T: Copy>(
    later: &[&SettingsPatch],
    of: impl Fn(&SettingsPatch) -> Option<&Change<T>>,
    now: T,
) -> T {
    let from = later.iter().find_map(|from| match of(from) {
        Some(Change::Set(value)) => Some(*value),
        _ => None,
    });
    from.unwrap_or(now)
}

impl Real {
    /// `seed`: that of the run, from which the draw at the opening follows.
    pub(crate) fn new(
        settings: &Settings,
        starts_at_ms: u64,
        seed: u64,
    ) -> Result<Self, BadConfig> {
        let name = LineName::try_from("rehearsal");
        let name = name.map_err(|bad| BadConfig::Line(bad.to_string()))?;
        let (state, reachability) = (State::default(), ClientReachability::new(0));
        let mut real = Self {
            leader_state: LeaderState::begin(1, &state, &reachability, 0, 0)
                .with_secrets([0; 2], draw_secret(seed)),
            state,
            reachability,
            starts_at_ms,
            echo_ms: 0,
            name: name.clone(),
            incarnation: 0,
            index: 0,
            calls: 0,
            happened: Vec::new(),
        };
        let create = Op::Create {
            line: name,
            settings: settings.clone(),
        };
        real.apply(0, vec![create.into()]);
        let line = real.line();
        let line = line.ok_or_else(|| BadConfig::Line("refused".to_owned()))?;
        real.incarnation = line.incarnation();
        Ok(real)
    }

    fn line(&self) -> Option<&Line> {
        self.state.lines().get(&self.name)
    }

    /// Time goes on to `now_ms`.
    fn advance(&mut self, now_ms: u64) {
        while self.echo_ms < now_ms {
            self.echo_ms = now_ms.min(self.echo_ms + ECHO_EVERY_MS);
            self.reachability.echo(self.echo_ms * 1_000);
            self.reachability.advance(self.echo_ms * 1_000);
        }
    }

    /// One log entry. Gives the answer to its last command, if that is about a token or refused.
    fn apply(&mut self, now_ms: u64, commands: Vec<Command>) -> Option<Result<Answer, Code>> {
        self.index += 1;
        let entry = Entry {
            format: nowserving_shard::command::FORMAT,
            now_ms: self.leader_state.now_ms(&self.state, &self.reachability),
            wall_ms: self.starts_at_ms + now_ms,
            compact_floor: 0,
            commands,
        };
        let mut watch = Watch {
            leader_state: &mut self.leader_state,
            happened: &mut self.happened,
            answer: None,
            published: Vec::new(),
        };
        self.state.apply_entry(self.index, &entry, &mut watch);
        let answer = watch.answer;
        self.leader_state.stamped(entry.now_ms);
        answer
    }

    /// Applies the commands that the leader proposes without a request.
    fn lead(&mut self, now_ms: u64) {
        let (now, reachability) = (
            (now_ms * 1_000, self.starts_at_ms + now_ms),
            &self.reachability,
        );
        let commands = self
            .leader_state
            .propose(&self.state, now, reachability, true);
        if !commands.is_empty() {
            self.apply(now_ms, commands);
        }
    }

    fn change(&mut self, now_ms: u64, op: Op) -> Option<Result<Answer, Code>> {
        let answer = self.apply(now_ms, vec![op.into()]);
        self.lead(now_ms);
        answer
    }

    fn at(&self, place: Place) -> TokenRef {
        TokenRef {
            incarnation: self.incarnation,
            lane: place.0,
            token: place.1,
        }
    }

    fn poll(&mut self, now_ms: u64, place: Place) -> Result<Answer, Code> {
        let at = self.at(place);
        let line = self.state.lines().get(&self.name);
        let line = line.ok_or(Code::LineNotFound)?;
        let status = line.status(at, now_ms).map_err(code)?;
        if let Some(touch) = self.leader_state.touch(line, [at], now_ms) {
            self.apply(now_ms, vec![touch]);
        }
        Ok(answer(&status))
    }

    fn ask_of(
        &mut self,
        now_ms: u64,
        place: Place,
        op: impl FnOnce(TokenRef) -> Op,
    ) -> Result<Answer, Code> {
        match self.change(now_ms, op(self.at(place))) {
            Some(Ok(answer)) => Ok(answer),
            // The token is in another state than its holder thought. A backend polls then.
            _ => self.poll(now_ms, place),
        }
    }
}

fn code(refused: Refused) -> Code {
    ApiError::from(refused).code
}

fn answer(status: &Status) -> Answer {
    Answer {
        place: (status.at.lane, status.at.token),
        state: status.state,
        eta_ms: status.eta_ms,
        eta_p90_ms: status.eta_p90_ms,
        poll_after_ms: Some(status.poll_after_ms),
        epoch: status.epoch,
        units: status.units,
    }
}

impl Queue for Real {
    fn ask(&mut self, now_ms: u64, shopper: u32, ask: Ask) -> Result<Answer, Code> {
        self.advance(now_ms);
        let line = self.name.clone();
        match ask {
            Ask::Enter { lane } => {
                let key = Some(shopper.to_le_bytes().into());
                let lanes = self.line().map(|line| line.settings().lanes.as_slice());
                let lane = lanes.and_then(|lanes| lanes.get(usize::from(lane)));
                let lane = lane.map(|lane| lane.name.clone());
                let entered = self.change(now_ms, Op::Enter { line, key, lane });
                entered.unwrap_or(Err(Code::Unavailable))
            }
            Ask::Poll(place) => self.poll(now_ms, place),
            Ask::Claim(place) => self.ask_of(now_ms, place, |at| Op::Claim { line, at }),
            Ask::Renew(place, epoch) => {
                let epoch = epoch.ok_or(Code::EpochStale)?;
                self.ask_of(now_ms, place, |at| Op::Renew { line, at, epoch })
            }
            Ask::Complete(place, epoch, units) => {
                let units = Some(units);
                self.ask_of(now_ms, place, |at| Op::Complete {
                    line,
                    at,
                    epoch,
                    units,
                })
            }
            Ask::Leave(place) => self.ask_of(now_ms, place, |at| Op::Leave { line, at }),
        }
    }

    fn upkeep(&mut self, now_ms: u64) {
        self.advance(now_ms);
        self.lead(now_ms);
    }

    fn next_upkeep_ms(&self) -> u64 {
        let due = self
            .leader_state
            .next_proposal_due(&self.state, &self.reachability);
        let due_ms = due.map_or(u64::MAX, |due| due.div_ceil(1_000));
        due_ms.min(self.echo_ms + ECHO_EVERY_MS)
    }

    fn open(&mut self, now_ms: u64) {
        self.advance(now_ms);
        let patch = SettingsPatch {
            phase: Some(Change::Set(Phase::Open)),
            ..SettingsPatch::default()
        };
        let op = Op::Configure {
            line: self.name.clone(),
            patch: patch.into(),
            if_version: None,
            incarnation: None,
        };
        self.change(now_ms, op);
    }

    fn call(&mut self, now_ms: u64, n: u32) {
        self.advance(now_ms);
        self.calls += 1;
        let op = Op::CallNext {
            line: self.name.clone(),
            n,
            lane: None,
            call_id: format!("call-{}", self.calls).into(),
        };
        self.change(now_ms, op);
    }

    fn seats_told(&mut self, now_ms: u64, seats: u32) {
        self.advance(now_ms);
        let op = Op::CapacityTold {
            line: self.name.clone(),
            told: Some((seats, DURATION_MS_MAX)),
        };
        self.change(now_ms, op);
    }

    fn happened(&mut self) -> Vec<Happened> {
        std::mem::take(&mut self.happened)
    }

    fn pointers(&self, now_ms: u64) -> Vec<Pointers> {
        let board = self.line().map(|line| line.board(now_ms));
        let lanes = board.into_iter().flat_map(|board| board.lanes);
        let pointers = lanes.map(|lane| Pointers {
            next_token: lane.next_token,
            done_through: lane.done_through,
            admitted_through: lane.admitted_through,
            accepts_through: lane.accepts_through,
        });
        pointers.collect()
    }

    fn order_key(&self, lane: u8, entered_ms: u64) -> (bool, i64) {
        // Its lanes never change, so their ids are their places in the settings.
        let lanes = self.line().map(|line| line.settings().lanes.as_slice());
        let set = lanes.and_then(|lanes| lanes.get(usize::from(lane)));
        let signed = |ms| i64::try_from(ms).unwrap_or(i64::MAX);
        let boost_ms = set.map_or(0, |set| set.boost_ms);
        let yields = set.is_none_or(|set| !set.absolute);
        (yields, signed(entered_ms) - signed(boost_ms))
    }

    fn newcomer_eta_ms(&self, now_ms: u64) -> Option<u64> {
        let (eta_ms, _) = self.line()?.newcomer_eta(now_ms)?;
        Some(eta_ms)
    }
}
