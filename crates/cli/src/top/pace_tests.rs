#![allow(clippy::unwrap_used)]
use std::time::Duration;

use std::time::Instant;

use nowserving_insight::pace::{Detail, Pace};

use crate::top::scenes;

fn counts(detail: &mut Detail, issued: u64, waiting: u64, gone: [u64; 3]) {
    let [completed, left, moved] = gone;
    let counts = &mut detail.shown.counts;
    counts.issued = issued;
    counts.waiting = waiting;
    counts.gone = [("completed", completed), ("left", left), ("moved", moved)]
        .map(|(reason, count)| (reason.to_owned(), count))
        .into();
    let from_waiting = [("left", left), ("moved", moved)]
        .map(|(reason, count)| (reason.to_owned(), count))
        .into();
    counts.gone_from = [("waiting".to_owned(), from_waiting)].into();
}

#[test]
fn rates_are_differences_over_the_time_between() {
    let start = Instant::now();
    let mut before = scenes::detail("shop-1", start);
    counts(&mut before, 100, 40, [50, 3, 2]);
    let mut after = scenes::detail("shop-1", start + Duration::from_secs(2));
    // 20 numbers, 2 of them for tokens that were moved; 10 admitted; 8 completed; 4 left while they waited.
    counts(&mut after, 120, 44, [58, 7, 4]);
    let pace = Pace::between(&before, &after).unwrap();
    assert_eq!(
        pace,
        Pace {
            entered: 9.0,
            admitted: 5.0,
            done: 4.0
        }
    );
    after.shown.incarnation += 1;
    assert_eq!(Pace::between(&before, &after), None);
    assert_eq!(Pace::between(&before, &before), None);
}
