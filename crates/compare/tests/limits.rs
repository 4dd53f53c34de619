//! `compare limits`, in short, on real processes: what it prints, not how fast it is. Not shorter than a slow machine may
//! stand still: something must be answered.

use std::process::Command;

use serde_json::Value;

fn median(cell: &Value, field: &str) -> f64 {
    cell[field]["median"].as_f64().unwrap_or_default()
}

/// Skipped where there is no redis-server.
#[test]
fn rate_limits_are_measured_beside_an_echo_and_redis() -> anyhow::Result<()> {
    let named = std::env::var_os("REDIS_SERVER").filter(|named| !named.is_empty());
    let program = named.unwrap_or_else(|| "redis-server".into());
    if Command::new(program).arg("--version").output().is_err() {
        let why = "redis-server is not found, neither in PATH nor by REDIS_SERVER";
        return nowserving_e2e::skipped("compare limits", why);
    }
    let output = Command::new(env!("CARGO_BIN_EXE_compare"))
        .args(["limits", "--json", "--rounds", "1", "--in-flight", "8"])
        .args(["--keys", "100", "--measure", "3s"])
        .output()?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let said = format!("{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(stdout.lines().count(), 1, "{said}");
    let report: Value = serde_json::from_str(&stdout).expect(&said);
    // A machine that stalls for seconds makes requests fail: that must show, in both places.
    let failures = report["failures"].as_object().expect(&said);
    assert_eq!(output.status.success(), failures.is_empty(), "{said}");
    assert_eq!(report["keys"], 100, "{said}");
    assert!(report["redis_server"].is_string(), "{said}");
    let cells = report["cells"].as_array().expect(&said);
    let names: Vec<_> = cells.iter().filter_map(|it| it["what"].as_str()).collect();
    let all = ["echo", "check", "redis_fixed_window", "redis_gcra"];
    assert_eq!(names, all, "{said}");
    for cell in cells {
        assert!(median(cell, "requests_per_s") > 0.0, "{said}");
        assert!(
            median(cell, "p99_us") >= median(cell, "median_us"),
            "{said}"
        );
        let ratio = median(cell, "check_ratio");
        assert_eq!(ratio > 0.0, cell["what"] != "check", "{said}");
        assert!(
            cell["cpu_us"].is_null() || median(cell, "cpu_us") >= 0.0,
            "{said}"
        );
    }
    Ok(())
}
