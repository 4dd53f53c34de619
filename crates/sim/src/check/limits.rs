//! S20: what passes a rate limit. Of an exact one never more than the limit, each call counted once. Of others never more
//! than the limit and what the failovers have forgotten: hits that came after the last checkpoint in the log.

use std::collections::BTreeMap;

use nowserving_engine::Outcome;
use nowserving_limit::Verdict;
use nowserving_shard::limits::{LimitAsk, LimitCommand, LimitReply, TimedAsk};

use super::Place;
use crate::calls::{Call, Ended, What};
use crate::env::Env;
use crate::timeline::Time;

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
    /// When the last checkpoint in the log was proposed.
    checkpoint_at: Time,
    failovers: Vec<Failover>,
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
    pub fn entry(&mut self, env: &Env, shard: u32, term: u64) {
        let shard = self.shards.entry(shard).or_default();
        if term > shard.term {
            shard.term = term;
            shard.failovers.push(Failover {
                checkpoint_at: shard.checkpoint_at,
                leads_at: env.timeline.now(),
            });
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
        match (command, reply) {
            (LimitCommand::Checkpoint { .. }, _) => {
                let shard = self.shards.entry(place.shard).or_default();
                shard.checkpoint_at = place.appended_at;
            }
            (LimitCommand::Hits { asks, .. }, LimitReply::Hits(verdicts)) => {
                for (timed, verdict) in asks.iter().zip(verdicts) {
                    self.hit(env, timed, verdict);
                }
            }
            _ => {}
        }
    }

    fn hit(&mut self, env: &mut Env, timed: &TimedAsk, verdict: &Verdict) {
        let LimitAsk {
            limit, key, hits, ..
        } = &timed.ask;
        let counter = self.counters.entry(key.clone()).or_default();
        let fits = counter.counted + hits <= u64::from(limit.capacity());
        if verdict.answer.allowed != fits {
            let what = format!("{hits} hits after {}: {verdict:?}", counter.counted);
            return env.violated("S20", what);
        }
        counter.counted += if fits { *hits } else { 0 };
    }

    /// A client's call is over.
    pub fn call_ended(&mut self, env: &mut Env, call: &Call, now: Time, ended: &Ended) {
        let (What::Limit { ask, exact }, Ended::Ok(answer)) = (&call.query.what, ended) else {
            return;
        };
        let Ok(Outcome::LimitPart(part)) = answer.as_ref() else {
            return env.violated("S20", format!("{call:?}: {answer:?}"));
        };
        if !part.verdicts.iter().all(|verdict| verdict.allowed) {
            return;
        }
        let counter = self.counters.entry(ask.key.clone()).or_default();
        counter.passed.push(Passed {
            hits: ask.hits,
            asked_at: call.began_at,
            told_at: now,
        });
        let shard = self.shards.entry(call.query.shard).or_default();
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
        if passed > most {
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
            let What::Limit { ask, exact: true } = &call.query.what else {
                continue;
            };
            let (least, most) = may_count.entry(&ask.key).or_default();
            match &call.ended {
                Some((_, Ended::Ok(answer))) => {
                    let told = matches!(answer.as_ref(), Ok(Outcome::LimitPart(part))
                        if part.verdicts.iter().all(|verdict| verdict.allowed));
                    *least += if told { ask.hits } else { 0 };
                    *most += if told { ask.hits } else { 0 };
                }
                Some((_, Ended::Unavailable)) => {}
                Some((_, Ended::Unknown | Ended::Refused(_))) | None => *most += ask.hits,
            }
        }
        let wrong = may_count.iter().find_map(|(key, (least, most))| {
            let counter = self.counters.get(*key);
            let counted = counter.map_or(0, |counter| counter.counted);
            let is_wrong = !(*least..=*most).contains(&counted);
            is_wrong.then(|| format!("{counted} hits are counted, of {least} to {most}: {key:?}"))
        });
        if let Some(what) = wrong {
            env.violated("S20", what);
        }
    }
}
