//! Operators' requests about rate limits.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{HeaderMap, Message};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::join_all;
use nowserving_engine::refusals::{no_rules, rules_changed};
use nowserving_engine::{ReplyTo, Via};
use nowserving_front::limits::{
    APPLY_BYTES_MAX, KnownDomain, changes, entries, notes, read_one, resolve, show,
};
use nowserving_limit::Matched;
use nowserving_limit::Rules;
use nowserving_line::{LineName, OperatorNote};
use nowserving_protocol::codec::{Format, decode_request, decode_request_within, encode};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::limits::{
    ApplyRules, Check, DeleteRules, LimitChangesReply, LimitStats, LimitStatsReply,
    ListLimitChanges, NodeHits, ResetLimit, ResetReply, RuleHits, RulesChanged, STATS_SHARDS_MAX,
    ShowRules, TestLimits,
};
use nowserving_protocol::operation::Operation;
use nowserving_protocol::subject::unknown_op;
use nowserving_shard::limits::home_of;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::super::message::viewed;
use super::super::node_request::NodeRequest;
use super::parts::Effect;
use super::{Call, Limits};

/// After a change, for so long at most its answer waits until this node knows it.
const LEARNING_MAX: Duration = Duration::from_secs(1);

impl Limits {
    pub(super) async fn answer_admin(
        &self,
        op: Operation,
        message: &Message,
        reply: &ReplyTo,
    ) -> Result<Vec<u8>, ApiError> {
        let (payload, format) = (&message.payload, reply.format);
        let mut call = Call::of(message, reply)?;
        call.note = viewed(message, |it| self.trust.note(it, Via::Plain, op))?;
        match op {
            Operation::LimitApply => {
                let ask: ApplyRules = decode_request_within(payload, APPLY_BYTES_MAX)?;
                ask.check()?;
                let applied = self.apply(ask, &call).await?;
                Ok(encode(&applied, format))
            }
            Operation::LimitDelete => {
                let ask: DeleteRules = decode_request(payload)?;
                let deleted = self.delete(&ask, &call).await?;
                Ok(encode(&deleted, format))
            }
            Operation::LimitShow => {
                let ask: ShowRules = decode_request(payload)?;
                let known = self.known(call.until()).await?;
                Ok(encode(&show(&known, &ask)?, format))
            }
            Operation::LimitStats => {
                let ask: LimitStats = decode_request(payload)?;
                Ok(encode(&self.stats(ask, &call).await?, format))
            }
            Operation::LimitChanges => {
                let ask: ListLimitChanges = decode_request(payload)?;
                Ok(encode(&self.history(&ask, &call).await?, format))
            }
            Operation::LimitReset => {
                let ask: ResetLimit = decode_request(payload)?;
                ask.check()?;
                let reset = self.reset(ask, &call).await?;
                Ok(encode(&reset, format))
            }
            Operation::LimitTest => {
                let ask: TestLimits = decode_request(payload)?;
                let check = Check {
                    hits: ask.hits,
                    dry_run: true,
                    ..Check::new(ask.descriptors)
                };
                check.check()?;
                let tested = self.check(&ask.domain, &check, &call, true);
                Ok(encode(&tested.await?, format))
            }
            _ => Err(unknown_op(op.word())),
        }
    }

    async fn apply(&self, ask: ApplyRules, call: &Call) -> Result<RulesChanged, ApiError> {
        let (domain, rules) = read_one(&ask.rules)?;
        let known = self.known(call.until()).await?;
        let known = known.domains.get(&domain);
        let (changes, notes) = (changes(known.map(AsRef::as_ref), &rules), notes(&rules));
        if ask.dry_run {
            let tried = tried_rules(&ask, domain, known.map(AsRef::as_ref), changes)?;
            return Ok(RulesChanged { notes, ..tried });
        }
        log("apply", &domain, call);
        let changed: RulesChanged = self
            .change(Operation::LimitApply, &domain, &ask, call)
            .await?;
        Ok(RulesChanged {
            changes,
            notes,
            ..changed
        })
    }

    async fn delete(&self, ask: &DeleteRules, call: &Call) -> Result<RulesChanged, ApiError> {
        let known = self.known(call.until()).await?;
        let known = known.domains.get(&ask.domain);
        let changes = changes(known.map(AsRef::as_ref), &Rules::default());
        if ask.dry_run {
            let known = known.ok_or_else(|| no_rules(&ask.domain))?;
            return tried(
                ask.domain.clone(),
                Some(known.as_ref()),
                ask.if_version,
                changes,
            );
        }
        log("delete", &ask.domain, call);
        let changed: RulesChanged = self
            .change(Operation::LimitDelete, &ask.domain, ask, call)
            .await?;
        Ok(RulesChanged { changes, ..changed })
    }

