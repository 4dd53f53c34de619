//! Services that ask whether requests may pass.

use nowserving_front::limits::limit_ask;
use nowserving_limit::Rules;
use nowserving_line::LineName;
use nowserving_protocol::limits::{Check, Descriptor, Entry};
use nowserving_shard::limits::{LimitAsk, home_of};

use super::Clients;
use crate::calls::{Ended, Manner, Query, What};
use crate::env::Env;
use crate::timeline::Time;

/// So many at a time.
pub(super) const LIMITED: usize = 10;
const DOMAIN: &str = "shop";
/// They meet at few counters, and for so long at the same ones.
const COUNTERS: u64 = 3;
const PERIOD_US: Time = 5_000_000;

/// An operator resets a counter, in place of one in so many checks.
const RESETS: u64 = 60;

/// By the year: none of the hits is forgotten in a run, but by a failover.
pub const RULES: &str = "
domain: shop
descriptors:
  - {key: counter, rate_limit: {unit: year, requests_per_unit: 30, algorithm: token_bucket}}
  - {key: exact, rate_limit: {unit: year, requests_per_unit: 9, algorithm: token_bucket, exact: true}}
";

/// What the services know of the rules.
#[derive(Debug)]
pub struct Limits {
    rules: Rules,
    /// They are applied.
    pub applied: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            rules: Rules::parse(RULES).unwrap_or_else(|errors| unreachable!("{errors}")),
            applied: false,
        }
    }
}

impl Limits {
    fn ask(&self, counter: &Descriptor, hits: u64) -> Option<LimitAsk> {
        let entries = counter.iter();
        let entries: Vec<(&str, &str)> = entries
            .map(|entry| (entry.key.as_str(), entry.value.as_str()))
            .collect();
        let matched = self.rules.resolve(DOMAIN, &[&entries]).ok()?;
        let check = Check {
            hits: u32::try_from(hits).ok(),
            ..Check::new(Vec::new())
        };
        limit_ask(matched.first()?, &check)
    }
}

/// Whether another limit, in another shard, refuses the check of this call: its hits are given back then.
pub fn is_refused_elsewhere(call: usize) -> bool {
    call.is_multiple_of(3)
}

/// What gives back the hits of a call, if another limit has refused it.
pub(super) fn give_back_of(query: &Query, ended: &Ended) -> Option<What> {
    let (What::Limit { exact, .. }, Ended::Ok(_)) = (&query.what, ended) else {
        return None;
    };
    is_refused_elsewhere(query.call).then(|| What::LimitGiveBack {
        call: query.call,
        exact: *exact,
    })
}

impl Clients {
    /// As a node gives back: once, answered or not.
    pub(super) fn give_back(&mut self, env: &mut Env, number: usize, of: &Query, what: What) {
        let Some(client) = self.clients.get_mut(number) else {
            return;
        };
        let manner = Manner {
            has_id: matches!(what, What::LimitGiveBack { exact: true, .. }),
            repeats: false,
            ..client.manner
        };
        client.busy = true;
        let place = (of.line.clone(), of.shard);
        env.call(number, place, what, manner, 2_000_000);
    }

    /// A service checks one of the counters of this time.
    pub(super) fn check_limit(&mut self, env: &mut Env, number: usize) {
        let random = &mut self.random;
        let Some(client) = self.clients.get_mut(number) else {
            return;
        };
        let exact = random.below(3) == 0;
        let counter = random.below(COUNTERS);
        let period = env.timeline.now() / PERIOD_US;
        let kind = if exact { "exact" } else { "counter" };
        let counter = vec![Entry::new(kind, format!("{counter}-{period}"))];
        let ask = self.limits.ask(&counter, random.between(1, 3));
        let (Some(ask), Ok(domain)) = (ask, LineName::try_from(DOMAIN)) else {
            return;
        };
        let resets = random.below(RESETS) == 0;
        let shard = home_of(&ask.key, self.shards);
        let (shard, what) = match (self.limits.applied, resets) {
            (false, _) => (0, What::LimitRules),
            (true, true) => {
                let what = What::LimitReset {
                    domain: domain.clone(),
                    counter,
                    key: ask.key,
                };
                (shard, what)
            }
            (true, false) => {
                let what = What::Limit {
                    counter,
                    ask: Box::new(ask),
                    exact,
                };
                (shard, what)
            }
        };
        let manner = Manner {
            // As the nodes that ask for clients do.
            has_id: true,
            own_subject: true,
            ..client.manner
        };
        let time_us = random.between(500_000, 4_000_000);
        client.busy = true;
        env.call(number, (domain, shard), what, manner, time_us);
    }
}
