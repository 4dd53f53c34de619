//! Shows that each checker bites: with one rule of the code broken on purpose, it must say so.

use nowserving_bite::Break;

use crate::env::{PANIC, Violation};
use crate::world::{Options, run};

/// Seeds tried for a break. Most show within ten; a connection that is lost just before another node leads is rare.
const SEEDS_MAX: u64 = 1_000;

/// A seed in which a rare break showed when this was last looked at. It only comes first: once it no longer shows the break, all
/// seeds are tried as for the others, which takes minutes. `bite` prints the seed of each row.
const RARE: [(Break, u64); 10] = [
    (Break::S2, 39),
    (Break::S5, 25),
    (Break::S13Calls, 10),
    (Break::S14Forwarded, 35),
    (Break::S14Unread, 7),
    (Break::S15, 6),
    (Break::S15Connection, 75),
    (Break::S15Proof, 171),
    (Break::L2Drain, 40),
    (Break::L5Room, 42),
];

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
    };
    let known = RARE.iter().filter(|(of, _)| *of == rule);
    for seed in known.map(|(_, seed)| *seed).chain(1..=SEEDS_MAX) {
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
