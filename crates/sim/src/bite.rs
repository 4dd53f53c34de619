//! Shows that each checker bites: with one rule of the code broken on purpose, it must say so.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use nowserving_bite::Break;

use crate::env::{PANIC, Violation};
use crate::faults::Fault;
use crate::world::{Options, run};

/// Seeds tried for a break. Most show within ten.
const SEEDS_MAX: u64 = 1_000;

/// The seed that the search begins with. For breaks that one seed in thirty or fewer shows, it is the one that did last: where a
/// change of the code has moved it, the search goes on and takes minutes.
fn first_seed(rule: Break) -> u64 {
    match rule {
        Break::S5 => 34,
        Break::S8Draw => 107,
        Break::S14Forwarded => 116,
        Break::S15 => 40,
        Break::S15Connection => 36,
        Break::S15Loop => 122,
        Break::L2Drain => 64,
        _ => 1,
    }
}

/// What a break that shows rarely needs: without many of these faults it takes minutes to find.
fn needs(rule: Break) -> &'static [Fault] {
    match rule {
        Break::S2 => &[Fault::FrameLost, Fault::Partition],
        Break::S5 | Break::S15 => &[Fault::Partition, Fault::Crash],
        Break::S13Refusals => &[Fault::ClientSlow, Fault::ClientRetry],
        Break::S14Unread => &[Fault::Pause, Fault::ServiceStall],
        Break::S14Forwarded => &[
            Fault::PauseMidTurn,
            Fault::ServiceStall,
            Fault::MappingChanges,
        ],
        Break::S15Connection => &[Fault::ServiceHalfOpen, Fault::PartitionOneWay],
        Break::S5Decision => &[Fault::LoopStall],
        Break::S15Loop => &[Fault::ServiceHalfOpen, Fault::PartitionOneWay],
        Break::S15Proof => &[Fault::RouteLost, Fault::ServiceHalfOpen],
        Break::L5Room => &[Fault::DiskFull],
        _ => &[],
    }
}

/// What came of one break.
#[derive(Clone, Debug)]
pub struct Bite {
    /// The rule that was broken.
    pub rule: Break,
    /// The seed that showed it, and what its checker said.
    pub caught: Option<(u64, Violation)>,
    /// Seeds that ended by a panic instead: they do not count.
    pub panics: u64,
}

impl Bite {
    /// The invariant that it counts for.
    #[must_use]
    pub fn invariant(&self) -> &'static str {
        self.rule.invariants().first().copied().unwrap_or_default()
    }
}

/// The seeds, with the faults that they have many of, and whether nothing is violated in them while no rule is broken. Shared by
/// all breaks: most show in the same few seeds.
#[derive(Debug, Default)]
pub struct Sound(Mutex<BTreeMap<(u64, &'static [Fault]), bool>>);

impl Sound {
    fn has(&self, seed: u64, many: &'static [Fault]) -> bool {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = (seed, many);
        if let Some(is_sound) = known().get(&at) {
            return *is_sound;
        }
        let options = Options {
            many: many.to_vec(),
            ..Options::default()
        };
        let is_sound = run(seed, &options).violations.is_empty();
        known().insert(at, is_sound);
        is_sound
    }
}

/// Breaks a rule and looks for a seed in which its checker notices.
#[must_use]
pub fn bite(rule: Break, sound: &Sound) -> Bite {
    let mut bite = Bite {
        rule,
        caught: None,
        panics: 0,
    };
    let invariants = rule.invariants().iter();
    let options = Options {
        trace: false,
        only: invariants.map(|&it| it.to_owned()).collect(),
        many: needs(rule).to_vec(),
    };
    for seed in (first_seed(rule)..).take(SEEDS_MAX as usize) {
        nowserving_bite::set(Some(rule));
        let broken = run(seed, &options);
        nowserving_bite::set(None);
        let Some(violation) = broken.violations.into_iter().next() else {
            continue;
        };
        if violation.invariant == PANIC {
            bite.panics += 1;
            continue;
        }
        // What is seen without the break too is not its doing.
        if sound.has(seed, needs(rule)) {
            bite.caught = Some((seed, violation));
            break;
        }
    }
    bite
}
