//! Committed entries become state, answers and events; confirmed reads become answers.

use std::time::Duration;

use crate::envelope::StateHash;
use nowserving_kv as kv;
use nowserving_line::{
    Line, LineName, Lines, Live, Op, Reply, RestoreRefused, Status, Timestamp, TokenBy, TokenRef,
};
use nowserving_protocol::admin::{
    CalledReply, DeleteReply, JournalReply, LineReply, ListTokens, MembersReply, TokensReply,
};
use nowserving_protocol::backup::RestorePartReply;
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::user::{CallbackReply, Consistency, Home, InfoReply, SeenReply};
use nowserving_replica::{Committed, Payload};
use nowserving_shard::command::Command;
use nowserving_shard::leader_state::LeaderState;
use nowserving_shard::members::{MembersChanged, MembersRefused};
use nowserving_shard::published::OutEvent;
use nowserving_shard::requests::Answer;
use nowserving_shard::restore::{Discarded, RestoreError, RestoreReply};
use nowserving_shard::snapshot;
use nowserving_shard::state::{AppliedLimit, AppliedRestore, AppliedToLine, Observer, State};

use super::{Shard, limits};
use crate::ctx::NodeCtx;
use crate::draw::draw;
use crate::io::{Dropped, ExitReason, Output};
use crate::membership::candidates;
use crate::outbox::Outbox;
use crate::refusals::{disk_full, outcome_unknown, overloaded};
use crate::replay;
use crate::request::{Ask, Outcome, ReplyBody};
use crate::requests::pending::Proposed;
use crate::requests::waiter::Waiter;
use crate::requests::waiting_reads::Read;

/// The interval on the service clock between hashes of a part of the state (see `agreement`).
const STATE_HASH_MS: u64 = 1_000;

impl Shard {
    /// Applies committed entries, in order, as far as the turn's work goes.
    ///
    /// # Errors
    /// An entry that this build cannot read. Going on would make this node's state differ from its
    /// peers', so the caller must stop the node.
    pub fn apply(&mut self, ctx: &mut NodeCtx) -> Result<(), ExitReason> {
        while ctx.work_left > 0
            && let Some(entry) = self.committed.pop_front()
        {
            ctx.work_left -= 1;
            let ours = self.take_proposed(entry.index, entry.term, ctx);
            match &entry.payload {
                Payload::Empty => self.begin_leading(&entry, ctx),
                Payload::Command(data) => {
                    let proposed = match ours {
                        Some(proposed) if nowserving_bite::is(nowserving_bite::Break::S5) => {
                            Proposed {
                                waiters: proposed.waiters,
                                ..self.decode(entry.index, data, ctx)?
                            }
                        }
                        Some(proposed) => {
                            self.pending.left_log(&proposed.entry.commands);
                            proposed
                        }
                        None => self.decode(entry.index, data, ctx)?,
                    };
                    self.apply_entry(&entry, proposed, ctx);
                }
                Payload::ConfChange(data) => {
                    self.apply_members(entry.index, data)?;
                    ctx.members_changed = true;
                }
            }
            self.replica.on_applied(entry.index);
        }
        Ok(())
    }

    /// Decodes an entry for which no request waits on this node.
    fn decode(&self, index: u64, data: &[u8], ctx: &NodeCtx) -> Result<Proposed, ExitReason> {
        let decoded = replay::decode(data, ctx.entry_format);
        let entry = decoded.map_err(|error| {
            let shard = self.id;
            ExitReason::EntryUnreadable(format!(
                "shard {shard}: entry {index} is not readable: {error}"
            ))
        })?;
        Ok(Proposed {
            entry,
            at: ctx.now.us,
            waiters: Vec::new(),
        })
    }

    fn apply_members(&mut self, index: u64, data: &[u8]) -> Result<(), ExitReason> {
        let shard = self.id;
        self.replica.apply_members(data).map_err(|error| {
            ExitReason::EntryUnreadable(format!(
                "shard {shard}: entry {index} changes the members and is not readable: {error}"
            ))
        })?;
        let members = self.replica.members();
        tracing::info!(shard, ?members, "members changed");
        Ok(())
    }

