//! Random appends, truncations, compactions, purges and crashes, against a log that is a list of entries. The log in memory takes the
//! same steps.

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Once};

use nowserving_replica::{ConfState, LogState, SnapshotMeta, Write};
use proptest::prelude::*;
use proptest::sample::Index as Draw;
use raft::eraftpb::{Entry, HardState};

use crate::damage_tests::copy;
use crate::files::Files;
use crate::recover::recover;
use crate::synced::Synced;
use crate::test_disk::{Fault, TestDisk, folder};
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
        /// At first only if it is short.
        if_short: bool,
    },
    Start {
        shard: u32,
        ahead: u64,
    },
    Compact {
        shard: u32,
        kept: u64,
    },
    Purge,
    /// The process is killed, or the power goes.
    Restart {
        power: bool,
    },
    /// An operation of the disk fails, after so many others: perhaps in the next start.
    Fault {
        after: u64,
        fault: Fault,
    },
    /// A bit of what was synced flips, and is put right after it was found.
    Flip {
        segment: Draw,
        at: Draw,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let write = (
        0..SHARDS,
        0..4_u64,
        0..6_u64,
        0..300_usize,
        any::<[bool; 2]>(),
    );
    prop_oneof![
        16 => write.prop_map(|(shard, replaced, entries, bytes, [sync, if_short])| Step::Write {
            // The last one is mostly idle: its entries keep old segments alive.
            shard: if shard == 2 && bytes < 250 { 0 } else { shard },
            replaced,
            entries,
            bytes,
            sync,
            if_short,
        }),
        1 => (0..SHARDS, 0..20_u64).prop_map(|(shard, ahead)| Step::Start { shard, ahead }),
        6 => (0..2_u32, 0..6_u64).prop_map(|(shard, kept)| Step::Compact { shard, kept }),
        4 => Just(Step::Purge),
        4 => any::<bool>().prop_map(|power| Step::Restart { power }),
        4 => (0..12_u64, fault()).prop_map(|(after, fault)| Step::Fault { after, fault }),
        2 => any::<(Draw, Draw)>().prop_map(|(segment, at)| Step::Flip { segment, at }),
    ]
}

