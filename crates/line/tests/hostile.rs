//! Nothing that is given to the state machine makes it panic: not operations with absurd values,
//! not dumps that were tampered with. (Overflow checks are on here, and those of `require`.)

#[path = "hostile/dump.rs"]
mod dump;

use crate::common::{Restart, Shard, name, shop};
use nowserving_line::{
    Admission, AdmissionRate, CallItem, Change, Entered, Gate, Gone, ImportRow, JournalEntry,
    Journaled, JournaledToken, KickItem, KickNote, KickSelector, LaneDump, LaneSettings, Limits,
    LineDump, Lines, LiveRecord, NUMBER_MAX, Op, Opening, Phase, Quota, Reason, RecycleItem,
    RefusedCounts, ScheduledChange, Settings, SettingsPatch, Stage, Stamp, State, TakeBy,
    Timestamp, TokenBy, TokenRef,
};
use proptest::prelude::*;

use dump::{apply_tampering, call_back, good_dump, lane_settings, mark, move_from, tamper};

/// Small, around the limits, or anything.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..6u64,
        1 => (0..4u64).prop_map(|n| u64::MAX - n),
        1 => (0..4u64).prop_map(|n| NUMBER_MAX + 2 - n),
        1 => any::<u64>(),
    ]
}

fn lane() -> impl Strategy<Value = u8> {
    prop_oneof![6 => Just(0), 1 => 0..10u8, 1 => Just(u8::MAX)]
}

fn incarnation() -> impl Strategy<Value = u64> {
    prop_oneof![6 => Just(4_096), 1 => number()]
}

fn at() -> impl Strategy<Value = TokenRef> {
    (incarnation(), lane(), number()).prop_map(|(incarnation, lane, token)| TokenRef {
        incarnation,
        lane,
        token,
    })
}

fn state() -> impl Strategy<Value = State> {
    prop_oneof![
        Just(State::Waiting),
        Just(State::Admitted),
        Just(State::InCheckout),
        Just(State::Gone),
    ]
}

fn settings() -> impl Strategy<Value = Settings> {
    let timeouts = (number(), number(), number(), number());
    (number32(), number32(), timeouts, rules()).prop_map(
        |(seats, queue_limit, (idle, claim, checkout, max), rules)| Settings {
            seats,
            queue_limit,
            waiting_idle_timeout_ms: idle,
            claim_timeout_ms: claim,
            checkout_timeout_ms: checkout,
            checkout_max_ms: max,
            ..rules
        },
    )
}

fn number32() -> impl Strategy<Value = u32> {
    prop_oneof![0..6u32, any::<u32>()]
}

/// Settings of which most are in range, but for timeouts and limits.
fn rules() -> impl Strategy<Value = Settings> {
    let some = prop::option::of::<BoxedStrategy<u32>>;
    let flags = any::<(bool, bool)>();
    let lane = (0..4usize, number(), flags, some(number32().boxed()));
    let lane = lane.prop_map(
        |(name, boost_ms, (absolute, jump), queue_limit)| LaneSettings {
            name: LANES[name].try_into().unwrap(),
            boost_ms,
            absolute,
            queue_limit,
            jump,
        },
    );
    let lanes = prop::collection::vec(lane, 1..4);
    let micro = prop_oneof![1_000..10_000_000u64, number()];
    let rate = (micro, number32()).prop_map(|(per_second_micro, burst)| AdmissionRate {
        per_second_micro,
        burst,
    });
    let quota =
        (number(), number32(), number32()).prop_map(|(total, standby_percent, per_visit)| Quota {
            per_visit,
            total,
            standby_percent,
            renew: None,
        });
    let phase = (0..5u8).prop_map(|code| Phase::from_code(code).unwrap());
    (
        (lanes, prop::option::of(rate), prop::option::of(quota)),
        (phase, number32(), some(number32().boxed()), any::<bool>()),
        prop::option::weighted(0.2, 0..4usize),
    )
        .prop_map(
            |((lanes, admission_rate, quota), (phase, n, cap, release), default)| Settings {
                lanes,
                default_lane: default.map(|lane| LANES[lane].try_into().unwrap()),
                admission_rate,
                quota,
                phase,
                call_ahead: n,
                position_cap: cap,
                release_on_claim: release,
                admission: match n % 3 {
                    0 => Admission::Called,
                    _ => Admission::Auto,
                },
                gate: Gate::ALL[n as usize % 3],
                opening: Opening::ALL[n as usize % 2],
                ..Settings::new(2, 3)
            },
        )
}

