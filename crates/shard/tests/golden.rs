//! The entries and snapshots of earlier builds are read, and this build writes the newest ones as they are.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use nowserving_line::{
    Admission, AdmissionRate, Change, KickItem, KickNote, KickSelector, LaneName, LaneSettings,
    LineName, Lines, OPS_PER_ENTRY_MAX, Op, Phase, Quota, RecycleItem, RefusedCounts, Renew,
    Restore, ScheduledChange, Settings, SettingsPatch, Stamp, State as TokenState, TakeBy, TokenBy,
    TokenRef, ZoneName,
};
use nowserving_protocol::keys::{KeyPrint, Rotation};
use nowserving_shard::command::{Command, Entry, FORMAT, FORMAT_MIN, decode, encode};
use nowserving_shard::members::{Member, Members, MembersChange, MembersCommand, MembersRequest};
use nowserving_shard::requests::{Origin, RequestId};
use nowserving_shard::restore::{RestoreCommand, RestoreStep, parts_of};
use nowserving_shard::snapshot::{self, Header};
use nowserving_shard::state::State;

fn golden(name: &str, written: &[u8]) -> Vec<u8> {
    nowserving_testkit::golden::bytes(env!("CARGO_MANIFEST_DIR"), name, written)
}

fn name(name: &str) -> LineName {
    LineName::try_from(name).unwrap()
}

fn lane(name: &str) -> LaneName {
    LaneName::try_from(name).unwrap()
}

/// Of the line that the second entry creates.
const INCARNATION: u64 = 2 * OPS_PER_ENTRY_MAX;

/// A token of that line.
fn at(lane: u8, token: u64) -> TokenRef {
    TokenRef {
        incarnation: INCARNATION,
        lane,
        token,
    }
}

/// Every setting differs from its default.
fn settings() -> Settings {
    let mut settings = Settings::new(3, 100);
    settings.waiting_idle_timeout_ms = 50_000;
    settings.claim_timeout_ms = 60_000;
    settings.checkout_timeout_ms = 70_000;
    settings.checkout_max_ms = 80_000;
    settings.admission_rate = Some(AdmissionRate {
        per_second_micro: 2_000_000,
        burst: 3,
    });
    settings.lanes = ["normal", "vip"]
        .map(|n| LaneSettings::new(lane(n)))
        .to_vec();
    settings.lanes[1].boost_ms = 5;
    settings.lanes[1].absolute = true;
    settings.lanes[1].queue_limit = Some(9);
    settings.call_ahead = 2;
    settings.quota = Some(Quota {
        total: 50,
        standby_percent: 10,
        renew: None,
    });
    settings.phase = Phase::Draining;
    settings.position_cap = Some(20);
    settings.release_on_claim = true;
    settings.token_events = !settings.token_events;
    settings.labels.insert("city".to_owned(), "台北".to_owned());
    settings.default_lane = Some(lane("vip"));
    settings
}

/// Each setting is changed, to a value or to its default.
fn patch() -> SettingsPatch {
    SettingsPatch {
        seats: Some(Change::Set(4)),
        queue_limit: Some(Change::Set(90)),
        waiting_idle_timeout_ms: Some(Change::Unset),
        max_wait_ms: None,
        jumps_max: None,
        event_key: None,
        admission: None,
        gate: None,
        schedule: None,
        call_ahead_ms: None,
        callback_limit: None,
        position_events: None,
        seats_when_silent: None,
        claim_timeout_ms: Some(Change::Set(61_000)),
        checkout_timeout_ms: Some(Change::Set(71_000)),
        checkout_max_ms: Some(Change::Unset),
        admission_rate: Some(Change::Unset),
        lanes: Some(Change::Set(settings().lanes)),
        call_ahead: Some(Change::Set(1)),
        quota: Some(Change::Set(Quota {
            total: 60,
            standby_percent: 20,
            renew: None,
        })),
        phase: Some(Change::Set(Phase::Open)),
        position_cap: Some(Change::Unset),
        release_on_claim: Some(Change::Set(false)),
        token_events: Some(Change::Unset),
        labels: Some(Change::Set(settings().labels)),
        default_lane: Some(Change::Set(lane("normal"))),
    }
}

