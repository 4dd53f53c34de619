//! A check of a client: the leaders of the shards that have its counters are asked, and one answer is made of theirs.
//!
//! All descriptors whose counters one shard has are decided together; those of other shards each on their own, at the same
//! time, and after them those of exact limits: a hit on one is dear. What was counted for a check that another shard refuses,
//! or that is not answered, is given back: a check counts on all of its limits or on none.
//!
//! To give back, each part is asked once. Without an answer nobody knows whether it was given back, and what counted stays
//! counted: the strict side. The leader that counted knows its hits by their name, and gives them back once; the next leader
//! does not know them.

use std::sync::Arc;

use nowserving_engine::refusals::{outcome_unknown, unavailable};
use nowserving_engine::{LimitRequest, Now};
use nowserving_limit::{Matched, Verdict, combine};
use nowserving_line::{LineName, OperatorNote};
use nowserving_protocol::codec::{Format, encode};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::header::{REQUEST_ID_HEADER, RequestId};
use nowserving_protocol::limits::{Check, GiveBackHits};
use nowserving_protocol::operation::Operation;
use nowserving_shard::clock::Micros;

use super::parts::{
    Answered, Home, Part, PartAnswer, Placed, asks_of, gathered, keys_of, part_of, parts_of,
    refuses_already, undone, worse,
};
use super::reply::{explain, reply, without_rules};
use super::{KnownDomain, OTHER_RULES, entries, resolve};
use crate::Message;
use crate::gather::asks::{Answer, Ask, Effect, OwnAsk};
use crate::gather::{Config, Done, Io, Reply, Times, Work};
use crate::parse::{client_id, hash, header, hits_id, message_id};

/// A change of rules is known to all nodes about that soon.
const LEARNING_US: Micros = 20_000;
/// How long a refusal waits until what it gives back is answered, at most.
const GIVE_BACK_US: Micros = 250_000;
/// A leader that gets it later gives nothing back.
const GIVE_BACK_VALID_US: Micros = 5_000_000;

/// One request under way.
pub(super) struct Call {
    /// Names it: the names of the writes that it makes are made from this.
    pub id: u128,
    /// Names it and no repetition of it: what it counts in memory counts each time.
    pub once: u128,
    pub times: Times,
    /// Who asks, and why, of an operator's.
    pub note: Option<Box<OperatorNote>>,
}

/// A check on its way.
pub(super) struct Checking {
    domain: LineName,
    ask: Check,
    call: Call,
    /// With the rules in words.
    explained: bool,
    known: Option<Arc<KnownDomain>>,
    /// Where the counters are, and the places of their descriptors in the request.
    parts: Placed,
    /// What a shard has answered is kept: it has counted, and is not asked again because another shard's leader knows other
    /// rules.
    answered: Answered,
    stage: Stage,
    /// So many requests of this stage are not answered.
    open: usize,
    failed: Option<ApiError>,
}

enum Stage {
    /// It waits for the rules.
    Rules,
    /// This node is cut off from the others, and so does not learn of changed rules: it does not say that there is no limit.
    CutOff,
    /// The rules are looked at again then.
    Learning(Micros),
    /// The counters in leaders' memories are asked.
    Counted,
    /// Those of exact limits are.
    Exact { dry_run: bool },
    /// Until then at most, it gives back what was counted.
    GivesBack(Micros, Option<ApiError>),
}

impl Checking {
    pub fn new(domain: LineName, ask: Check, call: Call, explained: bool) -> Self {
        Checking {
            domain,
            ask,
            call,
            explained,
            known: None,
            parts: Vec::new(),
            answered: Answered::new(),
            stage: Stage::Rules,
            open: 0,
            failed: None,
        }
    }

    fn until(&self) -> Micros {
        self.call.times.until
    }

    /// Looks at the rules.
    fn begin(&mut self, io: &mut Io<'_>) -> Done {
        self.stage = Stage::Rules;
        let known = match io.known(self.until()) {
            Ok(known) => known?,
            Err(error) => return self.fail(error, io),
        };
        let Some(known) = known.domains.get(&self.domain).cloned() else {
            return match io.around.is_cut_off() {
                true => self.wait_in_touch(io),
                false => Some(Ok(Reply::of(without_rules(&self.ask)))),
            };
        };
        match self.ask_memories(&known, io) {
            Ok(false) => self.wait_in_touch(io),
            Ok(true) => {
                (self.known, self.stage) = (Some(known), Stage::Counted);
                self.asked(io)
            }
            Err(error) => self.fail(error, io),
        }
    }

