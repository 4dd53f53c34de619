//! Rate limits in a shard: what is replicated of them, and what its leader has in memory.
//!
//! ```text
//! rules:   Apply, Delete (in shard 0) ─► RuleTexts ─► every node reads them there
//! a check: the leader's LeaderLimits, over Saved ─► nothing is written
//!          its changed counters, every 200 ms ─► Checkpoint ─► Saved, on all nodes
//! exact:   Hits ─► Saved, on all nodes ─► the answer
//! refused elsewhere: the leader's Held ─► its table; of exact hits GiveBack ─► Saved, on all nodes
//! ```
//!
//! Rules are texts here: a node reads them, finds the limits that count for a request, and asks the leaders of the shards
//! that have the counters ([`home_of`]). So a shard needs no rules to decide.

mod answer;
mod changes;
mod leader;
mod rules;
mod stored;

use nowserving_codec::Codec;
use nowserving_limit::{
    Answer, Ask, Change, Counted, Drain, Limit, Moment, Now, Saved, TableMax, Verdict, WhenFull,
    check, combine, key,
};
use nowserving_line::{LineName, Stamp};
use nowserving_protocol::limits::{PartReply, PartVerdict};
use nowserving_protocol::subject::shard_of_bytes;

pub use answer::HitsAnswer;
pub use changes::{CHANGES_KEPT, Changed, LimitChange, LimitChanges};
pub use leader::{CHECKPOINT_INTERVAL_US, LeaderLimits};
pub use rules::{
    ApplyRules, DOMAINS_MAX, DeleteRules, DomainRules, RULES_TEXT_BYTES_MAX, RuleTexts,
    RulesRefused,
};

/// The counters of a shard, in its leader's memory and again in every node's: those of 16 shards are ten million.
pub const COUNTERS_MAX: TableMax = TableMax {
    counters: 625_000,
    key_bytes: 64 << 20,
    log_hits: 2 << 20,
};
/// How many idle counters of a checkpoint a command may drop: more than it can add.
const EXPIRED_AT_LEAST: usize = 64;

/// The shard that has a counter. Algorithm and unit do not count, so a rule that changes them stays where it is.
#[must_use]
pub fn home_of(counter: &[u8], shards: u32) -> u32 {
    shard_of_bytes(counter.get(2..).unwrap_or_default(), shards)
}

/// One limit of a request, and the hits on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitAsk {
    pub limit: Limit,
    pub key: Box<[u8]>,
    pub hits: u64,
    /// The longest delay that the caller accepts.
    pub max_delay_us: Option<u64>,
    pub when_full: WhenFull,
    pub is_shadow: bool,
    pub is_quota: bool,
}

impl LimitAsk {
    /// What a counter says after hits were given back.
    fn of_counted(counted: &Counted) -> Self {
        LimitAsk {
            limit: counted.limit.clone(),
            key: counted.key.clone(),
            hits: counted.hits,
            max_delay_us: None,
            when_full: WhenFull::Allow,
            is_shadow: false,
            is_quota: false,
        }
    }

    fn at(&self, at: Moment) -> Ask<'_> {
        Ask {
            limit: &self.limit,
            key: &self.key,
            hits: self.hits,
            at,
            max_delay_us: self.max_delay_us,
            when_full: self.when_full,
            is_shadow: self.is_shadow,
            is_quota: self.is_quota,
        }
    }
}

/// With the time of the check, by the leader's clocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimedAsk {
    pub ask: LimitAsk,
    pub at: Moment,
}

/// Verdicts on their way between nodes.
#[must_use]
pub fn part_reply(verdicts: &[Verdict]) -> PartReply {
    let verdicts = verdicts.iter().map(|verdict| PartVerdict {
        allowed: verdict.answer.allowed,
        limit: verdict.answer.limit,
        remaining: verdict.answer.remaining,
        reset_us: verdict.answer.reset_us,
        retry_after_us: verdict.answer.retry_after_us,
        delay_us: verdict.answer.delay_us,
        shadow: verdict.is_shadow,
        quota: verdict.is_quota,
        untracked: verdict.is_untracked,
    });
    PartReply {
        verdicts: verdicts.collect(),
    }
}

/// The other way.
pub fn verdicts_of(part: PartReply) -> impl Iterator<Item = Verdict> {
    part.verdicts.into_iter().map(|it| Verdict {
        answer: Answer {
            allowed: it.allowed,
            limit: it.limit,
            remaining: it.remaining,
            reset_us: it.reset_us,
            retry_after_us: it.retry_after_us,
            delay_us: it.delay_us,
        },
        is_shadow: it.shadow,
        is_quota: it.quota,
        is_untracked: it.untracked,
    })
}