/// Settings of format 7, too.
fn settings_7() -> Settings {
    let mut settings = settings();
    settings.queue_limit = 2;
    settings.phase = Phase::Open;
    settings.admission_rate = None;
    settings.release_on_claim = false;
    settings.lanes[1].jump = true;
    settings.lanes[1].queue_limit = None;
    settings.max_wait_ms = Some(86_400_000);
    settings.jumps_max = 2;
    settings.event_key = true;
    settings.admission = Admission::Called;
    settings.call_ahead_ms = 2_000;
    settings.callback_limit = 5;
    settings.position_events = vec![2, 1];
    settings.seats_when_silent = Some(1);
    settings.quota = Some(Quota {
        total: 50,
        standby_percent: 10,
        renew: Some(Renew::Daily {
            minute: 360,
            zone: ZoneName::new("Asia/Taipei").unwrap(),
        }),
    });
    settings.schedule = vec![ScheduledChange {
        at_ms: 1 << 41,
        set: patch(),
    }];
    settings
}

/// Each of the settings that format 7 adds is changed, or back at its default.
fn patches_7() -> [SettingsPatch; 2] {
    let set = SettingsPatch {
        max_wait_ms: Some(Change::Set(90_000_000)),
        jumps_max: Some(Change::Set(3)),
        event_key: Some(Change::Set(false)),
        admission: Some(Change::Set(Admission::Auto)),
        call_ahead_ms: Some(Change::Set(3_000)),
        callback_limit: Some(Change::Set(6)),
        position_events: Some(Change::Set(vec![3])),
        seats_when_silent: Some(Change::Set(2)),
        quota: Some(Change::Set(Quota {
            total: 60,
            standby_percent: 0,
            renew: Some(Renew::Every { ms: 3_600_000 }),
        })),
        schedule: Some(Change::Set(Vec::new())),
        ..patch()
    };
    let unset = SettingsPatch {
        max_wait_ms: Some(Change::Unset),
        jumps_max: Some(Change::Unset),
        event_key: Some(Change::Unset),
        admission: Some(Change::Unset),
        call_ahead_ms: Some(Change::Unset),
        callback_limit: Some(Change::Unset),
        position_events: Some(Change::Unset),
        seats_when_silent: Some(Change::Unset),
        schedule: Some(Change::Unset),
        ..SettingsPatch::default()
    };
    [set, unset]
}

/// Every kind of operation that format 7 adds: on a line whose seats are called, and on one that is changed.
fn line_commands_7() -> Vec<Command> {
    let line = || name("busy");
    // The first entry has one command.
    let (incarnation, changed) = (2 * OPS_PER_ENTRY_MAX, 2 * OPS_PER_ENTRY_MAX + 1);
    let at = |token| TokenRef {
        incarnation,
        lane: 0,
        token,
    };
    let key = |key: &str| -> Box<[u8]> { key.as_bytes().into() };
    let mut ops = vec![
        Op::Create {
            line: line(),
            settings: settings_7(),
        },
        Op::Create {
            line: name("changed"),
            settings: settings_7(),
        },
    ];
    ops.extend(patches_7().map(|patch| Op::Configure {
        line: name("changed"),
        patch: Box::new(patch),
        if_version: None,
        incarnation: Some(changed),
    }));
    ops.push(Op::RenewQuota {
        line: line(),
        incarnation,
        next_ms: 1 << 42,
    });
    ops.extend(["a", "b", "c", "d", "e"].map(|it| Op::Enter {
        line: line(),
        key: Some(key(it)),
        lane: Some(lane("normal")),
    }));
    ops.extend(["x", "y", "z"].map(|it| Op::Callback {
        line: line(),
        key: key(it),
        lane: Some(lane("normal")),
    }));
    ops.extend([
        Op::CapacityTold {
            line: line(),
            told: Some((3, 60_000)),
        },
        Op::CallNext {
            line: line(),
            n: 1,
            lane: Some(lane("normal")),
            call_id: "next-1".into(),
        },
        Op::Take {
            line: line(),
            by: TakeBy::Key(key("d")),
            call_id: Some("take-1".into()),
        },
        Op::Take {
            line: line(),
            by: TakeBy::Number {
                lane: lane("normal"),
                token: 4,
            },
            call_id: None,
        },
        Op::Jump {
            line: line(),
            by: TokenBy::Key(key("b")),
            to: lane("vip"),
        },
        Op::Jump {
            line: line(),
            by: TokenBy::At(at(2)),
            to: lane("vip"),
        },
        Op::Kick {
            line: line(),
            incarnation,
            tokens: vec![KickItem {
                lane: 0,
                token: 5,
                state: Some(TokenState::Waiting),
                clock_ms: None,
            }],
            note: Some(Box::new(KickNote {
                selector: KickSelector::Tokens(1),
                state: Some(TokenState::Waiting),
                reason: Some("rude".into()),
                by: Some("ops".into()),
            })),
        },
        Op::CountRefused {
            line: line(),
            incarnation,
            refused: RefusedCounts::from_stored(&[3, 0, 1]).unwrap(),
        },
        Op::RunBackground {
            line: line(),
            incarnation,
        },
    ]);
    ops.into_iter().map(Command::Line).collect()
}

