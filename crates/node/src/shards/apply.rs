//! Committed entries become state, answers and events; confirmed reads become answers.

use anyhow::Context as _;
use nowserving_line::{Line, Lines, Op, Reply, Status, Timestamp};
use nowserving_protocol::admin::{JournalReply, LineReply};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::frame::StateHash;
use nowserving_protocol::user::{Consistency, Home, InfoReply};
use nowserving_replica::{Committed, Payload};
use nowserving_shard::command::{self, Command};
use nowserving_shard::snapshot;
use nowserving_shard::state::{AppliedToLine, Observer, State};

use super::group::{Proposed, Shard, Turn, Waiter};
use super::outbox::Outbox;
use crate::request::Request;
use nowserving_engine::{Ask, Outcome};
use nowserving_shard::leader_state::LeaderState;

/// How often, on the service clock, a part of the state is hashed (see `agreement`).
const STATE_HASH_MS: u64 = 1_000;

impl Shard {
    /// Applies committed entries, in order.
    ///
    /// # Errors
    /// An entry that this build cannot read. Going on would make this node's state differ from its
    /// peers', so the caller must stop the node.
    pub fn apply(&mut self, entries: Vec<Committed>, turn: &mut Turn<'_>) -> anyhow::Result<()> {
        for entry in entries {
            let ours = self.take_proposed(entry.index, entry.term, turn);
            match &entry.payload {
                Payload::Empty => self.begin_leading(&entry, turn),
                Payload::Command(data) => {
                    let proposed = match ours {
                        Some(proposed) => proposed,
                        None => command::decode(data).map(Proposed::from).with_context(|| {
                            format!("shard {}: entry {} is not readable", self.id, entry.index)
                        })?,
                    };
                    self.apply_entry(&entry, proposed, turn);
                }
                Payload::ConfChange(_) => anyhow::bail!(
                    "shard {}: entry {} changes the membership, which this release cannot",
                    self.id,
                    entry.index
                ),
            }
            self.replica.on_applied(entry.index);
        }
        Ok(())
    }

    /// What this node proposed at `index`, if that is what was committed; if another entry took its
    /// place, the waiters learn that nothing happened.
    fn take_proposed(&mut self, index: u64, term: u64, turn: &mut Turn<'_>) -> Option<Proposed> {
        let mut ours = None;
        while let Some(first) = self.proposed.first_entry() {
            let at = *first.key();
            if at.0 > index {
                break;
            }
            let proposed = first.remove();
            if at == (index, term) {
                ours = Some(proposed);
                continue;
            }
            let error = self.overwritten();
            for waiter in proposed.waiters.into_iter().flatten() {
                turn.out
                    .refuse(waiter.reply, waiter.deadline, error.clone());
            }
        }
        ours
    }

    /// The first entry of a term is empty: with it everything of earlier terms is applied.
    fn begin_leading(&mut self, entry: &Committed, turn: &mut Turn<'_>) {
        if self.leads() && self.replica.term() == entry.term {
            tracing::info!(shard = self.id, term = entry.term, "leading");
            self.leader_state = Some(LeaderState::begin(
                entry.term,
                &self.state,
                turn.reachability,
                turn.now,
                turn.wall_ms,
            ));
        }
    }

    fn apply_entry(&mut self, committed: &Committed, proposed: Proposed, turn: &mut Turn<'_>) {
        let Proposed { entry, waiters } = proposed;
        self.compact_floor = self.compact_floor.max(entry.compact_floor);
        let mut now = self.now(turn);
        now.service_ms = now.service_ms.max(entry.now_ms);
        let second = entry.now_ms / STATE_HASH_MS;
        // At most one a turn: a turn that replays thousands of entries must not take seconds, nor may
        // its hashes fill a frame.
        let hashed = turn
            .out
            .state_hashes
            .last()
            .is_some_and(|hash| hash.shard == self.id);
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
            out: &mut *turn.out,
        };
        self.state.apply_entry(committed.index, &entry, &mut watch);
        if hash_due {
            turn.out.state_hashes.push(StateHash {
                shard: self.id,
                index: committed.index,
                hash: snapshot::hash_part(&self.state, second).to_vec().into(),
                format: snapshot::HASH_FORMAT,
            });
        }
    }

    /// Answers the reads that a quorum has confirmed and whose index is applied.
    pub fn answer_confirmed(&mut self, turn: &mut Turn<'_>) {
        if self.reads.is_empty() || self.leader_state.is_none() {
            return;
        }
        for request in self.reads.ready(self.replica.applied()) {
            self.answer_leading(request, turn);
        }
    }

    /// Answers a read as the leader, and marks its token as heard from.
    pub(super) fn answer_leading(&mut self, request: Request, turn: &mut Turn<'_>) {
        let now = self.now(turn);
        let Some(leader_state) = &mut self.leader_state else {
            let error = ApiError::not_leader(self.replica.leader());
            return turn.out.refuse(request.reply, request.deadline, error);
        };
        let now_ms = leader_state
            .now_ms(turn.reachability)
            .max(self.state.now_ms());
        if let Ask::Status { at, .. } = &request.ask
            && let Some(line) = self.state.lines().get(&request.line)
            && line.incarnation() == at.incarnation
        {
            leader_state.heard(line, *at, now_ms);
        }
        self.answer_read(request, now, turn);
    }

    /// Answers a read from the applied state.
    pub(super) fn answer_read(&self, request: Request, now: Timestamp, turn: &mut Turn<'_>) {
        let result = match self.state.lines().get(&request.line) {
            Some(line) => read(line, &request.ask, now, self.home()),
            None => Err(nowserving_line::Refused::LineNotFound.into()),
        };
        turn.out.answer(request.reply, request.deadline, result);
    }

    fn home(&self) -> Home {
        Home {
            shard: self.id,
            leader: self.replica.leader(),
        }
    }
}

