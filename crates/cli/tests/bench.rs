//! `nowserving bench`, in short, on real processes: what it prints, not how fast it is. Not shorter than a slow machine may
//! stand still: something must be answered.

use std::process::Command;

use serde_json::Value;

fn number(cell: &Value, field: &str) -> f64 {
    cell[field]["median"].as_f64().unwrap_or_default()
}

#[test]
fn prints_everything_side_by_side_in_one_line() {
    let dir = tempfile::tempdir().expect("a directory for its data");
    let output = Command::new(env!("CARGO_BIN_EXE_nowserving"))
        .args(["bench", "--json", "--rounds", "1", "--in-flight", "8"])
        .args(["--measure", "3s", "--data-dir"])
        .arg(dir.path())
        .output()
        .expect("it starts");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let said = format!("{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(stdout.lines().count(), 1, "{said}");
    let report: Value = serde_json::from_str(&stdout).expect(&said);

    // A machine that stalls for seconds makes requests fail: that must show, in both places.
    let failures = report["failures"].as_object().expect(&said);
    assert_eq!(output.status.success(), failures.is_empty(), "{said}");
    for field in ["cores", "nats_server", "sync_us"] {
        assert!(!report["machine"][field].is_null(), "{field}: {said}");
    }
    let left = dir.path().read_dir().expect("it is still there").count();
    assert_eq!(left, 0, "it cleans up after itself");
    let cells = report["cells"].as_array().expect(&said);
    let names: Vec<_> = cells.iter().filter_map(|it| it["what"].as_str()).collect();
    assert_eq!(
        names,
        ["echo", "status", "enter_one", "enter_many"],
        "{said}"
    );
    for cell in cells {
        assert_eq!(cell["in_flight"], 8, "{said}");
        assert!(number(cell, "requests_per_s") > 0.0, "{said}");
        let [median, p99] = ["median_us", "p99_us"].map(|field| number(cell, field));
        assert!(p99 >= median, "{said}");
        assert!(cell["failed"].is_u64(), "{said}");
        let ratio = number(cell, "ratio_to_echo");
        assert_eq!(ratio > 0.0, cell["what"] == "status", "{said}");
    }
}