fn line_commands() -> Vec<Command> {
    let line = || name("shop");
    let enter = |key: Option<&[u8]>, to: Option<&str>| Op::Enter {
        line: line(),
        key: key.map(Into::into),
        lane: to.map(lane),
    };
    let once =
        |key, origin, op| Command::Once(RequestId { key, origin }, Box::new(Command::Line(op)));
    let mut commands = vec![Command::Line(Op::Create {
        line: line(),
        settings: settings(),
    })];
    commands.push(Command::Line(Op::Configure {
        line: line(),
        patch: Box::new(patch()),
        if_version: None,
        incarnation: Some(INCARNATION),
    }));
    commands.extend([
        once(1, Origin::Client, enter(Some(b"a"), None)),
        once(2, Origin::Direct, enter(Some(b"b"), Some("vip"))),
        once(3, Origin::Forwarder, enter(None, None)),
    ]);
    commands.extend((0..6).map(|_| Command::Line(enter(None, Some("normal")))));
    let ops = [
        Op::Claim {
            line: line(),
            at: at(0, 1),
        },
        Op::Renew {
            line: line(),
            at: at(0, 1),
            epoch: 1,
        },
        Op::Complete {
            line: line(),
            at: at(0, 1),
            epoch: Some(1),
        },
        Op::Claim {
            line: line(),
            at: at(0, 2),
        },
        Op::Leave {
            line: line(),
            at: at(0, 6),
        },
        Op::Move {
            line: line(),
            lane: lane("normal"),
            token: 7,
            to: lane("vip"),
        },
        Op::Touch {
            line: line(),
            incarnation: INCARNATION,
            tokens: vec![(0, 5, 1_000)],
        },
        Op::Recycle {
            line: line(),
            incarnation: INCARNATION,
            tokens: vec![RecycleItem {
                lane: 0,
                token: 5,
                state: TokenState::Waiting,
                clock_ms: 1_000,
            }],
        },
        Op::RunBackground {
            line: line(),
            incarnation: INCARNATION,
        },
        Op::Create {
            line: name("old"),
            settings: Settings::new(1, 1),
        },
        Op::Delete {
            line: name("old"),
            force: true,
            incarnation: None,
        },
    ];
    commands.extend(ops.map(Command::Line));
    commands
}

