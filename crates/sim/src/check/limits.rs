//! S20: what passes a rate limit. Of an exact one never more than the limit, each call counted once. Of others never more
//! than the limit and what the failovers have forgotten: hits that came after the last checkpoint in the log. And a leader
//! that writes other entries writes its checkpoints in time. A reset forgets all. No hit is counted more often than it came to
//! a node, while leaders change, too. What a check has counted that another limit refuses does not pass, and is given back, once.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_engine::Outcome;
use nowserving_limit::Verdict;
use nowserving_protocol::limits::PartVerdict;
use nowserving_shard::limits::{
    CHECKPOINT_INTERVAL_US, GiveBack, LimitAsk, LimitCommand, LimitReply, TimedAsk,
};
use nowserving_shard::state::AppliedLimit;

use super::Place;
use super::rules::RuleChecks;
use crate::calls::{Answer, Call, Ended, Hits, What};
use crate::env::Env;
use crate::hits::GiveBackAsked;
use crate::timeline::Time;

/// So much longer than its interval a checkpoint may take to be proposed: the turns of a node are so long.
const SLACK_US: Time = 400_000;
/// Each node knows new rules within this time.
const LEARNING_US: Time = 2_000_000;
/// One reset can keep out as many checkpoints as a leader writes at once, before it gives leadership away.
const REFUSED_MAX: u32 = 20;

#[derive(Debug)]
pub struct LimitChecks {
    counters: BTreeMap<Box<[u8]>, Counter>,
    shards: BTreeMap<u32, Shard>,
    rules: RuleChecks,
}

#[derive(Debug, Default)]
struct Counter {
    shard: u32,
    passed: Vec<Passed>,
    /// In the log, if it is an exact one.
    counted: u64,
    /// It was reset; the hits that were asked for before this are not among those that passed.
    reset_at: Option<Time>,
    /// The requests whose hits are counted in the log and not given back, if it is an exact one.
    counted_by: BTreeSet<u128>,
    /// In a leader's memory: the hits of checks that were refused, and when their clients were told. They were given back,
    /// and the leader has not changed since.
    refused: Vec<(Time, u64)>,
}

/// Hits that a client was told may pass.
#[derive(Clone, Copy, Debug)]
struct Passed {
    hits: u64,
    asked_at: Time,
    told_at: Time,
}

#[derive(Debug, Default)]
struct Shard {
    term: u64,
    /// Since when entries of this term are committed.
    term_at: Time,
    /// When the last checkpoint was proposed that was merged.
    checkpoint_at: Time,
    failovers: Vec<Failover>,
    /// How many checkpoints were not merged since one was, or a reset was applied.
    refused: u32,
    /// Hits and give-backs that were asked for after the last checkpoint, in the order in which clients were told of them: when each
    /// was asked for, and when its client was told.
    unsaved: Vec<(Time, Time)>,
    /// When the leader has applied the last checkpoint: it proposes the next one after that.
    free_at: Time,
    /// The entry of the last checkpoint, until the leader has applied it: its disk may be slower than those of the others.
    under_way: Option<u64>,
    /// When a reset of one of its counters was applied.
    reset_at: Time,
    /// When the first entry since a checkpoint should have been proposed came into the log.
    late_at: Option<Time>,
    /// All members know checkpoints.
    is_known: bool,
}

impl Shard {
    /// Since when a checkpoint should be in the log, if clients were told of changes that are in none.
    fn due_at(&self) -> Option<Time> {
        let is_free = self.is_known && self.under_way.is_none();
        let (_, told_at) = self.unsaved.first().filter(|_| is_free)?;
        Some(self.free_at.max(*told_at) + CHECKPOINT_INTERVAL_US + SLACK_US)
    }

    /// The leader proposed an entry that is no checkpoint: it was at work then. If it was so twice while a checkpoint
    /// was due, it should have proposed one the first time. Since when it is late.
    fn is_late(&mut self, appended_at: Time) -> Option<Time> {
        let due_at = self.due_at().filter(|due_at| *due_at <= appended_at)?;
        let first = *self.late_at.get_or_insert(appended_at);
        (first + SLACK_US <= appended_at).then_some(due_at)
    }

