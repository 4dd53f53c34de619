//! Shows that each checker bites: with one rule of the code broken on purpose, it must say so.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nowserving_bite::Break;

use crate::world::{Options, run};

/// Seeds tried for a break.
const SEEDS_MAX: u64 = 60;

/// What came of one break.
#[derive(Clone, Debug)]
pub struct Bite {
    /// The invariant.
    pub invariant: &'static str,
    /// The seed that showed it, and what its checker said.
    pub caught: Option<(u64, String)>,
    /// Seeds that ended by a panic instead: they do not count.
    pub panics: u64,
}

/// Breaks a rule and looks for a seed in which its checker notices.
#[must_use]
pub fn bite(rule: Break) -> Bite {
    let invariant = name(rule);
    let mut bite = Bite {
        invariant,
        caught: None,
        panics: 0,
    };
    let options = Options {
        trace: false,
        only: vec![invariant.to_owned()],
    };
    for seed in 1..=SEEDS_MAX {
        nowserving_bite::set(Some(rule));
        let broken = catch_unwind(AssertUnwindSafe(|| run(seed, &options)));
        nowserving_bite::set(None);
        match broken {
            Err(_) => bite.panics += 1,
            Ok(broken) => {
                if let Some(violation) = broken.violations.first()
                    // What is seen without the break too is not its doing.
                    && run(seed, &options).violations.is_empty()
                {
                    bite.caught = Some((seed, violation.what.clone()));
                    break;
                }
            }
        }
    }
    bite
}

fn name(rule: Break) -> &'static str {
    match rule {
        Break::S1 => "S1",
        Break::S2 => "S2",
        Break::S3 => "S3",
        Break::S4 => "S4",
        Break::S5 => "S5",
        Break::S6 => "S6",
        Break::S7 => "S7",
        Break::S8 => "S8",
        Break::S9 => "S9",
        Break::S10 => "S10",
        Break::S11 => "S11",
        Break::S12 => "S12",
        Break::S13 => "S13",
        Break::S14 => "S14",
        Break::S15 => "S15",
        Break::S16 => "S16",
    }
}
