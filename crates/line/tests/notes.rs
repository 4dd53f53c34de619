//! Who asked for an operation, and why: notes in the journal.

use nowserving_line::{
    Change, ImportRow, Journaled, LaneName, LaneSettings, Limits, Line, LineName, Lines, Op,
    OperatorNote, Phase, Refused, Reply, Settings, SettingsPatch, Stamp,
};

fn name() -> LineName {
    LineName::try_from("shop").unwrap()
}

fn lane(name: &str) -> LaneName {
    LaneName::try_from(name).unwrap()
}

fn note(by: &str) -> OperatorNote {
    OperatorNote {
        by: Some(by.into()),
        reason: Some("because".into()),
    }
}

#[derive(Default)]
struct World {
    lines: Lines,
    index: u64,
}

impl World {
    fn apply(&mut self, op: &Op, note: Option<&OperatorNote>) -> Result<Reply, Refused> {
        self.index += 1;
        let stamp = Stamp {
            index: self.index,
            op_no: 0,
            now_ms: self.index,
            wall_ms: self.index,
        };
        self.lines.apply_noted(stamp, op, note, None)
    }

    fn create(&mut self, note: Option<&OperatorNote>) {
        let mut settings = Settings::new(1, 100);
        settings.lanes = vec![LaneSettings::new(lane("a")), LaneSettings::new(lane("b"))];
        let line = name();
        self.apply(&Op::Create { line, settings }, note).unwrap();
    }

    fn line(&self) -> &Line {
        self.lines.get(&name()).unwrap()
    }

    fn configure(&mut self, patch: SettingsPatch, note: Option<&OperatorNote>) {
        let op = Op::Configure {
            line: name(),
            patch: Box::new(patch),
            if_version: None,
            incarnation: None,
        };
        self.apply(&op, note).unwrap();
    }

    fn enter(&mut self, key: &str) {
        let op = Op::Enter {
            line: name(),
            key: Some(key.as_bytes().into()),
            lane: Some(lane("a")),
        };
        self.apply(&op, None).unwrap();
    }

    /// Who asked for each entry of the journal.
    fn noted(&self) -> Vec<(Journaled, Option<&str>)> {
        let line = self.line();
        let entries = line.journal_after(0);
        let by = |version| {
            let noted = line.operator_note(version)?;
            assert_eq!(noted.note.reason.as_deref(), Some("because"));
            noted.note.by.as_deref()
        };
        entries.map(|it| (it.what, by(it.version))).collect()
    }
}

fn paused(phase: Phase) -> SettingsPatch {
    SettingsPatch {
        phase: Some(Change::Set(phase)),
        ..SettingsPatch::default()
    }
}

#[test]
fn the_entries_of_an_operation_have_its_note_and_no_others() {
    let mut world = World::default();
    world.create(Some(&note("ann")));
    world.enter("1");
    world.enter("2");
    world.configure(paused(Phase::Paused), None);
    world.configure(paused(Phase::Open), Some(&note("bob")));
    // It changes nothing, so there is nothing to note.
    world.configure(paused(Phase::Open), Some(&note("nobody")));
    let (from, to) = (lane("a"), lane("b"));
    let line = name();
    let token = 2;
    let op = Op::Move {
        line,
        lane: from,
        token,
        to,
    };
    world.apply(&op, Some(&note("cat"))).unwrap();
    let row = |key: &str| ImportRow {
        key: key.as_bytes().into(),
        lane: Some(lane("b")),
        entered_at_ms: None,
    };
    let import = Op::Import {
        line: name(),
        import_id: "old".into(),
        first_row: 0,
        rows: vec![row("3"), row("4")],
    };
    world.apply(&import, Some(&note("eve"))).unwrap();
    let told = Op::CapacityTold {
        line: name(),
        told: Some((3, 60_000)),
    };
    world.apply(&told, Some(&note("dan"))).unwrap();
    // Told again, which changes nothing: no entry.
    world.apply(&told, Some(&note("nobody"))).unwrap();
    let noted = world.noted();
    let by: Vec<&str> = noted.iter().filter_map(|(_, by)| *by).collect();
    // Both rows of the import, and its own entry.
    assert_eq!(by, ["ann", "bob", "cat", "eve", "eve", "eve", "dan"]);
    let imported = Journaled::Imported {
        rows: 2,
        entered: 2,
    };
    assert!(noted.contains(&(imported, Some("eve"))));
    assert_eq!(noted[0], (Journaled::Created, Some("ann")));
    let last = (Journaled::CapacityTold { seats: Some(3) }, Some("dan"));
    assert_eq!(noted.last(), Some(&last));
}

#[test]
fn without_a_note_nothing_is_added() {
    let mut world = World::default();
    world.create(None);
    let told = Op::CapacityTold {
        line: name(),
        told: Some((3, 60_000)),
    };
    world.apply(&told, None).unwrap();
    assert!(world.noted().is_empty());
}

#[test]
fn a_note_that_is_too_long_is_refused() {
    let mut world = World::default();
    world.create(None);
    let version = world.line().version();
    let long = note(&"x".repeat(129));
    let op = Op::Delete {
        line: name(),
        force: true,
        incarnation: None,
    };
    let refused = world.apply(&op, Some(&long)).unwrap_err();
    assert!(refused.to_string().contains("by"), "{refused}");
    assert_eq!(world.line().version(), version);
}

#[test]
fn notes_come_back_from_a_dump() {
    let mut world = World::default();
    world.create(Some(&note("ann")));
    world.configure(paused(Phase::Paused), Some(&note("bob")));
    let dump = world.line().dump();
    assert_eq!(dump.notes.len(), 2);
    let restored = |dump| {
        let mut lines = Lines::from_head(Limits::default(), world.lines.head()).unwrap();
        lines.add(dump).map(|()| lines)
    };
    let lines = restored(dump.clone()).unwrap();
    assert_eq!(lines.get(&name()).unwrap().dump(), dump);
    let mut bad = dump.clone();
    bad.notes[1].version += 1;
    bad.notes[1].through += 1;
    assert!(restored(bad).is_err(), "a note of no entry");
    let mut bad = dump;
    bad.notes[0].through = 0;
    assert!(restored(bad).is_err(), "it ends before it begins");
}
