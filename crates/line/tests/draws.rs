//! Draws at the opening, by examples. The model has all that random operations can do to one.

use std::collections::BTreeMap;

use nowserving_line::{
    CannotAdmit, Change, DrawState, Event, HeldBackBy, LaneName, LaneSettings, Limits, Line,
    LineBuilder, LineChange, Lines, Lots, MovedBy, NUMBER_MAX, Op, Opening, Phase, Quota, Refused,
    Restore, Secret, Settings, SettingsPatch, Stage, Stamp, State, TakeBy, Token, TokenChange,
    commitment, digest_of, digest_with,
};

use crate::common::{Dump, Restart, Shard, shop};

const SEED: [u8; 32] = [7; 32];

/// So many have entered a line that opens by a draw, with keys 1, 2, 3, …
fn awaiting(work_max: u32, seats: u32, enter: u64) -> Shard {
    let limits = Limits {
        work_max,
        ..Limits::default()
    };
    let settings = Settings {
        opening: Opening::Draw,
        phase: Phase::PreOpen,
        ..Settings::new(seats, 100_000)
    };
    let mut shard = Shard::with_shop(limits, settings);
    for key in 1..=enter {
        enter_as(&mut shard, key);
    }
    shard
}

fn enter_as(shard: &mut Shard, key: u64) {
    let enter = Op::Enter {
        line: shop(),
        key: Some(key.to_be_bytes().into()),
        lane: None,
    };
    shard.apply(&enter).unwrap();
}

fn seal(shard: &mut Shard) {
    let seal = Op::SealDraw {
        line: shop(),
        incarnation: shard.line().incarnation(),
        seed: Secret(SEED),
    };
    shard.apply(&seal).unwrap();
}

fn open(shard: &mut Shard) {
    let patch = SettingsPatch {
        phase: Some(Change::Set(Phase::Open)),
        ..SettingsPatch::default()
    };
    shard.set(patch);
}

fn run(shard: &mut Shard) -> bool {
    let due = shard.lines.background_work(shard.now_ms).next().is_some();
    let run = Op::RunBackground {
        line: shop(),
        incarnation: shard.line().incarnation(),
    };
    if due {
        shard.apply(&run).unwrap();
    }
    due
}

fn run_all(shard: &mut Shard) {
    while run(shard) {}
}

/// By the numbers with which they entered, what the draw makes of these.
fn expected(shard: &Shard, beacon: &str, took_part: &[Token]) -> BTreeMap<Token, Token> {
    let lots = Lots::new(&SEED, beacon, shard.line().incarnation());
    let mut order = took_part.to_vec();
    order.sort_by_key(|token| (lots.lot(&LaneName::default(), *token), *token));
    let last = *took_part.last().unwrap();
    order.into_iter().zip(last + 1..).collect()
}

#[test]
fn those_who_wait_are_numbered_anew_in_the_order_of_their_lots() {
    let mut shard = awaiting(1_000, 2, 9);
    shard.leave(4).unwrap();
    seal(&mut shard);
    let [Event::Line { what, .. }] = &shard.events[..] else {
        panic!("{:?}", shard.events);
    };
    assert_eq!(
        *what,
        LineChange::DrawSealed {
            commitment: commitment(&SEED)
        }
    );
    open(&mut shard);
    let took_part = [1, 2, 3, 5, 6, 7, 8, 9];
    let expected = expected(&shard, "", &took_part);
    let mut moved = BTreeMap::new();
    for event in &shard.events {
        if let Event::Token {
            token,
            what: TokenChange::Moved { to, by, .. },
            ..
        } = event
        {
            assert_eq!(*by, MovedBy::Draw);
            moved.insert(*token, to.token);
        }
    }
    assert_eq!(moved, expected);
    assert_eq!(shard.line().counts().drawn, 8);
    for (old, new) in &expected {
        let status = shard.status(*old);
        assert_eq!(status.at.token, *new, "an old ticket is good");
        let admitted = *new <= 11;
        assert_eq!(status.state == State::Admitted, admitted);
        assert_eq!(
            status.position,
            (!admitted).then_some(new.saturating_sub(11))
        );
        let key = shard.line().find(&old.to_be_bytes()).unwrap();
        assert_eq!(key.token, *new);
    }
    let of_lane = took_part
        .iter()
        .fold([0; 32], |digest, token| digest_with(&digest, *token));
    let digest = digest_of([(&LaneName::default(), of_lane)].into_iter());
    let draw = shard.line().draw().unwrap();
    assert_eq!(
        (draw.state, draw.seed, draw.digest),
        (DrawState::Done, Some(SEED), Some(digest))
    );
    let drawn = shard.events.iter().filter(|event| {
        matches!(event, Event::Line { what: LineChange::Drawn { digest: it }, .. } if *it == digest)
    });
    assert_eq!(drawn.count(), 1);
}

