//! The memory that tokens and lines take, to the byte: what is allocated, whatever the allocator makes of it.

use nowserving_line::{LineName, Lines, Op, Settings, Stamp};

/// More by so much fails: put the new number here if it is meant. Less by so much too, so that it stays the true one.
const MOST_PERCENT: i64 = 3;

const TOKEN_BYTES: i64 = 45;
const LINE_BYTES: i64 = 1_947;

struct Shard {
    lines: Lines,
    index: u64,
}

impl Shard {
    fn apply(&mut self, op: &Op) {
        self.index += 1;
        let stamp = Stamp {
            index: self.index,
            op_no: 0,
            now_ms: 1_750_000_000_000 + self.index,
            wall_ms: 1_750_000_000_000 + self.index,
        };
        self.lines.apply(stamp, op, None).unwrap();
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
            self.apply(&Op::Enter {
                line: line.clone(),
                key: Some(format!("{token:010}").into_bytes().into()),
                lane: None,
            });
        }
    }
}

fn shard() -> Shard {
    Shard {
        lines: Lines::new(),
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
    let mut crowd = shard();
    let crowd_bytes = bytes_of(&mut crowd, |shard| {
        shard.line_with("shop", TOKENS as u64 + 1)
    });
    drop(crowd);
    let mut many = shard();
    let lines_bytes = bytes_of(&mut many, |shard| {
        for line in 0..LINES {
            shard.line_with(&format!("line-{line:06}"), 11);
        }
    });
    check("a token of a million", crowd_bytes / TOKENS, TOKEN_BYTES);
    check("a line with ten waiting", lines_bytes / LINES, LINE_BYTES);
}
