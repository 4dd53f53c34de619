//! The cost of applying one client's visit: it enters, and as each visit ends the first in line is
//! admitted, claims and completes. So as many wait afterwards as before.
//!
//! `replay` is what a follower and a restart do with the log. `leader` also makes events, and a status
//! for each of the three replies.
#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use nowserving_line::{Event, LaneSettings, LineName, Lines, Op, Reply, Settings, Stamp, TokenRef};

const SEATS: u64 = 100;
const WAITING: u64 = 100_000;
/// Other lines of the shard.
const LINES: u64 = 1_000;

struct Shop {
    lines: Lines,
    line: LineName,
    incarnation: u64,
    index: u64,
    /// The token that is next to claim.
    next: u64,
    leads: bool,
    events: Vec<Event>,
}

impl Shop {
    fn new(lanes: usize, leads: bool) -> Self {
        let mut shop = Self {
            lines: Lines::new(),
            line: LineName::try_from("line-500").unwrap(),
            incarnation: 0,
            index: 0,
            next: 1,
            leads,
            events: Vec::new(),
        };
        let mut settings = Settings::new(SEATS as u32, 10_000_000);
        for lane in 1..lanes {
            let name = format!("lane-{lane}").as_str().try_into().unwrap();
            settings.lanes.push(LaneSettings::new(name));
        }
        for n in 0..LINES {
            let line = LineName::try_from(format!("line-{n}").as_str()).unwrap();
            let create = Op::Create {
                line: line.clone(),
                settings: settings.clone(),
            };
            let reply = shop.apply(&create);
            if let Reply::Line { incarnation, .. } = reply
                && line == shop.line
            {
                shop.incarnation = incarnation;
            }
        }
        for _ in 0..SEATS + WAITING {
            shop.enter();
        }
        // Enough to make the forecast warm.
        for _ in 0..2_000 {
            shop.visit();
        }
        shop
    }

    fn apply(&mut self, op: &Op) -> Reply {
        self.index += 1;
        let stamp = Stamp {
            index: self.index,
            op_no: 0,
            now_ms: self.index * 10,
            wall_ms: self.index * 10,
        };
        if !self.leads {
            return self.lines.apply(stamp, op, None).unwrap();
        }
        self.events.clear();
        let reply = self.lines.apply(stamp, op, Some(&mut self.events));
        black_box(&self.events);
        if let Ok(Reply::Token(at)) = &reply {
            let line = self.lines.get(op.line()).unwrap();
            let _ = black_box(line.status(*at, self.lines.now_ms()));
        }
        reply.unwrap()
    }

    fn enter(&mut self) {
        self.apply(&Op::Enter {
            line: self.line.clone(),
            key: Some(self.index.to_be_bytes().into()),
            lane: None,
        });
    }

    fn visit(&mut self) {
        self.enter();
        let line = self.line.clone();
        let at = TokenRef {
            incarnation: self.incarnation,
            lane: 0,
            token: self.next,
        };
        self.next += 1;
        self.apply(&Op::Claim {
            line: line.clone(),
            at,
        });
        self.apply(&Op::Complete {
            line,
            at,
            epoch: None,
            units: None,
        });
    }
}

fn apply(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("apply");
    for (role, leads) in [("replay", false), ("leader", true)] {
        for lanes in [1, 8] {
            let mut shop = Shop::new(lanes, leads);
            group.bench_function(BenchmarkId::new(role, format!("{lanes} lanes")), |b| {
                b.iter(|| shop.visit());
            });
        }
    }
    group.finish();
}

criterion_group!(benches, apply);
criterion_main!(benches);
