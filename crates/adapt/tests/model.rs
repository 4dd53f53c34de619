//! The rule against a naive one, which keeps every handler in a list and counts anew each time.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use nowserving_adapt::{AutoSeats, Began, LineNow, Outcome, Rule, Target};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Op {
    Begin {
        waited: bool,
    },
    /// One of those that run.
    End {
        nth: usize,
        outcome: Outcome,
    },
    Load(f64),
    Wait(u64),
    Step {
        seats: Option<u32>,
        held: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let outcome = prop_oneof![
        6 => Just(Outcome::Done),
        1 => Just(Outcome::BrokenOff),
        1 => Just(Outcome::Failed),
    ];
    prop_oneof![
        8 => any::<bool>().prop_map(|waited| Op::Begin { waited }),
        8 => (any::<usize>(), outcome).prop_map(|(nth, outcome)| Op::End { nth, outcome }),
        2 => (0.0..2.0).prop_map(Op::Load),
        6 => (0u64..300).prop_map(Op::Wait),
        4 => (proptest::option::weighted(0.1, 0u32..40), 0u64..40)
            .prop_map(|(seats, held)| Op::Step { seats, held }),
    ]
}

struct Handler {
    began_ms: u64,
    ended_ms: Option<u64>,
    waited: bool,
    /// In the present cohort, and not left out of it since.
    is_in: bool,
}

struct Naive {
    auto: AutoSeats,
    now_ms: u64,
    handlers: Vec<Handler>,
    /// The places of those that run.
    running: Vec<usize>,
    since_ms: Option<u64>,
    loads: Vec<f64>,
    part: f64,
    spare: f64,
}

impl Naive {
    fn new(auto: AutoSeats, part: f64) -> Naive {
        Naive {
            auto,
            now_ms: 0,
            handlers: Vec::new(),
            running: Vec::new(),
            since_ms: None,
            loads: Vec::new(),
            part,
            spare: 0.0,
        }
    }

    fn cohort(&self) -> Vec<&Handler> {
        self.handlers.iter().filter(|it| it.is_in).collect()
    }

    fn is_open(&self) -> bool {
        let age_ms = self.now_ms - self.since_ms.unwrap_or(self.now_ms);
        let waits = match self.auto.target() {
            Target::Latency(mean) => {
                self.cohort().len() < 10 && age_ms < mean.as_millis() as u64 * 10
            }
            _ => false,
        };
        age_ms < 1_000 || waits
    }

    fn begin(&mut self, waited: bool) {
        self.since_ms.get_or_insert(self.now_ms);
        let is_in = self.is_open();
        self.running.push(self.handlers.len());
        self.handlers.push(Handler {
            began_ms: self.now_ms,
            ended_ms: None,
            waited,
            is_in,
        });
    }

    fn end(&mut self, nth: usize, outcome: Outcome) {
        let place = self.running.remove(nth);
        let limit_ms = match self.auto.target() {
            Target::Latency(mean) => mean.as_millis() as u64,
            _ => 0,
        };
        let handler = &mut self.handlers[place];
        handler.ended_ms = Some(self.now_ms);
        let is_long = self.now_ms - handler.began_ms > limit_ms;
        handler.is_in &= outcome == Outcome::Done || is_long;
        handler.waited &= outcome != Outcome::Failed;
    }

    fn load(&mut self, load: f64) {
        if self.since_ms.is_some() {
            self.loads.push(load);
        }
    }

    fn mean_time(&self) -> f64 {
        let cohort = self.cohort();
        let times = cohort
            .iter()
            .map(|it| it.ended_ms.unwrap_or(self.now_ms) - it.began_ms);
        times.sum::<u64>() as f64 / 1_000.0 / cohort.len() as f64
    }

    /// The mean time is just that from which a step does not wait: rounding decides.
    fn is_on_the_edge(&self) -> bool {
        match self.auto.target() {
            Target::Latency(mean) => (self.mean_time() - mean.as_secs_f64() * 4.0).abs() < 1e-9,
            _ => false,
        }
    }

    fn is_due(&self) -> bool {
        let cohort = self.cohort();
        let ended = cohort.iter().filter(|it| it.ended_ms.is_some()).count();
        let is_measured = match self.auto.target() {
            Target::Latency(mean) => {
                let is_slow = self.mean_time() >= mean.as_secs_f64() * 4.0;
                ended * 10 >= cohort.len() * 9 || is_slow
            }
            _ => !self.loads.is_empty(),
        };
        !self.is_open() && is_measured
    }

