//! The rule in front of a simulated service: handlers come at random and take exponential times, and beyond a knee they
//! share what there is (M/M/c with processor sharing).
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::time::Duration;

use nowserving_adapt::{AutoSeats, Began, LineNow, Outcome, Rule, Target};

/// Beyond so many at once handlers are slowed down, in most scenarios.
const KNEE: f64 = 8.0;
/// What a handler takes alone, on average.
const WORK_S: f64 = 0.2;
const QUEUE: usize = 200;
const TICK_S: f64 = 0.25;

#[derive(Clone)]
struct Scenario {
    auto: AutoSeats,
    /// The knee from each second on.
    knees: Vec<(f64, f64)>,
    /// Beyond the knee each handler has (knee / handlers) to this power of its speed.
    power: i32,
    seats: u32,
    per_second: f64,
    /// The processes, by the part of the handlers that each has.
    processes: Vec<f64>,
    seconds: f64,
    is_fixed: bool,
    /// A handler that has taken this long fails.
    time_out_s: f64,
}

/// Of the second half.
#[derive(Debug)]
struct Measured {
    mean: f64,
    least: u32,
    most: u32,
    handlers: u32,
    mean_time: f64,
    changes: u32,
}

struct Handler {
    /// The service's work at which it is done.
    done_at: f64,
    began_s: f64,
    process: usize,
    began: Began,
}

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.next()).ln()
    }

    fn one_of(&mut self, parts: &[f64]) -> usize {
        let mut at = self.next() * parts.iter().sum::<f64>();
        let found = parts.iter().position(|part| {
            at -= part;
            at < 0.0
        });
        found.unwrap_or(0)
    }
}

struct Sim {
    of: Scenario,
    dice: Dice,
    now_s: f64,
    work: f64,
    seats: u32,
    waiting: VecDeque<usize>,
    running: Vec<Handler>,
    rules: Vec<Rule>,
    measured: Vec<(f64, u32)>,
    times: Vec<f64>,
    changes: u32,
}

impl Sim {
    fn knee(&self) -> f64 {
        let mut knees = self.of.knees.iter().rev();
        knees.find(|(from_s, _)| *from_s <= self.now_s).unwrap().1
    }

    fn speed(&self) -> f64 {
        (self.knee() / self.running.len().max(1) as f64)
            .min(1.0)
            .powi(self.of.power)
    }

    fn now(&self) -> Duration {
        Duration::from_secs_f64(self.now_s)
    }

    fn is_late(&self) -> bool {
        self.now_s > self.of.seconds / 2.0
    }

    fn begin(&mut self, process: usize, waited: bool) {
        let work = self.dice.exponential(WORK_S);
        let now = self.now();
        let began = self.rules[process].began(now, waited);
        self.running.push(Handler {
            done_at: self.work + work,
            began_s: self.now_s,
            process,
            began,
        });
    }

    fn arrive(&mut self) {
        let process = self.dice.one_of(&self.of.processes);
        if self.running.len() < self.seats as usize && self.waiting.is_empty() {
            self.begin(process, false);
        } else if self.waiting.len() < QUEUE {
            self.waiting.push_back(process);
        }
    }

    fn fill(&mut self) {
        while self.running.len() < self.seats as usize
            && let Some(process) = self.waiting.pop_front()
        {
            self.begin(process, true);
        }
    }

    fn end(&mut self, nth: usize, outcome: Outcome) {
        let handler = self.running.swap_remove(nth);
        let now = self.now();
        self.rules[handler.process].ended(handler.began, now, outcome);
        if self.is_late() && outcome == Outcome::Done {
            self.times.push(self.now_s - handler.began_s);
        }
        self.fill();
    }

    fn timed_out(&self) -> Option<usize> {
        let last_s = self.now_s - self.of.time_out_s;
        self.running.iter().position(|it| it.began_s <= last_s)
    }

    /// Each process reports its load, and tells the seats if it is due.
    fn tick(&mut self) {
        let now = self.now();
        while let Some(nth) = self.timed_out() {
            self.end(nth, Outcome::Failed);
        }
        for nth in 0..self.rules.len() {
            let load = self.running.len() as f64 / self.knee();
            self.rules[nth].load(load.min(1.0));
            if self.of.is_fixed || !self.rules[nth].is_due(now) {
                continue;
            }
            let line = LineNow {
                seats: self.seats,
                held: self.running.len() as u64,
            };
            let next = self.rules[nth].step(now, line);
            self.changes += u32::from(next != self.seats && self.is_late());
            self.seats = next;
            self.fill();
        }
        self.measured.push((self.now_s, self.seats));
    }

