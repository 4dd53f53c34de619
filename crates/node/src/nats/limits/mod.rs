//! Rate limits for clients: any node takes a request, asks the leaders of the shards that have its counters, and makes
//! one answer of theirs.
//!
//! ```text
//! limit.<domain>.check, leader.<n>.limit.<domain>.check ─► the rules: which limit, which counter, which shard
//!     ─► this node's own engine, if it leads the shard (`direct.rs`, if that is all that is asked); or
//!        forward.shard.<n>.<domain>.limit_part or shard.<n>.<domain>.limit_exact: one for each shard, at once
//!     ─► combine ─► the answer; if it is a refusal, forward.shard.<n>.<domain>.limit_give_back or
//!        shard.<n>.<domain>.limit_exact_give_back first (`give_back.rs`)
//! admin.limit.<op> ─► admin.shard.<n>.<domain>.limit_<op>
//! ```
//!
//! So all descriptors whose counters one shard has are decided together; those of other shards each on their own, at the same
//! time, and after them those of exact limits: a hit on one is dear. What was counted for a check that another shard refuses is
//! given back.

pub(super) mod admin;
mod direct;
mod give_back;
pub mod own;
mod parts;
mod permits;
mod rule_counters;
pub mod rules;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, Message};
use futures::future::join_all;
use nowserving_engine::ReplyTo;
use nowserving_engine::refusals::{outcome_unknown, overloaded, unavailable};
use nowserving_front::limits::{KnownRules, OTHER_RULES, entries, in_words, limit_ask, resolve};
use nowserving_front::parse::{client_id, hash, header, message_id};
use nowserving_front::who::TrustRequestInfo;
use nowserving_limit::{Answer, Limit, Matched, Rules, Verdict, combine};
use nowserving_line::{LineName, OperatorNote};
use nowserving_protocol::codec::{decode_request, encode};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::header::{REQUEST_ID_HEADER, RequestId};
use nowserving_protocol::limits::{Check, CheckReply, DescriptorReply, PartReply};
use nowserving_protocol::operation::Operation;
use nowserving_protocol::subject::Subjects;
use nowserving_shard::limits::{LimitAsk, home_of, verdicts_of};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;

use self::own::Own;
use self::parts::Asked;
use self::permits::Permits;
use self::rule_counters::RuleCounters;
use self::rules::RulesReceiver;
use super::message::viewed;
use super::node_request::Times;
use super::peers::PeerList;
use super::respond::Responder;

/// A change of rules is known to all nodes about that soon.
const LEARNING: Duration = Duration::from_millis(20);

/// Answers requests about rate limits.
#[derive(Debug)]
pub struct Limits {
    client: Client,
    subjects: Subjects,
    /// Those to which only leaders subscribe.
    forward: Subjects,
    own: Own,
    responder: Responder,
    known: RulesReceiver,
    shards: u32,
    trust: TrustRequestInfo,
    permits: Permits,
    counters: Arc<RuleCounters>,
    nodes: Nodes,
}

/// This node, and the others.
#[derive(Debug)]
struct Nodes {
    me: u64,
    peers: watch::Receiver<PeerList>,
}

/// One request under way.
struct Call {
    /// Names it: the names of the writes that it makes are made from this.
    id: u128,
    /// Names it and no repetition of it: what it counts in memory counts each time.
    once: u128,
    times: Times,
    /// Who asks, and why, of an operator's.
    note: Option<Box<OperatorNote>>,
}

/// A shard, whether its exact limits are asked, and whether those in quota mode are, apart from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Home {
    shard: u32,
    exact: bool,
    quota: bool,
}
/// The descriptors whose counters one shard has, by their places in the request.
type Parts = BTreeMap<Home, Vec<usize>>;
/// A home, and the counters there.
type Part = (Home, Vec<Vec<u8>>);
/// What was answered for these counters.
type Answered = BTreeMap<Part, PartAnswer>;

#[derive(Debug)]
struct PartAnswer {
    reply: PartReply,
    /// It has counted hits, which were not given back.
    counted: bool,
}

impl PartAnswer {
    fn new(reply: PartReply, ask: &Check) -> Self {
        let verdicts = verdicts_of(&reply);
        let mut allowed = verdicts.iter().map(|verdict| verdict.answer.allowed);
        let counts = !ask.dry_run && ask.hits() > 0;
        PartAnswer {
            counted: counts && combine(&verdicts).allowed && allowed.any(|allowed| allowed),
            reply,
        }
    }
}