/// They are told by thousands, and not worth printing.
fn expect_failed_syncs() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let expected = info.payload_as_str();
            if !expected.is_some_and(|it| it.ends_with("could not be synced: injected")) {
                print(info);
            }
        }));
    });
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::Failure),
        Just(Fault::NoRoom),
        Just(Fault::Full),
        Just(Fault::Power)
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
    files: Arc<Files>,
    log: Option<DiskLog>,
    /// The one in memory has to have the same.
    memory: MemoryLog,
    /// What the log may have after a crash, oldest first; the last one is what it has without.
    states: Vec<Model>,
    /// Makes every write another one.
    count: u64,
    /// How often the log was opened.
    starts: u64,
    /// The disk was full: then the record of what is synced may be behind.
    was_full: bool,
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

    /// Has the log do something, after which it may have `next`. If that fails, so does the process.
    fn attempt(&mut self, next: Model, act: impl Fn(&dyn LogStore) -> Result<(), LogError>) {
        self.states.push(next);
        let log = self.log.as_ref().unwrap();
        match catch_unwind(AssertUnwindSafe(|| act(log))) {
            Ok(Ok(())) => act(&self.memory).unwrap(),
            _ => self.restart_after_fault(),
        }
    }

    fn write(&mut self, write: Write, if_short: bool) {
        let mut next = self.model().clone();
        apply(&mut next, &write);
        let starts = self.starts;
        let (before, writes) = (self.model().clone(), std::slice::from_ref(&write));
        self.attempt(next, |log| {
            if if_short {
                if log.write_if_short(writes)? {
                    return Ok(());
                }
                assert_eq!(Run::read(log), before);
            }
            log.write(writes)
        });
        if write.must_sync && starts == self.starts {
            self.states.drain(..self.states.len() - 1);
        }
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
                if_short,
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
                let write = Write {
                    shard,
                    number: self.count,
                    entries: (before + 1..=before + entries).map(entry).collect(),
                    hard_state: Some(hard_state),
                    must_sync: sync,
                    start: None,
                };
                self.write(write, if_short);
            }
            Step::Start { shard, ahead } => {
                let write = Write {
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
                };
                self.write(write, false);
            }
            Step::Compact { shard, kept } => self.compact(shard, state, kept),
            Step::Purge => self.purge(),
            Step::Restart { power } => self.restart(power),
            Step::Fault { after, fault } => {
                self.was_full |= fault == Fault::Full;
                self.files.disk.fail(after, fault);
            }
            Step::Flip { segment, at } => self.flip(segment, at),
        }
        assert_eq!(Run::read(self.log()), *self.model());
        assert_eq!(Run::read(&self.memory), *self.model());
    }

    fn compact(&mut self, shard: u32, state: LogState, kept: u64) {
        let through = state.last_index.saturating_sub(kept);
        let mut next = self.model().clone();
        if let Some((state, entries)) = next.get_mut(&shard)
            && through > state.compact_index
        {
            let dropped = entries.drain(..(through - state.compact_index) as usize);
            state.compact_term = dropped.last().unwrap().term;
            state.compact_index = through;
        }
        self.attempt(next, |log| log.compact(shard, through));
    }

    /// One that fails leaves the log as good as before, unless a sync failed.
    fn purge(&mut self) {
        let purged = catch_unwind(AssertUnwindSafe(|| self.log().purge().map(drop)));
        if !matches!(purged, Ok(Ok(()))) && (purged.is_err() || self.power_is_gone()) {
            self.restart_after_fault();
        }
    }

    fn power_is_gone(&self) -> bool {
        self.files.disk.failed() == Some(Fault::Power)
    }

    fn restart_after_fault(&mut self) {
        let failed = self.files.disk.failed();
        assert!(failed.is_some(), "it fails without a reason");
        let power = self.power_is_gone();
        self.files.disk.mend();
        self.restart(power);
    }

    fn restart(&mut self, power: bool) {
        self.log = None;
        if power {
            self.files.disk.mend();
            self.files.disk.crash(&self.dir);
        }
        self.open();
    }

    /// The log has one of the states again that it may have.
    fn open(&mut self) {
        let files = self.files.clone();
        files.room.set_on_full(None);
        let opened = catch_unwind(|| DiskLog::open_with(files.clone(), &self.dir, &OPTIONS));
        let log = match opened {
            Ok(Ok(log)) => log,
            failed => {
                let injected = files.disk.failed();
                let full = injected == Some(Fault::NoRoom);
                assert!(injected.is_some(), "{:?}", failed.map(Result::err));
                assert!(
                    !full || self.starts == 0,
                    "it does not start on a full disk"
                );
                let power = self.power_is_gone();
                files.disk.mend();
                return self.restart(power);
            }
        };
        log.wait_for_room(Some(Box::new(move || {
            files.disk.mend();
        })));
        let found = Run::read(&log);
        assert!(self.states.contains(&found), "{found:?}");
        self.memory = MemoryLog::new();
        for (shard, (state, entries)) in &found {
            self.memory.put(*shard, state.clone(), entries.clone());
        }
        self.states = vec![found];
        self.log = Some(log);
        self.starts += 1;
    }

    fn flip(&mut self, segment: Draw, at: Draw) {
        let found = recover(&self.dir).unwrap();
        let synced = Synced::read(&self.dir).unwrap().unwrap();
        let numbers = found.segments.iter().map(|it| it.number);
        if self.was_full && numbers.clone().next_back() > Some(synced.segment) {
            return;
        }
        assert_eq!(numbers.clone().next_back(), Some(synced.segment));
        let ends = found.segments.iter().skip(1).map(|it| it.previous_end);
        let segments: Vec<_> = numbers.zip(ends.chain([synced.end])).collect();
        let (number, end) = *segment.get(&segments);
        let copied = self.dir.with_extension("copy");
        copy(&self.dir, &copied);
        let file = crate::recover::path(&copied, number);
        let mut bytes = fs::read(&file).unwrap();
        bytes[at.index(end as usize)] ^= 1 << (self.count % 8);
        fs::write(file, bytes).unwrap();
        let refused = DiskLog::open(&copied, &OPTIONS).map(drop);
        assert!(matches!(refused, Err(LogError::Lost { .. })), "{refused:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(1_000)
    })]

    /// Thousands of restarts, most of them after a fault.
    #[test]
    fn the_log_is_a_list_of_entries(
        random: u64,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let dir = folder();
        let dir = dir.path().join("log");
        let disk = TestDisk::of(&dir, random);
        let mut run = Run {
            dir,
            files: Arc::new(Files {
                disk,
                ..Files::default()
            }),
            log: None,
            memory: MemoryLog::new(),
            states: vec![Model::new()],
            count: 0,
            starts: 0,
            was_full: false,
        };
        expect_failed_syncs();
        run.open();
        steps.iter().for_each(|step| run.step(step));
    }
}
