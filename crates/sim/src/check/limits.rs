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

use super::Place;
use crate::calls::{Answer, Call, Ended, Hits, What};
use crate::env::Env;
use crate::timeline::Time;

/// So much longer than its interval a checkpoint may take to be proposed: the turns of a node are so long.
const SLACK_US: Time = 400_000;
/// One reset can keep out as many checkpoints as a leader writes at once, before it gives leadership away.
const REFUSED_MAX: u32 = 20;

#[derive(Debug, Default)]
pub struct LimitChecks {
    counters: BTreeMap<Box<[u8]>, Counter>,
    shards: BTreeMap<u32, Shard>,
}

#[derive(Debug, Default)]
struct Counter {
    passed: Vec<Passed>,
    /// In the log, if it is an exact one.
    counted: u64,
    /// It was reset; the hits that were asked for before this are not among those that passed.
    reset_at: Option<Time>,
    /// The calls whose hits on it were given back, if it is an exact one.
    given_back: BTreeSet<u128>,
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
    /// When the last checkpoint was applied: the next one is proposed after that.
    free_at: Time,
    /// When the first entry since a checkpoint should have been proposed came into the log.
    late_at: Option<Time>,
    /// All members know checkpoints.
    is_known: bool,
    /// One of its counters was reset.
    was_reset: bool,
}

impl Shard {
    /// Since when a checkpoint should be in the log, if clients were told of changes that are in none.
    fn due_at(&self) -> Option<Time> {
        let (_, told_at) = self.unsaved.first().filter(|_| self.is_known)?;
        Some(self.free_at.max(*told_at) + CHECKPOINT_INTERVAL_US + SLACK_US)
    }

    /// The leader proposed an entry that is no checkpoint: it was at work then. If it was so twice while a checkpoint
    /// was due, it should have proposed one the first time. Since when it is late.
    fn is_late(&mut self, appended_at: Time) -> Option<Time> {
        let due_at = self.due_at().filter(|due_at| *due_at <= appended_at)?;
        let first = *self.late_at.get_or_insert(appended_at);
        (first + SLACK_US <= appended_at).then_some(due_at)
    }

    /// A client that began to ask at this time was told that a counter changed, and no checkpoint may have that.
    fn changed(&mut self, began_at: Time, told_at: Time) {
        if began_at > self.term_at.max(self.checkpoint_at) {
            self.unsaved.push((began_at, told_at));
        }
    }

    fn is_saved(&mut self, appended_at: Time, now: Time) {
        // It has the others, whenever their clients were told.
        self.unsaved.retain(|(asked_at, _)| *asked_at > appended_at);
        (self.checkpoint_at, self.refused) = (appended_at, 0);
        (self.free_at, self.late_at, self.is_known) = (now, None, true);
    }

