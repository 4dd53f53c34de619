//! The entries and snapshots of earlier builds are read, and this build writes the newest ones as they are.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use nowserving_line::{
    AdmissionRate, Change, LaneName, LaneSettings, LineName, Lines, OPS_PER_ENTRY_MAX, Op, Phase,
    Quota, RecycleItem, Restore, Settings, SettingsPatch, Stamp, State as TokenState, TokenRef,
};
use nowserving_shard::command::{Command, Entry, FORMAT, FORMAT_MIN, decode, encode};
use nowserving_shard::members::{Member, Members, MembersChange, MembersCommand, MembersRequest};
use nowserving_shard::requests::{Origin, RequestId};
use nowserving_shard::restore::{RestoreCommand, RestoreStep, parts_of};
use nowserving_shard::snapshot::{self, Header};
use nowserving_shard::state::State;

fn golden(name: &str, written: &[u8]) -> Vec<u8> {
    nowserving_golden::bytes(env!("CARGO_MANIFEST_DIR"), name, written)
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
fn restore_commands() -> Vec<Command> {
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

/// Every kind of command.
fn entries() -> Vec<Entry> {
    let groups = [
        vec![Command::Stamp],
        line_commands(),
        members_commands(),
        restore_commands(),
    ];
    let entries = groups.into_iter().zip(1..).map(|(commands, nth)| Entry {
        format: 6,
        now_ms: nth * 1_000,
        wall_ms: 1_766_222_333_444 + nth,
        compact_floor: nth,
        commands,
    });
    entries.collect()
}

#[test]
fn entries_of_format_6() {
    for (entry, kind) in entries()
        .iter()
        .zip(["stamp", "line", "members", "restore"])
    {
        let kept = golden(&format!("entry-6-{kind}.bin"), &encode(entry));
        assert_eq!(decode(&kept, FORMAT).unwrap(), *entry, "{kind}");
    }
}

#[test]
fn a_snapshot_of_format_6() {
    let mut state = State::default();
    for (entry, index) in entries().iter().zip(1..) {
        state.apply_entry(index, entry, &mut ());
    }
    let header = Header {
        cluster: "prod".to_owned(),
        shard: 7,
        index: 4,
        term: 3,
        voters: vec![1, 2, 4],
        learners: vec![5],
        voters_outgoing: vec![1, 2, 3],
        learners_next: vec![3],
        auto_leave: true,
    };
    let kept = golden("snapshot-6.snap", &snapshot::encode(&header, &state));
    let (found, restored) = snapshot::decode(kept.clone().into(), FORMAT, "prod", 7).unwrap();
    assert_eq!(found, header);
    assert!(snapshot::encode(&header, &restored) == kept);
    let mut other = kept;
    other[8] = 99;
    let error = snapshot::decode(other.into(), FORMAT, "prod", 7).unwrap_err();
    let named = "a snapshot of format 99, and this build reads 6 to 7";
    assert_eq!(error.to_string(), named);
    let line = restored.lines().get(&name("shop")).unwrap();
    assert_eq!(line.counts().waiting, 3);
}
