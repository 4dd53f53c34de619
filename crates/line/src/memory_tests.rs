//! Memory follows those who are in line, not the numbers issued: needs a look inside.
#![allow(clippy::unwrap_used)]

use crate::{LineName, Lines, Op, Settings, Stamp, TokenRef};

const ISSUED: u64 = 3_000_000;
/// How many of those who come are in line at once.
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

/// Token 1 keeps the only seat and token 2 the first place, for ever; millions give up behind them.
#[test]
fn who_never_leaves_keeps_nothing_alive() {
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
    assert_eq!(lane.live.len(), in_line);
    assert_eq!(line.keys.len(), in_line);
    assert!(lane.waiting.chunks() <= 12, "{}", lane.waiting.chunks());
    // Room is given back once less than a quarter of it is used, but for some in each chunk.
    let room = lane.waiting.room();
    assert!(room <= 4 * in_line + 12 * 8, "{room}");
    assert!(line.gone.len() <= crate::GONE_KEPT);
    assert!(shop.lines.background.is_empty());
}
