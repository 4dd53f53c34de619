//! Costs that only a look inside shows: memory follows the tokens in line, not the numbers issued, and a poll reads
//! no more than it was asked for.
#![allow(clippy::unwrap_used)]

use crate::bits::Bits;
use crate::waiting::WORDS_READ;
use crate::{Line, LineName, Lines, Op, Poll, Settings, Stamp, Token, TokenRef};

const ISSUED: u64 = 3_000_000;
/// For how many entrants a token stays in line.
const STAY: u64 = 300;

struct Shop {
    lines: Lines,
    line: LineName,
    index: u64,
}

impl Shop {
    fn apply(&mut self, op: &Op) {
        self.index += 1;
        let stamp = Stamp {
            index: self.index,
            op_no: 0,
            now_ms: self.index,
            wall_ms: 0,
        };
        self.lines.apply(stamp, op, None).unwrap();
    }

    fn enter(&mut self, key: u64) {
        self.apply(&Op::Enter {
            line: self.line.clone(),
            key: Some(key.to_be_bytes().into()),
            lane: None,
        });
    }

    fn leave(&mut self, token: u64) {
        let incarnation = self.lines.get(&self.line).unwrap().incarnation;
        let at = TokenRef {
            incarnation,
            lane: 0,
            token,
        };
        let line = self.line.clone();
        self.apply(&Op::Leave { line, at });
    }
}

/// Token 1 keeps the only seat and token 2 the first place, for ever; millions of tokens give up behind them.
#[test]
fn a_token_that_never_leaves_keeps_no_others_in_memory() {
    let line = LineName::try_from("shop").unwrap();
    let mut shop = Shop {
        lines: Lines::new(),
        line: line.clone(),
        index: 0,
    };
    let settings = Settings::new(1, 1_000);
    shop.apply(&Op::Create { line, settings });
    for token in 1..=ISSUED {
        shop.enter(token);
        if token > STAY + 2 {
            shop.leave(token - STAY);
        }
        if token % 10_000 == 0 {
            check_sizes(&shop);
        }
    }
    let line = shop.lines.get(&shop.line).unwrap();
    let lane = &line.board(0).lanes[0];
    assert_eq!((lane.done_through, lane.admitted_through), (0, 1));
    assert_eq!(lane.next_token, ISSUED + 1);
    let last = line.status(line.token_ref(0, ISSUED), 0).unwrap();
    assert_eq!(last.position, Some(STAY + 1));
}

fn check_sizes(shop: &Shop) {
    let line = shop.lines.get(&shop.line).unwrap();
    let in_line = usize::try_from(STAY).unwrap() + 2;
    let lane = &line.lanes[0];
    assert_eq!(lane.live_count(), in_line as u64);
    assert_eq!(line.keys.len(), in_line);
    assert!(lane.waiting.chunks() <= 12, "{}", lane.waiting.chunks());
    // Memory is given back once less than a quarter of it is used, except for a few slots in each chunk.
    let slots = lane.waiting.time_slots();
    assert!(slots <= 4 * in_line + 12 * 8, "{slots}");
    assert!(line.gone.len() <= crate::GONE_KEPT);
    assert!(shop.lines.background.is_empty());
}

const WAITING: u64 = 10_000;

/// A large line that is closed or deleted ends its tokens from the front, and looks for the next one each time.
#[test]
fn the_first_token_is_found_without_a_look_at_those_that_are_gone() {
    let line = LineName::try_from("shop").unwrap();
    let mut shop = Shop {
        lines: Lines::new(),
        line: line.clone(),
        index: 0,
    };
    let settings = Settings::new(1, 10_000_000);
    shop.apply(&Op::Create { line, settings });
    (1..=WAITING).for_each(|token| shop.enter(token));
    let gone = WAITING / 5 * 2;
    (2..=gone).for_each(|token| shop.leave(token));
    let waiting = &shop.lines.get(&shop.line).unwrap().lanes[0].waiting;
    WORDS_READ.set(0);
    let first = waiting.range(0..Token::MAX).next();
    assert_eq!(first.map(|(token, _)| token), Some(gone + 1));
    assert_eq!(WORDS_READ.get(), Bits::WORDS);
}

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
