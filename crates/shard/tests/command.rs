//! Log entries: every command comes back as it went in, and nothing that a
//! reader does not understand is skipped.

use std::collections::BTreeMap;

use bytes::Bytes;
use nowserving_line::{
    Admission, AdmissionRate, Change, Gate, ImportRow, KickItem, KickNote, KickSelector, LaneName,
    LaneSettings, LineName, Op, Opening, OperatorNote, Phase, Quota, RecycleItem, RefusedCounts,
    Renew, ScheduledChange, Settings, SettingsPatch, State, TakeBy, TokenBy, TokenRef, ZoneName,
};
use nowserving_protocol::keys::{KeyPrint, Rotation};
use nowserving_shard::command::{
    self, COMMANDS_MAX, Command, Entry, EntryBuilder, EntryError, FORMAT, encode,
};
use nowserving_shard::limits::LimitCommand;
use nowserving_shard::members::{Member, Members, MembersChange, MembersCommand, MembersRequest};
use nowserving_shard::requests::{Origin, RequestId};
use nowserving_shard::restore::{RestoreCommand, RestoreStep};
use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;

fn line() -> impl Strategy<Value = LineName> {
    "[A-Za-z0-9_-]{1,64}".prop_map(|name| LineName::try_from(name.as_str()).unwrap())
}

fn lane() -> impl Strategy<Value = LaneName> {
    "[A-Za-z0-9_-]{1,64}".prop_map(|name| LaneName::try_from(name.as_str()).unwrap())
}

fn at() -> impl Strategy<Value = TokenRef> {
    any::<(u64, u8, u64)>().prop_map(|(incarnation, lane, token)| TokenRef {
        incarnation,
        lane,
        token,
    })
}

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map(".{0,8}", ".{0,8}", 0..4)
}

fn rate() -> impl Strategy<Value = AdmissionRate> {
    any::<(u64, u32)>().prop_map(|(per_second_micro, burst)| AdmissionRate {
        per_second_micro,
        burst,
    })
}

fn lanes() -> impl Strategy<Value = Vec<LaneSettings>> {
    let lane = (lane(), any::<(u64, bool, Option<u32>, bool)>());
    let lane = lane.prop_map(
        |(name, (boost_ms, absolute, queue_limit, jump))| LaneSettings {
            name,
            boost_ms,
            absolute,
            queue_limit,
            jump,
        },
    );
    prop_oneof![1 => Just(vec![LaneSettings::default()]), 3 => vec(lane, 0..4)]
}

fn quota() -> impl Strategy<Value = Quota> {
    let daily = (any::<u16>(), "[!-~]{1,40}").prop_map(|(minute, zone)| Renew::Daily {
        minute,
        zone: ZoneName::new(&zone).unwrap(),
    });
    let renew = prop_oneof![any::<u64>().prop_map(|ms| Renew::Every { ms }), daily];
    (any::<(u64, u32, u32)>(), of(renew)).prop_map(
        |((total, standby_percent, per_visit), renew)| Quota {
            total,
            standby_percent,
            renew,
            per_visit,
        },
    )
}

fn phase() -> impl Strategy<Value = Phase> {
    proptest::sample::select(&Phase::ALL[..])
}

fn change<T: std::fmt::Debug + Clone>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<Change<T>>> {
    of(of(value).prop_map(|value| value.map_or(Change::Unset, Change::Set)))
}

prop_compose! {
    fn first_patch()(
        seats in change(any::<u32>()), queue_limit in change(any::<u32>()),
        idle in change(any::<u64>()), claim in change(any::<u64>()),
        checkout in change(any::<u64>()), max in change(any::<u64>()),
        max_wait_ms in change(any::<u64>()), jumps_max in change(any::<u32>()),
        event_key in change(any::<bool>()),
        token_events in change(any::<bool>()), labels in change(labels()),
    ) -> SettingsPatch {
        SettingsPatch {
            seats, queue_limit, waiting_idle_timeout_ms: idle, claim_timeout_ms: claim,
            checkout_timeout_ms: checkout, checkout_max_ms: max, max_wait_ms, jumps_max,
            event_key, token_events, labels,
            ..SettingsPatch::default()
        }
    }
}

