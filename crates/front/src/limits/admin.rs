//! Operators' requests about rate limits.

use bytes::Bytes;
use nowserving_engine::refusals::{no_rules, outcome_unknown, rules_changed};
use nowserving_limit::{Matched, Rules};
use nowserving_line::{LineName, OperatorNote};
use nowserving_protocol::codec::{Format, Payload, decode, encode};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::limits::{
    ApplyRules, Check, DeleteRules, LimitChangesReply, LimitStats, LimitStatsReply,
    ListLimitChanges, NodeHits, ResetLimit, ResetReply, RuleHits, RulesChanged, STATS_SHARDS_MAX,
    ShowRules, TestLimits,
};
use nowserving_protocol::operation::Operation;
use nowserving_protocol::subject::unknown_op;
use nowserving_shard::clock::Micros;
use nowserving_shard::limits::home_of;

use super::check::{Call, Checking};
use super::{KnownDomain, KnownRules, changes, notes, read_one, resolve, show};
use crate::gather::asks::{Answer, Ask, Effect};
use crate::gather::{Done, Io, Reply, Work};

/// After a change, for so long at most its answer waits until this node knows it.
const LEARNING_MAX_US: Micros = 1_000_000;

/// The work of a request.
///
/// # Errors
/// It cannot be read.
pub(super) fn work(op: Operation, payload: &[u8], call: Call) -> Result<Box<dyn Work>, ApiError> {
    let by_rules = |ask, call| {
        Box::new(ByRules {
            ask,
            call,
            learns: None,
        })
    };
    Ok(match op {
        Operation::LimitApply => {
            let ask: ApplyRules = decode(payload)?;
            ask.check()?;
            let read = read_one(&ask.rules)?;
            by_rules(Asked::Rules(RulesChange::apply(ask, read)), call)
        }
        Operation::LimitDelete => {
            let ask: DeleteRules = decode(payload)?;
            by_rules(Asked::Rules(RulesChange::delete(ask)), call)
        }
        Operation::LimitShow => by_rules(Asked::Show(decode(payload)?), call),
        Operation::LimitReset => {
            let ask: ResetLimit = decode(payload)?;
            ask.check()?;
            by_rules(Asked::Reset(ask), call)
        }
        Operation::LimitStats => {
            let ask: LimitStats = decode(payload)?;
            Box::new(OfAll::new(call, Question::Stats(ask)))
        }
        Operation::LimitChanges => {
            let ask: ListLimitChanges = decode(payload)?;
            Box::new(OfAll::new(call, Question::Changes(ask)))
        }
        Operation::LimitTest => {
            let ask: TestLimits = decode(payload)?;
            let check = Check {
                hits: ask.hits,
                dry_run: true,
                ..Check::new(ask.descriptors)
            };
            check.check()?;
            Box::new(Checking::new(ask.domain, check, call, true))
        }
        _ => return Err(unknown_op(op.word())),
    })
}

/// A request that begins with the rules that this node knows.
struct ByRules {
    ask: Asked,
    call: Call,
    /// A change that has happened, and how long its answer waits.
    learns: Option<(RulesChanged, Micros)>,
}

enum Asked {
    Rules(RulesChange),
    Show(ShowRules),
    Reset(ResetLimit),
    /// A change is asked of shard 0: what it changes, and the notes.
    Change(Vec<String>, Vec<String>),
    /// The leader of a counter is asked.
    Counter,
}

/// Rules are applied or deleted.
struct RulesChange {
    op: Operation,
    domain: LineName,
    /// Of those that are applied.
    text: Option<String>,
    /// What it says.
    rules: Rules,
    if_version: Option<u64>,
    dry_run: bool,
    payload: Bytes,
}

impl RulesChange {
    fn apply(ask: ApplyRules, (domain, rules): (LineName, Rules)) -> Self {
        RulesChange {
            op: Operation::LimitApply,
            domain,
            payload: encode(&ask, Format::MsgPack).into(),
            text: Some(ask.rules),
            rules,
            if_version: ask.if_version,
            dry_run: ask.dry_run,
        }
    }

