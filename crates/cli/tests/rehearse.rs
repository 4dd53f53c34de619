//! `nowserving rehearse`: its summary, its files, its exit codes. What a rehearsal shows is tested
//! where it is made (`crates/rehearse`).

use std::process::{Command, Output};

use serde_json::Value;

fn rehearse(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nowserving"))
        .arg("rehearse")
        .args(words)
        .output()
        .expect("it starts")
}

fn one_line(output: &Output) -> Value {
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(&stdout).expect(&stdout)
}

#[test]
fn the_summary_is_one_line_and_follows_from_the_seed() {
    let words = ["--preset", "poc", "--shoppers", "2000", "--json", "--seed"];
    let first = rehearse(&[&words[..], &["7"]].concat());
    assert!(first.status.success(), "{first:?}");
    let summary = one_line(&first);
    for field in [
        "seat_held_percent",
        "seat_busy_percent",
        "overtakes",
        "over_limit_max",
        "wait_p50_ms",
        "wait_p99_ms",
        "eta_told_percent",
        "eta_within_15_percent",
        "eta_p90_coverage_percent",
        "completed",
    ] {
        assert!(summary[field].is_number(), "{field}: {summary}");
    }
    let gone = summary["gone"].as_object().expect("by reason").values();
    let gone: u64 = gone.filter_map(Value::as_u64).sum();
    let completed = summary["completed"].as_u64().unwrap_or_default();
    assert_eq!(completed + gone, 2_000, "{summary}");

    let again = rehearse(&[&words[..], &["7"]].concat());
    assert_eq!(first.stdout, again.stdout);
    let other = rehearse(&[&words[..], &["8"]].concat());
    assert_ne!(first.stdout, other.stdout);
}

#[test]
fn files_are_written_where_asked_and_it_says_where() {
    let dir = tempfile::tempdir().expect("a directory");
    let (csv, html) = (dir.path().join("run.csv"), dir.path().join("run.html"));
    let output = Command::new(env!("CARGO_BIN_EXE_nowserving"))
        .args(["rehearse", "--preset", "steady", "--shoppers", "500"])
        .args(["--compare", "naive", "--csv"])
        .arg(&csv)
        .arg("--html")
        .arg(&html)
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{output:?}");
    let table = std::fs::read_to_string(&csv).expect("the table");
    let article =
        "SN,SEED,SINCE,UNTIL,LIMIT,ITEMS,CHECKIN,ORDER,ABORTCHECKIN,ABORTQUEUE,NOENTRY,THREAD";
    assert!(table.starts_with(article), "{}", &table[..200]);
    let page = std::fs::read_to_string(&html).expect("the page");
    assert_eq!(page.matches("<figure>").count(), 7);
    let command = "nowserving rehearse --preset steady --shoppers 500 --compare naive --csv ";
    assert!(page.contains(command), "{page}");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.starts_with("100 seats: "), "{shown}");
    assert!(shown.contains("the article's"), "{shown}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    for path in [csv, html] {
        assert!(
            stderr.contains(&format!("wrote {}\n", path.display())),
            "{stderr}"
        );
    }
}

#[test]
fn durations_are_shown_in_words_and_a_file_does_not_mix_with_json() {
    let words = ["--preset", "steady", "--shoppers", "500"];
    let shown = rehearse(&words);
    let shown = String::from_utf8_lossy(&shown.stdout);
    let row = shown.lines().find(|line| line.contains("virtual time"));
    assert!(
        row.is_some_and(|row| row.contains(" min ") || row.contains(" h ")),
        "{shown}"
    );
    let dir = tempfile::tempdir().expect("a directory");
    let html = dir.path().join("run.html").display().to_string();
    let output = rehearse(&[&words[..], &["--json", "--html", &html]].concat());
    assert!(one_line(&output)["virtual_ms"].is_u64(), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains(&format!("wrote {html}\n")), "{stderr}");
}

#[test]
fn a_run_cut_off_by_its_duration_reports_the_shoppers_still_in_line() {
    let output = rehearse(&["--shoppers", "2000", "--until", "12s"]);
    assert!(output.status.success(), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("still in the line"), "{stderr}");
    let output = rehearse(&["--shoppers", "20"]);
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn every_lane_has_its_rows() {
    let lanes = [
        "--lane",
        "vip:boost=1m",
        "--lane",
        "normal",
        "--lane-mix",
        "1,4",
    ];
    let words = [&lanes[..], &["--shoppers", "2000", "--open-at", "20s"]].concat();
    let shown = rehearse(&words);
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.contains("lane vip: wait, median"), "{shown}");
    let summary = one_line(&rehearse(&[&words[..], &["--json"]].concat()));
    assert_eq!(summary["lanes"][1]["lane"], "normal", "{summary}");
    assert!(summary["lanes"][0]["wait_p99_ms"].is_number(), "{summary}");
}

#[test]
fn without_a_mix_every_lane_is_rehearsed_and_that_is_said() {
    let words = ["--shoppers", "2000", "--lane", "a", "--lane", "b", "--json"];
    let output = rehearse(&words);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("evenly over the 2 lanes"), "{stderr}");
    for lane in one_line(&output)["lanes"].as_array().expect("lanes") {
        let completed = lane["completed"].as_u64();
        assert!((800..=1_100).contains(&completed.unwrap_or(0)), "{lane}");
    }
    let output = rehearse(&[&words[..], &["--lane-mix", "1,1"]].concat());
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_dispatcher_can_be_rehearsed() {
    let words = [
        "--shoppers",
        "500",
        "--seats",
        "20",
        "--admission",
        "called",
    ];
    let rounds = ["--call-every", "2s", "--call-n", "5"];
    let summary = one_line(&rehearse(&[&words[..], &rounds, &["--json"]].concat()));
    let [calls, called] = ["calls", "called"].map(|field| summary[field].as_u64());
    assert!(calls > Some(100) && called > Some(400), "{summary}");
    let shown = rehearse(&words);
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.contains("calls of the dispatcher"), "{shown}");
}

#[test]
fn invalid_arguments_are_wrong_usage() {
    for words in [
        ["--seats", "0"],
        ["--shoppers", "0"],
        ["--watch-percent", "101"],
        ["--lane-mix", "1,1"],
        ["--open-at", "27h"],
        ["--transaction-rate", "0"],
        ["--call-after", "5s"],
        ["--call-n", "5"],
        ["--preset", "none"],
    ] {
        let output = rehearse(&[&words[..], &["--json"]].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert_eq!(
            one_line(&output)["error"]["code"],
            "bad_request",
            "{words:?}"
        );
    }
    let output = rehearse(&["--give-up-percent", "101"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("--give-up-percent: 0 to 100"), "{stderr}");
    let lanes = ["--lane", "a", "--lane", "b", "--lane-mix", "1"];
    let stderr = String::from_utf8_lossy(&rehearse(&lanes).stderr).into_owned();
    assert!(
        stderr.contains("--lane-mix: 1 part, but 2 lanes"),
        "{stderr}"
    );
    let output = rehearse(&["--shoppers", "5", "--csv", "/nowhere/at/all.csv"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("cannot write /nowhere/at/all.csv"),
        "{stderr}"
    );
    assert!(!stderr.contains("wrote"), "{stderr}");
}