#[test]
fn no_place_is_told_and_nobody_admitted_before_the_draw_is_done() {
    let mut shard = awaiting(2, 3, 20);
    let status = shard.status(5);
    assert_eq!(
        (status.state, status.position, status.turn),
        (State::Waiting, None, None)
    );
    assert!(shard.board().undrawn);
    let Some(Event::Token { what, .. }) = shard.events.first() else {
        panic!("{:?}", shard.events);
    };
    assert_eq!(*what, TokenChange::Entered { position: None });
    // The leader has not brought the seed in: the line waits for it.
    open(&mut shard);
    assert!(!run(&mut shard) && shard.line().needs_seed());
    assert_eq!(shard.line().held_back_by(shard.now_ms), HeldBackBy::Draw);
    seal(&mut shard);
    let mut entries = 0;
    while shard.line().is_undrawn() {
        assert_eq!(shard.board().admitted, 0);
        assert_eq!(shard.line().held_back_by(shard.now_ms), HeldBackBy::Draw);
        let take = Op::Take {
            line: shop(),
            by: TakeBy::Key(5_u64.to_be_bytes().into()),
            call_id: None,
        };
        assert_eq!(
            shard.apply(&take),
            Err(Refused::CannotAdmit(CannotAdmit::Draw))
        );
        assert_eq!(shard.status(5).eta_ms, None);
        assert_eq!(
            shard.line().poll(shard.at(5), 0, true).unwrap().holes,
            Some(None)
        );
        assert!(run(&mut shard), "it goes on");
        entries += 1;
    }
    assert!(entries >= 10, "two tokens an entry: {entries}");
    run_all(&mut shard);
    assert_eq!(shard.board().admitted, 3);
}

/// Whatever happens between the steps, and over a restart after each of them.
#[test]
fn a_new_number_depends_on_the_seed_and_on_who_took_part_alone() {
    let mut shard = awaiting(3, 4, 40);
    seal(&mut shard);
    open(&mut shard);
    let expected = expected(&shard, "", &(1..=40).collect::<Vec<_>>());
    let mut left = Vec::new();
    let mut step = 0;
    while shard.line().is_undrawn() {
        step += 1;
        enter_as(&mut shard, 1_000 + step);
        let leaves = shard.line().resolve(shard.at(step * 2)).token;
        if shard.leave(leaves).is_ok() {
            left.push(step * 2);
        }
        let dump = shard.lines.dump();
        let limits = shard.lines.limits();
        shard.lines = Lines::restore_with(limits, dump.clone()).unwrap();
        assert_eq!(shard.lines.dump(), dump);
        run(&mut shard);
    }
    run_all(&mut shard);
    for (old, new) in &expected {
        let status = shard.status(*old);
        match left.contains(old) {
            true => assert_eq!(status.state, State::Gone),
            false => assert_eq!(status.at.token, *new),
        }
    }
    let newcomer = shard.line().find(&1_001_u64.to_be_bytes()).unwrap();
    assert_eq!(newcomer.token, 81, "above all numbers of the draw");
    let counts = shard.line().counts();
    let gone: u64 = counts.gone.iter().sum();
    assert_eq!(counts.issued, counts.drawn + counts.live() + gone);
}