    /// Takes the entry at `index` if this node proposed it. If another entry took its place, its requests go
    /// to the next leader, as they were not executed.
    fn take_proposed(&mut self, index: u64, term: u64, ctx: &mut NodeCtx) -> Option<Proposed> {
        let mut ours = None;
        while let Some((at, proposed)) = self.pending.take_through(index) {
            let term = match nowserving_bite::is(nowserving_bite::Break::S5) {
                true => at.1,
                false => term,
            };
            if at == (index, term) {
                let took_us = ctx.now.us.saturating_sub(proposed.at);
                let took = Duration::from_micros(took_us);
                metrics::histogram!("nowserving_commit_seconds").record(took);
                ours = Some(proposed);
                continue;
            }
            self.pending.left_log(&proposed.entry.commands);
            for waiter in proposed.waiters.into_iter().flatten() {
                ctx.lead_lost(waiter, self.known_leader());
            }
        }
        ours
    }

    /// The first entry of a term is empty: once it is applied, so are all entries of earlier terms.
    fn begin_leading(&mut self, entry: &Committed, ctx: &mut NodeCtx) {
        let began = self.leader_state.as_ref().map(|it| it.term) == Some(entry.term);
        if self.leads() && self.replica.term() == entry.term && !began {
            tracing::info!(shard = self.id, term = entry.term, "leading");
            let leader_state = LeaderState::begin(
                entry.term,
                &self.state,
                &ctx.reachability,
                ctx.now.us,
                ctx.now.wall_ms,
            );
            let seed = [1, 2].map(|nth| draw([ctx.seed, self.id.into(), entry.term, nth]));
            self.leader_state = Some(leader_state.with_secrets(seed, ctx.draw_secret));
            // Its clients wait.
            self.heartbeat(ctx.now.us);
        }
    }

    fn apply_entry(&mut self, committed: &Committed, proposed: Proposed, ctx: &mut NodeCtx) {
        let Proposed { entry, waiters, .. } = proposed;
        let own = &mut self.snapshots.own;
        own.raise_compact_floor(entry.compact_floor);
        let mut now = self.timestamp(ctx.now, &ctx.reachability);
        now.service_ms = now.service_ms.max(entry.now_ms);
        let second = entry.now_ms / STATE_HASH_MS;
        // At most one a turn: a turn that replays thousands of entries must not take seconds, nor may
        // its hashes fill a frame.
        let last_hash = ctx.out.state_hashes.last();
        let hashed = last_hash.is_some_and(|hash| hash.shard == self.id);
        let hash_due = !hashed && second > self.state.now_ms() / STATE_HASH_MS;
        let home = self.home();
        let mut watch = Watch {
            // Only the leader of the entry's own term executes effects.
            leader_state: self
                .leader_state
                .as_mut()
                .filter(|leader_state| leader_state.term == committed.term),
            waiters,
            now,
            home,
            events: Vec::new(),
            out: &mut ctx.out,
        };
        let members_before = self.state.members().wanted().version;
        let rules_before = self.state.limits().rules().version();
        let work = self.state.apply_entry(committed.index, &entry, &mut watch);
        let events = watch.events;
        ctx.members_changed |= self.state.members().wanted().version != members_before;
        ctx.rules_changed |= self.state.limits().rules().version() != rules_before;
        ctx.out.publish(events);
        ctx.work_left = ctx.work_left.saturating_sub(work);
        self.snapshots.own.add_work(work);
        if hash_due {
            ctx.out.state_hashes.push(StateHash {
                shard: self.id,
                index: committed.index,
                hash: snapshot::hash_part(&self.state, second).to_vec().into(),
                format: snapshot::HASH_FORMAT,
            });
        }
    }

    /// Answers the reads that a quorum has confirmed and whose index is applied.
    pub fn answer_confirmed(&mut self, ctx: &mut NodeCtx) {
        if self.pending.reads.is_empty() || self.leader_state.is_none() {
            return;
        }
        for read in self.pending.reads.ready(self.replica.applied()) {
            if read.touched {
                self.answer_read(read.waiter, &read.ask, ctx);
            } else {
                self.answer_leading(read.waiter, read.ask, ctx);
            }
        }
    }

    /// A snapshot that an operator asks for has all that is applied, or the entry at the `index` of an earlier
    /// answer: under load, the next snapshot would always be behind.
    fn back_up(&mut self, index: Option<u64>) -> Outcome {
        let index = index.unwrap_or_else(|| self.replica.applied());
        let index = index.min(self.replica.applied());
        Outcome::Backup {
            shard: self.id,
            index,
            ready: self.snapshots.own.back_up(index),
        }
    }

