//! The memory that tokens and lines take, to the byte: what is allocated, whatever the allocator makes of it.

use std::collections::VecDeque;

use nowserving_line::{Limits, LineName, Lines, Op, Reply, Settings, Stamp};

/// More by so much fails: put the new number here if it is meant. Less by so much too, so that it stays the true one.
const MOST_PERCENT: i64 = 3;

const TOKEN_BYTES: i64 = 45;
const LINE_BYTES: i64 = 1_947;
/// What a line keeps of gone tokens, and its journal, are not counted here.
const LONG_LIVED_LINE_BYTES: i64 = 3_325;

struct Shard {
    lines: Lines,
    index: u64,
}

impl Shard {
    fn apply(&mut self, op: &Op) -> Reply {
        self.index += 1;
        let stamp = Stamp {
            index: self.index,
            op_no: 0,
            now_ms: 1_750_000_000_000 + self.index,
            wall_ms: 1_750_000_000_000 + self.index,
        };
        self.lines.apply(stamp, op, None).unwrap()
    }

    fn enter(&mut self, line: &LineName, nth: u64) -> Reply {
        self.apply(&Op::Enter {
            line: line.clone(),
            key: Some(format!("{nth:010}").into_bytes().into()),
            lane: None,
        })
    }

    /// One of the tokens gets the seat.
    fn line_with(&mut self, name: &str, tokens: u64) {
        let line = LineName::try_from(name).unwrap();
        let settings = Settings::new(1, 10_000_000);
        self.apply(&Op::Create {
            line: line.clone(),
            settings,
        });
        for token in 0..tokens {
            self.enter(&line, token);
        }
    }

    /// The same, and so many more enter, for each of which the one that has waited longest leaves.
    fn long_lived_line(&mut self, name: &str, tokens: u64, more: u64) {
        self.line_with(name, 1);
        let line = LineName::try_from(name).unwrap();
        let mut waiting = VecDeque::new();
        for nth in 1..tokens + more {
            if let Reply::Token(at) = self.enter(&line, nth) {
                waiting.push_back(at);
            }
            if waiting.len() as u64 >= tokens
                && let Some(at) = waiting.pop_front()
            {
                let line = line.clone();
                self.apply(&Op::Leave { line, at });
            }
        }
    }
}

fn shard(limits: Limits) -> Shard {
    Shard {
        lines: Lines::with_limits(limits),
        index: 0,
    }
}

/// What is in use after that, and was not before.
fn bytes_of(shard: &mut Shard, make: impl FnOnce(&mut Shard)) -> i64 {
    allocation_counter::measure(|| make(shard)).bytes_current
}

fn check(what: &str, bytes: i64, known: i64) {
    println!("{what}: {bytes} bytes");
    let (low, high) = (known * (100 - MOST_PERCENT), known * (100 + MOST_PERCENT));
    let range = low..=high;
    assert!(
        range.contains(&(bytes * 100)),
        "{what}: {bytes} bytes, not {known}: if that is meant, put the new number into tests/memory.rs"
    );
}

#[test]
fn tokens_and_lines_take_no_more_memory_than_known() {
    const TOKENS: i64 = 1_000_000;
    const LINES: i64 = 1_000;
    let mut crowd = shard(Limits::default());
    let crowd_bytes = bytes_of(&mut crowd, |shard| {
        shard.line_with("shop", TOKENS as u64 + 1)
    });
    drop(crowd);
    let mut many = shard(Limits::default());
    let lines_bytes = bytes_of(&mut many, |shard| {
        for line in 0..LINES {
            shard.line_with(&format!("line-{line:06}"), 11);
        }
    });
    let mut old = shard(Limits {
        gone_kept: 1,
        journal_kept: 1,
        ..Limits::default()
    });
    // As many as leave the most empty chunks behind.
    let (old_lines, more) = (10, 12_100);
    let old_bytes = bytes_of(&mut old, |shard| {
        for line in 0..old_lines {
            shard.long_lived_line(&format!("line-{line:06}"), 11, more);
        }
    });
    check("a token of a million", crowd_bytes / TOKENS, TOKEN_BYTES);
    check("a line with ten waiting", lines_bytes / LINES, LINE_BYTES);
    let old_bytes = old_bytes / old_lines;
    check("a long-lived line", old_bytes, LONG_LIVED_LINE_BYTES);
}