    /// A client that began to ask at this time was told that a counter changed, and no checkpoint may have that. What was
    /// asked before a reset may have changed only what it took back.
    fn changed(&mut self, began_at: Time, told_at: Time) {
        if began_at > self.term_at.max(self.checkpoint_at).max(self.reset_at) {
            self.unsaved.push((began_at, told_at));
        }
    }

    fn is_saved(&mut self, place: Place) {
        // It has the others, whenever their clients were told.
        self.unsaved
            .retain(|(asked_at, _)| *asked_at > place.appended_at);
        (self.checkpoint_at, self.refused) = (place.appended_at, 0);
        self.is_over(place);
    }

    /// A checkpoint was not merged, as a reset overtook it: its leader writes another one. Whether that has gone on for too
    /// long without a reset.
    fn is_refused_again(&mut self, place: Place) -> bool {
        self.refused += 1;
        self.is_over(place);
        self.refused > REFUSED_MAX
    }

    fn is_over(&mut self, place: Place) {
        (self.under_way, self.late_at, self.is_known) = (Some(place.index), None, true);
    }
}

/// A leader begins with the counters of this checkpoint, and answers from then on.
#[derive(Clone, Copy, Debug)]
struct Failover {
    checkpoint_at: Time,
    leads_at: Time,
}

impl Failover {
    /// Whether its leader may not know of these hits.
    fn may_forget(&self, hit: &Passed) -> bool {
        hit.asked_at < self.leads_at && hit.told_at >= self.checkpoint_at
    }
}

impl LimitChecks {
    /// Of a cluster of so many shards.
    pub fn new(shards: u32) -> LimitChecks {
        LimitChecks {
            counters: BTreeMap::new(),
            shards: BTreeMap::new(),
            rules: RuleChecks::new(shards),
        }
    }

    /// The next committed entry of a shard is of this term.
    pub fn entry(&mut self, env: &mut Env, place: Place, term: u64) {
        let (shard, now) = (
            self.shards.entry(place.shard).or_default(),
            env.timeline.now(),
        );
        if term > shard.term {
            (shard.term, shard.term_at, shard.free_at) = (term, now, now);
            (shard.unsaved, shard.late_at, shard.under_way) = (Vec::new(), None, None);
            shard.failovers.push(Failover {
                checkpoint_at: shard.checkpoint_at,
                leads_at: now,
            });
            let counters = self.counters.values_mut();
            for counter in counters.filter(|it| it.shard == place.shard) {
                counter.refused.clear();
            }
        }
    }

    /// The leader of this term has applied the log of a shard up to this entry.
    pub fn leader_applied(&mut self, shard: u32, (term, applied): (u64, u64), now: Time) {
        let shard = self.shards.entry(shard).or_default();
        let own = shard
            .under_way
            .take_if(|it| *it <= applied && term == shard.term);
        if own.is_some() {
            shard.free_at = now;
        }
    }

    /// All commands of a committed entry were applied.
    pub fn entry_applied(&mut self, env: &mut Env, place: Place) {
        let shard = self.shards.entry(place.shard).or_default();
        if let Some(due_at) = shard.is_late(place.appended_at) {
            let what = format!(
                "entry {} of shard {} is of {} and a checkpoint was due at {due_at}: {shard:?}",
                place.index, place.shard, place.appended_at
            );
            env.violated("S20", what);
        }
    }