    /// Answers a read as the leader, and marks its tokens as seen. A poll that would be lost if this node died
    /// now is recorded first.
    pub(crate) fn answer_leading(&mut self, waiter: Waiter, ask: Ask, ctx: &mut NodeCtx) {
        let Some(now_ms) = self.service_ms(&ctx.reachability) else {
            return ctx.lead_lost(waiter, self.known_leader());
        };
        match ask {
            Ask::Backup { index } => {
                let outcome = self.back_up(index);
                return ctx.out.answer(waiter.reply, Ok(outcome));
            }
            Ask::BackupChunk { id, offset } => {
                let outcome = Outcome::BackupChunk { id, offset };
                return ctx.out.answer(waiter.reply, Ok(outcome));
            }
            Ask::Kick(ask) => return self.kick(waiter, &ask, ctx),
            Ask::Limit(request) => return self.answer_limit(waiter, &request, ctx),
            _ => {}
        }
        let Some(touch) = self.touch(&waiter.line, &ask, now_ms) else {
            return self.answer_read(waiter, &ask, ctx);
        };
        if !ctx.has_room {
            return ctx.out.refuse(waiter.reply, disk_full());
        }
        if self.pending.reads.is_full() {
            return ctx.out.refuse(waiter.reply, overloaded());
        }
        self.pending.push_own([touch]);
        self.pending.reads.push(Read {
            waiter,
            ask,
            touched: true,
        });
    }

    fn touch(&mut self, name: &LineName, ask: &Ask, now_ms: u64) -> Option<Command> {
        let line = self.state.lines().get(name)?;
        let tokens = ask.seen().filter_map(|by| line.token_by(by).ok());
        self.leader_state.as_mut()?.touch(line, tokens, now_ms)
    }

    /// Answers a copy of an answered request.
    pub(crate) fn answer_copy(
        &self,
        waiter: Waiter,
        command: &Command,
        answer: &Answer,
        ctx: &mut NodeCtx,
    ) {
        let now = self.timestamp(ctx.now, &ctx.reachability);
        let result = repeated(command, answer, &self.state, now, self.home());
        let result = with_refused(result, &self.state, self.leader_state.as_ref());
        ctx.out.answer(waiter.reply, result);
    }

    /// Answers a read from the applied state.
    pub(crate) fn answer_read(&self, waiter: Waiter, ask: &Ask, ctx: &mut NodeCtx) {
        let now = self.timestamp(ctx.now, &ctx.reachability);
        if let Ask::KvGet(ask) = ask {
            let result = crate::kv::get(&self.state, &waiter.line, ask, now);
            return ctx.out.answer(waiter.reply, result);
        }
        let result = match self.state.lines().get(&waiter.line) {
            Some(line) => self.read(line, ask, now),
            None => Err(nowserving_line::Refused::LineNotFound.into()),
        };
        let result = with_refused(result, &self.state, self.leader_state.as_ref());
        ctx.out.answer(waiter.reply, result);
    }

    fn read(&self, line: &Line, ask: &Ask, now: Timestamp) -> Result<Outcome, ApiError> {
        match ask {
            Ask::ListTokens(ask) => self.list_tokens(line, ask, now),
            ask => read(line, ask, now, self.home()),
        }
    }

    /// The leader knows best when clients were last seen.
    fn list_tokens(
        &self,
        line: &Line,
        ask: &ListTokens,
        now: Timestamp,
    ) -> Result<Outcome, ApiError> {
        let last_seen_ms = |at, live: Live<'_>| match &self.leader_state {
            Some(leader_state) => leader_state.last_seen_ms(at, live),
            None => live.clock_ms(),
        };
        let page = TokensReply::new(line, ask, now, last_seen_ms)?;
        Ok(Outcome::Reply(ReplyBody::Tokens(Box::new(page))))
    }

    fn home(&self) -> Home {
        Home {
            shard: self.id,
            leader: self.replica.leader(),
        }
    }
}

/// The line's journal goes with the line: this is what stays of who deleted it.
fn log_deletion(applied: &AppliedToLine<'_>) {
    if let (Op::Delete { line, force, .. }, Ok(_)) = (applied.op, &applied.result) {
        let by = applied.note.and_then(|note| note.by.as_deref());
        let reason = applied.note.and_then(|note| note.reason.as_deref());
        let (by, reason) = (by.unwrap_or("-"), reason.unwrap_or("-"));
        tracing::info!(line = %line.as_str(), force, by, reason, "a line is deleted");
    }
}

