//! The rules one by one, where a story says more than random operations do.

use crate::common::{Restart, Shard, name, shop};
use nowserving_line::{
    AdmittedBy, Change, Event, Limits, LineBuilder, LineChange, Lines, Op, Reason, Refused, Reply,
    Restore, Settings, SettingsPatch, Stamp, State, TokenChange,
};

fn open(seats: u32, queue_limit: u32) -> Shard {
    Shard::with_shop(Limits::default(), Settings::new(seats, queue_limit))
}

fn set_seats(seats: u32) -> SettingsPatch {
    SettingsPatch {
        seats: Some(Change::Set(seats)),
        ..SettingsPatch::default()
    }
}

fn configure(patch: SettingsPatch, if_version: Option<u64>) -> Op {
    Op::Configure {
        line: shop(),
        patch: patch.into(),
        if_version,
        incarnation: None,
    }
}

fn delete(force: bool) -> Op {
    let line = shop();
    Op::Delete {
        line,
        force,
        incarnation: None,
    }
}

#[test]
fn every_refusal_of_a_token_operation() {
    let mut shard = open(1, 5);
    let epoch = shard.enter().unwrap().epoch;
    assert_eq!(epoch, None);
    shard.enter().unwrap();
    assert_eq!(shard.claim(2), Err(Refused::NotAdmitted));
    assert_eq!(shard.renew(2, 1), Err(Refused::NotAdmitted));
    assert_eq!(shard.complete(2, None), Err(Refused::NotAdmitted));
    assert_eq!(shard.renew(1, 1), Err(Refused::NotClaimed));
    assert_eq!(shard.complete(1, None), Err(Refused::NotClaimed));
    let claimed = shard.claim(1).unwrap();
    assert_eq!(claimed.epoch, Some(1));
    assert_eq!(shard.claim(1).unwrap().epoch, Some(1), "again: the same");
    assert_eq!(shard.renew(1, 2), Err(Refused::EpochStale));
    assert_eq!(shard.complete(1, Some(0)), Err(Refused::EpochStale));
    let done = shard.complete(1, Some(1)).unwrap();
    assert_eq!((done.state, done.epoch), (State::Gone, Some(1)));
    assert_eq!(done.reason, Some(Some(Reason::Completed)));
    assert_eq!(shard.complete(1, None).unwrap().state, State::Gone, "again");
    assert_eq!(shard.complete(1, Some(9)), Err(Refused::EpochStale));
    let gone = Refused::TokenGone(Some(Reason::Completed));
    assert_eq!(shard.claim(1), Err(gone.clone()));
    assert_eq!(shard.renew(1, 1), Err(gone.clone()));
    assert_eq!(shard.leave(1), Err(gone));
    shard.leave(2).unwrap();
    assert_eq!(shard.leave(2).unwrap().reason, Some(Some(Reason::Left)));
    for token in [0, 3, u64::MAX] {
        assert_eq!(shard.claim(token), Err(Refused::TicketInvalid));
    }
    let mut at = shard.at(1);
    at.lane = 1;
    let status = shard.line().status(at, 0);
    assert_eq!(status, Err(Refused::TicketInvalid));
    at.lane = 0;
    at.incarnation += 1;
    let status = shard.line().status(at, 0);
    assert_eq!(status, Err(Refused::TicketInvalid));
}

#[test]
fn a_key_has_one_live_token() {
    let mut shard = open(1, 1);
    let first = shard.enter_as(Some("a")).unwrap();
    let version = shard.line().version();
    assert_eq!(shard.enter_as(Some("a")).unwrap().at, first.at);
    assert_eq!(shard.line().version(), version, "one effect");
    let second = shard.enter_as(Some("b")).unwrap();
    assert_eq!(shard.enter_as(Some("c")), Err(Refused::LineFull));
    // Looked up before any refusal: the line is full, and the lane is not looked at.
    let again = shard.apply(&Op::Enter {
        line: shop(),
        key: Some((*b"b").into()),
        lane: Some("nowhere".try_into().unwrap()),
    });
    assert_eq!(again, Ok(Reply::Token(second.at)));
    assert_eq!(shard.line().find(b"a"), Some(first.at));
    shard.serve(1);
    assert_eq!(shard.line().find(b"a"), None);
    let visit = shard.enter_as(Some("a")).unwrap();
    assert_eq!(visit.at.token, 3, "after gone, a new visit");
    let long = shard.enter_as(Some(&"k".repeat(129)));
    assert!(matches!(long, Err(Refused::BadField(bad)) if bad.field == "key"));
    let empty = shard.enter_as(Some(""));
    assert!(matches!(empty, Err(Refused::BadField(bad)) if bad.field == "key"));
    let nowhere = shard.apply(&Op::Enter {
        line: shop(),
        key: None,
        lane: Some("nowhere".try_into().unwrap()),
    });
    assert!(matches!(nowhere, Err(Refused::BadField(bad)) if bad.field == "lane"));
}