prop_compose! {
    fn second_patch()(
        first in first_patch(), admission_rate in change(rate()), lanes in change(lanes()),
        call_ahead in change(any::<u32>()), quota in change(quota()), phase in change(phase()),
        position_cap in change(any::<u32>()), release_on_claim in change(any::<bool>()),
        default_lane in change(lane()), admission in change(proptest::sample::select(&Admission::ALL[..])),
    ) -> SettingsPatch {
        SettingsPatch {
            admission, admission_rate, lanes, call_ahead, quota, phase, position_cap, release_on_claim, default_lane,
            ..first
        }
    }
}

prop_compose! {
    fn change_of_a_schedule()(
        second in second_patch(), position_events in change(vec(any::<u32>(), 0..9)),
        call_ahead_ms in change(any::<u64>()), callback_limit in change(any::<u32>()),
        seats_when_silent in change(any::<u32>()),
        gate in change(proptest::sample::select(&Gate::ALL[..])),
        opening in change(proptest::sample::select(&Opening::ALL[..])), draw_beacon in change("[ -~]{0,9}"),
    ) -> SettingsPatch {
        SettingsPatch {
            position_events, call_ahead_ms, callback_limit, seats_when_silent, gate, opening, draw_beacon, ..second
        }
    }
}

fn schedule() -> impl Strategy<Value = Vec<ScheduledChange>> {
    let change = (any::<u64>(), change_of_a_schedule());
    vec(
        change.prop_map(|(at_ms, set)| ScheduledChange { at_ms, set }),
        0..3,
    )
}

prop_compose! {
    fn patch()(rest in change_of_a_schedule(), schedule in change(schedule())) -> SettingsPatch {
        SettingsPatch { schedule, ..rest }
    }
}

fn settings() -> impl Strategy<Value = Settings> {
    let required = any::<(u32, u32)>();
    (required, patch()).prop_map(|((seats, queue_limit), patch)| {
        let patch = SettingsPatch {
            seats: None,
            queue_limit: None,
            ..patch
        };
        Settings::new(seats, queue_limit)
            .with_unchecked(&patch)
            .unwrap()
    })
}

fn item() -> impl Strategy<Value = RecycleItem> {
    let states = vec![
        State::Waiting,
        State::Admitted,
        State::InCheckout,
        State::Gone,
    ];
    (any::<(u8, u64, u64)>(), proptest::sample::select(states)).prop_map(
        |((lane, token, clock_ms), state)| RecycleItem {
            lane,
            token,
            state,
            clock_ms,
        },
    )
}

fn token_by() -> impl Strategy<Value = TokenBy> {
    prop_oneof![
        at().prop_map(TokenBy::At),
        vec(any::<u8>(), 0..130).prop_map(|key| TokenBy::Key(key.into())),
    ]
}

fn take_by() -> impl Strategy<Value = TakeBy> {
    prop_oneof![
        vec(any::<u8>(), 0..130).prop_map(|key| TakeBy::Key(key.into())),
        (lane(), any::<u64>()).prop_map(|(lane, token)| TakeBy::Number { lane, token }),
    ]
}

fn import_row() -> impl Strategy<Value = ImportRow> {
    let key = vec(any::<u8>(), 0..130).prop_map(Vec::into_boxed_slice);
    let row = (key, of(lane()), any::<Option<u64>>());
    row.prop_map(|(key, lane, entered_at_ms)| ImportRow {
        key,
        lane,
        entered_at_ms,
    })
}