    /// Finds the parts by these rules, and asks those in leaders' memories. False: there may be limits that this node does not
    /// know.
    fn ask_memories(&mut self, known: &KnownDomain, io: &mut Io<'_>) -> Result<bool, ApiError> {
        let matched = resolve(known, &self.domain, &self.ask.descriptors)?;
        let is_limited = |it: &Matched<'_>| matches!(it, Matched::Limited { .. });
        if !matched.iter().all(is_limited) && io.around.is_cut_off() {
            return Ok(false);
        }
        let parts = parts_of(&matched, io.around.config.shards).into_iter();
        let parts = parts.map(|(home, places)| {
            let keys = keys_of(&matched, &places);
            (Part::new((home, keys)), places)
        });
        self.parts = parts.collect();
        self.open = self.unanswered(false).count();
        for nth in self.unanswered(false) {
            match self.own_part(nth, &matched, io) {
                Some(own) => io.ask_own(nth, own),
                None => self.ask_leader(nth, io),
            }
        }
        Ok(true)
    }

    fn unanswered(&self, exact: bool) -> impl Iterator<Item = usize> {
        let parts = self.parts.iter().enumerate();
        let unanswered = parts.filter(move |(_, (part, _))| {
            part.0.exact == exact && !self.answered.contains_key(part)
        });
        unanswered.map(|(nth, _)| nth)
    }

    /// Under which name a leader remembers what it counts: another part may refuse it.
    fn hold(&self, part: &Part) -> Option<RequestId> {
        let is_held = self.parts.len() > 1 && self.ask.hits() > 0;
        is_held.then(|| self.call.id_of_hits(part, self.ask.hits()))
    }

