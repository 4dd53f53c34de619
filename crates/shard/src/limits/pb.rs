//! Rate limits between this crate's types and protobuf.

use bytes::Bytes;
use nowserving_limit::{
    Change, ChangedState, Counter, Drain, FixedWindow, Limit, LimitParts, LogHits, LogPart, Moment,
    Saved, SlidingWindowCounter, SlidingWindowLog, WhenFull, Window, key,
};

use super::{
    ApplyRules, Changed, DeleteRules, DomainRules, GiveBack, HitsAnswer, LimitAsk, LimitChange,
    LimitChanges, LimitCommand, LimitsState, ResetCounter, RuleTexts, RulesRefused, TimedAsk,
};
use crate::pb;
use crate::pb::limit_change::What as PbWhat;
use crate::pb::limit_command::Command as PbCommand;
use crate::pb::limit_counter::State as PbState;
use crate::pb::{Malformed, all, line_name_from_pb};

pub(crate) fn limit_command_to_pb(command: &LimitCommand) -> pb::LimitCommand {
    let command = match command {
        LimitCommand::Apply(apply) => PbCommand::Apply(pb::LimitApply {
            domain: apply.domain.as_str().to_owned(),
            text: apply.text.to_string(),
            if_version: apply.if_version,
            by: apply.by.clone(),
            reason: apply.reason.clone(),
        }),
        LimitCommand::Delete(delete) => PbCommand::Delete(pb::LimitDelete {
            domain: delete.domain.as_str().to_owned(),
            if_version: delete.if_version,
            by: delete.by.clone(),
            reason: delete.reason.clone(),
        }),
        LimitCommand::Checkpoint { resets, changes } => {
            PbCommand::Checkpoint(pb::LimitCheckpoint {
                resets: *resets,
                changes: changes.iter().map(counter_change_to_pb).collect(),
            })
        }
        LimitCommand::Hits { domain, asks } => PbCommand::Hits(pb::LimitHits {
            domain: domain.as_str().to_owned(),
            asks: asks.iter().map(ask_to_pb).collect(),
        }),
        LimitCommand::GiveBack(it) => PbCommand::GiveBack(pb::LimitGiveBack {
            domain: it.domain.as_str().to_owned(),
            request: Bytes::copy_from_slice(&it.request.to_be_bytes()),
            asks: it.asks.iter().map(ask_to_pb).collect(),
            marks: it.marks.iter().map(bucket_to_pb).collect(),
        }),
        LimitCommand::Reset(reset) => PbCommand::Reset(pb::LimitReset {
            domain: reset.domain.as_str().to_owned(),
            key: Bytes::copy_from_slice(&reset.key),
            descriptor: reset.descriptor.clone(),
            by: reset.by.clone(),
            reason: reset.reason.clone(),
        }),
    };
    pb::LimitCommand {
        command: Some(command),
    }
}

pub(crate) fn limit_command_from_pb(command: pb::LimitCommand) -> Result<LimitCommand, Malformed> {
    Ok(match command.command {
        Some(PbCommand::Apply(apply)) => LimitCommand::Apply(ApplyRules {
            domain: line_name_from_pb(&apply.domain)?,
            text: apply.text.into(),
            if_version: apply.if_version,
            by: apply.by,
            reason: apply.reason,
        }),
        Some(PbCommand::Delete(delete)) => LimitCommand::Delete(DeleteRules {
            domain: line_name_from_pb(&delete.domain)?,
            if_version: delete.if_version,
            by: delete.by,
            reason: delete.reason,
        }),
        Some(PbCommand::Checkpoint(checkpoint)) => LimitCommand::Checkpoint {
            resets: checkpoint.resets,
            changes: all(checkpoint.changes, counter_change_from_pb)?,
        },
        Some(PbCommand::Hits(hits)) => LimitCommand::Hits {
            domain: line_name_from_pb(&hits.domain)?,
            asks: all(hits.asks, ask_from_pb)?,
        },
        Some(PbCommand::GiveBack(it)) => LimitCommand::GiveBack(GiveBack {
            domain: line_name_from_pb(&it.domain)?,
            request: request_from_pb(&it.request)?,
            asks: all(it.asks, ask_from_pb)?,
            marks: it.marks.iter().map(bucket_from_pb).collect(),
        }),
        Some(PbCommand::Reset(reset)) => LimitCommand::Reset(ResetCounter {
            domain: line_name_from_pb(&reset.domain)?,
            key: key_from_pb(&reset.key)?,
            descriptor: reset.descriptor,
            by: reset.by,
            reason: reset.reason,
        }),
        None => return Err("a command about limits that this build does not know"),
    })
}

