//! Services that ask whether requests may pass.

use nowserving_front::limits::limit_ask;
use nowserving_limit::Rules;
use nowserving_line::LineName;
use nowserving_protocol::limits::{Check, Descriptor, Entry};
use nowserving_shard::limits::{LimitAsk, home_of};

use super::Clients;
use crate::calls::{Hits, Manner, What};
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

impl Clients {
    /// A service checks counters of this time: mostly one, or several, whose leaders decide apart.
    pub(super) fn check_limit(&mut self, env: &mut Env, number: usize) {
        let random = &mut self.random;
        let Some(client) = self.clients.get_mut(number) else {
            return;
        };
        let Ok(domain) = LineName::try_from(DOMAIN) else {
            return;
        };
        let period = env.timeline.now() / PERIOD_US;
        let (count, hits) = (
            random.below(6).saturating_sub(2).max(1),
            random.between(1, 3),
        );
        let mut all: Vec<Hits> = Vec::new();
        for _ in 0..count {
            let exact = random.below(3) == 0;
            let kind = if exact { "exact" } else { "counter" };
            let value = format!("{}-{period}", random.below(COUNTERS));
            let counter = vec![Entry::new(kind, value)];
            let ask = self.limits.ask(&counter, hits);
            // Each counter once.
            if let Some(ask) = ask.filter(|ask| all.iter().all(|it| it.ask.key != ask.key)) {
                let shard = home_of(&ask.key, self.shards);
                let of = Hits {
                    counter,
                    ask,
                    exact,
                    shard,
                };
                all.push(of);
            }
        }
        let resets = random.below(RESETS) == 0;
        let Some(first) = all.first().cloned() else {
            return;
        };
        // A repetition without a name counts on its own.
        let has_id = all.len() == 1 || random.below(2) == 0;
        let what = match (self.limits.applied, resets) {
            (false, _) => What::LimitRules,
            (true, true) => What::LimitReset {
                domain: domain.clone(),
                counter: first.counter,
                key: first.ask.key,
            },
            (true, false) => What::Limit(all.into()),
        };
        let manner = Manner {
            has_id,
            // As the SDK does, which sends a check to the leader of its first counter.
            own_subject: random.below(2) == 0,
            repeats: has_id && client.manner.repeats,
            ..client.manner
        };
        let time_us = random.between(500_000, 4_000_000);
        client.busy = true;
        env.call(number, (domain, first.shard), what, manner, time_us);
    }
}
