//! What nodes ask the leader of a shard about rate limits, for the clients and operators that asked them.

use nowserving_engine::{Ask, LimitRequest, ReplyTo, Via};
use nowserving_limit::Matched;
use nowserving_line::LineName;
use nowserving_protocol::codec::{decode_request, decode_request_within};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::header::RequestId;
use nowserving_protocol::limits::{
    ApplyRules, Check, DeleteRules, GiveBackHits, LimitStats, ListLimitChanges, ResetLimit, shown,
};
use nowserving_shard::limits::{self as shard, LimitAsk, LimitCommand, home_of};

use crate::limits::{
    APPLY_BYTES_MAX, KnownRules, OTHER_RULES, entries, limit_ask, read_one, resolve,
};
use crate::parse::hits_id;

/// The operations on a shard's subject that are about limits; `None`: this one is not.
///
/// The part of a check that one shard decides counts in the leader's memory, each time that it is taken. So it is taken only
/// from the subject of forwards, to which nobody but the leader subscribes: see `Limits::ask_part`. And only the leader that
/// counted can give back. Hits on exact limits are written and given back by writing, wherever the request comes in.
pub(super) fn limit_op(op: &str, admin: bool, via: Via) -> Option<&'static str> {
    let ops: &[&'static str] = match (admin, via) {
        (true, _) => &[
            "limit_apply",
            "limit_delete",
            "limit_reset",
            "limit_stats",
            "limit_changes",
        ],
        (false, Via::Forwarded) => &[
            "limit_check",
            "limit_give_back",
            "limit_exact",
            "limit_exact_give_back",
        ],
        (false, Via::Plain | Via::Shard(_)) => &["limit_exact", "limit_exact_give_back"],
    };
    ops.iter().copied().find(|known| *known == op)
}

/// Where a request goes, and what it may read.
pub(super) struct Asked<'a> {
    pub op: &'static str,
    pub domain: &'a LineName,
    pub shard: u32,
    pub shards: u32,
    pub rules: Option<&'a KnownRules>,
    /// The id of the request, if it has one.
    pub named: Option<&'a RequestId>,
}

impl Asked<'_> {
    pub fn read(&self, payload: &[u8], reply: &mut ReplyTo) -> Result<Ask, ApiError> {
        reply.op = match self.op {
            // The check that it is a part of is counted by the node that asks.
            "limit_check" => "limit_part",
            op => op,
        };
        let request = match self.op {
            "limit_check" | "limit_exact" => {
                let ask: Check = decode_request(payload)?;
                ask.check()?;
                let is_exact = self.op == "limit_exact";
                let (asks, dry_run) = (self.asks(&ask, Some(is_exact))?, ask.dry_run);
                match is_exact {
                    true => LimitRequest::Exact { asks, dry_run },
                    false => LimitRequest::Check {
                        asks,
                        dry_run,
                        hold: self.named.map(|named| hits_id(named, self.domain).key),
                    },
                }
            }
            "limit_give_back" | "limit_exact_give_back" => {
                let ask: GiveBackHits = decode_request(payload)?;
                let named = RequestId::new(&ask.name)
                    .map_err(|error| ApiError::bad_request(format!("name: {error}")))?;
                LimitRequest::GiveBack {
                    name: hits_id(&named, self.domain).key,
                    exact: self.op == "limit_exact_give_back",
                }
            }
            "limit_reset" => LimitRequest::Command(LimitCommand::Reset(self.reset(payload)?)),
            "limit_changes" => {
                let ask: ListLimitChanges = decode_request(payload)?;
                LimitRequest::Changes { domain: ask.domain }
            }
            "limit_apply" => LimitRequest::Command(LimitCommand::Apply(self.apply(payload)?)),
            "limit_delete" => {
                self.in_shard_0()?;
                let ask: DeleteRules = decode_request(payload)?;
                ask.check()?;
                LimitRequest::Command(LimitCommand::Delete(shard::DeleteRules {
                    domain: self.domain.clone(),
                    if_version: ask.if_version,
                    by: ask.by.unwrap_or_default(),
                    reason: ask.reason.unwrap_or_default(),
                }))
            }
            _ => {
                let _: LimitStats = decode_request(payload)?;
                LimitRequest::Stats
            }
        };
        Ok(Ask::Limit(Box::new(request)))
    }

    fn in_shard_0(&self) -> Result<(), ApiError> {
        match self.shard {
            0 => Ok(()),
            _ => Err(ApiError::bad_request("subject: rules are in shard 0")),
        }
    }

    fn apply(&self, payload: &[u8]) -> Result<shard::ApplyRules, ApiError> {
        self.in_shard_0()?;
        let ask: ApplyRules = decode_request_within(payload, APPLY_BYTES_MAX)?;
        ask.check()?;
        // Not only gateways can send this, and only rules that can be read are replicated.
        let (domain, _) = read_one(&ask.rules)?;
        if domain != *self.domain {
            return Err(ApiError::bad_request("rules: of another domain"));
        }
        Ok(shard::ApplyRules {
            domain,
            text: ask.rules.into(),
            if_version: ask.if_version,
            by: ask.by.unwrap_or_default(),
            reason: ask.reason.unwrap_or_default(),
        })
    }

    fn reset(&self, payload: &[u8]) -> Result<shard::ResetCounter, ApiError> {
        let ask: ResetLimit = decode_request(payload)?;
        ask.check()?;
        if ask.domain != *self.domain {
            return Err(ApiError::bad_request("domain: not that of the subject"));
        }
        let descriptor = shown(&ask.descriptor);
        let asks = self.asks(&Check::new(vec![ask.descriptor]), None)?;
        let [counter] = <[LimitAsk; 1]>::try_from(asks).map_err(|_| other_rules())?;
        Ok(shard::ResetCounter {
            domain: ask.domain,
            key: counter.key,
            descriptor,
            by: ask.by.unwrap_or_default(),
            reason: ask.reason.unwrap_or_default(),
        })
    }

    /// Every descriptor must have a counter of this shard, of an exact limit or of another, as asked.
    fn asks(&self, ask: &Check, is_exact: Option<bool>) -> Result<Vec<LimitAsk>, ApiError> {
        let known = self.rules.and_then(|rules| rules.domains.get(self.domain));
        let known = known.ok_or_else(other_rules)?;
        let entries = entries(&ask.descriptors);
        let matched = resolve(known, self.domain, &entries)?;
        let asks = matched.into_iter().map(|matched| {
            let Matched::Limited { rule, key } = &matched else {
                return Err(other_rules());
            };
            let fits = is_exact.is_none_or(|it| it == rule.is_exact);
            if !fits || home_of(key, self.shards) != self.shard {
                return Err(other_rules());
            }
            limit_ask(&matched, ask).ok_or_else(other_rules)
        });
        asks.collect()
    }
}

fn other_rules() -> ApiError {
    ApiError::new(
        OTHER_RULES,
        "the rules have just changed, and the nodes do not all know it yet",
    )
}

#[cfg(test)]
#[path = "parse_limit_tests.rs"]
mod tests;
