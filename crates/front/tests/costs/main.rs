//! What one request costs the node that answers it: memory allocations and instructions, from the message to the encoded
//! answer.
//!
//! A count is the same on every machine, one of instructions on every one of its kind with the same compiler.
//! `tests/costs.txt` has what is allowed; more by over 3 % fails, with the lines to put if it is meant. `cargo xtask cost`
//! shows the figures, and `cargo xtask cost --write` puts them there.
#![allow(clippy::unwrap_used)]

mod node;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use node::{COUNTED, Kind, allocations};

/// A cost may be so much more than what is written down.
const TOLERANCE_PERCENT: u64 = 3;
/// Set if instructions are to be counted.
const WITH_VALGRIND: &str = "NOWSERVING_INSTRUCTIONS";
/// Says which requests the process under valgrind is to make.
const KIND: &str = "NOWSERVING_COUNTED";

type Costs = BTreeMap<String, u64>;

#[test]
fn no_request_allocates_more_than_is_written_down() {
    let costs = Kind::ALL.map(|kind| (name("allocations", kind), allocations(kind)));
    check("allocations", Costs::from(costs));
}

/// With the allocator of the system, and what counts the allocations. `cargo xtask ci` and `cargo xtask cost` ask for it,
/// which see to it that valgrind is there.
#[test]
fn no_request_takes_more_instructions_than_is_written_down() {
    if std::env::var_os(WITH_VALGRIND).is_none() {
        return;
    }
    let costs = Kind::ALL.map(|kind| (name("instructions", kind), instructions(kind)));
    check("instructions", Costs::from(costs));
}

/// For the process under valgrind: no others are made.
#[test]
fn requests_of_one_kind() {
    let asked = std::env::var(KIND).unwrap_or_default();
    for kind in Kind::ALL.into_iter().filter(|it| it.name() == asked) {
        allocations(kind);
    }
}

fn name(what: &str, kind: Kind) -> String {
    let kind = kind.name();
    let a = if kind.starts_with('e') { "an" } else { "a" };
    format!("{what} of {a} {kind}")
}

/// The mean number of instructions of a request.
fn instructions(kind: Kind) -> u64 {
    let mut valgrind = Command::new("valgrind");
    valgrind.args([
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        "--collect-atstart=no",
        "--toggle-collect=*on_the_way*",
    ]);
    valgrind.arg(std::env::current_exe().unwrap());
    valgrind.args(["--exact", "requests_of_one_kind"]);
    let ran = valgrind.env(KIND, kind.name()).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let mut counts = said.lines().filter_map(|line| {
        let (_, count) = line.split_once("Collected :")?;
        count.trim().parse::<u64>().ok()
    });
    let counted = counts.next_back().filter(|it| *it > 0);
    counted.unwrap_or_else(|| panic!("valgrind has counted nothing:\n{said}")) / COUNTED
}

/// Compares all costs of which this is the first word.
fn check(what: &str, costs: Costs) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/costs.txt");
    let text = std::fs::read_to_string(file).unwrap();
    let written = text.lines().map(|line| {
        let (cost, what) = line.trim_start().split_once("  ").unwrap();
        (what.to_owned(), cost.parse::<u64>().unwrap())
    });
    let (mut written, others): (Costs, Costs) = written.partition(|(it, _)| it.starts_with(what));
    let lines = lines(&costs);
    println!("{lines}");
    if std::env::var_os("NOWSERVING_WRITE_COSTS").is_some() {
        let mut all = others;
        all.extend(costs);
        return std::fs::write(file, self::lines(&all)).unwrap();
    }
    assert!(written.keys().eq(costs.keys()), "costs.txt has other lines");
    for (what, cost) in costs {
        let written = written.remove(&what).unwrap();
        assert!(
            cost <= written + written * TOLERANCE_PERCENT / 100,
            "{what}: {cost}, and costs.txt has {written}: if that is meant, run `cargo xtask cost --write`, which puts\n{lines}"
        );
    }
}

fn lines(costs: &Costs) -> String {
    costs.iter().fold(String::new(), |mut text, (what, cost)| {
        writeln!(text, "{cost:>6}  {what}").unwrap();
        text
    })
}
