//! Every kind of command in entries, and a snapshot of the state that comes of them: builds of one format write the same
//! bytes, and read those that are kept here.

mod limits;

use bytes::Bytes;
use nowserving_kv as kv;
use nowserving_line::{
    Admission, AdmissionRate, Change, Gate, ImportRow, KickItem, KickNote, KickSelector, LaneName,
    LaneSettings, LineName, Lines, OPS_PER_ENTRY_MAX, Op, Opening, OperatorNote, Phase, Quota,
    RecycleItem, RefusedCounts, Renew, Restore, ScheduledChange, Secret, Settings, SettingsPatch,
    State as TokenState, TakeBy, TokenBy, TokenRef, ZoneName,
};
use nowserving_protocol::keys::{KeyPrint, Rotation};
use nowserving_shard::command::{Command, Entry, FORMAT, decode, encode};
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

/// Of the line that the first entry creates.
const INCARNATION: u64 = OPS_PER_ENTRY_MAX;

/// A token of that line.
fn at(lane: u8, token: u64) -> TokenRef {
    TokenRef {
        incarnation: INCARNATION,
        lane,
        token,
    }
}

/// Settings that differ from their defaults.
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
        per_visit: 1,
    });
    settings.phase = Phase::Draining;
    settings.position_cap = Some(20);
    settings.release_on_claim = true;
    settings.token_events = !settings.token_events;
    settings.labels.insert("city".to_owned(), "台北".to_owned());
    settings.default_lane = Some(lane("vip"));
    settings
}

/// Settings are changed, to a value or to their default.
fn patch() -> SettingsPatch {
    SettingsPatch {
        seats: Some(Change::Set(4)),
        queue_limit: Some(Change::Set(90)),
        waiting_idle_timeout_ms: Some(Change::Unset),
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
            per_visit: 1,
        })),
        phase: Some(Change::Set(Phase::Open)),
        position_cap: Some(Change::Unset),
        release_on_claim: Some(Change::Set(false)),
        token_events: Some(Change::Unset),
        labels: Some(Change::Set(settings().labels)),
        default_lane: Some(Change::Set(lane("normal"))),
        ..SettingsPatch::default()
    }
}

fn calling_settings() -> Settings {
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
        per_visit: 1,
    });
    settings.schedule = vec![ScheduledChange {
        at_ms: 1 << 41,
        set: patch(),
    }];
    settings
}