fn kick() -> impl Strategy<Value = Op> {
    let state = || of(prop_oneof![Just(State::Waiting), Just(State::InCheckout)]);
    let item = (any::<(u8, u64)>(), state(), any::<Option<u64>>());
    let item = item.prop_map(|((lane, token), state, clock_ms)| KickItem {
        lane,
        token,
        state,
        clock_ms,
    });
    let selector = prop_oneof![
        any::<u32>().prop_map(KickSelector::Tokens),
        any::<u32>().prop_map(KickSelector::Keys),
        any::<u64>().prop_map(KickSelector::IdleOverMs),
        any::<u8>().prop_map(KickSelector::Lane),
        Just(KickSelector::All),
    ];
    let note = (selector, state(), of("[a-z]{0,9}"), of("[a-z]{0,9}"));
    let note = note.prop_map(|(selector, state, reason, by)| KickNote {
        selector,
        state,
        reason: reason.map(Into::into),
        by: by.map(Into::into),
    });
    let parts = (line(), any::<u64>(), vec(item, 0..5), of(note));
    parts.prop_map(|(line, incarnation, tokens, note)| Op::Kick {
        line,
        incarnation,
        tokens,
        note: note.map(Box::new),
    })
}

fn op() -> impl Strategy<Value = Op> {
    let key = of(vec(any::<u8>(), 0..130).prop_map(Vec::into_boxed_slice));
    let called = vec(any::<u8>(), 0..130).prop_map(Vec::into_boxed_slice);
    prop_oneof![
        (line(), settings()).prop_map(|(line, settings)| Op::Create { line, settings }),
        (line(), patch(), any::<[Option<u64>; 2]>()).prop_map(
            |(line, patch, [if_version, incarnation])| {
                Op::Configure {
                    line,
                    patch: patch.into(),
                    if_version,
                    incarnation,
                }
            }
        ),
        (line(), any::<(bool, Option<u64>)>()).prop_map(|(line, (force, incarnation))| {
            Op::Delete {
                line,
                force,
                incarnation,
            }
        }),
        (line(), key, of(lane())).prop_map(|(line, key, lane)| Op::Enter { line, key, lane }),
        (line(), any::<[u64; 2]>()).prop_map(|(line, [incarnation, next_ms])| Op::RenewQuota {
            line,
            incarnation,
            next_ms
        }),
        (line(), any::<u64>(), any::<[u8; 32]>()).prop_map(|(line, incarnation, seed)| {
            Op::SealDraw {
                line,
                incarnation,
                seed: nowserving_line::Secret(seed),
            }
        }),
        (line(), "[a-z]{0,9}", any::<u64>(), vec(import_row(), 0..5)).prop_map(
            |(line, import_id, first_row, rows)| Op::Import {
                line,
                import_id: import_id.into(),
                first_row,
                rows,
            }
        ),
        (line(), any::<Option<(u32, u64)>>())
            .prop_map(|(line, told)| Op::CapacityTold { line, told }),
        (line(), called, of(lane())).prop_map(|(line, key, lane)| Op::Callback { line, key, lane }),
        (line(), at()).prop_map(|(line, at)| Op::Claim { line, at }),
        (line(), at(), any::<u64>()).prop_map(|(line, at, epoch)| Op::Renew { line, at, epoch }),
        (line(), at(), any::<(Option<u64>, Option<u32>)>()).prop_map(
            |(line, at, (epoch, units))| Op::Complete {
                units,
                line,
                at,
                epoch
            }
        ),
        (line(), at()).prop_map(|(line, at)| Op::Leave { line, at }),
        (line(), lane(), any::<u64>(), lane()).prop_map(|(line, lane, token, to)| Op::Move {
            line,
            lane,
            token,
            to
        }),
        (line(), token_by(), lane()).prop_map(|(line, by, to)| Op::Jump { line, by, to }),
        // An entry has calls of a bounded number of tokens.
        (line(), 0..9_u32, of(lane()), "[a-z]{0,9}").prop_map(|(line, n, lane, call_id)| {
            Op::CallNext {
                line,
                n,
                lane,
                call_id: call_id.into(),
            }
        }),
        (line(), take_by(), of("[a-z]{0,9}")).prop_map(|(line, by, call_id)| Op::Take {
            line,
            by,
            call_id: call_id.map(Into::into),
        }),
        (line(), any::<u64>(), vec(item(), 0..5)).prop_map(|(line, incarnation, tokens)| {
            Op::Recycle {
                line,
                incarnation,
                tokens,
            }
        }),
        (line(), any::<u64>(), vec(any::<(u8, u64, u64)>(), 0..5)).prop_map(
            |(line, incarnation, tokens)| Op::Touch {
                line,
                incarnation,
                tokens
            }
        ),
        kick(),
        (line(), any::<u64>(), any::<[u64; 4]>()).prop_map(|(line, incarnation, counts)| {
            let refused = RefusedCounts::new(counts);
            Op::CountRefused {
                line,
                incarnation,
                refused,
            }
        }),
        (line(), any::<u64>())
            .prop_map(|(line, incarnation)| Op::RunBackground { line, incarnation }),
    ]
}

