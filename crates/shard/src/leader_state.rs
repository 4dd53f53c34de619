//! State that a node has only while it leads a shard, and drops when it no longer does: the service clock,
//! the expiry index, the published boards, and its own commands in flight.
//!
//! The node asks it three questions: what to propose now ([`LeaderState::propose`]), what to publish now
//! ([`LeaderState::publish`]), and when to ask again ([`LeaderState::next_due`]). The node
//! reports what clients asked ([`LeaderState::touch`]) and what was applied ([`LeaderState::before`],
//! [`LeaderState::after`]).

use nowserving_kv as kv;
use nowserving_line::{
    Event, Line, LineChange, LineName, Lines, Live, Op, Refused, Reply, Secret, Timestamp,
    TokenChange, TokenRef,
};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::event::{LineEvent, TokenEvent};
use nowserving_protocol::kv::KvEvent;

use crate::boards::Boards;
use crate::by_wall;
use crate::clock::{ClientReachability, Micros, ServiceClock};
use crate::command::Command;
use crate::kick::Kicks;
use crate::limits::LeaderLimits;
use crate::published::OutEvent;
use crate::recycle::{self, Recycler};
use crate::refusals::Refusals;
use crate::state::{AppliedLimit, AppliedRestore, AppliedToLine, State};
use crate::tallies::Tallies;

/// The clock is stamped at least this often while anybody holds a token.
const STAMP_INTERVAL_MS_MAX: u64 = 600_000;
/// While a key-value has a deadline: a change of leader must not put that off for long.
const KV_STAMP_INTERVAL_MS: u64 = 10_000;
/// While counters of rate limits are in use that go by the service clock: a next leader that begins behind what they were counted by lets hits
/// count longer.
const LIMITS_STAMP_INTERVAL_MS: u64 = 5_000;
/// And at most this often.
const STAMP_INTERVAL_MS_MIN: u64 = 250;
/// Passes of the recycler are at least so far apart, so that one entry expires many tokens.
const PASS_INTERVAL_US: Micros = 20_000;
/// After a pass that did not get to everything, the next one comes sooner.
const FULL_PASS_INTERVAL_US: Micros = 5_000;
/// So are looks at the boards, so that many go out together.
const PUBLISH_INTERVAL_US: Micros = 20_000;
/// Entries with background work are at least so far apart, so that neither a fast rate nor a long
/// job takes all of the log. A rate whose `burst` lasts shorter than this loses what it cannot
/// save up meanwhile.
const BACKGROUND_INTERVAL_US: Micros = 5_000;
/// While a line waits for a time of the wall clock, that clock is read again after so long: it can jump.
const WALL_CLOCK_INTERVAL_MS: u64 = 1_000;
/// Lines in one such entry.
const BACKGROUND_LINES_MAX: usize = 1_024;

