//! Rotations of the cluster's key, at the leader of shard 0.

use nowserving_protocol::error::Code;
use nowserving_protocol::keys::{KeyPrint, Rotation};
use nowserving_shard::command::FORMAT;
use nowserving_shard::members::MembersChange;

use super::members::{answers, ask, commit, of_three};
use super::rig::{Rig, WALL_MS};
use crate::io::Input;

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

/// All nodes have loaded key 1.
fn with_keys() -> Rig {
    let mut rig = of_three();
    rig.input(Input::Keys(vec![key(1)]));
    for peer in [2, 3] {
        rig.entry_formats.insert(peer, FORMAT);
        says(&mut rig, peer, vec![key(1)]);
    }
    rig
}

fn says(rig: &mut Rig, peer: u64, keys: Vec<KeyPrint>) {
    rig.keys.insert(peer, keys);
    rig.hears(peer, "", Vec::new());
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
    let refused = rig.engine.check_rotation(&mut rotation).err();
    refused.map_or(String::new(), |it| it.to_string())
}

#[test]
fn a_key_is_put_in_force_once_all_members_have_loaded_it() {
    let mut rig = with_keys();
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
    let before = rig.engine.key_status().unwrap();
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
    let status = rig.engine.key_status().unwrap();
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
    assert!(rig.engine.key_status().unwrap().old_is_over);
}
