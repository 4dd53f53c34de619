//! Rate limits: what the leader of a shard answers.

use metrics::counter;
use nowserving_limit::Verdict;
use nowserving_line::LineName;
use nowserving_protocol::error::ApiError;
use nowserving_protocol::limits::{
    LimitChangeReply, LimitChangesReply, ResetReply, RulesChanged, ShardLimitStats,
};
use nowserving_shard::clock::Micros;
use nowserving_shard::command::Command;
use nowserving_shard::limits::{
    Changed, HitsAnswer, LimitChange, LimitChanges, LimitCommand, LimitReply, LimitsState,
    RulesRefused, part_reply,
};
use nowserving_shard::requests::{Answer, RequestId};

use super::Shard;
use crate::ctx::NodeCtx;
use crate::refusals::{no_rules, outcome_unknown, rules_changed, unavailable};
use crate::request::{LimitRequest, Outcome, ReplyBody};
use crate::requests::decide::Copy;
use crate::requests::waiter::Waiter;

impl Shard {
    /// Answers as the leader, from its memory.
    pub(crate) fn answer_limit(
        &mut self,
        waiter: Waiter,
        request: &LimitRequest,
        ctx: &mut NodeCtx,
    ) {
        let is_offered = self.offer_of_term().is_some();
        let service_ms = self.service_ms(&ctx.reachability);
        let (Some(service_ms), Some(leader_state)) = (service_ms, &mut self.leader_state) else {
            return ctx.lead_lost(waiter, self.known_leader());
        };
        let counts = matches!(
            request,
            LimitRequest::Check { dry_run: false, .. } | LimitRequest::GiveBack { .. }
        );
        if counts && is_offered {
            // What it counted would be in no checkpoint. The next leader answers in a moment.
            return ctx.out.refuse(waiter.reply, unavailable());
        }
        let (limits, saved) = (&mut leader_state.limits, self.state.limits().saved());
        let now = (service_ms, ctx.now.wall_ms);
        let result = match request {
            LimitRequest::Check {
                asks,
                dry_run,
                hold,
            } => {
                let verdicts = limits.check(saved, asks, *dry_run, ctx.now.us, now);
                if let Some(name) = hold.filter(|_| !dry_run) {
                    limits.hold(name, asks, &verdicts);
                }
                Ok(Outcome::LimitPart(Box::new(part_reply(&verdicts))))
            }
            LimitRequest::Exact { asks, .. } => {
                let verdicts = limits.dry_run_exact(saved, asks, now);
                Ok(Outcome::LimitPart(Box::new(part_reply(&verdicts))))
            }
            LimitRequest::GiveBack { name, exact: false } => {
                let left = limits.give_back(saved, *name, ctx.now.us, now);
                Ok(Outcome::LimitPart(Box::new(part_reply(&left))))
            }
            LimitRequest::Stats => Ok(Outcome::Reply(ReplyBody::LimitStats(
                self.limit_stats(ctx.now.us),
            ))),
            LimitRequest::Changes { domain } => {
                let changes = newest(self.state.limits().changes(), domain.as_ref());
                Ok(Outcome::Reply(ReplyBody::LimitChanges(changes)))
            }
            LimitRequest::GiveBack { exact: true, .. } | LimitRequest::Command(_) => {
                Err(ApiError::bad_request("op: not a read"))
            }
        };
        ctx.out.answer(waiter.reply, result);
    }

    /// Takes a write as the leader.
    pub(crate) fn take_limit(&mut self, waiter: Waiter, request: LimitRequest, ctx: &mut NodeCtx) {
        let is_copy = waiter.id.is_some_and(|id| self.copy_of(id) != Copy::None);
        let service_ms = self.service_ms(&ctx.reachability);
        let (Some(service_ms), Some(leader_state)) = (service_ms, &mut self.leader_state) else {
            return ctx.lead_lost(waiter, self.known_leader());
        };
        let now = (service_ms, ctx.now.wall_ms);
        let command = match request {
            // Of what an earlier try of the check has counted: a later one counts by the same name.
            LimitRequest::GiveBack { exact: true, .. } if is_copy => {
                return ctx.out.answer(waiter.reply, Ok(nothing_given_back()));
            }
            LimitRequest::GiveBack { name, exact: true } => {
                let domain = waiter.line.clone();
                if self.pending.has_in_log(name) {
                    // A copy is on its way, and will be told that it may pass.
                    leader_state.limits.keep(name);
                }
                match leader_state.limits.give_back_exact(domain, name, now) {
                    Some(command) => command,
                    None => return ctx.out.answer(waiter.reply, Ok(nothing_given_back())),
                }
            }
            LimitRequest::Exact { asks, .. } => LimitCommand::Hits {
                domain: waiter.line.clone(),
                asks: leader_state.limits.timed(asks, now),
            },
            LimitRequest::Command(command) => command,
            request => return self.answer_limit(waiter, &request, ctx),
        };
        self.take_write(waiter, Command::Limit(command), ctx);
    }

    /// Whether what this request has counted is being given back: it is forgotten then, and a copy is decided after that.
    pub(crate) fn gives_back(&self, id: Option<RequestId>) -> bool {
        let leader_state = self.leader_state.as_ref().zip(id);
        leader_state.is_some_and(|(it, id)| it.limits.gives_back_exact(id.key))
    }