    /// A committed command was applied.
    pub fn applied(&mut self, env: &mut Env, place: Place, applied: &AppliedLimit<'_>) {
        self.rules.applied(env, applied);
        let shard = self.shards.entry(place.shard).or_default();
        shard.is_known = true;
        match (applied.command, &applied.reply) {
            (LimitCommand::Checkpoint { .. }, LimitReply::Checkpoint { merged, .. }) => {
                if *merged {
                    shard.is_saved(place);
                } else if shard.is_refused_again(place) {
                    let what = format!(
                        "no checkpoint of shard {} is merged: {shard:?}",
                        place.shard
                    );
                    env.violated("S20", what);
                }
            }
            (LimitCommand::Hits { asks, .. }, LimitReply::Hits(verdicts)) => {
                // All of them or none.
                let counts = verdicts.iter().all(|verdict| verdict.answer.allowed);
                let request = applied.id.map(|id| id.key).filter(|_| counts);
                for (timed, verdict) in asks.iter().zip(verdicts) {
                    self.hit(env, timed, verdict, request);
                }
            }
            (LimitCommand::GiveBack(it), LimitReply::Hits(left)) if !left.is_empty() => {
                self.given_back(env, it);
            }
            (LimitCommand::Reset(reset), _) => {
                let counter = self.counters.entry(reset.key.clone()).or_default();
                counter.counted = 0;
                counter.reset_at.get_or_insert(0);
                // While it was on its way, checkpoints left its counter out.
                shard.unsaved.clear();
                (shard.refused, shard.reset_at) = (0, env.timeline.now());
            }
            _ => {}
        }
    }

    /// A client's reset is over: the hits before it are forgotten.
    fn reset_ended(&mut self, key: &[u8], now: Time, ended: &Ended) {
        if let (Some(counter), Ended::Ok(_)) = (self.counters.get_mut(key), ended) {
            counter.passed.clear();
            counter.reset_at = Some(now);
        }
    }

    /// A request's hits are decided; without a request they do not count.
    fn hit(&mut self, env: &mut Env, timed: &TimedAsk, verdict: &Verdict, request: Option<u128>) {
        let LimitAsk {
            limit, key, hits, ..
        } = &timed.ask;
        let counter = self.counters.entry(key.clone()).or_default();
        let fits = counter.counted + hits <= u64::from(limit.capacity());
        if verdict.answer.allowed != fits {
            let what = format!("{hits} hits after {}: {verdict:?}", counter.counted);
            return env.violated("S20", what);
        }
        if let Some(request) = request {
            counter.counted += hits;
            counter.counted_by.insert(request);
        }
    }

    /// An exact limit has the hits of a call back: so many fewer are counted, once.
    fn given_back(&mut self, env: &mut Env, it: &GiveBack) {
        for TimedAsk { ask, .. } in &it.asks {
            let counter = self.counters.entry(ask.key.clone()).or_default();
            let was_counted = counter.counted_by.remove(&it.request);
            let left = counter.counted.checked_sub(ask.hits);
            match left.filter(|_| was_counted) {
                Some(counted) => counter.counted = counted,
                None => {
                    let what = format!("given back, and not counted: {it:?}, {counter:?}");
                    return env.violated("S20", what);
                }
            }
        }
    }

    /// The leader of this term has given hits back: it has a change for its next checkpoint, also if none are left then. A
    /// former one, which does not know yet that it is one, gives back what no checkpoint will have.
    pub fn gave_back(&mut self, it: &GiveBackAsked, term: u64, asked_at: Time, now: Time) {
        let was_reset = |key| {
            let counter = self.counters.get(key);
            counter.is_some_and(|counter| counter.reset_at.is_some())
        };
        // Hits before a reset are not there any more.
        if !it.keys.iter().all(was_reset) {
            let shard = self.shards.entry(it.shard).or_default();
            if term >= shard.term {
                shard.changed(asked_at, now);
            }
        }
    }

    /// A client's call is over.
    pub fn call_ended(&mut self, env: &mut Env, call: &Call, now: Time, ended: &Ended) {
        match (&call.query.what, ended) {
            (What::LimitReset { key, .. }, _) => self.reset_ended(key, now, ended),
            (What::LimitRules { .. } | What::Read { .. }, Ended::Ok(answer)) => {
                self.rules.answered(env, call, answer, now);
            }
            (What::LimitChanging(all), Ended::Ok(answer)) => match verdicts(answer) {
                // A node whose disk is slow may be seconds behind.
                Some([]) => {}
                Some(verdicts) => match by_told(all, verdicts) {
                    Some(all) => self.checked(env, call, (&all, verdicts), now),
                    None => env.violated("S20", format!("{call:?}: {answer:?}")),
                },
                None => {}
            },
            (What::Limit(all), Ended::Ok(answer)) => match verdicts(answer) {
                Some([]) => self.knew_no_rules(env, call),
                Some(verdicts) if verdicts.len() == all.len() => {
                    self.checked(env, call, (all, verdicts), now);
                }
                _ => env.violated("S20", format!("{call:?}: {answer:?}")),
            },
            // Rules are the same for all nodes, and all can be asked for.
            (What::Limit(_) | What::LimitChanging(_), Ended::Refused(code)) => {
                env.violated("S20", format!("{:?} ended with {code}", call.query));
            }
            _ => {}
        }
    }