    fn delete(ask: DeleteRules) -> Self {
        RulesChange {
            op: Operation::LimitDelete,
            payload: encode(&ask, Format::MsgPack).into(),
            domain: ask.domain,
            text: None,
            rules: Rules::default(),
            if_version: ask.if_version,
            dry_run: ask.dry_run,
        }
    }

    /// The answer to a dry run, as shard 0 would answer: the text that is there changes nothing, whatever `if_version` says.
    fn tried(
        self,
        known: Option<&KnownDomain>,
        (changes, notes): (Vec<String>, Vec<String>),
    ) -> Result<RulesChanged, ApiError> {
        let is_the_same = match (&self.text, known) {
            (Some(text), Some(known)) => *known.of.text == **text,
            (None, None) => return Err(no_rules(&self.domain)),
            _ => false,
        };
        let version = known.map_or(0, |known| known.of.version);
        let if_version = self.if_version.filter(|_| !is_the_same);
        match if_version.is_none_or(|it| it == version) {
            true => Ok(RulesChanged {
                domain: self.domain,
                version,
                dry_run: true,
                changes,
                notes,
            }),
            false => Err(rules_changed(&self.domain, version)),
        }
    }
}

impl Work for ByRules {
    fn go_on(&mut self, io: &mut Io<'_>) -> Done {
        if let Some((changed, until)) = self.learns.take() {
            // It has happened, whether this node knows it or not.
            let known = io.around.known.as_ref().map_or(0, |known| known.version);
            if known >= changed.version || io.now.us >= until {
                return Some(Ok(Reply::of(changed)));
            }
            io.wait(until);
            self.learns = Some((changed, until));
            return None;
        }
        if matches!(self.ask, Asked::Change(..) | Asked::Counter) {
            return None; // The answer is awaited.
        }
        match io.known(self.call.times.until) {
            Ok(known) => self.begin(&*known?, io).transpose(),
            Err(error) => Some(Err(error)),
        }
    }

    fn answered(&mut self, _: usize, result: Result<Answer, ApiError>, io: &mut Io<'_>) -> Done {
        let Asked::Change(changes, notes) = &mut self.ask else {
            let reset = written::<ResetReply>(result);
            return Some(reset.map(Reply::of));
        };
        let changed: RulesChanged = match written(result) {
            Ok(changed) => changed,
            Err(error) => return Some(Err(error)),
        };
        let changed = RulesChanged {
            changes: std::mem::take(changes),
            notes: std::mem::take(notes),
            ..changed
        };
        let until = self.call.times.until.min(io.now.us + LEARNING_MAX_US);
        self.learns = Some((changed, until));
        self.go_on(io)
    }
}

impl ByRules {
    fn begin(&mut self, known: &KnownRules, io: &mut Io<'_>) -> Result<Option<Reply>, ApiError> {
        let domain_of = |domain| known.domains.get(domain).map(AsRef::as_ref);
        match std::mem::replace(&mut self.ask, Asked::Counter) {
            Asked::Rules(it) => {
                let known = domain_of(&it.domain);
                let (changes, notes) = (changes(known, &it.rules), notes(&it.rules));
                if it.dry_run {
                    let tried = it.tried(known, (changes, notes))?;
                    return Ok(Some(Reply::of(tried)));
                }
                log(it.op.word(), &it.domain, &self.call);
                self.ask = Asked::Change(changes, notes);
                self.write((it.op, 0, &it.domain), it.payload, io)
            }
            Asked::Show(ask) => Ok(Some(Reply::of(show(known, &ask)?))),
            Asked::Reset(ask) => {
                let known = domain_of(&ask.domain).ok_or_else(|| no_rules(&ask.domain))?;
                let descriptor = std::slice::from_ref(&ask.descriptor);
                let matched = resolve(known, &ask.domain, descriptor)?;
                let Some(Matched::Limited { key, .. }) = matched.first() else {
                    let what = "descriptor: no rule limits it";
                    return Err(ApiError::bad_request(what));
                };
                let shard = home_of(key, io.around.config.shards);
                log("reset a counter", &ask.domain, &self.call);
                let payload = encode(&ask, Format::MsgPack).into();
                self.write((Operation::LimitReset, shard, &ask.domain), payload, io)
            }
            Asked::Change(..) | Asked::Counter => Ok(None),
        }
    }

