//! `compare bench`, in short, on real processes: what it writes, not how fast it is. Not shorter than a slow machine may
//! stand still: something must be answered.

use std::process::Command;

use serde_json::Value;

fn median(cell: &Value, field: &str) -> f64 {
    cell[field]["median"].as_f64().unwrap_or_default()
}

fn names<'a>(all: &'a Value, field: &str) -> Vec<&'a str> {
    let all = all.as_array().into_iter().flatten();
    all.filter_map(|it| it[field].as_str()).collect()
}

#[test]
fn rows_are_measured_and_written() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let json = folder.path().join("bench.json");
    let output = Command::new(env!("CARGO_BIN_EXE_compare"))
        .args(["bench", "shoppers", "status", "--quick", "--rounds", "1"])
        .args(["--measure", "3s", "--json"])
        .arg(&json)
        .arg("--write-docs")
        .arg(folder.path())
        .output()?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let said = format!("{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(&json).expect(&said))?;

    // In the order of a whole run, whatever the order of the command line.
    let sections = &report["sections"];
    assert_eq!(names(sections, "name"), ["status", "shoppers"], "{said}");
    // A machine that stalls for seconds makes requests fail: that must show, in both places.
    let sections = sections.as_array().expect(&said);
    let failed = |it: &Value| it["failures"].as_object().is_none_or(|it| !it.is_empty());
    let all_well = !sections.iter().any(failed);
    assert_eq!(output.status.success(), all_well, "{said}");

    let cells = &sections[0]["cells"];
    let both = ["bare NATS echo", "nowserving"];
    let thrice = [both, both, both].concat();
    assert_eq!(names(cells, "system"), thrice, "{said}");
    for cell in cells.as_array().expect(&said) {
        let [rate, middle, p99] =
            ["requests_per_s", "median_us", "p99_us"].map(|it| median(cell, it));
        assert!(rate > 0.0 && p99 >= middle, "{said}");
    }
    for goal in sections
        .iter()
        .flat_map(|it| it["goals"].as_array())
        .flatten()
    {
        let (measured, limit) = (median(goal, "measured"), goal["limit"].as_f64());
        let met = match goal["bound"].as_str() {
            Some("at_least") => Some(measured) >= limit,
            _ => Some(measured) <= limit,
        };
        assert_eq!(goal["met"], met, "{goal}");
    }
    let page = std::fs::read_to_string(folder.path().join("results.md"))?;
    assert!(page.contains("## shoppers"), "{page}");
    assert!(page.contains("(status.svg)"), "{page}");
    assert!(folder.path().join("status.svg").is_file());
    Ok(())
}
