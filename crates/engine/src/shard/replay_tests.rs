//! A node that has much to apply after its start.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use nowserving_line::Op;
use nowserving_log::{LogStore as _, MemoryLog};
use nowserving_replica::{BOOTSTRAP_INDEX, EntryReader, Restored, Write};
use nowserving_shard::command::{self, Command, EntryBuilder};
use raft::eraftpb::{Entry, HardState};

use crate::engine::{Engine, WORK_IN_TURN_MAX};
use crate::io::{Input, Now, RestoredShard};
use crate::rig::{BOOT, WALL_MS, config};

const NOW: Now = Now {
    us: 1_000_000_000,
    wall_ms: WALL_MS,
};

/// A shard with so many committed entries of this command in its log and no snapshot.
fn shard(log: &MemoryLog, shard: u32, entries: u64, command: &Command) -> RestoredShard {
    let entry = |index| {
        let mut builder = EntryBuilder::new(command::FORMAT);
        assert!(builder.push(command.clone()).is_none());
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
            ..Restored::default()
        },
        ..RestoredShard::default()
    }
}

fn engine(entries: &[u64], command: &Command) -> Engine {
    let log = Arc::new(MemoryLog::new());
    let shards = (0..)
        .zip(entries)
        .map(|(id, entries)| shard(&log, id, *entries, command));
    let shards = shards.collect();
    let reader: Arc<dyn EntryReader> = log;
    Engine::new(config(&[1]), BOOT, shards, &reader, NOW).unwrap()
}

fn turn(engine: &mut Engine) {
    engine.step(NOW, Input::EndTurn { inbox_empty: true }, &mut Vec::new());
}

fn applied(engine: &Engine) -> Vec<u64> {
    let applied = engine.shards().map(|it| it.replica.applied());
    applied.map(|index| index - BOOTSTRAP_INDEX).collect()
}

#[test]
fn a_turn_applies_a_part_of_a_long_log_and_the_next_is_due_at_once() {
    const ENTRIES: u64 = 30_000;
    let mut engine = engine(&[ENTRIES], &Command::Stamp);
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
    // An entry counts, and so does its command: as much as one turn applies.
    const EACH: u64 = WORK_IN_TURN_MAX as u64 / 2;
    let mut engine = engine(&[EACH; 3], &Command::Stamp);
    for expected in [[EACH, 0, 0], [EACH, EACH, 0], [EACH; 3]] {
        turn(&mut engine);
        assert_eq!(applied(&engine), expected);
        // The shards before the one with which this turn began may have something new.
        assert!(engine.next_due() <= NOW.us);
    }
    turn(&mut engine);
    assert!(engine.next_due() > NOW.us);
}

#[test]
fn a_turn_is_bounded_by_the_work_in_its_entries() {
    const TOKENS: usize = 1_000;
    let touch = Op::Touch {
        line: "shop".parse().unwrap(),
        incarnation: 1,
        tokens: vec![(0, 1, 1); TOKENS],
    };
    // Few enough bytes for raft to hand them out at once.
    const ENTRIES: u64 = 20;
    let mut engine = engine(&[ENTRIES], &touch.into());
    let at_once = WORK_IN_TURN_MAX.div_ceil(TOKENS + 2) as u64;
    for nth in 1..=ENTRIES.div_ceil(at_once) {
        turn(&mut engine);
        let expected = ENTRIES.min(nth * at_once);
        assert_eq!(applied(&engine), [expected]);
        assert_eq!(engine.next_due() <= NOW.us, expected < ENTRIES);
    }
}