    fn write(
        &self,
        (op, shard, domain): (Operation, u32, &LineName),
        payload: Bytes,
        io: &mut Io<'_>,
    ) -> Result<Option<Reply>, ApiError> {
        let ask = Ask {
            subject: io.around.config.subjects.leader(op, shard, domain),
            payload,
            effect: Effect::Once(self.call.id_for(shard, op)),
            note: self.call.note.clone(),
            until: self.call.times.for_writes()?,
            repeats: true,
        };
        io.ask(0, ask);
        Ok(None)
    }
}

/// A question to the leaders of all shards, or of a page of them, and to the nodes for what they have counted. In an incident
/// an operator needs what the others say, so one that does not answer is only named.
struct OfAll {
    question: Question,
    call: Call,
    /// The first shard that is asked.
    first: u32,
    of_shards: Vec<Option<Result<Answer, ApiError>>>,
    /// A node that is away is asked once.
    of_nodes: Vec<(u64, Option<NodeHits>)>,
    open: usize,
}

enum Question {
    Stats(LimitStats),
    Changes(ListLimitChanges),
}

impl OfAll {
    fn new(call: Call, question: Question) -> Self {
        OfAll {
            question,
            call,
            first: 0,
            of_shards: Vec::new(),
            of_nodes: Vec::new(),
            open: 0,
        }
    }

    /// This node, too: its other loops have counted as well.
    fn ask_nodes(&mut self, until: Micros, io: &mut Io<'_>) {
        let mut nodes = io.around.nodes.clone();
        nodes.insert(io.around.config.me);
        self.of_nodes = nodes.into_iter().map(|node| (node, None)).collect();
        for nth in 0..self.of_nodes.len() {
            let node = self.of_nodes.get(nth).map_or(0, |(node, _)| *node);
            let subject = io.around.config.forward.limit_hits(node);
            let question = question(subject, Bytes::new(), until, false);
            io.ask(self.of_shards.len() + nth, question);
        }
    }

    fn end(&mut self, io: &Io<'_>) -> Result<Reply, ApiError> {
        let of_shards = std::mem::take(&mut self.of_shards);
        let answers = (self.first..).zip(of_shards.into_iter().flatten());
        match &self.question {
            Question::Changes(_) => {
                let (shards, unanswered): (Vec<LimitChangesReply>, _) = gathered(answers)?;
                let mut reply = LimitChangesReply {
                    left_out: shards.iter().any(|it| it.left_out),
                    changes: shards.into_iter().flat_map(|it| it.changes).collect(),
                    unanswered,
                };
                reply.keep_newest();
                Ok(Reply::of(reply))
            }
            Question::Stats(ask) => {
                let end = page_end(ask, io.around.config.shards);
                let (shards, unanswered) = gathered(answers)?;
                let mut reply = LimitStatsReply {
                    shards,
                    unanswered,
                    next: Some(end).filter(|end| *end < io.around.config.shards),
                    rules: Vec::new(),
                    nodes: Vec::new(),
                    nodes_unanswered: Vec::new(),
                };
                if ask.from.is_none() {
                    self.add_nodes(&mut reply);
                }
                Ok(Reply::of(reply))
            }
        }
    }

    fn add_nodes(&mut self, reply: &mut LimitStatsReply) {
        let mut hits = Vec::new();
        for (node, answer) in std::mem::take(&mut self.of_nodes) {
            match answer {
                Some(answer) => hits.push(answer),
                None => reply.nodes_unanswered.push(node),
            }
        }
        reply.nodes = hits.iter().map(|it| it.of).collect();
        reply.nodes.sort_by_key(|it| it.node);
        reply.rules = RuleHits::sum(hits.into_iter().flat_map(|it| it.rules));
    }
}

