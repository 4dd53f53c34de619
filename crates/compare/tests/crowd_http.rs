//! `compare crowd-http`, in short, on real processes: what it counts, not how fast it is.

use std::process::Command;

use serde_json::Value;

#[test]
fn a_crowd_before_two_gateways_balances_its_books() -> anyhow::Result<()> {
    let args = ["--visitors", "50", "--seats", "5", "--for", "10s"];
    let (report, said) = report("crowd", &args)?;
    let crowd = &report["crowd"];
    assert_eq!(crowd["troubles"]["count"], 0, "{said}");
    assert_eq!(crowd["events"].as_array().map(Vec::len), Some(4), "{said}");
    Ok(())
}

#[test]
fn watchers_come_back_and_admitted_visitors_are_let_in() -> anyhow::Result<()> {
    for (part, args) in [
        (
            "streams",
            [
                "--watchers",
                "60",
                "--leader-watchers",
                "30",
                "--moves",
                "1",
            ]
            .as_slice(),
        ),
        ("checks", &["--holders", "10", "--measure", "1s"]),
    ] {
        let (report, said) = report(part, args)?;
        let (streams, checks) = (&report["streams"], &report["checks"]);
        match part {
            "streams" => {
                let killed = &streams["gateway_killed"];
                assert_eq!(
                    (&streams["open"], &streams["moves"]["heard"]),
                    (&60.into(), &60.into()),
                    "{said}"
                );
                assert_eq!(
                    (&killed["broke"], &killed["missing"]),
                    (&30.into(), &0.into()),
                    "{said}"
                );
                assert_eq!(streams["leader_killed"]["watchers"], 30, "{said}");
            }
            _ => {
                let rows = checks["rows"].as_array().expect(&said);
                assert!(rows.iter().all(|row| row["refused"] == 0), "{said}");
            }
        }
    }
    Ok(())
}

/// The report of one part, which went well, and all that it said.
fn report(part: &str, args: &[&str]) -> anyhow::Result<(Value, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_compare"))
        .args(["crowd-http", part, "--json"])
        .args(args)
        .output()?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let said = format!("{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&stdout).expect(&said);
    assert!(
        output.status.success() && report["is_well"] == true,
        "{said}"
    );
    Ok((report, said))
}
