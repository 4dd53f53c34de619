#![allow(clippy::unwrap_used)]
use nowserving_protocol::keys::KeyPrint;
use proptest::prelude::*;

use super::*;

fn request(change: MembersChange) -> MembersRequest {
    MembersRequest {
        change,
        if_version: None,
        by: "ops".to_owned(),
        reason: "test".to_owned(),
    }
}

fn of_three() -> MembersState {
    let mut state = MembersState::default();
    state.apply(
        &MembersCommand::Begin {
            nodes: vec![3, 1, 2],
            cluster_id: 8,
        },
        0,
    );
    state
}

fn make(state: &mut MembersState, change: MembersChange) -> Result<MembersChanged, MembersRefused> {
    state
        .apply(&MembersCommand::Request(request(change)), 5)
        .unwrap()
}

fn ids(state: &MembersState) -> Vec<u64> {
    state.wanted.nodes.keys().copied().collect()
}

#[test]
fn a_number_is_never_used_again() {
    let mut state = of_three();
    let added = make(&mut state, MembersChange::Add { disk_id: 40 }).unwrap();
    assert_eq!((added.version, added.id), (2, Some(4)));
    make(&mut state, MembersChange::Remove { id: 4 }).unwrap();
    let replaced = MembersChange::Replace { id: 2, disk_id: 50 };
    assert_eq!(make(&mut state, replaced).unwrap().id, Some(5));
    assert_eq!(ids(&state), [1, 3, 5]);
    assert!(state.wanted.was_removed(4) && !state.wanted.was_removed(6));
}

#[test]
fn a_repeated_request_has_one_effect_and_one_answer() {
    for change in [
        MembersChange::Add { disk_id: 40 },
        MembersChange::Remove { id: 2 },
        MembersChange::Replace { id: 2, disk_id: 40 },
        MembersChange::Drain {
            id: 2,
            drained: true,
        },
        MembersChange::Prefer {
            shards: vec![0, 3],
            to: Some(2),
        },
    ] {
        let mut state = of_three();
        let mut conditional = request(change.clone());
        conditional.if_version = Some(1);
        let conditional = MembersCommand::Request(conditional);
        let first = state.apply(&conditional, 5).unwrap();
        let after = state.wanted.clone();
        assert_eq!(state.apply(&conditional, 6).unwrap(), first, "{change:?}");
        assert_eq!(make(&mut state, change), first);
        assert_eq!(state.wanted, after);
        let recorded: Vec<_> = state.changes().collect();
        assert_eq!(recorded.len(), 1);
        assert_eq!(
            (recorded[0].at_ms, recorded[0].request.by.as_str()),
            (5, "ops")
        );
    }
}

#[test]
fn refusals_change_nothing() {
    let mut of_seven = MembersState::default();
    of_seven.apply(
        &MembersCommand::Begin {
            nodes: (1..=7).collect(),
            cluster_id: 8,
        },
        0,
    );
    let mut of_one = MembersState::default();
    of_one.apply(
        &MembersCommand::Begin {
            nodes: vec![1],
            cluster_id: 8,
        },
        0,
    );
    let mut with_disk = of_three();
    make(&mut with_disk, MembersChange::Add { disk_id: 40 }).unwrap();
    for (state, change, refused) in [
        (
            &mut of_seven,
            MembersChange::Add { disk_id: 9 },
            MembersRefused::TooMany,
        ),
        (
            &mut of_one,
            MembersChange::Remove { id: 1 },
            MembersRefused::Last(1),
        ),
        (
            &mut of_three(),
            MembersChange::Remove { id: 9 },
            MembersRefused::NoMember(9),
        ),
        (
            &mut with_disk,
            MembersChange::Replace { id: 1, disk_id: 40 },
            MembersRefused::DiskInUse(4),
        ),
        (
            &mut of_three(),
            MembersChange::Prefer {
                shards: vec![1],
                to: Some(8),
            },
            MembersRefused::NoMember(8),
        ),
    ] {
        let before = state.wanted.clone();
        assert_eq!(make(state, change), Err(refused));
        assert_eq!(state.wanted, before);
    }
    let mut late = request(MembersChange::Remove { id: 1 });
    late.if_version = Some(7);
    let refused = of_three().apply(&MembersCommand::Request(late), 0);
    assert_eq!(refused, Some(Err(MembersRefused::Version(1))));
}

#[test]
fn a_copy_is_taken_only_if_it_is_newer() {
    let mut state = MembersState::default();
    let newer = Members {
        version: 4,
        ..Members::begin(&[1, 5], 0)
    };
    state.apply(&MembersCommand::Adopt(newer.clone()), 0);
    for older in [1, 4] {
        let older = Members {
            version: older,
            ..Members::begin(&[1, 2], 0)
        };
        state.apply(&MembersCommand::Adopt(older), 0);
    }
    let begin = MembersCommand::Begin {
        nodes: vec![9],
        cluster_id: 1,
    };
    state.apply(&begin, 0);
    let of_another_cluster = Members {
        version: 9,
        cluster_id: 9,
        ..newer.clone()
    };
    state.apply(&MembersCommand::Adopt(of_another_cluster), 0);
    assert_eq!(state.wanted, newer);
}

