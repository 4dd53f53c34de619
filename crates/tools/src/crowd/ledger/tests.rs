#![allow(clippy::unwrap_used)]
//! The checks must be able to fail: each fault is fed in once, and counted once.

use super::*;

const SEATS: u32 = 2;

fn s(seconds: u64) -> At {
    At::from_secs(seconds)
}

fn number(token: u64) -> Number {
    Number {
        incarnation: 7,
        lane: "normal".to_owned(),
        token,
    }
}

fn ledger(shoppers: u32, seats: u32) -> Ledger {
    let size = Size {
        shoppers,
        seats,
        lasts: s(60),
    };
    Ledger::new(3, size)
}

/// Shoppers 1 to `count` with the numbers 1 to `count`, entered at 0 s.
fn crowd(count: u32) -> Ledger {
    let mut ledger = self::ledger(count, SEATS);
    for shopper in 1..=count {
        ledger.entered(s(0), shopper, &number(u64::from(shopper)));
    }
    ledger
}

fn complete(ledger: &mut Ledger, at: At, token: u64) {
    ledger.leaving(at, &number(token));
    ledger.gone(&number(token), "completed");
}

#[test]
fn a_visit_as_it_should_be() {
    let mut ledger = crowd(3);
    ledger.seated(s(1), &number(1), 1, s(60));
    ledger.seated(s(1), &number(2), 2, s(60));
    ledger.still_waiting(&number(3), ledger.highest_admitted("normal"));
    complete(&mut ledger, s(2), 1);
    ledger.admitted(s(2), &number(3));
    ledger.seated(s(2), &number(3), 3, s(60));
    complete(&mut ledger, s(3), 2);
    complete(&mut ledger, s(3), 3);
    ledger.refused();
    let report = ledger.report(s(3));
    assert_eq!(report.faults(), Vec::<String>::new());
    assert_eq!((report.issued, report.completed, report.refused), (3, 3, 1));
    assert_eq!(report.gone, BTreeMap::from([("completed".to_owned(), 3)]));
    assert_eq!(report.in_checkout_max, 2);
}

#[test]
fn an_oversold_seat_is_counted() {
    let mut ledger = crowd(3);
    for token in 1..=3 {
        ledger.seated(s(1), &number(token), token, s(60));
    }
    let report = ledger.report(s(2));
    assert_eq!(report.in_checkout_max, 3);
    assert_eq!(
        report.faults(),
        ["3 were in checkout at once, with 2 seats"]
    );
}

#[test]
fn a_repeated_claim_holds_one_seat() {
    let mut ledger = crowd(1);
    ledger.seated(s(1), &number(1), 1, s(60));
    ledger.seated(s(2), &number(1), 1, s(60));
    assert_eq!(ledger.report(s(2)).in_checkout_max, 1);
    assert_eq!(ledger.report(s(2)).duplicates, 0);
}

#[test]
fn a_seat_is_free_from_when_complete_or_leave_is_sent() {
    let mut ledger = crowd(4);
    ledger.seated(s(1), &number(1), 1, s(60));
    ledger.seated(s(1), &number(2), 2, s(60));
    // Sent, not answered yet: the coordinator may have given the seat on.
    ledger.leaving(s(2), &number(1));
    ledger.seated(s(2), &number(3), 3, s(60));
    ledger.leaving(s(3), &number(2));
    ledger.seated(s(3), &number(4), 4, s(60));
    assert_eq!(ledger.report(s(4)).in_checkout_max, 2);
}

/// The machine stands still, and the seat expires before its holder renews it.
#[test]
fn a_live_shopper_holds_the_seat_until_its_last_deadline_too() {
    for (renewed, in_checkout_max) in [(false, 2), (true, 3)] {
        let mut ledger = crowd(3);
        ledger.seated(s(1), &number(1), 1, s(6));
        ledger.seated(s(1), &number(2), 2, s(60));
        if renewed {
            ledger.renewed(s(5), &number(1), s(10));
        }
        ledger.seated(s(7), &number(3), 3, s(60));
        complete(&mut ledger, s(8), 1);
        assert_eq!(
            ledger.report(s(9)).in_checkout_max,
            in_checkout_max,
            "{renewed}"
        );
    }
}

#[test]
fn an_answer_that_comes_after_its_deadline_holds_no_seat() {
    let mut ledger = crowd(1);
    ledger.seated(s(7), &number(1), 1, s(6));
    assert_eq!(ledger.report(s(8)).in_checkout_max, 0);
}

#[test]
fn a_vanished_shopper_holds_the_seat_until_the_deadline_and_no_longer() {
    let mut early = crowd(3);
    let mut late = crowd(3);
    for ledger in [&mut early, &mut late] {
        ledger.seated(s(1), &number(1), 1, s(6));
        ledger.seated(s(1), &number(2), 2, s(60));
        ledger.vanished(s(2), &number(1));
    }
    early.seated(s(5), &number(3), 3, s(60));
    assert_eq!(early.report(s(9)).in_checkout_max, 3);
    late.seated(s(6), &number(3), 3, s(60));
    assert_eq!(late.report(s(9)).in_checkout_max, 2);
}