#[test]
fn many_pages_with_holes_are_drawn_as_a_plain_sort_has_it() {
    let mut shard = awaiting(1_024, 1, 3_000);
    let mut took_part = Vec::new();
    for token in 1..=3_000 {
        match token % 3 {
            0 => drop(shard.leave(token).unwrap()),
            _ => took_part.push(token),
        }
    }
    // The last number that takes part is the last one issued.
    enter_as(&mut shard, 9_999);
    took_part.push(3_001);
    let patch = SettingsPatch {
        draw_beacon: Some(Change::Set("7 12 40".to_owned())),
        ..SettingsPatch::default()
    };
    shard.set(patch);
    seal(&mut shard);
    open(&mut shard);
    run_all(&mut shard);
    for (old, new) in expected(&shard, "7 12 40", &took_part) {
        assert_eq!(shard.status(old).at.token, new);
    }
}

#[test]
fn lanes_are_drawn_each_by_itself_and_all_count_as_entered_at_the_opening() {
    let mut shard = awaiting(1_000, 1, 3);
    let patch = SettingsPatch {
        lanes: Some(Change::Set(vec![
            LaneSettings::default(),
            LaneSettings::new("vip".try_into().unwrap()),
        ])),
        ..SettingsPatch::default()
    };
    shard.set(patch);
    let enter = |shard: &mut Shard| {
        let enter = Op::Enter {
            line: shop(),
            key: None,
            lane: Some("vip".try_into().unwrap()),
        };
        shard.apply(&enter).unwrap();
    };
    shard.now_ms += 5_000;
    enter(&mut shard);
    enter(&mut shard);
    shard.now_ms += 5_000;
    seal(&mut shard);
    open(&mut shard);
    // They tie, so the lane listed first goes first.
    let board = shard.board();
    assert_eq!((board.lanes[0].waiting, board.lanes[1].waiting), (2, 2));
    assert_eq!(
        (board.lanes[0].next_token, board.lanes[1].next_token),
        (7, 5)
    );
    for _ in 0..2 {
        let first = shard.board().lanes[0].admitted_through;
        shard.leave(first).unwrap();
    }
    assert_eq!(
        (
            shard.board().lanes[0].waiting,
            shard.board().lanes[1].waiting
        ),
        (0, 2)
    );
}

#[test]
fn a_line_that_opens_in_order_after_all_draws_nothing() {
    let mut shard = awaiting(1_000, 1, 5);
    seal(&mut shard);
    let patch = SettingsPatch {
        opening: Some(Change::Set(Opening::Order)),
        phase: Some(Change::Set(Phase::Open)),
        ..SettingsPatch::default()
    };
    shard.set(patch);
    assert_eq!(shard.line().draw(), None);
    assert_eq!(
        (shard.status(1).state, shard.status(2).position),
        (State::Admitted, Some(1))
    );
}

/// Else who came first would have the units.
#[test]
fn a_quota_refuses_nobody_before_the_draw() {
    let mut shard = awaiting(1_000, 2, 0);
    let quota = Quota {
        total: 4,
        standby_percent: 0,
        renew: None,
        per_visit: 2,
    };
    shard.set(SettingsPatch {
        quota: Some(Change::Set(quota)),
        ..SettingsPatch::default()
    });
    for key in 1..=9 {
        enter_as(&mut shard, key);
    }
    seal(&mut shard);
    open(&mut shard);
    assert_eq!(shard.line().draw().unwrap().took_part, Some(9));
    assert_eq!((shard.board().admitted, shard.line().quota_left()), (2, 0));
    assert_eq!(shard.enter(), Err(Refused::SoldOut));
}

#[test]
fn a_line_draws_once() {
    let mut shard = awaiting(1_000, 1, 5);
    seal(&mut shard);
    open(&mut shard);
    let first = shard.line().draw();
    for phase in [Phase::PreOpen, Phase::Open] {
        let patch = SettingsPatch {
            phase: Some(Change::Set(phase)),
            ..SettingsPatch::default()
        };
        shard.set(patch);
        assert!(!shard.line().is_undrawn() && !shard.line().needs_seed());
    }
    assert_eq!(shard.line().draw(), first);
    seal(&mut shard);
    assert_eq!(shard.line().draw(), first);
}