fn request_from_pb(bytes: &Bytes) -> Result<u128, Malformed> {
    let bytes = <[u8; 16]>::try_from(bytes.as_ref());
    let bytes = bytes.map_err(|_| "the key of a request that is none")?;
    Ok(u128::from_be_bytes(bytes))
}

fn bucket_to_pb(Drain { empty_us, part }: &Drain) -> pb::LimitBucket {
    pb::LimitBucket {
        empty_us: *empty_us,
        part: *part,
    }
}

fn bucket_from_pb(it: &pb::LimitBucket) -> Drain {
    Drain {
        empty_us: it.empty_us,
        part: it.part,
    }
}

fn key_from_pb(bytes: &Bytes) -> Result<Box<[u8]>, Malformed> {
    match key::head(bytes) {
        Some(_) => Ok(bytes.to_vec().into()),
        None => Err("the key of a counter that is none"),
    }
}

fn hits_to_pb(hits: LogHits) -> pb::LimitLogHits {
    pb::LimitLogHits {
        at_us: hits.at_us,
        hits: hits.hits,
    }
}

fn hits_from_pb(hits: &pb::LimitLogHits) -> LogHits {
    LogHits {
        at_us: hits.at_us,
        hits: hits.hits,
    }
}

fn counter_to_pb(counter: &Counter) -> PbState {
    match counter {
        Counter::FixedWindow(FixedWindow { end_us, count }) => PbState::Window(pb::LimitWindow {
            end_us: *end_us,
            count: *count,
        }),
        Counter::SlidingWindowLog(log) => PbState::Log(pb::LimitLog {
            begins: true,
            period_us: log.period_us(),
            hits: log.hits().map(hits_to_pb).collect(),
        }),
        Counter::SlidingWindowCounter(counter) => PbState::Sliding(pb::LimitSlidingWindow {
            end_us: counter.end_us,
            next_end_us: counter.next_end_us,
            last: counter.last,
            this: counter.this,
        }),
        Counter::Bucket(bucket) => PbState::Bucket(bucket_to_pb(bucket)),
    }
}

/// Any but a log, which a checkpoint has in parts.
fn whole_from_pb(state: &PbState) -> Option<Counter> {
    Some(match state {
        PbState::Log(_) => return None,
        PbState::Window(it) => Counter::FixedWindow(FixedWindow {
            end_us: it.end_us,
            count: it.count,
        }),
        PbState::Sliding(it) => Counter::SlidingWindowCounter(SlidingWindowCounter {
            end_us: it.end_us,
            next_end_us: it.next_end_us,
            last: it.last,
            this: it.this,
        }),
        PbState::Bucket(it) => Counter::Bucket(Drain {
            empty_us: it.empty_us,
            part: it.part,
        }),
    })
}

fn counter_change_to_pb(change: &Change) -> pb::LimitCounter {
    let state = match &change.state {
        ChangedState::Whole(counter) => counter_to_pb(counter),
        ChangedState::LogPart(part) => PbState::Log(pb::LimitLog {
            begins: part.begins,
            period_us: part.period_us,
            hits: part.hits.iter().copied().map(hits_to_pb).collect(),
        }),
    };
    pb::LimitCounter {
        key: Bytes::copy_from_slice(&change.key),
        state: Some(state),
    }
}

