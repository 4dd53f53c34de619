//! The cost of a poll as a node answers it, with exact position and forecast, by how many wait.
//!
//! `few` asks for 64 tokens all over the line again and again: what the rules cost. `all` asks for
//! all that wait, in an order that jumps about: to that comes what memory costs, as a long line does
//! not fit the processor's caches.
//!
//! `lanes` is `few` in a line of three lanes, where the forecast and the turn look at the others.
//!
//! `few` is the same at 100 and at 1,000,000, within what measurements differ by; `all` takes 2 to 2.5
//! times as long there (it was four to five while polls went through the tree of the live).
//! Most of the difference is one read: when the token entered, 8 MB of times for a million. Large
//! pages take a quarter off it. To get rid of it these would have to be so small that caches keep
//! them, and then could not hold every time.
#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use nowserving_line::{
    Change, LaneSettings, LineName, Lines, Op, Reply, Settings, SettingsPatch, Stamp, TokenRef,
};

const SEATS: u32 = 100;
/// Enough to make the line warm.
const COMPLETED: u64 = 2_000;

/// The crowd waits in these lanes in turn; those before it were in the first one.
fn crowd(waiting: u64, lanes: &[&str]) -> (Lines, LineName, u64) {
    let line = LineName::try_from("shop").unwrap();
    let mut lines = Lines::new();
    let mut index = 0;
    let mut apply = |op: &Op| {
        index += 1;
        let stamp = Stamp {
            index,
            op_no: 0,
            now_ms: index * 10,
            wall_ms: index * 10,
        };
        lines.apply(stamp, op, None).unwrap()
    };
    let named = |boost_ms: u64| -> Vec<LaneSettings> {
        let named = lanes.iter().map(|name| LaneSettings {
            boost_ms: boost_ms * (name.len() as u64 - 1),
            ..LaneSettings::new((*name).try_into().unwrap())
        });
        named.collect()
    };
    let settings = Settings {
        lanes: named(0),
        ..Settings::new(SEATS, 10_000_000)
    };
    let create = Op::Create {
        line: line.clone(),
        settings,
    };
    let Reply::Line { incarnation, .. } = apply(&create) else {
        panic!("not made")
    };
    let enter = |lane: &str| Op::Enter {
        line: line.clone(),
        key: None,
        lane: Some(lane.try_into().unwrap()),
    };
    for _ in 0..u64::from(SEATS) + COMPLETED {
        apply(&enter(lanes[0]));
    }
    for lane in lanes.iter().cycle().take(waiting as usize) {
        apply(&enter(lane));
    }
    for token in 1..=COMPLETED {
        let at = TokenRef {
            incarnation,
            lane: 0,
            token,
        };
        let line = line.clone();
        apply(&Op::Claim {
            line: line.clone(),
            at,
        });
        apply(&Op::Complete {
            line,
            at,
            epoch: None,
            units: None,
        });
    }
    // Not before: the seats of those who completed went to the first lane.
    let patch = SettingsPatch {
        lanes: Some(Change::Set(named(60_000))),
        ..SettingsPatch::default()
    };
    apply(&Op::Configure {
        line: line.clone(),
        patch: patch.into(),
        if_version: None,
        incarnation: None,
    });
    (lines, line, incarnation)
}

fn status(criterion: &mut Criterion) {
    measure(criterion, "status/few", 64, &["a"]);
    measure(criterion, "status/all", u64::MAX, &["a"]);
    measure(criterion, "status/lanes", 64, &["a", "bb", "ccc"]);
}

/// Asks for at most so many different tokens.
fn measure(criterion: &mut Criterion, name: &str, most: u64, lanes: &[&str]) {
    let mut group = criterion.benchmark_group(name);
    for waiting in [100u64, 10_000, 1_000_000] {
        let (lines, name, incarnation) = crowd(waiting, lanes);
        let line = lines.get(&name).unwrap();
        // Right after the last departure: much later there would be no forecast.
        let now_ms = lines.now_ms();
        let first = u64::from(SEATS) + COMPLETED + 1;
        let in_first = waiting / lanes.len() as u64;
        let mut asked = 0;
        group.bench_with_input(BenchmarkId::from_parameter(waiting), &waiting, |b, _| {
            b.iter(|| {
                asked = (asked + 1) % in_first.min(most);
                let at = TokenRef {
                    incarnation,
                    lane: 0,
                    token: first + asked * 617_411 % in_first,
                };
                let poll = line.poll(at, now_ms, false).unwrap();
                assert!(poll.status.eta_ms.is_some());
                black_box(poll)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, status);
criterion_main!(benches);