/// Answers requests and, on the leader, collects events as entries are applied.
struct Watch<'a> {
    leader_state: Option<&'a mut LeaderState>,
    waiters: Vec<Option<Waiter>>,
    now: Timestamp,
    home: Home,
    events: Vec<OutEvent>,
    out: &'a mut Outbox,
}

impl Observer for Watch<'_> {
    fn wants_events(&self) -> bool {
        self.leader_state.is_some()
    }

    fn before(&mut self, state: &State, command: &Command) {
        if let Some(leader_state) = &mut self.leader_state {
            leader_state.before(state, command);
        }
    }

    fn line(&mut self, state: &State, applied: AppliedToLine<'_>) {
        if let Some(leader_state) = &mut self.leader_state {
            log_deletion(&applied);
            leader_state.after(state, &applied, &mut self.events);
        }
        let waiter = self.waiters.get_mut(applied.place).and_then(Option::take);
        if let Some(waiter) = waiter {
            let op = applied.op;
            let result = applied
                .result
                .map_err(ApiError::from)
                .and_then(|reply| outcome(op, reply, state.lines(), self.now, self.home));
            let result = self.with_refused(result, state);
            self.out.answer(waiter.reply, result);
        }
    }

    fn members(&mut self, place: usize, result: Result<MembersChanged, MembersRefused>) {
        let waiter = self.waiters.get_mut(place).and_then(Option::take);
        if let Some(waiter) = waiter {
            self.out.answer(waiter.reply, members_outcome(&result));
        }
    }

    fn restore(&mut self, state: &State, applied: AppliedRestore<'_>) {
        if let Some(leader_state) = &mut self.leader_state {
            leader_state.after_restore(state, &applied, &mut self.events);
        }
        let waiter = self.waiters.get_mut(applied.place).and_then(Option::take);
        if let Some(waiter) = waiter {
            let line = &applied.command.line;
            let result = applied.result.map_err(restore_refused);
            let result = result.and_then(|reply| match reply {
                RestoreReply::Staged { parts } => {
                    Ok(Outcome::Reply(ReplyBody::RestorePart(RestorePartReply {
                        line: line.clone(),
                        parts,
                    })))
                }
                RestoreReply::Done => {
                    // It was put in place, and deleted since: an error must not claim that nothing happened.
                    let line = state.lines().get(line).ok_or_else(outcome_unknown)?;
                    Ok(of_line(line, self.now, self.home))
                }
            });
            let result = self.with_refused(result, state);
            self.out.answer(waiter.reply, result);
        }
    }

    fn kv(&mut self, place: usize, _: &kv::Op, result: Result<kv::Reply, kv::Refused>) {
        let waiter = self.waiters.get_mut(place).and_then(Option::take);
        if let Some(waiter) = waiter {
            self.out.answer(waiter.reply, crate::kv::done(result));
        }
    }

    fn kv_events(&mut self, events: &[kv::Event], wall_ms: u64) {
        self.events.extend(LeaderState::kv_events(events, wall_ms));
    }

    fn limit(&mut self, state: &State, applied: AppliedLimit<'_>) {
        if let Some(leader_state) = &mut self.leader_state {
            leader_state.after_limit(&applied, state);
            limits::count(&applied.reply);
        }
        let waiter = self.waiters.get_mut(applied.place).and_then(Option::take);
        if let Some(waiter) = waiter {
            let result = limits::outcome(applied.command, &applied.reply, state.limits());
            self.out.answer(waiter.reply, result);
        }
    }

    fn discard(&mut self, discarded: Discarded) {
        self.out.outputs.push(Output::Drop(Dropped(discarded)));
    }

    fn copy(&mut self, state: &State, place: usize, command: &Command, answer: &Answer) {
        if let Some(leader_state) = &mut self.leader_state {
            leader_state.not_executed(command);
        }
        let waiter = self.waiters.get_mut(place).and_then(Option::take);
        if let Some(waiter) = waiter {
            if let (Answer::LimitHits(_), Some(leader_state), Some(id)) =
                (answer, &mut self.leader_state, waiter.id)
            {
                leader_state.limits.keep(id.key);
            }
            let result = repeated(command, answer, state, self.now, self.home);
            let result = self.with_refused(result, state);
            self.out.answer(waiter.reply, result);
        }
    }
}