fn counter_change_from_pb(change: pb::LimitCounter) -> Result<Change, Malformed> {
    let key = key_from_pb(&change.key)?;
    let state = change.state.ok_or("a counter without a state")?;
    let state = match (whole_from_pb(&state), state) {
        (Some(counter), _) => ChangedState::Whole(counter),
        (None, PbState::Log(log)) => ChangedState::LogPart(LogPart {
            begins: log.begins,
            period_us: log.period_us,
            hits: log.hits.iter().map(hits_from_pb).collect(),
        }),
        (None, _) => return Err("a counter of a kind that this build does not know"),
    };
    let fits = match &state {
        ChangedState::Whole(counter) => fits(&key, counter),
        ChangedState::LogPart(_) => fits(&key, &Counter::SlidingWindowLog(Box::default())),
    };
    fits.then_some(Change { key, state })
        .ok_or("a counter of another kind than its key says")
}

fn fits(key: &[u8], counter: &Counter) -> bool {
    key::head(key).is_some_and(|(algorithm, _)| counter.fits(algorithm))
}

fn ask_to_pb(timed: &TimedAsk) -> pb::LimitAsk {
    let TimedAsk { ask, at } = timed;
    pb::LimitAsk {
        key: Bytes::copy_from_slice(&ask.key),
        requests_per_unit: ask.limit.requests_per_unit(),
        burst: ask.limit.parts().burst,
        hits: ask.hits,
        now_us: at.now_us,
        start_us: at.window.start_us,
        end_us: at.window.end_us,
        next_end_us: at.window.next_end_us,
        deny_when_full: ask.when_full == WhenFull::Deny,
        shadow: ask.is_shadow,
        quota: ask.is_quota,
        max_delay_us: ask.max_delay_us,
    }
}

fn ask_from_pb(ask: pb::LimitAsk) -> Result<TimedAsk, Malformed> {
    let key = key_from_pb(&ask.key)?;
    let (algorithm, unit) = key::head(&key).ok_or("the key of a counter that is none")?;
    let limit = Limit::new(LimitParts {
        algorithm,
        unit,
        requests_per_unit: ask.requests_per_unit,
        burst: ask.burst,
        zone: None,
    });
    let limit = limit.map_err(|_| "a limit that is none")?;
    Ok(TimedAsk {
        ask: LimitAsk {
            limit,
            key,
            hits: ask.hits,
            max_delay_us: ask.max_delay_us,
            when_full: match ask.deny_when_full {
                true => WhenFull::Deny,
                false => WhenFull::Allow,
            },
            is_shadow: ask.shadow,
            is_quota: ask.quota,
        },
        at: Moment {
            now_us: ask.now_us,
            window: Window {
                start_us: ask.start_us,
                end_us: ask.end_us,
                next_end_us: ask.next_end_us,
            },
        },
    })
}

pub(crate) fn state_to_pb(limits: &LimitsState) -> pb::LimitsState {
    let expired_to = limits.saved.expired_to();
    pb::LimitsState {
        version: limits.rules.version(),
        domains: limits.rules.domains().len() as u64,
        changes: limits.changes.iter().len() as u64,
        resets: limits.resets,
        expired_to: expired_to.map(Bytes::copy_from_slice),
    }
}

pub(crate) fn state_from_pb(head: pb::LimitsState) -> LimitsState {
    let mut limits = LimitsState {
        rules: RuleTexts::restored(head.version),
        resets: head.resets,
        ..LimitsState::default()
    };
    let expired_to = head.expired_to.map(|key| key.to_vec().into());
    limits.saved.set_expired_to(expired_to);
    limits
}

pub(crate) fn domains_to_pb(rules: &RuleTexts) -> impl Iterator<Item = pb::LimitDomain> {
    rules.domains().map(|(domain, rules)| pb::LimitDomain {
        domain: domain.as_str().to_owned(),
        version: rules.version,
        text: rules.text.to_string(),
        at_ms: rules.at_ms,
        by: rules.by.clone(),
        reason: rules.reason.clone(),
    })
}

pub(crate) fn add_domain(rules: &mut RuleTexts, it: pb::LimitDomain) -> Result<(), Malformed> {
    let domain = line_name_from_pb(&it.domain)?;
    let new = DomainRules {
        version: it.version,
        text: it.text.into(),
        at_ms: it.at_ms,
        by: it.by,
        reason: it.reason,
    };
    rules.put(domain, new);
    Ok(())
}