impl Limits {
    /// Sends its requests by `client` or to its `own` engine, and the answers by `responder`. `forward`: the subjects of
    /// requests that nodes forward.
    pub fn new(
        (client, own): (Client, Own),
        (subjects, forward): (Subjects, Subjects),
        responder: Responder,
        (known, counters): (RulesReceiver, Arc<RuleCounters>),
        (shards, me, peers): (u32, u64, watch::Receiver<PeerList>),
        trust: TrustRequestInfo,
    ) -> Self {
        Limits {
            client,
            subjects,
            forward,
            own,
            responder,
            known,
            shards,
            trust,
            permits: Permits::default(),
            counters,
            nodes: Nodes { me, peers },
        }
    }

    /// The rules, if this node knows them by now.
    pub fn known_now(&self) -> Option<Arc<KnownRules>> {
        self.known.borrow().clone()
    }

    fn is_admin(&self, message: &Message) -> bool {
        let rest = message.subject.strip_prefix(self.subjects.prefix());
        rest.is_some_and(|rest| rest.starts_with(".admin."))
    }

    /// Answers it.
    pub async fn handle(self: &Arc<Self>, message: Message, reply: ReplyTo) {
        let Some(permit) = self.permits.of(self.is_admin(&message)) else {
            return self.responder.refuse(&reply, overloaded()).await;
        };
        match self.direct(&message, reply.taken) {
            Some(direct) => {
                self.answer_direct(direct, message, reply, permit).await;
            }
            None => self.spawn(message, reply, permit),
        }
    }

    /// Ends once all requests that it has taken are answered. Those that come meanwhile are refused.
    pub async fn finished(&self) {
        self.permits.all_free().await;
    }

    /// Answers it in a task of its own.
    fn spawn(self: &Arc<Self>, message: Message, mut reply: ReplyTo, permit: OwnedSemaphorePermit) {
        let this = self.clone();
        tokio::spawn(async move {
            let encoded = this.answer(&message, &mut reply).await;
            this.responder.finish(&reply, encoded).await;
            drop(permit);
        });
    }

    async fn answer(&self, message: &Message, reply: &mut ReplyTo) -> Result<Vec<u8>, ApiError> {
        let target = self.subjects.parse(&message.subject)?;
        reply.op = target.op;
        match target.name {
            Some(domain) if target.op == Operation::LimitCheck => {
                let ask: Check = decode_request(&message.payload)?;
                ask.check()?;
                let call = Call::of(message, reply)?;
                let checked = self.check(&domain, &ask, &call, false);
                Ok(encode(&checked.await?, reply.format))
            }
            _ => self.answer_admin(target.op, message, reply).await,
        }
    }

    /// The rules, as soon as this node knows them.
    async fn known(&self, until: Instant) -> Result<Arc<KnownRules>, ApiError> {
        let mut known = self.known.clone();
        let known = tokio::time::timeout_at(until, known.wait_for(Option::is_some));
        let known = known.await.map_err(|_| unavailable())?;
        let known = known.map_err(|_| unavailable())?.clone();
        known.ok_or_else(unavailable)
    }

    /// A node that is cut off from the others does not learn of changed rules: it does not say that there is no limit. Waits
    /// until it is so no longer, and returns whether it was.
    async fn was_cut_off(&self, until: Instant) -> Result<bool, ApiError> {
        if !self.own.is_cut_off() {
            return Ok(false);
        }
        self.own.in_touch_again(until).await?;
        // It gets the entries that it lacks.
        tokio::time::sleep(LEARNING).await;
        Ok(true)
    }

    /// `explained`: with the rules in words.
    async fn check(
        &self,
        domain: &LineName,
        ask: &Check,
        call: &Call,
        explained: bool,
    ) -> Result<CheckReply, ApiError> {
        let mut answered = Answered::new();
        let checked = self.check_by_rules(domain, ask, call, explained, &mut answered);
        let checked = checked.await;
        if checked.is_err() {
            self.give_back(domain, ask, call, &mut answered).await;
        }
        checked.map_err(|error| undone(error, &answered))
    }