fn members() -> impl Strategy<Value = Members> {
    let member = (any::<u64>(), any::<bool>());
    let member = member.prop_map(|(disk_id, drained)| Member { disk_id, drained });
    let nodes = prop::collection::btree_map(1_u64.., member, 0..4);
    let preferred = prop::collection::btree_map(any::<u32>(), any::<u64>(), 0..3);
    let first = prop::collection::btree_set(1_u64.., 0..4);
    let rotation = prop::option::of(rotation());
    (any::<[u64; 3]>(), nodes, preferred, first, rotation).prop_map(
        |([version, next_id, cluster_id], nodes, preferred, first, rotation)| Members {
            version,
            next_id,
            nodes,
            preferred,
            first,
            cluster_id,
            rotation,
        },
    )
}

fn rotation() -> impl Strategy<Value = Rotation> {
    let print = |(id, fingerprint)| KeyPrint { id, fingerprint };
    any::<([(u8, u64); 2], u64)>().prop_map(move |([current, old], old_until_ms)| Rotation {
        current: print(current),
        old: print(old),
        old_until_ms,
    })
}

fn members_change() -> impl Strategy<Value = MembersChange> {
    prop_oneof![
        any::<u64>().prop_map(|disk_id| MembersChange::Add { disk_id }),
        any::<u64>().prop_map(|id| MembersChange::Remove { id }),
        any::<(u64, u64)>().prop_map(|(id, disk_id)| MembersChange::Replace { id, disk_id }),
        any::<(u64, bool)>().prop_map(|(id, drained)| MembersChange::Drain { id, drained }),
        (vec(any::<u32>(), 0..4), any::<Option<u64>>())
            .prop_map(|(shards, to)| MembersChange::Prefer { shards, to }),
        rotation().prop_map(MembersChange::RotateKey),
    ]
}

