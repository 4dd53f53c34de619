//! Services that ask whether requests may pass.

use nowserving_limit::{Algorithm, Limit, LimitParts, Unit, WhenFull, key};
use nowserving_line::LineName;
use nowserving_shard::limits::LimitAsk;

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
const UNIT: Unit = Unit::Year;
const ALGORITHM: Algorithm = Algorithm::TokenBucket;

fn limit_ask(name: &str, requests_per_unit: u32, hits: u64) -> Option<LimitAsk> {
    let parts = LimitParts {
        algorithm: ALGORITHM,
        ..Limit::fixed_window(requests_per_unit, UNIT).parts().clone()
    };
    let key = key::encode(ALGORITHM, UNIT, DOMAIN, [("counter", name)].into_iter());
    Some(LimitAsk {
        limit: Limit::new(parts).ok()?,
        key: key.ok()?.into(),
        hits,
        max_delay_us: None,
        when_full: WhenFull::Deny,
        is_shadow: false,
        is_quota: false,
    })
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
        let name = format!("{exact}-{counter}-{period}");
        let requests_per_unit = if exact { 9 } else { 30 };
        let ask = limit_ask(&name, requests_per_unit, random.between(1, 3));
        let (Some(ask), Ok(domain)) = (ask, LineName::try_from(DOMAIN)) else {
            return;
        };
        let resets = random.below(RESETS) == 0;
        let what = match resets {
            true => What::LimitReset {
                domain: domain.clone(),
                key: ask.key,
            },
            false => What::Limit {
                ask: Box::new(ask),
                exact,
            },
        };
        let shard = ((counter + period) % u64::from(self.shards.max(1))) as u32;
        let manner = Manner {
            // As the nodes that ask for clients do.
            has_id: exact || resets,
            own_subject: true,
            ..client.manner
        };
        let time_us = random.between(500_000, 4_000_000);
        client.busy = true;
        env.call(number, (domain, shard), what, manner, time_us);
    }
}
