//! Services that ask whether requests may pass, and operators of rate limits.

use nowserving_front::limits::limit_ask;
use nowserving_limit::Rules;
use nowserving_line::LineName;
use nowserving_protocol::limits::{
    Check, Descriptor, Entry, LimitStats, ListLimitChanges, ShowRules,
};
use nowserving_shard::limits::home_of;

use super::Clients;
use crate::calls::{Hits, Manner, What};
use crate::env::Env;
use crate::random::Random;
use crate::timeline::Time;

/// So many at a time.
pub(super) const LIMITED: usize = 10;
/// They meet at few counters, and for so long at the same ones.
const COUNTERS: u64 = 3;
const PERIOD_US: Time = 5_000_000;

/// The domain whose rules stay.
const SHOP: &str = "shop";
/// By the year: none of the hits is forgotten in a run, but by a failover.
const SHOP_RULES: &str = "domain: shop
descriptors:
  - {key: counter, rate_limit: {unit: year, requests_per_unit: 30, algorithm: token_bucket}}
  - {key: exact, rate_limit: {unit: year, requests_per_unit: 9, algorithm: token_bucket, exact: true}}
";

/// The domain whose rules change.
const TOUR: &str = "tour";
/// They are these by turns. A limit in memory, an exact one and one of another unit have counters of their own, so each
/// counter has one limit as long as it is there, and the number in an answer tells which of them has counted.
const TOUR_LIMITS: [&str; 3] = [
    "unit: year, requests_per_unit: 30, algorithm: token_bucket",
    "unit: year, requests_per_unit: 9, algorithm: token_bucket, exact: true",
    "unit: month, requests_per_unit: 20, algorithm: token_bucket",
];

fn tour_rules(limit: &str) -> String {
    format!("domain: {TOUR}\ndescriptors:\n  - {{key: counter, rate_limit: {{{limit}}}}}\n")
}

/// What the services know of the rules.
#[derive(Debug)]
pub(super) struct Limits {
    shop: Rules,
    tour: [Rules; 3],
    /// Those of the shop are applied.
    is_applied: bool,
    shards: u32,
}

fn read(text: &str) -> Rules {
    Rules::parse(text).unwrap_or_else(|errors| unreachable!("{errors}"))
}

/// What a service or an operator asks next.
enum Next {
    /// The rules as they are, but for their text.
    SameRules,
    Reset,
    OtherRules,
    /// What an operator reads.
    Read,
    CheckTour,
    Check,
}

impl Next {
    fn draw(random: &mut Random) -> Next {
        match random.below(240) {
            0 => Next::SameRules,
            1..5 => Next::Reset,
            5..10 => Next::OtherRules,
            10..22 => Next::Read,
            22..70 => Next::CheckTour,
            _ => Next::Check,
        }
    }
}

impl Limits {
    pub(super) fn new(shards: u32) -> Limits {
        Limits {
            shop: read(SHOP_RULES),
            tour: TOUR_LIMITS.map(|limit| read(&tour_rules(limit))),
            is_applied: false,
            shards,
        }
    }

    /// A call has ended well.
    pub(super) fn ended(&mut self, what: &What) {
        let domain = match what {
            What::LimitRules { domain, .. } => domain.as_str(),
            _ => return,
        };
        self.is_applied |= domain == SHOP;
    }

    /// Hits on a counter by these rules.
    fn hits(&self, rules: &Rules, domain: &str, counter: &Descriptor, hits: u32) -> Option<Hits> {
        let entries = counter.iter();
        let entries: Vec<(&str, &str)> = entries
            .map(|entry| (entry.key.as_str(), entry.value.as_str()))
            .collect();
        let matched = rules.resolve(domain, &[entries.as_slice()]).ok()?;
        let check = Check {
            hits: Some(hits),
            ..Check::new(Vec::new())
        };
        let ask = limit_ask(matched.first()?, &check)?;
        Some(Hits {
            counter: counter.clone(),
            rule: rules.path(domain, entries.as_slice())?.to_string(),
            exact: matched.first()?.rule()?.is_exact,
            shard: home_of(&ask.key, self.shards),
            ask,
        })
    }

