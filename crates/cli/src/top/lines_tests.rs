#![allow(clippy::unwrap_used)]
use std::time::{Duration, Instant};

use nowserving_client::{LineName, LineSummary};
use nowserving_insight::lines::{Known, Lines, Sort};

use crate::top::scenes;

fn names(lines: &[&Known]) -> Vec<String> {
    let names = lines.iter().map(|it| it.summary.line.to_string());
    names.collect()
}

fn three() -> Lines {
    let mut lines = Lines::default();
    let list = vec![
        scenes::summary("calm", "open", 10, 5),
        scenes::summary("Paused", "paused", 10, 1),
        scenes::summary("rush", "open", 10, 500),
    ];
    lines.take(list, false, vec![]);
    lines
}

#[test]
fn stuck_lines_come_first_and_then_the_fullest() {
    let lines = three();
    let sorted = |by, reverse| names(&lines.sorted(by, reverse, ""));
    assert_eq!(sorted(Sort::Pressure, false), ["Paused", "rush", "calm"]);
    assert_eq!(sorted(Sort::Pressure, true), ["calm", "rush", "Paused"]);
    assert_eq!(sorted(Sort::Waiting, false), ["rush", "calm", "Paused"]);
    assert_eq!(sorted(Sort::Name, false), ["Paused", "calm", "rush"]);
}

#[test]
fn filters_are_words_or_labels() {
    let lines = three();
    for (filter, found) in [
        ("", &["Paused", "calm", "rush"][..]),
        ("US", &["Paused", "rush"]),
        ("paused", &["Paused"]),
        ("us open", &["rush"]),
        ("city=Taipei us", &["Paused", "rush"]),
        ("city=t", &["Paused", "calm", "rush"]),
        ("city=Tokyo", &[]),
        ("taip", &["Paused", "calm", "rush"]),
    ] {
        assert_eq!(
            names(&lines.sorted(Sort::Name, false, filter)),
            found,
            "{filter}"
        );
    }
}

#[test]
fn a_line_keeps_its_details_until_it_is_another_one() {
    let (mut lines, start) = (three(), Instant::now());
    let list: Vec<LineSummary> = lines.all().map(|it| it.summary.clone()).collect();
    lines.take(list.clone(), false, vec![scenes::detail("rush", start)]);
    let name: LineName = "rush".parse().unwrap();
    assert_eq!(lines.get(&name).unwrap().pace, None);
    let later = start + Duration::from_secs(2);
    lines.take(list.clone(), true, vec![scenes::detail("rush", later)]);
    assert!(lines.get(&name).unwrap().pace.is_some() && lines.more);
    lines.take(list.clone(), false, vec![]);
    assert!(lines.get(&name).unwrap().pace.is_some());
    let mut again = list;
    again.retain(|it| it.line == name);
    again[0].incarnation += 1;
    lines.take(again, false, vec![]);
    assert!(lines.get(&name).unwrap().detail.is_none());
    assert_eq!(lines.all().count(), 1);
}

#[test]
fn a_gate_that_holds_nobody_back_is_known() {
    let mut lines = three();
    let list: Vec<LineSummary> = lines.all().map(|it| it.summary.clone()).collect();
    let mut details = ["calm", "rush"].map(|name| scenes::detail(name, Instant::now()));
    details[0].shown.settings.gate = "on".to_owned();
    details[1].shown.settings.gate = "shadow".to_owned();
    lines.take(list, false, details.into());
    let gates = lines.all().map(Known::open_gate);
    assert_eq!(gates.collect::<Vec<_>>(), [None, None, Some("shadow")]);
}

#[test]
fn orders_go_round() {
    let all = Sort::ALL;
    let mut sort = Sort::default();
    for _ in all {
        sort = sort.turned(1);
    }
    assert_eq!(sort, Sort::default());
    assert_eq!(sort.turned(-1), Sort::Name);
}