    async fn check_by_rules(
        &self,
        domain: &LineName,
        ask: &Check,
        call: &Call,
        explained: bool,
        answered: &mut Answered,
    ) -> Result<CheckReply, ApiError> {
        loop {
            let known = self.known(call.until()).await?;
            let Some(known) = known.domains.get(domain).cloned() else {
                if self.was_cut_off(call.until()).await? {
                    continue;
                }
                return Ok(without_rules(ask));
            };
            let entries = entries(&ask.descriptors);
            let matched = resolve(&known, domain, &entries)?;
            let is_limited = |matched: &Matched<'_>| matches!(matched, Matched::Limited { .. });
            if !matched.iter().all(is_limited) && self.was_cut_off(call.until()).await? {
                continue;
            }
            match self.ask_parts(&matched, domain, ask, call, answered).await {
                // The leader of a shard knows other rules: so will this node in a moment.
                Err(error) if error.code == OTHER_RULES => {
                    if Instant::now() + LEARNING >= call.until() {
                        return Err(unavailable());
                    }
                    tokio::time::sleep(LEARNING).await;
                }
                Err(error) => return Err(error),
                Ok(verdicts) => {
                    let rules = (domain, &known.rules);
                    self.count(ask, rules, &entries, (&matched, &verdicts));
                    let mut reply = reply(&matched, &verdicts);
                    if explained {
                        explain(&mut reply, &matched, rules, &entries);
                    }
                    return Ok(reply);
                }
            }
        }
    }

