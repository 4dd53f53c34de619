//! `cargo xtask cost`: what a node allocates for one request of each kind, and how many instructions that takes.

use anyhow::Result;

use crate::check::unless_ci;
use crate::steps::Done;
use crate::{packages, shell};

/// The tests do all of it. With the features of the workspace, whose build is there.
const TESTS: &str = "test --locked --workspace --test costs -- --nocapture";

/// Tells the tests that valgrind is there.
const WITH_VALGRIND: &str = "NOWSERVING_INSTRUCTIONS";

/// Counts, and compares with what is written down; or writes it down.
pub fn run(write: bool) -> Result<()> {
    ensure_valgrind()?;
    let mut test = shell::cargo(TESTS);
    test.env(WITH_VALGRIND, "1");
    if write {
        test.env("NOWSERVING_WRITE_COSTS", "1")
            .env("RUST_TEST_THREADS", "1");
    }
    shell::run(&mut test)
}

/// What the other tests leave out: the instructions.
pub fn instructions() -> Result<Done> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        let why = "costs.txt has the instructions of Linux on x86-64";
        return Ok(Done::Skipped(why.to_owned()));
    }
    if unless_ci(ensure_valgrind())?.is_none() {
        let why = "valgrind is missing: instructions are not counted";
        return Ok(Done::Skipped(why.to_owned()));
    }
    let mut test = shell::cargo(TESTS);
    shell::run(test.arg("instructions").env(WITH_VALGRIND, "1"))?;
    Ok(Done::Passed)
}

fn ensure_valgrind() -> Result<()> {
    match packages::has("valgrind") {
        true => Ok(()),
        false => packages::install("valgrind is missing: install it", "valgrind", "valgrind"),
    }
}