/// A command about rate limits.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub enum LimitCommand {
    Apply(ApplyRules),
    Delete(DeleteRules),
    /// What the leader counted since the last one.
    Checkpoint {
        /// How many counters had been reset when it was made: it may have one that was reset since, so with another
        /// number it is not applied, and the leader makes another one.
        resets: u64,
        changes: Vec<Change>,
    },
    /// Hits on exact limits, decided together.
    Hits {
        domain: LineName,
        asks: Vec<TimedAsk>,
    },
    GiveBack(GiveBack),
    Reset(ResetCounter),
}

/// Gives back hits on exact limits, as another limit of their check refused it, or was not answered. The request that counted
/// them is forgotten: so it does so once, and a copy counts anew. Whatever copies come, no more counts than the hits of one.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub struct GiveBack {
    pub domain: LineName,
    /// The key of that request's id.
    pub request: u128,
    /// Its limits, with the hits that are given back and the time at which they are.
    pub asks: Vec<TimedAsk>,
    /// One for each: [`Counter::mark`] after the hits.
    pub marks: Vec<Drain>,
}

impl GiveBack {
    /// What it gives back, and when.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (u64, Counted)> {
        let asks = self.asks.iter().zip(&self.marks);
        asks.map(|(TimedAsk { ask, at }, mark)| {
            let counted = Counted {
                key: ask.key.clone(),
                limit: ask.limit.clone(),
                hits: ask.hits,
                mark: *mark,
            };
            (at.now_us, counted)
        })
    }
}

/// Forgets what was counted.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
#[codec(check = ResetCounter::check)]
pub struct ResetCounter {
    pub domain: LineName,
    pub key: Box<[u8]>,
    /// What the operator named, in words.
    pub descriptor: String,
    /// The operator's name and reason, as given in the request.
    pub by: String,
    pub reason: String,
}

impl ResetCounter {
    fn check(&self) -> Result<(), &'static str> {
        let known = key::head(&self.key).map(|_| ());
        known.ok_or("the key of a counter that is none")
    }
}

/// The outcome of a [`LimitCommand`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitReply {
    /// The version of the rules, or why they were not changed.
    Rules(Result<u64, RulesRefused>),
    Checkpoint {
        /// No counter was reset since it was made.
        merged: bool,
        /// How many of its counters found no room: a failover forgets these, however old they are.
        not_kept: usize,
    },
    /// One for each limit. Of hits that are given back: what is left then; none if they are not.
    Hits(Vec<Verdict>),
    /// Whether there was such a counter among those that all nodes have.
    Reset(bool),
}

/// What a shard replicates of rate limits.
#[derive(Debug, PartialEq, Eq)]
pub struct LimitsState {
    pub(crate) rules: RuleTexts,
    /// The counters of the last checkpoint, and those of exact limits.
    pub(crate) saved: Saved,
    /// How many counters were reset.
    pub(crate) resets: u64,
    pub(crate) changes: LimitChanges,
}

impl Default for LimitsState {
    fn default() -> Self {
        LimitsState {
            rules: RuleTexts::default(),
            saved: Saved::new(COUNTERS_MAX),
            resets: 0,
            changes: LimitChanges::default(),
        }
    }
}

impl LimitsState {
    #[must_use]
    pub fn rules(&self) -> &RuleTexts {
        &self.rules
    }

    #[must_use]
    pub fn saved(&self) -> &Saved {
        &self.saved
    }

    /// What operators changed lately.
    #[must_use]
    pub fn changes(&self) -> &LimitChanges {
        &self.changes
    }

    /// The time by which counters are dropped. A leader's wall clock can leap years ahead for a moment; the service clock,
    /// which began by the wall clock and can only fall behind, does not. So while there is room, a counter of a window
    /// stays until its end is past by both.
    fn idle_by(&self, now: Now) -> Now {
        let wall_us = match self.saved.is_roomy() {
            true => now.wall_us.min(now.service_us),
            false => now.wall_us,
        };
        Now { wall_us, ..now }
    }

    /// The answer to hits on exact limits if they are refused by what is counted already: a caller that is kept out costs
    /// a look-up then, not a write. Hits that are on their way through the log make none of them pass.
    #[must_use]
    pub fn refuses(&self, asks: &[TimedAsk]) -> Option<Vec<Verdict>> {
        let verdict = |timed: &TimedAsk| {
            let ask = timed.ask.at(timed.at);
            Verdict {
                answer: self.saved.dry_run(&ask),
                is_shadow: ask.is_shadow,
                is_quota: ask.is_quota,
                is_untracked: false,
            }
        };
        let mut verdicts: Vec<_> = asks.iter().map(verdict).collect();
        if combine(&verdicts).allowed {
            return None;
        }
        // As in [`check`].
        for verdict in verdicts.iter_mut().filter(|it| it.answer.allowed) {
            verdict.answer.delay_us = 0;
        }
        Some(verdicts)
    }