    /// Mostly one counter, or several, whose leaders decide apart.
    fn check_shop(&self, period: Time, random: &mut Random) -> Vec<Hits> {
        let (count, hits) = how_many(random);
        let mut all: Vec<Hits> = Vec::new();
        for _ in 0..count {
            let exact = random.below(3) == 0;
            let kind = if exact { "exact" } else { "counter" };
            let counter = counter(kind, period, random);
            let of = self.hits(&self.shop, SHOP, &counter, hits);
            // Each counter once.
            all.extend(of.filter(|of| all.iter().all(|it| it.ask.key != of.ask.key)));
        }
        all
    }

    fn check_tour(&self, period: Time, random: &mut Random) -> Vec<Vec<Hits>> {
        let (count, hits) = how_many(random);
        let mut all: Vec<Vec<Hits>> = Vec::new();
        for _ in 0..count {
            let counter = counter("counter", period, random);
            let rules = self.tour.iter();
            let any = rules.filter_map(|rules| self.hits(rules, TOUR, &counter, hits));
            let any: Vec<Hits> = any.collect();
            let mut known = all.iter().flatten();
            if known.all(|it| it.counter != counter) {
                all.push(any);
            }
        }
        all
    }
}

/// Counters, and hits on each.
fn how_many(random: &mut Random) -> (u64, u32) {
    let count = random.below(6).saturating_sub(2).max(1);
    (count, random.between(1, 3) as u32)
}

/// One of this time.
fn counter(kind: &str, period: Time, random: &mut Random) -> Descriptor {
    let value = format!("{}-{period}", random.below(COUNTERS));
    vec![Entry::new(kind, value)]
}

fn read_limits(random: &mut Random) -> What {
    match random.below(5) {
        0 => What::read(&LimitStats::default()),
        1 => What::read(&ListLimitChanges::default()),
        2 => What::read(&ShowRules::default()),
        _ => What::read(&ShowRules {
            domain: LineName::try_from(TOUR).ok(),
            ..ShowRules::default()
        }),
    }
}

impl Clients {
    /// A service checks counters of this time, or an operator looks at limits or changes them.
    pub(super) fn check_limit(&mut self, env: &mut Env, number: usize) {
        let (limits, random) = (&self.limits, &mut self.random);
        let (Some(client), Ok(shop), Ok(tour)) = (
            self.clients.get_mut(number),
            LineName::try_from(SHOP),
            LineName::try_from(TOUR),
        ) else {
            return;
        };
        let period = env.timeline.now() / PERIOD_US;
        // After the first ones no text is like another one.
        let comment = match limits.is_applied {
            true => format!("# call {}\n", env.calls.all.len()),
            false => String::new(),
        };
        let rules = |domain: &LineName, rules: Option<String>| What::LimitRules {
            domain: domain.clone(),
            text: rules.map(|it| (comment + &it).into()),
        };
        let next = match limits.is_applied {
            true => Next::draw(random),
            false => Next::SameRules,
        };
        let (domain, shard, what) = match next {
            Next::SameRules => {
                let what = rules(&shop, Some(SHOP_RULES.to_owned()));
                (shop, 0, what)
            }
            Next::OtherRules => {
                let limit = random.pick(&TOUR_LIMITS).filter(|_| random.below(4) > 0);
                let what = rules(&tour, limit.map(|limit| tour_rules(limit)));
                (tour, 0, what)
            }
            Next::Read => (tour, 0, read_limits(random)),
            Next::CheckTour => {
                let all = limits.check_tour(period, random);
                let shard = all.iter().flatten().next().map_or(0, |it| it.shard);
                (tour, shard, What::LimitChanging(all.into()))
            }
            Next::Check | Next::Reset => {
                let all = limits.check_shop(period, random);
                let Some(first) = all.first().cloned() else {
                    return;
                };
                let what = match next {
                    Next::Reset => What::LimitReset {
                        domain: shop.clone(),
                        counter: first.counter,
                        key: first.ask.key,
                    },
                    _ => What::Limit(all.into()),
                };
                (shop, first.shard, what)
            }
        };
        let parts = match &what {
            What::Limit(all) => all.len(),
            What::LimitChanging(all) => all.len(),
            _ => 1,
        };
        // A repetition without a name counts on its own.
        let has_id = parts == 1 || random.below(2) == 0;
        let manner = Manner {
            has_id,
            // As the SDK does, which sends a check to the leader of its first counter.
            own_subject: random.below(2) == 0,
            repeats: has_id && client.manner.repeats,
            ..client.manner
        };
        let time_us = random.between(500_000, 4_000_000);
        client.busy = true;
        env.call(number, (domain, shard), what, manner, time_us);
    }
}
