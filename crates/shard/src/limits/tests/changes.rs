//! Operators' changes are kept, on every node alike.

use super::*;

/// Of the world's state, in words.
fn changes(world: &World) -> Vec<String> {
    let words = |it: &LimitChange| {
        let what = match &it.what {
            Changed::Applied { version } => format!("applied {version}"),
            Changed::Deleted { version } => format!("deleted {version}"),
            Changed::Reset { descriptor } => format!("reset {descriptor}"),
        };
        let (domain, at) = (it.domain.as_str(), it.at_ms - START_MS);
        format!("{at} {domain}: {what}, {}, {}", it.by, it.reason)
    };
    world.state.limits().changes().iter().map(words).collect()
}

#[test]
fn what_operators_change_is_recorded() {
    let mut world = World::new();
    world.ahead_ms = 5;
    for command in [
        apply_rules("a", "1", None),
        apply_rules("a", "1", None),
        apply_rules("a", "2", Some(7)),
        Command::Limit(reset_of(ask(Algorithm::FixedWindow, "x").key)),
        delete_rules("none", None),
        delete_rules("a", None),
    ] {
        world.apply(command);
        world.now_ms += 10;
    }
    let expected = [
        "5 a: applied 1, ann, sale",
        "35 shop: reset ip=127.0.0.1, ann, a bug of ours",
        "55 a: deleted 2, , ",
    ];
    assert_eq!(changes(&world), expected);
}

#[test]
fn resets_do_not_push_out_changes_of_rules() {
    let mut world = World::new();
    world.apply(apply_rules("a", "1", None));
    let reset = Command::Limit(reset_of(ask(Algorithm::FixedWindow, "x").key));
    for _ in 0..=CHANGES_KEPT {
        world.apply(reset.clone());
    }
    let kept = changes(&world);
    assert_eq!(kept.len(), 1 + CHANGES_KEPT);
    assert_eq!(kept[0], "0 a: applied 1, ann, sale");
}
