//! What nodes ask the leader of a shard about rate limits, for the clients and operators that asked them.
//!
//! The part of a check that one shard decides counts in the leader's memory, each time that it is taken. So it is taken only
//! from the subject of forwards, to which nobody but the leader subscribes: see `Limits::ask_part`. And only the leader that
//! counted can give back. Hits on exact limits are written and given back by writing, wherever the request comes in.

use nowserving_engine::{Ask, Effect, LimitRequest, ShardDelivery, Via, unless_in_doubt};
use nowserving_limit::Matched;
use nowserving_protocol::error::ApiError;
use nowserving_protocol::header::RequestId;
use nowserving_protocol::limits::{
    ApplyRules, Check, DeleteRules, GiveBackHits, LimitStats, ListLimitChanges, ResetLimit, shown,
};
use nowserving_protocol::operation::Operation;
use nowserving_shard::limits::{self as shard, LimitAsk, LimitCommand, home_of};

use crate::body::Body;
use crate::limits::{OTHER_RULES, limit_ask, read_one, resolve};
use crate::parse::hits_id;
use crate::who::said;

impl Body<'_> {
    pub(crate) fn limit_ask(&self) -> Result<(u32, Ask), ApiError> {
        let shard = self.shard.filter(|shard| *shard < self.shards);
        let shard = shard.ok_or_else(|| {
            ApiError::bad_request(format!("subject: a shard from 0 to {}", self.shards - 1))
        })?;
        let request = match self.op {
            Operation::LimitPart => {
                let (asks, dry_run) = self.hits(shard, false)?;
                let hold = self.named.map(|named| hits_id(named, self.name).key);
                LimitRequest::Check {
                    asks,
                    dry_run,
                    hold,
                }
            }
            Operation::LimitExact => {
                let (asks, dry_run) = self.hits(shard, true)?;
                LimitRequest::Exact { asks, dry_run }
            }
            Operation::LimitGiveBack | Operation::LimitExactGiveBack => {
                let ask: GiveBackHits = self.decode()?;
                let named = RequestId::new(&ask.name)
                    .map_err(|error| ApiError::bad_request(format!("name: {error}")))?;
                LimitRequest::GiveBack {
                    name: hits_id(&named, self.name).key,
                    exact: self.op == Operation::LimitExactGiveBack,
                }
            }
            Operation::LimitChanges => {
                let ask: ListLimitChanges = self.decode()?;
                LimitRequest::Changes { domain: ask.domain }
            }
            Operation::LimitReset => LimitRequest::Command(LimitCommand::Reset(self.reset(shard)?)),
            Operation::LimitApply => LimitRequest::Command(LimitCommand::Apply(self.apply(shard)?)),
            Operation::LimitDelete => {
                in_shard_0(shard)?;
                let ask: DeleteRules = self.decode()?;
                let (by, reason) = said(self.note);
                LimitRequest::Command(LimitCommand::Delete(shard::DeleteRules {
                    domain: self.name.clone(),
                    if_version: ask.if_version,
                    by,
                    reason,
                }))
            }
            _ => {
                let _: LimitStats = self.decode()?;
                LimitRequest::Stats
            }
        };
        Ok((shard, Ask::Limit(Box::new(request))))
    }

    fn apply(&self, shard: u32) -> Result<shard::ApplyRules, ApiError> {
        in_shard_0(shard)?;
        let ask: ApplyRules = self.decode()?;
        // Not only gateways can send this, and only rules that can be read are replicated.
        let (domain, _) = read_one(&ask.rules)?;
        if domain != *self.name {
            return Err(ApiError::bad_request("rules: of another domain"));
        }
        let (by, reason) = said(self.note);
        Ok(shard::ApplyRules {
            domain,
            text: ask.rules.into(),
            if_version: ask.if_version,
            by,
            reason,
        })
    }

    fn reset(&self, shard: u32) -> Result<shard::ResetCounter, ApiError> {
        let ask: ResetLimit = self.decode()?;
        ask.check()?;
        if ask.domain != *self.name {
            return Err(ApiError::bad_request("domain: not that of the subject"));
        }
        let descriptor = shown(&ask.descriptor);
        let asks = self.asks(shard, &Check::new(vec![ask.descriptor]), None)?;
        let [counter] =
            <[LimitAsk; 1]>::try_from(asks).map_err(|_| self.other_rules(Effect::Write))?;
        let (by, reason) = said(self.note);
        Ok(shard::ResetCounter {
            domain: ask.domain,
            key: counter.key,
            descriptor,
            by,
            reason,
        })
    }

    fn hits(&self, shard: u32, is_exact: bool) -> Result<(Vec<LimitAsk>, bool), ApiError> {
        let ask: Check = self.decode()?;
        ask.check()?;
        Ok((self.asks(shard, &ask, Some(is_exact))?, ask.dry_run))
    }

    /// Every descriptor must have a counter of this shard, of an exact limit or of another, as asked.
    fn asks(
        &self,
        shard: u32,
        ask: &Check,
        is_exact: Option<bool>,
    ) -> Result<Vec<LimitAsk>, ApiError> {
        let effect = match is_exact == Some(false) || ask.dry_run {
            true => Effect::Read,
            false => Effect::Write,
        };
        let other_rules = || self.other_rules(effect);
        let known = self.reading.rules;
        let known = known.and_then(|rules| rules.domains.get(self.name));
        let known = known.ok_or_else(other_rules)?;
        let matched = resolve(known, self.name, &ask.descriptors)?;
        let asks = matched.into_iter().map(|matched| {
            let Matched::Limited { rule, key } = &matched else {
                return Err(other_rules());
            };
            let fits = is_exact.is_none_or(|it| it == rule.is_exact);
            if !fits || home_of(key, self.shards) != shard {
                return Err(other_rules());
            }
            limit_ask(&matched, ask).ok_or_else(other_rules)
        });
        asks.collect()
    }

    /// By the rules of this node it is refused. The leader may know others, and have a copy of a write.
    fn other_rules(&self, effect: Effect) -> ApiError {
        let via = self.reading.via;
        let leads = via == Via::Shard(ShardDelivery::Leader);
        let error = ApiError::new(
            OTHER_RULES,
            "the rules have just changed, and the nodes do not all know it yet",
        );
        unless_in_doubt(via, effect, leads, error)
    }
}

fn in_shard_0(shard: u32) -> Result<(), ApiError> {
    match shard {
        0 => Ok(()),
        _ => Err(ApiError::bad_request("subject: rules are in shard 0")),
    }
}

#[cfg(test)]
#[path = "parse_limit_tests.rs"]
mod tests;
