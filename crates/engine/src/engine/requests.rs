//! Requests of clients and operators.

use nowserving_protocol::error::{ApiError, Code};
use nowserving_shard::clock::Micros;
use nowserving_shard::members::MembersRefused;
use nowserving_shard::requests::{Answer, Origin};
use nowserving_shard::restore::{RestoreCommand, RestoreStep};

use super::Engine;
use crate::delivery::{Delivery, Via};
use crate::io::Now;
use crate::membership::candidates;
use crate::refusals::unavailable;
use crate::request::{Ask, Effect, Outcome, Question, ReplyBody, ReplyTo, Request};
use crate::requests::age::{Age, age, taken_now};
use crate::requests::decide::{Action, Case, Copy, Role, decide, late_by_header};
use crate::requests::waiter::Waiter;
use crate::{kv, listing};

/// The most bytes of parts of lines that are being restored, in all shards: a node has them in memory, and in its
/// snapshots.
const STAGED_BYTES_MAX: u64 = 2 << 30;

impl Engine {
    pub(super) fn request(&mut self, now: Now, request: Request, delivery: Delivery) {
        let takes_requests = self.takes_requests(now.us) && !self.stopping.has_ended();
        let shard = self.shards.get_mut(&request.shard);
        let leader_since = shard.as_deref().and_then(|it| it.following.leader_since());
        let named = request.id.is_some_and(|id| id.origin == Origin::Client);
        let term = shard.as_deref().map(|it| it.replica.term());
        let to_another_term = named && delivery.term.is_some() && delivery.term != term;
        let to_another_term =
            to_another_term && !nowserving_bite::is(nowserving_bite::Break::S14Refused);
        let effect = match request.ask.effect() {
            // A node that does not hold the shard has nothing to read.
            Effect::ReadLocal if shard.is_none() => Effect::Read,
            effect => effect,
        };
        let case = Case {
            role: if !takes_requests {
                Role::OutOfTouch
            } else if shard.as_ref().is_some_and(|shard| shard.serves_as_leader()) {
                Role::Leader
            } else {
                Role::NotLeader
            },
            via: delivery.via,
            shared: delivery.shared || to_another_term,
            age: age(&request, delivery, now, self.ctx.clocks.start, leader_since),
            effect,
            named,
            // Of other requests it decides nothing, and they are the most.
            copy: match (request.id, shard.as_deref()) {
                (Some(id), Some(shard)) if delivery.via == Via::Forwarded => shard.copy_of(id),
                _ => Copy::None,
            },
        };
        if case.age == Age::Late && effect.is_write() {
            metrics::counter!("nowserving_late_writes_total").increment(1);
        }
        let action = decide(case);
        if let Some(error) = late_by_header(action, case.age, &request, delivery, now) {
            return self.ctx.out.refuse(request.reply, error);
        }
        let (waiter, mut ask) = Waiter::of(taken_now(request, now), delivery);
        let mut refused = None;
        if let (Action::Take, Ask::Members(members)) = (&action, &mut ask) {
            refused = self.check_members_request(members, waiter.id, now.us).err();
        }
        if let (Action::Take, Ask::Restore(command)) = (&action, &ask)
            && let Err(error) = self.check_staging(command)
        {
            return self.ctx.out.refuse(waiter.reply, error);
        }
        let shard = self.shards.get_mut(&waiter.shard);
        let ctx = &mut self.ctx;
        match (action, shard) {
            (Action::AnswerLocally, Some(shard)) => shard.answer_read(waiter, &ask, ctx),
            (Action::Take, Some(shard)) => match refused {
                // It passes, and is not remembered: the copies that follow shall find out. Others are, though some pass, too:
                // no copy takes effect after its sender was refused.
                Some(refused @ (MembersRefused::InProgress(_) | MembersRefused::NotBegun)) => {
                    ctx.out.refuse(waiter.reply, candidates::refusal(&refused));
                }
                Some(refused) => {
                    let error = candidates::refusal(&refused);
                    shard.refuse_unlogged(waiter, Answer::Members(Err(refused)), error, ctx);
                }
                None => shard.take(waiter, ask, ctx),
            },
            (action, shard) => {
                let known = shard.map(|shard| shard.known_leader());
                let known = known.or_else(|| self.role.known_leader(waiter.shard));
                ctx.forward_or_refuse(action, waiter, known.unwrap_or_default());
            }
        }
    }

    pub(super) fn question(&mut self, now: Micros, question: Question, reply: ReplyTo) {
        match self.answer(now, &question) {
            Ok(part) => self.ask_loops(question, reply, part, now),
            Err(error) => self.ctx.out.refuse(reply, error),
        }
    }

    /// The answer to a question, of this engine's shards if it is about all.
    pub(super) fn answer(&self, now: Micros, question: &Question) -> Result<Outcome, ApiError> {
        if !self.takes_part(now) || self.stopping.has_ended() {
            Err(unavailable())
        } else {
            Ok(match question {
                Question::ClusterStatus => {
                    Outcome::Reply(ReplyBody::Cluster(Box::new(self.cluster_status(now))))
                }
                Question::ListLines(ask) => {
                    let lines = self.shards.values().map(|shard| shard.state.lines());
                    Outcome::Reply(ReplyBody::Lines(Box::new(listing::page(ask, lines))))
                }
                Question::KvList { bucket, ask } => {
                    let states = self.shards.values().map(|shard| &shard.state);
                    kv::list(bucket, ask, states)
                }
                Question::MembersChanges => Outcome::Reply(ReplyBody::MembersChanges(Box::new(
                    self.members_changes(now),
                ))),
            })
        }
    }

    /// Parts of lines are kept in memory, in each shard up to a bound of its own that must be the same on all nodes.
    pub(super) fn check_staging(&self, command: &RestoreCommand) -> Result<(), ApiError> {
        let shards = self.shards.values();
        let staged: u64 = shards.map(|shard| shard.state.staged_bytes()).sum();
        let is_part = matches!(command.step, RestoreStep::Part { .. });
        match is_part && staged >= STAGED_BYTES_MAX / u64::from(self.config.place.count) {
            true => Err(ApiError::new(
                Code::Overloaded,
                format!(
                    "the parts of all lines that are being restored have {STAGED_BYTES_MAX} bytes already"
                ),
            )),
            false => Ok(()),
        }
    }
}
