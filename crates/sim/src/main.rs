//! Runs seeds of the simulation, on every processor, and sums up: see `cargo xtask sim`.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use clap::Parser;
use nowserving_sim::{Counts, Options, Run, run};
use serde_json::json;

/// As in a node, and faster than that of glibc.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(
    name = "nowserving-sim",
    about = "Simulates whole clusters under faults, a seed at a time"
)]
struct Args {
    /// How many seeds
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// Ends with one line of JSON
    #[arg(long)]
    json: bool,
    /// Prints every event of every seed
    #[arg(long)]
    trace: bool,
    /// Looks only for violations of this invariant; may be given several times
    #[arg(long, value_name = "INVARIANT")]
    only: Vec<String>,
    /// Breaks each rule on purpose instead, and looks whether its checker notices
    #[arg(long)]
    bite: bool,
    /// Seeds at a time
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

#[derive(Default)]
struct Sum {
    seeds: u64,
    steps: u64,
    acknowledged: u64,
    violations: u64,
    stalled: u64,
    faults: Counts,
    leader_changes: u64,
    elections_without_cause: u64,
    snapshots_installed: u64,
    membership_changes: u64,
}

impl Sum {
    fn add(&mut self, run: &Run) {
        self.seeds += 1;
        self.steps += run.steps;
        self.acknowledged += run.acknowledged;
        self.violations += run.violations.len() as u64;
        self.stalled += u64::from(run.stalled);
        self.faults.add_all(&run.faults);
        self.leader_changes += run.leader_changes;
        self.elections_without_cause += run.elections_without_cause;
        self.snapshots_installed += run.snapshots_installed;
        self.membership_changes += run.membership_changes;
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.bite {
        return bite_all(&args);
    }
    let began = Instant::now();
    let sum = run_all(&args);
    let seconds = began.elapsed().as_secs_f64();
    let faults: BTreeMap<&str, u64> = sum.faults.iter().collect();
    if args.json {
        let line = json!({
            "seeds": sum.seeds,
            "steps": sum.steps,
            "acknowledged": sum.acknowledged,
            "violations": sum.violations,
            "stalled": sum.stalled,
            "faults": faults,
            "leader_changes": sum.leader_changes,
            "elections_without_cause": sum.elections_without_cause,
            "snapshots_installed": sum.snapshots_installed,
            "membership_changes": sum.membership_changes,
            "seconds": (seconds * 10.0).round() / 10.0,
        });
        println!("{line}");
    } else {
        println!(
            "{} seeds, {} steps, {} writes acknowledged, {} changes of leader ({} without cause), {} snapshots installed, \
             {} changes of members in {seconds:.1} s: {} violations, {} stalled",
            sum.seeds,
            sum.steps,
            sum.acknowledged,
            sum.leader_changes,
            sum.elections_without_cause,
            sum.snapshots_installed,
            sum.membership_changes,
            sum.violations,
            sum.stalled
        );
        for (kind, count) in faults {
            println!("  {kind:24} {count}");
        }
    }
    match sum.violations + sum.stalled {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn run_all(args: &Args) -> Sum {
    let next = AtomicU64::new(args.first_seed);
    let end = args.first_seed.saturating_add(args.seeds);
    let options = Options {
        trace: args.trace,
        only: args.only.clone(),
        many: Vec::new(),
    };
    let threads = if args.trace { 1 } else { args.threads.max(1) };
    let (done, runs) = mpsc::channel();
    let mut sum = Sum::default();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (done, next, options) = (done.clone(), &next, &options);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || done.send(run(seed, options)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        for run in runs {
            sum.add(&run);
            tell(&run, &sum, args);
        }
    });
    sum
}

/// One line for each break: the seed that showed it, and what its checker said. At the end, by invariant,
/// whether all of its breaks were caught.
fn bite_all(args: &Args) -> ExitCode {
    use nowserving_bite::Break;
    use nowserving_sim::Violation;
    use nowserving_sim::bite::{Bite, Sound, bite};
    if !nowserving_bite::POSSIBLE {
        eprintln!(
            "this build cannot break rules: it is a release, or `nowserving-bite` has no debug assertions"
        );
        return ExitCode::FAILURE;
    }
    // What a broken rule makes panic is counted, not shown.
    std::panic::set_hook(Box::new(|_| {}));
    let wanted = |rule: &&Break| {
        let mut only = args.only.iter();
        args.only.is_empty() || only.any(|only| rule.invariants().first() == Some(&only.as_str()))
    };
    let rules: Vec<&Break> = Break::ALL.iter().filter(wanted).collect();
    let sound = Sound::default();
    let next = AtomicU64::new(0);
    let (done, bites) = mpsc::channel();
    let mut rows: Vec<(usize, Bite)> = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..args.threads.max(1) {
            let (done, next, rules, sound) = (done.clone(), &next, &rules, &sound);
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed) as usize;
                    let Some(rule) = rules.get(at) else {
                        return;
                    };
                    if done.send((at, bite(**rule, sound))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        for (at, row) in bites {
            let (rule, panics) = (row.rule, row.panics);
            match &row.caught {
                Some((seed, Violation { invariant, what })) => eprintln!(
                    "{rule:?}: caught in seed {seed} ({panics} panics before): {invariant}: {what}"
                ),
                None => eprintln!("{rule:?}: NOT caught ({panics} panics)"),
            }
            rows.push((at, row));
        }
    });
    rows.sort_by_key(|(at, _)| *at);
    // In the order of the breaks. An invariant's checkers bite if each of its breaks was caught.
    let mut invariants: Vec<(&str, bool)> = Vec::new();
    for (_, row) in &rows {
        let (invariant, caught) = (row.invariant(), row.caught.is_some());
        match invariants.last_mut() {
            Some((last, all)) if *last == invariant => *all &= caught,
            _ => invariants.push((invariant, caught)),
        }
    }
    let json = invariants
        .iter()
        .map(|(invariant, all)| format!("\"{invariant}\": {all}"));
    println!("{{{}}}", json.collect::<Vec<_>>().join(", "));
    match invariants.iter().all(|(_, all)| *all) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Progress, and what is wrong with a run. Not to stdout, whose last line is for programs.
fn tell(run: &Run, sum: &Sum, args: &Args) {
    let mut err = std::io::stderr().lock();
    let on_terminal = err.is_terminal();
    // Nobody reads what cannot be written.
    if on_terminal {
        let _ = write!(
            err,
            "\r{} of {} seeds, {} violations, {} stalled ",
            sum.seeds, args.seeds, sum.violations, sum.stalled
        );
        if sum.seeds == args.seeds {
            let _ = writeln!(err);
        }
    }
    if run.violations.is_empty() && !run.stalled {
        return;
    }
    if !args.trace {
        let _ = writeln!(err);
        for line in &run.tail {
            let _ = writeln!(err, "{line}");
        }
    }
    for violation in &run.violations {
        let _ = writeln!(
            err,
            "seed {}: {}: {}",
            run.seed, violation.invariant, violation.what
        );
    }
    if run.stalled {
        let _ = writeln!(
            err,
            "seed {}: stalled: no progress after everything was healed",
            run.seed
        );
    }
    let _ = writeln!(
        err,
        "again: cargo xtask sim --first-seed {} --seeds 1 --trace",
        run.seed
    );
}