impl Watch<'_> {
    fn with_refused(&self, result: Answered, state: &State) -> Answered {
        with_refused(result, state, self.leader_state.as_deref())
    }
}

type Answered = Result<Outcome, ApiError>;

/// A line as it is shown also counts the entrants whose refusal the leader has not written down yet.
fn with_refused(result: Answered, state: &State, leader_state: Option<&LeaderState>) -> Answered {
    let mut outcome = result?;
    if let (Outcome::Reply(ReplyBody::Line(reply)), Some(leader_state)) =
        (&mut outcome, leader_state)
        && let Some(line) = state.lines().get(&reply.line)
    {
        let refused = line.counts().refused;
        let refused = refused.plus(&leader_state.refusals.unwritten(line));
        reply.counts.set_refused(&refused);
    }
    Ok(outcome)
}

fn read(line: &Line, ask: &Ask, now: Timestamp, home: Home) -> Result<Outcome, ApiError> {
    match ask {
        Ask::Status { token, holes, .. } => {
            let at = line.token_by(token)?;
            let poll = line.poll(at, now.service_ms, *holes)?;
            Ok(Outcome::Status {
                with_ticket: poll.status.at != at,
                status: Box::new(poll.status),
                now,
                holes: poll.holes,
            })
        }
        Ask::Seen(tokens) => Ok(Outcome::Reply(ReplyBody::Seen(SeenReply::new(
            line, tokens, now,
        )))),
        Ask::Find(key) => {
            let at = line
                .find(key)
                .ok_or(nowserving_line::Refused::TokenNotFound)?;
            Ok(of_token(line.status(at, now.service_ms)?, now, true))
        }
        Ask::Info(Consistency::Local | Consistency::Leader | Consistency::Linearizable) => Ok(
            Outcome::Reply(ReplyBody::Info(Box::new(InfoReply::new(line, now, home)))),
        ),
        Ask::Journal(ask) => Ok(Outcome::Reply(ReplyBody::Journal(Box::new(
            JournalReply::new(line, ask)?,
        )))),
        Ask::Show => Ok(of_line(line, now, home)),
        Ask::TryConfigure(ask) => {
            let new = line.would_configure(&ask.settings, ask.if_version, ask.incarnation)?;
            let reply = LineReply::with_settings(line, &new, now, home);
            Ok(Outcome::Reply(ReplyBody::Line(Box::new(reply))))
        }
        Ask::Write(_)
        | Ask::Members(_)
        | Ask::Restore(_)
        | Ask::Kv(_)
        | Ask::KvGet(_)
        | Ask::Kick(_)
        | Ask::ListTokens(_)
        | Ask::Limit(_)
        | Ask::Backup { .. }
        | Ask::BackupChunk { .. } => Err(ApiError::bad_request("not a read of a line")),
    }
}

fn members_outcome(result: &Result<MembersChanged, MembersRefused>) -> Result<Outcome, ApiError> {
    let changed = result.as_ref().map_err(candidates::refusal)?;
    Ok(Outcome::Reply(ReplyBody::MembersChanged(MembersReply {
        members_version: changed.version,
        node: changed.id,
    })))
}

/// The answer to a copy of a command: the same token, line or refusal, in its present state.
fn repeated(
    command: &Command,
    answer: &Answer,
    state: &State,
    now: Timestamp,
    home: Home,
) -> Result<Outcome, ApiError> {
    // It was executed, and the line was deleted since: an error must not claim that nothing happened.
    let line = |op: &Op| state.lines().get(op.line()).ok_or_else(outcome_unknown);
    match (command, answer) {
        (Command::Line(op @ Op::Take { .. }), Answer::Token(at)) => taken(line(op)?, *at),
        (Command::Line(op), Answer::Called) => called(line(op)?, op),
        (Command::Line(op), Answer::Token(at)) => {
            let status = line(op)?.status(*at, now.service_ms);
            let status = status.map_err(|_| outcome_unknown())?;
            let with_ticket = needs_ticket(op, status.at);
            Ok(of_token(status, now, with_ticket))
        }
        (Command::Line(op), Answer::Line) => Ok(of_line(line(op)?, now, home)),
        (Command::Line(op), Answer::Callback { position }) => {
            Ok(of_callback(line(op)?, *position, now))
        }
        (Command::Line(op), Answer::Deleted { remaining }) => Ok(of_deleted(op, *remaining)),
        (Command::Line(_), Answer::Refused(refused)) => Err(refused.clone().into()),
        (Command::Line(_), Answer::BadSettings) => Err(ApiError::bad_request(
            "a setting was out of its range, as the first answer to this request said",
        )),
        (Command::Members(_), Answer::Members(result)) => members_outcome(result),
        (Command::Kv(_), Answer::Kv(result)) => crate::kv::done(*result),
        (Command::Limit(command), answer) => limits::repeated(command, answer, state.limits()),
        // Another request had this id.
        _ => Err(outcome_unknown()),
    }
}

