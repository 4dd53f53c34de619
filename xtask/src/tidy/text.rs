//! Rules that look at the text of one file.

use super::Finding;

/// Longer files are split. One concept a file decides; below this no line count does.
const LINES_MAX: usize = 700;

/// Longer lines of documents are wrapped, rows of tables apart.
const DOCUMENT_LINE_MAX: usize = 120;

/// Documents that may have other than [`PAGE_LINES_MAX`] lines.
const PAGES: [(&str, usize); 4] = [
    ("README.md", 170),
    ("ARCHITECTURE.md", 230),
    ("CHANGELOG.md", usize::MAX),
    // Written by the benchmark.
    ("docs/benchmarks/results.md", usize::MAX),
];
const PAGE_LINES_MAX: usize = 250;

/// Words that mean "not finished". Glued together here, or this file would find itself.
const UNFINISHED: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
];

const IGNORED_TEST: &str = concat!("#[", "ignore");
/// And with `_eq!` and the like: the crates of the workspace are built without them, see `Cargo.toml`.
const DEBUG_ASSERT: [&str; 2] = [concat!("debug_", "assert!"), concat!("debug_", "assert_")];

/// Where the code is kept pure: the crates, the words that must not occur there, and why.
const PURE: [(&str, &str, &str); 6] = [
    (
        "codec line",
        "SystemTime Instant rand tokio async std::fs std::net std::env std::thread std::io HashMap HashSet",
        "the line is pure: the same commands must give the same state on every node",
    ),
    (
        "calendar limit",
        "SystemTime Instant rand tokio async std::fs std::net std::env std::thread std::io HashMap HashSet",
        "rate limits are pure: the same checks at the same times give the same answers",
    ),
    (
        "kv",
        "SystemTime Instant rand tokio async std::fs std::net std::env std::thread std::io HashMap HashSet",
        "key-values are pure: the same commands must give the same state on every node",
    ),
    (
        "adapt",
        "SystemTime Instant rand tokio async std::fs std::net std::env std::thread std::io HashMap HashSet",
        "the rule for seats is pure: a rehearsal with it gives the same bytes on every machine",
    ),
    (
        "shard replica engine front pass",
        "SystemTime Instant rand tokio async std::fs std::net std::env std::thread std::io",
        "this crate does no I/O and reads no clock: its caller does, so that the same inputs give the same outputs",
    ),
    (
        "sim",
        "SystemTime tokio async HashMap HashSet",
        "a simulation is the same each time: no clock but its own, and no order of a hash",
    ),
];

/// Applies every rule that fits the file's name.
pub fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |line: usize, what: String| {
        findings.push(Finding {
            path: path.to_owned(),
            line,
            what,
        })
    };
    let (is_rust, is_document) = (path.ends_with(".rs"), path.ends_with(".md"));
    // Written by tools, or the text of a licence: not ours to lay out.
    let is_flame_graph = path.starts_with("docs/performance/") && path.ends_with(".svg");
    if path.ends_with(".lock")
        || path == "LICENSE"
        || path.contains("/tests/golden/")
        || is_flame_graph
    {
        return findings;
    }

    let lines = text.lines().count();
    let most = match PAGES.iter().find(|(page, _)| *page == path) {
        Some((_, most)) => *most,
        None if is_rust => LINES_MAX,
        None if is_document => PAGE_LINES_MAX,
        None => usize::MAX,
    };
    if lines > most {
        found(0, format!("{lines} lines; split it, {most} are the most"));
    }
    if !text.is_empty() && !text.ends_with('\n') {
        found(lines, "the last line has no end".to_owned());
    }
    // Not `lines()`: that would swallow a carriage return.
    for (number, line) in (1..).zip(text.split('\n')) {
        if line.ends_with([' ', '\t', '\r']) {
            found(number, "white space at the end of the line".to_owned());
        }
        for word in UNFINISHED.iter().filter(|word| has_word(line, word)) {
            found(number, format!("`{word}`: finish it, or write an issue"));
        }
        let characters = line.chars().count();
        if is_document && characters > DOCUMENT_LINE_MAX && !line.trim_start().starts_with('|') {
            let most = DOCUMENT_LINE_MAX;
            found(
                number,
                format!("{characters} characters; {most} are the most"),
            );
        }
        if is_rust {
            for what in rust_line(path, code_of(line)) {
                found(number, what);
            }
        }
    }
    findings
}

fn rust_line(path: &str, code: &str) -> Vec<String> {
    let mut found = Vec::new();
    if code.contains(IGNORED_TEST) {
        found.push(format!(
            "`{IGNORED_TEST}]`: a test that does not run shows nothing"
        ));
    }
    if DEBUG_ASSERT.iter().any(|word| code.contains(word)) {
        found.push("no build looks at this: use `nowserving_bite::require`".to_owned());
    }
    for (crates, words, why) in PURE {
        let mut folders = crates.split(' ').map(|name| format!("crates/{name}/src/"));
        if folders.any(|folder| path.starts_with(&folder)) {
            let words = words.split_whitespace();
            let words = words.filter(|word| has_word(code, word));
            found.extend(words.map(|word| format!("`{word}`: {why}")));
        }
    }
    found
}

