//! Committed entries become state, answers and events; confirmed reads become answers.

use anyhow::Context as _;
use nowserving_line::{Line, Lines, Op, Reply, Stamp, Status, Timestamp};
use nowserving_protocol::admin::{JournalReply, LineReply};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::frame::StateHash;
use nowserving_protocol::user::{Consistency, Home, InfoReply};
use nowserving_replica::{Committed, Payload};
use nowserving_shard::command::{self, Batch};
use nowserving_shard::snapshot;

use super::group::{Shard, Turn, Waiter};
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
                    let batch = command::decode(data).with_context(|| {
                        format!("shard {}: entry {} is not readable", self.id, entry.index)
                    })?;
                    self.apply_batch(&entry, batch, ours, turn);
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

    /// The waiters of the entry at `index` if it is ours; if another took its place, they learn
    /// that nothing happened.
    fn take_proposed(&mut self, index: u64, term: u64, turn: &mut Turn<'_>) -> Vec<Option<Waiter>> {
        let mut ours = Vec::new();
        while let Some(first) = self.proposed.first_entry() {
            let at = *first.key();
            if at.0 > index {
                break;
            }
            let waiters = first.remove();
            if at == (index, term) {
                ours = waiters;
                continue;
            }
            let error = self.overwritten();
            for waiter in waiters.into_iter().flatten() {
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
                &self.lines,
                turn.reachability,
                turn.now,
                turn.wall_ms,
            ));
        }
    }

    fn apply_batch(
        &mut self,
        entry: &Committed,
        batch: Batch,
        waiters: Vec<Option<Waiter>>,
        turn: &mut Turn<'_>,
    ) {
        self.compact_floor = self.compact_floor.max(batch.compact_floor);
        let mut now = self.now(turn);
        now.service_ms = now.service_ms.max(batch.now_ms);
        let second = batch.now_ms / STATE_HASH_MS;
        // At most one a turn: a turn that replays thousands of entries must not take seconds, nor may
        // its hashes fill a frame.
        let hashed = turn
            .out
            .state_hashes
            .last()
            .is_some_and(|hash| hash.shard == self.id);
        let hash_due = !hashed && second > self.lines.now_ms() / STATE_HASH_MS;
        // Only the leader of the entry's own term executes effects.
        let mut leader_state = self.leader_state.take();
        let mut leading = leader_state
            .as_mut()
            .filter(|leader_state| leader_state.term == entry.term);
        let mut waiters = waiters.into_iter();
        let home = self.home();
        let mut events = Vec::new();
        for (op_no, op) in batch.ops.iter().enumerate() {
            let stamp = Stamp {
                index: entry.index,
                op_no: u32::try_from(op_no).unwrap_or(u32::MAX),
                now_ms: batch.now_ms,
                wall_ms: batch.wall_ms,
            };
            if let (Some(leader_state), Some(name)) = (&mut leading, op.line()) {
                leader_state.before(name, &self.lines);
            }
            let result = self.lines.apply(stamp, op, &mut events);
            let events = std::mem::take(&mut events);
            if let (Some(leader_state), Ok(reply)) = (&mut leading, &result) {
                leader_state.after(op, reply, events, &self.lines, &mut turn.out.events);
            }
            match op {
                Op::Recycle { .. } | Op::Touch { .. } | Op::RunBackground { .. } | Op::Stamp => {
                    let in_flight = self.in_flight(op);
                    *in_flight = in_flight.saturating_sub(1);
                }
                _ => {}
            }
            if let Some(waiter) = waiters.next().flatten() {
                let result = result
                    .map_err(ApiError::from)
                    .and_then(|reply| outcome(op, reply, &self.lines, now, home));
                turn.out.answer(waiter.reply, waiter.deadline, result);
            }
        }
        self.leader_state = leader_state;
        if hash_due {
            turn.out.state_hashes.push(StateHash {
                shard: self.id,
                index: entry.index,
                hash: snapshot::hash_part(&self.lines, second).to_vec().into(),
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
            .max(self.lines.now_ms());
        if let Ask::Status { at, .. } = &request.ask
            && let Some(line) = self.lines.get(&request.line)
            && line.incarnation() == at.incarnation
        {
            leader_state.heard(line, *at, now_ms);
        }
        self.answer_read(request, now, turn);
    }

    /// Answers a read from the applied state.
    pub(super) fn answer_read(&self, request: Request, now: Timestamp, turn: &mut Turn<'_>) {
        let result = match self.lines.get(&request.line) {
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
    let line = op.line().and_then(|name| lines.get(name));
    match reply {
        Reply::Status(status) => Ok(Outcome::Status {
            with_ticket: needs_ticket(op, &status),
            status: Box::new(status),
            now,
            holes: None,
        }),
        Reply::Deleted { remaining } => match op.line() {
            Some(line) => Ok(Outcome::Deleted {
                line: line.clone(),
                remaining,
            }),
            None => Err(ApiError::bad_request("no line named")),
        },
        // Create and configure answer the line as it is now.
        _ => line
            .map(|line| Outcome::Line(Box::new(LineReply::new(line, now, home))))
            .ok_or_else(|| nowserving_line::Refused::LineNotFound.into()),
    }
}
