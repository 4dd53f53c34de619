//! The answer to a check.

use nowserving_limit::{Answer, Entries, Limit, Matched, Rules, Verdict, combine};
use nowserving_line::LineName;
use nowserving_protocol::limits::{Check, CheckReply, DescriptorReply};

use super::in_words;

pub(super) fn without_rules(ask: &Check) -> CheckReply {
    let unmatched = || DescriptorReply {
        allowed: true,
        unmatched: true,
        ..DescriptorReply::default()
    };
    CheckReply {
        allowed: true,
        unmatched: true,
        descriptors: ask.descriptors.iter().map(|_| unmatched()).collect(),
        ..CheckReply::default()
    }
}

/// Adds the rules in words, as `show` lists them.
pub(super) fn explain(
    reply: &mut CheckReply,
    matched: &[Matched<'_, ()>],
    (domain, rules): (&LineName, &Rules),
    entries: impl Iterator<Item: Entries>,
) {
    let explained = reply.descriptors.iter_mut().zip(matched).zip(entries);
    for ((descriptor, matched), entries) in explained {
        let path = rules.path(domain.as_str(), entries);
        let both = path.zip(matched.rule());
        descriptor.rule = both.map(|(path, rule)| in_words(&path, rule));
    }
}

pub(super) fn reply(matched: &[Matched<'_, ()>], verdicts: &[Option<Verdict>]) -> CheckReply {
    let overall = combine(verdicts.iter().flatten());
    let shown = overall.shown.as_ref();
    let descriptors = matched.iter().zip(verdicts);
    CheckReply {
        allowed: overall.allowed,
        limit: shown.map(|answer| answer.limit),
        remaining: shown.map(|answer| answer.remaining),
        reset_ms: shown.map(Answer::reset_ms),
        retry_after_ms: shown.and_then(Answer::retry_after_ms),
        delay_ms: shown.and_then(delay_ms),
        unmatched: false,
        without_cluster: false,
        descriptors: descriptors
            .map(|(matched, verdict)| descriptor_reply(matched, verdict.as_ref()))
            .collect(),
    }
}

fn delay_ms(answer: &Answer) -> Option<u64> {
    Some(answer.delay_ms()).filter(|ms| *ms > 0)
}

fn descriptor_reply(matched: &Matched<'_, ()>, verdict: Option<&Verdict>) -> DescriptorReply {
    let rule = matched.rule();
    let limit = rule.and_then(|rule| rule.limit.as_ref());
    let reply = DescriptorReply {
        allowed: true,
        name: rule.and_then(|rule| rule.name.as_deref().map(str::to_owned)),
        unmatched: matches!(matched, Matched::Nothing),
        unlimited: matches!(matched, Matched::Unlimited(_)),
        replaced: matches!(matched, Matched::Replaced(_)),
        ..DescriptorReply::default()
    };
    let Some(verdict) = verdict else {
        return reply;
    };
    let answer = &verdict.answer;
    DescriptorReply {
        allowed: answer.allowed,
        limit: Some(answer.limit),
        unit: limit.map(|limit| limit.unit().name().to_owned()),
        burst: limit
            .filter(|limit| limit.algorithm().is_bucket())
            .map(Limit::capacity),
        remaining: Some(answer.remaining),
        reset_ms: Some(answer.reset_ms()),
        retry_after_ms: answer.retry_after_ms(),
        delay_ms: delay_ms(answer),
        shadow: verdict.is_shadow,
        quota: verdict.is_quota,
        untracked: verdict.is_untracked,
        ..reply
    }
}
