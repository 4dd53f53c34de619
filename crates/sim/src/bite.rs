//! Shows that each checker bites: with one rule of the code broken on purpose, it must say so.

use nowserving_bite::Break;

use crate::env::{PANIC, Violation};
use crate::faults::Fault;
use crate::world::{Options, run};

/// Seeds tried for a break. Most show within ten.
const SEEDS_MAX: u64 = 1_000;

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

/// Breaks a rule and looks for a seed in which its checker notices.
#[must_use]
pub fn bite(rule: Break) -> Bite {
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
    for seed in 1..=SEEDS_MAX {
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
        if run(seed, &options).violations.is_empty() {
            bite.caught = Some((seed, violation));
            break;
        }
    }
    bite
}