    /// The seats at each look in these seconds.
    fn seats(&self, from_s: f64, to_s: f64) -> Vec<u32> {
        let measured = self.measured.iter();
        let measured = measured.filter(|(at_s, _)| (from_s..to_s).contains(at_s));
        measured.map(|(_, seats)| *seats).collect()
    }

    fn mean_seats(&self, from_s: f64, to_s: f64) -> f64 {
        let seats = self.seats(from_s, to_s);
        seats.iter().map(|seats| f64::from(*seats)).sum::<f64>() / seats.len() as f64
    }

    /// The next handler to be done, and when.
    fn next_end(&self) -> Option<(usize, f64)> {
        let handlers = self.running.iter().enumerate();
        let (nth, handler) = handlers.min_by(|(_, a), (_, b)| a.done_at.total_cmp(&b.done_at))?;
        let left = (handler.done_at - self.work).max(0.0);
        Some((nth, self.now_s + left / self.speed()))
    }

    fn go_to(&mut self, at_s: f64) {
        self.work += (at_s - self.now_s) * self.speed();
        self.now_s = at_s;
    }
}

fn simulate(of: &Scenario) -> Sim {
    let mut dice = Dice(0x2545_F491_4F6C_DD1D);
    let parts = of.processes.iter().map(|_| dice.next());
    let mut sim = Sim {
        of: of.clone(),
        dice: Dice(0x9E37_79B9_7F4A_7C15),
        now_s: 0.0,
        work: 0.0,
        seats: of.seats,
        waiting: VecDeque::new(),
        running: Vec::new(),
        rules: parts.map(|part| Rule::new(of.auto, part)).collect(),
        measured: Vec::new(),
        times: Vec::new(),
        changes: 0,
    };
    let (mut arrival_s, mut tick_s) = (0.0_f64, TICK_S);
    while sim.now_s < of.seconds {
        let end = sim.next_end();
        let end_s = end.map_or(f64::INFINITY, |(_, at_s)| at_s);
        let next_s = arrival_s.min(tick_s).min(end_s);
        sim.go_to(next_s);
        if let Some((nth, at_s)) = end
            && at_s <= next_s
        {
            sim.end(nth, Outcome::Done);
        } else if tick_s <= next_s {
            sim.tick();
            tick_s += TICK_S;
        } else {
            sim.arrive();
            arrival_s += sim.dice.exponential(1.0 / of.per_second);
        }
    }
    sim
}

fn run(of: &Scenario) -> Measured {
    let sim = simulate(of);
    let half_s = of.seconds / 2.0;
    let seats = sim.seats(half_s, f64::INFINITY);
    Measured {
        mean: sim.mean_seats(half_s, f64::INFINITY),
        least: *seats.iter().min().unwrap(),
        most: *seats.iter().max().unwrap(),
        handlers: sim.times.len() as u32,
        mean_time: sim.times.iter().sum::<f64>() / sim.times.len() as f64,
        changes: sim.changes,
    }
}

/// More handlers than the service can do: 40 a second.
fn overloaded(target: Target) -> Scenario {
    Scenario {
        auto: AutoSeats::new(1, 100, target).unwrap(),
        knees: vec![(0.0, KNEE)],
        power: 1,
        seats: 1,
        per_second: 60.0,
        processes: vec![1.0],
        seconds: 1_200.0,
        is_fixed: false,
        time_out_s: f64::INFINITY,
    }
}

/// Twice what a handler takes alone.
fn twice() -> Target {
    Target::Latency(Duration::from_millis(400))
}

fn near(measured: &Measured, seats: f64) {
    assert!(
        (measured.mean - seats).abs() < seats * 0.1,
        "{seats}: {measured:?}"
    );
    assert!(
        f64::from(measured.least) > seats * 0.6 && f64::from(measured.most) < seats * 1.5,
        "{seats}: {measured:?}"
    );
}

