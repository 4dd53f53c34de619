//! Every command about rate limits.

use nowserving_limit::{
    Algorithm, Change, ChangedState, Counter, Drain, FixedWindow, Limit, LimitParts, LogHits,
    LogPart, Moment, SlidingWindowCounter, Unit, WhenFull, Window, key,
};
use nowserving_shard::limits::{
    ApplyRules, DeleteRules, GiveBack, LimitAsk, LimitCommand, ResetCounter, TimedAsk,
};

use super::*;

const NOW_US: u64 = 1_766_222_333_444_000;

fn key_of(algorithm: Algorithm, unit: Unit) -> Box<[u8]> {
    let entries = [("ip", "127.0.0.1"), ("path", "/")].into_iter();
    key::encode(algorithm, unit, "shop", entries)
        .unwrap()
        .into()
}

fn apply(domain: &str) -> LimitCommand {
    LimitCommand::Apply(ApplyRules {
        domain: name(domain),
        text: format!("domain: {domain}").into(),
        if_version: Some(0),
        by: "ann".into(),
        reason: "sale".into(),
    })
}

fn checkpoint() -> LimitCommand {
    let whole = |algorithm, counter| Change {
        key: key_of(algorithm, Unit::Hour),
        state: ChangedState::Whole(counter),
    };
    let window = FixedWindow {
        end_us: NOW_US + 7,
        count: 3,
    };
    let sliding = SlidingWindowCounter {
        end_us: NOW_US + 5,
        next_end_us: NOW_US + 9,
        last: 2,
        this: 4,
    };
    let bucket = |part| {
        Counter::Bucket(Drain {
            empty_us: NOW_US + 11,
            part,
        })
    };
    let log = LogPart {
        begins: true,
        period_us: 3_600_000_000,
        hits: vec![
            LogHits {
                at_us: NOW_US - 2,
                hits: 1,
            },
            LogHits {
                at_us: NOW_US,
                hits: 5,
            },
        ],
    };
    LimitCommand::Checkpoint {
        resets: 0,
        changes: vec![
            whole(Algorithm::FixedWindow, Counter::FixedWindow(window)),
            whole(
                Algorithm::SlidingWindowCounter,
                Counter::SlidingWindowCounter(sliding),
            ),
            whole(Algorithm::TokenBucket, bucket(0)),
            whole(Algorithm::LeakingBucket, bucket(1)),
            Change {
                key: key_of(Algorithm::SlidingWindowLog, Unit::Hour),
                state: ChangedState::LogPart(log),
            },
        ],
    }
}

fn hits() -> LimitCommand {
    let limit = Limit::new(LimitParts {
        algorithm: Algorithm::TokenBucket,
        unit: Unit::Day,
        requests_per_unit: 10,
        burst: Some(20),
        zone: None,
    });
    let ask = LimitAsk {
        limit: limit.unwrap(),
        key: key_of(Algorithm::TokenBucket, Unit::Day),
        hits: 2,
        max_delay_us: None,
        when_full: WhenFull::Deny,
        is_shadow: true,
        is_quota: true,
    };
    let at = Moment {
        now_us: NOW_US,
        window: Window {
            start_us: 1,
            end_us: 2,
            next_end_us: 3,
        },
    };
    LimitCommand::Hits {
        domain: name("shop"),
        asks: vec![TimedAsk { ask, at }],
    }
}

fn once(key: u128, command: LimitCommand) -> Command {
    let origin = Origin::Client;
    let id = RequestId { key, origin };
    Command::Once(id, Box::new(Command::Limit(command)))
}

pub fn commands() -> Vec<Command> {
    let delete = LimitCommand::Delete(DeleteRules {
        domain: name("other"),
        if_version: Some(2),
        by: "bob".into(),
        reason: "over".into(),
    });
    let reset = LimitCommand::Reset(ResetCounter {
        domain: name("shop"),
        key: key_of(Algorithm::FixedWindow, Unit::Hour),
        descriptor: "ip=127.0.0.1".into(),
        by: "ann".into(),
        reason: "a bug of ours".into(),
    });
    let LimitCommand::Hits { domain, asks } = hits() else {
        panic!("no hits");
    };
    let mark = Drain {
        empty_us: NOW_US + 13,
        part: 1,
    };
    let give_back = LimitCommand::GiveBack(GiveBack {
        domain,
        request: 105,
        marks: vec![mark; asks.len()],
        asks,
    });
    vec![
        once(101, apply("shop")),
        once(102, apply("other")),
        once(103, apply("shop-2")),
        once(104, delete),
        Command::Limit(checkpoint()),
        once(105, hits()),
        once(106, reset),
        once(107, give_back),
    ]
}
