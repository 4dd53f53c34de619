#![allow(clippy::unwrap_used)]
use tempfile::TempDir;

use super::*;
use crate::shards::test_rig::name;
use crate::shards::test_rig::{Rig, config, enter};
use nowserving_line::{Op, Settings};

fn maker(rig: &Rig, dir: &TempDir) -> Maker {
    let config = config(&[1], dir.path().to_owned());
    Maker {
        dir: dir.path().to_owned(),
        cluster: config.cluster,
        log: rig.log.clone(),
    }
}

fn entered(rig: &mut Rig, keys: std::ops::Range<u32>) {
    for key in keys {
        rig.write(enter(&key.to_string()));
        rig.turn();
    }
    // One that is refused, so that a refusal is met again in the log.
    rig.write(enter(""));
    rig.turn();
}

#[test]
fn the_state_made_from_disk_is_the_one_in_memory() {
    let mut rig = Rig::new(&[1]);
    rig.lead();
    let (line, settings) = (name("shop"), Settings::new(3, 2_000));
    rig.write(Op::Create { line, settings });
    rig.turn();
    let dir = tempfile::tempdir().unwrap();
    let maker = maker(&rig, &dir);
    // From nothing, then from the one before it and a log that was cut; over several reads.
    for keys in [0..10, 10..1_500] {
        entered(&mut rig, keys);
        let index = rig.shard.replica.applied();
        maker.make(0, index).unwrap();
        rig.log.compact(0, index).unwrap();
        let (header, state) = read(dir.path(), "test", 0).unwrap().unwrap();
        assert_eq!(header.index, index);
        assert_eq!(Some(header.term), rig.shard.replica.term_at(index));
        assert_eq!(header.voters, [1]);
        let in_memory = snapshot::encode(&header, &rig.shard.state);
        assert!(snapshot::encode(&header, &state) == in_memory);
    }
}

#[test]
fn a_log_with_a_gap_makes_none() {
    let mut rig = Rig::new(&[1]);
    rig.lead();
    entered(&mut rig, 0..10);
    let dir = tempfile::tempdir().unwrap();
    let index = rig.shard.replica.applied();
    rig.log.compact(0, index).unwrap();
    assert!(maker(&rig, &dir).make(0, index).is_err());
    assert!(read(dir.path(), "test", 0).unwrap().is_none());
}
