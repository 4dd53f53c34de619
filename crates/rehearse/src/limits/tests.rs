#![allow(clippy::unwrap_used)]

use super::*;

fn row(limit: &str) -> LimitRow {
    let rows = limit_rows().unwrap();
    rows.into_iter().find(|row| row.limit == limit).unwrap()
}

#[test]
fn only_a_fixed_window_lets_twice_as_many_through_around_its_edge() {
    let fixed = row("fixed_window");
    assert_eq!((fixed.of_burst, fixed.most_in_a_minute), (120, 120));
    let log = row("sliding_window_log");
    assert_eq!((log.of_burst, log.most_in_a_minute), (60, 60));
    let counter = row("sliding_window_counter");
    assert!((60..=70).contains(&counter.most_in_a_minute), "{counter:?}");
}

#[test]
fn a_bucket_lets_its_burst_through_and_then_the_rate() {
    // What drips in during the ten seconds of the burst comes on top.
    for (limit, burst) in [
        ("token_bucket, burst 60", 60),
        ("token_bucket, burst 10", 10),
    ] {
        let bucket = row(limit);
        assert!(
            (burst + 9..=burst + 10).contains(&bucket.of_burst),
            "{bucket:?}"
        );
        assert_eq!(bucket.longest_delay_ms, 0);
    }
    let leaking = row("leaking_bucket, burst 60");
    assert!(
        leaking.most_in_a_second <= 2 && leaking.most_in_a_minute <= 61,
        "{leaking:?}"
    );
    assert!(
        (59_000..=60_000).contains(&leaking.longest_delay_ms),
        "{leaking:?}"
    );
}

#[test]
fn under_steady_overload_all_let_about_the_limit_through() {
    for row in limit_rows().unwrap() {
        assert!((115..=180).contains(&row.of_overload), "{row:?}");
        assert_eq!(row.cells().len(), LimitRow::HEADER.split(", ").count());
    }
}

#[test]
fn pictures_stand_alone_and_are_the_same_each_time() {
    let pictures = limit_pictures().unwrap();
    assert_eq!(pictures.len(), limit_rows().unwrap().len() + 1);
    for picture in &pictures {
        assert!(picture.svg.starts_with("<svg width="), "{}", picture.file);
        assert!(picture.svg.contains("prefers-color-scheme:dark"));
        assert_eq!(picture.svg.matches("</svg>").count(), 1);
    }
    assert_eq!(pictures, limit_pictures().unwrap());
}