#[test]
fn an_overtake_is_counted() {
    let mut ledger = crowd(3);
    ledger.admitted(s(1), &number(3));
    let sent = ledger.highest_admitted("normal");
    ledger.still_waiting(&number(2), sent);
    let report = ledger.report(s(2));
    assert_eq!(report.overtakes, 1);
    assert_eq!(report.faults(), ["1 overtakes"]);
}

#[test]
fn an_answer_that_was_on_its_way_is_no_overtake() {
    let mut ledger = crowd(3);
    let sent = ledger.highest_admitted("normal");
    ledger.admitted(s(1), &number(3));
    ledger.still_waiting(&number(2), sent);
    // A lower number admitted, or one of another lane, overtakes nobody.
    ledger.admitted(
        s(1),
        &Number {
            lane: "fast".to_owned(),
            ..number(9)
        },
    );
    ledger.admitted(s(1), &number(1));
    let sent = ledger.highest_admitted("normal");
    assert_eq!(sent, 3);
    ledger.still_waiting(
        &Number {
            lane: "fast".to_owned(),
            ..number(10)
        },
        9,
    );
    assert_eq!(ledger.report(s(2)).overtakes, 0);
}

#[test]
fn a_number_given_to_two_shoppers_is_a_duplicate() {
    let mut ledger = crowd(2);
    ledger.entered(s(1), 3, &number(2));
    let report = ledger.report(s(2));
    assert_eq!((report.issued, report.duplicates), (2, 1));
    assert_eq!(report.faults(), ["1 duplicates"]);
}

#[test]
fn a_second_number_for_one_key_is_a_duplicate() {
    let mut ledger = crowd(2);
    ledger.entered(s(1), 2, &number(3));
    let report = ledger.report(s(2));
    assert_eq!((report.issued, report.duplicates), (3, 1));
}

#[test]
fn the_same_answer_to_a_repeated_enter_is_none() {
    let mut ledger = crowd(2);
    ledger.entered(s(1), 2, &number(2));
    let report = ledger.report(s(2));
    assert_eq!((report.issued, report.duplicates), (2, 0));
}

#[test]
fn an_epoch_given_twice_is_a_duplicate() {
    let mut ledger = crowd(2);
    ledger.seated(s(1), &number(1), 5, s(60));
    ledger.seated(s(1), &number(2), 5, s(60));
    assert_eq!(ledger.report(s(2)).duplicates, 1);
}

#[test]
fn a_lost_token_is_counted_once() {
    let mut ledger = crowd(3);
    ledger.lost(s(1), &number(2));
    ledger.lost(s(2), &number(2));
    ledger.found_gone(s(2), &number(3), "idle");
    let report = ledger.report(s(3));
    assert_eq!(report.lost, 2);
    assert_eq!(report.gone, BTreeMap::from([("idle".to_owned(), 1)]));
    assert_eq!(report.faults(), ["2 lost tokens"]);
}

#[test]
fn an_acknowledged_end_that_changes_is_lost() {
    let mut ledger = crowd(1);
    ledger.seated(s(1), &number(1), 1, s(60));
    complete(&mut ledger, s(2), 1);
    ledger.gone(&number(1), "completed");
    assert_eq!(ledger.report(s(3)).lost, 0);
    ledger.gone(&number(1), "checkout_expired");
    assert_eq!(ledger.report(s(3)).lost, 1);
}

#[test]
fn failover_runs_to_the_first_write_sent_after_the_kill() {
    let mut ledger = crowd(1);
    ledger.wrote(s(1), s(1));
    ledger.killed(s(10));
    ledger.wrote(s(9), s(11));
    assert_eq!(ledger.report(s(11)).failover_ms, None);
    ledger.wrote(s(10), s(12));
    ledger.wrote(s(10), s(14));
    assert_eq!(ledger.report(s(15)).failover_ms, Some(2_000));
}

#[test]
fn seat_use_counts_only_while_anybody_waits() {
    let mut ledger = crowd(3);
    // 0 to 1 s: 0 of 2 seats, 1 to 3 s: 1 of 2, 3 to 5 s: 2 of 2.
    ledger.seated(s(1), &number(1), 1, s(60));
    ledger.seated(s(3), &number(2), 2, s(60));
    ledger.leaving(s(5), &number(1));
    ledger.admitted(s(5), &number(3));
    // From here on nobody waits.
    let report = ledger.report(s(50));
    assert_eq!(report.seat_use_percent, Some(60.0));
}

#[test]
fn seat_use_is_unknown_if_nobody_waits() {
    let mut ledger = self::ledger(1, SEATS);
    assert_eq!(ledger.report(s(9)).seat_use_percent, None);
}

#[test]
fn a_shopper_that_vanished_while_waiting_does_not_count_as_waiting() {
    let mut ledger = crowd(2);
    ledger.vanished(s(1), &number(1));
    ledger.leaving(s(2), &number(2));
    assert_eq!(ledger.in_checkout_and_waiting(s(3)), (0, 0));
    ledger.gone(&number(1), "idle");
    assert!(ledger.is_gone(&number(1)));
}
