//! Random appends, truncations, compactions, purges and crashes, against a log that is a list of entries. The log in memory takes the
//! same steps.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use nowserving_replica::{ConfState, LogState, SnapshotMeta, Write};
use proptest::prelude::*;
use proptest::sample::Index as Draw;
use raft::eraftpb::{Entry, HardState};

use crate::damage_tests::{copy, files_of, newest_segment};
use crate::recover::recover;
use crate::synced::Synced;
use crate::{DiskLog, LogError, LogOptions, LogStore, MemoryLog};

const SHARDS: u32 = 3;
const OPTIONS: LogOptions = LogOptions {
    segment_bytes: 2 << 10,
    bytes_max: 8 << 10,
};

#[derive(Clone, Debug)]
enum Step {
    /// Some entries of a size, in place of the last ones.
    Write {
        shard: u32,
        replaced: u64,
        entries: u64,
        bytes: usize,
        sync: bool,
    },
    Start {
        shard: u32,
        ahead: u64,
    },
    Compact {
        shard: u32,
        kept: u64,
    },
    /// The next write finds the disk full when half of it is there; then there is room.
    Full,
    Purge,
    Reopen,
    /// The power goes. What was not synced is there up to a byte; zeros follow, or garbage.
    Crash {
        at: Draw,
        garbage: bool,
    },
    /// A bit of what was synced flips, and is put right after it was found.
    Flip {
        file: Draw,
        at: Draw,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let write = (0..SHARDS, 0..4_u64, 0..6_u64, 0..300_usize, any::<bool>());
    prop_oneof![
        16 => write.prop_map(|(shard, replaced, entries, bytes, sync)| Step::Write {
            // The last one is mostly idle: its entries keep old segments alive.
            shard: if shard == 2 && bytes < 250 { 0 } else { shard },
            replaced,
            entries,
            bytes,
            sync,
        }),
        1 => (0..SHARDS, 0..20_u64).prop_map(|(shard, ahead)| Step::Start { shard, ahead }),
        6 => (0..2_u32, 0..6_u64).prop_map(|(shard, kept)| Step::Compact { shard, kept }),
        1 => Just(Step::Full),
        4 => Just(Step::Purge),
        2 => Just(Step::Reopen),
        3 => any::<(Draw, bool)>().prop_map(|(at, garbage)| Step::Crash { at, garbage }),
        2 => any::<(Draw, Draw)>().prop_map(|(file, at)| Step::Flip { file, at }),
    ]
}

type Model = BTreeMap<u32, (LogState, Vec<Entry>)>;

fn apply(model: &mut Model, write: &Write) {
    let (state, entries) = model.entry(write.shard).or_default();
    if let Some(start) = &write.start {
        *state = LogState {
            start: start.clone(),
            compact_index: start.index,
            compact_term: start.term,
            last_index: start.index,
            ..LogState::default()
        };
        entries.clear();
    }
    if let Some(first) = write.entries.first() {
        entries.truncate((first.index - state.compact_index - 1) as usize);
        entries.extend_from_slice(&write.entries);
    }
    state.last_index = state.compact_index + entries.len() as u64;
    state.hard_state = write.hard_state.clone().unwrap_or_default();
}

struct Run {
    dir: PathBuf,
    log: Option<DiskLog>,
    /// The one in memory has to have the same.
    memory: MemoryLog,
    /// What the log may have after a crash, oldest first; the last one is what it has without.
    states: Vec<Model>,
    /// Makes every write another one.
    count: u64,
}

impl Run {
    fn log(&self) -> &DiskLog {
        self.log.as_ref().unwrap()
    }

    fn model(&self) -> &Model {
        self.states.last().unwrap()
    }

    fn read(log: &dyn LogStore) -> Model {
        let shard = |shard| {
            let state = log.load(shard).unwrap();
            let (low, high) = (state.compact_index + 1, state.last_index + 1);
            let entries = match low < high {
                true => log.entries(shard, low, high, u64::MAX).unwrap(),
                false => Vec::new(),
            };
            (shard, (state, entries))
        };
        let all = (0..SHARDS).map(shard);
        all.filter(|(_, found)| *found != Default::default())
            .collect()
    }

    fn write(&mut self, write: Write) {
        let mut next = self.model().clone();
        apply(&mut next, &write);
        self.log().write(std::slice::from_ref(&write)).unwrap();
        self.memory.write(std::slice::from_ref(&write)).unwrap();
        if write.must_sync {
            self.states.clear();
        }
        self.states.push(next);
    }

