//! The scenarios of `contract/` about one watcher, for whom no cluster is needed. `tests/e2e` runs the others.

use serde_json::Value;

use super::*;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contract");

/// The fields of one over those that the scenario has for all.
fn laid_over<T: serde::de::DeserializeOwned>(common: &Value, own: &Value) -> T {
    let mut fields = common.as_object().unwrap().clone();
    fields.extend(own.as_object().unwrap().clone());
    serde_json::from_value(fields.into()).unwrap()
}

fn run(scenario: &Value, name: &str) {
    let (mut view, now) = (View::default(), Instant::now());
    for (nth, step) in (1..).zip(scenario["steps"].as_array().unwrap()) {
        match step["do"].as_str().unwrap() {
            "watcher.status" => {
                let status = laid_over(&scenario["status"], &step["with"]["status"]);
                view.status(status, now);
            }
            "watcher.board" => {
                let board = laid_over(&scenario["board"], &step["with"]["board"]);
                view.event(&FeedEvent::Board(Arc::new(board)), now);
            }
            other => panic!("{name}, step {nth}: {other} is unknown"),
        }
        let position = view.last.as_ref().and_then(|last| last.position);
        let asks = view.next_poll_at <= now + RESYNC_SPREAD;
        for (field, expected) in step["expect"].as_object().unwrap() {
            let found = match field.as_str() {
                "position" => Value::from(position),
                "asks" => Value::from(asks),
                other => panic!("{name}, step {nth}: {other} is unknown"),
            };
            assert_eq!(&found, expected, "{name}, step {nth}: {field}");
        }
    }
}

#[test]
fn a_watcher_keeps_the_contract() {
    let mut ran = 0;
    for entry in std::fs::read_dir(FOLDER).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|it| it != "json") {
            continue;
        }
        let scenario: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let first = scenario["steps"][0]["do"].as_str().unwrap();
        if first.starts_with("watcher.") {
            run(&scenario, &path.file_stem().unwrap().to_string_lossy());
            ran += 1;
        }
    }
    assert_ne!(ran, 0, "no scenarios in {FOLDER}");
}