#[test]
fn checkout_deadlines_only_move_later_and_end_at_the_maximum() {
    let mut shard = open(1, 0);
    let start_ms = shard.now_ms;
    let admitted = shard.enter().unwrap();
    assert_eq!(admitted.deadline_ms, Some(start_ms + 120_000));
    shard.now_ms += 1_000;
    let claimed_ms = shard.now_ms;
    let claimed = shard.claim(1).unwrap();
    assert_eq!(claimed.deadline_ms, Some(claimed_ms + 600_000));
    shard.now_ms += 500_000;
    let renewed = shard.renew(1, 1).unwrap();
    assert_eq!(renewed.deadline_ms, Some(claimed_ms + 1_100_000));
    // Lowered timeouts are for clocks started later.
    let mut patch = SettingsPatch {
        checkout_timeout_ms: Some(Change::Set(100)),
        checkout_max_ms: Some(Change::Set(100)),
        ..SettingsPatch::default()
    };
    shard.apply(&configure(patch.clone(), None)).unwrap();
    assert_eq!(shard.status(1).deadline_ms, Some(claimed_ms + 1_100_000));
    let renewed = shard.renew(1, 1).unwrap();
    assert_eq!(renewed.deadline_ms, Some(claimed_ms + 1_100_000));
    patch.checkout_timeout_ms = Some(Change::Unset);
    patch.checkout_max_ms = Some(Change::Unset);
    shard.apply(&configure(patch, None)).unwrap();
    for _ in 0..10 {
        shard.now_ms += 500_000;
        shard.renew(1, 1).unwrap();
    }
    let last = shard.status(1).deadline_ms;
    assert_eq!(last, Some(claimed_ms + 3_600_000), "renewing ends here");
    // State decides, not the clock: the deadline passed, but nobody recycled it.
    shard.now_ms += 10_000_000;
    assert_eq!(shard.complete(1, Some(1)).unwrap().state, State::Gone);
}

#[test]
fn recycle_ends_due_tokens_and_only_as_they_were_seen() {
    let mut shard = open(1, 5);
    for _ in 0..3 {
        shard.enter().unwrap();
    }
    let early = vec![shard.item(1), shard.item(2)];
    assert_eq!(shard.recycle(early.clone()), 0, "not due");
    shard.now_ms += 300_000;
    assert_eq!(
        shard.line().due_at_ms(shard.line().live(0, 2).unwrap()),
        shard.now_ms + 1
    );
    // Token 1 claims before the entry is applied: the claim wins.
    shard.claim(1).unwrap();
    shard.now_ms += 1;
    let (line, incarnation) = (shop(), shard.line().incarnation());
    let tokens = vec![(0, 3, shard.now_ms), (0, 9, 1), (7, 1, 1)];
    let touch = Op::Touch {
        line,
        incarnation,
        tokens,
    };
    shard.apply(&touch).unwrap();
    let mut items = early;
    items.push(shard.item(3));
    assert_eq!(shard.recycle(items), 1);
    assert_eq!(shard.status(1).state, State::InCheckout);
    assert_eq!(shard.status(2).reason, Some(Some(Reason::Idle)));
    assert_eq!(shard.status(3).state, State::Waiting, "was seen");
    assert_eq!(
        shard.lane().admitted_through,
        2,
        "over the hole, no further"
    );
    shard.now_ms += 600_000;
    let item = shard.item(1);
    assert_eq!(shard.recycle(vec![item]), 1);
    assert_eq!(shard.status(1).reason, Some(Some(Reason::CheckoutExpired)));
    assert_eq!(shard.status(1).epoch, Some(1));
    assert_eq!(
        shard.status(3).state,
        State::Admitted,
        "the seat is given on"
    );
    shard.now_ms += 120_000;
    let item = shard.item(3);
    assert_eq!(shard.recycle(vec![item]), 1);
    assert_eq!(shard.status(3).reason, Some(Some(Reason::NoShow)));
}

#[test]
fn a_recycled_waiter_of_the_same_list_gets_no_seat_first() {
    let mut shard = open(1, 5);
    for _ in 0..3 {
        shard.enter().unwrap();
    }
    shard.now_ms += 300_001;
    let items = (1..=2).map(|token| shard.item(token)).collect();
    assert_eq!(shard.recycle(items), 2);
    assert_eq!(shard.status(2).reason, Some(Some(Reason::Idle)));
    assert_eq!(shard.status(3).state, State::Admitted);
}