fn members_command() -> impl Strategy<Value = MembersCommand> {
    let request = (
        members_change(),
        any::<Option<u64>>(),
        "[a-z ]{0,9}",
        ".{0,9}",
    );
    let request = request.prop_map(|(change, if_version, by, reason)| MembersRequest {
        change,
        if_version,
        by,
        reason,
    });
    prop_oneof![
        (vec(any::<u64>(), 0..4), any::<u64>())
            .prop_map(|(nodes, cluster_id)| MembersCommand::Begin { nodes, cluster_id }),
        members().prop_map(MembersCommand::Adopt),
        request.prop_map(MembersCommand::Request),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    let origin = prop::sample::select(&[Origin::Client, Origin::Direct, Origin::Forwarder][..]);
    let once = (any::<u128>(), origin, op()).prop_map(|(key, origin, op)| {
        Command::Once(RequestId { key, origin }, Box::new(Command::Line(op)))
    });
    prop_oneof![
        1 => Just(Command::Stamp),
        6 => op().prop_map(Command::Line),
        6 => once,
        2 => members_command().prop_map(Command::Members),
    ]
}

fn decode(bytes: &[u8]) -> Result<Entry, EntryError> {
    command::decode(bytes, FORMAT)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn every_command_comes_back(now_ms: u64, wall_ms: u64, compact_floor: u64, commands in vec(command(), 0..6)) {
        let mut builder = EntryBuilder::new(FORMAT);
        for command in &commands {
            prop_assert_eq!(builder.push(command.clone()), None);
        }
        let entry = Entry { format: FORMAT, now_ms, wall_ms, compact_floor, commands };
        let bytes = encode(&entry);
        prop_assert_eq!(decode(&bytes).unwrap(), entry.clone());
        prop_assert_eq!(builder.finish(now_ms, wall_ms, compact_floor), (entry, bytes));
    }

    #[test]
    fn no_bytes_are_too_strange(bytes in vec(any::<u8>(), 0..100)) {
        let _ = decode(&bytes);
    }

    #[test]
    fn an_altered_entry_is_answered(commands in vec(command(), 1..3), at: usize, bit in 0_u8..8) {
        let mut bytes = encode(&Entry { now_ms: 1, commands, ..Entry::default() });
        let at = at % bytes.len();
        bytes[at] ^= 1_u8 << bit;
        let _ = decode(&bytes);
        let _ = decode(&bytes[..at]);
    }
}

#[test]
fn an_entry_is_full_by_commands_or_by_bytes_and_the_first_one_always_fits() {
    let mut builder = EntryBuilder::new(FORMAT);
    let mut stamps = 0;
    while builder.push(Command::Stamp).is_none() {
        stamps += 1;
    }
    assert_eq!(stamps, 1_024);
    let recycle = |count| {
        let item = RecycleItem {
            lane: 0,
            token: u64::MAX,
            state: State::Waiting,
            clock_ms: u64::MAX,
        };
        Command::Line(Op::Recycle {
            line: LineName::try_from("a").unwrap(),
            incarnation: 1,
            tokens: vec![item; count],
        })
    };
    let mut builder = EntryBuilder::new(FORMAT);
    assert_eq!(builder.push(recycle(20_000)), None);
    assert_eq!(builder.push(Command::Stamp), Some(Command::Stamp));
    let (entry, bytes) = builder.finish(1, 2, 3);
    assert_eq!(
        decode(&bytes).unwrap(),
        entry,
        "what was refused left nothing behind"
    );

    let import = |rows| {
        let row = ImportRow {
            key: b"k"[..].into(),
            lane: None,
            entered_at_ms: None,
        };
        Command::Line(Op::Import {
            line: LineName::try_from("a").unwrap(),
            import_id: "i".into(),
            first_row: 0,
            rows: vec![row; rows],
        })
    };
    let mut builder = EntryBuilder::new(FORMAT);
    for (rows, fits) in [(1_000, true), (25, false), (24, true)] {
        assert_eq!(builder.push(import(rows)).is_none(), fits, "{rows}");
    }

    let call = |n| {
        Command::Line(Op::CallNext {
            line: LineName::try_from("a").unwrap(),
            n,
            lane: None,
            call_id: "c".into(),
        })
    };
    let mut builder = EntryBuilder::new(FORMAT);
    for n in [u32::MAX, 1] {
        let refused = builder.push(call(n)).is_some();
        assert_eq!(refused, n == 1, "the first one fits");
    }
    let mut builder = EntryBuilder::new(FORMAT);
    for (n, fits) in [(600, true), (425, false), (424, true), (1, false)] {
        assert_eq!(builder.push(call(n)).is_none(), fits, "{n}");
    }
    assert_eq!(
        builder.push(Command::Stamp),
        None,
        "only calls are too many"
    );

    let mut builder = EntryBuilder::new(FORMAT);
    while builder.push(recycle(100)).is_none() {}
    let (entry, bytes) = builder.finish(u64::MAX, u64::MAX, u64::MAX);
    assert_eq!(decode(&bytes).unwrap(), entry);
    assert!((250_000..263_000).contains(&bytes.len()), "{}", bytes.len());
}

fn id(key: u128) -> RequestId {
    RequestId {
        key,
        origin: Origin::Client,
    }
}

fn written(command: Command) -> Vec<u8> {
    encode(&Entry {
        commands: vec![command],
        ..Entry::default()
    })
}

/// Only some commands can stand within others: what no leader writes is refused, and not half understood.
#[test]
fn requests_and_notes_are_of_commands_that_have_them() {
    let name = || LineName::try_from("a").unwrap();
    let delete = Command::Line(Op::Delete {
        line: name(),
        force: true,
        incarnation: None,
    });
    let note = OperatorNote {
        by: Some("ann".into()),
        reason: None,
    };
    let noted = |command: &Command| Command::Noted(note.clone().into(), command.clone().into());
    let once = |command: &Command| Command::Once(id(7), command.clone().into());
    let restore = Command::Restore(RestoreCommand {
        line: name(),
        upload: 1,
        step: RestoreStep::Part {
            number: 0,
            data: Bytes::new().into(),
        },
    });
    let begin = Command::Members(MembersCommand::Begin {
        nodes: vec![1],
        cluster_id: 2,
    });
    let checkpoint = Command::Limit(LimitCommand::Checkpoint {
        resets: 0,
        changes: Vec::new(),
    });
    for good in [noted(&delete), once(&noted(&delete)), noted(&restore)] {
        assert_eq!(decode(&written(good.clone())).unwrap().commands, [good]);
    }
    for bad in [
        noted(&noted(&delete)),
        noted(&Command::Stamp),
        once(&once(&delete)),
        once(&begin),
        once(&restore),
        once(&noted(&restore)),
        once(&checkpoint),
    ] {
        let read = decode(&written(bad.clone()));
        assert!(matches!(read, Err(EntryError::Malformed(_))), "{bad:?}");
    }
    // Nor deeper than any.
    let deep = (0..1_000).fold(Command::Stamp, |inner, _| {
        Command::Once(id(7), inner.into())
    });
    assert!(decode(&written(deep)).is_err());
}

#[test]
fn a_line_is_put_back_only_where_all_members_read_whatever_a_backup_has() {
    let data = nowserving_codec::encode(&300_u32, 1);
    let part = Command::Restore(RestoreCommand {
        line: LineName::try_from("a").unwrap(),
        upload: 1,
        step: RestoreStep::Part {
            number: 0,
            data: Bytes::from(data).into(),
        },
    });
    assert_eq!(part.format(), 300);
}

#[test]
fn entries_that_do_not_decode_are_errors() {
    let good = written(Command::Stamp);
    assert!(decode(&good).is_ok());
    for length in 0..good.len() {
        assert!(decode(&good[..length]).is_err(), "{length}");
    }
    let longer = [&good[..], &[0]].concat();
    assert!(matches!(decode(&longer), Err(EntryError::Malformed(_))));
    // The second byte is the format.
    let of_format = |format| decode(&[&good[..1], &[format], &good[2..]].concat()).unwrap_err();
    assert_eq!(of_format(0), EntryError::TooOld(0));
    assert_eq!(
        of_format(9).to_string(),
        "a log entry has format 9, and this build reads up to 1: start a newer build"
    );
    // After it there are commands: of a kind that is not known, and neither a command nor the end.
    for bad in [&[1, 200][..], &[2]] {
        let read = decode(&[&good[..2], bad, &good[4..]].concat());
        assert!(matches!(read, Err(EntryError::Malformed(_))), "{bad:?}");
    }
    // As builds before format 1 wrote them: protobuf, with a format of 8 in its first field.
    let earlier = decode(&[0x08, 8, 0x10, 1]).unwrap_err();
    assert!(earlier.to_string().contains("start with an empty one"));
}

#[test]
fn an_entry_has_a_bounded_number_of_commands() {
    let full = Entry {
        now_ms: 1,
        wall_ms: 2,
        commands: vec![Command::Stamp; COMMANDS_MAX],
        ..Entry::default()
    };
    let mut bytes = encode(&full);
    assert_eq!(decode(&bytes).unwrap(), full);
    // One more, put in by hand.
    let stamp = [1, 0];
    bytes.splice(2..2, stamp);
    assert!(matches!(decode(&bytes), Err(EntryError::Malformed(_))));
}

#[test]
#[should_panic(expected = "more commands")]
fn too_many_commands_are_not_written() {
    encode(&Entry {
        now_ms: 1,
        wall_ms: 2,
        commands: vec![Command::Stamp; COMMANDS_MAX + 1],
        ..Entry::default()
    });
}