    fn own_part(&self, nth: usize, matched: &[Matched<'_>], io: &Io<'_>) -> Option<OwnAsk> {
        let (part, places) = self.parts.get(nth)?;
        let Home { shard, .. } = part.0;
        io.around.leads(shard).then(|| OwnAsk {
            shard,
            domain: self.domain.clone(),
            request: LimitRequest::Check {
                asks: asks_of(matched, places, &self.ask),
                dry_run: self.ask.dry_run,
                hold: self.hold(part).map(|name| hits_id(&name, &self.domain).key),
            },
            until: self.until(),
        })
    }

    /// Without an id, hits in memory go to the subject on which the leader alone takes what nodes forward. On the shard's own
    /// subject two nodes listen while leadership changes: one of them would ask the leader again.
    fn ask_leader(&self, nth: usize, io: &mut Io<'_>) {
        let Some((part, places)) = self.parts.get(nth) else {
            return;
        };
        let effect = match self.ask.dry_run {
            true => Effect::None,
            false => Effect::Counts(self.hold(part)),
        };
        let subjects = &io.around.config.forward;
        let subject = subjects.leader(Operation::LimitPart, part.0.shard, &self.domain);
        let check = part_of(&self.ask, places);
        io.ask(nth, ask_part(subject, &check, effect, self.until()));
    }

    /// Hits that go through the log are a write as any other, on the shard's own subject.
    fn ask_exact(&mut self, dry_run: bool, io: &mut Io<'_>) -> Result<(), ApiError> {
        self.open = self.unanswered(true).count();
        // First: it fails for all of them or for none.
        let until = match dry_run || self.open == 0 {
            true => self.until(),
            false => self.call.times.for_writes()?,
        };
        for nth in self.unanswered(true) {
            let Some((part, places)) = self.parts.get(nth) else {
                continue;
            };
            let effect = match dry_run {
                true => Effect::None,
                false => Effect::Once(self.call.id_of_hits(part, self.ask.hits())),
            };
            let subjects = &io.around.config.subjects;
            let subject = subjects.leader(Operation::LimitExact, part.0.shard, &self.domain);
            let check = Check {
                dry_run,
                ..part_of(&self.ask, places)
            };
            io.ask(nth, ask_part(subject, &check, effect, until));
        }
        Ok(())
    }

    /// The requests of a stage were made, or one of them has ended.
    fn asked(&mut self, io: &mut Io<'_>) -> Done {
        match self.open {
            0 => self.all_answered(io),
            _ => None,
        }
    }

    /// All requests of a stage have ended: that one failed undoes no other.
    fn all_answered(&mut self, io: &mut Io<'_>) -> Done {
        match (self.failed.take(), &self.stage) {
            // The leader of a shard knows other rules: so will this node in a moment.
            (Some(error), _) if error.code == OTHER_RULES => {
                match io.now.us + LEARNING_US >= self.until() {
                    true => self.fail(unavailable(), io),
                    false => self.learn(io),
                }
            }
            (Some(error), _) => self.fail(error, io),
            (None, Stage::Counted) => {
                // A write would be for nothing.
                let dry_run = self.ask.dry_run || refuses_already(&self.parts, &self.answered);
                self.stage = Stage::Exact { dry_run };
                match self.ask_exact(dry_run, io) {
                    Ok(()) => self.asked(io),
                    Err(error) => self.fail(error, io),
                }
            }
            (None, Stage::GivesBack(..)) => self.end(io),
            (None, _) => {
                let verdicts = gathered(self.ask.descriptors.len(), &self.parts, &self.answered);
                match verdicts {
                    Ok(all) if combine(all.iter().flatten()).allowed => self.end(io),
                    Ok(_) => self.give_back(None, io),
                    Err(error) => self.fail(error, io),
                }
            }
        }
    }

    fn learn(&mut self, io: &mut Io<'_>) -> Done {
        let at = io.now.us + LEARNING_US;
        self.stage = Stage::Learning(at);
        io.wake_at(at);
        None
    }

    fn wait_in_touch(&mut self, io: &mut Io<'_>) -> Done {
        if io.now.us >= self.until() {
            return self.fail(unavailable(), io);
        }
        self.stage = Stage::CutOff;
        io.wait(self.until());
        None
    }

    fn fail(&mut self, error: ApiError, io: &mut Io<'_>) -> Done {
        self.give_back(Some(error), io)
    }

    /// Gives back what the parts have counted. Those that answer say what is left then.
    fn give_back(&mut self, error: Option<ApiError>, io: &mut Io<'_>) -> Done {
        let counted = self.answered.iter().enumerate();
        let counted = counted.filter(|(_, (_, answer))| answer.counted);
        let counted = counted.filter(|_| !nowserving_bite::is(nowserving_bite::Break::S20Kept));
        self.open = 0;
        for (nth, (part, _)) in counted {
            self.open += 1;
            self.ask_back(nth, part, io);
        }
        // It is sent before its answer is waited for, so also if the caller's time is over.
        let until = (io.now.us + GIVE_BACK_US).min(self.until());
        self.stage = Stage::GivesBack(until, error);
        if self.open > 0 {
            io.wake_at(until);
        }
        self.asked(io)
    }

    fn ask_back(&self, nth: usize, part: &Part, io: &mut Io<'_>) {
        let Home { shard, exact, .. } = part.0;
        let (name, until) = (
            self.call.id_of_hits(part, self.ask.hits()),
            io.now.us + GIVE_BACK_VALID_US,
        );
        if !exact && io.around.leads(shard) {
            let own = OwnAsk {
                shard,
                domain: self.domain.clone(),
                request: LimitRequest::GiveBack {
                    name: hits_id(&name, &self.domain).key,
                    exact,
                },
                until,
            };
            return io.ask_own(nth, own);
        }
        let config = &io.around.config;
        let (subjects, op) = match exact {
            // It is written: as with the question, a node that does not lead any more forwards it.
            true => (&config.subjects, Operation::LimitExactGiveBack),
            false => (&config.forward, Operation::LimitGiveBack),
        };
        let body = GiveBackHits {
            name: name.as_str().to_owned(),
        };
        let ask = Ask {
            subject: subjects.leader(op, shard, &self.domain),
            payload: encode(&body, Format::MsgPack).into(),
            effect: Effect::Once(self.call.id_of_give_back(&name)),
            note: None,
            until,
            repeats: false,
        };
        io.ask(nth, ask);
    }

    fn given_back(&mut self, nth: usize, result: Result<Answer, ApiError>) {
        let answer = self.answered.values_mut().nth(nth);
        let Some((answer, left)) = answer.zip(result.and_then(Answer::part).ok()) else {
            return;
        };
        if left.verdicts.len() == answer.verdicts.len() {
            answer.counted = false;
            for (told, left) in answer.verdicts.iter_mut().zip(left.verdicts) {
                let told = &mut told.answer;
                (told.remaining, told.reset_us) = (left.remaining, left.reset_us);
                told.delay_us = 0;
            }
        }
    }

    fn end(&mut self, io: &mut Io<'_>) -> Done {
        let error = match &mut self.stage {
            Stage::GivesBack(_, error) => error.take(),
            _ => None,
        };
        let reply = match error {
            Some(error) => Err(error),
            None => self.reply(io),
        };
        Some(reply.map_err(|error| undone(error, &self.answered)))
    }

    /// Made of what the parts have answered. Counts how the check has ended, by rule.
    fn reply(&self, io: &mut Io<'_>) -> Result<Reply, ApiError> {
        let known = self.known.as_ref().ok_or_else(unavailable)?;
        let entries = entries(&self.ask.descriptors);
        let matched = known.rules.matched(self.domain.as_str(), entries.clone());
        let verdicts: Vec<Option<Verdict>> = gathered(matched.len(), &self.parts, &self.answered)?;
        let rules = (&self.domain, &known.rules);
        if !self.ask.dry_run && self.ask.hits() > 0 {
            let answered = (&matched[..], &verdicts[..]);
            let counters = &mut io.around.counters;
            counters.count(rules, entries.clone(), answered, self.ask.hits());
        }
        let mut reply = reply(&matched, &verdicts);
        if self.explained {
            explain(&mut reply, &matched, rules, entries);
        }
        Ok(Reply::of(reply))
    }

    /// What a part has answered, and whether it has counted.
    fn part_answered(
        &mut self,
        nth: usize,
        result: Result<Answer, ApiError>,
        io: &mut Io<'_>,
    ) -> Done {
        if matches!(result, Ok(Answer::Elsewhere)) {
            self.ask_leader(nth, io);
            return None;
        }
        self.open -= 1;
        let dry_run = match self.stage {
            Stage::Exact { dry_run } => dry_run,
            _ => self.ask.dry_run,
        };
        let counts = !dry_run && self.ask.hits() > 0;
        let reply = result.and_then(|answer| match answer.part() {
            // It has taken the hits, whatever it says.
            Err(_) if counts => Err(outcome_unknown()),
            reply => reply,
        });
        match (reply, self.parts.get(nth)) {
            (Ok(reply), Some((part, _))) => {
                let answer = PartAnswer::new(reply, counts);
                self.answered.insert(part.clone(), answer);
            }
            (Ok(_), None) => {}
            (Err(error), _) => self.failed = Some(worse(self.failed.take(), error)),
        }
        self.asked(io)
    }
}

fn ask_part(subject: String, check: &Check, effect: Effect, until: Micros) -> Ask {
    Ask {
        subject,
        payload: encode(check, Format::MsgPack).into(),
        effect,
        note: None,
        until,
        repeats: true,
    }
}

impl Work for Checking {
    fn go_on(&mut self, io: &mut Io<'_>) -> Done {
        match &self.stage {
            Stage::Rules => self.begin(io),
            Stage::CutOff if io.around.is_cut_off() => self.wait_in_touch(io),
            // It gets the entries that it lacks.
            Stage::CutOff => self.learn(io),
            Stage::Learning(at) if io.now.us >= *at => self.begin(io),
            Stage::GivesBack(until, _) if io.now.us >= *until => self.end(io),
            _ => None,
        }
    }