#[test]
fn lowered_seats_throw_nobody_out_and_admit_nobody() {
    let mut shard = open(4, 4);
    for _ in 0..6 {
        shard.enter().unwrap();
    }
    shard.apply(&configure(set_seats(2), None)).unwrap();
    assert_eq!(shard.line().counts().admitted, 4);
    shard.serve(1);
    shard.serve(2);
    assert_eq!(shard.line().counts().waiting, 2, "still 2 of 2 held");
    shard.serve(3);
    assert_eq!(shard.status(5).state, State::Admitted);
    assert_eq!(shard.status(6).position, Some(1));
}

#[test]
fn if_version_is_about_the_settings() {
    let mut shard = open(1, 5);
    let seen = shard.line().version();
    shard.enter().unwrap();
    assert!(shard.line().version() > seen, "somebody entered meanwhile");
    shard.apply(&configure(set_seats(2), Some(seen))).unwrap();
    let stale = shard.apply(&configure(set_seats(3), Some(seen)));
    assert_eq!(stale, Err(Refused::VersionConflict));
    let version = shard.line().version();
    let future = shard.apply(&configure(set_seats(3), Some(version + 1)));
    assert_eq!(future, Err(Refused::VersionConflict));
    shard
        .apply(&configure(set_seats(2), Some(version)))
        .unwrap();
    assert_eq!(shard.line().version(), version, "nothing changed");
    let bad = shard.apply(&configure(set_seats(0), None));
    assert!(matches!(bad, Err(Refused::BadField(bad)) if bad.field == "seats"));
}

#[test]
fn an_operation_meant_for_another_incarnation_changes_nothing() {
    let mut shard = open(1, 5);
    let first = shard.line().incarnation();
    shard.apply(&delete(true)).unwrap();
    let settings = Settings::new(1, 5);
    let line = shop();
    shard.apply(&Op::Create { line, settings }).unwrap();
    let second = shard.line().incarnation();
    assert_ne!(first, second);
    let meant_for = |incarnation| {
        let configure = Op::Configure {
            line: shop(),
            patch: Box::new(set_seats(9)),
            if_version: None,
            incarnation: Some(incarnation),
        };
        let delete = Op::Delete {
            line: shop(),
            force: true,
            incarnation: Some(incarnation),
        };
        [configure, delete]
    };
    let before = shard.line().dump();
    for op in meant_for(first).into_iter().chain(meant_for(second + 1)) {
        assert_eq!(shard.apply(&op), Err(Refused::AnotherIncarnation));
    }
    assert_eq!(shard.line().dump(), before);
    for op in meant_for(second) {
        shard.apply(&op).unwrap();
    }
    for op in meant_for(second) {
        assert_eq!(shard.apply(&op), Err(Refused::LineNotFound));
    }
}

#[test]
fn versions_and_epochs_grow_over_incarnations() {
    let mut shard = open(3, 0);
    for token in 1..=3 {
        shard.enter_as(Some(&format!("k{token}"))).unwrap();
        assert_eq!(shard.claim(token).unwrap().epoch, Some(token));
    }
    assert_eq!(shard.apply(&delete(false)), Err(Refused::LineNotEmpty));
    let old = shard.at(1);
    let gone = shard.apply(&delete(true));
    assert_eq!(gone, Ok(Reply::Deleted { remaining: 0 }));
    let last = shard.events.last().unwrap();
    assert!(matches!(
        last,
        Event::Line {
            what: LineChange::Deleted,
            ..
        }
    ));
    let last = last.version();
    let leave = Op::Leave {
        line: shop(),
        at: old,
    };
    assert_eq!(shard.apply(&leave), Err(Refused::LineNotFound));
    // Over a restart, too.
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    let settings = Settings::new(3, 0);
    let line = shop();
    shard.apply(&Op::Create { line, settings }).unwrap();
    assert!(shard.line().version() > last);
    assert_ne!(shard.line().incarnation(), old.incarnation);
    assert_eq!(shard.apply(&leave), Err(Refused::TicketInvalid));
    assert_eq!(
        shard.enter().unwrap().at.token,
        1,
        "numbers are of an incarnation"
    );
    assert_eq!(shard.claim(1).unwrap().epoch, Some(4));
}

