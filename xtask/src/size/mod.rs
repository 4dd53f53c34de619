//! `cargo xtask size`: how much code, tests, prose and dependencies there are, so that a change can be judged by them.
//!
//! Lines are counted that have more than blanks and comments, as rustfmt has laid them out. Tests are the folders `tests`
//! and `benches`, the crates that only test ([`TESTING`]), and in other files each item under `#[cfg(test)]`, with the
//! file of a module there. All else is code: also `xtask`, `examples`, the simulation and what compares us with others.

mod rust;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;

use crate::{shell, tidy};

/// Crates that are no part of any product: they test the others.
const TESTING: [&str; 3] = ["tests/", "crates/bite/", "crates/testkit/"];
/// Counted apart: what stands before the cluster. The SDKs of other languages are not counted at all.
const IN_FRONT: &str = "crates/gateway";
/// Words are counted in these, lines in all documents.
const FRONT_PAGES: [&str; 2] = ["README.md", "ARCHITECTURE.md"];

#[derive(Args)]
pub struct SizeArgs {
    /// Prints one line of JSON
    #[arg(long)]
    json: bool,
    /// Also lists each crate
    #[arg(long)]
    crates: bool,
}

/// Lines of one crate or folder.
#[derive(Clone, Copy, Default)]
struct Lines {
    code: usize,
    tests: usize,
}

/// Counts the repository as it is on the disk.
///
/// # Errors
/// A file cannot be read, or cargo does not answer.
pub fn run(args: &SizeArgs) -> Result<ExitCode> {
    let root = shell::root();
    let (by_crate, documents) = counted(&root)?;
    let third_party = third_party()?;
    let sum = |in_front: bool, of: fn(&Lines) -> usize| {
        let counted = by_crate
            .iter()
            .filter(|(name, _)| (name.as_str() == IN_FRONT) == in_front);
        counted.map(|(_, lines)| of(lines)).sum::<usize>()
    };
    let (code, tests) = (sum(false, |it| it.code), sum(false, |it| it.tests));
    let (front_code, front_tests) = (sum(true, |it| it.code), sum(true, |it| it.tests));
    let longest = documents
        .iter()
        .filter(|(path, _)| path.starts_with("docs/"))
        .max_by_key(|(_, (lines, _))| *lines);
    if args.json {
        let documents = documents.iter().map(|(path, (lines, words))| {
            (path.clone(), json!({ "lines": lines, "words": words }))
        });
        let crates = by_crate
            .iter()
            .map(|(name, it)| (name.clone(), json!({ "code": it.code, "tests": it.tests })));
        println!(
            "{}",
            json!({
                "code": code, "tests": tests, "third_party": third_party,
                "gateway": { "code": front_code, "tests": front_tests },
                "documents": documents.collect::<serde_json::Map<_, _>>(),
                "crates": crates.collect::<serde_json::Map<_, _>>(),
            })
        );
        return Ok(ExitCode::SUCCESS);
    }
    println!("lines of code       {code:>7}");
    println!("lines of tests      {tests:>7}");
    println!("gateway, apart      {front_code:>7} lines of code, {front_tests} of tests");
    println!("third-party crates  {third_party:>7}");
    for page in FRONT_PAGES {
        if let Some((lines, words)) = documents.get(page) {
            println!("{page:<20}{lines:>7} lines, {words} words");
        }
    }
    if let Some((path, (lines, _))) = longest {
        println!("longest of docs     {lines:>7} lines, {path}");
    }
    if args.crates {
        for (name, Lines { code, tests }) in by_crate {
            println!("{name:<20}{code:>7} {tests:>7}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

type ByCrate = BTreeMap<String, Lines>;
/// Lines and words by path.
type Documents = BTreeMap<String, (usize, usize)>;

fn counted(root: &Path) -> Result<(ByCrate, Documents)> {
    let (mut sources, mut documents) = (BTreeMap::new(), Documents::new());
    for file in tidy::files(root)? {
        let path = file.strip_prefix(root).unwrap_or(&file);
        let path = path.to_string_lossy().replace('\\', "/");
        let Some(text) = tidy::read_text(&file)? else {
            continue;
        };
        if path.ends_with(".rs") {
            sources.insert(path, text);
        } else if path.ends_with(".md") {
            let words = text.split_whitespace().count();
            documents.insert(path, (text.lines().count(), words));
        }
    }
    let under_test: BTreeSet<String> = sources
        .iter()
        .flat_map(|(path, text)| rust::test_modules(path, text))
        .collect();
    let mut by_crate = ByCrate::new();
    for (path, text) in &sources {
        let (code, tests) = rust::lines(text);
        let lines = by_crate.entry(crate_of(path)).or_default();
        match is_test(path, &under_test) {
            true => lines.tests += code + tests,
            false => (lines.code, lines.tests) = (lines.code + code, lines.tests + tests),
        }
    }
    Ok((by_crate, documents))
}

fn crate_of(path: &str) -> String {
    let mut parts = path.split('/');
    let first = parts.next().unwrap_or_default();
    match (first, parts.next()) {
        ("crates" | "tests", Some(name)) => format!("{first}/{name}"),
        _ => first.to_owned(),
    }
}

fn is_test(path: &str, under_test: &BTreeSet<String>) -> bool {
    TESTING.iter().any(|folder| path.starts_with(folder))
        || path.contains("/tests/")
        || path.contains("/benches/")
        || under_test
            .iter()
            .any(|it| path == it || path.starts_with(&format!("{}/", it.trim_end_matches(".rs"))))
}

/// How many crates of others a release of the product is made from.
fn third_party() -> Result<usize> {
    let tree =
        shell::cargo("tree --locked -e normal --prefix none --format {p} -p nowserving").output();
    let tree = tree.context("cargo tree")?;
    anyhow::ensure!(tree.status.success(), "cargo tree failed");
    let text = String::from_utf8_lossy(&tree.stdout).into_owned();
    let crates: BTreeSet<&str> = text
        .lines()
        // Our own have their folder behind the version.
        .filter(|line| !line.contains("(/") && !line.is_empty())
        .map(|line| {
            line.trim_end_matches(" (*)")
                .trim_end_matches(" (proc-macro)")
        })
        .collect();
    Ok(crates.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_told_from_code_by_their_place() {
        let under_test = BTreeSet::from(["crates/node/src/tests.rs".to_owned()]);
        for (path, expected) in [
            ("crates/node/src/lib.rs", false),
            ("crates/node/src/tests.rs", true),
            ("crates/node/src/tests/rig.rs", true),
            ("crates/line/tests/model.rs", true),
            ("crates/line/benches/line.rs", true),
            ("crates/sim/src/world.rs", false),
            ("tests/e2e/src/lib.rs", true),
            ("xtask/src/main.rs", false),
            ("examples/shop.rs", false),
        ] {
            assert_eq!(is_test(path, &under_test), expected, "{path}");
        }
    }
}
