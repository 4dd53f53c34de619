//! What a node knows only while it leads a shard, and drops when it does not: the service clock,
//! the recycle index, and what was published.

use nowserving_line::{
    self as line, Event, Line, LineName, Lines, Op, Reason, Reply, TokenChange, TokenRef,
};
use nowserving_protocol::event::{LineEvent, TokenEvent};

use crate::boards::Boards;
use crate::clock::{ClientReachability, Micros, ServiceClock};
use crate::command::Command;
use crate::published::OutEvent;
use crate::recycle::Recycler;
use crate::state::{AppliedToLine, State};

/// The clock is stamped at least this often while somebody holds a token.
const STAMP_INTERVAL_MS_MAX: u64 = 600_000;
/// And at most this often.
const STAMP_INTERVAL_MS_MIN: u64 = 250;

/// One leader's time over one shard, within one term.
#[derive(Debug)]
pub struct LeaderState {
    /// The term.
    pub term: u64,
    /// When it began, on the monotonic clock.
    pub began_at: Micros,
    clock: ServiceClock,
    /// Who is to be thrown out.
    pub recycler: Recycler,
    /// What was published.
    pub boards: Boards,
    last_stamp_ms: u64,
    /// Commands of the leader's own that are proposed or about to be, not yet applied; excluding
    /// [`Op::RunBackground`].
    own_in_flight: usize,
    /// [`Op::RunBackground`]s that are. Counted apart: a paced line has one in flight most of the time,
    /// and the recycler must get its turn all the same.
    background_in_flight: usize,
}

impl LeaderState {
    /// Takes over the state as applied through this term's first entry.
    #[must_use]
    pub fn begin(
        term: u64,
        state: &State,
        reachability: &ClientReachability,
        now: Micros,
        wall_ms: u64,
    ) -> Self {
        LeaderState {
            term,
            began_at: now,
            clock: ServiceClock::take_over(state.now_ms(), wall_ms, reachability),
            recycler: Recycler::new(state.lines()),
            boards: Boards::new(),
            last_stamp_ms: state.now_ms(),
            own_in_flight: 0,
            background_in_flight: 0,
        }
    }

    /// The service clock's reading.
    #[must_use]
    pub fn now_ms(&self, reachability: &ClientReachability) -> u64 {
        self.clock.now_ms(reachability)
    }

    /// The reading of the service clock that is shown; see [`ServiceClock::shown_ms`].
    #[must_use]
    pub fn shown_ms(&self, now: Micros, reachability: &ClientReachability) -> u64 {
        self.clock.shown_ms(now, reachability)
    }

    /// When the service clock will read this, on the monotonic clock; see [`ClientReachability::when`].
    #[must_use]
    pub fn when(&self, at_ms: u64, reachability: &ClientReachability) -> Option<Micros> {
        self.clock.when(at_ms, reachability)
    }

    /// A batch was stamped.
    pub fn stamped(&mut self, now_ms: u64) {
        self.last_stamp_ms = now_ms;
    }

    /// A command of the leader's own will be proposed.
    pub fn own_queued(&mut self, command: &Command) {
        *self.in_flight(command) += 1;
    }

    /// Whether a command of the leader's own is not yet applied, excluding [`Op::RunBackground`].
    #[must_use]
    pub fn is_own_in_flight(&self) -> bool {
        self.own_in_flight > 0
    }

    /// Whether an [`Op::RunBackground`] is not yet applied.
    #[must_use]
    pub fn is_background_in_flight(&self) -> bool {
        self.background_in_flight > 0
    }

    /// Where a command of the leader's own is counted.
    fn in_flight(&mut self, command: &Command) -> &mut usize {
        match command {
            Command::Line(Op::RunBackground { .. }) => &mut self.background_in_flight,
            _ => &mut self.own_in_flight,
        }
    }

    /// Whether there is anything that the log does not know of the clock.
    #[must_use]
    pub fn unstamped(&self, now_ms: u64) -> bool {
        self.recycler.watched() > 0 && now_ms > self.last_stamp_ms
    }