    fn answered(&mut self, nth: usize, result: Result<Answer, ApiError>, io: &mut Io<'_>) -> Done {
        if matches!(self.stage, Stage::GivesBack(..)) {
            self.open -= 1;
            self.given_back(nth, result);
            return self.asked(io);
        }
        self.part_answered(nth, result, io)
    }
}

impl Call {
    /// Of the `nth` message that this node has taken.
    pub fn of(
        message: &Message<'_>,
        op: Operation,
        now: Now,
        (config, nth): (&Config, u64),
    ) -> Result<Self, ApiError> {
        let times = Times::of(message, now)?;
        let key = message_id(message).key.to_le_bytes();
        // A client may send the same message twice and mean it.
        let (seed, nth) = (config.seed.to_le_bytes(), nth.to_le_bytes());
        let once = hash([b"limit", &key, &seed, &nth]);
        let id = match header(message, REQUEST_ID_HEADER, RequestId::new)? {
            // The leaders tell apart what the writes of one name are about.
            Some(named) => client_id(&named, op, "", &[]).key,
            None => once,
        };
        Ok(Call {
            id,
            once,
            times,
            note: None,
        })
    }

    /// The same for each copy of an operator's request.
    pub fn id_for(&self, shard: u32, op: Operation) -> RequestId {
        let (call, shard) = (self.id.to_le_bytes(), shard.to_le_bytes());
        RequestId::from_bits(hash([b"limit", &call, &shard, op.name().as_bytes()]))
    }

    /// The same for each copy of hits on exact limits, and another one for other counters or as many hits: a caller may
    /// name several checks of one user's request by the same id. Of other limits each copy counts, so each has its own.
    fn id_of_hits(&self, part: &Part, hits: u32) -> RequestId {
        let (home, keys) = &**part;
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

#[cfg(test)]
#[path = "check_tests.rs"]
pub(super) mod tests;
