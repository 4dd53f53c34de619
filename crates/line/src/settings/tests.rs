use super::*;

fn patch(seats: u32, queue_limit: u32) -> SettingsPatch {
    SettingsPatch {
        seats: Some(Change::Set(seats)),
        queue_limit: Some(Change::Set(queue_limit)),
        ..SettingsPatch::default()
    }
}

#[test]
fn the_required_two_and_defaults() {
    let made = Settings::create(&patch(7, 15));
    assert_eq!(made, Ok(Settings::new(7, 15)));
    let none = Settings::create(&SettingsPatch::default());
    assert_eq!(none.map_err(|e| e.field), Err("seats"));
    let unset = SettingsPatch {
        queue_limit: Some(Change::Unset),
        ..patch(1, 0)
    };
    assert_eq!(
        Settings::create(&unset).map_err(|e| e.field),
        Err("queue_limit")
    );
    assert_eq!(unset.validate().map_err(|e| e.field), Err("queue_limit"));
}

#[test]
fn the_ends_of_every_range() {
    for (seats, queue_limit, ok) in [
        (0, 0, false),
        (1, 0, true),
        (SEATS_MAX, QUEUE_LIMIT_MAX, true),
        (SEATS_MAX + 1, 0, false),
        (1, QUEUE_LIMIT_MAX + 1, false),
        (u32::MAX, u32::MAX, false),
    ] {
        assert_eq!(patch(seats, queue_limit).validate().is_ok(), ok);
    }
    for (timeout_ms, ok) in [
        (0, false),
        (99, false),
        (100, true),
        (TIMEOUT_MS_MAX, true),
        (TIMEOUT_MS_MAX + 1, false),
        (u64::MAX, false),
    ] {
        let mut p = patch(1, 0);
        p.checkout_max_ms = Some(Change::Set(timeout_ms));
        assert_eq!(p.validate().is_ok(), ok, "{timeout_ms}");
    }
}

#[test]
fn labels_are_few_and_short() {
    let labels = |n: usize, name: usize, value: usize| SettingsPatch {
        labels: Some(Change::Set(
            (0..n)
                .map(|i| (format!("{i:0name$}"), "v".repeat(value)))
                .collect(),
        )),
        ..SettingsPatch::default()
    };
    assert!(labels(16, 64, 64).validate().is_ok());
    assert!(labels(17, 4, 4).validate().is_err());
    assert!(labels(1, 65, 1).validate().is_err());
    assert!(labels(1, 1, 65).validate().is_err());
    let empty = [(String::new(), String::new())].into();
    let empty = SettingsPatch {
        labels: Some(Change::Set(empty)),
        ..SettingsPatch::default()
    };
    assert!(empty.validate().is_err());
}

#[test]
fn unset_goes_back_to_the_default() {
    let mut p = patch(3, 4);
    p.claim_timeout_ms = Some(Change::Set(5_000));
    p.token_events = Some(Change::Set(false));
    let Ok(set) = Settings::create(&p) else {
        panic!("valid")
    };
    let back = SettingsPatch {
        claim_timeout_ms: Some(Change::Unset),
        token_events: Some(Change::Unset),
        ..SettingsPatch::default()
    };
    assert_eq!(set.with(&back), Ok(Settings::new(3, 4)));
}