    /// Whether the clock should be written down, lest a next leader sets it back too far: a
    /// sixteenth of the shortest timeout is what the grace of a new leader leaves of the half that
    /// a change of leader may cost.
    #[must_use]
    pub fn stamp_due(&self, now_ms: u64) -> bool {
        if self.recycler.watched() == 0 {
            return false;
        }
        let Some(shortest_ms) = self.recycler.shortest_timeout_ms() else {
            return false;
        };
        let interval_ms = (shortest_ms / 16).clamp(STAMP_INTERVAL_MS_MIN, STAMP_INTERVAL_MS_MAX);
        now_ms >= self.last_stamp_ms.saturating_add(interval_ms)
    }

    /// Before a command is applied.
    pub fn before(&mut self, state: &State, command: &Command) {
        if command.is_leaders_own() {
            let in_flight = self.in_flight(command);
            *in_flight = in_flight.saturating_sub(1);
        }
        // Nothing is kept for lines that do not exist: anybody can make up names.
        if let Command::Line(op) = command
            && let Some(line) = state.lines().get(op.line())
        {
            self.boards.before_change(op.line(), line.version());
        }
    }

    /// After an operation on a line was applied: clocks are started, boards marked, events made.
    pub fn after(&mut self, state: &State, applied: &AppliedToLine<'_>, out: &mut Vec<OutEvent>) {
        let AppliedToLine { op, events, .. } = applied;
        let Ok(reply) = &applied.result else { return };
        let (lines, now_ms) = (state.lines(), state.now_ms());
        if let (Op::Enter { line, .. }, Reply::Token(at)) = (op, reply) {
            self.start(line, *at, lines, now_ms);
        }
        if let Op::Configure { line, patch, .. } = op
            && patch.waiting_idle_timeout_ms.is_some()
        {
            self.recycler.reschedule(line);
        }
        for event in *events {
            self.follow(event, lines, now_ms);
            let prev_version = self.boards.note(event);
            out.extend(publishable(event, prev_version, lines));
        }
        self.boards.changed(op.line());
    }

    fn start(&mut self, line: &LineName, at: TokenRef, lines: &Lines, now_ms: u64) {
        if let Some(line) = lines.get(line)
            && let Some(live) = line.live(at.lane, at.token)
        {
            self.recycler.started(line, at, live, now_ms);
        }
    }

    fn follow(&mut self, event: &Event, lines: &Lines, now_ms: u64) {
        let Event::Token {
            line,
            incarnation,
            lane_id,
            token,
            what,
            ..
        } = event
        else {
            return;
        };
        let at = TokenRef {
            incarnation: *incarnation,
            lane: *lane_id,
            token: *token,
        };
        match what {
            TokenChange::Gone { reason, .. } => {
                if matches!(
                    reason,
                    Reason::Idle | Reason::NoShow | Reason::CheckoutExpired
                ) {
                    metrics::counter!("nowserving_recycled_total", "reason" => reason.as_str())
                        .increment(1);
                }
                self.recycler.forget(at);
            }
            TokenChange::Moved { to, .. } => {
                let line = lines.get(line);
                match line.and_then(|line| Some((line, line.live(to.lane, to.token)?))) {
                    Some((line, live)) => self.recycler.moved(line, at, *to, live),
                    None => self.recycler.forget(at),
                }
            }
            TokenChange::Admitted | TokenChange::Claimed => self.start(line, at, lines, now_ms),
            // It was not its holder who did something: no clock begins anew.
            TokenChange::CallAhead => {}
        }
    }

    /// Somebody asked for a token's status, be it by the ticket of what it was before.
    pub fn heard(&mut self, line: &Line, at: TokenRef, now_ms: u64) {
        let at = line.resolve(at);
        if let Some(live) = line.live(at.lane, at.token)
            && live.state() == line::State::Waiting
        {
            self.recycler.heard(line, at, live, now_ms);
        }
    }
}

/// The event as subscribers get it; none for tokens of a line whose `token_events` are off.
fn publishable(event: &Event, prev_version: u64, lines: &Lines) -> Option<OutEvent> {
    match event {
        Event::Token { line, .. } => {
            let wanted = lines
                .get(line)
                .is_none_or(|line| line.settings().token_events);
            wanted.then(|| TokenEvent::new(event, prev_version).map(OutEvent::Token))?
        }
        Event::Line { .. } => LineEvent::new(event, prev_version).map(OutEvent::Line),
    }
}