    /// How many counters a command touches, at most.
    pub(crate) fn work(&self, command: &LimitCommand) -> usize {
        match command {
            LimitCommand::Checkpoint { changes, .. } => changes.len() + expired_by(changes.len()),
            LimitCommand::GiveBack(it) => 2 * it.asks.len(),
            LimitCommand::Hits { asks, .. } => {
                2 * asks.len() + self.saved.work_of_a_check(asks.len())
            }
            LimitCommand::Apply(_) | LimitCommand::Delete(_) | LimitCommand::Reset(_) => 0,
        }
    }

    /// At the time of the stamp. Operators' changes are recorded.
    pub(crate) fn apply(&mut self, command: &LimitCommand, stamp: Stamp) -> LimitReply {
        let before = self.rules.version();
        let reply = self.execute(command, stamp);
        let change = changes::change_of(command, &reply, before, stamp.wall_ms);
        if let Some(change) = change {
            self.changes.keep(change);
        }
        reply
    }

    fn execute(&mut self, command: &LimitCommand, stamp: Stamp) -> LimitReply {
        let wall_ms = stamp.wall_ms;
        let now = limits_now(stamp.now_ms, wall_ms);
        match command {
            LimitCommand::Apply(apply) => LimitReply::Rules(self.rules.apply(apply, wall_ms)),
            LimitCommand::Delete(delete) => LimitReply::Rules(self.rules.delete(delete)),
            LimitCommand::Checkpoint { resets, changes } => {
                let is_current = *resets == self.resets;
                if nowserving_bite::is(nowserving_bite::Break::S20) {
                    return LimitReply::Checkpoint {
                        merged: is_current,
                        not_kept: 0,
                    };
                }
                let idle_by = self.idle_by(now);
                self.saved.expire(idle_by, expired_by(changes.len()));
                let changes = changes.iter().filter(|_| is_current);
                let kept = changes.map(|change| self.saved.merge(change));
                LimitReply::Checkpoint {
                    merged: is_current,
                    not_kept: kept.filter(|kept| !kept).count(),
                }
            }
            LimitCommand::Hits { asks, .. } => {
                let expired = 2 * asks.len();
                let asks: Vec<_> = asks.iter().map(|timed| timed.ask.at(timed.at)).collect();
                let forgets = nowserving_bite::is(nowserving_bite::Break::S20Exact);
                let verdicts = check(&mut self.saved, &asks, forgets, now);
                let idle_by = self.idle_by(now);
                self.saved.expire(idle_by, expired);
                LimitReply::Hits(verdicts)
            }
            LimitCommand::GiveBack(it) => LimitReply::Hits(self.give_back(it)),
            LimitCommand::Reset(reset) => {
                self.resets += 1;
                LimitReply::Reset(self.saved.remove(&reset.key))
            }
        }
    }
}

impl LimitsState {
    fn give_back(&mut self, it: &GiveBack) -> Vec<Verdict> {
        for (at_us, counted) in it.counted() {
            self.saved.give_back(&counted, at_us);
        }
        let left = it.asks.iter().map(|TimedAsk { ask, at }| Verdict {
            answer: self.saved.dry_run(&Ask {
                hits: 0,
                ..ask.at(*at)
            }),
            is_shadow: ask.is_shadow,
            is_quota: ask.is_quota,
            is_untracked: false,
        });
        left.collect()
    }
}

/// How many counters a checkpoint of so many looks at for idle ones.
fn expired_by(changes: usize) -> usize {
    2 * changes + EXPIRED_AT_LEAST
}

impl LimitCommand {
    /// The name of the operator who asks for it, if it is an operator's.
    pub fn by_mut(&mut self) -> Option<&mut String> {
        match self {
            LimitCommand::Apply(apply) => Some(&mut apply.by),
            LimitCommand::Delete(delete) => Some(&mut delete.by),
            LimitCommand::Reset(reset) => Some(&mut reset.by),
            LimitCommand::Checkpoint { .. }
            | LimitCommand::Hits { .. }
            | LimitCommand::GiveBack(_) => None,
        }
    }

    /// The domain of a request; a checkpoint has none.
    #[must_use]
    pub fn domain(&self) -> Option<&LineName> {
        match self {
            LimitCommand::Apply(apply) => Some(&apply.domain),
            LimitCommand::Delete(delete) => Some(&delete.domain),
            LimitCommand::Reset(reset) => Some(&reset.domain),
            LimitCommand::Hits { domain, .. } => Some(domain),
            LimitCommand::GiveBack(it) => Some(&it.domain),
            LimitCommand::Checkpoint { .. } => None,
        }
    }
}

/// Both clocks as limits read them.
fn limits_now(service_ms: u64, wall_ms: u64) -> Now {
    Now {
        service_us: service_ms.saturating_mul(1_000),
        wall_us: wall_ms.saturating_mul(1_000),
    }
}

#[cfg(test)]
mod tests;