/// The events of the last operation.
fn whats(shard: &Shard) -> Vec<(u64, TokenChange, u64)> {
    let whats = shard.events.iter().map(|event| match event {
        Event::Token {
            token,
            what,
            version,
            ..
        } => (*token, what.clone(), *version),
        other => panic!("{other:?}"),
    });
    whats.collect()
}

fn admitted() -> TokenChange {
    TokenChange::Admitted {
        by: AdmittedBy::Turn,
        eta: None,
        shadow: None,
    }
}

#[test]
fn every_event_has_a_version_of_its_own() {
    let mut shard = open(1, 9);
    let created = shard.events[0].version();
    assert_eq!(created, 1);
    shard.enter().unwrap();
    assert_eq!(
        whats(&shard),
        [
            (1, TokenChange::Entered { position: Some(1) }, created + 1),
            (1, admitted(), created + 2),
        ]
    );
    shard.enter().unwrap();
    let entered = TokenChange::Entered { position: Some(1) };
    assert_eq!(whats(&shard), [(2, entered, created + 3)]);
    let key = Some("a");
    shard.enter_as(key).unwrap();
    let entered = TokenChange::Entered { position: Some(2) };
    assert_eq!(whats(&shard), [(3, entered, created + 4)]);
    shard.enter_as(key).unwrap();
    assert!(shard.events.is_empty(), "it has entered before");
    shard.claim(1).unwrap();
    shard.complete(1, None).unwrap();
    let gone = TokenChange::Gone {
        reason: Reason::Completed,
        was_waiting: false,
        units: Some(1),
    };
    let next = created + 6;
    assert_eq!(whats(&shard), [(1, gone, next), (2, admitted(), next + 1)]);
    assert_eq!(shard.line().version(), next + 1);
}

#[test]
fn the_clock_never_falls() {
    let mut shard = open(1, 1);
    shard.now_ms = 5_000;
    shard.enter().unwrap();
    shard.now_ms = 10;
    let entered = shard.enter().unwrap();
    assert_eq!(
        entered.entered_at_ms,
        Some(shard.wall_ms()),
        "as it is shown"
    );
    let live = shard.line().live(0, entered.at.token).unwrap();
    assert_eq!(live.entered.at.service_ms, 5_000);
    assert_eq!(shard.lines.now_ms(), 5_000);
    shard.now_ms = u64::MAX;
    shard.move_clock();
    assert_eq!(shard.claim(1).unwrap().state, State::InCheckout);
}

#[test]
fn lines_are_listed_in_pages() {
    let mut shard = Shard::new(Limits::default());
    for line in ["b", "a", "c", "A"] {
        let (line, settings) = (name(line), Settings::new(1, 0));
        shard.apply(&Op::Create { line, settings }).unwrap();
    }
    let names = |after: Option<&str>| -> Vec<String> {
        let after = after.map(name);
        let lines = shard.lines.range_after(after.as_ref());
        lines.map(|line| line.name().to_string()).collect()
    };
    assert_eq!(names(None), ["A", "a", "b", "c"]);
    assert_eq!(names(Some("a")), ["b", "c"]);
    assert_eq!(
        names(Some("aa")),
        ["b", "c"],
        "after one that is gone by now"
    );
    assert_eq!(names(Some("c")), Vec::<String>::new());
    assert_eq!(shard.lines.len(), 4);
}

/// A restored line may come from a log that is longer than this one, which may yet come to its incarnation.
#[test]
fn lines_made_after_a_restored_one_have_larger_incarnations() {
    let mut far = Shard::new(Limits::default());
    far.index = 1_000;
    let settings = Settings::new(1, 1);
    let create = |line| Op::Create {
        line,
        settings: settings.clone(),
    };
    far.apply(&create(shop())).unwrap();
    let dump = far.line().dump();
    let mut shard = Shard::new(Limits::default());
    let stamp = |index| Stamp {
        index,
        op_no: 0,
        now_ms: 5,
        wall_ms: 5,
    };
    let builder = || LineBuilder::new(dump.clone(), Limits::default()).unwrap();
    let how = Restore {
        clock_ms: far.now_ms,
        overwrite: false,
    };
    shard
        .lines
        .put_back(stamp(1), builder(), how, None)
        .unwrap();
    assert_eq!(shard.line().incarnation(), dump.incarnation);
    shard.index = 1;
    for other in ["a", "b"] {
        shard.apply(&create(name(other))).unwrap();
    }
    let made = |name| shard.lines.get(&name).unwrap().incarnation();
    assert_eq!(made(name("a")), dump.incarnation + 1);
    assert_eq!(made(name("b")), dump.incarnation + 2);
    // Its numbers were issued by another log: none is skipped.
    assert_eq!(shard.line().counts().issued, 0);
}
