//! `nowserving bench`, as short as it gets, on real processes: what it prints, not how fast it is.

use std::process::Command;

use serde_json::Value;

#[test]
fn prints_everything_side_by_side_in_one_line() {
    let dir = tempfile::tempdir().expect("a directory for its data");
    let output = Command::new(env!("CARGO_BIN_EXE_nowserving"))
        .args(["bench", "--json", "--measure", "1s", "--rounds", "1"])
        .args(["--in-flight", "8", "--data-dir"])
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
    let cells = report["cells"].as_array().expect(&said);
    let names: Vec<_> = cells.iter().map(|cell| cell["what"].as_str()).collect();
    let all = ["echo", "status", "enter_one", "enter_many"].map(Some);
    assert_eq!(names, all, "{said}");
    for cell in cells {
        let number = |field: &str| cell[field]["median"].as_f64().unwrap_or_default();
        assert_eq!(cell["in_flight"], 8, "{said}");
        assert!(number("requests_per_s") > 0.0, "{said}");
        assert!(number("p99_us") >= number("median_us"), "{said}");
        let ratio = number("ratio_to_echo");
        assert_eq!(ratio > 0.0, cell["what"] == "status", "{said}");
    }
    let left = dir.path().read_dir().expect("it is still there").count();
    assert_eq!(left, 0, "it cleans up after itself");
}