const LANES: [&str; 4] = ["normal", "vip", "web", "late"];

/// Such a part, and perhaps a schedule of such parts.
fn patch() -> impl Strategy<Value = SettingsPatch> {
    let change = (number(), plain_patch());
    let changes = prop::collection::vec(change, 0..4);
    (plain_patch(), prop::option::weighted(0.3, changes)).prop_map(|(patch, changes)| {
        let change = |(at_ms, set)| ScheduledChange { at_ms, set };
        let schedule = changes.map(|changes| changes.into_iter().map(change).collect());
        SettingsPatch {
            schedule: schedule.map(Change::Set),
            ..patch
        }
    })
}

/// Any part of such settings.
fn plain_patch() -> impl Strategy<Value = SettingsPatch> {
    fn part<T>(bits: u16, bit: u8, value: Option<T>) -> Option<Change<T>> {
        (bits & (1 << bit) != 0).then(|| value.map_or(Change::Unset, Change::Set))
    }
    // Few at once, as one that is out of range refuses the rest.
    let bits = (any::<u16>(), any::<u16>()).prop_map(|(some, others)| some & others);
    (bits, settings()).prop_map(|(bits, s)| SettingsPatch {
        seats: part(bits, 0, Some(s.seats)),
        lanes: part(bits, 1, Some(s.lanes)),
        admission_rate: part(bits, 2, s.admission_rate),
        quota: part(bits, 3, s.quota),
        phase: part(bits, 4, Some(s.phase)),
        call_ahead: part(bits, 5, Some(s.call_ahead)),
        position_cap: part(bits, 6, s.position_cap),
        release_on_claim: part(bits, 7, Some(s.release_on_claim)),
        default_lane: part(bits, 8, s.default_lane),
        admission: part(bits, 9, Some(s.admission)),
        gate: part(bits, 10, Some(s.gate)),
        ..SettingsPatch::default()
    })
}

fn token_by() -> impl Strategy<Value = TokenBy> {
    let key = prop::collection::vec(any::<u8>(), 0..200);
    prop_oneof![
        at().prop_map(TokenBy::At),
        key.prop_map(|key| TokenBy::Key(key.into())),
    ]
}

fn import() -> impl Strategy<Value = Op> {
    let key = prop::collection::vec(any::<u8>(), 0..200);
    let row = (key, prop::option::of(0..4usize), prop::option::of(number()));
    let row = row.prop_map(|(key, lane, entered_at_ms)| ImportRow {
        key: key.into(),
        lane: lane.map(|lane| LANES[lane].try_into().unwrap()),
        entered_at_ms,
    });
    let rows = prop::collection::vec(row, 0..10);
    let first = prop_oneof![0..20u64, number()];
    (0..80usize, first, rows).prop_map(|(id, first_row, rows)| Op::Import {
        line: shop(),
        import_id: "i".repeat(id / 70 * id + id % 2).into(),
        first_row,
        rows,
    })
}

fn kick() -> impl Strategy<Value = Op> {
    let item = (
        lane(),
        number(),
        prop::option::of(state()),
        prop::option::of(number()),
    );
    let item = item.prop_map(|(lane, token, state, clock_ms)| KickItem {
        lane,
        token,
        state,
        clock_ms,
    });
    let selector = prop_oneof![
        any::<u32>().prop_map(KickSelector::Tokens),
        lane().prop_map(KickSelector::Lane),
        Just(KickSelector::All),
    ];
    let note = (selector, prop::option::of(state()), 0..200usize);
    let note = note.prop_map(|(selector, state, length)| KickNote {
        selector,
        state,
        reason: Some("r".repeat(length).into()),
        by: None,
    });
    let items = prop::collection::vec(item, 0..20);
    (incarnation(), items, prop::option::of(note)).prop_map(|(incarnation, tokens, note)| {
        Op::Kick {
            line: shop(),
            incarnation,
            tokens,
            note: note.map(Box::new),
        }
    })
}

