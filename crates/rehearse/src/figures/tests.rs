use super::*;

#[test]
fn no_peak_is_lost_in_a_picture() {
    let spiky = |no: u32| f64::from(if no == 7_001 { 99 } else { no % 2 });
    let points: Points = (0..10_000).map(|no| (f64::from(no), spiky(no))).collect();
    let kept = thinned(points.clone());
    assert!(kept.len() <= 2 * COLUMNS + 2, "{}", kept.len());
    assert!(kept.contains(&(7_001.0, 99.0)));
    assert_eq!((kept.first(), kept.last()), (points.first(), points.last()));
    assert!(kept.is_sorted_by(|a, b| a.0 < b.0), "in order");
    assert_eq!(thinned(points[..100].to_vec()), points[..100]);
    assert!(thinned(Vec::new()).is_empty());
}

#[test]
fn times_are_shown_in_a_unit_that_fits() {
    let names = [1, 179_999, 180_000, 4_711_000, 90_000_000, 604_800_000];
    let names = names.map(|ms| Unit::of(ms).name);
    let minutes = "minutes";
    assert_eq!(
        names,
        ["seconds", "seconds", minutes, minutes, "hours", "days"]
    );
    assert_eq!(Unit::of(4_711_000).value(120_000), 2.0);
}