    /// Answers hits on exact limits that the applied state refuses.
    pub(crate) fn refuse_hits(&mut self, waiter: Waiter, verdicts: &[Verdict], ctx: &mut NodeCtx) {
        if let Some(leader_state) = &mut self.leader_state {
            leader_state.limits.refused(verdicts);
        }
        self.remember_refusal(&waiter, Answer::LimitHits(HitsAnswer::new(verdicts)), ctx);
        let refused = Outcome::LimitPart(Box::new(part_reply(verdicts)));
        ctx.out.answer(waiter.reply, Ok(refused));
    }

    fn limit_stats(&self, now: Micros) -> ShardLimitStats {
        let saved = self.state.limits().saved().len() as u64;
        let Some(leader_state) = &self.leader_state else {
            return ShardLimitStats::default();
        };
        let (table, (checks, refused)) =
            (leader_state.limits.table(), leader_state.limits.counts());
        ShardLimitStats {
            shard: self.id,
            counters: table.len().into(),
            key_bytes: table.key_bytes(),
            log_hits: table.log_hits(),
            changed: leader_state.limits.changed(),
            changed_for_ms: leader_state
                .limits
                .oldest_change()
                .map_or(0, |at| now.saturating_sub(at).div_ceil(1_000)),
            saved,
            checks,
            refused,
            untracked: leader_state.limits.untracked(),
            not_kept: leader_state.limits.not_kept(),
        }
    }
}

/// The answer to a give-back that is void.
fn nothing_given_back() -> Outcome {
    Outcome::LimitPart(Box::default())
}

/// The newest changes by operators, of one domain or of all, the oldest first.
fn newest(changes: &LimitChanges, domain: Option<&LineName>) -> LimitChangesReply {
    let of = |it: &&LimitChange| domain.is_none_or(|domain| it.domain == *domain);
    let mut reply = LimitChangesReply {
        changes: changes.iter().filter(of).map(change_reply).collect(),
        ..LimitChangesReply::default()
    };
    reply.keep_newest();
    reply
}

fn change_reply(change: &LimitChange) -> LimitChangeReply {
    let (op, version, descriptor) = match &change.what {
        Changed::Applied { version } => ("apply", Some(*version), None),
        Changed::Deleted { version } => ("delete", Some(*version), None),
        Changed::Reset { descriptor } => ("reset", None, Some(descriptor.clone())),
    };
    let said = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    LimitChangeReply {
        at_ms: change.at_ms,
        op: op.to_owned(),
        domain: change.domain.clone(),
        version,
        descriptor,
        by: said(&change.by),
        reason: said(&change.reason),
    }
}

/// The leader of a shard counts these.
pub(crate) fn count(reply: &LimitReply) {
    if let LimitReply::Checkpoint { not_kept, .. } = reply {
        counter!("nowserving_limit_not_kept_total").increment(*not_kept as u64);
    }
}

/// The answer to a command about limits.
pub(crate) fn outcome(
    command: &LimitCommand,
    reply: &LimitReply,
    limits: &LimitsState,
) -> Result<Outcome, ApiError> {
    match reply {
        LimitReply::Hits(verdicts) => Ok(Outcome::LimitPart(Box::new(part_reply(verdicts)))),
        LimitReply::Reset(known) => Ok(Outcome::Reply(ReplyBody::LimitReset(ResetReply {
            known: *known,
        }))),
        LimitReply::Rules(result) => of_rules(command, *result, limits),
        LimitReply::Checkpoint { .. } => Err(outcome_unknown()),
    }
}

/// The answer to a copy of it.
pub(crate) fn repeated(
    command: &LimitCommand,
    answer: &Answer,
    limits: &LimitsState,
) -> Result<Outcome, ApiError> {
    match (command, answer) {
        (LimitCommand::Hits { asks, .. }, Answer::LimitHits(answer)) => {
            let verdicts = answer.again(asks, limits.saved());
            let verdicts = verdicts.ok_or_else(outcome_unknown)?;
            Ok(Outcome::LimitPart(Box::new(part_reply(&verdicts))))
        }
        (LimitCommand::GiveBack(_), Answer::LimitHits(_)) => Ok(nothing_given_back()),
        (LimitCommand::Reset(_), Answer::LimitReset(known)) => {
            Ok(Outcome::Reply(ReplyBody::LimitReset(ResetReply {
                known: *known,
            })))
        }
        (LimitCommand::Apply(_) | LimitCommand::Delete(_), Answer::LimitRules(result)) => {
            of_rules(command, *result, limits)
        }
        // Another request had this id.
        _ => Err(outcome_unknown()),
    }
}

fn of_rules(
    command: &LimitCommand,
    result: Result<u64, RulesRefused>,
    limits: &LimitsState,
) -> Result<Outcome, ApiError> {
    let domain = command.domain().cloned().ok_or_else(outcome_unknown)?;
    let refusal = |refused| match refused {
        RulesRefused::Version => {
            let known = limits.rules().get(&domain);
            rules_changed(&domain, known.map_or(0, |known| known.version))
        }
        RulesRefused::NoDomain => no_rules(&domain),
        RulesRefused::TooManyDomains | RulesRefused::TooLarge => {
            ApiError::bad_request(refused.to_string())
        }
    };
    let version = result.map_err(refusal)?;
    Ok(Outcome::Reply(ReplyBody::LimitRules(RulesChanged {
        domain,
        version,
        dry_run: false,
        changes: Vec::new(),
        notes: Vec::new(),
    })))
}