/// A node watches its entries being applied: it answers, and as the leader publishes.
struct Watch<'a> {
    leader_state: Option<&'a mut LeaderState>,
    waiters: Vec<Option<Waiter>>,
    now: Timestamp,
    home: Home,
    out: &'a mut Outbox,
}

impl Observer for Watch<'_> {
    fn before(&mut self, state: &State, command: &Command) {
        if let Some(leader_state) = &mut self.leader_state {
            leader_state.before(state, command);
        }
    }

    fn line(&mut self, state: &State, applied: AppliedToLine<'_>) {
        if let Some(leader_state) = &mut self.leader_state {
            leader_state.after(state, &applied, &mut self.out.events);
        }
        let waiter = self.waiters.get_mut(applied.place).and_then(Option::take);
        if let Some(waiter) = waiter {
            let op = applied.op;
            let result = applied
                .result
                .map_err(ApiError::from)
                .and_then(|reply| outcome(op, reply, state.lines(), self.now, self.home));
            self.out.answer(waiter.reply, waiter.deadline, result);
        }
    }
}

fn read(line: &Line, ask: &Ask, now: Timestamp, home: Home) -> Result<Outcome, ApiError> {
    match ask {
        Ask::Status { at, holes, .. } => {
            let poll = line.poll(*at, now.service_ms, *holes)?;
            Ok(Outcome::Status {
                with_ticket: poll.status.at != *at,
                status: Box::new(poll.status),
                now,
                holes: poll.holes,
            })
        }
        Ask::Find(key) => {
            let at = line
                .find(key)
                .ok_or(nowserving_line::Refused::TokenNotFound)?;
            Ok(Outcome::Status {
                status: Box::new(line.status(at, now.service_ms)?),
                now,
                with_ticket: true,
                holes: None,
            })
        }
        Ask::Info(Consistency::Local | Consistency::Leader | Consistency::Linearizable) => {
            Ok(Outcome::Info(Box::new(InfoReply::new(line, now, home))))
        }
        Ask::Journal(ask) => Ok(Outcome::Journal(Box::new(JournalReply::new(line, ask)?))),
        Ask::Show => Ok(Outcome::Line(Box::new(LineReply::new(line, now, home)))),
        Ask::Write(_) => Err(ApiError::bad_request("not a read")),
    }
}

/// Whether who asked may not have the ticket of the token that is answered.
fn needs_ticket(op: &Op, status: &Status) -> bool {
    match op {
        Op::Claim { at, .. }
        | Op::Renew { at, .. }
        | Op::Complete { at, .. }
        | Op::Leave { at, .. } => status.at != *at,
        _ => true,
    }
}

fn outcome(
    op: &Op,
    reply: Reply,
    lines: &Lines,
    now: Timestamp,
    home: Home,
) -> Result<Outcome, ApiError> {
    let line = lines.get(op.line());
    match reply {
        Reply::Status(status) => Ok(Outcome::Status {
            with_ticket: needs_ticket(op, &status),
            status: Box::new(status),
            now,
            holes: None,
        }),
        Reply::Deleted { remaining } => Ok(Outcome::Deleted {
            line: op.line().clone(),
            remaining,
        }),
        // Create and configure answer the line as it is now.
        _ => line
            .map(|line| Outcome::Line(Box::new(LineReply::new(line, now, home))))
            .ok_or_else(|| nowserving_line::Refused::LineNotFound.into()),
    }
}