    /// Has shard 0 change rules, and waits until this node knows them.
    async fn change(
        &self,
        op: Operation,
        domain: &LineName,
        body: &impl Serialize,
        call: &Call,
    ) -> Result<RulesChanged, ApiError> {
        let subject = self.subjects.leader(op, 0, domain);
        let id = call.id_for(0, op);
        let effect = Effect::Once(id);
        let until = call.times.for_writes()?;
        let changed = self.ask(subject, body, (effect, call.note.as_deref()), until);
        let changed = changed.await;
        let changed: RulesChanged = changed.map_err(repeatable)?;
        let mut known = self.known.clone();
        let knows = known.wait_for(|known| {
            let known = known.as_ref().map_or(0, |known| known.version);
            known >= changed.version
        });
        // It has happened, whether this node knows it or not.
        let until = call.until().min(Instant::now() + LEARNING_MAX);
        let _ = tokio::time::timeout_at(until, knows).await;
        Ok(changed)
    }

    async fn stats(&self, ask: LimitStats, call: &Call) -> Result<LimitStatsReply, ApiError> {
        let begin = ask.from.unwrap_or_default();
        let end = begin.saturating_add(STATS_SHARDS_MAX).min(self.shards);
        let of_shard = LimitStats::default();
        let shards = self.each(begin..end, Operation::LimitStats, &of_shard, call);
        let hits = async {
            match ask.from {
                None => self.hits_of_nodes(call).await,
                Some(_) => (Vec::new(), Vec::new()),
            }
        };
        let (shards, (hits, nodes_unanswered)) = tokio::join!(shards, hits);
        let (shards, unanswered) = shards?;
        let mut nodes: Vec<_> = hits.iter().map(|it| it.of).collect();
        nodes.sort_by_key(|it| it.node);
        Ok(LimitStatsReply {
            shards,
            unanswered,
            next: Some(end).filter(|end| *end < self.shards),
            rules: RuleHits::sum(hits.into_iter().flat_map(|it| it.rules)),
            nodes,
            nodes_unanswered,
        })
    }

    /// What all nodes have counted, and which did not answer. A node that is away is asked once.
    async fn hits_of_nodes(&self, call: &Call) -> (Vec<NodeHits>, Vec<u64>) {
        let me = self.nodes.me;
        let mut others = self.nodes.peers.borrow().ids.clone();
        others.remove(&me);
        let until = self.until_others(call);
        let asked = others.into_iter().map(|node| async move {
            let request = NodeRequest {
                subject: self.forward.limit_hits(node),
                payload: Bytes::new(),
                id: None,
                note: None,
                until,
            };
            request.send(&self.client).await.map_err(|_| node)
        });
        let mut answered = vec![self.counters.of_node(me)];
        let mut unanswered = Vec::new();
        for answer in join_all(asked).await {
            match answer {
                Ok(hits) => answered.push(hits),
                Err(node) => unanswered.push(node),
            }
        }
        (answered, unanswered)
    }

    /// Tells other nodes what this one has counted, until the connection is closed.
    ///
    /// # Errors
    /// The subscription cannot be made.
    pub async fn answer_nodes(self: Arc<Self>) -> anyhow::Result<()> {
        let me = self.nodes.me;
        let mut asked = self.client.subscribe(self.forward.limit_hits(me)).await?;
        while let Some(message) = asked.next().await {
            let hits = encode(&self.counters.of_node(me), Format::MsgPack);
            let reply = message.reply.as_deref();
            let sent = self.responder.send(reply, HeaderMap::new(), hits.into());
            sent.await;
        }
        Ok(())
    }

    /// What the others say is to arrive in time, though some do not answer.
    fn until_others(&self, call: &Call) -> Instant {
        let now = Instant::now();
        now + call.until().saturating_duration_since(now) * 3 / 4
    }

    async fn history(
        &self,
        ask: &ListLimitChanges,
        call: &Call,
    ) -> Result<LimitChangesReply, ApiError> {
        let asked = self.each(0..self.shards, Operation::LimitChanges, ask, call);
        let (shards, unanswered): (Vec<LimitChangesReply>, _) = asked.await?;
        let mut reply = LimitChangesReply {
            left_out: shards.iter().any(|it| it.left_out),
            changes: shards.into_iter().flat_map(|it| it.changes).collect(),
            unanswered,
        };
        reply.keep_newest();
        Ok(reply)
    }

    /// The answers of the leaders of these shards, and which shards gave none.
    async fn each<R: DeserializeOwned>(
        &self,
        shards: Range<u32>,
        op: Operation,
        body: &impl Serialize,
        call: &Call,
    ) -> Result<(Vec<R>, Vec<u32>), ApiError> {
        let name = LineName::try_from("-").map_err(|_| unknown_op(op.word()))?;
        let until = self.until_others(call);
        let asked = shards.clone().map(|shard| {
            let subject = self.subjects.leader(op, shard, &name);
            self.ask(subject, body, (Effect::None, None), until)
        });
        gathered(shards, join_all(asked).await)
    }