fn members_commands() -> Vec<Command> {
    let request = |change| {
        MembersCommand::Request(MembersRequest {
            change,
            if_version: None,
            by: "ops".to_owned(),
            reason: "a dead disk".to_owned(),
        })
    };
    let adopted = Members {
        version: 9,
        next_id: 8,
        nodes: [(
            7,
            Member {
                disk_id: u64::MAX,
                drained: true,
            },
        )]
        .into(),
        preferred: [(2, 7)].into(),
        first: [1, 2, 3].into(),
        cluster_id: 9,
        rotation: None,
    };
    let commands = [
        MembersCommand::Begin {
            nodes: vec![1, 2, 3],
            cluster_id: 9,
        },
        request(MembersChange::Add { disk_id: 5 }),
        request(MembersChange::Replace { id: 2, disk_id: 6 }),
        request(MembersChange::Drain {
            id: 3,
            drained: true,
        }),
        request(MembersChange::Prefer {
            shards: vec![1, 2],
            to: Some(3),
        }),
        request(MembersChange::Remove { id: 1 }),
        MembersCommand::Adopt(adopted),
    ];
    let mut commands: Vec<Command> = commands.map(Command::Members).into();
    let again = Command::Members(request(MembersChange::Remove { id: 2 }));
    let id = RequestId {
        key: 3,
        origin: Origin::Client,
    };
    commands.push(Command::Once(id, Box::new(again)));
    commands
}

/// One line whose last command is still to come, and one that is put in place.
fn restore_commands(lines: &Lines) -> Vec<Command> {
    let mut commands = Vec::new();
    for (upload, line) in lines.iter().enumerate() {
        let (parts, digest) = parts_of(line);
        let command = |step| {
            Command::Restore(RestoreCommand {
                line: line.name().clone(),
                upload: upload as u128,
                step,
            })
        };
        let count = parts.len() as u32;
        let part = |(number, data): (u32, Bytes)| command(RestoreStep::Part { number, data });
        commands.extend((0..).zip(parts).map(part));
        if line.name() == &name("whole") {
            let how = Restore {
                clock_ms: 1,
                overwrite: true,
            };
            commands.push(command(RestoreStep::Finish {
                parts: count,
                digest,
                how,
            }));
        }
    }
    commands
}

fn half_and_whole() -> Lines {
    let mut lines = Lines::new();
    let stamp = Stamp {
        index: 1,
        op_no: 0,
        now_ms: 1,
        wall_ms: 1,
        format: FORMAT_MIN,
    };
    for line in ["half", "whole"] {
        let op = Op::Create {
            line: name(line),
            settings: Settings::new(1, 1),
        };
        lines.apply(stamp, &op, None).unwrap();
    }
    lines
}

/// With all that format 7 adds to a line, in parts and put in place.
fn half_and_whole_7() -> Lines {
    let mut state = State::default();
    for (entry, index) in entries(7, [vec![Command::Stamp], line_commands_7()])
        .iter()
        .zip(1..)
    {
        state.apply_entry(index, entry, &mut ());
    }
    let mut lines = Lines::new();
    for line in ["half", "whole"] {
        let mut dump = state.lines().get(&name("busy")).unwrap().dump();
        dump.name = name(line);
        lines.add(dump).unwrap();
    }
    lines
}

/// Every kind of command: of format 7 those that it adds.
fn entries_of(format: u32) -> Vec<Entry> {
    let of_members = members_commands();
    match format {
        6 => entries(
            6,
            [
                vec![Command::Stamp],
                line_commands(),
                of_members,
                restore_commands(&half_and_whole()),
            ],
        ),
        _ => entries(
            7,
            [
                vec![Command::Stamp],
                line_commands_7(),
                of_members,
                restore_commands(&half_and_whole_7()),
            ],
        ),
    }
}

fn entries<const N: usize>(format: u32, groups: [Vec<Command>; N]) -> Vec<Entry> {
    let entries = groups.into_iter().zip(1..).map(|(commands, nth)| Entry {
        format,
        now_ms: nth * 1_000,
        wall_ms: 1_766_222_333_444 + nth,
        compact_floor: nth,
        commands,
    });
    entries.collect()
}

#[test]
fn entries_of_each_format() {
    for format in [6, 7] {
        let kinds = ["stamp", "line", "members", "restore"];
        for (entry, kind) in entries_of(format).iter().zip(kinds) {
            let kept = golden(&format!("entry-{format}-{kind}.bin"), &encode(entry));
            assert_eq!(decode(&kept, FORMAT).unwrap(), *entry, "{format} {kind}");
        }
    }
}

