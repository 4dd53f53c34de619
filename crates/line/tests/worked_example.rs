//! The worked example of the contract (docs/protocol/overview.md, "The four pointers"), row by row.

use crate::common::Shard;
use nowserving_line::{Limits, Refused, Settings};

fn row(shard: &Shard) -> (u64, u64, u64, u64) {
    let lane = shard.lane();
    (
        lane.done_through,
        lane.admitted_through,
        lane.accepts_through,
        lane.next_token,
    )
}

fn enter(shard: &mut Shard, times: u64) {
    for _ in 0..times {
        shard.enter().unwrap();
    }
}

#[test]
fn gives_exactly_the_table_of_the_contract() {
    let mut shard = Shard::with_shop(Limits::default(), Settings::new(7, 15));
    let position = |shard: &Shard, token| shard.status(token).position;
    assert_eq!(row(&shard), (0, 7, 22, 1), "creation");
    enter(&mut shard, 1);
    assert_eq!(row(&shard), (0, 7, 22, 2), "1 enter");
    enter(&mut shard, 1);
    assert_eq!(row(&shard), (0, 7, 22, 3), "2 enters");
    enter(&mut shard, 7);
    assert_eq!(row(&shard), (0, 7, 22, 10), "9 enters");
    assert_eq!(position(&shard, 7), None);
    assert_eq!(position(&shard, 8), Some(1));
    assert_eq!(position(&shard, 9), Some(2));
    shard.serve(3);
    assert_eq!(row(&shard), (0, 8, 23, 10), "token 3 completes");
    shard.serve(2);
    assert_eq!(row(&shard), (0, 9, 24, 10), "token 2 completes");
    shard.serve(1);
    assert_eq!(row(&shard), (3, 10, 25, 10), "token 1 completes");
    enter(&mut shard, 9);
    assert_eq!(row(&shard), (3, 10, 25, 19), "9 more enter");
    assert_eq!(position(&shard, 18), Some(8));
    enter(&mut shard, 7);
    assert_eq!(row(&shard), (3, 10, 25, 26), "7 more enter");
    assert_eq!(shard.enter(), Err(Refused::LineFull));
    assert_eq!(row(&shard), (3, 10, 25, 26), "one more: refused");
    shard.leave(15).unwrap();
    assert_eq!(row(&shard), (3, 10, 26, 26), "token 15 leaves");
    assert_eq!(position(&shard, 18), Some(7));
}