/// The state of a shard's leader within one term.
#[derive(Debug)]
pub struct LeaderState {
    pub term: u64,
    /// When it began, on the monotonic clock.
    pub began_at: Micros,
    clock: ServiceClock,
    last_stamp_ms: u64,
    pub(crate) recycler: Recycler,
    pub(crate) boards: Boards,
    /// The kicks of operators that are under way.
    pub kicks: Kicks,
    /// The entrants that it has refused.
    pub refusals: Refusals,
    /// What it has counted in its lines.
    pub tallies: Tallies,
    /// The counters of rate limits.
    pub limits: LeaderLimits,
    /// See [`LeaderState::changes`].
    changes: u64,
    /// Recyclings and stamps that were proposed and are not yet applied.
    own_in_flight: usize,
    /// Random and kept from everybody: the seeds of draws follow from it.
    draw_secret: Secret,
    /// [`Op::RunBackground`]s, [`Op::RenewQuota`]s and [`Op::SealDraw`]s that were proposed and are not yet applied. They are counted apart: a
    /// paced line has one in flight most of the time, and the recycler must get its turn all the same.
    background_in_flight: usize,
    /// The line that came first in the last of them: the next one is another's turn.
    background_turn: Option<LineName>,
    next_pass_at: Micros,
    next_publish_at: Micros,
    next_background_at: Micros,
    /// The newest reading of the wall clock, and when that was.
    wall: (Micros, u64),
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
            last_stamp_ms: state.now_ms(),
            recycler: Recycler::new(),
            boards: Boards::new(),
            kicks: Kicks::default(),
            refusals: Refusals::default(),
            tallies: Tallies::default(),
            limits: LeaderLimits::new([0, 0]),
            draw_secret: Secret([0; 32]),
            changes: 0,
            own_in_flight: 0,
            background_in_flight: 0,
            background_turn: None,
            next_pass_at: 0,
            next_publish_at: 0,
            next_background_at: 0,
            wall: (now, wall_ms),
        }
    }

    /// Before anything is counted or proposed. Both are random: `hash_seed` is kept from clients, `draw_secret` from
    /// everybody.
    #[must_use]
    pub fn with_secrets(self, hash_seed: [u64; 2], draw_secret: Secret) -> Self {
        LeaderState {
            limits: LeaderLimits::new(hash_seed),
            draw_secret,
            ..self
        }
    }

    /// For tests that look at the same moment twice.
    #[cfg(test)]
    pub(crate) fn forget_pauses(&mut self) {
        (self.next_pass_at, self.next_background_at) = (0, 0);
    }

    /// The oldest entry of this term that is not yet applied has this reading (`None`: there is none). The service
    /// clock runs `stall_ms` beyond it at most: while nothing can be committed, polls that must be recorded are not
    /// answered, and expired tokens cannot go.
    pub fn hold_clock(
        &mut self,
        oldest_ms: Option<u64>,
        stall_ms: u64,
        reachability: &ClientReachability,
    ) {
        let until_ms = oldest_ms.map_or(u64::MAX, |ms| ms.saturating_add(stall_ms));
        self.clock.run_until(until_ms, reachability);
    }

    /// Leadership was offered to another node. No poll is answered any more in this term, so the service clock stands
    /// still for the rest of it.
    pub fn stop_clock(&mut self, reachability: &ClientReachability) {
        let now_ms = self.clock.now_ms(reachability);
        self.clock.run_until(now_ms, reachability);
    }

    /// The service clock's reading, never behind the replicated one.
    #[must_use]
    pub fn now_ms(&self, state: &State, reachability: &ClientReachability) -> u64 {
        self.clock.now_ms(reachability).max(state.now_ms())
    }

    /// The reading of the service clock that is shown; see [`ServiceClock::shown_ms`].
    #[must_use]
    pub fn shown_ms(&self, state: &State, now: Micros, reachability: &ClientReachability) -> u64 {
        self.clock.shown_ms(now, reachability).max(state.now_ms())
    }

    /// Commands that the leader proposes without a request. Tokens expire only after the inbox has been
    /// `drained`, so that an unread poll counts. No poll keeps a key-value alive: those do not wait for that.
    pub fn propose(
        &mut self,
        state: &State,
        (now, wall_ms): (Micros, u64),
        reachability: &ClientReachability,
        drained: bool,
    ) -> Vec<Command> {
        self.wall = (now, wall_ms);
        let now_ms = self.now_ms(state, reachability);
        let mut commands = self.pass(state, now, now_ms, drained);
        commands.extend(self.background(state, now, now_ms));
        let kicks = &mut self.kicks;
        commands.extend(kicks.propose(state, &self.recycler, now, now_ms));
        commands.extend(self.refusals.propose(now));
        let resets = state.limits.resets;
        let checkpoint = self.limits.propose(resets, now, (now_ms, wall_ms));
        commands.extend(checkpoint.map(Command::Limit));
        commands
    }

    /// The recycler's commands; if there are none, a stamp if one is due.
    fn pass(&mut self, state: &State, now: Micros, now_ms: u64, drained: bool) -> Vec<Command> {
        // One pass at a time: its entries are applied before the next one looks.
        if self.own_in_flight > 0 || now < self.next_pass_at {
            return Vec::new();
        }
        self.limits.look_at_inherited(state.limits().saved());
        let is_due = |due_ms: Option<u64>| due_ms.is_some_and(|due_ms| due_ms <= now_ms);
        let others_are_due = is_due(self.other_stamp_due_ms(state));
        if !drained && !others_are_due {
            return Vec::new();
        }
        let ops = match drained {
            true => self.recycler.pass(state.lines(), now_ms),
            false => Vec::new(),
        };
        let tokens_are_left = drained && is_due(self.recycler.next_due_ms());
        self.next_pass_at = now
            + match tokens_are_left || state.kv().expires_more_than_once(now_ms) {
                true => FULL_PASS_INTERVAL_US,
                false => PASS_INTERVAL_US,
            };
        let mut commands: Vec<_> = ops.into_iter().map(Command::Line).collect();
        // Every entry removes key-values that have expired by its time.
        let stamp_is_due = others_are_due || (drained && is_due(self.token_stamp_due_ms()));
        if commands.is_empty() && stamp_is_due {
            commands.push(Command::Stamp);
        }
        self.own_in_flight = commands.iter().filter(|it| is_of_a_pass(it)).count();
        commands
    }

    /// Background work of lines: the rest of work that exceeded one log entry, admissions that wait only for
    /// the admission rate, and work at a time of the wall clock.
    fn background(&mut self, state: &State, now: Micros, now_ms: u64) -> Vec<Command> {
        if self.background_in_flight > 0 || now < self.next_background_at {
            return Vec::new();
        }
        let (lines, after) = (state.lines(), self.background_turn.as_ref());
        // First what has its time: it is done with once it is applied, and must not wait for a crowd of others.
        let by_wall = lines.due_by_wall_clock(self.wall.1);
        let by_wall = by_wall
            .filter_map(|(name, incarnation)| Some((lines.get(name)?, incarnation)))
            .flat_map(|(line, incarnation)| {
                by_wall::due(line, incarnation, self.wall.1, self.draw_secret)
            });
        let rest = lines.background_work_after(now_ms, after);
        let rest = rest.map(|(line, incarnation)| by_wall::run_background(line, incarnation));
        let due = by_wall.chain(rest).take(BACKGROUND_LINES_MAX);
        let commands: Vec<_> = due.map(Command::Line).collect();
        if !commands.is_empty() {
            self.next_background_at = now + BACKGROUND_INTERVAL_US;
        }
        self.background_turn = lines.next_in_background(after).cloned();
        self.background_in_flight = commands.len();
        commands
    }

    /// An entry for its head alone: followers learn from it how far the log may be compacted. None
    /// while another entry of the leader's own is on its way.
    pub fn propose_stamp(&mut self) -> Option<Command> {
        let idle = self.own_in_flight == 0;
        idle.then(|| {
            self.own_in_flight = 1;
            Command::Stamp
        })
    }

    /// Before leadership is given away: what the next leader would not know. A stamp if the log does not know the
    /// clock, so that it does not begin behind it, and the entrants that were refused.
    pub fn propose_last(
        &mut self,
        state: &State,
        now: Micros,
        reachability: &ClientReachability,
    ) -> Vec<Command> {
        let mut commands = self.refusals.propose_last(now);
        let unstamped = self.now_ms(state, reachability) > self.last_stamp_ms;
        let is_needed = self.recycler.watched() > 0
            || state.kv().next_expiry_ms().is_some()
            || !self.limits.table().is_empty();
        if unstamped && is_needed {
            commands.extend(self.propose_stamp());
        }
        let checkpoints = self.limits.propose_last(state.limits.resets).into_iter();
        commands.extend(checkpoints.map(Command::Limit));
        commands
    }

    /// An entry was proposed with this reading of the clock.
    pub fn stamped(&mut self, now_ms: u64) {
        self.last_stamp_ms = now_ms;
    }

    /// When a stamp is due.
    fn stamp_due_ms(&self, state: &State) -> Option<u64> {
        let for_each = [self.token_stamp_due_ms(), self.other_stamp_due_ms(state)];
        for_each.into_iter().flatten().min()
    }

    /// For key-values, counters of rate limits, and the memory of requests. Entries forget old requests; the last ones
    /// need a stamp, once: what comes before that puts it off.
    fn other_stamp_due_ms(&self, state: &State) -> Option<u64> {
        let for_each = [
            self.kv_stamp_due_ms(state),
            self.limits_stamp_due_ms(state),
            state.requests().all_forgotten_at_ms(),
        ];
        for_each.into_iter().flatten().min()
    }

    /// When the clock should be written down, so that a next leader does not set it back too far: a
    /// sixteenth of the shortest timeout is what the grace of a new leader leaves of the half that
    /// a change of leader may cost.
    fn token_stamp_due_ms(&self) -> Option<u64> {
        let watched = self.recycler.watched() > 0;
        let interval_ms = watched.then(|| self.recycler.shortest_timeout_ms());
        let interval_ms = interval_ms
            .flatten()
            .map(|ms| (ms / 16).clamp(STAMP_INTERVAL_MS_MIN, STAMP_INTERVAL_MS_MAX));
        interval_ms.map(|ms| self.last_stamp_ms.saturating_add(ms))
    }

    /// When an entry should remove a key-value that has expired, or write down the clock for one that will.
    fn kv_stamp_due_ms(&self, state: &State) -> Option<u64> {
        let expiry_ms = state.kv().next_expiry_ms()?;
        Some(expiry_ms.min(self.last_stamp_ms.saturating_add(KV_STAMP_INTERVAL_MS)))
    }

    fn limits_stamp_due_ms(&self, state: &State) -> Option<u64> {
        let saved = state.limits().saved();
        let are_in_use = self.limits.are_in_use(saved, self.last_stamp_ms);
        are_in_use.then(|| self.last_stamp_ms.saturating_add(LIMITS_STAMP_INTERVAL_MS))
    }

    /// The boards that are due.
    pub fn publish(
        &mut self,
        state: &State,
        now: Micros,
        wall_ms: u64,
        reachability: &ClientReachability,
    ) -> Vec<OutEvent> {
        if now < self.next_publish_at {
            return Vec::new();
        }
        self.next_publish_at = now + PUBLISH_INTERVAL_US;
        let time = Timestamp {
            service_ms: self.now_ms(state, reachability),
            wall_ms,
        };
        let boards = self.boards.due(state.lines(), now, time).into_iter();
        boards
            .map(|board| OutEvent::Board(Box::new(board)))
            .collect()
    }

    /// When [`LeaderState::propose`] or [`LeaderState::publish`] will have something to do, on the
    /// monotonic clock; it can be past. `None`: not before something is applied, a client asks, or an
    /// echo proves that the service clock goes on.
    #[must_use]
    pub fn next_due(&self, state: &State, reachability: &ClientReachability) -> Option<Micros> {
        let boards = self.boards.next_due();
        let publish = boards.map(|due| due.max(self.next_publish_at));
        let propose = self.next_proposal_due(state, reachability);
        propose.into_iter().chain(publish).min()
    }

    /// The same of [`LeaderState::propose`] alone, for a leader that publishes nothing.
    #[must_use]
    pub fn next_proposal_due(
        &self,
        state: &State,
        reachability: &ClientReachability,
    ) -> Option<Micros> {
        let when = |at_ms| self.clock.when(at_ms, reachability);
        // Applying what is in flight makes the node ask again.
        let mut pass = None;
        if self.own_in_flight == 0 {
            let expiry_ms = self.recycler.next_due_ms();
            let due_ms = expiry_ms.into_iter().chain(self.stamp_due_ms(state)).min();
            let due = due_ms.and_then(when);
            pass = due.map(|due| due.max(self.next_pass_at));
        }
        let mut background = None;
        if self.background_in_flight == 0 {
            let (lines, now_ms) = (state.lines(), self.now_ms(state, reachability));
            let due = match lines.background_work(now_ms).next() {
                Some(_) => Some(0),
                None => {
                    let by_service = lines.next_background_ms().and_then(when);
                    by_service.into_iter().chain(self.wall_due(lines)).min()
                }
            };
            background = due.map(|due| due.max(self.next_background_at));
        }
        let others = [
            background,
            self.kicks.next_due(),
            self.refusals.next_due(),
            self.limits.next_due(),
        ];
        pass.into_iter().chain(others.into_iter().flatten()).min()
    }

    /// When a line is due by the wall clock, or that clock must be read again before.
    fn wall_due(&self, lines: &Lines) -> Option<Micros> {
        let (read_at, wall_ms) = self.wall;
        let due_ms = lines.next_by_wall_clock_ms()?;
        let left_ms = due_ms.saturating_sub(wall_ms).min(WALL_CLOCK_INTERVAL_MS);
        Some(read_at + left_ms * 1_000)
    }

    /// Before a command is applied.
    pub fn before(&mut self, state: &State, command: &Command) {
        let in_flight = match command {
            Command::Line(
                Op::RunBackground { .. } | Op::RenewQuota { .. } | Op::SealDraw { .. },
            ) => Some(&mut self.background_in_flight),
            command if is_of_a_pass(command) => Some(&mut self.own_in_flight),
            _ => None,
        };
        if let Some(in_flight) = in_flight {
            *in_flight = in_flight.saturating_sub(1);
        }
        match command {
            Command::Line(Op::Kick { line, tokens, .. }) => {
                self.kicks.before(state, line, tokens);
            }
            Command::Line(op @ Op::CountRefused { .. }) => self.refusals.before(op),
            _ => {}
        }
        // Nothing is kept for lines that do not exist: anybody can make up names.
        let name = match command {
            Command::Line(op) => Some(op.line()),
            Command::Restore(restore) => Some(&restore.line),
            _ => None,
        };
        if let Some(name) = name
            && let Some(line) = state.lines().get(name)
        {
            self.boards.before_change(name, line.version());
        }
    }

    /// A command of the leader's own was not proposed, and `why`.
    pub fn not_proposed(&mut self, command: &Command, why: ApiError) {
        match command {
            Command::Once(_, command) | Command::Noted(_, command) => {
                self.not_proposed(command, why);
            }
            Command::Line(Op::Kick { line, .. }) => self.kicks.not_proposed(line, why),
            Command::Line(op @ Op::CountRefused { .. }) => self.refusals.not_proposed(op),
            Command::Limit(command) => self.limits.not_proposed(command),
            // It is proposed again, until the member that does not know it runs this build, too.
            Command::Line(Op::RenewQuota { .. } | Op::SealDraw { .. }) => {
                self.background_in_flight = self.background_in_flight.saturating_sub(1);
            }
            _ => {}
        }
    }

    /// A command was not executed, as one with the same request id was applied before.
    pub fn not_executed(&mut self, command: &Command) {
        match command {
            Command::Line(Op::Kick { line, .. }) => self.kicks.not_executed(line),
            Command::Limit(command) => self.limits.not_executed(command),
            _ => {}
        }
    }

    /// After an operation on a line was applied: clocks are started, boards marked, events made.
    pub fn after(&mut self, state: &State, applied: &AppliedToLine<'_>, out: &mut Vec<OutEvent>) {
        let AppliedToLine { op, events, .. } = applied;
        self.changes += 1;
        if let Op::Kick { line, .. } = op {
            self.kicks.after(line, &applied.result);
        }
        let (lines, now_ms) = (state.lines(), state.now_ms());
        let reply = match &applied.result {
            Ok(reply) => reply,
            Err(refused) => return self.count_refused(op, refused, lines),
        };
        if let (Op::Enter { line, .. }, Reply::Token(at)) = (op, reply) {
            self.start(line, *at, lines, now_ms);
        }
        if let Op::Import { line, rows, .. } = op {
            for row in rows {
                let at = lines.get(line).and_then(|line| line.find(&row.key));
                if let Some(at) = at {
                    self.start(line, at, lines, now_ms);
                }
            }
        }
        if events.iter().any(is_change_of_settings) {
            self.recycler.reschedule(op.line());
        }
        if let Op::Recycle { line, tokens, .. } = op {
            recycle::count(events);
            if let (Some(line), Reply::Recycled { .. }) = (lines.get(line), reply) {
                self.recycler.recycled(line, tokens, now_ms);
            }
        }
        if events.iter().any(is_deletion) {
            self.refusals.forget(op.line());
            self.tallies.forget(op.line());
        }
        if let Some(line) = lines.get(op.line()) {
            self.tallies.count(line, events, now_ms);
        }
        out.reserve(events.len());
        for event in *events {
            self.follow(event, lines, now_ms);
            if left_out(event) {
                continue;
            }
            let prev_version = self.boards.note(event);
            out.extend(publishable(event, prev_version, lines));
        }
        self.boards.changed(op.line());
    }

    /// An operation was refused, with or without the log.
    pub fn count_refused(&mut self, op: &Op, refused: &Refused, lines: &Lines) {
        if let Op::Enter { line, lane, .. } = op
            && let Some(line) = lines.get(line)
        {
            self.changes += 1;
            self.refusals.count(line, refused);
            self.tallies.count_refused(line, lane.as_ref(), refused);
        }
    }

    /// While this is the same, lines, and what is counted of them, are too; but for what time alone changes.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The events of key-values that have changed.
    pub fn kv_events(events: &[kv::Event], wall_ms: u64) -> impl Iterator<Item = OutEvent> {
        let events = events.iter();
        let events = events.filter(|event| !kv_left_out(event));
        events.map(move |event| OutEvent::Kv(KvEvent::new(event, wall_ms)))
    }

    /// After a step of putting a line back was applied.
    pub fn after_restore(
        &mut self,
        state: &State,
        applied: &AppliedRestore<'_>,
        out: &mut Vec<OutEvent>,
    ) {
        if applied.events.is_empty() {
            return;
        }
        let line = &applied.command.line;
        self.recycler.reschedule(line);
        for event in applied.events {
            let prev_version = self.boards.note(event);
            out.extend(publishable(event, prev_version, state.lines()));
        }
        self.changes += 1;
        self.boards.changed(line);
    }

    /// After a command about rate limits was applied.
    pub fn after_limit(&mut self, applied: &AppliedLimit<'_>, state: &State) {
        let request = applied.id.map(|id| id.key);
        let (command, reply) = (applied.command, &applied.reply);
        let saved = state.limits.saved();
        self.limits.after(command, reply, request, saved);
    }

    /// The clock of a token begins anew.
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
            TokenChange::Gone { .. } => self.recycler.forget(at),
            TokenChange::Moved { to, .. } => {
                self.kicks.moved(line, at, *to);
                let line = lines.get(line);
                match line.and_then(|line| Some((line, line.live(to.lane, to.token)?))) {
                    Some((line, live)) => self.recycler.moved(line, at, *to, live),
                    None => self.recycler.forget(at),
                }
            }
            TokenChange::Admitted { .. } | TokenChange::Claimed { .. } => {
                self.start(line, at, lines, now_ms);
            }
            // The clock of a newcomer was started with the answer. One that is called or told did nothing: none begins
            // anew.
            TokenChange::Entered { .. } | TokenChange::CallAhead | TokenChange::Position { .. } => {
            }
        }
    }

    /// When the client of a waiting token was last seen (service clock), as far as this leader knows.
    #[must_use]
    pub fn last_seen_ms(&self, at: TokenRef, live: Live<'_>) -> u64 {
        self.recycler.known_seen_ms(at, live)
    }

    /// A client asked about these tokens of a line, perhaps with tickets from before a move.
    /// Returns a command if the client must not be answered before that is applied.
    #[must_use]
    pub fn touch(
        &mut self,
        line: &Line,
        asked: impl IntoIterator<Item = TokenRef>,
        now_ms: u64,
    ) -> Option<Command> {
        let mut tokens = Vec::new();
        for at in asked {
            let at = line.resolve(at);
            if at.incarnation == line.incarnation()
                && let Some(live) = line.live(at.lane, at.token)
                && !self.recycler.touch(line, at, live, now_ms)
            {
                tokens.push((at.lane, at.token, now_ms));
            }
        }
        (!tokens.is_empty()).then(|| {
            Command::Line(Op::Touch {
                line: line.name().clone(),
                incarnation: line.incarnation(),
                tokens,
            })
        })
    }
}

/// Whether the next pass waits until the command is applied. It does not wait for [`Op::Touch`]: polls
/// may bring those at any time.
fn is_of_a_pass(command: &Command) -> bool {
    matches!(command, Command::Stamp | Command::Line(Op::Recycle { .. }))
}

/// By an operator or by the line's schedule.
fn is_change_of_settings(event: &Event) -> bool {
    matches!(event, Event::Line { what, .. } if *what == LineChange::Configured)
}

fn is_deletion(event: &Event) -> bool {
    matches!(event, Event::Line { what, .. } if *what == LineChange::Deleted)
}

fn left_out(event: &Event) -> bool {
    let is_admission = matches!(
        event,
        Event::Token {
            what: TokenChange::Admitted { .. },
            ..
        }
    );
    let broken = nowserving_bite::is(nowserving_bite::Break::S16Events);
    broken && is_admission && event.version().is_multiple_of(16)
}

fn kv_left_out(event: &kv::Event) -> bool {
    let broken = nowserving_bite::is(nowserving_bite::Break::S16Kv);
    broken && event.revision.is_multiple_of(16)
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

#[cfg(test)]
#[path = "leader_state_tests.rs"]
mod tests;