    /// The node that was asked said that there are no rules. All nodes know them soon.
    fn knew_no_rules(&self, env: &mut Env, call: &Call) {
        let since = self.rules.there_since(&call.query.line);
        let known_at = since.map(|at| at.max(env.answers_from) + LEARNING_US);
        if known_at.is_some_and(|known_at| call.began_at > known_at) {
            env.violated("S20", format!("{:?} is not limited", call.query));
        }
    }

    /// A client was told whether its hits pass.
    fn checked(
        &mut self,
        env: &mut Env,
        call: &Call,
        (all, verdicts): (&[Hits], &[PartVerdict]),
        now: Time,
    ) {
        for (hits, verdict) in all.iter().zip(verdicts).filter(|(hits, _)| !hits.exact) {
            self.counts_what_came(env, call, &hits.ask, verdict);
        }
        if verdicts.iter().all(|verdict| verdict.allowed) {
            for hits in all {
                self.passed(env, call, hits, now);
            }
        } else if all.iter().all(|hits| self.is_well(env, call, hits.shard)) {
            for hits in all.iter().filter(|hits| !hits.exact) {
                let counter = self.counters.entry(hits.ask.key.clone()).or_default();
                counter.shard = hits.shard;
                counter.refused.push((now, hits.ask.hits));
            }
        }
    }

    /// Whether one leader had the shard while a call was under way, and nothing was broken.
    fn is_well(&self, env: &Env, call: &Call, shard: u32) -> bool {
        let since = self.shards.get(&shard).map_or(0, |shard| shard.term_at);
        call.began_at > env.answers_from.max(since)
    }

    /// By what is left, no more is counted than came to nodes and was not refused before this call.
    fn counts_what_came(&self, env: &mut Env, call: &Call, ask: &LimitAsk, told: &PartVerdict) {
        let refused = self.counters.get(&ask.key).map(|it| it.refused.iter());
        let refused = refused.into_iter().flatten();
        let refused = refused.filter(|(at, _)| *at < call.began_at);
        let refused: u64 = refused.map(|(_, hits)| hits).sum();
        let came = env.hits.came(&ask.key);
        let left = u64::from(told.remaining);
        let counted = u64::from(ask.limit.capacity()).saturating_sub(left);
        if counted + refused > came {
            let what = format!(
                "{counted} hits are counted, {came} came, and {refused} were refused: {ask:?}"
            );
            env.violated("S20", what);
        }
    }

    /// A client was told that these hits of its call pass.
    fn passed(&mut self, env: &mut Env, call: &Call, hits: &Hits, now: Time) {
        let Hits { ask, exact, .. } = hits;
        let counter = self.counters.entry(ask.key.clone()).or_default();
        let shard = self.shards.entry(hits.shard).or_default();
        if !exact {
            shard.changed(call.began_at, now);
        }
        if counter.reset_at.is_some_and(|at| call.began_at <= at) {
            return; // It may have been forgotten.
        }
        counter.passed.push(Passed {
            hits: ask.hits,
            asked_at: call.began_at,
            told_at: now,
        });
        let passed: u64 = counter.passed.iter().map(|it| it.hits).sum();
        let forgotten: u64 = match exact {
            true => 0,
            false => {
                let failovers = shard.failovers.iter();
                failovers
                    .flat_map(|failover| {
                        let hits = counter.passed.iter();
                        hits.filter(move |hit| failover.may_forget(hit))
                    })
                    .map(|hit| hit.hits)
                    .sum()
            }
        };
        let most = u64::from(ask.limit.capacity()) + forgotten;
        if passed > most && !may_be_reset(env, &ask.key) {
            let what = format!(
                "{:?}: {passed} hits passed, and {most} may: {counter:?}, {shard:?}",
                call.query
            );
            env.violated("S20", what);
        }
    }