    async fn reset(&self, ask: ResetLimit, call: &Call) -> Result<ResetReply, ApiError> {
        let known = self.known(call.until()).await?;
        let known = known.domains.get(&ask.domain).cloned();
        let known: Arc<KnownDomain> = known.ok_or_else(|| no_rules(&ask.domain))?;
        let descriptors = std::slice::from_ref(&ask.descriptor);
        let entries = entries(descriptors);
        let matched = resolve(&known, &ask.domain, &entries)?;
        let Some(Matched::Limited { key, .. }) = matched.first() else {
            let what = "descriptor: no rule limits it";
            return Err(ApiError::bad_request(what));
        };
        let shard = home_of(key, self.shards);
        let op = Operation::LimitReset;
        let subject = self.subjects.leader(op, shard, &ask.domain);
        let id = call.id_for(shard, op);
        let until = call.times.for_writes()?;
        log("reset a counter", &ask.domain, call);
        let effect = (Effect::Once(id), call.note.as_deref());
        let reset = self.ask(subject, &ask, effect, until).await;
        reset.map_err(repeatable)
    }
}

/// The list of changes goes back so far only, and has nothing of refused requests. Before it is done: an answer that is lost
/// leaves no request unrecorded.
fn log(what: &str, domain: &LineName, call: &Call) {
    let said =
        |text: fn(&OperatorNote) -> &Option<Box<str>>| text(call.note.as_deref()?).as_deref();
    let (by, reason) = (said(|note| &note.by), said(|note| &note.reason));
    let (by, reason) = (by.unwrap_or("-"), reason.unwrap_or("-"));
    tracing::info!(domain = %domain.as_str(), by, reason, "an operator asks to change rate limits: {what}");
}

/// Other writes are repeated with a key or a ticket, which these do not have.
fn repeatable(error: ApiError) -> ApiError {
    match error.code {
        Code::OutcomeUnknown => ApiError {
            message: "the deadline passed before the outcome was known; it can be repeated"
                .to_owned(),
            ..error
        },
        _ => error,
    }
}

/// As shard 0 would answer: the text that is there changes nothing, whatever `if_version` says.
fn tried_rules(
    ask: &ApplyRules,
    domain: LineName,
    known: Option<&KnownDomain>,
    changes: Vec<String>,
) -> Result<RulesChanged, ApiError> {
    let is_the_same = known.is_some_and(|known| *known.of.text == *ask.rules);
    let if_version = ask.if_version.filter(|_| !is_the_same);
    tried(domain, known, if_version, changes)
}

/// The answer to a dry run.
fn tried(
    domain: LineName,
    known: Option<&KnownDomain>,
    if_version: Option<u64>,
    changes: Vec<String>,
) -> Result<RulesChanged, ApiError> {
    let version = known.map_or(0, |known| known.of.version);
    match if_version.is_none_or(|it| it == version) {
        true => Ok(RulesChanged {
            domain,
            version,
            dry_run: true,
            changes,
            notes: Vec::new(),
        }),
        false => Err(rules_changed(&domain, version)),
    }
}

/// What the shards answered, in their order. In an incident an operator needs what the others say, so one without a leader
/// is only named.
fn gathered<R>(
    shards: Range<u32>,
    answers: Vec<Result<R, ApiError>>,
) -> Result<(Vec<R>, Vec<u32>), ApiError> {
    let (mut replies, mut unanswered) = (Vec::new(), Vec::new());
    for (shard, answer) in shards.zip(answers) {
        match answer {
            Ok(reply) => replies.push(reply),
            Err(error) if error.code == Code::Unavailable => unanswered.push(shard),
            Err(error) => return Err(error),
        }
    }
    Ok((replies, unanswered))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_engine::refusals::unavailable;

    use super::super::tests::{known, shop};
    use super::*;

    /// So an operator can repeat a change whose answer was lost.
    #[test]
    fn the_text_that_is_there_conflicts_with_no_version() {
        let known = known();
        let tried = |text: &str, known: Option<&KnownDomain>, if_version| {
            let ask = ApplyRules {
                rules: text.to_owned(),
                if_version,
                ..ApplyRules::default()
            };
            let tried = tried_rules(&ask, shop(), known, Vec::new());
            tried.map(|it| it.version).map_err(|it| it.to_string())
        };
        assert_eq!(tried(&known.of.text, Some(&known), Some(77)), Ok(1));
        assert_eq!(tried("domain: shop", Some(&known), Some(1)), Ok(1));
        let conflict = tried("domain: shop", Some(&known), Some(77)).unwrap_err();
        assert!(
            conflict.contains("domain shop have version 1"),
            "{conflict}"
        );
        assert_eq!(tried("domain: shop", None, Some(0)), Ok(0));
        let none = tried("domain: shop", None, Some(77)).unwrap_err();
        assert!(none.contains("domain shop has no rules"), "{none}");
    }

    #[test]
    fn a_shard_that_does_not_answer_is_named() {
        let answers = vec![Ok(0), Err(unavailable()), Ok(2)];
        let (shards, unanswered) = gathered(64..67, answers).unwrap();
        assert_eq!((shards, unanswered), (vec![0, 2], vec![65]));
        let other = ApiError::new(Code::Forbidden, "");
        assert!(gathered(0..2, vec![Ok(0), Err(other)]).is_err());
    }
}
