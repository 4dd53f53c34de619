//! Log entries and snapshots to bytes and back: an entry of 1,000 enters, snapshots of 100,000 tokens in one line and of
//! 6,250 lines with eleven tokens each; and the entries of these lines applied anew.
//!
//! Prints the shortest of many runs: to compare two builds, run them in turn on a quiet machine.
#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;

use nowserving_line::{LineName, Op, Settings};
use nowserving_shard::command::{self, Command, Entry, EntryBuilder, FORMAT};
use nowserving_shard::requests::{Origin, RequestId};
use nowserving_shard::snapshot::{self, Header};
use nowserving_shard::state::State;

fn line() -> LineName {
    LineName::try_from("shop-1").unwrap()
}

fn enters(first: u64) -> Entry {
    let commands = (first..first + 1_000).map(|n| {
        let enter = Op::Enter {
            line: line(),
            key: Some(format!("order-{n:012}").as_bytes().into()),
            lane: None,
        };
        let id = RequestId {
            key: u128::from(n) << 60,
            origin: Origin::Client,
        };
        Command::Once(id, Box::new(Command::Line(enter)))
    });
    Entry {
        now_ms: first,
        wall_ms: 1_800_000_000_000 + first,
        commands: commands.collect(),
        ..Entry::default()
    }
}

fn state() -> State {
    let mut state = State::default();
    let create = Entry {
        commands: vec![Command::Line(Op::Create {
            line: line(),
            settings: Settings::new(100, 1_000_000),
        })],
        ..Entry::default()
    };
    state.apply_entry(1, &create, &mut ());
    for n in 0..100 {
        state.apply_entry(2 + n, &enters(n * 1_000), &mut ());
    }
    state
}

fn many_lines() -> Vec<Entry> {
    let line = |n: u64| LineName::try_from(format!("bench-{n}").as_str()).unwrap();
    let (first_ms, lines) = (1_800_000_000_000, 6_250_u64);
    let creates = (0..lines).map(|n| {
        Command::Line(Op::Create {
            line: line(n),
            settings: Settings::new(1, 10_000_000),
        })
    });
    let enters = (0..11 * lines).map(|n| {
        Command::Line(Op::Enter {
            line: line(n % lines),
            key: Some(format!("{n:010}").as_bytes().into()),
            lane: None,
        })
    });
    let all: Vec<_> = (0..).zip(creates.chain(enters)).collect();
    let entries = all.chunks(16).map(|few| {
        let commands = few.iter().cloned().map(|(n, command)| {
            let id = RequestId {
                key: u128::from(n * 0x9e37_79b9_7f4a_7c15_u64) << 60,
                origin: Origin::Client,
            };
            Command::Once(id, Box::new(command))
        });
        Entry {
            now_ms: first_ms + few[0].0,
            wall_ms: first_ms + few[0].0,
            commands: commands.collect(),
            ..Entry::default()
        }
    });
    entries.collect()
}

fn apply(entries: &[Vec<u8>]) -> State {
    let mut state = State::default();
    for (index, bytes) in (1..).zip(entries) {
        let entry = command::decode(bytes, FORMAT).unwrap();
        state.apply_entry(index, &entry, &mut ());
    }
    state
}

fn measure<T>(name: &str, times: u32, mut run: impl FnMut() -> T) {
    let mut best = f64::MAX;
    for _ in 0..times {
        let start = Instant::now();
        black_box(run());
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{name:24} {:10.1} us", best * 1e6);
}

fn main() {
    let entry = enters(0);
    let bytes = command::encode(&entry);
    println!("entry of 1,000 enters: {} bytes", bytes.len());
    measure("entry encode", 300, || {
        let mut builder = EntryBuilder::new(FORMAT);
        for command in entry.commands.iter().cloned() {
            assert!(builder.push(command).is_none());
        }
        builder.finish(1, 1, 0)
    });
    measure("entry decode", 300, || {
        command::decode(&bytes, FORMAT).unwrap()
    });
    let state = state();
    let header = Header {
        cluster: "prod".to_owned(),
        ..Header::default()
    };
    let file = snapshot::encode(&header, &state);
    println!("snapshot of 100,000 tokens: {} bytes", file.len());
    measure("snapshot encode", 30, || snapshot::encode(&header, &state));
    let file = bytes::Bytes::from(file);
    measure("snapshot decode", 30, || {
        snapshot::decode(file.clone(), FORMAT, "prod", 0).unwrap()
    });
    measure("hash of a part", 300, || snapshot::hash_part(&state, 1));
    let entries: Vec<_> = many_lines().iter().map(command::encode).collect();
    measure("entries of lines applied", 10, || apply(&entries));
    let state = apply(&entries);
    let file = snapshot::encode(&header, &state);
    println!("snapshot of 6,250 lines: {} bytes", file.len());
    measure("snapshot encode", 30, || snapshot::encode(&header, &state));
    let file = bytes::Bytes::from(file);
    measure("snapshot decode", 30, || {
        snapshot::decode(file.clone(), FORMAT, "prod", 0).unwrap()
    });
}