#[test]
fn a_number_that_no_member_had_was_not_removed() {
    let mut members = Members {
        next_id: 6,
        ..Members::begin(&[1, 3], 0)
    };
    let removed: Vec<u64> = (0..8).filter(|id| members.was_removed(*id)).collect();
    assert_eq!(removed, [4, 5]);
    members.nodes.remove(&3);
    assert!(members.was_removed(3) && !members.was_removed(2));
}

fn rotation(to: u8, from: u8, old_until_ms: u64) -> Rotation {
    let print = |id: u8| KeyPrint {
        id,
        fingerprint: u64::from(id) + 70,
    };
    Rotation {
        current: print(to),
        old: print(from),
        old_until_ms,
    }
}

#[test]
fn the_key_only_becomes_newer_and_the_old_ones_time_can_be_changed() {
    let mut state = of_three();
    let mut rotate = |to, from, until| {
        let change = MembersChange::RotateKey(rotation(to, from, until));
        let result = make(&mut state, change).map(|it| it.version);
        (result, state.wanted.rotation)
    };
    assert_eq!(rotate(2, 1, 50), (Ok(2), Some(rotation(2, 1, 50))));
    assert_eq!(rotate(2, 1, 50), (Ok(2), Some(rotation(2, 1, 50))));
    // A leaked key is void at once. Who asks for it may take the key in force for the old one.
    assert_eq!(rotate(2, 2, 9), (Ok(3), Some(rotation(2, 1, 9))));
    let refused = Err(MembersRefused::KeyNotNewer(1, 2));
    assert_eq!(rotate(1, 2, 99), (refused, Some(rotation(2, 1, 9))));
    // What the state knows counts.
    assert_eq!(rotate(5, 1, 99), (Ok(4), Some(rotation(5, 2, 99))));
    let mut other = of_three();
    other.apply(&MembersCommand::Adopt(state.wanted.clone()), 0);
    assert_eq!(other.wanted, state.wanted);
}

fn change() -> impl Strategy<Value = MembersChange> {
    let id = || 1_u64..12;
    let disk = || 1_u64..20;
    prop_oneof![
        disk().prop_map(|disk_id| MembersChange::Add { disk_id }),
        id().prop_map(|id| MembersChange::Remove { id }),
        (id(), disk()).prop_map(|(id, disk_id)| MembersChange::Replace { id, disk_id }),
        (id(), any::<bool>()).prop_map(|(id, drained)| MembersChange::Drain { id, drained }),
        (
            prop::collection::vec(0_u32..4, 1..3),
            prop::option::of(id())
        )
            .prop_map(|(shards, to)| MembersChange::Prefer { shards, to }),
        any::<[u8; 2]>().prop_map(|[to, from]| MembersChange::RotateKey(rotation(
            to,
            from,
            to.into()
        ))),
    ]
}

proptest! {
    /// After any requests: 1 to 7 members, no number or disk twice, preferences name members, and each
    /// change of the version is recorded.
    #[test]
    fn any_requests_leave_members_that_make_sense(changes in prop::collection::vec(change(), 1..60)) {
        let mut state = of_three();
        let mut given: Vec<u64> = vec![1, 2, 3];
        for change in changes {
            let (before, next_id) = (state.wanted.clone(), state.wanted.next_id);
            let result = make(&mut state, change);
            let now = &state.wanted;
            prop_assert!((1..=MEMBERS_MAX).contains(&now.nodes.len()));
            for id in now.nodes.keys().filter(|id| !before.nodes.contains_key(id)) {
                prop_assert!(*id == next_id && !given.contains(id));
                given.push(*id);
            }
            prop_assert!(now.preferred.values().all(|id| now.nodes.contains_key(id)));
            let disks: Vec<u64> = now.nodes.values().map(|it| it.disk_id).filter(|it| *it > 0).collect();
            let distinct: std::collections::BTreeSet<_> = disks.iter().collect();
            prop_assert_eq!(distinct.len(), disks.len());
            match result {
                Ok(done) => prop_assert_eq!(done.version, now.version),
                Err(_) => prop_assert_eq!(now, &before),
            }
            let changed = *now != before;
            prop_assert_eq!(now.version, before.version + u64::from(changed));
            prop_assert_eq!(Members::from_bytes(&now.to_bytes()), Some(now.clone()));
        }
        let newest = state.changes().last().map_or(1, |it| it.version);
        prop_assert_eq!(newest, state.wanted.version);
    }
}