/// Settings that [`patch`] leaves as they are.
fn patches() -> [SettingsPatch; 2] {
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
            per_visit: 1,
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

/// More kinds of operations: on a line whose seats are called, and on one that is changed.
fn calling_commands() -> Vec<Command> {
    let line = || name("busy");
    // Of the lines that the second entry creates.
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
            settings: calling_settings(),
        },
        Op::Create {
            line: name("changed"),
            settings: calling_settings(),
        },
    ];
    ops.extend(patches().map(|patch| Op::Configure {
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
        key: Some(it.as_bytes().into()),
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
            refused: RefusedCounts::new([3, 0, 1, 0]),
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
            units: Some(1),
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
        rotation: Some(rotation),
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
        request(MembersChange::RotateKey(Rotation {
            current: key(3),
            ..rotation
        })),
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
        let part = |(number, data): (u32, Bytes)| {
            command(RestoreStep::Part {
                number,
                data: data.into(),
            })
        };
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

/// What a gradual start needs: the gate, what it counts, an import, and who asked for it.
fn start_commands() -> Vec<Command> {
    let settings = Settings {
        gate: Gate::Shadow,
        ..Settings::new(1, 0)
    };
    let rows = [("a", None), ("b", Some(1_766_000_000_000))];
    let rows = rows.map(|(key, entered_at_ms)| ImportRow {
        key: key.as_bytes().into(),
        lane: Some(lane("normal")),
        entered_at_ms,
    });
    let gate = SettingsPatch {
        gate: Some(Change::Set(Gate::Off)),
        ..SettingsPatch::default()
    };
    let ops = [
        Op::Create {
            line: name("start"),
            settings,
        },
        Op::Import {
            line: name("start"),
            import_id: "old".into(),
            first_row: 0,
            rows: rows.to_vec(),
        },
        Op::Configure {
            line: name("start"),
            patch: gate.into(),
            if_version: None,
            incarnation: None,
        },
    ];
    let note = OperatorNote {
        by: Some("ann".into()),
        reason: Some("the sale".into()),
    };
    let noted = |op| Command::Noted(Box::new(note.clone()), Box::new(Command::Line(op)));
    let mut commands = ops.map(noted).to_vec();
    commands.extend(draw_commands(commands.len()).map(Command::Line));
    commands
}

/// The index of the entry with [`start_commands`].
const START_ENTRY: u64 = 5;

/// A line that opens by a draw, after so many operations in its entry.
fn draw_commands(before: usize) -> [Op; 5] {
    let settings = Settings {
        opening: Opening::Draw,
        draw_beacon: Some("7 12 40".to_owned()),
        checkout_expected_ms: Some(60_000),
        phase: Phase::PreOpen,
        ..Settings::new(1, 9)
    };
    let enter = |it: &str| Op::Enter {
        line: name("drawn"),
        key: Some(it.as_bytes().into()),
        lane: None,
    };
    let open = SettingsPatch {
        phase: Some(Change::Set(Phase::Open)),
        ..SettingsPatch::default()
    };
    [
        Op::Create {
            line: name("drawn"),
            settings,
        },
        enter("a"),
        enter("b"),
        Op::SealDraw {
            line: name("drawn"),
            incarnation: START_ENTRY * OPS_PER_ENTRY_MAX + before as u64,
            seed: Secret(std::array::from_fn(|i| i as u8)),
        },
        Op::Configure {
            line: name("drawn"),
            patch: open.into(),
            if_version: None,
            incarnation: None,
        },
    ]
}

fn kv_commands() -> Vec<Command> {
    let put = kv::Op::Put {
        bucket: "other".into(),
        key: "票".into(),
        value: [0, 0xff].into(),
        if_revision: Some(0),
        ttl_ms: Some(86_400_000),
        above: 40,
    };
    let delete = kv::Op::Delete {
        bucket: "other".into(),
        key: "nobody".into(),
        if_revision: Some(9),
    };
    let id = RequestId {
        key: 9,
        origin: Origin::Direct,
    };
    let once = Command::Once(id, Box::new(Command::Kv(delete)));
    vec![Command::Stamp, Command::Kv(put), once]
}

/// A line with much in it, under two names: one is sent in parts only, the other one put in place, too.
fn half_and_whole(entries: &[Entry]) -> Lines {
    let state = after(entries);
    let mut lines = Lines::new();
    for line in ["half", "whole"] {
        let mut dump = state.lines().get(&name("busy")).unwrap().dump();
        dump.name = name(line);
        lines.add(dump).unwrap();
    }
    lines
}

fn entries() -> Vec<Entry> {
    let entry = |commands, nth| Entry {
        format: FORMAT,
        now_ms: nth * 1_000,
        wall_ms: 1_766_222_333_444 + nth,
        compact_floor: nth,
        commands,
    };
    let mut entries = vec![entry(line_commands(), 1), entry(calling_commands(), 2)];
    let restored = restore_commands(&half_and_whole(&entries));
    let more = [
        members_commands(),
        restored,
        start_commands(),
        kv_commands(),
        limits::commands(),
    ];
    entries.extend((3..).zip(more).map(|(nth, commands)| entry(commands, nth)));
    entries
}

fn after(entries: &[Entry]) -> State {
    let mut state = State::default();
    for (entry, index) in entries.iter().zip(1..) {
        state.apply_entry(index, entry, &mut ());
    }
    state
}

#[test]
fn entries_with_every_command() {
    let kinds = [
        "line", "calls", "members", "restore", "start", "kv", "limits",
    ];
    let entries = entries();
    assert_eq!(entries.len(), kinds.len());
    for (entry, kind) in entries.iter().zip(kinds) {
        let kept = golden(&format!("entry-1-{kind}.bin"), &encode(entry));
        assert_eq!(decode(&kept, FORMAT).unwrap(), *entry, "{kind}");
    }
}

#[test]
fn a_snapshot_with_everything() {
    let state = after(&entries());
    let header = Header {
        cluster: "prod".to_owned(),
        shard: 7,
        index: 7,
        term: 3,
        voters: vec![1, 2, 4],
        learners: vec![5],
        voters_outgoing: vec![1, 2, 3],
        learners_next: vec![3],
        auto_leave: true,
    };
    let kept = golden("state-1.snap", &snapshot::encode(&header, &state));
    let (found, restored) = snapshot::decode(kept.clone().into(), FORMAT, "prod", 7).unwrap();
    assert_eq!(found, header);
    assert!(snapshot::encode(&header, &restored) == kept);
    // The file would show little if the commands did nothing.
    let dump = |line: &str| restored.lines().get(&name(line)).unwrap().dump();
    assert_eq!(
        restored
            .lines()
            .get(&name("shop"))
            .unwrap()
            .counts()
            .waiting,
        3
    );
    for line in ["busy", "whole"] {
        let busy = dump(line);
        assert!(busy.told.is_some() && busy.renews_at_ms.is_some());
        assert!(!busy.kicks.is_empty() && busy.calls.len() > 2);
        assert_eq!(busy.settings.schedule.len(), 1);
        assert_eq!(
            (busy.lanes[0].callers.len(), busy.lanes[0].marks.len()),
            (2, 2)
        );
    }
    assert_eq!(dump("start").shadow.refused, 1);
    assert_eq!(dump("start").imported.map(|it| it.entered), Some(2));
    assert_eq!(dump("start").notes.len(), 4);
    let members = restored.members();
    assert_eq!(members.wanted().rotation.map(|it| it.current.id), Some(3));
    assert_eq!((restored.kv().len(), restored.kv().revision()), (1, 41));
    let limits = restored.limits();
    assert_eq!(
        (limits.rules().version(), limits.changes().iter().len()),
        (4, 5)
    );
    assert_eq!(
        (limits.rules().domains().len(), limits.saved().len()),
        (2, 5)
    );
    let mut other = kept;
    other[8] = 99;
    let error = snapshot::decode(other.into(), FORMAT, "prod", 7).unwrap_err();
    let named = "a snapshot of format 99, and this build reads 1 to 1";
    assert_eq!(error.to_string(), named);
}
