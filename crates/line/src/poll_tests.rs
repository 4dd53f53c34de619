//! What a poll reads: needs a look inside.
#![allow(clippy::unwrap_used)]

use crate::waiting::WORDS_READ;
use crate::{Line, LineName, Lines, Op, Poll, Settings, Stamp, TokenRef};

const WAITING: u64 = 10_000;

/// A line with one seat, held by token 1; the tokens after it wait.
fn crowd(position_cap: Option<u32>) -> Lines {
    let line = LineName::try_from("shop").unwrap();
    let settings = Settings {
        position_cap,
        ..Settings::new(1, 10_000_000)
    };
    let create = Op::Create {
        line: line.clone(),
        settings,
    };
    let enter = Op::Enter {
        line,
        key: None,
        lane: None,
    };
    let mut lines = Lines::new();
    for index in 0..=WAITING + 1 {
        let stamp = Stamp {
            index,
            op_no: 0,
            now_ms: index,
            wall_ms: 0,
        };
        let op = if index == 0 { &create } else { &enter };
        lines.apply(stamp, op, None).unwrap();
    }
    lines
}

fn last(line: &Line) -> TokenRef {
    line.token_ref(0, WAITING + 1)
}

/// Polls the last token and counts the words that were read to list holes.
fn poll(lines: &Lines, want_holes: bool) -> (Poll, usize) {
    let line = lines.iter().next().unwrap();
    WORDS_READ.set(0);
    let poll = line.poll(last(line), lines.now_ms(), want_holes).unwrap();
    (poll, WORDS_READ.get())
}

#[test]
fn a_poll_reads_the_bitmap_only_if_it_asks_for_holes() {
    let lines = crowd(None);
    let (answer, read) = poll(&lines, false);
    assert_eq!(
        (answer.status.position, answer.holes),
        (Some(WAITING), None)
    );
    assert_eq!(read, 0);
    let (answer, read) = poll(&lines, true);
    assert_eq!(answer.holes, Some(Some(Vec::new())));
    assert!(read as u64 >= WAITING / 64, "{read}");
}

#[test]
fn holes_that_would_reveal_a_capped_position_are_not_even_looked_for() {
    let lines = crowd(Some(100));
    let (answer, read) = poll(&lines, true);
    assert!(answer.status.position_capped);
    assert_eq!((answer.holes, read), (Some(None), 0));
}
