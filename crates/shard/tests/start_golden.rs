//! Entries and snapshots with what format 8 adds for a gradual start: the gate, what it counts, and imports.

#![allow(clippy::unwrap_used)]

use nowserving_line::{Change, Gate, ImportRow, LineName, Op, Settings, SettingsPatch};
use nowserving_shard::command::{Command, Entry, FORMAT, decode, encode};
use nowserving_shard::snapshot::{self, Header};
use nowserving_shard::state::State;

fn golden(name: &str, written: &[u8]) -> Vec<u8> {
    nowserving_testkit::golden::bytes(env!("CARGO_MANIFEST_DIR"), name, written)
}

fn line(name: &str) -> LineName {
    LineName::try_from(name).unwrap()
}

fn entry() -> Entry {
    let settings = Settings {
        gate: Gate::Shadow,
        ..Settings::new(1, 0)
    };
    let rows = [("a", None), ("b", Some(1_766_000_000_000))];
    let rows = rows.map(|(key, entered_at_ms)| ImportRow {
        key: key.as_bytes().into(),
        lane: Some("normal".try_into().unwrap()),
        entered_at_ms,
    });
    let gate = SettingsPatch {
        gate: Some(Change::Set(Gate::Off)),
        ..SettingsPatch::default()
    };
    let ops = [
        Op::Create {
            line: line("shop"),
            settings,
        },
        Op::Import {
            line: line("shop"),
            import_id: "old".into(),
            first_row: 0,
            rows: rows.to_vec(),
        },
        Op::Configure {
            line: line("shop"),
            patch: gate.into(),
            if_version: None,
            incarnation: None,
        },
    ];
    Entry {
        format: 8,
        now_ms: 1_000,
        wall_ms: 1_766_222_333_444,
        compact_floor: 0,
        commands: ops.map(Command::Line).to_vec(),
    }
}

#[test]
fn an_entry_of_format_8() {
    let entry = entry();
    assert!(entry.commands.iter().all(|command| command.format() == 8));
    let kept = golden("entry-8-start.bin", &encode(&entry));
    assert_eq!(decode(&kept, FORMAT).unwrap(), entry);
    decode(&kept, 7).unwrap_err();
}

#[test]
fn a_snapshot_of_format_8() {
    let mut state = State::default();
    state.apply_entry(1, &entry(), &mut ());
    let header = Header {
        cluster: "prod".to_owned(),
        index: 1,
        term: 1,
        ..Header::default()
    };
    let kept = golden("snapshot-8-start.snap", &snapshot::encode(&header, &state));
    let (_, restored) = snapshot::decode(kept.clone().into(), FORMAT, "prod", 0).unwrap();
    assert!(snapshot::encode(&header, &restored) == kept);
    let line = restored.lines().get(&line("shop")).unwrap();
    assert_eq!(line.settings().gate, Gate::Off);
    assert_eq!((line.shadow().admitted, line.shadow().refused), (2, 1));
    assert_eq!(
        line.imported().map(|it| (it.rows, it.entered)),
        Some((2, 2))
    );
}
