//! A node that has much to apply after its start.

use std::sync::Arc;

use nowserving_log::{LogStore as _, MemoryLog};
use nowserving_replica::{BOOTSTRAP_INDEX, EntryReader, Restored, SnapshotMeta, Write};
use nowserving_shard::command::{self, Command, EntryBuilder};
use nowserving_shard::state::State;
use raft::eraftpb::{Entry, HardState};

use super::rig::{BOOT, WALL_MS, config};
use crate::engine::{APPLIED_IN_TURN_MAX, Engine};
use crate::io::{Input, Now, RestoredShard};

const NOW: Now = Now {
    us: 1_000_000_000,
    wall_ms: WALL_MS,
};

/// A shard with so many committed entries in its log and no snapshot.
fn shard(log: &MemoryLog, shard: u32, entries: u64) -> RestoredShard {
    let entry = |index| {
        let mut builder = EntryBuilder::new(command::FORMAT);
        assert!(builder.push(Command::Stamp).is_none());
        let (_, bytes) = builder.finish(index, WALL_MS, 0);
        Entry {
            term: 1,
            index,
            data: bytes.into(),
            ..Entry::default()
        }
    };
    log.write(&[
        Write::bootstrap(shard, &[1]),
        Write {
            shard,
            number: 1,
            entries: (1..=entries)
                .map(|nth| entry(BOOTSTRAP_INDEX + nth))
                .collect(),
            hard_state: Some(HardState {
                term: 1,
                commit: BOOTSTRAP_INDEX + entries,
                ..HardState::default()
            }),
            must_sync: true,
            start: None,
        },
    ])
    .unwrap();
    RestoredShard {
        shard,
        restored: Restored {
            log: log.load(shard).unwrap(),
            snapshot: SnapshotMeta::default(),
        },
        state: State::new(),
        file: None,
    }
}

fn engine(entries: &[u64]) -> Engine {
    let log = Arc::new(MemoryLog::new());
    let shards = (0..)
        .zip(entries)
        .map(|(id, entries)| shard(&log, id, *entries));
    let shards = shards.collect();
    let reader: Arc<dyn EntryReader> = log;
    Engine::new(config(&[1]), BOOT, shards, &reader, NOW).unwrap()
}

fn turn(engine: &mut Engine) {
    engine.step(NOW, Input::EndTurn { inbox_empty: true });
}

fn applied(engine: &Engine) -> Vec<u64> {
    let applied = engine.shards().map(|it| it.replica.applied());
    applied.map(|index| index - BOOTSTRAP_INDEX).collect()
}

#[test]
fn a_turn_applies_a_part_of_a_long_log_and_the_next_is_due_at_once() {
    const ENTRIES: u64 = 30_000;
    let mut engine = engine(&[ENTRIES]);
    let mut turns = 0;
    while applied(&engine) != [ENTRIES] {
        let before = applied(&engine)[0];
        turn(&mut engine);
        turns += 1;
        let now = applied(&engine)[0];
        assert!(now > before && now - before < ENTRIES / 2, "{before} {now}");
        assert_eq!(engine.next_due() <= NOW.us, now < ENTRIES);
    }
    assert!(turns > 2);
}

#[test]
fn shards_take_turns_when_all_have_much_to_apply() {
    // Few enough to be read in one turn.
    const EACH: u64 = 1_000;
    let at_once = APPLIED_IN_TURN_MAX.div_ceil(EACH) as usize;
    let mut engine = engine(&vec![EACH; at_once + 2]);
    let first = [vec![EACH; at_once], vec![0; 2]].concat();
    turn(&mut engine);
    assert_eq!(applied(&engine), first);
    assert!(engine.next_due() <= NOW.us);
    turn(&mut engine);
    assert_eq!(applied(&engine), vec![EACH; at_once + 2]);
    // The shards before the one with which this turn began may have something new.
    assert!(engine.next_due() <= NOW.us);
    turn(&mut engine);
    assert!(engine.next_due() > NOW.us);
}