    /// A checkpoint was not merged, as a reset overtook it: its leader writes another one. Whether that has gone on for too
    /// long without a reset.
    fn is_refused_again(&mut self, now: Time) -> bool {
        self.refused += 1;
        (self.free_at, self.late_at, self.is_known) = (now, None, true);
        self.refused > REFUSED_MAX
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
    /// The next committed entry of a shard is of this term.
    pub fn entry(&mut self, env: &mut Env, place: Place, term: u64) {
        let (shard, now) = (
            self.shards.entry(place.shard).or_default(),
            env.timeline.now(),
        );
        if term > shard.term {
            (shard.term, shard.term_at, shard.free_at) = (term, now, now);
            (shard.unsaved, shard.late_at) = (Vec::new(), None);
            shard.failovers.push(Failover {
                checkpoint_at: shard.checkpoint_at,
                leads_at: now,
            });
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
    pub fn applied(
        &mut self,
        env: &mut Env,
        place: Place,
        command: &LimitCommand,
        reply: &LimitReply,
    ) {
        let shard = self.shards.entry(place.shard).or_default();
        shard.is_known = true;
        match (command, reply) {
            (LimitCommand::Checkpoint { .. }, LimitReply::Checkpoint { merged, .. }) => {
                let now = env.timeline.now();
                if *merged {
                    shard.is_saved(place.appended_at, now);
                } else if shard.is_refused_again(now) {
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
                for (timed, verdict) in asks.iter().zip(verdicts) {
                    self.hit(env, timed, verdict, counts);
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
                (shard.refused, shard.was_reset) = (0, true);
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

    fn hit(&mut self, env: &mut Env, timed: &TimedAsk, verdict: &Verdict, counts: bool) {
        let LimitAsk {
            limit, key, hits, ..
        } = &timed.ask;
        let counter = self.counters.entry(key.clone()).or_default();
        let fits = counter.counted + hits <= u64::from(limit.capacity());
        if verdict.answer.allowed != fits {
            let what = format!("{hits} hits after {}: {verdict:?}", counter.counted);
            return env.violated("S20", what);
        }
        counter.counted += if counts { *hits } else { 0 };
    }

    /// An exact limit has the hits of a call back: so many fewer are counted, once.
    fn given_back(&mut self, env: &mut Env, it: &GiveBack) {
        for TimedAsk { ask, .. } in &it.asks {
            let counter = self.counters.entry(ask.key.clone()).or_default();
            let is_first = counter.given_back.insert(it.request);
            match counter.counted.checked_sub(ask.hits).filter(|_| is_first) {
                Some(counted) => counter.counted = counted,
                None => {
                    let what = format!("given back, and not counted: {it:?}, {counter:?}");
                    return env.violated("S20", what);
                }
            }
        }
    }

    /// A leader has given hits back: it has a change for its next checkpoint, also if none are left then.
    pub fn gave_back(&mut self, shard: u32, asked_at: Time, now: Time) {
        let shard = self.shards.entry(shard).or_default();
        // Hits before a reset are not there any more.
        if !shard.was_reset {
            shard.changed(asked_at, now);
        }
    }

    /// A client's call is over.
    pub fn call_ended(&mut self, env: &mut Env, call: &Call, now: Time, ended: &Ended) {
        if let What::LimitReset { key, .. } = &call.query.what {
            return self.reset_ended(key, now, ended);
        }
        let (What::Limit(all), Ended::Ok(answer)) = (&call.query.what, ended) else {
            return;
        };
        let Some(verdicts) = verdicts(answer) else {
            return env.violated("S20", format!("{call:?}: {answer:?}"));
        };
        // The node that was asked did not know the rules yet.
        if verdicts.is_empty() {
            return;
        }
        if verdicts.len() != all.len() {
            return env.violated("S20", format!("{call:?}: {answer:?}"));
        }
        for (hits, verdict) in all.iter().zip(verdicts) {
            if !hits.exact {
                counts_what_came(env, &hits.ask, verdict);
            }
        }
        if verdicts.iter().all(|verdict| verdict.allowed) {
            for hits in all.iter() {
                self.passed(env, call, hits, now);
            }
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

    /// The run is over: each hit on an exact limit is one that a client asked for, counted once.
    pub fn at_end(&self, env: &mut Env) {
        let mut may_count: BTreeMap<&[u8], (u64, u64)> = BTreeMap::new();
        for call in &env.calls.all {
            let What::Limit(all) = &call.query.what else {
                continue;
            };
            // What another limit has refused counts if it could not be given back.
            let (passes, may_stay) = match &call.ended {
                Some((_, Ended::Ok(answer))) => {
                    let verdicts = verdicts(answer).unwrap_or_default();
                    let passes = verdicts.iter().all(|verdict| verdict.allowed);
                    let is_limited = !verdicts.is_empty();
                    (
                        passes && is_limited,
                        (passes || all.len() > 1) && is_limited,
                    )
                }
                Some((_, Ended::Unavailable)) => (false, false),
                Some((_, Ended::Unknown | Ended::Refused(_))) | None => (false, true),
            };
            for Hits { ask, .. } in all.iter().filter(|it| it.exact) {
                let (least, most) = may_count.entry(&ask.key).or_default();
                *least += if passes { ask.hits } else { 0 };
                *most += if may_stay { ask.hits } else { 0 };
            }
        }
        let wrong = may_count.iter().find_map(|(key, (least, most))| {
            let counter = self.counters.get(*key);
            if counter.is_some_and(|counter| counter.reset_at.is_some()) {
                return None;
            }
            let counted = counter.map_or(0, |counter| counter.counted);
            let is_wrong = !(*least..=*most).contains(&counted);
            is_wrong.then(|| format!("{counted} hits are counted, of {least} to {most}: {key:?}"))
        });
        if let Some(what) = wrong {
            env.violated("S20", what);
        }
    }
}

fn verdicts(answer: &Answer) -> Option<&[PartVerdict]> {
    match answer.as_ref() {
        Ok(Outcome::LimitPart(part)) => Some(&part.verdicts),
        _ => None,
    }
}

/// By what is left, no more is counted than came to nodes.
fn counts_what_came(env: &mut Env, ask: &LimitAsk, verdict: &PartVerdict) {
    let came = env.calls.hits_came.get(&ask.key).copied();
    let came = came.unwrap_or_default();
    let left = u64::from(verdict.remaining);
    let counted = u64::from(ask.limit.capacity()).saturating_sub(left);
    if counted > came {
        let what = format!("{counted} hits are counted, and {came} came: {ask:?}");
        env.violated("S20", what);
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