    /// The seats before they are rounded, and the sum so far.
    fn step(&mut self, line: LineNow) -> Option<f64> {
        if !self.is_due() {
            return None;
        }
        let since_ms = self.since_ms.unwrap();
        let mean_running = self.handlers.iter().map(|it| {
            let end_ms = it.ended_ms.unwrap_or(self.now_ms);
            end_ms.saturating_sub(it.began_ms.max(since_ms)) as f64
        });
        let mean_running = mean_running.sum::<f64>() / (self.now_ms - since_ms) as f64;
        let cohort = self.cohort();
        let waited = cohort.iter().filter(|it| it.waited).count() as f64;
        let waited = waited / cohort.len().max(1) as f64;
        let measured = match self.auto.target() {
            Target::Latency(_) if cohort.is_empty() => None,
            Target::Latency(mean) => Some((mean.as_secs_f64(), self.mean_time())),
            Target::Load(target) => (!self.loads.is_empty()).then(|| {
                let mean = self.loads.iter().sum::<f64>() / self.loads.len() as f64;
                (target, mean)
            }),
            _ => None,
        };
        for handler in &mut self.handlers {
            handler.is_in = false;
        }
        self.since_ms = None;
        self.loads.clear();
        let is_within = (self.auto.min()..=self.auto.max()).contains(&line.seats);
        if !is_within {
            return None;
        }
        let (target, mean) = measured?;
        let change = 0.25 * ((target / mean).clamp(0.25, 2.0) - 1.0);
        let change = change * mean_running.min(line.seats.into());
        if change > 0.0 {
            let is_used = line.held * 2 >= u64::from(line.seats);
            let wanted = if is_used { change * waited } else { 0.0 };
            self.part += wanted;
            self.spare = (self.spare + change - wanted).min(1.0);
        } else {
            self.part += (change + self.spare).min(0.0);
            self.spare = (self.spare + change).max(0.0);
        }
        Some(self.part)
    }
}

fn auto() -> impl Strategy<Value = AutoSeats> {
    let target = prop_oneof![
        (1u64..2_000).prop_map(|ms| Target::Latency(Duration::from_millis(ms))),
        (0.1f64..1.0).prop_map(Target::Load),
    ];
    (1u32..10, 0u32..30, target)
        .prop_map(|(min, more, target)| AutoSeats::new(min, min + more, target).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn it_decides_as_the_naive_one(auto in auto(), ops in proptest::collection::vec(op(), 1..600), part in 0.0f64..1.0) {
        let mut rule = Rule::new(auto, part);
        let mut naive = Naive::new(auto, part);
        let mut running: Vec<Began> = Vec::new();
        let mut seats = auto.min();
        for op in ops {
            let now = Duration::from_millis(naive.now_ms);
            match op {
                Op::Begin { waited } => {
                    running.push(rule.began(now, waited));
                    naive.begin(waited);
                }
                Op::End { nth, outcome } if !running.is_empty() => {
                    let nth = nth % running.len();
                    rule.ended(running.remove(nth), now, outcome);
                    naive.end(nth, outcome);
                }
                Op::End { .. } => {}
                Op::Load(load) => {
                    rule.load(load);
                    naive.load(load);
                }
                Op::Wait(ms) => naive.now_ms += ms,
                Op::Step { seats: other, held } => {
                    seats = other.unwrap_or(seats);
                    if naive.is_on_the_edge() {
                        return Ok(());
                    }
                    prop_assert_eq!(rule.is_due(now), naive.is_due());
                    let line = LineNow { seats, held };
                    let next = rule.step(now, line);
                    prop_assert!((auto.min()..=auto.max()).contains(&next));
                    match naive.step(line) {
                        None => prop_assert_eq!(next, auto.within(seats)),
                        Some(part) => {
                            // Where the sum is just a whole number, either is right.
                            let can_be = [part - 1e-6, part + 1e-6].map(|part| {
                                let next = f64::from(seats) + part.floor();
                                auto.within(next.max(0.0) as u32)
                            });
                            prop_assert!(can_be.contains(&next), "{next} not {can_be:?}");
                            let is_near_whole = (part - part.round()).abs() < 1e-6;
                            if is_near_whole && can_be[0] == can_be[1] {
                                // At a bound nobody can tell which of the two it was.
                                return Ok(());
                            }
                            naive.part -= if can_be[0] == can_be[1] {
                                part.floor()
                            } else {
                                f64::from(next) - f64::from(seats)
                            };
                        }
                    }
                    seats = next;
                }
            }
        }
    }
}
