//! `docs/metrics.md`, made from the table: `cargo xtask metrics-doc` writes it. And tests of the table.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::table::{Kind, Metric, SECTIONS};

const HEAD: &str = "\
# Metrics

Each node's `--metrics-addr` (and that of `nowserving envoy`) serves `/metrics` in Prometheus's text format, and
`/healthz` and `/readyz` ([protocol](protocol/nodes.md#health)). Times are in seconds, sizes in bytes. Histograms have
fixed buckets. A counter without labels begins at 0, and so do all series of snapshots, connections to NATS and the
first 1,000 rules of rate limits whose names have no values of requests; another series with labels mostly begins with
the first time that there is something to count.

Series are bounded in number, however many lines, lanes and labels there are. Keys (order ids) and tickets are in no
metric; values of requests only where a rule of rate limits asks for them (`detailed_metric`, `value_to_metric`).

<!-- Made from the code: cargo xtask metrics-doc -->
";

fn document() -> String {
    let mut out = HEAD.to_owned();
    for section in SECTIONS {
        let _ = write!(out, "\n## {}\n\n", section.title);
        if !section.about.is_empty() {
            let _ = write!(out, "{}\n\n", wrapped(section.about));
        }
        out.push_str("| metric | type | labels | what |\n|---|---|---|---|\n");
        for metric in section.metrics {
            let _ = writeln!(out, "{}", row(metric));
        }
    }
    out
}

fn row(metric: &Metric) -> String {
    let Metric {
        name,
        kind,
        labels,
        text,
    } = metric;
    let labels: Vec<_> = labels.iter().map(|it| format!("`{it}`")).collect();
    let labels = labels.join(", ");
    let buckets = match kind {
        Kind::Histogram(ends) => {
            let ends: Vec<_> = ends.iter().map(f64::to_string).collect();
            format!(" Buckets: {}.", ends.join(", "))
        }
        Kind::Counter | Kind::Gauge => String::new(),
    };
    let kind = kind.as_str();
    format!("| `{name}` | {kind} | {labels} | {text}{buckets} |")
}

/// In lines of at most 115 characters.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        if let Some(line) = lines.last_mut() {
            if line.is_empty() {
                line.push_str(word);
                continue;
            }
            if line.chars().count() + 1 + word.chars().count() <= 115 {
                line.push(' ');
                line.push_str(word);
                continue;
            }
        }
        lines.push(word.to_owned());
    }
    lines.join("\n")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_document_is_that_of_the_table() {
    let path = root().join("docs/metrics.md");
    let made = document();
    if std::env::var_os(nowserving_testkit::golden::WRITE).is_some() {
        fs::write(&path, &made).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap();
    assert!(kept == made, "run `cargo xtask metrics-doc`");
}

#[test]
fn each_metric_has_a_prometheus_name_and_a_text() {
    let mut names = BTreeSet::new();
    for metric in SECTIONS.iter().flat_map(|section| section.metrics) {
        let Metric {
            name, kind, text, ..
        } = metric;
        assert!(names.insert(name), "{name} is there twice");
        let begins = ["nowserving_", "process_"];
        assert!(begins.iter().any(|it| name.starts_with(it)), "{name}");
        assert!(text.ends_with('.') && !text.contains('|'), "{name}: {text}");
        let is_counter = matches!(kind, Kind::Counter);
        assert_eq!(name.ends_with("_total"), is_counter, "{name}");
        if let Kind::Histogram(ends) = kind {
            assert!(!ends.is_empty() && ends.is_sorted(), "{name}");
        }
    }
}

#[test]
fn written_histograms_have_the_bounds_by_which_they_are_counted() {
    use nowserving_line::OFF_BY_PERCENT;
    use nowserving_shard::tallies::WAIT_BOUNDS_MS;

    let waits = WAIT_BOUNDS_MS.map(|ms| ms as f64 / 1_000.0);
    assert_eq!(super::table::WAIT_SECONDS, waits);
    let ratios = OFF_BY_PERCENT.map(|percent| percent as f64 / 100.0);
    assert_eq!(super::table::OFF_RATIOS, ratios);
}

/// The names in a source file that are set as metrics, or written: any string that is the name of one.
fn names_in(source: &str) -> impl Iterator<Item = &str> {
    source.split('"').filter(|it| {
        let rest = it
            .strip_prefix("nowserving_")
            .or(it.strip_prefix("process_"));
        let is_name = |rest: &str| rest.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        rest.is_some_and(|rest| !rest.is_empty() && is_name(rest))
    })
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            sources(&path, found);
        } else if name.ends_with(".rs")
            && !name.ends_with("_tests.rs")
            && !name.ends_with("table.rs")
        {
            found.push(path);
        }
    }
}

/// The crates whose metrics a node, `nowserving envoy` or `nowserving gateway` serves.
const CRATES: [&str; 11] = [
    "engine", "envoy", "front", "gateway", "kv", "limit", "line", "log", "node", "replica", "shard",
];

#[test]
fn the_table_has_what_the_code_sets_and_nothing_else() {
    let mut files = Vec::new();
    for name in CRATES {
        sources(&root().join("crates").join(name).join("src"), &mut files);
    }
    let mut used: BTreeMap<String, PathBuf> = BTreeMap::new();
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        // Names in tests are no metrics.
        let code = text.split("#[cfg(test)]\nmod tests {").next();
        let code = code.filter(|_| !path.ends_with("metrics_server/doc.rs"));
        for name in code.into_iter().flat_map(names_in) {
            used.insert(name.to_owned(), path.clone());
        }
    }
    let all = SECTIONS.iter().flat_map(|section| section.metrics);
    let known: BTreeSet<&str> = all.map(|metric| metric.name).collect();
    for (name, path) in &used {
        assert!(
            known.contains(name.as_str()),
            "{name} of {path:?} is not in the table"
        );
    }
    for name in known {
        assert!(used.contains_key(name), "nothing sets {name}");
    }
}