impl Work for OfAll {
    fn go_on(&mut self, io: &mut Io<'_>) -> Done {
        let shards = io.around.config.shards;
        let (op, body, asked) = match &self.question {
            Question::Stats(ask) => {
                self.first = ask.from.unwrap_or_default();
                let body = encode(&LimitStats::default(), Format::MsgPack);
                (
                    Operation::LimitStats,
                    body,
                    self.first..page_end(ask, shards),
                )
            }
            Question::Changes(ask) => {
                let body = encode(ask, Format::MsgPack);
                (Operation::LimitChanges, body, 0..shards)
            }
        };
        let Ok(name) = LineName::try_from("-") else {
            return Some(Err(unknown_op(op.word())));
        };
        // What the others say is to arrive in time, though some do not answer.
        let until = io.now.us + self.call.times.until.saturating_sub(io.now.us) * 3 / 4;
        let body = Bytes::from(body);
        self.of_shards = asked.clone().map(|_| None).collect();
        for (nth, shard) in asked.enumerate() {
            let subject = io.around.config.subjects.leader(op, shard, &name);
            io.ask(nth, question(subject, body.clone(), until, true));
        }
        if matches!(&self.question, Question::Stats(ask) if ask.from.is_none()) {
            self.ask_nodes(until, io);
        }
        self.open = self.of_shards.len() + self.of_nodes.len();
        (self.open == 0).then(|| self.end(io))
    }

    fn answered(&mut self, nth: usize, result: Result<Answer, ApiError>, io: &mut Io<'_>) -> Done {
        self.open -= 1;
        match nth.checked_sub(self.of_shards.len()) {
            Some(nth) => {
                if let Some((_, hits)) = self.of_nodes.get_mut(nth) {
                    *hits = result.and_then(|answer| answer.read()).ok();
                }
            }
            None => {
                if let Some(of_shard) = self.of_shards.get_mut(nth) {
                    *of_shard = Some(result);
                }
            }
        }
        (self.open == 0).then(|| self.end(io))
    }
}

fn question(subject: String, payload: Bytes, until: Micros, repeats: bool) -> Ask {
    Ask {
        subject,
        payload,
        effect: Effect::None,
        note: None,
        until,
        repeats,
    }
}

fn page_end(ask: &LimitStats, shards: u32) -> u32 {
    let begin = ask.from.unwrap_or_default();
    begin.saturating_add(STATS_SHARDS_MAX).min(shards)
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

/// The answer to a write. One that is not understood has happened all the same, as far as anybody knows.
fn written<R: Payload>(result: Result<Answer, ApiError>) -> Result<R, ApiError> {
    let read = result.and_then(|answer| answer.read().map_err(|_| outcome_unknown()));
    read.map_err(repeatable)
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

/// What the shards answered, in their order, and those that gave no answer.
fn gathered<R: Payload>(
    answers: impl Iterator<Item = (u32, Result<Answer, ApiError>)>,
) -> Result<(Vec<R>, Vec<u32>), ApiError> {
    let (mut replies, mut unanswered) = (Vec::new(), Vec::new());
    for (shard, answer) in answers {
        match answer.and_then(|answer| answer.read()) {
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

    use super::super::check::tests::{known, shop};
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
            let change = RulesChange::apply(ask, (shop(), Rules::default()));
            let tried = change.tried(known, (Vec::new(), Vec::new()));
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
        let said = || {
            Ok(Answer::Bytes(
                encode(&ResetReply::default(), Format::MsgPack).into(),
            ))
        };
        let answers = (64..).zip([said(), Err(unavailable()), said()]);
        let (shards, unanswered) = gathered::<ResetReply>(answers).unwrap();
        assert_eq!((shards.len(), unanswered), (2, vec![65]));
        let other = ApiError::new(Code::Forbidden, "");
        assert!(gathered::<ResetReply>((0..).zip([said(), Err(other)])).is_err());
    }
}
