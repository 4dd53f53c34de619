//! S20, what operators of rate limits are told: rules change only as they asked, and an answer has what the log has.
//!
//! `show` tells what the answering node knows, and one with a slow disk can be seconds behind: it is held to what was in
//! force at some time. Whether an operator's request is carried out late is not judged here: it is a write as any other.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use nowserving_line::LineName;
use nowserving_protocol::limits::{LimitChangesReply, LimitStatsReply, RulesChanged, RulesReply};
use nowserving_protocol::operation::Operation;
use nowserving_shard::limits::{LimitCommand, LimitReply};
use nowserving_shard::state::AppliedLimit;

use crate::calls::{Answer, Call, What};
use crate::env::Env;
use crate::timeline::Time;

/// All changes of rules.
#[derive(Debug)]
pub struct RuleChecks {
    versions: BTreeMap<u64, Version>,
    shards: u32,
}

#[derive(Debug)]
struct Version {
    domain: LineName,
    /// `None`: they were deleted.
    text: Option<Rc<str>>,
    applied_at: Time,
    /// When a client was told of it first.
    told_at: Option<Time>,
}

impl Version {
    fn is(&self, domain: &LineName, text: Option<&str>) -> bool {
        self.domain == *domain && self.text.as_deref() == text
    }
}

impl RuleChecks {
    pub fn new(shards: u32) -> RuleChecks {
        RuleChecks {
            versions: BTreeMap::new(),
            shards,
        }
    }

    /// Since when the log has rules of a domain, whichever.
    pub fn there_since(&self, domain: &LineName) -> Option<Time> {
        let versions = self.versions.values().filter(|it| it.domain == *domain);
        versions.fold(None, |since, it| {
            it.text.as_ref()?;
            since.or(Some(it.applied_at))
        })
    }

    /// A command was applied.
    pub fn applied(&mut self, env: &mut Env, applied: &AppliedLimit<'_>) {
        let (domain, text) = match applied.command {
            LimitCommand::Apply(it) => (&it.domain, Some(&*it.text)),
            LimitCommand::Delete(it) => (&it.domain, None),
            _ => return,
        };
        let LimitReply::Rules(Ok(version)) = applied.reply else {
            return;
        };
        if let Some(known) = self.versions.get(&version) {
            if !known.is(domain, text) {
                let what = format!("version {version} are {known:?}, and {:?}", applied.command);
                env.violated("S20", what);
            }
            return;
        }
        let calls = env.calls.all.iter();
        let asked = calls.filter(|call| asks_for(call, domain, text)).count();
        let before = self.versions.values();
        let before = before.filter(|it| it.is(domain, text)).count();
        let next = self.versions.last_key_value().map_or(1, |(it, _)| it + 1);
        if version != next || before >= asked {
            let what = format!(
                "version {version}, {asked} calls ask for it, after {before}: {:?}",
                applied.command
            );
            env.violated("S20", what);
        }
        let version_of = Version {
            domain: domain.clone(),
            text: text.map(Rc::from),
            applied_at: env.timeline.now(),
            told_at: None,
        };
        self.versions.insert(version, version_of);
    }

    /// An operator's request was answered.
    pub fn answered(&mut self, env: &mut Env, call: &Call, answer: &Answer, now: Time) {
        let is_true = match call.query.op {
            Operation::LimitApply | Operation::LimitDelete => answer
                .read()
                .and_then(|reply| self.changed(call, &reply, now)),
            Operation::LimitShow => answer.read().and_then(|reply| self.shown(&reply)),
            Operation::LimitChanges => answer.read().and_then(|reply| self.listed(call, &reply)),
            Operation::LimitStats => answer.read().and_then(|reply| self.counted(env, &reply)),
            _ => return,
        };
        if let Err(what) = is_true {
            let (number, op) = (call.query.call, call.query.op);
            env.violated("S20", format!("call {number}: {op}: {what}"));
        }
    }

    fn changed(&mut self, call: &Call, reply: &RulesChanged, now: Time) -> Result<(), String> {
        let version = self.versions.get_mut(&reply.version);
        match version.filter(|it| asks_for(call, &it.domain, it.text.as_deref())) {
            Some(version) => {
                version.told_at.get_or_insert(now);
                Ok(())
            }
            None => Err(format!(
                "{reply:?}: {:?}",
                self.versions.get(&reply.version)
            )),
        }
    }

    fn shown(&self, reply: &RulesReply) -> Result<(), String> {
        for shown in &reply.domains {
            let of = self.versions.get(&shown.version);
            let of = of.filter(|it| it.domain == shown.domain);
            let Some(text) = of.and_then(|it| it.text.as_ref()) else {
                return Err(format!("{shown:?} never were"));
            };
            // All texts fit a page.
            if shown.text.as_ref().is_some_and(|it| **it != **text) {
                return Err(format!("{shown:?}, not {text}"));
            }
        }
        Ok(())
    }

    /// The leaders are asked, so none is missing that was acknowledged before.
    fn listed(&self, call: &Call, reply: &LimitChangesReply) -> Result<(), String> {
        if !reply.changes.is_sorted_by_key(|it| it.at_ms) {
            return Err(format!("not by time: {reply:?}"));
        }
        let mut listed = BTreeSet::new();
        for change in &reply.changes {
            let Some(number) = change.version else {
                continue; // A reset.
            };
            let version = self.versions.get(&number);
            let op = match version.map(|it| it.text.is_some()) {
                Some(true) => "apply",
                _ => "delete",
            };
            let is_true = version.is_some_and(|it| it.domain == change.domain) && change.op == op;
            if !is_true || !listed.insert(number) {
                return Err(format!("{change:?}, and the log has {version:?}"));
            }
        }
        if reply.left_out || reply.unanswered.contains(&0) {
            return Ok(());
        }
        let told = |it: &Version| it.told_at.is_some_and(|at| at < call.began_at);
        let mut known = self.versions.iter();
        let missing = known.find(|(number, it)| told(it) && !listed.contains(*number));
        missing.map_or(Ok(()), |missing| Err(format!("{missing:?} is not listed")))
    }

    /// Each shard and each node is told of once, and no more hits of a rule than nodes took from clients.
    fn counted(&self, env: &Env, reply: &LimitStatsReply) -> Result<(), String> {
        let shards = reply.shards.iter().map(|it| it.shard);
        let mut shards: Vec<u32> = shards.chain(reply.unanswered.iter().copied()).collect();
        shards.sort_unstable();
        let nodes = reply.nodes.iter().map(|it| it.node);
        let nodes: Vec<u64> = nodes
            .chain(reply.nodes_unanswered.iter().copied())
            .collect();
        let distinct: BTreeSet<&u64> = nodes.iter().collect();
        let came = |rule: &str| env.hits.came_for_rule(rule);
        let mut rules = reply.rules.iter();
        let too_many = rules.find(|it| it.allowed + it.refused > came(&it.rule));
        match too_many {
            None if shards == (0..self.shards).collect::<Vec<_>>()
                && distinct.len() == nodes.len() =>
            {
                Ok(())
            }
            _ => Err(format!("{reply:?}: too many are {too_many:?}")),
        }
    }
}

/// Whether a client asks for these rules of a domain.
fn asks_for(call: &Call, domain: &LineName, text: Option<&str>) -> bool {
    match &call.query.what {
        What::LimitRules {
            domain: of,
            text: wanted,
        } => of == domain && wanted.as_deref() == text,
        _ => false,
    }
}