fn restore_refused(refused: RestoreError) -> ApiError {
    match refused {
        RestoreError::Unfinished => {
            ApiError::new(Code::Overloaded, refused.to_string()).retry_after_ms(1)
        }
        RestoreError::TooMany | RestoreError::TooLarge => {
            ApiError::new(Code::Overloaded, refused.to_string())
        }
        RestoreError::Line(RestoreRefused::Line(refused)) => refused.into(),
        RestoreError::Line(RestoreRefused::Bad(bad)) => {
            ApiError::bad_request(format!("data: {bad}"))
        }
        RestoreError::Part { .. } | RestoreError::Parts { .. } | RestoreError::Digest => {
            ApiError::bad_request(refused.to_string())
        }
    }
}

fn of_token(status: Status, now: Timestamp, with_ticket: bool) -> Outcome {
    Outcome::Status {
        status: Box::new(status),
        now,
        with_ticket,
        holes: None,
    }
}

/// The line as it is now.
fn of_line(line: &Line, now: Timestamp, home: Home) -> Outcome {
    Outcome::Reply(ReplyBody::Line(Box::new(LineReply::new(line, now, home))))
}

fn of_deleted(op: &Op, remaining: u64) -> Outcome {
    Outcome::Reply(ReplyBody::Deleted(DeleteReply {
        line: op.line().clone(),
        deleted: remaining == 0,
        remaining,
    }))
}

fn of_callback(line: &Line, position: Option<u64>, now: Timestamp) -> Outcome {
    Outcome::Reply(ReplyBody::Callback(CallbackReply {
        line: line.name().clone(),
        incarnation: line.incarnation(),
        version: line.version(),
        at_ms: now.wall_ms,
        room: position.is_none(),
        position,
    }))
}

/// Whether the caller may lack this token's current ticket.
fn needs_ticket(op: &Op, token: TokenRef) -> bool {
    match op {
        Op::Claim { at, .. }
        | Op::Renew { at, .. }
        | Op::Complete { at, .. }
        | Op::Leave { at, .. }
        | Op::Jump {
            by: TokenBy::At(at),
            ..
        } => token != *at,
        _ => true,
    }
}

/// The kept answer of the call that this operation was or repeated.
fn called(line: &Line, op: &Op) -> Result<Outcome, ApiError> {
    let call_id = match op {
        Op::CallNext { call_id, .. } => Some(call_id),
        Op::Take { call_id, .. } => call_id.as_ref(),
        _ => None,
    };
    let called = call_id.and_then(|id| CalledReply::of_call(line, id));
    let called = called.ok_or_else(outcome_unknown)?;
    Ok(Outcome::Reply(ReplyBody::Called(Box::new(called))))
}

fn taken(line: &Line, at: TokenRef) -> Result<Outcome, ApiError> {
    // It was deleted since, and another one has its name.
    if line.incarnation() != at.incarnation {
        return Err(outcome_unknown());
    }
    Ok(Outcome::Reply(ReplyBody::Called(Box::new(
        CalledReply::of_token(line, at),
    ))))
}

fn outcome(
    op: &Op,
    reply: Reply,
    lines: &Lines,
    now: Timestamp,
    home: Home,
) -> Result<Outcome, ApiError> {
    let line = lines
        .get(op.line())
        .ok_or(nowserving_line::Refused::LineNotFound);
    match reply {
        Reply::Called => called(line?, op),
        Reply::Token(at) if matches!(op, Op::Take { .. }) => taken(line?, at),
        Reply::Token(at) => {
            let status = line?.status(at, lines.now_ms())?;
            Ok(of_token(status, now, needs_ticket(op, at)))
        }
        Reply::Callback { position } => Ok(of_callback(line?, position, now)),
        Reply::Deleted { remaining } => Ok(of_deleted(op, remaining)),
        // Create and configure answer the line as it is now.
        _ => Ok(of_line(line?, now, home)),
    }
}