/// The line without its `//` comment: comments may say why something is not used.
///
/// A `//` in a string also ends the line here. That hides little: what is forbidden
/// hardly stands behind an address.
fn code_of(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code)
}

/// True if `word` stands in the line and is not part of a longer name.
fn has_word(line: &str, word: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_name) && !after.is_some_and(is_name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(path: &str, text: &str) -> Vec<(usize, String)> {
        check(path, text)
            .into_iter()
            .map(|finding| (finding.line, finding.what))
            .collect()
    }

    /// One finding, in that line, that speaks of the word.
    fn assert_finds(path: &str, text: &str, line: usize, word: &str) {
        let found = whats(path, text);
        assert_eq!(found.len(), 1, "{path}: {text:?}: {found:?}");
        assert_eq!(found[0].0, line);
        assert!(
            found[0].1.contains(word),
            "{found:?} does not speak of {word}"
        );
    }

    #[test]
    fn long_rust_files_are_found() {
        assert!(whats("a.rs", &"x\n".repeat(LINES_MAX)).is_empty());
        assert_finds("a.rs", &"x\n".repeat(701), 0, "701 lines");
        assert!(whats("a.toml", &"x\n".repeat(701)).is_empty());
    }

    #[test]
    fn long_documents_are_found() {
        for (path, most) in [
            ("README.md", 170),
            ("ARCHITECTURE.md", 230),
            ("docs/a.md", 250),
        ] {
            assert!(whats(path, &"x\n".repeat(most)).is_empty());
            assert_finds(path, &"x\n".repeat(most + 1), 0, "split it");
        }
        assert!(whats("CHANGELOG.md", &"x\n".repeat(701)).is_empty());
        let long = "é".repeat(120);
        assert!(whats("docs/a.md", &format!("{long}\n| {long} |\n")).is_empty());
        assert_finds("docs/a.md", &format!("\n{long}x\n"), 2, "121 characters");
    }

    #[test]
    fn assertions_of_no_build_are_found() {
        let code = concat!("debug_", "assert_eq!(a, b);\n");
        assert_finds("crates/cli/src/x.rs", code, 1, "no build");
        assert!(whats("a.rs", "Cli::command().debug_assert();\n").is_empty());
    }

    #[test]
    fn impure_words_are_found_in_the_core_only() {
        for word in [
            "HashMap",
            "SystemTime",
            "Instant::now()",
            "std::fs",
            "tokio",
            "rand",
        ] {
            let text = format!("fn f() {{\n    let x = {word};\n}}\n");
            let name = word.trim_end_matches("::now()");
            assert_finds("crates/line/src/a.rs", &text, 2, name);
            assert!(whats("crates/node/src/a.rs", &text).is_empty());
        }
        for crate_name in ["shard", "replica", "engine", "front"] {
            let path = format!("crates/{crate_name}/src/a.rs");
            assert_finds(&path, "use std::fs::File;\n", 1, "std::fs");
            assert_finds(&path, "let now = Instant::now();\n", 1, "Instant");
            assert!(whats(&path, "use std::collections::HashMap;\n").is_empty());
        }
    }

    #[test]
    fn parts_of_names_and_comments_are_not_words() {
        for text in [
            "let operand = brand;\n",
            "let x = 1; // not a HashMap: its order is not fixed\n",
        ] {
            assert!(whats("crates/line/src/a.rs", text).is_empty(), "{text}");
        }
    }

    #[test]
    fn unfinished_work_is_found_in_every_kind_of_file() {
        for word in UNFINISHED {
            assert_finds("docs/a.md", &format!("x\ny {word} z\n"), 2, word);
            assert_finds("a.rs", &format!("// {word}\n"), 1, word);
        }
        assert!(whats("a.md", concat!("TO", "DOs and auto", "do!\n")).is_empty());
    }

    #[test]
    fn ignored_tests_are_found() {
        assert_finds(
            "tests/a.rs",
            &format!("    {IGNORED_TEST} = \"slow\"]\n"),
            1,
            IGNORED_TEST,
        );
        assert!(whats("tests/a.rs", &format!("// {IGNORED_TEST}]\n")).is_empty());
    }

    #[test]
    fn white_space_at_the_end_is_found() {
        assert_finds("a.toml", "a = 1 \n", 1, "white space");
        assert_finds("a.toml", "a = 1\r\n", 1, "white space");
        assert_finds("a.toml", "a = 1", 1, "no end");
        assert!(whats("Cargo.lock", "a = 1 ").is_empty());
    }
}
