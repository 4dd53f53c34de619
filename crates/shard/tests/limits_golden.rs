//! Entries and snapshots with rate limits, as `golden.rs`.

#![allow(clippy::unwrap_used)]

use nowserving_limit::{
    Algorithm, Change, ChangedState, Counter, Drain, FixedWindow, Limit, LimitParts, LogHits,
    LogPart, Moment, SlidingWindowCounter, Unit, WhenFull, Window, key,
};
use nowserving_line::LineName;
use nowserving_shard::command::{Command, Entry, FORMAT, decode, encode};
use nowserving_shard::limits::{
    ApplyRules, DeleteRules, GiveBack, LimitAsk, LimitCommand, ResetCounter, TimedAsk,
};
use nowserving_shard::requests::{Origin, RequestId};
use nowserving_shard::snapshot::{self, Header};
use nowserving_shard::state::State;

const NOW_MS: u64 = 1_766_222_333_444;
const NOW_US: u64 = NOW_MS * 1_000;

fn golden(name: &str, written: &[u8]) -> Vec<u8> {
    nowserving_testkit::golden::bytes(env!("CARGO_MANIFEST_DIR"), name, written)
}

fn name(name: &str) -> LineName {
    LineName::try_from(name).unwrap()
}

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

fn reset_of(key: Box<[u8]>, [descriptor, by, reason]: [&str; 3]) -> LimitCommand {
    LimitCommand::Reset(ResetCounter {
        domain: name("shop"),
        key,
        descriptor: descriptor.into(),
        by: by.into(),
        reason: reason.into(),
    })
}

fn once(key: u128, command: LimitCommand) -> Command {
    let origin = Origin::Client;
    let id = RequestId { key, origin };
    Command::Once(id, Box::new(Command::Limit(command)))
}

fn entry(format: u32, reset: LimitCommand) -> Entry {
    let delete = LimitCommand::Delete(DeleteRules {
        domain: name("other"),
        if_version: Some(2),
        by: "bob".into(),
        reason: "over".into(),
    });
    Entry {
        format,
        now_ms: NOW_MS,
        wall_ms: NOW_MS,
        compact_floor: 5,
        commands: vec![
            once(1, apply("shop")),
            once(2, apply("other")),
            once(3, apply("shop-2")),
            once(4, delete),
            Command::Limit(checkpoint()),
            once(5, hits()),
            once(6, reset),
        ],
    }
}

fn old() -> Entry {
    let key = key_of(Algorithm::FixedWindow, Unit::Hour);
    entry(7, reset_of(key, [""; 3]))
}

/// A reset says what it forgets, who asked and why; and hits are given back.
fn new() -> Entry {
    let key = key_of(Algorithm::FixedWindow, Unit::Hour);
    let mut entry = entry(8, reset_of(key, ["ip=127.0.0.1", "ann", "a bug of ours"]));
    let LimitCommand::Hits { domain, asks } = hits() else {
        panic!("no hits");
    };
    let mark = Drain {
        empty_us: NOW_US + 13,
        part: 1,
    };
    let give_back = LimitCommand::GiveBack(GiveBack {
        domain,
        request: 5,
        marks: vec![mark; asks.len()],
        asks,
    });
    entry.commands.push(once(7, give_back));
    entry
}

#[test]
fn an_entry_with_every_command_of_limits() {
    for (file, entry) in [("entry-7-limit.bin", old()), ("entry-8-limit.bin", new())] {
        let kept = golden(file, &encode(&entry));
        assert_eq!(decode(&kept, FORMAT).unwrap(), entry);
    }
}

#[test]
fn a_snapshot_with_limits() {
    comes_back("snapshot-7-limits.snap", &old(), (0, 6));
    comes_back("snapshot-8-limits.snap", &new(), (5, 6));
}

fn comes_back(file: &str, entry: &Entry, (changes, requests): (usize, usize)) {
    let header = Header {
        cluster: "prod".into(),
        shard: 0,
        index: 9,
        term: 2,
        voters: vec![1, 2, 3],
        ..Header::default()
    };
    let mut state = State::default();
    state.apply_entry(9, entry, &mut ());
    let kept = golden(file, &snapshot::encode(&header, &state));
    let (_, restored) = snapshot::decode(kept.clone().into(), FORMAT, "prod", 0).unwrap();
    assert!(snapshot::encode(&header, &restored) == kept);
    let limits = restored.limits();
    assert_eq!(limits, state.limits());
    assert_eq!(limits.rules().version(), 4);
    assert_eq!(limits.changes().iter().len(), changes);
    assert_eq!(
        (limits.rules().domains().len(), limits.saved().len()),
        (2, 5)
    );
    assert_eq!(restored.requests().len(), requests);
}