    /// The run is over: each hit on an exact limit is one that a client asked for, counted once. Those of rules that change
    /// are not judged: a check whose answer is by newer rules may have counted by former ones.
    pub fn at_end(&self, env: &mut Env) {
        let mut may_count: BTreeMap<&[u8], (u64, u64)> = BTreeMap::new();
        for call in &env.calls.all {
            let What::Limit(all) = &call.query.what else {
                continue;
            };
            for hits in all.iter().filter(|it| it.exact) {
                let (must_stay, may_stay) = stays(call, (all, hits));
                let (least, most) = may_count.entry(&hits.ask.key).or_default();
                *least += if must_stay { hits.ask.hits } else { 0 };
                *most += if may_stay { hits.ask.hits } else { 0 };
            }
        }
        let wrong = may_count.iter().find_map(|(key, (least, most))| {
            let counter = self.counters.get(*key);
            if counter.is_some_and(|counter| counter.reset_at.is_some()) {
                return None;
            }
            let counted = counter.map_or(0, |counter| counter.counted);
            let is_wrong = !(*least..=*most).contains(&counted);
            is_wrong.then(|| {
                let calls = calls_of(env, key);
                format!(
                    "{counted} hits are counted, of {least} to {most}: {key:?}, calls {calls:?}"
                )
            })
        });
        if let Some(what) = wrong {
            env.violated("S20", what);
        }
    }
}

/// Whether hits of a call on an exact limit must, and may, be counted at the end.
fn stays(call: &Call, (all, hits): (&[Hits], &Hits)) -> (bool, bool) {
    match &call.ended {
        Some((_, Ended::Ok(answer))) => {
            let verdicts = verdicts(answer).unwrap_or_default();
            let refused = |it: &(&Hits, &PartVerdict)| !it.1.allowed;
            let refused: Vec<_> = all.iter().zip(verdicts).filter(refused).collect();
            let passes = refused.is_empty() && !verdicts.is_empty();
            // Another limit has refused it after it counted, and it could not be given back: a copy of the request
            // was told that it may pass, for one. Those in memory are asked before, and those of one shard together.
            let others = |(it, _): &(&Hits, _)| it.exact && it.shard != hits.shard;
            let is_kept = !verdicts.is_empty() && refused.iter().all(others);
            // An earlier attempt may have counted.
            (passes, is_kept || call.attempts.len() > 1)
        }
        Some((_, Ended::Unavailable)) => (false, false),
        Some((_, Ended::Unknown | Ended::Refused(_))) | None => (false, true),
    }
}

/// The calls that check this counter.
fn calls_of(env: &Env, key: &[u8]) -> Vec<usize> {
    let is_of = |call: &&Call| match &call.query.what {
        What::Limit(all) => all.iter().any(|it| *it.ask.key == *key),
        _ => false,
    };
    let calls = env.calls.all.iter().filter(is_of);
    calls.map(|call| call.query.call).collect()
}

/// The limits that were told: each has another number.
fn by_told(all: &[Vec<Hits>], verdicts: &[PartVerdict]) -> Option<Vec<Hits>> {
    let told = all.iter().zip(verdicts).map(|(any, verdict)| {
        let mut any = any.iter();
        any.find(|it| it.ask.limit.requests_per_unit() == verdict.limit)
            .cloned()
    });
    let told: Option<Vec<Hits>> = told.collect();
    told.filter(|told| (told.len(), all.len()) == (all.len(), verdicts.len()))
}

fn verdicts(answer: &Answer) -> Option<&[PartVerdict]> {
    match answer.as_ref() {
        Ok(Outcome::LimitPart(part)) => Some(&part.verdicts),
        _ => None,
    }
}

/// Whether a reset of this counter is under way, or has an unknown outcome: then it can be done at any time.
fn may_be_reset(env: &Env, counter: &[u8]) -> bool {
    let mut calls = env.calls.all.iter();
    calls.any(|call| match &call.query.what {
        What::LimitReset { key, .. } => {
            **key == *counter && !matches!(call.ended, Some((_, Ended::Ok(_))))
        }
        _ => false,
    })
}