fn call() -> impl Strategy<Value = Op> {
    let id = || prop_oneof!["[ab]".boxed(), ".{0,70}".boxed()];
    let key = prop::collection::vec(any::<u8>(), 0..200);
    let by = prop_oneof![
        key.prop_map(|key| TakeBy::Key(key.into())),
        (0..4usize, number()).prop_map(|(lane, token)| TakeBy::Number {
            lane: LANES[lane].try_into().unwrap(),
            token,
        }),
    ];
    prop_oneof![
        (number32(), prop::option::of(0..4usize), id()).prop_map(|(n, lane, id)| Op::CallNext {
            line: shop(),
            n,
            lane: lane.map(|lane| LANES[lane].try_into().unwrap()),
            call_id: id.into(),
        }),
        (by, prop::option::of(id())).prop_map(|(by, id)| Op::Take {
            line: shop(),
            by,
            call_id: id.map(Into::into),
        }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let key = prop::option::of(prop::collection::vec(any::<u8>(), 0..200));
    let called = prop::collection::vec(any::<u8>(), 0..200);
    let item = (lane(), number(), state(), number());
    let items = prop::collection::vec(item, 0..20).prop_map(|items| {
        let items = items.into_iter();
        let items = items.map(|(lane, token, state, clock_ms)| RecycleItem {
            lane,
            token,
            state,
            clock_ms,
        });
        items.collect()
    });
    let touched = prop::collection::vec((lane(), number(), number()), 0..20);
    prop_oneof![
        6 => (key, prop::option::of(0..4usize)).prop_map(|(key, lane)| Op::Enter {
            line: shop(),
            key: key.map(Into::into),
            lane: lane.map(|lane| LANES[lane].try_into().unwrap()),
        }),
        2 => (incarnation(), number()).prop_map(|(incarnation, next_ms)| Op::RenewQuota {
            line: shop(),
            incarnation,
            next_ms,
        }),
        3 => (incarnation(), any::<u8>()).prop_map(|(incarnation, seed)| Op::SealDraw {
            line: shop(),
            incarnation,
            seed: nowserving_line::Secret([seed; 32]),
        }),
        2 => import(),
        2 => prop::option::of((any::<u32>(), number()))
            .prop_map(|told| Op::CapacityTold { line: shop(), told }),
        3 => (called, prop::option::of(0..4usize)).prop_map(|(key, lane)| Op::Callback {
            line: shop(),
            key: key.into(),
            lane: lane.map(|lane| LANES[lane].try_into().unwrap()),
        }),
        3 => (0..4usize, number(), 0..4usize).prop_map(|(lane, token, to)| Op::Move {
            line: shop(),
            lane: LANES[lane].try_into().unwrap(),
            token,
            to: LANES[to].try_into().unwrap(),
        }),
        3 => (token_by(), 0..4usize).prop_map(|(by, to)| Op::Jump {
            line: shop(),
            by,
            to: LANES[to].try_into().unwrap(),
        }),
        3 => (patch(), prop::option::of(incarnation())).prop_map(|(patch, incarnation)| {
            Op::Configure { line: shop(), patch: patch.into(), if_version: None, incarnation }
        }),
        3 => at().prop_map(|at| Op::Claim { line: shop(), at }),
        2 => (at(), number()).prop_map(|(at, epoch)| Op::Renew { line: shop(), at, epoch }),
        3 => (at(), prop::option::of(number()), prop::option::of(number32()))
            .prop_map(|(at, epoch, units)| Op::Complete { line: shop(), at, epoch, units }),
        2 => at().prop_map(|at| Op::Leave { line: shop(), at }),
        2 => (incarnation(), items)
            .prop_map(|(incarnation, tokens)| Op::Recycle { line: shop(), incarnation, tokens }),
        2 => kick(),
        1 => (incarnation(), [number(), number(), number(), number()]).prop_map(|(incarnation, counts)| {
            let refused = RefusedCounts::new(counts);
            Op::CountRefused { line: shop(), incarnation, refused }
        }),
        3 => call(),
        2 => (incarnation(), touched)
            .prop_map(|(incarnation, tokens)| Op::Touch { line: shop(), incarnation, tokens }),
        1 => incarnation().prop_map(|incarnation| Op::RunBackground { line: shop(), incarnation }),
        1 => settings().prop_map(|settings| Op::Create { line: shop(), settings }),
        1 => (any::<bool>(), prop::option::of(incarnation()))
            .prop_map(|(force, incarnation)| Op::Delete { line: shop(), force, incarnation }),
    ]
}

fn ask_everything(lines: &Lines, at: TokenRef) {
    for line in lines.iter() {
        let _ = line.status(at, at.token);
        let _ = line.poll(at, u64::MAX, true);
        let _ = (line.board(at.token), line.held_back_by(at.token));
        let _ = line.live(at.lane, at.token);
        for (_, _, live) in line.live_from((at.lane, at.token)) {
            let _ = line.due_at_ms(live);
        }
        let _ = line.counts().live();
        let _ = (line.explain(at), line.resolve(at), line.next_by_rate_ms());
        let _ = line.journal_after(at.token).count();
        let _ = line.would_refuse_enter(None, None, at.token);
        let _ = line.would_refuse_callback(b"x", None, at.token);
    }
    let _ = lines.range_after(Some(&name("zzz"))).count() + lines.background_work(at.token).count();
}

fn run(lines: &mut Lines, steps: Vec<(u64, u32, u64, Op, TokenRef)>) {
    let mut events = Vec::new();
    for (index, op_no, now_ms, op, at) in steps {
        let stamp = Stamp {
            index,
            op_no,
            now_ms,
            wall_ms: now_ms,
        };
        let _ = lines.apply(stamp, &op, Some(&mut events));
        ask_everything(lines, at);
    }
}

fn steps() -> impl Strategy<Value = Vec<(u64, u32, u64, Op, TokenRef)>> {
    prop::collection::vec((number(), any::<u32>(), number(), op(), at()), 1..60)
}

proptest! {
    #![proptest_config(crate::common::cases(3_000))]

    #[test]
    fn no_operation_panics(steps in steps()) {
        let mut lines = Lines::new();
        let settings = Settings::new(2, 3);
        let create = Op::Create { line: shop(), settings };
        let stamp = Stamp { index: 1, op_no: 0, now_ms: 0, wall_ms: 0 };
        lines.apply(stamp, &create, None).unwrap();
        run(&mut lines, steps);
        let dump = lines.dump();
        prop_assert_eq!(Lines::restore(dump.clone()).unwrap().dump(), dump);
    }

    #[test]
    fn no_dump_panics(tampered in prop::collection::vec(tamper(), 1..4), steps in steps()) {
        let mut dump = good_dump();
        for tampered in tampered {
            apply_tampering(&mut dump, tampered);
        }
        if let Ok(mut lines) = Lines::restore(dump) {
            run(&mut lines, steps);
        }
    }
}

fn refused(spoil: impl FnOnce(&mut LineDump)) -> &'static str {
    let mut dump = good_dump();
    spoil(&mut dump.lines[0]);
    Lines::restore(dump).unwrap_err().what
}

#[test]
fn a_dump_that_contradicts_itself_is_refused() {
    assert_eq!(refused(|l| l.settings.seats = 0), "settings out of range");
    assert_eq!(refused(|l| l.lanes.clear()), "needs 1 to 64 lanes");
    assert_eq!(refused(|l| l.gone_counts[2] = 1), "tokens don't add up");
    assert_eq!(
        refused(|l| l.gone_counts = [u64::MAX; Reason::ALL.len()]),
        "tokens don't add up"
    );
    for count in [100, u64::MAX] {
        let more = |l: &mut LineDump| l.gone_from.set(State::Admitted, Reason::Left, count);
        assert_eq!(refused(more), "more departures than tokens gone");
    }
    assert_eq!(refused(|l| l.epoch = 1), "an epoch never given");
    assert_eq!(
        refused(|l| l.lanes[0].live.swap(0, 1)),
        "live tokens out of order"
    );
    let bucket = |l: &mut LineDump| l.bucket = None;
    assert_eq!(refused(bucket), "not a bucket of the rate");
    let full = |l: &mut LineDump| l.bucket.as_mut().unwrap().level_nano = 3_000_000_001;
    assert_eq!(refused(full), "not a bucket of the rate");
    let lane = |l: &mut LineDump| l.settings.lanes.push(lane_settings("web"));
    assert_eq!(refused(lane), "a lane of the settings is missing");
    let removed = |l: &mut LineDump| l.settings.lanes.truncate(1);
    assert_eq!(refused(removed), "somebody in a lane that was removed");
    let called = |l: &mut LineDump| l.lanes[0].called_through = 7;
    assert_eq!(refused(called), "called ahead of issue");
    let marks = |l: &mut LineDump| l.settings.position_events = vec![3, 1];
    assert_eq!(refused(marks), "marks of other positions");
    let ahead = |l: &mut LineDump| mark(l, 7);
    assert_eq!(refused(ahead), "marks of other positions");
    let asked = |l: &mut LineDump| call_back(l, &[(1, "x"), (3, "y")]);
    assert_eq!(refused(asked), "a caller who never asked");
    let again = |l: &mut LineDump| call_back(l, &[(1, "x"), (2, "x")]);
    assert_eq!(refused(again), "two callers of one key");
    let order = |l: &mut LineDump| call_back(l, &[(2, "x"), (1, "y")]);
    assert_eq!(refused(order), "callers out of order");
    let offers = |l: &mut LineDump| l.lanes[0].offers.recent = u64::MAX;
    assert_eq!(refused(offers), "impossible offers");
    let from = |l: &mut LineDump| l.lanes[1].live[0].1.moved_from[0].1 = 2;
    assert_eq!(refused(from), "moved from a token that is not gone");
    let early = |l: &mut LineDump| l.calls.swap(0, 1);
    assert_eq!(refused(early), "not calls");
    let again = |l: &mut LineDump| l.calls.push(l.calls[0].clone());
    assert_eq!(refused(again), "not calls");
    let never = |l: &mut LineDump| {
        let CallItem::Admitted(token) = &mut l.calls[1] else {
            panic!("{:?}", l.calls);
        };
        token.token = 77;
    };
    assert_eq!(refused(never), "a call of no token");
    let twice = |l: &mut LineDump| move_from(&mut l.lanes[1].live[0].1, (0, 5));
    assert_eq!(refused(twice), "a token moved twice");
    let often = |l: &mut LineDump| l.lanes[1].live[0].1.moved_from = [(0, 5); 17].into();
    assert_eq!(refused(often), "moved too often");
    let jumps = |l: &mut LineDump| l.lanes[1].live[0].1.jumps = 2;
    assert_eq!(refused(jumps), "more jumps than moves");
    let nowhere = |l: &mut LineDump| l.gone[1].2.moved_to = None;
    assert_eq!(refused(nowhere), "a token moved nowhere");
    let in_line = |l: &mut LineDump| l.gone[1].2.moved_to = Some((0, 2));
    assert_eq!(refused(in_line), "a token moved nowhere");
    assert_eq!(refused(|l| l.journal.swap(0, 1)), "not a journal");
    let later = |l: &mut LineDump| l.lanes[0].live[0].1.entered.version = l.version + 1;
    assert_eq!(refused(later), "entered at no version of the line");
    let swapped = |l: &mut LineDump| l.lanes[0].live[1].1.entered.version = 1;
    assert_eq!(refused(swapped), "entered out of order");
    let itself = |l: &mut LineDump| match &mut l.journal[1] {
        JournalEntry {
            version,
            what: Journaled::Token { entered, .. },
            ..
        } => entered.version = *version,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(itself), "not a journal");
    for position in [0, 2] {
        let behind = |l: &mut LineDump| match &mut l.journal[0].what {
            Journaled::Token { token: 1, what, .. } => *what = JournaledToken::Entered { position },
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(behind), "not a journal");
    }
    let earlier = |l: &mut LineDump| l.journal[0].version -= 1;
    assert_eq!(refused(earlier), "not a journal");
    let key = |l: &mut LineDump| l.lanes[0].live[1].1.key = Some((*b"b").into());
    assert_eq!(refused(key), "two live tokens of one key");
    let live = Gone {
        reason: Reason::Left,
        epoch: None,
        released: false,
        moved_to: None,
    };
    assert_eq!(
        refused(|l| l.gone.push((0, 3, live))),
        "a token live and gone"
    );
    assert_eq!(refused(|l| l.gone.push(l.gone[0])), "a token gone twice");
    let mut twice = good_dump();
    twice.lines.push(twice.lines[0].clone());
    let bad = Lines::restore(twice).unwrap_err();
    assert_eq!(bad.what, "lines out of order");
    assert_eq!(bad.line, "shop");
}

/// Restored from a dump, a line finds the next token over all lanes.
#[test]
fn seats_go_to_the_first_over_all_lanes() {
    let waiting = |token, entered_at_ms| {
        let live = LiveRecord {
            key: None,
            entered: Entered {
                at: Timestamp {
                    service_ms: entered_at_ms,
                    // The service clock decides the order, whatever the wall clock said.
                    wall_ms: 100 - entered_at_ms,
                },
                version: 10 + token,
            },
            stage: Stage::Waiting {
                last_seen_ms: entered_at_ms,
            },
            moved_from: [].into(),
            jumps: 0,
            eta_given: None,
        };
        (token, live)
    };
    let mut shard = Shard::with_shop(Limits::default(), Settings::new(1, 20));
    shard.enter().unwrap();
    let mut dump = shard.lines.dump();
    dump.lines[0].version = 20;
    dump.lines[0].settings.lanes.push(lane_settings("vip"));
    let lanes = &mut dump.lines[0].lanes;
    lanes[0].live.extend([waiting(2, 10), waiting(3, 40)]);
    lanes[0].next_token = 4;
    lanes.push(LaneDump {
        name: "vip".try_into().unwrap(),
        next_token: 4,
        called_through: 0,
        marks: Vec::new(),
        arrivals: Default::default(),
        draw: Vec::new(),
        live: vec![waiting(1, 10), waiting(2, 30), waiting(3, 40)],
        offers: Default::default(),
        callers: Vec::new(),
    });
    shard.lines = Lines::restore(dump).unwrap();
    let board = shard.board();
    let through = |lane: usize| board.lanes[lane].admitted_through;
    assert_eq!((through(0), through(1)), (1, 0));
    let mut order = Vec::new();
    let mut holder = (0, 1);
    for _ in 0..5 {
        let mut at = shard.at(holder.1);
        at.lane = holder.0;
        shard.apply(&Op::Leave { line: shop(), at }).unwrap();
        let mut live = shard.line().live_from((0, 0));
        holder = live
            .find(|(_, _, live)| live.state() == State::Admitted)
            .map(|(lane, token, _)| (lane, token))
            .unwrap();
        order.push(holder);
    }
    // A tie goes to the lane listed first.
    assert_eq!(order, [(0, 2), (1, 1), (1, 2), (0, 3), (1, 3)]);
    let op = Op::Enter {
        line: shop(),
        key: None,
        lane: Some("vip".try_into().unwrap()),
    };
    shard.apply(&op).unwrap();
    let board = shard.board();
    assert_eq!(
        (board.lanes[0].next_token, board.lanes[1].next_token),
        (4, 5)
    );
}