#[test]
fn seats_come_to_where_handlers_take_as_long_as_they_may() {
    // With 16 at once each has half of its speed.
    for seats in [1, 100] {
        let of = Scenario {
            seats,
            ..overloaded(twice())
        };
        let measured = run(&of);
        near(&measured, 16.0);
        assert!((measured.mean_time - 0.4).abs() < 0.04, "{measured:?}");
        // Ten minutes, 600 steps: most change nothing.
        assert!(measured.changes < 400, "{measured:?}");
    }
}

#[test]
fn a_service_that_gets_slower_by_its_load_is_saved_from_it() {
    // (c / 8)² = 2
    let of = Scenario {
        power: 2,
        seats: 100,
        ..overloaded(twice())
    };
    let measured = run(&of);
    near(&measured, 11.3);
    let fixed = run(&Scenario {
        is_fixed: true,
        ..of
    });
    assert_eq!((fixed.least, fixed.most), (100, 100));
    assert!(
        measured.handlers > fixed.handlers * 4,
        "{measured:?} {fixed:?}"
    );
}

#[test]
fn seats_come_to_where_the_load_is_as_it_shall_be() {
    // 5.6 of 8, as far as whole seats can.
    for seats in [1, 100] {
        let of = Scenario {
            seats,
            ..overloaded(Target::Load(0.7))
        };
        let measured = run(&of);
        assert!((5.0..6.5).contains(&measured.mean), "{measured:?}");
        assert!(measured.least >= 4 && measured.most <= 8, "{measured:?}");
    }
}

#[test]
fn many_processes_decide_as_one() {
    let one = run(&overloaded(twice()));
    for processes in [vec![1.0; 5], vec![1.0, 2.0, 4.0, 8.0, 16.0], vec![1.0; 32]] {
        let of = Scenario {
            processes,
            ..overloaded(twice())
        };
        let measured = run(&of);
        near(&measured, one.mean);
    }
}

#[test]
fn many_processes_are_as_quick_as_one() {
    for processes in [1, 32] {
        let of = Scenario {
            processes: vec![1.0; processes],
            seconds: 300.0,
            ..overloaded(twice())
        };
        let sim = simulate(&of);
        let come = sim.measured.iter().find(|(_, seats)| *seats >= 12);
        assert!(come.is_some(), "{processes}: {:?}", sim.measured.last());
    }
}

#[test]
fn seats_follow_a_service_that_changes() {
    for processes in [1, 32] {
        let of = Scenario {
            knees: vec![(0.0, KNEE), (400.0, 3.0), (800.0, KNEE)],
            seats: 16,
            processes: vec![1.0; processes],
            ..overloaded(twice())
        };
        let sim = simulate(&of);
        let means = [200.0, 520.0, 920.0].map(|from_s| sim.mean_seats(from_s, from_s + 200.0));
        assert!((13.0..20.0).contains(&means[0]), "{processes}: {means:?}");
        assert!((4.5..7.5).contains(&means[1]), "{processes}: {means:?}");
        assert!((13.0..20.0).contains(&means[2]), "{processes}: {means:?}");
    }
}

#[test]
fn time_outs_do_not_hide_an_overload() {
    // With 100 at once nearly all would fail.
    let of = Scenario {
        power: 2,
        seats: 100,
        time_out_s: 1.0,
        ..overloaded(twice())
    };
    let measured = run(&of);
    assert!((8.0..16.0).contains(&measured.mean), "{measured:?}");
    let fixed = run(&Scenario {
        is_fixed: true,
        ..of
    });
    assert!(
        measured.handlers > fixed.handlers * 3,
        "{measured:?} {fixed:?}"
    );
}

#[test]
fn seats_that_are_not_used_stay() {
    for (target, processes) in [(twice(), 1), (twice(), 32), (Target::Load(0.7), 1)] {
        // Two run at once, on average.
        let of = Scenario {
            per_second: 10.0,
            seats: 64,
            processes: vec![1.0; processes],
            ..overloaded(target)
        };
        let measured = run(&of);
        // A seat or two by chance, where the handlers of each process are few.
        assert!(measured.least >= 62 && measured.most == 64, "{measured:?}");
        // From one seat they grow as far as they are needed, and no further.
        let measured = run(&Scenario { seats: 1, ..of });
        assert!(measured.least >= 3 && measured.most < 20, "{measured:?}");
    }
}