pub(crate) fn change_to_pb(change: &LimitChange) -> pb::LimitChange {
    let kind = match &change.what {
        Changed::Applied { version } => PbWhat::Applied(*version),
        Changed::Deleted { version } => PbWhat::Deleted(*version),
        Changed::Reset { descriptor } => PbWhat::Reset(descriptor.clone()),
    };
    pb::LimitChange {
        at_ms: change.at_ms,
        domain: change.domain.as_str().to_owned(),
        what: Some(kind),
        by: change.by.clone(),
        reason: change.reason.clone(),
    }
}

pub(crate) fn add_change(changes: &mut LimitChanges, it: pb::LimitChange) -> Result<(), Malformed> {
    let what = match it.what {
        Some(PbWhat::Applied(version)) => Changed::Applied { version },
        Some(PbWhat::Deleted(version)) => Changed::Deleted { version },
        Some(PbWhat::Reset(descriptor)) => Changed::Reset { descriptor },
        None => return Err("a change of limits of a kind that this build does not know"),
    };
    changes.keep(LimitChange {
        at_ms: it.at_ms,
        domain: line_name_from_pb(&it.domain)?,
        what,
        by: it.by,
        reason: it.reason,
    });
    Ok(())
}

/// The counters after a key, in the order of their keys.
pub(crate) fn counters_to_pb<'a>(
    saved: &'a Saved,
    after: Option<&'a [u8]>,
) -> impl Iterator<Item = pb::LimitCounter> + use<'a> {
    saved.after(after).map(|(key, counter)| pb::LimitCounter {
        key: Bytes::copy_from_slice(key),
        state: Some(counter_to_pb(counter)),
    })
}

pub(crate) fn add_counter(saved: &mut Saved, it: pb::LimitCounter) -> Result<(), Malformed> {
    let key = key_from_pb(&it.key)?;
    let state = it.state.ok_or("a counter without a state")?;
    let counter = match (whole_from_pb(&state), state) {
        (Some(counter), _) => counter,
        (None, PbState::Log(log)) => {
            let hits = log.hits.iter().map(hits_from_pb).collect();
            Counter::SlidingWindowLog(Box::new(SlidingWindowLog::restored(log.period_us, hits)))
        }
        (None, _) => return Err("a counter of a kind that this build does not know"),
    };
    if !fits(&key, &counter) {
        return Err("a counter of another kind than its key says");
    }
    saved.put(key, counter);
    Ok(())
}

pub(crate) fn hits_answer_to_pb(answer: &HitsAnswer) -> pb::LimitHitsAnswer {
    let HitsAnswer {
        limits,
        allowed,
        untracked,
        delay_us,
    } = *answer;
    pb::LimitHitsAnswer {
        limits,
        allowed,
        untracked,
        delay_us,
    }
}

pub(crate) fn hits_answer_from_pb(answer: &pb::LimitHitsAnswer) -> HitsAnswer {
    let pb::LimitHitsAnswer {
        limits,
        allowed,
        untracked,
        delay_us,
    } = *answer;
    HitsAnswer {
        limits,
        allowed,
        untracked,
        delay_us,
    }
}

/// Never reused.
const REFUSALS: [(u32, RulesRefused); 4] = [
    (1, RulesRefused::Version),
    (2, RulesRefused::NoDomain),
    (3, RulesRefused::TooManyDomains),
    (4, RulesRefused::TooLarge),
];

pub(crate) fn rules_answer_to_pb(answer: &Result<u64, RulesRefused>) -> pb::LimitRulesAnswer {
    let refusal = |refused: &RulesRefused| {
        let mut all = REFUSALS.iter();
        all.find(|(_, it)| it == refused)
            .map_or(0, |(kind, _)| *kind)
    };
    pb::LimitRulesAnswer {
        version: answer.unwrap_or_default(),
        refusal: answer.as_ref().err().map_or(0, refusal),
    }
}

pub(crate) fn rules_answer_from_pb(
    answer: &pb::LimitRulesAnswer,
) -> Result<Result<u64, RulesRefused>, Malformed> {
    if answer.refusal == 0 {
        return Ok(Ok(answer.version));
    }
    let mut all = REFUSALS.iter();
    let refused = all.find(|(kind, _)| *kind == answer.refusal);
    let (_, refused) = refused.ok_or("a refusal of rules that this build does not know")?;
    Ok(Err(*refused))
}