/// It has committed itself to it, and must not choose another one.
#[test]
fn a_line_that_opened_in_order_keeps_its_seed() {
    let mut shard = awaiting(1_000, 1, 5);
    seal(&mut shard);
    for (opening, phase) in [
        (Opening::Order, Phase::Open),
        // In an open line it does not begin by itself.
        (Opening::Draw, Phase::Open),
    ] {
        let patch = SettingsPatch {
            opening: Some(Change::Set(opening)),
            phase: Some(Change::Set(phase)),
            ..SettingsPatch::default()
        };
        shard.set(patch);
        assert!(!shard.line().is_undrawn() && shard.line().draw().is_none());
    }
    let patch = SettingsPatch {
        phase: Some(Change::Set(Phase::PreOpen)),
        ..SettingsPatch::default()
    };
    shard.set(patch);
    assert!(shard.line().is_undrawn() && !shard.line().needs_seed());
    assert_eq!(
        shard.line().draw().unwrap().commitment,
        Some(commitment(&SEED))
    );
    open(&mut shard);
    assert_eq!(shard.line().draw().unwrap().took_part, Some(4));
}

/// A builder that is made anew while times are being shifted has the times that the other one has.
#[test]
fn a_drawn_line_is_put_back_the_same_by_all_nodes() {
    let mut shard = awaiting(1_024, 1, 40_000);
    let lanes = vec![
        LaneSettings::default(),
        LaneSettings {
            boost_ms: 700,
            ..LaneSettings::new("vip".try_into().unwrap())
        },
    ];
    shard.set(SettingsPatch {
        lanes: Some(Change::Set(lanes)),
        ..SettingsPatch::default()
    });
    shard.now_ms += 5_000;
    let enter_vip = |shard: &mut Shard| {
        let enter = Op::Enter {
            line: shop(),
            key: None,
            lane: Some("vip".try_into().unwrap()),
        };
        shard.apply(&enter).unwrap();
    };
    enter_vip(&mut shard);
    seal(&mut shard);
    open(&mut shard);
    run_all(&mut shard);
    shard.now_ms += 500;
    enter_vip(&mut shard);
    let clock_ms = shard.now_ms;
    let dump = shard.line().dump();
    let mut builder = LineBuilder::new(dump, Limits::default()).unwrap();
    assert_eq!(
        builder.shift_page(clock_ms, 90_000),
        None,
        "more than a page"
    );
    let mut anew = LineBuilder::new(builder.dump(), Limits::default()).unwrap();
    anew.resume_shift(builder.clock_shift().unwrap());
    let tokens = [(0, 40_001), (0, 60_000), (0, 80_000), (1, 2), (1, 3)];
    let places_in = |line: &Line| tokens.map(|(lane, token)| line.place_of(lane, token));
    let before = places_in(shard.line());
    let places = [builder, anew].map(|builder| {
        let mut lines = Lines::new();
        let how = Restore {
            clock_ms,
            overwrite: false,
        };
        let stamp = Stamp {
            index: 9,
            op_no: 0,
            now_ms: 90_000,
            wall_ms: 0,
        };
        lines.put_back(stamp, builder, how, None).unwrap();
        places_in(lines.get(&shop()).unwrap())
    });
    assert_eq!(places, [before, before]);
}

/// The seed of the backup may have been shown since.
#[test]
fn a_line_that_is_put_back_before_its_opening_gets_another_seed() {
    let mut shard = awaiting(1_000, 1, 5);
    seal(&mut shard);
    let backup = shard.line().dump();
    open(&mut shard);
    assert_eq!(shard.line().draw().unwrap().seed, Some(SEED));
    let builder = LineBuilder::new(backup, Limits::default()).unwrap();
    let how = Restore {
        clock_ms: shard.now_ms,
        overwrite: true,
    };
    let stamp = Stamp {
        index: 1_000,
        op_no: 0,
        now_ms: shard.now_ms,
        wall_ms: 0,
    };
    shard.lines.put_back(stamp, builder, how, None).unwrap();
    assert!(shard.line().needs_seed());
    assert_eq!(shard.line().draw().unwrap().commitment, None);
    assert_eq!(shard.status(1).state, State::Waiting);
}