/// A shard that has applied the entries of a format.
fn a_shard_of(format: u32) -> State {
    let mut state = State::default();
    for (entry, index) in entries_of(format).iter().zip(1..) {
        state.apply_entry(index, entry, &mut ());
    }
    state
}

fn header() -> Header {
    Header {
        cluster: "prod".to_owned(),
        shard: 7,
        index: 4,
        term: 3,
        voters: vec![1, 2, 4],
        learners: vec![5],
        voters_outgoing: vec![1, 2, 3],
        learners_next: vec![3],
        auto_leave: true,
    }
}

/// What format 8 adds to the members: the key is rotated by an operator, or as another shard has it.
#[test]
fn a_rotation_of_the_key_in_an_entry_and_a_snapshot_of_format_8() {
    let key = |id| KeyPrint {
        id,
        fingerprint: 0xff00 + u64::from(id),
    };
    let rotation = Rotation {
        current: key(2),
        old: key(1),
        old_until_ms: 1_766_222_999_000,
    };
    let adopted = Members {
        version: 2,
        rotation: Some(rotation),
        ..Members::begin(&[1, 2, 3], 9)
    };
    let request = MembersRequest {
        change: MembersChange::RotateKey(Rotation {
            current: key(3),
            ..rotation
        }),
        if_version: Some(2),
        by: "ops".to_owned(),
        reason: "it leaked".to_owned(),
    };
    let commands = [
        MembersCommand::Adopt(adopted),
        MembersCommand::Request(request),
    ];
    let [entry] = &entries(8, [commands.map(Command::Members).into()])[..] else {
        panic!("one entry");
    };
    let kept = golden("entry-8-key.bin", &encode(entry));
    assert_eq!(decode(&kept, FORMAT).unwrap(), *entry);
    let mut state = State::default();
    state.apply_entry(1, entry, &mut ());
    let kept = golden("snapshot-8-key.snap", &snapshot::encode(&header(), &state));
    let (_, restored) = snapshot::decode(kept.clone().into(), FORMAT, "prod", 7).unwrap();
    assert!(snapshot::encode(&header(), &restored) == kept);
    let wanted = restored.members().wanted();
    let expected = Rotation {
        current: key(3),
        old: key(2),
        ..rotation
    };
    assert_eq!((wanted.version, wanted.rotation), (3, Some(expected)));
}

#[test]
fn a_snapshot_of_format_7() {
    let (header, state) = (header(), a_shard_of(7));
    let kept = golden("snapshot-7.snap", &snapshot::encode(&header, &state));
    assert_eq!(kept[8], 7);
    let (found, restored) = snapshot::decode(kept.clone().into(), FORMAT, "prod", 7).unwrap();
    assert_eq!(found, header);
    assert!(snapshot::encode(&header, &restored) == kept);
    // Of a line that was put back, no place is offered.
    for (line, offered) in [("busy", 1), ("whole", 0)] {
        let dump = restored.lines().get(&name(line)).unwrap().dump();
        assert!(dump.told.is_some() && dump.renews_at_ms.is_some());
        assert!(!dump.kicks.is_empty() && dump.calls.len() > 2);
        assert_eq!(dump.settings.schedule.len(), 1);
        let lane = &dump.lanes[0];
        let of_lane = (lane.callers.len(), lane.offers.recent, lane.marks.len());
        assert_eq!(of_lane, (2, offered, 2), "{line}");
    }
}

#[test]
fn a_snapshot_of_format_6() {
    let (header, state) = (header(), a_shard_of(6));
    let kept = golden("snapshot-6.snap", &snapshot::encode(&header, &state));
    let (found, restored) = snapshot::decode(kept.clone().into(), FORMAT, "prod", 7).unwrap();
    assert_eq!(found, header);
    assert!(snapshot::encode(&header, &restored) == kept);
    let mut other = kept;
    other[8] = 99;
    let error = snapshot::decode(other.into(), FORMAT, "prod", 7).unwrap_err();
    let named = "a snapshot of format 99, and this build reads 6 to 8";
    assert_eq!(error.to_string(), named);
    let line = restored.lines().get(&name("shop")).unwrap();
    assert_eq!(line.counts().waiting, 3);
}
