//! `nowserving bench`, in short, on real processes: what it prints, not how fast it is. Not shorter than a slow machine may
//! stand still: something must be answered.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::Command;

use serde_json::Value;

/// Runs it at eight requests in flight; its report, and all that it said.
fn report(args: &[&str]) -> (Value, String) {
    let dir = tempfile::tempdir().expect("a directory for its data");
    let output = Command::new(env!("CARGO_BIN_EXE_nowserving"))
        .args(["bench", "--json", "--rounds", "1", "--in-flight", "8"])
        .args(args)
        .arg("--data-dir")
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
    (report, said)
}

fn number(cell: &Value, field: &str) -> f64 {
    cell[field]["median"].as_f64().unwrap_or_default()
}

/// All of them, in this order.
fn cells<'a>(report: &'a Value, names: &[&str], said: &str) -> &'a [Value] {
    let cells = report["cells"].as_array().expect(said);
    let found: Vec<_> = cells.iter().map(|it| it["what"].as_str()).collect();
    let names: Vec<_> = names.iter().copied().map(Some).collect();
    assert_eq!(found, names, "{said}");
    for cell in cells {
        assert_eq!(cell["in_flight"], 8, "{said}");
        assert!(number(cell, "requests_per_s") > 0.0, "{said}");
        let [median, p99] = ["median_us", "p99_us"].map(|field| number(cell, field));
        assert!(p99 >= median, "{said}");
        assert!(cell["failed"].is_u64(), "{said}");
    }
    cells
}

#[test]
fn prints_everything_side_by_side_in_one_line() {
    let (report, said) = report(&["--measure", "3s"]);
    let names = ["echo", "status", "enter_one", "enter_many"];
    for cell in cells(&report, &names, &said) {
        let ratio = number(cell, "ratio_to_echo");
        assert_eq!(ratio > 0.0, cell["what"] == "status", "{said}");
    }
}

/// Says on stderr that the test was not run, past what the test harness captures, and in the file from which `cargo xtask
/// test` makes its summary: the output of a test that passes is shown to nobody.
fn skipped(why: &str) {
    let text = format!("bench --limits: {why}\n");
    let _ = write!(std::io::stderr(), "skipped: {text}");
    let Some(path) = std::env::var_os("NOWSERVING_SKIPPED_TESTS") else {
        return;
    };
    let file = OpenOptions::new().create(true).append(true).open(path);
    // Tests run side by side: each line is one write at the end.
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.expect("NOWSERVING_SKIPPED_TESTS names a file");
}

/// Skipped where there is no redis-server.
#[test]
fn rate_limits_are_measured_beside_an_echo_and_redis() {
    let named = std::env::var_os("REDIS_SERVER").filter(|named| !named.is_empty());
    let program = named.unwrap_or_else(|| "redis-server".into());
    if Command::new(program).arg("--version").output().is_err() {
        return skipped("redis-server is not found, neither in PATH nor by REDIS_SERVER");
    }
    let (report, said) = report(&["--limits", "--keys", "100", "--measure", "3s"]);
    assert_eq!(report["keys"], 100, "{said}");
    assert!(report["redis_server"].is_string(), "{said}");
    let names = ["echo", "check", "redis_fixed_window", "redis_gcra"];
    for cell in cells(&report, &names, &said) {
        let ratio = number(cell, "check_ratio");
        assert_eq!(ratio > 0.0, cell["what"] != "check", "{said}");
        assert!(
            cell["cpu_us"].is_null() || number(cell, "cpu_us") >= 0.0,
            "{said}"
        );
    }
}