#[test]
fn a_line_without_enough_numbers_opens_in_order() {
    let mut shard = awaiting(1_000, 1, 2);
    seal(&mut shard);
    let mut dump = shard.lines.dump();
    let line = &mut dump.lines[0];
    let skipped = NUMBER_MAX - line.lanes[0].next_token;
    line.lanes[0].next_token += skipped;
    line.gone_counts[1] += skipped;
    shard.lines = Lines::restore(dump).unwrap();
    open(&mut shard);
    assert_eq!(
        (shard.line().draw(), shard.status(1).state),
        (None, State::Admitted)
    );
}

/// A draw in the midst of it.
fn half_drawn() -> Dump {
    let mut shard = awaiting(3, 1, 12);
    shard.leave(12).unwrap();
    enter_as(&mut shard, 99);
    seal(&mut shard);
    open(&mut shard);
    while shard.line().draw().unwrap().drawn < Some(5) {
        run(&mut shard);
    }
    shard.lines.dump()
}

#[test]
fn a_dump_that_no_draw_can_have_made_is_refused() {
    type Tampers = fn(&mut Dump);
    let tamperings: [(&str, Tampers); 15] = [
        ("a seat before the draw", |it| {
            let live = it.lines[0].lanes[0]
                .live
                .iter_mut()
                .find(|(token, _)| *token <= 13);
            let deadline_ms = 5_000;
            live.unwrap().1.stage = Stage::Admitted {
                deadline_ms,
                units: 1,
            };
        }),
        ("gone under a number that is to come", |it| {
            let mut gone = it.lines[0].gone[0];
            gone.1 = 25;
            it.lines[0].gone.push(gone);
        }),
        ("moved from a number that is to come", |it| {
            it.lines[0].lanes[0].live[0].1.moved_from = [(0, 25)].into();
        }),
        ("a number twice", |it| {
            it.lines[0].lanes[0].draw[0].drawn[1] = it.lines[0].lanes[0].draw[0].drawn[0].max(1)
        }),
        ("too large a number", |it| {
            it.lines[0].lanes[0].draw[0].drawn.fill(14)
        }),
        ("too few", |it| {
            it.lines[0].lanes[0].draw[0].drawn.truncate(11)
        }),
        ("nobody took part", |it| it.lines[0].lanes[0].draw.clear()),
        ("a page twice", |it| {
            let page = it.lines[0].lanes[0].draw[0].clone();
            it.lines[0].lanes[0].draw.push(page);
        }),
        ("others took part", |it| it.lines[0].lanes[0].draw[0].no = 3),
        ("no lots", |it| it.lines[0].lanes[0].draw[0].drawn.clear()),
        ("no seed", |it| {
            it.lines[0].draw.as_mut().unwrap().seed = None
        }),
        ("a page of no draw", |it| {
            it.lines[0].draw.as_mut().unwrap().begun = None
        }),
        ("more than were issued", |it| {
            begun(it).lanes[0].after += 1_000
        }),
        ("another count", |it| begun(it).lanes[0].count = 11),
        ("lanes that are not there", |it| {
            let block = begun(it).lanes[0];
            begun(it).lanes.push(block);
        }),
    ];
    let good = half_drawn();
    assert!(Lines::restore(good.clone()).is_ok());
    for (what, tamper) in tamperings {
        let mut dump = good.clone();
        tamper(&mut dump);
        assert!(Lines::restore(dump).is_err(), "{what}");
    }
}

fn begun(dump: &mut Dump) -> &mut nowserving_line::DrawBegun {
    dump.lines[0].draw.as_mut().unwrap().begun.as_mut().unwrap()
}
