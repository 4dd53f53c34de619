//! Rotations of the cluster's key, at the leader of shard 0.
#![allow(clippy::unwrap_used)]

use nowserving_protocol::admin::KeyStatus;
use nowserving_protocol::error::Code;
use nowserving_protocol::keys::{KeyPrint, Rotation};
use nowserving_shard::command::{FORMAT, FORMAT_MIN};
use nowserving_shard::members::MembersChange;

use super::members_tests::{answers, ask, commit, of_three};
use crate::io::Input;
use crate::rig::{Rig, WALL_MS};

/// The key with this id.
fn key(id: u8) -> KeyPrint {
    KeyPrint {
        id,
        fingerprint: 1_000 + u64::from(id),
    }
}

/// As a request has it.
fn rotate(to: u8, old_until_ms: u64) -> MembersChange {
    MembersChange::RotateKey(Rotation {
        current: KeyPrint {
            id: to,
            fingerprint: 0,
        },
        old: KeyPrint::default(),
        old_until_ms,
    })
}

/// All nodes have loaded key 1; node 3 reads log entries up to this format.
fn with_keys(format: u32) -> Rig {
    let mut rig = of_three();
    rig.input(Input::Keys(vec![key(1)]));
    for (peer, format) in [(2, FORMAT), (3, format)] {
        rig.entry_formats.insert(peer, format);
        says(&mut rig, peer, vec![key(1)]);
    }
    rig
}

fn says(rig: &mut Rig, peer: u64, keys: Vec<KeyPrint>) {
    rig.keys.insert(peer, keys);
    rig.hears(peer, "", Vec::new());
}

fn key_status(rig: &Rig) -> KeyStatus {
    let engine = &rig.engine;
    let status = engine.keys.status(&engine.membership.wanted, rig.wall_ms);
    status.unwrap()
}

/// The text of the refusal of a rotation to key 2.
fn refused(rig: &mut Rig) -> String {
    let mut rotation = Rotation {
        current: KeyPrint {
            id: 2,
            fingerprint: 0,
        },
        old: KeyPrint::default(),
        old_until_ms: 0,
    };
    let engine = &rig.engine;
    let (wanted, clocks) = (&engine.membership.wanted, &engine.ctx.clocks);
    let checked = engine.keys.check_rotation(&mut rotation, wanted, clocks);
    let refused = checked.err();
    refused.map_or(String::new(), |it| it.to_string())
}

#[test]
fn a_key_is_put_in_force_once_all_members_have_loaded_it() {
    let mut rig = with_keys(FORMAT);
    assert!(refused(&mut rig).starts_with("key 2 is not loaded by node 1:"));
    rig.input(Input::Keys(vec![key(1), key(2)]));
    assert!(refused(&mut rig).starts_with("key 2 is not loaded by node 2, node 3:"));
    let another = KeyPrint {
        id: 2,
        fingerprint: 5,
    };
    says(&mut rig, 2, vec![key(1), key(2)]);
    says(&mut rig, 3, vec![key(1), another]);
    assert!(refused(&mut rig).starts_with("key 2 is not loaded by node 3:"));
    ask(&mut rig, rotate(2, WALL_MS + 60_000), 1);
    assert_eq!(answers(&mut rig), [Err(Code::MembersRefused)]);
    says(&mut rig, 3, vec![key(1), key(2)]);
    let before = key_status(&rig);
    assert_eq!(
        (before.in_force, before.next, before.old),
        (1, Some(2), None)
    );

    ask(&mut rig, rotate(2, WALL_MS + 60_000), 2);
    commit(&mut rig);
    rig.turn();
    let version = rig.state().members().wanted().version;
    assert_eq!(answers(&mut rig), [Ok(version)]);
    let rotation = Rotation {
        current: key(2),
        old: key(1),
        old_until_ms: WALL_MS + 60_000,
    };
    assert_eq!(rig.state().members().wanted().rotation, Some(rotation));
    assert_eq!(rig.engine.membership.wanted.rotation, Some(rotation));
    let status = key_status(&rig);
    assert_eq!(
        (status.in_force, status.next, status.old),
        (2, None, Some(1))
    );
    assert!(!status.old_is_over);
    let changes = rig.engine.members_changes(rig.now).changes;
    let last = changes.last().unwrap();
    assert_eq!(
        (last.op.as_str(), last.request.key_id),
        ("rotate_key", Some(2))
    );

    // It leaked: void at once. A node that has another key by now, or none, does not matter.
    says(&mut rig, 3, vec![key(2)]);
    ask(&mut rig, rotate(2, WALL_MS), 3);
    commit(&mut rig);
    rig.turn();
    ask(&mut rig, rotate(1, WALL_MS), 4);
    assert_eq!(
        answers(&mut rig),
        [Ok(version + 1), Err(Code::MembersRefused)]
    );
    assert!(key_status(&rig).old_is_over);
}

#[test]
fn a_group_with_an_older_member_keeps_its_key() {
    let mut rig = with_keys(FORMAT_MIN);
    rig.input(Input::Keys(vec![key(1), key(2)]));
    for peer in [2, 3] {
        says(&mut rig, peer, vec![key(1), key(2)]);
    }
    ask(&mut rig, rotate(2, WALL_MS), 1);
    commit(&mut rig);
    assert_eq!(answers(&mut rig), [Err(Code::Unavailable)]);
    assert_eq!(rig.state().members().wanted().rotation, None);
}
