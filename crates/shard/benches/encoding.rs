//! Log entries and snapshots to bytes and back: an entry of 1,000 enters, a snapshot of 100,000 tokens.
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
}