    /// Counts how a check has ended, by rule.
    fn count(
        &self,
        ask: &Check,
        rules: (&LineName, &Rules),
        entries: &[Vec<(&str, &str)>],
        (matched, verdicts): (&[Matched<'_>], &[Option<Verdict>]),
    ) {
        if !ask.dry_run && ask.hits() > 0 {
            let answered = (matched, verdicts);
            self.counters.count(rules, entries, answered, ask.hits());
        }
    }

    /// The verdicts on all descriptors that are limited, by their places. What a shard has answered is kept in `answered`:
    /// it has counted, and is not asked again because another shard's leader knows other rules.
    async fn ask_parts(
        &self,
        matched: &[Matched<'_>],
        domain: &LineName,
        ask: &Check,
        call: &Call,
        answered: &mut Answered,
    ) -> Result<Vec<Option<Verdict>>, ApiError> {
        let parts: Vec<_> = parts_of(matched, self.shards)
            .into_iter()
            .map(|(home, places)| ((home, keys_of(matched, &places)), places))
            .collect();
        let (exact, others): (Vec<_>, Vec<_>) = parts.iter().partition(|((home, _), _)| home.exact);
        let scatter = Scatter {
            matched,
            domain,
            call,
            hold: parts.len() > 1 && ask.hits() > 0,
        };
        self.scatter(&scatter, &others, ask, answered).await?;
        // A write would be for nothing.
        let exact_ask = Check {
            dry_run: ask.dry_run || refuses_already(answered),
            ..ask.clone()
        };
        self.scatter(&scatter, &exact, &exact_ask, answered).await?;
        let verdicts = gathered(matched.len(), &parts, answered)?;
        let known: Vec<Verdict> = verdicts.iter().flatten().copied().collect();
        if combine(&known).allowed {
            return Ok(verdicts);
        }
        self.give_back(domain, ask, call, answered).await;
        gathered(matched.len(), &parts, answered)
    }

    /// Asks these parts at the same time.
    async fn scatter(
        &self,
        scatter: &Scatter<'_>,
        parts: &[&(Part, Vec<usize>)],
        ask: &Check,
        answered: &mut Answered,
    ) -> Result<(), ApiError> {
        let open: Vec<_> = parts
            .iter()
            .filter(|(part, _)| !answered.contains_key(part))
            .collect();
        let asked = open.into_iter().map(|(part, places)| async move {
            let asked = Asked {
                part,
                places,
                matched: scatter.matched,
                ask,
                hold: scatter.hold,
            };
            let (domain, call) = (scatter.domain, scatter.call);
            (part, self.ask_part(asked, domain, call).await)
        });
        // All of them: that one failed undoes no other.
        let mut failed = None;
        for (part, reply) in join_all(asked).await {
            match reply {
                Ok(reply) => drop(answered.insert(part.clone(), PartAnswer::new(reply, ask))),
                Err(error) => failed = Some(worse(failed, error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// What the parts of a check have in common.
struct Scatter<'a> {
    matched: &'a [Matched<'a>],
    domain: &'a LineName,
    call: &'a Call,
    /// There are several parts: what one counts, another may refuse.
    hold: bool,
}

/// The verdicts by the places of their descriptors.
fn gathered(
    descriptors: usize,
    parts: &[(Part, Vec<usize>)],
    answered: &Answered,
) -> Result<Vec<Option<Verdict>>, ApiError> {
    let mut verdicts = vec![None; descriptors];
    for (part, places) in parts {
        let answer = answered.get(part).ok_or_else(unavailable)?;
        place(&mut verdicts, places, &answer.reply)?;
    }
    Ok(verdicts)
}

/// Whether the check is refused, whatever the other parts say.
fn refuses_already(answered: &Answered) -> bool {
    let mut verdicts = answered.values().flat_map(|it| verdicts_of(&it.reply));
    verdicts.any(|verdict| !verdict.is_quota && verdict.refuses())
}

/// Of two errors the one to tell: that nothing is known goes before others; rules that differ are tried again, so only if
/// there is no other.
fn worse(known: Option<ApiError>, error: ApiError) -> ApiError {
    match known {
        Some(known) if error.code != Code::OutcomeUnknown && known.code != OTHER_RULES => known,
        _ => error,
    }
}

/// An error must not claim that nothing happened if a part has counted, and could not give it back.
fn undone(error: ApiError, answered: &Answered) -> ApiError {
    match answered.values().any(|it| it.counted) {
        true => outcome_unknown(),
        false => error,
    }
}

/// Each part is decided on its own. Limits in quota mode refuse only if all of them do, which one shard alone cannot say: if
/// they are in several parts, they are asked apart from the others, which would not be counted otherwise where the quotas of
/// that part are used up.
fn parts_of(matched: &[Matched<'_>], shards: u32) -> Parts {
    let parts = |quotas_apart: bool| {
        let mut parts = Parts::new();
        for (place, matched) in matched.iter().enumerate() {
            if let Matched::Limited { rule, key } = matched {
                let home = Home {
                    shard: home_of(key, shards),
                    exact: rule.is_exact,
                    quota: quotas_apart && rule.is_quota,
                };
                parts.entry(home).or_default().push(place);
            }
        }
        parts
    };
    let together = parts(false);
    let is_quota = |place: &usize| {
        let matched = matched.get(*place);
        matched
            .and_then(Matched::rule)
            .is_some_and(|rule| rule.is_quota)
    };
    let with_quotas = together
        .values()
        .filter(|places| places.iter().any(is_quota));
    match with_quotas.count() {
        0 | 1 => together,
        _ => parts(true),
    }
}

fn keys_of(matched: &[Matched<'_>], places: &[usize]) -> Vec<Vec<u8>> {
    let matched = places.iter().filter_map(|place| matched.get(*place));
    let keys = matched.filter_map(|matched| match matched {
        Matched::Limited { key, .. } => Some(key.clone()),
        _ => None,
    });
    keys.collect()
}

fn asks_of(matched: &[Matched<'_>], places: &[usize], ask: &Check) -> Vec<LimitAsk> {
    let matched = places.iter().filter_map(|place| matched.get(*place));
    matched
        .filter_map(|matched| limit_ask(matched, ask))
        .collect()
}

impl Call {
    fn of(message: &Message, reply: &ReplyTo) -> Result<Self, ApiError> {
        let times = Times::of(message, reply.taken)?;
        // A client may send the same message twice and mean it.
        let random = getrandom::u64().map_err(|_| unavailable())?;
        let key = viewed(message, message_id).key.to_le_bytes();
        let once = hash([b"limit", &key, &random.to_le_bytes()]);
        let id = match viewed(message, |it| header(it, REQUEST_ID_HEADER, RequestId::new))? {
            // The leaders tell apart what the writes of one name are about.
            Some(named) => client_id(&named, reply.op, "", &[]).key,
            None => once,
        };
        Ok(Call {
            id,
            once,
            times,
            note: None,
        })
    }

    fn until(&self) -> Instant {
        self.times.until
    }

    /// The same for each copy of an operator's request.
    fn id_for(&self, shard: u32, op: Operation) -> RequestId {
        let (call, shard) = (self.id.to_le_bytes(), shard.to_le_bytes());
        RequestId::from_bits(hash([b"limit", &call, &shard, op.name().as_bytes()]))
    }

    /// The same for each copy of hits on exact limits, and another one for other counters or as many hits: a caller may
    /// name several checks of one user's request by the same id. Of other limits each copy counts, so each has its own.
    fn id_of_hits(&self, (home, keys): &Part, hits: u32) -> RequestId {
        let call = if home.exact { self.id } else { self.once };
        let (call, shard) = (call.to_le_bytes(), home.shard.to_le_bytes());
        let mut counters = hits.to_le_bytes().to_vec();
        for key in keys {
            counters.extend((key.len() as u64).to_le_bytes());
            counters.extend(key);
        }
        RequestId::from_bits(hash([b"hits", &call, &shard, &counters]))
    }

    /// Of what this call has counted by that name. A repetition of the call counts anew by the same name, and gives that back.
    fn id_of_give_back(&self, name: &RequestId) -> RequestId {
        let (name, once) = (name.as_str().as_bytes(), self.once.to_le_bytes());
        RequestId::from_bits(hash([b"give back", name, &once]))
    }
}

fn part_of(ask: &Check, places: &[usize]) -> Check {
    let descriptors = places
        .iter()
        .filter_map(|place| ask.descriptors.get(*place));
    Check {
        descriptors: descriptors.cloned().collect(),
        hits: ask.hits,
        max_delay_ms: ask.max_delay_ms,
        dry_run: ask.dry_run,
    }
}

fn place(
    verdicts: &mut [Option<Verdict>],
    places: &[usize],
    part: &PartReply,
) -> Result<(), ApiError> {
    let part = verdicts_of(part);
    if part.len() != places.len() {
        return Err(unavailable());
    }
    for (place, verdict) in places.iter().zip(part) {
        if let Some(slot) = verdicts.get_mut(*place) {
            *slot = Some(verdict);
        }
    }
    Ok(())
}

fn without_rules(ask: &Check) -> CheckReply {
    let unmatched = || DescriptorReply {
        allowed: true,
        unmatched: true,
        ..DescriptorReply::default()
    };
    CheckReply {
        allowed: true,
        unmatched: true,
        descriptors: ask.descriptors.iter().map(|_| unmatched()).collect(),
        ..CheckReply::default()
    }
}

/// Adds the rules in words, as `show` lists them.
fn explain(
    reply: &mut CheckReply,
    matched: &[Matched<'_>],
    (domain, rules): (&LineName, &Rules),
    entries: &[Vec<(&str, &str)>],
) {
    let explained = reply.descriptors.iter_mut().zip(matched).zip(entries);
    for ((descriptor, matched), entries) in explained {
        let path = rules.path(domain.as_str(), entries);
        let both = path.zip(matched.rule());
        descriptor.rule = both.map(|(path, rule)| in_words(&path, rule));
    }
}

fn reply(matched: &[Matched<'_>], verdicts: &[Option<Verdict>]) -> CheckReply {
    let counted: Vec<Verdict> = verdicts.iter().flatten().copied().collect();
    let overall = combine(&counted);
    let shown = overall.shown.as_ref();
    let descriptors = matched.iter().zip(verdicts);
    CheckReply {
        allowed: overall.allowed,
        limit: shown.map(|answer| answer.limit),
        remaining: shown.map(|answer| answer.remaining),
        reset_ms: shown.map(Answer::reset_ms),
        retry_after_ms: shown.and_then(Answer::retry_after_ms),
        delay_ms: shown.and_then(delay_ms),
        unmatched: false,
        without_cluster: false,
        descriptors: descriptors
            .map(|(matched, verdict)| descriptor_reply(matched, verdict.as_ref()))
            .collect(),
    }
}

fn delay_ms(answer: &Answer) -> Option<u64> {
    Some(answer.delay_ms()).filter(|ms| *ms > 0)
}

fn descriptor_reply(matched: &Matched<'_>, verdict: Option<&Verdict>) -> DescriptorReply {
    let rule = matched.rule();
    let limit = rule.and_then(|rule| rule.limit.as_ref());
    let reply = DescriptorReply {
        allowed: true,
        name: rule.and_then(|rule| rule.name.as_deref().map(str::to_owned)),
        unmatched: matches!(matched, Matched::Nothing),
        unlimited: matches!(matched, Matched::Unlimited(_)),
        replaced: matches!(matched, Matched::Replaced(_)),
        ..DescriptorReply::default()
    };
    let Some(verdict) = verdict else {
        return reply;
    };
    let answer = &verdict.answer;
    DescriptorReply {
        allowed: answer.allowed,
        limit: Some(answer.limit),
        unit: limit.map(|limit| limit.unit().name().to_owned()),
        burst: limit
            .filter(|limit| limit.algorithm().is_bucket())
            .map(Limit::capacity),
        remaining: Some(answer.remaining),
        reset_ms: Some(answer.reset_ms()),
        retry_after_ms: answer.retry_after_ms(),
        delay_ms: delay_ms(answer),
        shadow: verdict.is_shadow,
        quota: verdict.is_quota,
        untracked: verdict.is_untracked,
        ..reply
    }
}

#[cfg(test)]
pub(super) mod tests;
