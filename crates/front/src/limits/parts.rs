//! The parts of a check: each is what one shard decides, and they are put together again here.

use std::collections::BTreeMap;
use std::sync::Arc;

use nowserving_engine::refusals::{outcome_unknown, unavailable};
use nowserving_limit::{Matched, Verdict, combine};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::limits::{Check, PartReply};
use nowserving_shard::limits::{LimitAsk, home_of, verdicts_of};

use super::{OTHER_RULES, limit_ask};

/// A shard, whether its exact limits are asked, and whether those in quota mode are, apart from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Home {
    pub shard: u32,
    pub exact: bool,
    pub quota: bool,
}
/// The descriptors whose counters one shard has, by their places in the request.
pub(super) type Parts = BTreeMap<Home, Vec<usize>>;
/// A home, and the counters there.
pub(super) type Part = Arc<(Home, Vec<Vec<u8>>)>;
/// Parts, and the places of their descriptors.
pub(super) type Placed = Vec<(Part, Vec<usize>)>;
/// What was answered for these counters.
pub(super) type Answered = BTreeMap<Part, PartAnswer>;

#[derive(Debug)]
pub(super) struct PartAnswer {
    pub verdicts: Vec<Verdict>,
    /// It has counted hits, which were not given back.
    pub counted: bool,
}

impl PartAnswer {
    pub fn new(reply: PartReply, counts: bool) -> Self {
        let verdicts: Vec<Verdict> = verdicts_of(reply).collect();
        let mut allowed = verdicts.iter().map(|verdict| verdict.answer.allowed);
        PartAnswer {
            counted: counts && combine(&verdicts).allowed && allowed.any(|allowed| allowed),
            verdicts,
        }
    }
}

/// The verdicts by the places of their descriptors.
pub(super) fn gathered(
    descriptors: usize,
    parts: &Placed,
    answered: &Answered,
) -> Result<Vec<Option<Verdict>>, ApiError> {
    let mut verdicts = vec![None; descriptors];
    for (part, places) in parts {
        let answer = answered.get(part).ok_or_else(unavailable)?;
        place(&mut verdicts, places, &answer.verdicts)?;
    }
    Ok(verdicts)
}

/// Whether the check is refused, whatever its other parts say. What was answered for other parts, by rules that have changed
/// since, says nothing.
pub(super) fn refuses_already(parts: &Placed, answered: &Answered) -> bool {
    let answers = parts.iter().filter_map(|(part, _)| answered.get(part));
    let mut verdicts = answers.flat_map(|it| &it.verdicts);
    verdicts.any(|verdict| !verdict.is_quota && verdict.refuses())
}

/// Of two errors the one to tell: that nothing is known goes before others; rules that differ are tried again, so only if
/// there is no other.
pub(super) fn worse(known: Option<ApiError>, error: ApiError) -> ApiError {
    match known {
        Some(known) if error.code != Code::OutcomeUnknown && known.code != OTHER_RULES => known,
        _ => error,
    }
}

/// An error must not claim that nothing happened if a part has counted, and could not give it back.
pub(super) fn undone(error: ApiError, answered: &Answered) -> ApiError {
    match answered.values().any(|it| it.counted) {
        true => outcome_unknown(),
        false => error,
    }
}

/// Each part is decided on its own. Limits in quota mode refuse only if all of them do, which one shard alone cannot say: if
/// they are in several parts, they are asked apart from the others, which would not be counted otherwise where the quotas of
/// that part are used up.
pub(super) fn parts_of(matched: &[Matched<'_>], shards: u32) -> Parts {
    let parts = |quotas_apart: bool| {
        let mut parts = Parts::new();
        for (place, matched) in matched.iter().enumerate() {
            if let Matched::Limited { rule, key } = matched {
                let home = Home {
                    shard: home_of(key, shards),
                    exact: rule.is_exact,
                    quota: quotas_apart && rule.is_quota,
                };
                parts.entry(home).or_default().push(place);
            }
        }
        parts
    };
    let together = parts(false);
    let is_quota = |place: &usize| {
        let matched = matched.get(*place);
        matched
            .and_then(Matched::rule)
            .is_some_and(|rule| rule.is_quota)
    };
    let with_quotas = together
        .values()
        .filter(|places| places.iter().any(is_quota));
    match with_quotas.count() {
        0 | 1 => together,
        _ => parts(true),
    }
}

pub(super) fn keys_of(matched: &[Matched<'_>], places: &[usize]) -> Vec<Vec<u8>> {
    let matched = places.iter().filter_map(|place| matched.get(*place));
    let keys = matched.filter_map(|matched| match matched {
        Matched::Limited { key, .. } => Some(key.clone()),
        _ => None,
    });
    keys.collect()
}

pub(super) fn asks_of(matched: &[Matched<'_>], places: &[usize], ask: &Check) -> Vec<LimitAsk> {
    let matched = places.iter().filter_map(|place| matched.get(*place));
    matched
        .filter_map(|matched| limit_ask(matched, ask))
        .collect()
}

pub(super) fn part_of(ask: &Check, places: &[usize]) -> Check {
    let descriptors = places
        .iter()
        .filter_map(|place| ask.descriptors.get(*place));
    Check {
        descriptors: descriptors.cloned().collect(),
        hits: ask.hits,
        max_delay_ms: ask.max_delay_ms,
        dry_run: ask.dry_run,
    }
}

pub(super) fn place(
    verdicts: &mut [Option<Verdict>],
    places: &[usize],
    part: &[Verdict],
) -> Result<(), ApiError> {
    if part.len() != places.len() {
        return Err(unavailable());
    }
    for (place, verdict) in places.iter().zip(part) {
        if let Some(slot) = verdicts.get_mut(*place) {
            *slot = Some(*verdict);
        }
    }
    Ok(())
}