    fn step(&mut self, step: &Step) {
        self.count += 1;
        let term = 1 + self.count;
        let hard_state = HardState {
            term,
            vote: self.count % 3,
            commit: self.count,
            ..HardState::default()
        };
        let (state, _) = match step {
            Step::Write { shard, .. } | Step::Start { shard, .. } | Step::Compact { shard, .. } => {
                self.model().get(shard).cloned().unwrap_or_default()
            }
            _ => Default::default(),
        };
        match *step {
            Step::Write {
                shard,
                replaced,
                entries,
                bytes,
                sync,
            } => {
                let before = state.last_index.saturating_sub(replaced);
                let before = before.max(state.compact_index);
                let entry = |index| Entry {
                    term,
                    index,
                    data: vec![index as u8; bytes].into(),
                    context: vec![7; bytes % 3].into(),
                    ..Entry::default()
                };
                self.write(Write {
                    shard,
                    number: self.count,
                    entries: (before + 1..=before + entries).map(entry).collect(),
                    hard_state: Some(hard_state),
                    must_sync: sync,
                    start: None,
                });
            }
            Step::Start { shard, ahead } => self.write(Write {
                shard,
                number: self.count,
                entries: Vec::new(),
                hard_state: Some(hard_state),
                must_sync: true,
                start: Some(SnapshotMeta {
                    index: state.compact_index + 1 + ahead,
                    term,
                    conf_state: ConfState::of_voters(&[1, 2]),
                }),
            }),
            Step::Compact { shard, kept } => self.compact(shard, state, kept),
            Step::Full => self.log().files.faults.full.store(true, Relaxed),
            Step::Purge => {
                self.log().purge().unwrap();
            }
            Step::Reopen => {
                self.log = None;
                self.open();
            }
            Step::Crash { at, garbage } => self.crash(at, garbage),
            Step::Flip { file, at } => self.flip(file, at),
        }
        if self.log.is_some() {
            assert_eq!(Run::read(self.log()), *self.model());
            assert_eq!(Run::read(&self.memory), *self.model());
        }
    }

    fn compact(&mut self, shard: u32, state: LogState, kept: u64) {
        let through = state.last_index.saturating_sub(kept);
        self.log().compact(shard, through).unwrap();
        self.memory.compact(shard, through).unwrap();
        let mut next = self.model().clone();
        if let Some((state, entries)) = next.get_mut(&shard)
            && through > state.compact_index
        {
            let dropped = entries.drain(..(through - state.compact_index) as usize);
            state.compact_term = dropped.last().unwrap().term;
            state.compact_index = through;
        }
        self.states.push(next);
    }

    /// The log has one of the states again that it may have.
    fn open(&mut self) {
        let log = DiskLog::open(&self.dir, &OPTIONS).unwrap();
        let files = log.files.clone();
        log.wait_for_room(Some(Box::new(move || {
            files.faults.full.store(false, Relaxed);
        })));
        let found = Run::read(&log);
        assert!(self.states.contains(&found), "{found:?}");
        self.memory = MemoryLog::new();
        for (shard, (state, entries)) in &found {
            self.memory.put(*shard, state.clone(), entries.clone());
        }
        self.states = vec![found];
        self.log = Some(log);
    }

    fn synced_end(&self) -> (u64, usize) {
        let recovered = recover(&self.dir).unwrap();
        let newest = recovered.segments.last().unwrap();
        let synced = Synced::read(&self.dir).unwrap().unwrap();
        assert_eq!(synced.segment, newest.number);
        (synced.end, recovered.end)
    }

    fn crash(&mut self, at: Draw, garbage: bool) {
        let (synced, end) = self.synced_end();
        self.log = None;
        let file = newest_segment(&self.dir);
        let mut bytes = fs::read(&file).unwrap();
        let from = synced as usize + at.index(end - synced as usize + 1);
        match garbage {
            true => bytes[from..end].iter_mut().for_each(|byte| *byte ^= 0x5a),
            false => bytes[from..].fill(0),
        }
        fs::write(&file, bytes).unwrap();
        self.open();
    }

    fn flip(&mut self, file: Draw, at: Draw) {
        let (synced, _) = self.synced_end();
        let copied = self.dir.with_extension("copy");
        copy(&self.dir, &copied);
        let files = files_of(&copied, "segment");
        let file = file.get(&files);
        let mut bytes = fs::read(file).unwrap();
        let used = match *file == newest_segment(&copied) {
            true => synced as usize,
            false => end_of(&copied, file),
        };
        bytes[at.index(used)] ^= 1 << (self.count % 8);
        fs::write(file, bytes).unwrap();
        let refused = DiskLog::open(&copied, &OPTIONS).map(drop);
        assert!(matches!(refused, Err(LogError::Lost { .. })), "{refused:?}");
    }
}

/// Where the last batch of an older segment ends.
fn end_of(dir: &Path, file: &Path) -> usize {
    let segments = recover(dir).unwrap().segments;
    let mut pairs = segments.iter().zip(&segments[1..]);
    let is_it = |number| crate::recover::path(dir, number) == *file;
    let (_, next) = pairs.find(|(it, _)| is_it(it.number)).unwrap();
    next.previous_end as usize
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(24)
    })]

    #[test]
    fn the_log_is_a_list_of_entries(steps in prop::collection::vec(step(), 1..100)) {
        let dir = tempfile::tempdir().unwrap();
        let mut run = Run {
            dir: dir.path().join("log"),
            log: None,
            memory: MemoryLog::new(),
            states: vec![Model::new()],
            count: 0,
        };
        run.open();
        steps.iter().for_each(|step| run.step(step));
    }
}
